/* Reads or makes the weights that a trainer or a run starts from. */
#include "services/trainer-server/engine/start_weights.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/log.h"
#include "services/trainer-server/engine/learning.h"

static enum rc folder_load(struct engine *e, const char *dir, struct err *err) {
  char what[LIMIT_PATH_MAX];
  struct st_file *file = NULL;
  enum rc rc = st_open_folder(&file, dir, err);
  if (rc != RC_OK) return rc;
  snprintf(what, sizeof what, "loading %s", dir);
  rc = weights_load(e->learning.weights, file, what, err);
  if (rc != RC_OK) err_in_file(err, dir);
  st_close(file);
  return rc;
}

/* Masters that no run has yet are where the numbers are made. */
static void random_by_the_optimizer(struct engine *e, uint64_t seed) {
  struct optimizer *o = e->learning.optimizer;
  for (int i = 0; i < e->model->params.count; i++) {
    const struct param *p = &e->model->params.items[i];
    float *values = optimizer_masters(o) + p->offset;
    master_random(e->model, i, values, seed);
    optimizer_done_with(o, values, p->count * sizeof *values);
  }
  optimizer_to_weights(o, e->learning.weights);
}

enum rc start_weights_initial(struct engine *e, struct err *err) {
  struct err cause = {0};
  if (st_folder_has_weights(e->options.model_dir)) return folder_load(e, e->options.model_dir, err);
  if (e->options.random_init_seed < 0) {
    const enum rc rc = folder_load(e, e->options.model_dir, &cause);
    return err_set(err, rc, NULL, "%.380s; and --random-init gives no seed to start from random weights",
                   cause.message);
  }
  const uint64_t seed = (uint64_t)e->options.random_init_seed;
  float *masters = learning_scratch(&e->learning);
  const enum rc rc = masters ? masters_random(e->model, masters, seed, err) : RC_OK;
  if (rc != RC_OK) return rc;
  if (masters)
    weights_from_masters(e->learning.weights, masters);
  else
    random_by_the_optimizer(e, seed);
  log_info("random initial weights, seed %" PRId64, e->options.random_init_seed);
  return RC_OK;
}

static enum rc not_kept(const struct trainer_options *options, const struct run_start *start, struct err *err) {
  return err_set(
      err, RC_INVALID, "start",
      "the trainer keeps no checkpoint of run %s, version %" PRId64
      ": of a run's checkpoints, one every `checkpoint_every` rounds, it keeps version 0 and the newest %" PRId64
      " (--keep-checkpoints)",
      start->run, start->version, options->keep_checkpoints);
}

enum rc start_weights_ask(const struct trainer_options *options, const struct run_start *start, struct err *err) {
  return start->from != START_CHECKPOINT || checkpoint_ask(options->state_dir, start->run, start->version)
             ? RC_OK
             : not_kept(options, start, err);
}

enum rc start_weights_load(struct engine *e, const struct run_start *start, struct err *err) {
  if (start->from == START_MODEL && board_current(e->board)->run[0] == 0)
    return RC_OK; /* nothing was done to them yet */
  if (start->from == START_MODEL) return start_weights_initial(e, err);
  if (start->from != START_CHECKPOINT) return RC_OK;
  if (!checkpoint_exists(e->options.state_dir, start->run, start->version)) return not_kept(&e->options, start, err);
  return checkpoint_load_weights(e->options.state_dir, start->run, start->version, e->learning.weights, err);
}

void start_weights_back(struct engine *e) {
  const struct weights_blob *current = board_current(e->board);
  struct st_file *file = NULL;
  struct err err = {0};
  enum rc rc = st_open_memory(&file, current->bytes.data, current->bytes.len, &err);
  if (rc == RC_OK) rc = weights_from_safetensors(e->learning.weights, file, &err);
  st_close(file);
  weights_blob_all_done(current);
  if (rc != RC_OK) ranks_lose(&e->ranks, &err); /* they are no version's */
}
