/* What the server's tests share: a whole generation-server in the process, plain HTTP calls to it, and the bytes of a
 * model in several versions. */
#ifndef LEASEHOLD_TESTS_GENERATION_SERVER_TEST_H
#define LEASEHOLD_TESTS_GENERATION_SERVER_TEST_H

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/http/client.h"
#include "services/generation-server/api/server.h"
#include "services/generation-server/api/server_state.h"
#include "tests/unit/base/await.h"
#include "tests/unit/generation-server/engine_test.h"

#define MODEL_DIR "tests/golden/qwen3_tied"
enum { WAIT_MS = 8000 };

/* A version of the golden model: the folder's own weights (seed 0) or random ones. */
struct version_bytes {
  struct buf bytes;
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
};

/* Every `nudged`th value of the random ones is a little larger (0: none).  With a base: and what changed since then. */
static inline void make_version_from(struct version_bytes *out, uint64_t seed, size_t nudged,
                                     const struct version_bytes *base, struct buf *changes) {
  struct err err = {0};
  struct pool *pool;
  struct ops *ops;
  struct model *model;
  struct weights *w;
  struct model_config config;
  *out = (struct version_bytes){0};
  assert_int_equal(model_config_load(&config, MODEL_DIR, &err), RC_OK);
  assert_int_equal(pool_create(&pool, 1, &err), RC_OK);
  assert_int_equal(ops_cpu_create(&ops, FORMAT_BF16, NULL, pool, &err), RC_OK);
  assert_int_equal(model_create(&model, &config, ops, 0, &err), RC_OK);
  assert_int_equal(weights_create(&w, model, false, &err), RC_OK);
  if (seed == 0) {
    assert_int_equal(model_weights_load(w, &out->digest, MODEL_DIR, &err), RC_OK);
  } else {
    float *masters = calloc(model->params.elements, sizeof *masters);
    masters_random(model, masters, seed, NULL);
    for (size_t i = 0; nudged && i < model->params.elements; i += nudged) masters[i] *= 1 + 0x1p-7f;
    weights_from_masters(w, masters);
    free(masters);
    assert_int_equal(weights_digest(&out->digest, w, &err), RC_OK);
  }
  struct digest written;
  struct weights_base from = {.bytes = model_file_bytes(model)};
  if (base) from.digest = base->digest;
  if (base) from.operands = base->bytes.data + base->bytes.len - from.bytes;
  assert_int_equal(
      weights_to_safetensors_from(&out->bytes, &written, w, NULL, "weights", base ? &from : NULL, changes, &err),
      RC_OK);
  digest_hex(out->hex, &out->digest);
  weights_free(w);
  model_free(model);
  ops_free(ops);
  pool_destroy(pool);
}

static inline void make_version(struct version_bytes *out, uint64_t seed) {
  make_version_from(out, seed, 0, NULL, NULL);
}

static inline struct server_options server_options_of(const char *model_dir, const char *coordinator) {
  return (struct server_options){.bind = "127.0.0.1",
                                 .coordinator = coordinator,
                                 .model_dir = model_dir,
                                 .name = "gen-1",
                                 .prefetch = 4,
                                 .drain_ms = 500,
                                 .stream_stall_ms = 30000,
                                 .model = {.slots = 4, .threads = 1, .page_tokens = 16, .prefill_chunk = 32}};
}

static inline struct server *start_server(const struct server_options *options) {
  struct err err = {0};
  struct server *s = NULL;
  log_init("test", LOG_ERROR);
  if (server_start(&s, options, &err) != RC_OK) fail_msg("%s", err.message);
  return s;
}

/* One call; the answer's body is returned (free it), its status in *status. */
static inline char *call_with(struct server *s, const char *method, const char *path, const void *body, size_t len,
                              const char *const *headers, int *status) {
  struct err err = {0};
  struct http_client *client;
  struct http_answer answer;
  char url[320];
  snprintf(url, sizeof url, "http://127.0.0.1:%d%s", server_port(s), path);
  assert_int_equal(http_client_create(&client, "", NULL, &err), RC_OK);
  const struct http_call c = {
      .method = method, .url = url, .body = body, .body_len = len, .headers = headers, .deadline_ms = WAIT_MS};
  if (http_client_call(client, &c, &answer, &err) != RC_OK) fail_msg("%s %s: %s", method, path, err.message);
  *status = answer.status;
  char *text = strndup(answer.body.data ? answer.body.data : "", answer.body.len);
  assert_non_null(text);
  http_answer_free(&answer);
  http_client_destroy(client);
  return text;
}

static inline char *call_json(struct server *s, const char *method, const char *path, const char *body, int *status) {
  return call_with(s, method, path, body, body ? strlen(body) : 0, NULL, status);
}

static inline int status_of(struct server *s, const char *method, const char *path, const char *body) {
  int status;
  free(call_json(s, method, path, body, &status));
  return status;
}

static inline void assert_says(const char *text, const char *part) {
  if (!text || !strstr(text, part)) fail_msg("expected '%s' in: %s", part, text ? text : "nothing");
}

/* Once the model is known. */
static inline struct engine *engine_of(struct server *s) { return atomic_load(&s->admission.loaded)->engine; }

static inline bool is_active(struct server *s, int64_t version) {
  struct policy active;
  const struct loaded_model *loaded = atomic_load(&s->admission.loaded);
  return loaded && engine_policy(loaded->engine, &active) && active.version == version;
}

static inline void wait_for_version(struct server *s, int64_t version) {
  AWAIT(is_active(s, version), "version %lld is not active", (long long)version) continue;
}

#endif
