/* Decides how much KV cache a server takes, and what it gives up where memory is short. */
#include "services/generation-server/engine/fit.h"

#include <stdint.h>
#include <stdio.h>

#include "common/model/network/kv_cache.h"

enum { CONTEXT_MIN = 256, PREFILL_MIN = 32 };

/* What is given up, each a bit; in the order of their numbers a larger set is dearer than any smaller one. */
enum { GIVE_UP_PAGES = 1, GIVE_UP_PREFILL = 2, GIVE_UP_ALL = 3 };

/* What the plan without a single page leaves where the pages lie. */
static size_t left_for_pages(const struct loaded_model_options *o, const struct model *m, size_t room,
                             kv_planner plan_of) {
  struct memory_plan plan;
  plan_of(&plan, m, o, 0);
  const size_t needed = m->ops->host_memory ? memory_plan_total(&plan) : memory_plan_device(&plan);
  return room > needed ? room - needed : 0;
}

int fit_pages(const struct loaded_model_options *o, const struct model *m, const struct memory_room *room,
              kv_planner plan_of) {
  const int64_t per_sequence = (m->context_max + o->page_tokens - 1) / o->page_tokens;
  const size_t there = m->ops->host_memory ? memory_room_left(room) : room->device;
  if (o->pages > 0) return o->pages;
  const size_t left = left_for_pages(o, m, there, plan_of), most = left < there / 4 ? left : there / 4;
  const int64_t affordable = (int64_t)(most / kv_page_bytes(m, o->page_tokens));
  int64_t pages = per_sequence * o->slots;
  if (pages > affordable) pages = affordable;
  if (pages < per_sequence) pages = per_sequence;
  return pages > INT32_MAX ? INT32_MAX : (int)pages;
}

static void plan_for(struct memory_plan *out, const struct model *m, const struct loaded_model_options *o,
                     const struct memory_room *room, kv_planner plan_of) {
  struct model sized = *m; /* a plan looks at its sizes alone */
  sized.context_max = o->context_max;
  plan_of(out, &sized, o, fit_pages(o, &sized, room, plan_of));
}

static struct loaded_model_options without(const struct loaded_model_options *asked, int given_up, int context_max) {
  struct loaded_model_options o = *asked;
  if (given_up & GIVE_UP_PAGES) o.pages = 0;
  if (given_up & GIVE_UP_PREFILL && o.prefill_chunk > PREFILL_MIN) o.prefill_chunk = PREFILL_MIN;
  o.context_max = context_max;
  return o;
}

/* One change after the other, so that each is seen to save what it saves beside those before it. */
static void explain(struct memory_advice *a, const struct model *m, const struct loaded_model_options *asked,
                    const struct loaded_model_options *chosen, const struct memory_room *room, kv_planner plan_of) {
  struct memory_plan before, after;
  char flag[MEMORY_FLAG_MAX];
  struct loaded_model_options o = without(asked, 0, m->context_max);
  plan_for(&before, m, &o, room, plan_of);
  a->needed = memory_plan_total(&before);
  if (o.pages != chosen->pages) {
    o.pages = chosen->pages;
    plan_for(&after, m, &o, room, plan_of);
    memory_advice_add(a, "--kv-pages 0", "as many as there is room for", &before, &after);
    before = after;
  }
  if (o.prefill_chunk != chosen->prefill_chunk) {
    o.prefill_chunk = chosen->prefill_chunk;
    plan_for(&after, m, &o, room, plan_of);
    snprintf(flag, sizeof flag, "--prefill-chunk %d", chosen->prefill_chunk);
    memory_advice_add(a, flag, "prompts take more steps", &before, &after);
    before = after;
  }
  if (o.context_max != chosen->context_max) {
    o.context_max = chosen->context_max;
    plan_for(&after, m, &o, room, plan_of);
    snprintf(flag, sizeof flag, "--context-max %d", chosen->context_max);
    memory_advice_add(a, flag, "no sequence may be longer", &before, &after);
  }
}

void fit_choose(struct loaded_model_options *out, struct memory_advice *advice, const struct model *m,
                const struct loaded_model_options *asked, const struct memory_room *room, kv_planner plan_of) {
  struct memory_plan plan;
  int context_max = m->context_max;
  *advice = (struct memory_advice){0};
  for (;; context_max /= 2) {
    for (int given_up = 0; given_up <= GIVE_UP_ALL && !advice->fits; given_up++) {
      *out = without(asked, given_up, context_max);
      plan_for(&plan, m, out, room, plan_of);
      advice->fits = memory_plan_check(&plan, room, "", NULL) == RC_OK;
    }
    if (advice->fits || context_max / 2 < CONTEXT_MIN) break;
  }
  explain(advice, m, asked, out, room, plan_of);
}
