/* Restores the newest whole checkpoint, on all ranks; where there is none, begins with the model's folder. */
#include "services/trainer-server/engine/restore.h"

#include <inttypes.h>

#include "common/base/log.h"
#include "services/trainer-server/engine/learning.h"
#include "services/trainer-server/engine/optimizer_arrays.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/start_weights.h"
#include "services/trainer-server/engine/version.h"
#include "services/trainer-server/ranks/shared_arrays.h"

/* The other ranks take up the run that the checkpoint is of: its configuration, then its reference and weights.  The
 * optimizer's arrays have been spread while they were read. */
static enum rc ranks_resume(struct engine *e, const struct open_run *opened, int64_t steps, struct err *err) {
  struct buf payload = BUF_INIT;
  if (ranks_alone(&e->ranks)) return RC_OK;
  open_run_encode(opened, &payload);
  enum rc rc = buf_check(&payload, err);
  if (rc == RC_OK) rc = ranks_tell(&e->ranks, &(struct order){.kind = ORDER_RESUME, .steps = steps}, &payload, err);
  buf_free(&payload);
  if (rc == RC_OK && e->learning.reference)
    rc = ranks_tell_weights(&e->ranks, e->learning.reference, WEIGHTS_REFERENCE, learning_scratch(&e->learning), err);
  return rc;
}

/* The frozen reference of a resumed run: its version 0, or a later one (training.reference_every); pruning removes
 * neither. */
static enum rc reference_restore(struct engine *e, const char *run, int64_t version, struct digest *digest,
                                 struct err *err) {
  struct err cause = {0};
  enum rc rc = checkpoint_load_weights(e->options.state_dir, run, version, e->learning.reference, &cause);
  if (rc == RC_OK) return weights_digest(digest, e->learning.reference, err);
  return err_set(
      err, rc, NULL,
      "the frozen reference of run %s: %.300s; with a new --state-dir a run that began with the model folder's "
      "weights is replayed",
      run, cause.message);
}

/* The step that led to the restored version is known as done: the coordinator may have died, or been told nothing,
 * between its checkpoint and its announcement. */
static enum rc step_restore(struct engine *e, const struct checkpoint_meta *meta, struct err *err) {
  struct job *job;
  bool fresh;
  if (!meta->step_id[0] || meta->history_count == 0) return RC_OK;
  const struct round_record *last = &meta->history[meta->history_count - 1];
  enum rc rc = jobs_begin(e->jobs, meta->step_id, JOB_STEP, &meta->step_request, meta->version - 1, &job, &fresh, err);
  if (rc != RC_OK) return rc;
  job->out.step =
      (struct step_status){.version = meta->version,
                           .digest = meta->digest,
                           .grad_norm = last->grad_norm,
                           .lr = last->lr,
                           .skipped = last->skipped,
                           .checkpoints = checkpoint_versions(e->options.state_dir, meta->run, &job->arena)};
  jobs_finish(e->jobs, job, NULL);
  return RC_OK;
}

static enum rc checkpoint_adopt(struct engine *e, struct checkpoint *c, struct err *err) {
  struct optimizer_config o;
  struct weights_blob *b = NULL;
  struct digest run_digest, reference = {{0}};
  const struct open_run opened = {
      .run = c->meta.run, .seed = c->meta.seed, .start = c->meta.start, .training = c->meta.training};
  enum rc rc = run_config_map(&c->meta.training, &e->run.unit, &o, err);
  if (rc == RC_OK) rc = run_config_keep(&e->run, &opened, err);
  if (rc == RC_OK) rc = run_config_digest(&run_digest, &opened, err);
  if (rc == RC_OK && c->meta.training.chunk_tokens > e->options.chunk_tokens)
    log_warn("run %s takes chunks of %d tokens: other runs can be opened, and this one with --chunk-tokens %d",
             c->meta.run, c->meta.training.chunk_tokens, c->meta.training.chunk_tokens);
  if (rc == RC_OK) rc = learning_set_chunk(e, c->meta.training.chunk_tokens, err);
  if (rc == RC_OK) rc = learning_frozen_make(e, err);
  const int64_t referred = checkpoint_reference(c->meta.version, c->meta.training.reference_every);
  if (rc == RC_OK && e->learning.reference) rc = reference_restore(e, c->meta.run, referred, &reference, err);
  if (rc == RC_OK) rc = ranks_resume(e, &opened, c->meta.optimizer_steps, err);
  if (rc == RC_OK) rc = step_restore(e, &c->meta, err);
  if (rc == RC_OK) rc = version_serialize(e, c->meta.run, c->meta.version, false, &b, err);
  if (rc == RC_OK) rc = ranks_begin(&e->ranks, e->learning.weights, learning_scratch(&e->learning), &b->digest, err);
  if (rc != RC_OK) {
    weights_blob_release(b);
    return rc;
  }
  optimizer_configure(e->learning.optimizer, &o);
  optimizer_set_step_count(e->learning.optimizer, c->meta.optimizer_steps);
  e->run.seed = c->meta.seed;
  struct round_history *h = &e->run.history;
  h->count = 0;
  round_history_add(h, c->meta.history, c->meta.history_count);
  if (h->count > 0 && h->items[h->count - 1].kl_coefficient > 0)
    e->run.unit.loss.kl_coefficient = (float)h->items[h->count - 1].kl_coefficient;
  learning_show_run(e, &run_digest, &reference);
  board_publish(e->board, b);
  return RC_OK;
}

enum rc restore_state(struct engine *e, struct err *err) {
  struct checkpoint c;
  const struct checkpoint_arrays arrays = optimizer_arrays(e);
  enum rc rc = checkpoint_load(&c, e->options.state_dir, e->model, e->learning.weights, &arrays, err);
  if (rc == RC_NOT_FOUND) {
    struct weights_blob *b = NULL;
    rc = start_weights_initial(e, err);
    if (rc == RC_OK) rc = version_serialize(e, "", 0, false, &b, err);
    if (rc == RC_OK) rc = ranks_begin(&e->ranks, e->learning.weights, learning_scratch(&e->learning), &b->digest, err);
    if (rc == RC_OK)
      board_publish(e->board, b);
    else
      weights_blob_release(b);
    return rc;
  }
  if (rc != RC_OK) return rc;
  if (c.damage[0])
    log_warn("%s; going back to version %" PRId64 ", the rounds since must be replayed", c.damage, c.meta.version);
  rc = checkpoint_adopt(e, &c, err);
  if (rc == RC_OK) rc = checkpoint_settle(&c, e->options.state_dir, e->options.keep_checkpoints, err);
  if (rc == RC_OK) log_info("restored run %s at version %" PRId64 " from %s", c.meta.run, c.meta.version, c.dir);
  checkpoint_free(&c);
  return rc;
}
