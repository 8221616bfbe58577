/* Adds up what the trainer allocates, and refuses it when it does not fit. */
#include "services/trainer-server/engine/memory.h"

#include <stdint.h>

#include "common/model/learning/optimizer.h"
#include "services/trainer-server/board/weights_blob.h"
#include "services/trainer-server/ranks/devices.h"

struct learner_options memory_learner_options(const struct trainer_options *o, int chunk_tokens) {
  return (struct learner_options){.chunk_tokens = chunk_tokens, .recompute_activations = o->recompute_activations};
}

void trainer_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *options) {
  const struct learner_options o = memory_learner_options(options, (int)options->chunk_tokens);
  const struct learner_memory learner = learner_memory(m, &o);
  const bool device = !m->ops->host_memory;
  *out = (struct memory_plan){0};
  memory_plan_add_where(out, "weights", weights_bytes(m, true), device);
  memory_plan_add_where(out, "optimizer", optimizer_bytes(m, ranks_shard(options->ranks.comm, m->params.elements)),
                        device);
  memory_plan_add_where(out, "activations", learner.activations, device);
  memory_plan_add_where(out, "scratch", learner.scratch + m->ops->scratch_bytes + model_rope_bytes(m), device);
  if (device)
    memory_plan_add(out, "buffers between host and device",
                    weights_host_bytes(m) + devices_bounce_bytes(options->ranks.comm, m->ops));
  memory_plan_add(out, "published versions", WEIGHTS_BLOBS_MAX * model_file_bytes(m));
}

static void read_room(struct memory_room *out, const struct model *m, size_t bound) {
  memory_room_read(out, "", bound);
  out->device = m->ops->room(m->ops);
}

enum rc memory_check(const struct model *m, const struct trainer_options *options, struct ranks *ranks,
                     struct err *err) {
  struct memory_plan plan;
  struct memory_room room;
  trainer_memory_plan(&plan, m, options);
  memory_plan_show(&plan);
  read_room(&room, m, (size_t)options->memory_max);
  const enum rc rc = devices_share_room(ranks, memory_plan_device(&plan), &room, err);
  return rc == RC_OK ? memory_plan_check(&plan, &room, "the trainer", err) : rc;
}

/* left: beside everything else. */
static enum rc reference_fits(const struct model *m, const struct trainer_options *options,
                              const struct memory_room *left, struct err *err) {
  struct memory_plan plan = {0}, all;
  memory_plan_add_where(&plan, "reference", weights_bytes(m, false), !m->ops->host_memory);
  enum rc rc = memory_plan_check(&plan, left, "the frozen reference of a run with a KL term", err);
  if (rc == RC_OK && options->memory_max > 0) {
    trainer_memory_plan(&all, m, options);
    memory_plan_add_where(&all, "reference", weights_bytes(m, false), !m->ops->host_memory);
    const struct memory_room room = {.bound = (size_t)options->memory_max, .device = SIZE_MAX};
    rc = memory_plan_check(&all, &room, "the trainer with the frozen reference of a run with a KL term", err);
  }
  return rc;
}

enum rc memory_check_reference(const struct model *m, const struct trainer_options *options, struct err *err) {
  struct memory_plan plan = {0};
  struct memory_room room;
  memory_plan_add_where(&plan, "reference", weights_bytes(m, false), !m->ops->host_memory);
  read_room(&room, m, 0);
  const enum rc rc = reference_fits(m, options, &room, err);
  if (rc == RC_OK) memory_plan_show(&plan);
  return rc;
}

enum rc memory_foresee_reference(const struct model *m, const struct trainer_options *options, bool held,
                                 struct err *err) {
  struct memory_room room = {0};
  if (!held) memory_room_read(&room, "", 0);
  room.device = SIZE_MAX;
  return reference_fits(m, options, &room, err);
}
