/* Reads or makes the weights that a trainer or a run starts from. */
#include "services/trainer-server/engine/start_weights.h"

#include <inttypes.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "services/trainer-server/engine/learning.h"

enum rc start_weights_initial(struct engine *e, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct st_file *file = NULL;
  enum rc rc = path_format(path, err, "%s/model.safetensors", e->options.model_dir);
  if (rc != RC_OK) return rc;
  if (file_exists(path)) {
    rc = st_open_file(&file, path, err);
    if (rc == RC_OK) rc = weights_from_safetensors(e->learning.weights, file, err);
    st_close(file);
    return rc;
  }
  if (e->options.random_init_seed < 0) {
    return err_set(err, RC_NOT_FOUND, NULL,
                   "%s does not exist, and --random-init gives no seed to start from random weights", path);
  }
  float *masters = learning_scratch(&e->learning);
  rc = masters_random(e->model, masters, (uint64_t)e->options.random_init_seed, err);
  if (rc != RC_OK) return rc;
  weights_from_masters(e->learning.weights, masters);
  log_info("random initial weights, seed %" PRId64, e->options.random_init_seed);
  return RC_OK;
}

enum rc start_weights_check(const struct trainer_options *options, const struct run_start *start, struct err *err) {
  if (start->from != START_CHECKPOINT || checkpoint_exists(options->state_dir, start->run, start->version))
    return RC_OK;
  return err_set(
      err, RC_INVALID, "start",
      "the trainer keeps no checkpoint of run %s, version %" PRId64
      ": of a run's checkpoints, one every `checkpoint_every` rounds, it keeps version 0 and the newest %" PRId64
      " (--keep-checkpoints)",
      start->run, start->version, options->keep_checkpoints);
}

enum rc start_weights_load(struct engine *e, const struct run_start *start, struct err *err) {
  if (start->from == START_MODEL && board_current(e->board)->run[0] == 0)
    return RC_OK; /* nothing was done to them yet */
  if (start->from == START_MODEL) return start_weights_initial(e, err);
  if (start->from != START_CHECKPOINT) return RC_OK;
  const enum rc rc = start_weights_check(&e->options, start, err);
  if (rc != RC_OK) return rc;
  return checkpoint_load_weights(e->options.state_dir, start->run, start->version, e->learning.weights, err);
}

void start_weights_back(struct engine *e) {
  const struct weights_blob *current = board_current(e->board);
  struct st_file *file = NULL;
  struct err err = {0};
  enum rc rc = st_open_memory(&file, current->bytes.data, current->bytes.len, &err);
  if (rc == RC_OK) rc = weights_from_safetensors(e->learning.weights, file, &err);
  st_close(file);
  if (rc != RC_OK) ranks_lose(&e->ranks, &err); /* they are no version's */
}
