/* Serializes the current weights, and writes them as a checkpoint, at once or beside the engine. */
#include "services/trainer-server/engine/version.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/model/network/weights_changes.h"
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
  struct board *board;
  size_t changes_most; /* of all changes that are kept and made */
};

static void part_done(void *context, const void *bytes, size_t count) {
  const struct two_blobs *b = context;
  weights_blob_part_done(b->now, bytes, count);
  if (b->before) weights_blob_part_done(b->before, bytes, count);
}

static void changes_grown(void *context, size_t changes) {
  const struct two_blobs *b = context;
  board_make_room_for_changes(b->board, changes, b->changes_most);
}

enum rc version_serialize(struct engine *e, const char *run, int64_t version, bool pushed, struct weights_blob **out,
                          struct err *err) {
  const struct weights_blob *before = board_current(e->board);
  const size_t bytes = model_file_bytes(e->model);
  struct two_blobs blobs = {.before = before, .board = e->board, .changes_most = bytes / CHANGES_PART};
  struct weights_base base = {.bytes = bytes, .done = part_done, .grown = changes_grown, .context = &blobs};
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
           ? weights_to_safetensors_from(&b->bytes, &b->digest, now, metadata, "leasehold.digest", &base, &b->changes,
                                         err)
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

static void meta_of(struct engine *e, struct checkpoint_meta *meta, const struct weights_blob *b,
                    const struct job *step) {
  struct board_view v;
  board_view(e->board, &v);
  *meta = (struct checkpoint_meta){.version = b->version,
                                   .digest = b->digest,
                                   .seed = e->run.seed,
                                   .epoch = v.epoch,
                                   .fence = v.fence,
                                   .optimizer_steps = optimizer_step_count(e->learning.optimizer),
                                   .start = e->run.start,
                                   .training = e->run.training,
                                   .history = e->run.history.items,
                                   .history_count = e->run.history.count};
  snprintf(meta->run, sizeof meta->run, "%s", b->run);
  if (step) {
    snprintf(meta->step_id, sizeof meta->step_id, "%s", step->id);
    meta->step_request = step->request;
  }
}

static enum rc write_files(struct engine *e, const struct weights_blob *b, const struct checkpoint_meta *meta,
                           struct err *err) {
  struct checkpoint_arrays arrays = optimizer_arrays(e);
  arrays.weights_done = written_out;
  arrays.weights = b;
  return checkpoint_write(e->options.state_dir, e->options.model_dir, meta, e->model, &arrays, &b->bytes, err);
}

static enum rc prune_others(const struct engine *e, const struct checkpoint_meta *meta, struct err *err) {
  return checkpoint_prune(e->options.state_dir, meta->run, meta->version, e->options.keep_checkpoints,
                          meta->training.reference_every, err);
}

/* The files, then the older ones go.  Any thread: see checkpoint_writing. */
static enum rc write_and_prune(struct engine *e, const struct weights_blob *b, const struct checkpoint_meta *meta,
                               struct err *err) {
  struct err kept = {0};
  const enum rc rc = write_files(e, b, meta, err);
  if (rc != RC_OK) return rc;
  if (prune_others(e, meta, &kept) != RC_OK) log_warn("an old checkpoint could not be removed: %s", kept.message);
  return RC_OK;
}

enum rc version_checkpoint(struct engine *e, const struct weights_blob *b, const struct job *step, struct err *err) {
  struct checkpoint_meta meta;
  meta_of(e, &meta, b, step);
  if (step) return write_and_prune(e, b, &meta, err);
  enum rc rc = write_files(e, b, &meta, err);
  const struct kept_checkpoints none = {.asked_since_ms = INT64_MAX};
  if (rc == RC_OK) rc = checkpoint_keep(e->options.state_dir, b->run, &none, err);
  /* what an older run of this name left could be taken for this one's later */
  return rc == RC_OK ? prune_others(e, &meta, err) : rc;
}

/* ---- beside the engine ---- */

bool version_may_owe(const struct engine *e) { return e->ops->host_memory && ranks_alone(&e->ranks); }

static void owed_write(struct engine *e) {
  struct checkpoint_writing *w = &e->writing;
  w->err = (struct err){0};
  w->begun_us = clock_monotonic_us();
  write_and_prune(e, w->blob, &w->meta, &w->err);
  w->ended_us = clock_monotonic_us();
}

static void *owed_main(void *context) {
  struct engine *e = context;
  log_context_id(e->writing.meta.run);
  log_context_number(LOG_VERSION, e->writing.meta.version);
  owed_write(e);
  return NULL;
}

void version_checkpoint_owe(struct engine *e, struct weights_blob *b, const struct job *step) {
  struct checkpoint_writing *w = &e->writing;
  *w = (struct checkpoint_writing){.owed = true, .blob = b};
  weights_blob_hold(b);
  meta_of(e, &w->meta, b, step);
}

void version_checkpoint_begin(struct engine *e) {
  struct checkpoint_writing *w = &e->writing;
  if (w->owed) w->runs = pthread_create(&w->thread, NULL, owed_main, e) == 0;
}

/* Was it written? */
static bool writing_join(struct checkpoint_writing *w) {
  if (!w->runs) return false;
  pthread_join(w->thread, NULL);
  w->runs = false;
  return w->err.rc == RC_OK;
}

static void owed_no_more(struct checkpoint_writing *w) {
  w->owed = false;
  weights_blob_release(w->blob);
  w->blob = NULL;
}

enum rc version_checkpoint_settle(struct engine *e, struct err *err) {
  struct checkpoint_writing *w = &e->writing;
  if (!w->owed) return RC_OK;
  if (!writing_join(w)) {
    if (w->err.rc != RC_OK)
      log_warn("writing the checkpoint of version %" PRId64 " again: %s", w->meta.version, w->err.message);
    owed_write(e);
    if (w->err.rc != RC_OK) {
      *err = w->err;
      return err->rc;
    }
  }
  owed_no_more(w);
  return RC_OK;
}

void version_checkpoint_end(struct engine *e) {
  struct checkpoint_writing *w = &e->writing;
  if (!w->owed) return;
  if (!writing_join(w))
    log_warn("run %s goes back to an older checkpoint than version %" PRId64 "'s, which was not written: %s",
             w->meta.run, w->meta.version, w->err.message);
  owed_no_more(w);
}
