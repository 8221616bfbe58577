/* The trainer's peers, faked over real HTTP: a coordinator that registers workers and hears announcements, and
 * generation-servers that stage what is pushed (or lie about it). */
#ifndef LEASEHOLD_TESTS_TRAINER_PEERS_H
#define LEASEHOLD_TESTS_TRAINER_PEERS_H

#include <pthread.h>

#include "tests/unit/trainer-server/support.h"

/* --- coordinator --- */

struct fake_coordinator {
  struct http_server *server;
  char url[64];
  pthread_mutex_t lock; /* guards all below */
  int heartbeat_ms, registrations, heartbeats, announcements, refuse_announcements;
  bool forget; /* the next heartbeat is 404 */
  uint64_t epoch, fence;
  enum worker_role role; /* what trainers are told */
  char identity[LIMIT_NAME_MAX];
  struct digest loaded;
  char run[LIMIT_NAME_MAX], step_id[LIMIT_NAME_MAX], worker_id[LIMIT_NAME_MAX];
  uint64_t announced_epoch, announced_fence;
  int64_t version;
  struct digest digest;
  size_t push_count;
  int staged;
};

static inline void fake_workers(struct http_request *r, void *context) {
  struct fake_coordinator *c = context;
  const struct json *body;
  struct worker_register m;
  struct err err = {0};
  if (http_body_json(r, &body, &err) != RC_OK || worker_register_decode(&m, body, http_arena(r), &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  pthread_mutex_lock(&c->lock);
  char id[32];
  snprintf(id, sizeof id, "w%d", ++c->registrations);
  struct worker_registered answer = {.worker_id = id,
                                     .epoch = c->epoch,
                                     .fence = ++c->fence,
                                     .heartbeat_ms = c->heartbeat_ms,
                                     .worker_ttl_ms = 1000,
                                     .role = c->role};
  snprintf(c->identity, sizeof c->identity, "%s", m.identity ? m.identity : "");
  pthread_mutex_unlock(&c->lock);
  struct buf out = BUF_INIT;
  worker_registered_encode(&answer, &out);
  http_reply_json(r, 200, &out);
}

static inline void fake_heartbeat(struct http_request *r, void *context) {
  struct fake_coordinator *c = context;
  const struct json *body;
  struct worker_heartbeat m;
  struct err err = {0};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = worker_heartbeat_decode(&m, body, http_arena(r), &err);
  pthread_mutex_lock(&c->lock);
  if (rc == RC_OK && c->forget) rc = err_set(&err, RC_NOT_FOUND, NULL, "unknown worker");
  c->forget = false;
  if (rc == RC_OK) {
    c->heartbeats++;
    c->loaded = m.loaded_digest;
  }
  if (rc == RC_OK && m.epoch != c->epoch) rc = err_set(&err, RC_CONFLICT, "epoch", "another epoch");
  struct worker_heartbeat_answer answer = {.epoch = c->epoch, .role = c->role, .fence = c->fence};
  pthread_mutex_unlock(&c->lock);
  struct buf out = BUF_INIT;
  if (rc != RC_OK) {
    http_fail(r, &err);
    return;
  }
  worker_heartbeat_answer_encode(&answer, &out);
  http_reply_json(r, 200, &out);
}

static inline void fake_versions(struct http_request *r, void *context) {
  struct fake_coordinator *c = context;
  const struct json *body;
  struct version_announce m;
  struct err err = {0};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = version_announce_decode(&m, body, http_arena(r), &err);
  pthread_mutex_lock(&c->lock);
  if (rc == RC_OK && c->refuse_announcements > 0) {
    c->refuse_announcements--;
    rc = err_set(&err, RC_UNAVAILABLE, NULL, "restarting");
  }
  if (rc == RC_OK) {
    c->announcements++;
    snprintf(c->run, sizeof c->run, "%s", m.run);
    snprintf(c->step_id, sizeof c->step_id, "%s", m.step_id);
    snprintf(c->worker_id, sizeof c->worker_id, "%s", m.worker_id);
    c->announced_epoch = m.epoch;
    c->announced_fence = m.fence;
    c->version = m.version;
    c->digest = m.digest;
    c->push_count = m.push_count;
    c->staged = 0;
    for (size_t i = 0; i < m.push_count; i++) c->staged += m.pushes[i].staged;
  }
  pthread_mutex_unlock(&c->lock);
  if (rc == RC_OK)
    http_reply_text(r, 200, "{}");
  else
    http_fail(r, &err);
}

static inline void fake_coordinator_start(struct fake_coordinator *c) {
  static const struct http_route routes[] = {
      {.method = "POST", .path = "/v1/workers", .handler = fake_workers},
      {.method = "POST", .path = "/v1/workers/{id}/heartbeat", .handler = fake_heartbeat},
      {.method = "POST", .path = "/v1/versions", .handler = fake_versions},
  };
  struct err err = {0};
  memset(c, 0, sizeof *c);
  pthread_mutex_init(&c->lock, NULL);
  c->heartbeat_ms = 20;
  c->epoch = 3;
  c->fence = 4;
  const struct http_server_options options = {
      .bind_address = "127.0.0.1", .routes = routes, .route_count = 3, .context = c};
  assert_rc(RC_OK, http_server_start(&c->server, &options, &err), err);
  snprintf(c->url, sizeof c->url, "http://127.0.0.1:%d", http_server_port(c->server));
}

static inline void fake_coordinator_stop(struct fake_coordinator *c) {
  http_server_stop(c->server, 1000);
  pthread_mutex_destroy(&c->lock);
}

/* --- generation-server --- */

struct fake_generation {
  struct http_server *server;
  char url[64];
  pthread_mutex_t lock; /* guards all below */
  struct parts parts;
  struct weights *served; /* what it holds; not for training */
  bool lie; /* answers with another digest than that of what it holds */
  int pushes;
  int changes;            /* of those, as changes of what it held */
  int refused;            /* and changes that it refused */
  size_t bytes;           /* of the last body that was staged */
  int64_t pushed[16];     /* the versions of the first of them */
  char announced[8];      /* of the last: the query's */
  int begun;              /* pushes that have come, also those that wait for the lock; guarded by counter */
  pthread_mutex_t counter;
  char run[LIMIT_NAME_MAX], version[32], epoch[32], header[80];
  struct digest digest; /* of its own memory after the last push */
};

static inline void fake_push(struct http_request *r, void *context) {
  struct fake_generation *g = context;
  struct st_file *file = NULL;
  struct err err = {0};
  size_t len;
  int64_t version = -1;
  const char *bytes = http_body(r, &len);
  struct push_answer answer = {.staged = true};
  pool_enter();
  pthread_mutex_lock(&g->counter);
  g->begun++;
  pthread_mutex_unlock(&g->counter);
  pthread_mutex_lock(&g->lock);
  struct digest base, computed, expected = {0};
  const char *named = http_query(r, "base"), *header = http_header(r, "X-Leasehold-Digest");
  if (header) digest_from_hex(&expected, header);
  enum rc rc = RC_OK;
  if (named) {
    if (!digest_from_hex(&base, named) || !digest_equal(&base, &g->digest))
      rc = err_set(&err, RC_CONFLICT, "base", "another version is here");
    if (rc == RC_OK) rc = weights_apply_changes(g->served, g->served, bytes, len, &base, &computed, &err);
    if (rc == RC_OK && !digest_equal(&computed, &expected)) rc = err_set(&err, RC_INVALID, "digest", "another digest");
    *(rc == RC_OK ? &g->changes : &g->refused) += 1;
  } else {
    rc = st_open_memory(&file, bytes, len, &err);
    if (rc == RC_OK) rc = weights_from_safetensors(g->served, file, &err);
    if (rc == RC_OK) rc = weights_digest(&computed, g->served, &err);
    st_close(file);
  }
  if (rc != RC_OK) {
    pthread_mutex_unlock(&g->lock);
    http_fail(r, &err);
    return;
  }
  g->digest = computed;
  g->bytes = len;
  http_query_i64(r, "version", -1, 0, INT64_MAX, &version, NULL);
  if (g->pushes < 16) g->pushed[g->pushes] = version;
  g->pushes++;
  snprintf(g->announced, sizeof g->announced, "%s", http_query(r, "announced") ? http_query(r, "announced") : "");
  snprintf(g->run, sizeof g->run, "%s", http_query(r, "run") ? http_query(r, "run") : "");
  snprintf(g->version, sizeof g->version, "%s", http_query(r, "version") ? http_query(r, "version") : "");
  snprintf(g->epoch, sizeof g->epoch, "%s", http_query(r, "epoch") ? http_query(r, "epoch") : "");
  snprintf(g->header, sizeof g->header, "%s", header ? header : "");
  answer.digest = g->digest;
  if (g->lie) answer.digest.bytes[7] ^= 1;
  pthread_mutex_unlock(&g->lock);
  struct buf out = BUF_INIT;
  push_answer_encode(&answer, &out);
  http_reply_json(r, 200, &out);
}

static inline void fake_generation_start(struct fake_generation *g, const char *model_dir, bool lie) {
  static const struct http_route routes[] = {{.method = "POST", .path = "/v1/push-weights", .handler = fake_push}};
  struct err err = {0};
  memset(g, 0, sizeof *g);
  pthread_mutex_init(&g->lock, NULL);
  pthread_mutex_init(&g->counter, NULL);
  g->lie = lie;
  parts_make(&g->parts, model_dir);
  assert_rc(RC_OK, weights_create(&g->served, g->parts.model, false, &err), err);
  const struct http_server_options options = {
      .bind_address = "127.0.0.1", .routes = routes, .route_count = 1, .context = g};
  assert_rc(RC_OK, http_server_start(&g->server, &options, &err), err);
  snprintf(g->url, sizeof g->url, "http://127.0.0.1:%d", http_server_port(g->server));
}

static inline void fake_generation_stop(struct fake_generation *g) {
  http_server_stop(g->server, 1000);
  weights_free(g->served);
  parts_free(&g->parts);
  pthread_mutex_destroy(&g->lock);
  pthread_mutex_destroy(&g->counter);
}

#endif
