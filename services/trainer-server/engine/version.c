/* Serializes the current weights, and writes them as a checkpoint. */
#include "services/trainer-server/engine/version.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/log.h"
#include "services/trainer-server/engine/optimizer_arrays.h"

/* A header names each tensor, its shape and its place in about 200 bytes. */
enum { HEADER_MOST = 8192, TENSOR_HEADER_MOST = 512 };

static enum rc blob_make(struct engine *e, struct weights_blob **out, const char *run, int64_t version,
                         struct err *err) {
  const struct model *m = e->model;
  enum rc rc = weights_blob_create(out, run, version, err);
  if (rc != RC_OK || !e->options.lean) return rc;
  const size_t most = model_file_bytes(m) + HEADER_MOST + (size_t)m->params.count * TENSOR_HEADER_MOST;
  rc = weights_blob_map(*out, trainer_scratch_dir(&e->options), most, err);
  if (rc != RC_OK) weights_blob_release(*out);
  return rc;
}

/* Of a version that is being serialized, and the one before. */
struct two_blobs {
  const struct weights_blob *now, *before;
};

static void part_done(void *context, const void *bytes, size_t count) {
  const struct two_blobs *b = context;
  weights_blob_part_done(b->now, bytes, count);
  if (b->before) weights_blob_part_done(b->before, bytes, count);
}

enum rc version_serialize(struct engine *e, const char *run, int64_t version, bool pushed, struct weights_blob **out,
                          struct err *err) {
  const struct weights_blob *before = board_current(e->board);
  const size_t bytes = model_file_bytes(e->model);
  struct two_blobs blobs = {.before = before};
  struct weights_base base = {.bytes = bytes, .done = part_done, .context = &blobs};
  struct weights_blob *b = NULL;
  if (e->options.push_changes && pushed && before && before->bytes.len > bytes) {
    base.operands = before->bytes.data + before->bytes.len - bytes; /* behind the header */
    base.digest = before->digest;
  }
  enum rc rc = board_make_room(e->board, err);
  if (rc == RC_OK) rc = blob_make(e, &b, run, version, err);
  if (rc != RC_OK) return rc;
  char number[32];
  snprintf(number, sizeof number, "%" PRId64, version);
  const char *const metadata[] = {"leasehold.run", run, "leasehold.version", number, NULL};
  b->base = base.digest;
  blobs.now = b;
  const struct weights *now = e->learning.weights;
  rc = base.operands || e->options.lean
           ? weights_to_safetensors_from(&b->bytes, &b->digest, now, metadata, "leasehold.digest", &base, &b->changes, err)
           : weights_to_safetensors(&b->bytes, &b->digest, now, metadata, "leasehold.digest", err);
  if (rc == RC_OK) rc = buf_check(&b->bytes, err);
  if (rc != RC_OK) {
    weights_blob_release(b);
    return rc;
  }
  weights_blob_all_done(b);
  b->len = b->bytes.len;
  *out = b;
  return RC_OK;
}

static void written_out(const void *weights, const void *bytes, size_t count) {
  weights_blob_part_done(weights, bytes, count);
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
  struct checkpoint_arrays arrays = optimizer_arrays(e);
  arrays.weights_done = written_out;
  arrays.weights = b;
  enum rc rc = checkpoint_write(e->options.state_dir, e->options.model_dir, &meta, e->model, &arrays, &b->bytes, err);
  if (rc != RC_OK) return rc;
  struct err kept = {0};
  if (!step) rc = checkpoint_keep(e->options.state_dir, b->run, &(struct kept_checkpoints){0}, err);
  if (rc != RC_OK) return rc;
  rc = checkpoint_prune(e->options.state_dir, b->run, b->version, e->options.keep_checkpoints,
                        e->run.training.reference_every, &kept);
  if (rc == RC_OK) return RC_OK;
  if (!step) { /* what an older run of this name left could be taken for this one's later */
    if (err) *err = kept;
    return rc;
  }
  log_warn("an old checkpoint could not be removed: %s", kept.message);
  return RC_OK;
}
