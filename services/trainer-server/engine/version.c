/* Versions: the serialized weights that are pushed and pulled, what handlers see of them, and their checkpoints. */
#include "services/trainer-server/engine/trainer_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"

void trainer_run_set(struct trainer *t, const struct digest *run_digest, int chunk_tokens) {
  pthread_mutex_lock(&t->lock);
  t->view.run_digest = *run_digest;
  t->view.chunk_tokens = chunk_tokens;
  t->view.has_reference = t->reference != NULL;
  pthread_mutex_unlock(&t->lock);
}

void trainer_run_end(struct trainer *t) {
  pthread_mutex_lock(&t->lock);
  t->view.run[0] = 0;
  t->view.replay_from = t->view.replay_to = t->view.attached_us = 0;
  metric_set(t->metric_replaying, 0);
  pthread_mutex_unlock(&t->lock);
  t->step_pending = false;
  accumulated_clear(t->accumulated);
  t->history_count = 0;
  t->step_loss = 0;
  t->step_tokens = 0;
  optimizer_discard(t->optimizer);
}

enum rc trainer_blob_make(struct trainer *t, const char *run, int64_t version, struct weights_blob **out,
                          struct err *err) {
  struct weights_blob *b = calloc(1, sizeof *b);
  if (!b) return err_set(err, RC_NO_MEMORY, NULL, "a weights record was refused memory");
  atomic_init(&b->users, 1);
  snprintf(b->run, sizeof b->run, "%s", run);
  b->version = version;
  enum rc rc = weights_digest(&b->digest, t->weights, err);
  char hex[DIGEST_HEX_MAX], number[32];
  digest_hex(hex, &b->digest);
  snprintf(number, sizeof number, "%" PRId64, version);
  const char *const metadata[] = {"leasehold.run", run, "leasehold.version", number, "leasehold.digest", hex, NULL};
  if (rc == RC_OK) rc = weights_to_safetensors(&b->bytes, t->weights, metadata, err);
  if (rc == RC_OK) rc = buf_check(&b->bytes, err);
  if (rc != RC_OK) {
    weights_blob_release(b);
    return rc;
  }
  *out = b;
  return RC_OK;
}

void trainer_attach(struct trainer *t, const char *run, int64_t current_version, struct trainer_view *out) {
  int64_t begun = -1;
  pthread_mutex_lock(&t->lock);
  struct trainer_view *v = &t->view;
  if (strcmp(v->run, run) == 0) {
    if (v->attached_us == 0) v->attached_us = clock_monotonic_us();
    if (current_version > v->version && current_version > v->replay_to) {
      if (!trainer_view_replaying(v)) v->replay_from = v->version;
      v->replay_to = current_version;
      begun = v->version;
      metric_set(t->metric_replaying, 1);
    }
  }
  *out = *v;
  pthread_mutex_unlock(&t->lock);
  if (begun >= 0)
    log_info("run %s stands at version %" PRId64 ", recorded is %" PRId64 ": replaying", run, begun, current_version);
}

void trainer_detach(struct trainer *t) {
  pthread_mutex_lock(&t->lock);
  t->view.attached_us = 0;
  pthread_mutex_unlock(&t->lock);
}

void trainer_version_set(struct trainer *t, struct weights_blob *b) {
  pthread_mutex_lock(&t->lock);
  struct trainer_view *v = &t->view;
  struct weights_blob *old = t->blob;
  const bool was_replaying = trainer_view_replaying(v);
  t->blob = b;
  snprintf(v->run, sizeof v->run, "%s", b->run);
  v->version = b->version;
  v->digest = b->digest;
  const bool replayed = was_replaying && !trainer_view_replaying(v);
  if (replayed) metric_set(t->metric_replaying, 0);
  const int64_t from = v->replay_from;
  pthread_mutex_unlock(&t->lock);
  weights_blob_release(old);
  metric_set(t->metric_version, (double)b->version);
  if (replayed) log_info("run %s is replayed from version %" PRId64 " to %" PRId64, b->run, from, b->version);
}

bool trainer_trains(const struct training_config *c) { return strcmp(c->objective, "evaluate") != 0; }

enum rc trainer_write_checkpoint(struct trainer *t, const struct weights_blob *b, const struct job *step,
                                 struct err *err) {
  struct checkpoint_meta meta = {.version = b->version,
                                 .digest = b->digest,
                                 .seed = t->seed,
                                 .optimizer_steps = optimizer_step_count(t->optimizer),
                                 .start = t->start,
                                 .training = t->training,
                                 .history = t->history,
                                 .history_count = t->history_count};
  struct trainer_view v;
  trainer_view(t, &v);
  snprintf(meta.run, sizeof meta.run, "%s", b->run);
  if (step) {
    snprintf(meta.step_id, sizeof meta.step_id, "%s", step->id);
    meta.step_request = step->request;
  }
  meta.epoch = v.epoch;
  meta.fence = v.fence;
  const struct checkpoint_arrays arrays = ranks_arrays(t);
  enum rc rc = checkpoint_write(t->options.state_dir, t->options.model_dir, &meta, t->model, &arrays, &b->bytes, err);
  if (rc != RC_OK) return rc;
  struct err kept = {0};
  rc = checkpoint_prune(t->options.state_dir, b->run, b->version, t->options.keep_checkpoints, &kept);
  if (rc == RC_OK) return RC_OK;
  if (!step) { /* what an older run of this name left could be taken for this one's later */
    if (err) *err = kept;
    return rc;
  }
  log_warn("an old checkpoint stays: %s", kept.message);
  return RC_OK;
}
