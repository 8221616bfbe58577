/* Versions: the serialized weights that are pushed and pulled, what handlers see of them, and their checkpoints. */
#include "services/trainer-server/trainer_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"

void trainer_run_set(struct trainer *t, const struct digest *run_digest, int chunk_tokens) {
  pthread_mutex_lock(&t->lock);
  t->view.run_digest = *run_digest;
  t->view.chunk_tokens = chunk_tokens;
  pthread_mutex_unlock(&t->lock);
}

void trainer_run_end(struct trainer *t) {
  pthread_mutex_lock(&t->lock);
  t->view.run[0] = 0;
  pthread_mutex_unlock(&t->lock);
  t->step_pending = false;
  t->accumulated_count = 0;
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

void trainer_version_set(struct trainer *t, struct weights_blob *b) {
  pthread_mutex_lock(&t->lock);
  struct weights_blob *old = t->blob;
  t->blob = b;
  snprintf(t->view.run, sizeof t->view.run, "%s", b->run);
  t->view.version = b->version;
  t->view.digest = b->digest;
  pthread_mutex_unlock(&t->lock);
  weights_blob_release(old);
  metric_set(t->metric_version, (double)b->version);
}

bool trainer_trains(const struct training_config *c) { return strcmp(c->objective, "evaluate") != 0; }

enum rc trainer_write_checkpoint(struct trainer *t, const struct weights_blob *b, const struct job *step,
                                 struct err *err) {
  struct checkpoint_meta meta = {.version = b->version,
                                 .digest = b->digest,
                                 .seed = t->seed,
                                 .optimizer_steps = optimizer_step_count(t->optimizer),
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
  enum rc rc =
      checkpoint_write(t->options.state_dir, t->options.model_dir, &meta, t->model, t->optimizer, &b->bytes, err);
  if (rc != RC_OK) return rc;
  struct err kept = {0};
  if (checkpoint_prune(t->options.state_dir, b->run, b->version, t->options.keep_checkpoints, &kept) != RC_OK)
    log_warn("an old checkpoint stays: %s", kept.message);
  return RC_OK;
}
