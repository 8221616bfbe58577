/* Pulls and checks the weights that passes are computed with. */
#include "services/trainer-server/preprocess/pass_weights.h"

#include <stdio.h>

#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/client/trainer_client.h"

enum { PULL_DEADLINE_MS = 600000, FILE_HEADER_BYTES = 1 << 20 };

enum rc pass_weights_create(struct pass_weights *w, const struct model *m, struct err *err) {
  *w = (struct pass_weights){0};
  return weights_create(&w->weights, m, false, err);
}

void pass_weights_free(struct pass_weights *w) { weights_free(w->weights); }

bool pass_weights_are(const struct pass_weights *w, const struct digest *digest) {
  return w->held && digest_equal(&w->digest, digest);
}

enum rc pass_weights_load(struct pass_weights *w, const char *dir, struct err *err) {
  char what[LIMIT_PATH_MAX], digest[DIGEST_HEX_MAX];
  struct st_file *file = NULL;
  enum rc rc = st_open_folder(&file, dir, err);
  if (rc != RC_OK) return rc;
  snprintf(what, sizeof what, "loading %s", dir);
  rc = weights_load(w->weights, file, what, err);
  if (rc != RC_OK) err_in_file(err, dir);
  st_close(file);
  if (rc == RC_OK) rc = weights_digest(&w->digest, w->weights, err);
  if (rc != RC_OK) return rc;
  w->held = true;
  digest_hex(digest, &w->digest);
  log_info("a teacher: runs name it in training.teacher \"%s\"", digest);
  return RC_OK;
}

static enum rc fill(struct pass_weights *w, const struct buf *bytes, const struct pass *pass, struct err *err) {
  struct st_file *file = NULL;
  struct digest computed;
  enum rc rc = st_open_memory(&file, bytes->data, bytes->len, err);
  if (rc == RC_OK) rc = weights_from_safetensors(w->weights, file, err);
  st_close(file);
  if (rc == RC_OK) rc = weights_digest(&computed, w->weights, err);
  if (rc != RC_OK) return rc;
  if (!digest_equal(&computed, &pass->weights_digest)) {
    char expected[DIGEST_HEX_MAX], got[DIGEST_HEX_MAX];
    digest_hex(expected, &pass->weights_digest);
    digest_hex(got, &computed);
    return err_set(err, RC_CORRUPT, NULL, "expected weights with the digest %s, got %s", expected, got);
  }
  w->held = true;
  w->digest = computed;
  return RC_OK;
}

enum rc pass_weights_pull(struct pass_weights *w, const struct pass *pass, struct http_client *http, struct err *err) {
  const struct trainer_client client = {.http = http, .base_url = pass->weights_from};
  struct buf bytes = BUF_INIT;
  w->held = false;
  enum rc rc = trainer_weights(&client, pass->run, pass->version,
                               model_file_bytes(w->weights->model) + FILE_HEADER_BYTES, &bytes, PULL_DEADLINE_MS, err);
  if (rc == RC_INVALID || rc == RC_TOO_LARGE) rc = RC_UNAVAILABLE; /* the trainer's refusal is not about the tensors */
  if (rc == RC_OK) rc = fill(w, &bytes, pass, err);
  if (rc == RC_OK)
    log_info("version %lld of run %s was pulled, %zu bytes", (long long)pass->version, pass->run, bytes.len);
  buf_free(&bytes);
  return rc;
}
