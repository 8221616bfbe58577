/* Adds up what the trainer allocates, and refuses it when it does not fit. */
#include "services/trainer-server/engine/memory.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/model/learning/gradient_parts.h"
#include "common/model/network/weights_changes.h"
#include "services/trainer-server/board/weights_blob.h"
#include "services/trainer-server/ranks/devices.h"

struct learner_options memory_learner_options(const struct trainer_options *o, int chunk_tokens) {
  return (struct learner_options){.chunk_tokens = chunk_tokens,
                                  .recompute_activations = o->recompute_activations,
                                  .transposes_bytes = o->lean ? LEARNER_TRANSPOSES_BYTES : 0};
}

/* Of a version, at most; and of those that are kept together with those that are being made. */
static size_t changes_bytes(const struct model *m, const struct trainer_options *options) {
  return options->push_changes && m->ops->format == FORMAT_BF16 ? model_file_bytes(m) / CHANGES_PART : 0;
}

void trainer_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *asked) {
  const bool device = !m->ops->host_memory;
  const bool alone = !device && (!asked->ranks.comm || asked->ranks.comm->size == 1);
  struct trainer_options here = *asked; /* elsewhere the start refuses these: learning_check_memory */
  here.lean &= alone;
  here.optimizer_mapped &= !device;
  here.moments8 &= alone;
  const struct trainer_options *options = &here;
  const struct learner_options o = memory_learner_options(options, (int)options->chunk_tokens);
  const struct learner_memory learner = learner_memory(m, &o);
  const size_t lanes = options->lanes > 1 ? (size_t)options->lanes : 1;
  const size_t gradients = (lanes - 1) * m->params.elements * sizeof(float);
  const struct optimizer_place place = {.shard = ranks_shard(options->ranks.comm, m->params.elements),
                                        .scratch_dir = options->optimizer_mapped ? trainer_scratch_dir(options) : NULL,
                                        .in_parts = options->lean,
                                        .moments8 = options->moments8};
  *out = (struct memory_plan){0};
  memory_plan_add_where(out, "weights", weights_bytes(m, !options->lean), device);
  const size_t parts = options->lean ? gradient_parts_bytes(m) : 0;
  memory_plan_add_where(out, options->moments8 ? "optimizer with 8-bit moments" : "optimizer",
                        optimizer_bytes(m, &place) + gradients + parts, device);
  memory_plan_add_where(out, "activations", lanes * learner.activations, device);
  memory_plan_add_where(out, "scratch", lanes * learner.scratch + m->ops->scratch_bytes + model_rope_bytes(m), device);
  if (device)
    memory_plan_add(out, "buffers between host and device",
                    weights_host_bytes(m) + devices_bounce_bytes(options->ranks.comm, m->ops));
  memory_plan_add(out, "published versions", options->lean ? 0 : WEIGHTS_BLOBS_MAX * model_file_bytes(m));
  memory_plan_add(out, "changes between versions", changes_bytes(m, options));
}

/* Of a chunk: forward and backward.  Above it an operation keeps several threads busy for longer than they need to hand
 * it over. */
#define LANE_OPERATIONS_MAX 0x1p36

void memory_choose_lanes(struct trainer_options *options, const struct model *m, memory_planner plan_of) {
  struct memory_plan plan;
  struct memory_room room;
  const double operations = 6.0 * (double)m->params.parameters * (double)options->chunk_tokens;
  options->lanes = 1;
  if (!m->ops->host_memory || options->lean || operations > LANE_OPERATIONS_MAX) return;
  memory_room_read(&room, "", (size_t)options->memory_max);
  for (options->lanes = (int)options->threads; options->lanes > 1; options->lanes--) {
    plan_of(&plan, m, options);
    if (memory_plan_total(&plan) <= memory_room_left(&room) / 2) return;
  }
}

void memory_room_now(struct memory_room *out, const struct model *m, size_t bound) {
  memory_room_read(out, "", bound);
  out->device = m->ops->room(m->ops);
}

void memory_fit(struct trainer_options *options, const struct model *m, bool chunks, memory_planner plan_of) {
  const struct trainer_options asked = *options;
  struct memory_advice advice;
  struct memory_room room;
  memory_room_now(&room, m, (size_t)options->memory_max);
  fit_choose(options, &advice, m, &asked, chunks, &room, plan_of);
  memory_advice_show(&advice);
}

/* What --fit never chooses, because it moves bits. */
static void advise_moments(const struct model *m, const struct trainer_options *chosen, memory_planner plan_of,
                           struct err *err) {
  struct trainer_options in_8_bits = *chosen;
  struct memory_plan before, after;
  in_8_bits.moments8 = true;
  plan_of(&before, m, chosen);
  plan_of(&after, m, &in_8_bits);
  const size_t larger = memory_plan_total(&before), smaller = memory_plan_total(&after);
  const size_t said = err ? strlen(err->message) : 0;
  if (!err || smaller >= larger) return;
  snprintf(
      err->message + said, sizeof err->message - said,
      "; beside that, --optimizer-moments 8bit takes %.1f MiB less, for runs that ask for it, and makes other weights",
      (double)(larger - smaller) / (1 << 20));
}

enum rc memory_refuse(const struct model *m, const struct trainer_options *options, bool chunks,
                      const struct memory_room *room, memory_planner plan_of, struct err *err) {
  struct trainer_options chosen;
  struct memory_advice advice;
  fit_choose(&chosen, &advice, m, options, chunks, room, plan_of);
  memory_advice_give(&advice, err);
  advise_moments(m, &chosen, plan_of, err);
  return RC_NO_MEMORY;
}

enum rc memory_check(const struct model *m, const struct trainer_options *options, struct ranks *ranks,
                     struct err *err) {
  struct memory_plan plan;
  struct memory_room room;
  trainer_memory_plan(&plan, m, options);
  memory_plan_show(&plan);
  memory_room_now(&room, m, (size_t)options->memory_max);
  const enum rc rc = devices_share_room(ranks, memory_plan_device(&plan), &room, err);
  memory_plan_show_room(&plan, &room);
  if (rc != RC_OK || memory_plan_check(&plan, &room, "the trainer", err) == RC_OK) return rc;
  return memory_refuse(m, options, ranks_alone(ranks), &room, trainer_memory_plan, err);
}

static void frozen_add(struct memory_plan *plan, const struct model *m, const struct trainer_options *options,
                       const struct frozen_weights *f) {
  const bool device = !m->ops->host_memory;
  if (f->reference) memory_plan_add_where(plan, "reference", weights_bytes(m, false), device);
  if (f->behaviour) memory_plan_add_where(plan, "behaviour policy", weights_bytes(m, false), device);
  if (f->versions)
    memory_plan_add(plan, "versions being pushed",
                    WEIGHTS_BLOBS_PUSHED_MAX * ((options->lean ? 0 : model_file_bytes(m)) + changes_bytes(m, options)));
}

void trainer_memory_plan_going_on(struct memory_plan *out, const struct model *m,
                                  const struct trainer_options *options) {
  trainer_memory_plan(out, m, options);
  frozen_add(out, m, options, &options->going_on);
}

static const char *frozen_name(const struct frozen_weights *f) {
  if (f->versions && f->reference)
    return "the frozen reference and the versions being pushed of a run with a KL term and update 'inflight'";
  if (f->versions) return "the versions being pushed of a run with update 'inflight'";
  if (!f->behaviour) return "the frozen reference of a run with a KL term";
  if (!f->reference) return "the frozen behaviour policy of a run with update 'minibatch'";
  return "the frozen reference and behaviour policy of a run with a KL term and update 'minibatch'";
}

/* missing: those of the needed that left, which is beside everything else, must have room for. */
static enum rc frozen_fit(const struct model *m, const struct trainer_options *options,
                          const struct frozen_weights *needed, const struct frozen_weights *missing,
                          const struct memory_room *left, struct err *err) {
  struct memory_plan plan = {0}, all;
  char whole[160];
  frozen_add(&plan, m, options, missing);
  enum rc rc = memory_plan_check(&plan, left, frozen_name(missing), err);
  if (rc != RC_OK || options->memory_max <= 0) return rc;
  trainer_memory_plan(&all, m, options);
  frozen_add(&all, m, options, needed);
  const struct memory_room room = {.bound = (size_t)options->memory_max, .device = SIZE_MAX};
  snprintf(whole, sizeof whole, "the trainer with %s", frozen_name(needed));
  return memory_plan_check(&all, &room, whole, err);
}

enum rc memory_check_frozen(const struct model *m, const struct trainer_options *options,
                            const struct frozen_weights *needed, struct memory_plan *shown, struct err *err) {
  struct memory_plan plan = {0};
  struct memory_room room;
  memory_plan_over(shown);
  *shown = plan;
  if (!needed->reference && !needed->behaviour && !needed->versions) return RC_OK;
  frozen_add(&plan, m, options, needed);
  memory_room_now(&room, m, 0);
  const enum rc rc = frozen_fit(m, options, needed, needed, &room, err);
  if (rc != RC_OK) return rc;
  memory_plan_show(&plan);
  *shown = plan;
  return RC_OK;
}

enum rc memory_foresee_frozen(const struct model *m, const struct trainer_options *options,
                              const struct frozen_weights *needed, int held, struct err *err) {
  struct frozen_weights missing = *needed;
  struct memory_room room = {0};
  if (held > 0 && missing.reference) missing.reference = false, held--;
  if (held > 0) missing.behaviour = false;
  if (missing.reference || missing.behaviour || missing.versions) memory_room_read(&room, "", 0);
  room.device = SIZE_MAX;
  return frozen_fit(m, options, needed, &missing, &room, err);
}
