/* What the trainer needs, before it takes it; the README states the same as a formula.
 *
 * Everything is allocated at start but three things: the published versions, which come with the first step; the frozen
 * reference of a run with a KL term, checked when such a run is opened; and the bodies of requests, which have limits of
 * their own. */
#include "services/trainer-server/trainer_internal.h"

struct learner_options trainer_learner_options(const struct trainer_options *o, int chunk_tokens) {
  return (struct learner_options){.chunk_tokens = chunk_tokens, .recompute_activations = o->recompute_activations};
}

void trainer_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *options) {
  const struct learner_options o = trainer_learner_options(options, (int)options->chunk_tokens);
  const struct learner_memory learner = learner_memory(m, &o);
  *out = (struct memory_plan){0};
  memory_plan_add(out, "weights", weights_bytes(m, true));
  memory_plan_add(out, "optimizer", optimizer_bytes(m, ranks_shard(options, m->params.elements)));
  memory_plan_add(out, "activations", learner.activations);
  memory_plan_add(out, "scratch", learner.scratch + m->ops->scratch_bytes + model_rope_bytes(m));
  memory_plan_add(out, "published versions", 2 * model_file_bytes(m)); /* the current one's bytes, and the next one's */
}

static enum rc check(const struct trainer *t, const struct memory_plan *plan, const char *what, struct err *err) {
  struct memory_room room;
  memory_room_read(&room, "", (size_t)t->options.memory_max);
  return memory_plan_check(plan, &room, what, err);
}

enum rc trainer_check_memory(const struct trainer *t, struct err *err) {
  struct memory_plan plan;
  trainer_memory_plan(&plan, t->model, &t->options);
  memory_plan_show(&plan);
  return check(t, &plan, "the trainer", err);
}

enum rc trainer_check_reference(const struct trainer *t, struct err *err) {
  struct memory_plan plan = {0}, all;
  struct memory_room room;
  memory_plan_add(&plan, "reference", weights_bytes(t->model, false));
  memory_room_read(&room, "", 0); /* what is left now, beside everything else */
  enum rc rc = memory_plan_check(&plan, &room, "the frozen reference of a run with a KL term", err);
  if (rc == RC_OK && t->options.memory_max > 0) {
    trainer_memory_plan(&all, t->model, &t->options);
    memory_plan_add(&all, "reference", weights_bytes(t->model, false));
    room = (struct memory_room){.bound = (size_t)t->options.memory_max};
    rc = memory_plan_check(&all, &room, "the trainer with the frozen reference of a run with a KL term", err);
  }
  if (rc == RC_OK) memory_plan_show(&plan);
  return rc;
}
