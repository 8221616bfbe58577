/* What the trainer-server's tests share: a tiny model in a temporary folder, groups of made-up samples, the model's
 * parts for direct calls, and a whole trainer-server in this process, started and stopped in main.c's order, with its
 * typed client. Every wait has a deadline, so that a broken server fails a test and does not hang it. */
#ifndef LEASEHOLD_TESTS_TRAINER_SUPPORT_H
#define LEASEHOLD_TESTS_TRAINER_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/client/trainer_client.h"
#include "common/model/ops.h"
#include "common/threads/pool.h"
#include "services/trainer-server/engine/checkpoint.h"
#include "services/trainer-server/publish/publisher.h"
#include "services/trainer-server/publish/heartbeat.h"
#include "services/trainer-server/api/routes.h"
#include "services/trainer-server/engine/trainer.h"
#include "tests/unit/base/await.h"
#include "tests/unit/base/scratch.h"

enum { VOCABULARY = 48, CONTEXT = 32, CHUNK = 40, WAIT_MS = 20000, PATH = 256 };

#define assert_rc(expected, call, e)                                                                            \
  do {                                                                                                          \
    const enum rc got_ = (call);                                                                                \
    if (got_ != (expected)) fail_msg("expected %s, got %s: %s", rc_name(expected), rc_name(got_), (e).message); \
  } while (0)

/* --- folders --- */

static inline void write_text(const char *dir, const char *name, const char *text) {
  char path[LIMIT_PATH_MAX];
  struct err err = {0};
  assert_rc(RC_OK, path_format(path, &err, "%s/%s", dir, name), err);
  assert_rc(RC_OK, file_write_atomic(path, text, strlen(text), &err), err);
}

static const char tiny_config[] =
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"attention_bias\":false,\"hidden_act\":"
    "\"silu\",\"head_dim\":8,\"hidden_size\":16,"
    "\"intermediate_size\":32,\"num_attention_heads\":2,\"num_hidden_layers\":2,\"num_key_value_heads\":1,\"vocab_"
    "size\":48,\"max_position_embeddings\":32,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":true,\"initializer_range\":0.2,\"eos_token_"
    "id\":1,\"bos_token_id\":0}";
static const char tiny_tokenizer[] = "{\"version\":\"1.0\",\"model\":{\"type\":\"BPE\"}}";

/* dir/model with config.json and tokenizer.json, dir/state to come. */
static inline void folder_make(char dir[PATH]) {
  char model[PATH + 16];
  struct err err = {0};
  scratch_folder(dir, PATH, "trainer");
  snprintf(model, sizeof model, "%s/model", dir);
  assert_rc(RC_OK, file_make_dirs(model, &err), err);
  write_text(model, "config.json", tiny_config);
  write_text(model, "tokenizer.json", tiny_tokenizer);
}

static inline void folder_remove(const char *dir) {
  struct err err = {0};
  assert_rc(RC_OK, file_remove_tree(dir, &err), err);
}

/* --- the model's parts --- */

struct parts {
  struct model_config config;
  struct pool *pool;
  struct ops *ops;
  struct model *model;
  struct weights *weights;
  float *masters;
};

static inline void parts_make(struct parts *p, const char *model_dir) {
  struct err err = {0};
  memset(p, 0, sizeof *p);
  assert_rc(RC_OK, model_config_load(&p->config, model_dir, &err), err);
  assert_rc(RC_OK, pool_create(&p->pool, 1, &err), err);
  assert_rc(RC_OK, ops_cpu_create(&p->ops, FORMAT_BF16, NULL, p->pool, &err), err);
  assert_rc(RC_OK, model_create(&p->model, &p->config, p->ops, 0, &err), err);
  assert_rc(RC_OK, weights_create(&p->weights, p->model, true, &err), err);
  p->masters = calloc(p->model->params.elements, sizeof *p->masters);
  assert_non_null(p->masters);
  masters_random(p->model, p->masters, 7, NULL);
  weights_from_masters(p->weights, p->masters);
}

static inline void parts_free(struct parts *p) {
  free(p->masters);
  weights_free(p->weights);
  model_free(p->model);
  ops_free(p->ops);
  pool_destroy(p->pool);
}

/* --- groups --- */

static inline uint32_t mix(uint32_t *state) {
  *state = *state * 1664525u + 1013904223u;
  return *state >> 8;
}

/* samples sequences of 5 to 12 tokens, one trained segment each, advantages of both signs; the same seed gives the
 * same group. */
static inline struct batch_group group_make(struct arena *a, const char *id, int samples, uint32_t seed) {
  struct batch_group g = {.id = arena_strdup(a, id),
                          .samples = arena_alloc(a, (size_t)samples, sizeof *g.samples),
                          .sample_count = (size_t)samples};
  uint32_t state = seed * 2654435761u + 1;
  for (int i = 0; i < samples; i++) {
    struct batch_sample *s = &g.samples[i];
    char name[LIMIT_NAME_MAX];
    snprintf(name, sizeof name, "%s.%d", id, i);
    s->id = arena_strdup(a, name);
    s->prompt_length = 3 + (int32_t)(mix(&state) % 3);
    const int completion = 2 + (int)(mix(&state) % 6);
    s->tokens.count = (size_t)(s->prompt_length + completion);
    s->tokens.items = arena_alloc(a, s->tokens.count, sizeof *s->tokens.items);
    for (size_t k = 0; k < s->tokens.count; k++) s->tokens.items[k] = (int32_t)(mix(&state) % VOCABULARY);
    s->segments = arena_alloc(a, 1, sizeof *s->segments);
    s->segments[0] = (struct sample_segment){.start = 0, .count = completion, .loss_mask = true};
    s->segment_count = 1;
    s->advantage = (float)((int)(mix(&state) % 5) - 2) * 0.5f;
  }
  return g;
}

static inline void groups_make(struct arena *a, struct batch_group *groups, int count, uint32_t seed) {
  for (int i = 0; i < count; i++) {
    char id[64];
    snprintf(id, sizeof id, "r1.0.%d", i);
    groups[i] = group_make(a, id, 4, seed * 100 + (uint32_t)i);
  }
}

/* Groups for several rounds; each round's come from a seed of its own. */
static inline void rounds_make(struct arena *a, int rounds, int count, struct batch_group groups[rounds][count],
                               uint32_t seed) {
  for (int v = 0; v < rounds; v++) groups_make(a, groups[v], count, (uint32_t)v + seed);
}

static inline double trained_tokens(const struct batch_group *groups, size_t count) {
  double n = 0;
  for (size_t g = 0; g < count; g++) {
    for (size_t i = 0; i < groups[g].sample_count; i++) n += (double)groups[g].samples[i].segments[0].count;
  }
  return n;
}

/* --- a whole trainer-server --- */

struct rig {
  char dir[PATH], model_dir[PATH + 16], state_dir[PATH + 16], coordinator_url[64];
  struct trainer_options options;
  struct trainer *trainer;
  struct publisher *publisher;
  struct http_server *server;
  struct http_client *http;
  struct trainer_client client;
  char url[64];
};

static inline enum rc rig_try_start(struct rig *g, struct err *err) {
  enum rc rc = trainer_create(&g->trainer, &g->options, err);
  if (rc != RC_OK) return rc;
  assert_rc(RC_OK, publisher_create(&g->publisher, trainer_board(g->trainer), trainer_jobs(g->trainer),
                                    g->coordinator_url, NULL, NULL, err), *err);
  trainer_set_publisher(g->trainer, g->publisher);
  const struct http_server_options options = {
      .bind_address = "127.0.0.1", .routes = trainer_routes, .route_count = trainer_route_count, .context = g->trainer};
  assert_rc(RC_OK, http_server_start(&g->server, &options, err), *err);
  assert_rc(RC_OK, http_client_create(&g->http, "", NULL, err), *err);
  snprintf(g->url, sizeof g->url, "http://127.0.0.1:%d", http_server_port(g->server));
  g->client = (struct trainer_client){.http = g->http, .base_url = g->url};
  return RC_OK;
}

static inline void rig_start(struct rig *g) {
  struct err err = {0};
  assert_rc(RC_OK, rig_try_start(g, &err), err);
}

static inline void rig_make(struct rig *g, const char *coordinator_url) {
  memset(g, 0, sizeof *g);
  folder_make(g->dir);
  snprintf(g->model_dir, sizeof g->model_dir, "%s/model", g->dir);
  snprintf(g->state_dir, sizeof g->state_dir, "%s/state", g->dir);
  snprintf(g->coordinator_url, sizeof g->coordinator_url, "%s", coordinator_url);
  g->options = (struct trainer_options){.push_changes = true,
                                        .model_dir = g->model_dir,
                                        .state_dir = g->state_dir,
                                        .threads = 1,
                                        .chunk_tokens = CHUNK,
                                        .keep_checkpoints = 2,
                                        .random_init_seed = 7};
}

static inline void rig_stop(struct rig *g) {
  if (!g->trainer) return;
  trainer_stop(g->trainer);
  publisher_destroy(g->publisher);
  http_server_stop(g->server, 1000);
  trainer_destroy(g->trainer);
  http_client_destroy(g->http);
  g->trainer = NULL;
}

static inline void rig_end(struct rig *g) {
  rig_stop(g);
  folder_remove(g->dir);
}

/* For cmocka: *state becomes a rig that has started, without a coordinator. */
static inline int rig_set_up(void **state) {
  static struct rig g;
  rig_make(&g, "");
  rig_start(&g);
  *state = &g;
  return 0;
}
static inline int rig_tear_down(void **state) {
  rig_end(*state);
  return 0;
}

/* The trainer comes back with what it had stored. */
static inline void rig_restart(struct rig *g) {
  rig_stop(g);
  rig_start(g);
}

static inline struct open_run run_request(const char *run) {
  struct open_run m = {.run = run, .epoch = 3, .fence = 5, .seed = 11};
  training_config_defaults(&m.training);
  m.training.lr = 0.01;
  m.training.chunk_tokens = CHUNK;
  return m;
}

static inline void rig_open(struct rig *g, const struct open_run *m, struct open_run_answer *out) {
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  assert_rc(RC_OK, trainer_open_run(&g->client, m, out, &arena, WAIT_MS, &err), err);
  out->run = NULL;
  arena_free(&arena);
}

static inline struct http_answer call_typed(struct rig *g, const char *method, const char *path, const char *type,
                                            const void *body, size_t len) {
  struct http_answer answer = {0};
  struct err err = {0};
  char url[256];
  snprintf(url, sizeof url, "%s%s", g->url, path);
  const struct http_call call = {
      .method = method, .url = url, .content_type = type, .body = body, .body_len = len, .deadline_ms = WAIT_MS};
  assert_rc(RC_OK, http_client_call(g->http, &call, &answer, &err), err);
  return answer;
}

static inline struct http_answer call_raw(struct rig *g, const char *method, const char *path, const void *body,
                                          size_t len) {
  return call_typed(g, method, path, NULL, body, len);
}

/* Status and a piece of the answer. */
static inline void expect(struct rig *g, const char *method, const char *path, const char *body, int status,
                          const char *part) {
  struct http_answer a = call_raw(g, method, path, body, body ? strlen(body) : 0);
  if (a.status != status || !a.body.data || !strstr(a.body.data, part)) {
    fail_msg("%s %s: expected %d with %s, got %d: %s", method, path, status, part, a.status,
             a.body.data ? a.body.data : "(nothing)");
  }
  http_answer_free(&a);
}

/* Submits, and waits until the batch has ended. */
static inline void rig_batch(struct rig *g, const char *run, const char *id, int64_t version,
                             struct batch_group *groups, size_t count, struct batch_status *out, struct arena *arena) {
  struct err err = {0};
  const struct submit_batch m = {
      .batch_id = id, .run = run, .epoch = 3, .fence = 5, .version = version, .groups = groups, .group_count = count};
  assert_rc(RC_OK, trainer_submit_batch(&g->client, &m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_batch_status(&g->client, id, WAIT_MS / 2, true, out, arena, WAIT_MS, &err), err);
}

static inline struct submit_step step_request(const char *run, const char *id, int64_t version,
                                              const struct batch_group *groups, size_t count, struct arena *arena) {
  struct submit_step m = {.step_id = id,
                          .run = run,
                          .epoch = 3,
                          .fence = 5,
                          .version = version,
                          .group_count = count,
                          .denominator = trained_tokens(groups, count),
                          .stage_timeout_ms = 5000};
  m.groups = arena_alloc(arena, count + 1, sizeof *m.groups);
  for (size_t i = 0; i < count; i++) m.groups[i] = groups[i].id;
  return m;
}

static inline void rig_step(struct rig *g, const struct submit_step *m, struct step_status *out, struct arena *arena) {
  struct err err = {0};
  assert_rc(RC_OK, trainer_submit_step(&g->client, m, WAIT_MS, &err), err);
  assert_rc(RC_OK, trainer_step_status(&g->client, m->step_id, WAIT_MS / 2, out, arena, WAIT_MS, &err), err);
}

/* A whole round of `groups` in one batch; the new version's digest. */
static inline struct digest rig_round(struct rig *g, const char *run, int64_t version, struct batch_group *groups,
                                      size_t count) {
  struct arena arena = ARENA_INIT;
  struct batch_status batch;
  struct step_status step;
  char batch_id[64], step_id[64];
  snprintf(batch_id, sizeof batch_id, "%s.%d.b0", run, (int)version);
  snprintf(step_id, sizeof step_id, "%s.%d", run, (int)version);
  rig_batch(g, run, batch_id, version, groups, count, &batch, &arena);
  if (batch.state != JOB_DONE) fail_msg("batch %s: %s", batch_id, batch.error.message);
  const struct submit_step m = step_request(run, step_id, version, groups, count, &arena);
  rig_step(g, &m, &step, &arena);
  if (step.state != JOB_DONE) fail_msg("step %s: %s", step_id, step.error.message);
  assert_int_equal(step.version, version + 1);
  const struct digest digest = step.digest;
  arena_free(&arena);
  return digest;
}

#endif
