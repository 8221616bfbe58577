/* Makes the parts of a trainer one after the other, and tells how far that went. */
#include "services/trainer-server/foresee/foresee.h"

#include <unistd.h>

#include "common/base/file.h"
#include "common/http/check_machine.h"
#include "common/safetensors/safetensors.h"
#include "common/client/foresight.h"
#include "common/threads/pool.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/trainer.h"
#include "services/trainer-server/foresee/measure.h"

struct foreseen {
  struct foresight_request request;
  struct arena arena; /* the run's */
  struct check_run run;
  struct memory_plan plan;
  struct memory_room room;
  struct err start, run_refused, unmeasured; /* rc RC_OK: nothing stands in the way */
  struct learning_pace pace;
};

/* As a run's configuration is checked before it is opened, with what it keeps frozen. */
static void check_run_of(struct foreseen *f, const struct engine *e) {
  const struct open_run opened = {.run = "", .start = f->run.start, .training = f->run.training};
  const struct frozen_weights needed = run_config_frozen(&f->run.training);
  if (run_config_check(&e->options, &opened, &f->run_refused) != RC_OK) return;
  memory_foresee_frozen(e->model, &e->options, &needed, 0, &f->run_refused);
}

/* Without weights the first start fails, unless there is a checkpoint to go on from. */
static void check_weights(struct foreseen *f, const struct trainer_options *o) {
  char latest[LIMIT_PATH_MAX];
  if (f->start.rc != RC_OK || o->random_init_seed >= 0 || st_folder_has_weights(o->model_dir)) return;
  if (path_format(latest, NULL, "%s/latest", o->state_dir) == RC_OK && file_exists(latest)) return;
  err_set(&f->start, RC_NOT_FOUND, "model",
          "%s holds no weights (model.safetensors, or shards with their index), and --random-init gives no seed to "
          "start from "
          "random ones",
          o->model_dir);
}

static void pace_write(const struct foreseen *f, struct json_writer *w) {
  const struct learning_pace *p = &f->pace;
  if (p->groups == 0) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_int(w, "groups", p->groups);
  json_kv_int(w, "rows", p->rows);
  json_kv_int(w, "rows_of_a_group", p->rows_of_a_group);
  json_kv_f64(w, "group_us", p->group_us);
  json_kv_f64(w, "step_us", p->step_us);
  json_object_end(w);
}

static void engine_write(const struct foreseen *f, const struct engine *e, struct json_writer *w) {
  const size_t elements = e->model->params.elements;
  const size_t moments = e->options.moments8 ? 2 : 2 * sizeof(float);
  json_kv_u64(w, "parameters", e->model->params.parameters);
  json_kv_u64(w, "weights_bytes", model_file_bytes(e->model));
  json_kv_u64(w, "checkpoint_bytes", model_file_bytes(e->model) + elements * (sizeof(float) + moments));
  json_kv_int(w, "context_max", e->model->context_max);
  json_kv_string(w, "device", e->ops->device);
  json_kv_string(w, "kernels", e->ops->name);
  json_kv_int(w, "threads", e->options.threads);
  json_kv_int(w, "units_at_once", e->options.lanes);
  json_key(w, "memory");
  memory_report_write(&f->plan, &f->room, &f->start, w);
}

static enum rc answer(const struct foreseen *f, struct trainer *t, const struct program *program, const char *dir,
                      struct err *err) {
  struct buf out = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &out);
  json_object_begin(&w);
  check_machine_write(&w, program, dir);
  foresight_reason_write(&f->start, "start_refused", &w);
  if (t) engine_write(f, trainer_engine(t), &w);
  foresight_reason_write(&f->run_refused, "run_refused", &w);
  json_key(&w, "pace");
  pace_write(f, &w);
  foresight_reason_write(&f->unmeasured, "pace_unknown", &w);
  json_object_end(&w);
  return foresight_print(&out, err);
}

enum rc foresee(const struct trainer_options *options, const struct program *program, const char *request,
                struct err *err) {
  struct foreseen f = {0};
  struct json *root;
  struct trainer *t = NULL;
  const char *scratch = trainer_scratch_dir(options);
  const bool was_there = file_exists(scratch); /* where scratch files are wanted the engine makes it */
  enum rc rc = foresight_request_read(&f.request, &root, request, err);
  if (rc == RC_OK && f.request.run) {
    rc = check_run_decode(&f.run, f.request.run, &f.arena, err);
    if (rc != RC_OK) err_in_field(err, "run");
  }
  if (rc != RC_OK) goto out;
  pool_enter();
  if (trainer_open_model(&t, options, &f.start) == RC_OK) {
    struct engine *e = trainer_engine(t);
    trainer_open_plan(t, &f.plan, &f.room, &f.start);
    check_weights(&f, options);
    if (f.request.run) check_run_of(&f, e);
    if (f.start.rc == RC_OK && f.run_refused.rc == RC_OK && f.request.run && f.request.measure_ms > 0 &&
        run_config_trains(&f.run.training) && trainer_open_learning(t, &f.unmeasured) == RC_OK)
      learning_measure(&f.pace, e, &f.run, &f.request, &f.unmeasured);
  }
  rc = answer(&f, t, program, options->state_dir, err);
out:
  trainer_destroy(t);
  if (!was_there) rmdir(scratch);
  json_free(root);
  arena_free(&f.arena);
  return rc;
}
