/* What the trainer starts from: the newest whole checkpoint, or the model folder, before the engine's thread runs; and what
 * a run starts from, on that thread. */
#include "services/trainer-server/engine/trainer_state.h"

#include <inttypes.h>

#include "common/base/file.h"
#include "common/base/log.h"

static enum rc weights_initial(struct trainer *t, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct st_file *file = NULL;
  enum rc rc = path_format(path, err, "%s/model.safetensors", t->options.model_dir);
  if (rc != RC_OK) return rc;
  if (file_exists(path)) {
    rc = st_open_file(&file, path, err);
    if (rc == RC_OK) rc = weights_from_safetensors(t->weights, file, err);
    st_close(file);
    return rc;
  }
  if (t->options.random_init_seed < 0) {
    return err_set(err, RC_NOT_FOUND, NULL,
                   "%s does not exist, and --random-init gives no seed to start from random weights", path);
  }
  rc = masters_random(t->model, t->grads, (uint64_t)t->options.random_init_seed, err);
  if (rc != RC_OK) return rc;
  weights_from_masters(t->weights, t->grads);
  log_info("random initial weights, seed %" PRId64, t->options.random_init_seed);
  return RC_OK;
}

enum rc trainer_check_start(const struct trainer *t, const struct run_start *start, struct err *err) {
  if (start->from != START_CHECKPOINT || checkpoint_exists(t->options.state_dir, start->run, start->version))
    return RC_OK;
  return err_set(
      err, RC_INVALID, "start",
      "the trainer keeps no checkpoint of run %s, version %" PRId64
      ": of a run's checkpoints, one every `checkpoint_every` rounds, it keeps version 0 and the newest %" PRId64
      " (--keep-checkpoints)",
      start->run, start->version, t->options.keep_checkpoints);
}

enum rc trainer_start_weights(struct trainer *t, const struct run_start *start, struct err *err) {
  t->grads_clear = false;                                               /* scratch for random weights */
  if (start->from == START_MODEL && t->blob->run[0] == 0) return RC_OK; /* nothing was done to them yet */
  if (start->from == START_MODEL) return weights_initial(t, err);
  if (start->from != START_CHECKPOINT) return RC_OK;
  const enum rc rc = trainer_check_start(t, start, err);
  if (rc != RC_OK) return rc;
  return checkpoint_load_weights(t->options.state_dir, start->run, start->version, t->weights, err);
}

void trainer_weights_back(struct trainer *t) {
  struct st_file *file = NULL;
  struct err err = {0};
  enum rc rc = st_open_memory(&file, t->blob->bytes.data, t->blob->bytes.len, &err);
  if (rc == RC_OK) rc = weights_from_safetensors(t->weights, file, &err);
  st_close(file);
  if (rc != RC_OK) ranks_lose(t, &err); /* they are nobody's */
}

/* The other ranks take up the run that the checkpoint is of: its configuration, then its reference and weights.  The
 * optimizer's arrays have been spread while they were read. */
static enum rc ranks_resume(struct trainer *t, const struct open_run *opened, int64_t steps, struct err *err) {
  struct buf payload = BUF_INIT;
  if (ranks_alone(t)) return RC_OK;
  open_run_encode(opened, &payload);
  enum rc rc = buf_check(&payload, err);
  if (rc == RC_OK) rc = ranks_tell(t, &(struct command){.order = ORDER_RESUME, .steps = steps}, &payload, err);
  buf_free(&payload);
  if (rc == RC_OK && t->reference) rc = ranks_tell_weights(t, t->reference, WEIGHTS_REFERENCE, err);
  return rc;
}

/* The frozen reference of a resumed run: its version 0, which pruning never removes. */
static enum rc reference_restore(struct trainer *t, const char *run, struct err *err) {
  enum rc rc = trainer_check_reference(t, err);
  if (rc == RC_OK) rc = weights_create(&t->reference, t->model, false, err);
  if (rc != RC_OK) return rc;
  struct err cause = {0};
  rc = checkpoint_load_weights(t->options.state_dir, run, 0, t->reference, &cause);
  if (rc == RC_OK) return RC_OK;
  return err_set(
      err, rc, NULL,
      "the frozen reference of run %s: %.300s; with a new --state-dir a run that began with the model folder's "
      "weights is replayed",
      run, cause.message);
}

/* The step that led to the restored version is known as done: the coordinator may have died, or been told nothing,
 * between its checkpoint and its announcement. */
static enum rc step_restore(struct trainer *t, const struct checkpoint_meta *meta, struct err *err) {
  struct job *job;
  bool fresh;
  if (!meta->step_id[0] || meta->history_count == 0) return RC_OK;
  const struct round_record *last = &meta->history[meta->history_count - 1];
  enum rc rc = jobs_begin(t->jobs, meta->step_id, JOB_STEP, &meta->step_request, meta->version - 1, &job, &fresh, err);
  if (rc != RC_OK) return rc;
  job->out.step = (struct step_status){.version = meta->version,
                                       .digest = meta->digest,
                                       .grad_norm = last->grad_norm,
                                       .lr = last->lr,
                                       .skipped = last->skipped};
  jobs_finish(t->jobs, job, NULL);
  return RC_OK;
}

static enum rc checkpoint_adopt(struct trainer *t, struct checkpoint *c, struct err *err) {
  struct optimizer_config o;
  struct weights_blob *b = NULL;
  struct digest run_digest;
  const struct open_run opened = {
      .run = c->meta.run, .seed = c->meta.seed, .start = c->meta.start, .training = c->meta.training};
  enum rc rc = trainer_map_config(&c->meta.training, &t->unit, &o, err);
  if (rc == RC_OK) rc = trainer_keep_config(t, &opened, err);
  if (rc == RC_OK) rc = trainer_run_digest(&run_digest, &opened, err);
  if (rc == RC_OK) rc = trainer_learner_for(t, c->meta.training.chunk_tokens, err);
  if (rc == RC_OK && t->unit.loss.kl_coefficient != 0) rc = reference_restore(t, c->meta.run, err);
  if (rc == RC_OK) rc = ranks_resume(t, &opened, c->meta.optimizer_steps, err);
  if (rc == RC_OK) rc = step_restore(t, &c->meta, err);
  if (rc == RC_OK) rc = trainer_blob_make(t, c->meta.run, c->meta.version, &b, err);
  if (rc == RC_OK) rc = ranks_begin(t, &b->digest, err);
  if (rc != RC_OK) {
    weights_blob_release(b);
    return rc;
  }
  optimizer_configure(t->optimizer, &o);
  optimizer_set_step_count(t->optimizer, c->meta.optimizer_steps);
  t->seed = c->meta.seed;
  t->history = c->history;
  t->history_count = t->history_cap = c->meta.history_count;
  c->history = NULL;
  trainer_run_set(t, &run_digest, t->training.chunk_tokens);
  trainer_version_set(t, b);
  return RC_OK;
}

enum rc trainer_restore(struct trainer *t, struct err *err) {
  struct checkpoint c;
  const struct checkpoint_arrays arrays = ranks_arrays(t);
  enum rc rc = checkpoint_load(&c, t->options.state_dir, t->model, t->weights, &arrays, err);
  if (rc == RC_NOT_FOUND) {
    struct weights_blob *b = NULL;
    rc = weights_initial(t, err);
    if (rc == RC_OK) rc = trainer_blob_make(t, "", 0, &b, err);
    if (rc == RC_OK) rc = ranks_begin(t, &b->digest, err);
    if (rc == RC_OK)
      trainer_version_set(t, b);
    else
      weights_blob_release(b);
    return rc;
  }
  if (rc != RC_OK) return rc;
  if (c.damage[0])
    log_warn("%s; going back to version %" PRId64 ", the rounds since are to be replayed", c.damage, c.meta.version);
  rc = checkpoint_adopt(t, &c, err);
  if (rc == RC_OK) rc = checkpoint_settle(&c, t->options.state_dir, t->options.keep_checkpoints, err);
  if (rc == RC_OK) log_info("restored run %s at version %" PRId64 " from %s", c.meta.run, c.meta.version, c.dir);
  checkpoint_free(&c);
  return rc;
}
