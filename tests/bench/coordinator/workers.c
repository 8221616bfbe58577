/* Plays generation-servers against a real coordinator: registers, polls, makes up samples, puts results. */
#include "tests/bench/coordinator/workers.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/client/coordinator_client.h"
#include "common/wire/claim.h"
#include "tests/bench/coordinator/connections.h"
#include "tests/unit/coordinator/fake_trainer.h"

enum { CALL_MS = 60000, WAIT_MS = 60000, TOKENS_KINDS = 251, CONTEXT_MAX = 8192, IDLE_US = 2000000, AGAIN_US = 50000 };

struct held {
  char id[LIMIT_NAME_MAX];
  uint64_t fence;
  int first, count, tokens;
  int64_t version, round;
};

enum asked { ASKED_REGISTER, ASKED_POLL, ASKED_RESULT, ASKED_BEAT };

struct emulated {
  char id[32];
  enum asked asked;
  bool has_loaded, had_leases;
  int64_t again_us; /* the service had no room (429), or samples are drawn: go on then; 0: no */
  struct digest loaded;
  struct held held[LIMIT_LEASES_PER_REQUEST];
  int held_count;
  size_t body_len; /* of the last result */
};

struct workers {
  const struct worker_load *load;
  struct connections *all;
  struct emulated *items;
  struct fake_trainer trainer;
  struct http_client *http;
  struct coordinator_client client;
  char url[64];
  struct arena arena; /* of what is answered once */
  uint64_t epoch;
  int registered, polling;
  int32_t *token_ids;
  float *logprobs;
  size_t body_bytes;                                 /* of all results */
  size_t asked_bytes, granted_bytes, accepted_bytes; /* of a poll, of the longest answer to one, of a result's answer */
  int64_t grants, leases, results, samples, refused;
  struct durations grant, result, beat;
  int64_t first_us, last_us, closed_us; /* first lease and last result of round 0; first lease of round 1 */
  int64_t until_us;                     /* 0: no end */
  bool beats, stop;
};

/* ---- requests ---- */

static void send_body(struct workers *w, struct connection *c, const char *method, const char *path, const char *type,
                      const char *const *headers, struct buf *body) {
  connection_http_ask(c, method, path, type, headers, body->data, body->len);
  buf_free(body);
  connection_flush(w->all, c);
}

static void ask_register(struct workers *w, struct connection *c) {
  char name[32];
  struct buf body = BUF_INIT;
  snprintf(name, sizeof name, "gen-%d", c->index);
  const struct worker_register m = {
      .name = name, .kind = WORKER_GENERATION, .url = "http://127.0.0.1:9", .slots = w->load->slots};
  worker_register_encode(&m, &body);
  w->items[c->index].asked = ASKED_REGISTER;
  send_body(w, c, "POST", "/v1/workers", "application/json", NULL, &body);
}

static void ask_poll(struct workers *w, struct connection *c) {
  struct emulated *e = &w->items[c->index];
  char path[64];
  struct buf body = BUF_INIT;
  const struct lease_request m = {.epoch = w->epoch,
                                  .slots_free = w->load->slots,
                                  .wait_ms = WAIT_MS,
                                  .has_loaded = e->has_loaded,
                                  .loaded_digest = e->loaded};
  snprintf(path, sizeof path, "/v1/workers/%s/leases", e->id);
  lease_request_encode(&m, &body);
  w->asked_bytes = body.len;
  e->asked = ASKED_POLL;
  send_body(w, c, "POST", path, "application/json", NULL, &body);
}

static void ask_beat(struct workers *w, struct connection *c) {
  struct emulated *e = &w->items[c->index];
  char path[64];
  struct buf body = BUF_INIT;
  const struct worker_heartbeat m = {.epoch = w->epoch, .ready = false};
  snprintf(path, sizeof path, "/v1/workers/%s/heartbeat", e->id);
  worker_heartbeat_encode(&m, &body);
  e->asked = ASKED_BEAT;
  send_body(w, c, "POST", path, "application/json", NULL, &body);
}

static void ask_result(struct workers *w, struct connection *c) {
  struct emulated *e = &w->items[c->index];
  const struct held *h = &e->held[e->held_count - 1];
  struct sample_result samples[LIMIT_SAMPLES_PER_GROUP];
  struct sample_segment segment = {.count = h->tokens, .loss_mask = true};
  struct version_span span = {.version = h->version, .count = h->tokens, .fresh = true};
  char path[LIMIT_NAME_MAX + 32];
  struct claim_lines claim;
  struct buf body = BUF_INIT;
  struct err err;
  for (int i = 0; i < h->count; i++) {
    const size_t from = (size_t)(w->samples + i) % TOKENS_KINDS;
    samples[i] = (struct sample_result){.sample = h->first + i,
                                        .token_ids = {w->token_ids + from, (size_t)h->tokens},
                                        .logprobs = {w->logprobs + from, (size_t)h->tokens},
                                        .finish = FINISH_LENGTH,
                                        .segments = &segment,
                                        .segment_count = 1,
                                        .spans = &span,
                                        .span_count = 1};
  }
  const struct lease_result m = {.worker_id = e->id,
                                 .epoch = w->epoch,
                                 .fence = h->fence,
                                 .loaded_digest = e->loaded,
                                 .samples = samples,
                                 .sample_count = (size_t)h->count};
  if (lease_result_encode_tensors(&m, &body, &err) != RC_OK) bench_fail("%s", err.message);
  snprintf(path, sizeof path, "/v1/leases/%s/result", h->id);
  e->asked = ASKED_RESULT;
  e->body_len = body.len;
  claim_write(&claim, w->epoch, h->fence, e->id);
  send_body(w, c, "PUT", path, "application/octet-stream", claim.lines, &body);
}

/* ---- answers ---- */

static struct json *parse(const char *body, size_t len) {
  struct json *json;
  struct err err;
  if (json_parse(&json, body, len, 0, &err) != RC_OK) bench_fail("%s", err.message);
  return json;
}

static void on_registered(struct workers *w, struct connection *c, const struct json *body) {
  struct arena arena = ARENA_INIT;
  struct worker_registered m;
  struct err err;
  if (worker_registered_decode(&m, body, &arena, &err) != RC_OK) bench_fail("%s", err.message);
  snprintf(w->items[c->index].id, sizeof w->items[c->index].id, "%s", m.worker_id);
  w->epoch = m.epoch;
  arena_free(&arena);
  if (++w->registered == w->load->workers + 1) w->stop = true;
}

/* Pseudo-random by grant, so that servers do not ask in step. */
static int64_t sampling_takes(const struct workers *w) {
  const int64_t mean = w->load->sampling_us;
  return mean / 2 + (int64_t)((uint64_t)w->grants * 0x9E3779B97F4A7C15u >> 32) * mean / UINT32_MAX;
}

static void on_leases(struct workers *w, struct connection *c, const struct json *body) {
  struct emulated *e = &w->items[c->index];
  struct arena arena = ARENA_INIT;
  struct lease_answer m;
  struct err err;
  const int64_t now_us = bench_now_us();
  if (lease_answer_decode(&m, body, &arena, &err) != RC_OK) bench_fail("%s", err.message);
  if (m.current.has) {
    e->has_loaded = true;
    e->loaded = m.current.digest;
  }
  for (size_t i = 0; i < m.lease_count; i++) {
    const struct lease *l = &m.leases[i];
    struct held *h = &e->held[e->held_count++];
    *h = (struct held){.fence = l->fence,
                       .first = l->sample_first,
                       .count = l->sample_count,
                       .tokens = l->max_new_tokens,
                       .version = l->version_min,
                       .round = l->round};
    snprintf(h->id, sizeof h->id, "%s", l->id);
  }
  if (m.lease_count && m.leases[0].round > 0) {
    w->closed_us = now_us;
    w->stop = true;
  } else if (m.lease_count) {
    if (!w->first_us) w->first_us = now_us;
    if (e->had_leases) durations_add(&w->grant, now_us - c->asked_us);
    e->had_leases = true;
    if (w->load->sampling_us) e->again_us = now_us + sampling_takes(w);
    w->grants++;
    w->leases += (int64_t)m.lease_count;
  }
  arena_free(&arena);
}

static void on_result(struct workers *w, const struct connection *c) {
  struct emulated *e = &w->items[c->index];
  const int64_t now_us = bench_now_us();
  w->samples += e->held[--e->held_count].count;
  w->body_bytes += e->body_len;
  durations_add(&w->result, now_us - c->asked_us);
  w->results++;
  w->last_us = now_us;
  if (w->results == w->leases && w->samples == (int64_t)w->load->groups * w->load->samples) {
    w->stop = !w->load->close;
    w->beats = w->load->close;
  }
}

static void go_on(struct workers *w, struct connection *c) {
  struct emulated *e = &w->items[c->index];
  if (c->index == w->load->workers || w->stop) return; /* who only reports does so by the clock */
  if (e->held_count)
    ask_result(w, c);
  else
    ask_poll(w, c);
}

static void ready(struct connection *c, void *context) {
  struct workers *w = context;
  struct emulated *e = &w->items[c->index];
  const char *body;
  size_t len;
  int status;
  if (!connection_http_answer(c, &status, &body, &len)) return;
  if (e->asked == ASKED_RESULT) w->accepted_bytes = len;
  if (e->asked == ASKED_POLL && len > w->granted_bytes) w->granted_bytes = len;
  if (status == 429) {
    e->again_us = bench_now_us() + AGAIN_US;
    w->refused++;
    return;
  }
  if (status >= 300) bench_fail("worker %s was answered %d: %.*s", e->id, status, (int)len, body);
  struct json *json = e->asked == ASKED_REGISTER || e->asked == ASKED_POLL ? parse(body, len) : NULL;
  switch (e->asked) {
    case ASKED_REGISTER: on_registered(w, c, json); break;
    case ASKED_POLL: on_leases(w, c, json); break;
    case ASKED_RESULT: on_result(w, c); break;
    case ASKED_BEAT:
      durations_add(&w->beat, bench_now_us() - c->asked_us);
      c->asked_us = 0;
      break;
  }
  json_free(json);
  if (e->asked != ASKED_REGISTER && !e->again_us) go_on(w, c);
}

static void ask_again(struct workers *w, struct connection *c) {
  struct emulated *e = &w->items[c->index];
  e->again_us = 0;
  if (e->asked == ASKED_REGISTER)
    ask_register(w, c);
  else
    go_on(w, c);
}

static void tick(void *context) {
  struct workers *w = context;
  struct connection *c = connections_at(w->all, w->load->workers);
  const int64_t now_us = bench_now_us();
  for (int i = 0; i <= w->load->workers; i++) {
    if (w->items[i].again_us && w->items[i].again_us <= now_us) ask_again(w, connections_at(w->all, i));
  }
  if (w->until_us && now_us >= w->until_us) w->stop = true;
  if (w->beats && c->asked_us == 0) ask_beat(w, c);
}

/* ---- before and after ---- */

static void trainer_begin(struct workers *w) {
  struct err err;
  struct worker_registered is;
  w->trainer.context_max = CONTEXT_MAX;
  if (fake_trainer_start(&w->trainer, &err) != RC_OK) bench_fail("%s", err.message);
  snprintf(w->url, sizeof w->url, "http://127.0.0.1:%d", w->load->port);
  if (http_client_create(&w->http, NULL, NULL, &err) != RC_OK) bench_fail("%s", err.message);
  w->client = (struct coordinator_client){w->http, w->url};
  const struct worker_register m = {.name = "trainer", .kind = WORKER_TRAINER, .url = w->trainer.url};
  if (coordinator_register(&w->client, &m, &is, &w->arena, CALL_MS, &err) != RC_OK) bench_fail("%s", err.message);
}

/* The status.  checks: what is said of checks, which an older build does not know. */
static int run_post_with(struct workers *w, const char *checks, struct http_answer *answer) {
  struct buf body = BUF_INIT;
  struct err err;
  char url[96];
  snprintf(url, sizeof url, "%s/v1/runs", w->url);
  buf_printf(
      &body,
      "{\"mode\":\"sync\",\"rounds\":2,\"seed\":1,\"dataset\":{\"path\":\"%s\",\"shuffle\":false},"
      "%s\"groups_per_round\":%d,\"samples_per_group\":%d,\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":%d},"
      "\"verifier\":{\"kind\":\"numeric\"},\"training\":{\"objective\":\"grpo\",\"chunk_"
      "tokens\":8192}}",
      w->load->dataset, checks, w->load->groups, w->load->samples, w->load->tokens);
  const struct http_call call = {
      .method = "POST", .url = url, .body = body.data, .body_len = body.len, .deadline_ms = CALL_MS};
  if (http_client_call(w->http, &call, answer, &err) != RC_OK) bench_fail("%s", err.message);
  buf_free(&body);
  return answer->status;
}

static void run_post(struct workers *w) {
  struct http_answer answer = {0};
  if (run_post_with(w, "\"verify_samples\":false,", &answer) == 422) {
    http_answer_free(&answer);
    run_post_with(w, "", &answer);
  }
  if (answer.status >= 300)
    bench_fail("the run was answered %d: %.*s", answer.status, (int)answer.body.len, answer.body.data);
  http_answer_free(&answer);
}

/* All polls wait: what does that take? */
static void idle_measure(struct workers *w, int64_t resident) {
  w->until_us = bench_now_us() + IDLE_US;
  connections_serve(w->all, &w->stop); /* until all polls have come in */
  const int64_t cpu_us = process_cpu_us(w->load->pid);
  w->stop = false;
  w->until_us = bench_now_us() + IDLE_US;
  connections_serve(w->all, &w->stop);
  printf("{\"polls\": %d, \"resident_before\": %" PRId64 ", \"resident\": %" PRId64 ", \"cpu_ratio\": %.3f}\n",
         w->load->workers, resident, process_resident(w->load->pid),
         (double)(process_cpu_us(w->load->pid) - cpu_us) / IDLE_US);
}

static void report(struct workers *w, int64_t cpu_us, int64_t written) {
  const double seconds = (double)(w->last_us - w->first_us) / 1e6;
  printf("{\"workers\": %d, \"slots\": %d, \"samples\": %" PRId64 ", \"grants\": %" PRId64 ", \"leases\": %" PRId64
         ", \"record_bytes\": %zu, \"asked_bytes\": %zu, \"granted_bytes\": %zu, \"accepted_bytes\": %zu, \"seconds\": "
         "%.3f, \"grant_p50_us\": %" PRId64 ", \"grant_p99_us\": %" PRId64 ", \"result_p50_us\": %" PRId64
         ", \"result_p99_us\": %" PRId64 ", \"cpu_us\": %" PRId64 ", \"written\": %" PRId64 ", \"refused\": %" PRId64
         ", \"held_us\": %" PRId64 ", \"closing_us\": %" PRId64 "}\n",
         w->load->workers, w->load->slots, w->samples, w->grants, w->leases,
         w->samples ? w->body_bytes / (size_t)w->samples : 0, w->asked_bytes, w->granted_bytes, w->accepted_bytes,
         seconds, durations_percentile(&w->grant, 0.5), durations_percentile(&w->grant, 0.99),
         durations_percentile(&w->result, 0.5), durations_percentile(&w->result, 0.99), cpu_us, written, w->refused,
         durations_percentile(&w->beat, 1), w->closed_us ? w->closed_us - w->last_us : 0);
}

void workers_measure(const struct worker_load *load) {
  struct workers w = {.load = load};
  const struct connections_options options = {
      .port = load->port, .count = load->workers + 1, .ready = ready, .tick = tick, .context = &w};
  const size_t pool = (size_t)load->tokens + TOKENS_KINDS;
  w.items = calloc((size_t)options.count, sizeof *w.items);
  w.token_ids = calloc(pool, sizeof *w.token_ids);
  w.logprobs = calloc(pool, sizeof *w.logprobs);
  if (!w.items || !w.token_ids || !w.logprobs) bench_fail("%d workers were refused memory", load->workers);
  for (size_t i = 0; i < pool; i++) {
    w.token_ids[i] = (int32_t)(i * 7 % TOKENS_KINDS);
    w.logprobs[i] = fake_logprob(w.token_ids[i]);
  }
  trainer_begin(&w);
  const int64_t resident = process_resident(load->pid);
  w.all = connections_open(&options);
  for (int i = 0; i < options.count; i++) ask_register(&w, connections_at(w.all, i));
  connections_serve(w.all, &w.stop);
  const int64_t cpu_us = process_cpu_us(load->pid), written = process_written(load->pid);
  w.stop = false;
  for (int i = 0; i < load->workers; i++) ask_poll(&w, connections_at(w.all, i));
  connections_at(w.all, load->workers)->asked_us = 0;
  if (load->idle) {
    idle_measure(&w, resident);
  } else {
    run_post(&w);
    connections_serve(w.all, &w.stop);
    report(&w, process_cpu_us(load->pid) - cpu_us, process_written(load->pid) - written);
  }
  connections_close(w.all);
  fake_trainer_free(&w.trainer);
  http_client_destroy(w.http);
  arena_free(&w.arena);
  free(w.items);
  free(w.token_ids);
  free(w.logprobs);
  free(w.grant.items);
  free(w.result.items);
  free(w.beat.items);
}
