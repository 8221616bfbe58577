/* Adds up what a preprocessor allocates, and refuses it when it does not fit. */
#include "services/trainer-server/preprocess/pass_memory.h"

#include "common/model/learning/backward.h"
#include "services/trainer-server/engine/memory.h"

void pass_memory_plan(struct memory_plan *out, const struct model *m, const struct trainer_options *options) {
  const struct learner_options o = {.chunk_tokens = (int)options->chunk_tokens, .forward_only = true};
  const struct learner_memory learner = learner_memory(m, &o);
  const size_t lanes = options->lanes > 1 ? (size_t)options->lanes : 1;
  const bool device = !m->ops->host_memory;
  *out = (struct memory_plan){0};
  memory_plan_add_where(out, "weights", weights_bytes(m, false), device);
  memory_plan_add_where(out, "scratch", lanes * learner.scratch + m->ops->scratch_bytes + model_rope_bytes(m), device);
  if (device) memory_plan_add(out, "buffers between host and device", weights_host_bytes(m));
  memory_plan_add(out, "incoming weights", model_file_bytes(m));
}

enum rc pass_memory_check(const struct model *m, const struct trainer_options *options, struct err *err) {
  struct memory_plan plan;
  struct memory_room room;
  pass_memory_plan(&plan, m, options);
  memory_plan_show(&plan);
  memory_room_read(&room, "", (size_t)options->memory_max);
  room.device = m->ops->room(m->ops);
  memory_plan_show_room(&plan, &room);
  if (memory_plan_check(&plan, &room, "the preprocessor", err) == RC_OK) return RC_OK;
  return memory_refuse(m, options, true, &room, pass_memory_plan, err);
}
