/* Decides which options make a trainer fit. */
#include "services/trainer-server/engine/fit.h"

#include <inttypes.h>
#include <stdio.h>

enum { CHUNK_TOKENS_MIN = 256 };

/* What is given up, each a bit; in the order of their numbers a larger set is dearer than any smaller one. */
enum {
  GIVE_UP_CHANGES = 1,
  GIVE_UP_COPIES = 2,
  GIVE_UP_ACTIVATIONS = 4,
  GIVE_UP_RESIDENT = 8,
  GIVE_UP_ALL = 15
};

static struct trainer_options without(const struct trainer_options *asked, int given_up, int64_t chunk_tokens) {
  struct trainer_options o = *asked;
  o.lanes = 1; /* more lanes are taken only where they fit */
  if (given_up & GIVE_UP_CHANGES) o.push_changes = false;
  if (given_up & GIVE_UP_COPIES) o.lean = true;
  if (given_up & GIVE_UP_ACTIVATIONS) o.recompute_activations = true;
  if (given_up & GIVE_UP_RESIDENT) o.optimizer_mapped = true;
  o.chunk_tokens = chunk_tokens;
  return o;
}

static bool fits(const struct model *m, const struct trainer_options *o, const struct memory_room *room,
                 memory_planner plan_of) {
  struct memory_plan plan;
  plan_of(&plan, m, o);
  return memory_plan_check(&plan, room, "", NULL) == RC_OK;
}

/* One change after the other, so that each is seen to save what it saves beside those before it. */
static void explain(struct memory_advice *a, const struct model *m, const struct trainer_options *asked,
                    const struct trainer_options *chosen, memory_planner plan_of) {
  struct memory_plan before, after;
  char flag[MEMORY_FLAG_MAX];
  struct trainer_options o = without(asked, 0, asked->chunk_tokens);
  plan_of(&before, m, &o);
  a->needed = memory_plan_total(&before);
  if (o.push_changes != chosen->push_changes) {
    o.push_changes = chosen->push_changes;
    plan_of(&after, m, &o);
    memory_advice_add(a, "--push-changes false", "servers are sent whole versions", &before, &after);
    before = after;
  }
  if (o.lean != chosen->lean) {
    o.lean = chosen->lean;
    plan_of(&after, m, &o);
    memory_advice_add(a, "--lean true", "transposes are made again and again, versions lie on disk, the same weights",
                      &before, &after);
    before = after;
  }
  if (o.recompute_activations != chosen->recompute_activations) {
    o.recompute_activations = chosen->recompute_activations;
    plan_of(&after, m, &o);
    memory_advice_add(a, "--recompute-activations true", "a third more computing, the same weights", &before, &after);
    before = after;
  }
  if (o.optimizer_mapped != chosen->optimizer_mapped) {
    o.optimizer_mapped = chosen->optimizer_mapped;
    plan_of(&after, m, &o);
    memory_advice_add(a, "--optimizer-state mapped", "every step reads and writes so much on disk", &before, &after);
    before = after;
  }
  if (o.chunk_tokens != chosen->chunk_tokens) {
    o.chunk_tokens = chosen->chunk_tokens;
    plan_of(&after, m, &o);
    snprintf(flag, sizeof flag, "--chunk-tokens %" PRId64, chosen->chunk_tokens);
    memory_advice_add(a, flag, "runs may ask for no larger chunk, and no sample is longer", &before, &after);
  }
}

void fit_choose(struct trainer_options *out, struct memory_advice *advice, const struct model *m,
                const struct trainer_options *asked, bool chunks, const struct memory_room *room,
                memory_planner plan_of) {
  const int64_t least = chunks ? CHUNK_TOKENS_MIN : asked->chunk_tokens;
  int64_t chunk_tokens = asked->chunk_tokens;
  *advice = (struct memory_advice){0};
  for (;; chunk_tokens /= 2) {
    for (int given_up = 0; given_up <= GIVE_UP_ALL && !advice->fits; given_up++) {
      *out = without(asked, given_up, chunk_tokens);
      advice->fits = fits(m, out, room, plan_of);
    }
    if (advice->fits || chunk_tokens / 2 < least) break;
  }
  explain(advice, m, asked, out, plan_of);
}
