/* Serializes the current weights, and writes them as a checkpoint. */
#include "services/trainer-server/engine/version.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/log.h"
#include "services/trainer-server/engine/optimizer_arrays.h"

enum rc version_serialize(struct engine *e, const char *run, int64_t version, bool pushed, struct weights_blob **out,
                          struct err *err) {
  const struct weights_blob *before = board_current(e->board);
  const size_t bytes = model_file_bytes(e->model);
  struct weights_base base = {.bytes = bytes};
  struct weights_blob *b = NULL;
  if (e->options.push_changes && pushed && before && before->bytes.len > bytes) {
    base.operands = before->bytes.data + before->bytes.len - bytes; /* behind the header */
    base.digest = before->digest;
  }
  enum rc rc = board_make_room(e->board, err);
  if (rc == RC_OK) rc = weights_blob_create(&b, run, version, err);
  if (rc != RC_OK) return rc;
  char number[32];
  snprintf(number, sizeof number, "%" PRId64, version);
  const char *const metadata[] = {"leasehold.run", run, "leasehold.version", number, NULL};
  b->base = base.digest;
  const struct weights *now = e->learning.weights;
  rc = base.operands ? weights_to_safetensors_from(&b->bytes, &b->digest, now, metadata, "leasehold.digest", &base,
                                                   &b->changes, err)
                     : weights_to_safetensors(&b->bytes, &b->digest, now, metadata, "leasehold.digest", err);
  if (rc == RC_OK) rc = buf_check(&b->bytes, err);
  if (rc != RC_OK) {
    weights_blob_release(b);
    return rc;
  }
  b->len = b->bytes.len;
  *out = b;
  return RC_OK;
}

enum rc version_checkpoint(struct engine *e, const struct weights_blob *b, const struct job *step, struct err *err) {
  struct checkpoint_meta meta = {.version = b->version,
                                 .digest = b->digest,
                                 .seed = e->run.seed,
                                 .optimizer_steps = optimizer_step_count(e->learning.optimizer),
                                 .start = e->run.start,
                                 .training = e->run.training,
                                 .history = e->run.history,
                                 .history_count = e->run.history_count};
  struct board_view v;
  board_view(e->board, &v);
  snprintf(meta.run, sizeof meta.run, "%s", b->run);
  if (step) {
    snprintf(meta.step_id, sizeof meta.step_id, "%s", step->id);
    meta.step_request = step->request;
  }
  meta.epoch = v.epoch;
  meta.fence = v.fence;
  const struct checkpoint_arrays arrays = optimizer_arrays(e);
  enum rc rc = checkpoint_write(e->options.state_dir, e->options.model_dir, &meta, e->model, &arrays, &b->bytes, err);
  if (rc != RC_OK) return rc;
  struct err kept = {0};
  if (!step) rc = checkpoint_keep(e->options.state_dir, b->run, &(struct kept_checkpoints){0}, err);
  if (rc != RC_OK) return rc;
  rc = checkpoint_prune(e->options.state_dir, b->run, b->version, e->options.keep_checkpoints, &kept);
  if (rc == RC_OK) return RC_OK;
  if (!step) { /* what an older run of this name left could be taken for this one's later */
    if (err) *err = kept;
    return rc;
  }
  log_warn("an old checkpoint could not be removed: %s", kept.message);
  return RC_OK;
}
