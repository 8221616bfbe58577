/* What the trainer needs, before it takes it; the README states the same as a formula.
 *
 * Everything is allocated at start but three things: the published versions, which come with the first step; the frozen
 * reference of a run with a KL term, checked when such a run is opened; and the bodies of requests, which have limits of
 * their own. */
#include "services/trainer-server/engine/trainer_state.h"

#include <stdint.h>

struct learner_options trainer_learner_options(const struct trainer_options *o, int chunk_tokens) {
  return (struct learner_options){.chunk_tokens = chunk_tokens, .recompute_activations = o->recompute_activations};
}

void trainer_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *options) {
  const struct learner_options o = trainer_learner_options(options, (int)options->chunk_tokens);
  const struct learner_memory learner = learner_memory(m, &o);
  const bool device = !m->ops->host_memory;
  *out = (struct memory_plan){0};
  memory_plan_add_where(out, "weights", weights_bytes(m, true), device);
  memory_plan_add_where(out, "optimizer", optimizer_bytes(m, ranks_shard(options, m->params.elements)), device);
  memory_plan_add_where(out, "activations", learner.activations, device);
  memory_plan_add_where(out, "scratch", learner.scratch + m->ops->scratch_bytes + model_rope_bytes(m), device);
  if (device)
    memory_plan_add(out, "buffers between host and device",
                    weights_host_bytes(m) + devices_bounce_bytes(options, m->ops));
  memory_plan_add(out, "published versions", 2 * model_file_bytes(m)); /* the current one's bytes, and the next one's */
}

static void read_room(struct memory_room *out, const struct trainer *t, size_t bound) {
  memory_room_read(out, "", bound);
  out->device = t->ops->room(t->ops);
}

enum rc trainer_check_memory(struct trainer *t, struct err *err) {
  struct memory_plan plan;
  struct memory_room room;
  trainer_memory_plan(&plan, t->model, &t->options);
  memory_plan_show(&plan);
  read_room(&room, t, (size_t)t->options.memory_max);
  const enum rc rc = devices_share_room(t, memory_plan_device(&plan), &room, err);
  return rc == RC_OK ? memory_plan_check(&plan, &room, "the trainer", err) : rc;
}

/* left: beside everything else. */
static enum rc reference_fits(const struct trainer *t, const struct memory_room *left, struct err *err) {
  struct memory_plan plan = {0}, all;
  memory_plan_add_where(&plan, "reference", weights_bytes(t->model, false), !t->ops->host_memory);
  enum rc rc = memory_plan_check(&plan, left, "the frozen reference of a run with a KL term", err);
  if (rc == RC_OK && t->options.memory_max > 0) {
    trainer_memory_plan(&all, t->model, &t->options);
    memory_plan_add_where(&all, "reference", weights_bytes(t->model, false), !t->ops->host_memory);
    const struct memory_room room = {.bound = (size_t)t->options.memory_max, .device = SIZE_MAX};
    rc = memory_plan_check(&all, &room, "the trainer with the frozen reference of a run with a KL term", err);
  }
  return rc;
}

enum rc trainer_check_reference(const struct trainer *t, struct err *err) {
  struct memory_plan plan = {0};
  struct memory_room room;
  memory_plan_add_where(&plan, "reference", weights_bytes(t->model, false), !t->ops->host_memory);
  read_room(&room, t, 0);
  const enum rc rc = reference_fits(t, &room, err);
  if (rc == RC_OK) memory_plan_show(&plan);
  return rc;
}

enum rc trainer_foresee_reference(const struct trainer *t, bool held, struct err *err) {
  struct memory_room room = {0};
  if (!held) memory_room_read(&room, "", 0);
  room.device = SIZE_MAX;
  return reference_fits(t, &room, err);
}
