/* GET /v1/weights/{version}?run=: the current version as a safetensors file, its digest in X-Leasehold-Digest. A
 * superseded version is 409: ask the coordinator which is current; one that a replay has yet to reach is 503.  For
 * servers that join late or missed a push; the blob is the very one that is pushed. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "services/trainer-server/api/routes.h"
#include "services/trainer-server/engine/trainer.h"

static enum rc version_parse(const char *text, int64_t *out, struct err *err) {
  errno = 0;
  const long long value = strtoll(text, NULL, 10);
  if (!*text || strspn(text, "0123456789") != strlen(text) || errno != 0)
    return err_set(err, RC_INVALID, "version", "expected a version number, got '%.40s'", text);
  *out = value;
  return RC_OK;
}

void handle_get_weights(struct http_request *r, void *context) {
  struct trainer *t = context;
  struct weights_blob *blob = NULL;
  struct err err = {0};
  int64_t version = 0;
  const char *run = http_query(r, "run");
  enum rc rc = version_parse(http_param(r, "version"), &version, &err);
  if (rc == RC_OK && run && !*run) rc = err_set(&err, RC_INVALID, "run", "expected a run's name, got an empty one");
  if (rc == RC_OK) rc = trainer_weights_blob(t, run ? run : "", version, &blob, &err);
  struct buf body = BUF_INIT;
  if (rc == RC_OK) {
    buf_append(&body, blob->bytes.data, blob->bytes.len);
    rc = buf_check(&body, &err);
  }
  if (rc == RC_OK) {
    char hex[DIGEST_HEX_MAX];
    digest_hex(hex, &blob->digest);
    http_set_header(r, "X-Leasehold-Digest", hex);
    http_reply(r, 200, "application/octet-stream", &body);
  } else {
    buf_free(&body);
    http_fail(r, &err);
  }
  weights_blob_release(blob);
}
