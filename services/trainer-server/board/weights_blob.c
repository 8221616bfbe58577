/* Counts who uses a version's serialized weights, and frees them with the last. */
#include "services/trainer-server/board/weights_blob.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum rc weights_blob_create(struct weights_blob **out, const char *run, int64_t version, struct err *err) {
  struct weights_blob *b = calloc(1, sizeof *b);
  if (!b) return err_set(err, RC_NO_MEMORY, NULL, "the record of version %" PRId64 " was refused memory", version);
  pthread_mutex_init(&b->lock, NULL);
  b->holders = 1;
  b->version = version;
  snprintf(b->run, sizeof b->run, "%s", run);
  *out = b;
  return RC_OK;
}

enum rc weights_blob_map(struct weights_blob *b, const char *scratch_dir, size_t most, struct err *err) {
  const enum rc rc = scratch_file_make(&b->file, scratch_dir, most, err);
  if (rc == RC_OK) b->bytes = (struct buf){.data = b->file.memory, .cap = most, .fixed = true};
  return rc;
}

void weights_blob_part_done(const struct weights_blob *b, const void *part, size_t count) {
  if (b->file.memory) scratch_file_done(&b->file, part, count);
}

void weights_blob_all_done(const struct weights_blob *b) { weights_blob_part_done(b, b->bytes.data, b->bytes.len); }

static void bytes_free(struct weights_blob *b) {
  buf_free(&b->bytes);
  if (b->file.memory) scratch_file_free(&b->file);
}

/* The lock is held on entry and released on return; b may be gone. */
static void settle_unlock(struct weights_blob *b) {
  const bool held = b->holders > 0 || b->pushers > 0;
  if (!held && (b->readers == 0 || b->shut)) bytes_free(b);
  const bool last = !held && b->readers == 0 && !b->kept;
  pthread_mutex_unlock(&b->lock);
  if (!last) return;
  buf_free(&b->changes);
  pthread_mutex_destroy(&b->lock);
  free(b);
}

void weights_blob_hold(struct weights_blob *b) {
  pthread_mutex_lock(&b->lock);
  b->holders++;
  pthread_mutex_unlock(&b->lock);
}

void weights_blob_release(struct weights_blob *b) {
  if (!b) return;
  pthread_mutex_lock(&b->lock);
  b->holders--;
  settle_unlock(b);
}

void weights_blob_push_begin(struct weights_blob *b) {
  pthread_mutex_lock(&b->lock);
  b->pushers++;
  pthread_mutex_unlock(&b->lock);
}

void weights_blob_push_end(struct weights_blob *b) {
  pthread_mutex_lock(&b->lock);
  b->pushers--;
  settle_unlock(b);
}

void weights_blob_keep(struct weights_blob *b) {
  pthread_mutex_lock(&b->lock);
  b->holders--;
  b->kept = true;
  settle_unlock(b);
}

bool weights_blob_shut(struct weights_blob *b) {
  pthread_mutex_lock(&b->lock);
  b->shut = true;
  const bool gone = b->holders == 0;
  settle_unlock(b); /* which does not free b: it is kept */
  return gone;
}

void weights_blob_forget(struct weights_blob *b) {
  pthread_mutex_lock(&b->lock);
  b->kept = false;
  settle_unlock(b);
}

void weights_blob_read_begin(struct weights_blob *b) {
  pthread_mutex_lock(&b->lock);
  b->readers++;
  pthread_mutex_unlock(&b->lock);
}

size_t weights_blob_read(struct weights_blob *b, size_t at, char *out, size_t max) {
  size_t count = 0;
  pthread_mutex_lock(&b->lock);
  if (!b->shut && at < b->len) {
    count = b->len - at < max ? b->len - at : max;
    memcpy(out, b->bytes.data + at, count);
    weights_blob_part_done(b, b->bytes.data + at, count);
  }
  pthread_mutex_unlock(&b->lock);
  return count;
}

void weights_blob_read_end(struct weights_blob *b) {
  pthread_mutex_lock(&b->lock);
  b->readers--;
  settle_unlock(b);
}
