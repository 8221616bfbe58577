/* GET /v1/weights/{version}?run=: the current version as a safetensors file, its digest in X-Leasehold-Digest. A
 * superseded version is 409: ask the coordinator which is current; one that a replay has yet to reach is 503.  For
 * servers that join late or missed a push.
 *
 * Version 0 of a run with a KL term is the reference, which preprocessors need as long as the run lasts: once it is
 * superseded, it is sent out of its checkpoint, which is never pruned.
 *
 * The answer is read out of the published bytes as its peer takes it, however many servers ask.  A peer that is still
 * reading when the version after the next one is about to be serialized loses its connection: see
 * board/weights_blob.h. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/engine/trainer.h"

static enum rc version_parse(const char *text, int64_t *out, struct err *err) {
  errno = 0;
  const long long value = strtoll(text, NULL, 10);
  if (!*text || strspn(text, "0123456789") != strlen(text) || errno != 0)
    return err_set(err, RC_INVALID, "version", "expected a version number, got '%.40s'", text);
  *out = value;
  return RC_OK;
}

static size_t source_read(void *context, size_t at, char *out, size_t max) {
  return weights_blob_read(context, at, out, max);
}

static void source_end(void *context) { weights_blob_read_end(context); }

static void set_digest(struct http_request *r, const struct digest *digest) {
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, digest);
  http_set_header(r, "X-Leasehold-Digest", hex);
}

/* False: there is none of that run. */
static bool reply_reference(struct http_request *r, struct trainer *t, const char *run) {
  struct board_view v;
  char path[LIMIT_PATH_MAX];
  board_view(trainer_board(t), &v);
  if (!v.has_reference || !v.run[0] || (run && strcmp(run, v.run) != 0)) return false;
  snprintf(path, sizeof path, "%s/%s/v0/model.safetensors", trainer_state_dir(t), v.run);
  set_digest(r, &v.reference_digest);
  http_reply_file(r, "application/octet-stream", path);
  return true;
}

void handle_get_weights(struct http_request *r, void *context) {
  struct board *board = trainer_board(context);
  struct weights_blob *blob = NULL;
  struct err err = {0};
  int64_t version = 0;
  const char *run = http_query(r, "run");
  enum rc rc = version_parse(http_param(r, "version"), &version, &err);
  if (rc == RC_OK && run && !*run) rc = err_set(&err, RC_INVALID, "run", "expected a run's name, got an empty one");
  if (rc == RC_OK) rc = board_read_weights(board, run ? run : "", version, &blob, &err);
  if (rc == RC_CONFLICT && version == 0 && reply_reference(r, context, run)) return;
  if (rc != RC_OK) {
    http_fail(r, &err);
    return;
  }
  set_digest(r, &blob->digest);
  const struct http_source source = {.context = blob, .len = blob->len, .read = source_read, .end = source_end};
  http_reply_source(r, 200, "application/octet-stream", &source);
}
