/* Plays generation-servers over real HTTP: registers them, polls for leases, makes up samples and puts results. */
#include "tests/unit/coordinator/fake_server.h"

#include <stdio.h>
#include <string.h>

enum { SLOTS = 64 };

void register_server_as(struct fixture *f, struct fake_server *s, const char *name, enum worker_exactness exactness) {
  struct err err = {0};
  const struct worker_register m = {
      .name = name, .kind = WORKER_GENERATION, .url = "http://127.0.0.1:9", .slots = SLOTS, .exactness = exactness};
  *s = (struct fake_server){0};
  if (coordinator_register(&f->client, &m, &s->is, &f->arena, DEADLINE_MS, &err) != RC_OK) fail_msg("%s", err.message);
}

void register_server(struct fixture *f, struct fake_server *s, const char *name) {
  register_server_as(f, s, name, WORKER_INVARIANT);
}

void report_ready(struct fixture *f, const struct fake_server *s) {
  struct err err = {0};
  const struct worker_heartbeat m = {
      .epoch = s->is.epoch, .ready = true, .has_loaded = s->has_loaded, .loaded_digest = s->loaded};
  struct worker_heartbeat_answer answer;
  if (coordinator_heartbeat(&f->client, s->is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
}

enum rc poll_once(struct fixture *f, struct fake_server *s, int slots, struct lease_answer *out, struct err *err) {
  const struct lease_request m = {
      .epoch = s->is.epoch, .slots_free = slots, .has_loaded = s->has_loaded, .loaded_digest = s->loaded};
  enum rc rc = coordinator_leases(&f->client, s->is.worker_id, &m, out, &f->arena, DEADLINE_MS, err);
  if (rc == RC_OK && out->current.has) {
    s->has_loaded = true;
    s->loaded = out->current.digest;
  }
  return rc;
}

static bool granted(struct fixture *f, struct fake_server *s, int slots, struct lease_answer *out) {
  struct err err = {0};
  if (poll_once(f, s, slots, out, &err) != RC_OK) fail_msg("%s", err.message);
  return out->lease_count > 0;
}

void poll_leases(struct fixture *f, struct fake_server *s, int slots, struct lease_answer *out) {
  AWAIT(granted(f, s, slots, out), "there is no lease for %s", s->is.worker_id) a_moment_passes(f);
}

void collect_leases(struct fixture *f, struct fake_server *s, struct lease *leases, int wanted) {
  for (int n = 0; n < wanted;) {
    struct lease_answer a;
    poll_leases(f, s, SLOTS, &a);
    for (size_t i = 0; i < a.lease_count; i++) {
      if (n == wanted) fail_msg("more than %d leases came", wanted);
      leases[n++] = a.leases[i];
    }
  }
}

static void *poll_and_wait(void *context) {
  struct waiting_poll *w = context;
  struct http_client *http = NULL;
  struct err err;
  if ((w->rc = http_client_create(&http, NULL, NULL, &err)) != RC_OK) return NULL;
  const struct coordinator_client client = {.http = http, .base_url = w->url};
  const struct lease_request m = {.epoch = w->s->is.epoch,
                                  .slots_free = w->slots,
                                  .wait_ms = w->wait_ms,
                                  .has_loaded = w->s->has_loaded,
                                  .loaded_digest = w->s->loaded};
  w->rc = coordinator_leases(&client, w->s->is.worker_id, &m, &w->answer, &w->arena, DEADLINE_MS, &err);
  http_client_destroy(http);
  return NULL;
}

void wait_for_leases(struct waiting_poll *w, struct fixture *f, const struct fake_server *s, int slots, int wait_ms) {
  *w = (struct waiting_poll){.url = f->url, .s = s, .slots = slots, .wait_ms = wait_ms, .arena = ARENA_INIT};
  assert_int_equal(pthread_create(&w->thread, NULL, poll_and_wait, w), 0);
  wait_metric(f, "leasehold_waiting_polls", 1);
}

void make_sample(struct fixture *f, struct sample_result *out, const struct lease *l, int index, bool right) {
  int32_t digit = l->prompt_ids.items[0];
  int32_t *ids = arena_alloc(&f->arena, FAKE_TOKENS, sizeof *ids);
  float *lp = arena_alloc(&f->arena, FAKE_TOKENS, sizeof *lp);
  for (int i = 0; i < FAKE_TOKENS; i++) {
    ids[i] = fake_token(i, digit, right);
    lp[i] = fake_logprob(ids[i]);
  }
  struct sample_segment *segment = arena_alloc(&f->arena, 1, sizeof *segment);
  struct version_span *span = arena_alloc(&f->arena, 1, sizeof *span);
  *segment = (struct sample_segment){0, 3, true};
  *span = (struct version_span){l->version_min, 0, 3, true};
  *out = (struct sample_result){.sample = l->sample_first + index,
                                .token_ids = {ids, 3},
                                .logprobs = {lp, 3},
                                .finish = FINISH_STOP,
                                .segments = segment,
                                .segment_count = 1,
                                .spans = span,
                                .span_count = 1};
}

struct lease_result make_result(struct fixture *f, const struct fake_server *s, const struct lease *l) {
  struct lease_result r = {.worker_id = s->is.worker_id,
                           .epoch = s->is.epoch,
                           .fence = l->fence,
                           .loaded_digest = s->loaded,
                           .sample_count = (size_t)l->sample_count};
  r.samples = arena_alloc(&f->arena, (size_t)l->sample_count, sizeof *r.samples);
  for (int i = 0; i < l->sample_count; i++) make_sample(f, &r.samples[i], l, i, fake_is_right(l->sample_first + i));
  return r;
}

struct lease_result make_result_of_length(struct fixture *f, const struct fake_server *s, const struct lease *l,
                                          int tokens, enum finish_reason finish) {
  struct lease_result r = make_result(f, s, l);
  for (int i = 0; i < l->sample_count; i++) {
    struct sample_result *one = &r.samples[i];
    int32_t *ids = arena_alloc(&f->arena, (size_t)tokens, sizeof *ids);
    float *logprobs = arena_alloc(&f->arena, (size_t)tokens, sizeof *logprobs);
    for (int t = 0; t < tokens; t++) {
      ids[t] = '0' + (l->sample_first + i + t) % 10;
      if (finish == FINISH_STOP && t == tokens - 1) ids[t] = one->token_ids.items[FAKE_TOKENS - 1];
      logprobs[t] = fake_logprob(ids[t]);
    }
    one->token_ids = (struct json_i32s){ids, (size_t)tokens};
    one->logprobs = (struct json_f32s){logprobs, (size_t)tokens};
    one->segments[0].count = one->spans[0].count = tokens;
    one->finish = finish;
  }
  return r;
}

void make_up_sample(struct fixture *f, struct sample_result *out, const struct lease *l, enum made_up which) {
  const int32_t digit = l->prompt_ids.items[0];
  const int count = FAKE_TOKENS + (which == MADE_UP_LENGTH);
  int32_t *ids = arena_alloc(&f->arena, (size_t)count, sizeof *ids);
  float *logprobs = arena_alloc(&f->arena, (size_t)count, sizeof *logprobs);
  for (int i = 0; i < count; i++) ids[i] = fake_token(i, digit, fake_is_right(out->sample));
  if (which == MADE_UP_TOKEN) ids[1] = '0' + (digit - '0' + 5) % 10; /* neither the right one nor the wrong one */
  if (which == MADE_UP_LENGTH) ids[FAKE_TOKENS - 1] = digit;
  for (int i = 0; i < count; i++) logprobs[i] = fake_logprob(ids[i]);
  if (which == MADE_UP_LOGPROB) logprobs[1] *= 1 + 1e-6f;
  out->token_ids = (struct json_i32s){ids, (size_t)count};
  out->logprobs = (struct json_f32s){logprobs, (size_t)count};
  out->segments[0].count = out->spans[0].count = count;
}

enum rc put_result(struct fixture *f, const struct lease *l, const struct lease_result *r, bool *repeated,
                   struct err *err) {
  struct lease_result_answer answer = {0};
  enum rc rc = coordinator_put_result(&f->client, l->id, r, &answer, &f->arena, DEADLINE_MS, err);
  if (repeated) *repeated = answer.repeated;
  return rc;
}

void answer_lease(struct fixture *f, const struct fake_server *s, const struct lease *l) {
  struct err err = {0};
  const struct lease_result r = make_result(f, s, l);
  if (put_result(f, l, &r, NULL, &err) != RC_OK) fail_msg("%s: %s", l->id, err.message);
}

void answer_lease_alike(struct fixture *f, const struct fake_server *s, const struct lease *l, bool right) {
  struct err err = {0};
  const struct lease_result r = make_result(f, s, l);
  for (int i = 0; i < l->sample_count; i++) make_sample(f, &r.samples[i], l, i, right);
  if (put_result(f, l, &r, NULL, &err) != RC_OK) fail_msg("%s: %s", l->id, err.message);
}

/* The run when it is in the state, or NULL. */
static struct json *run_in(struct fixture *f, const char *run, const char *wanted, char *found, size_t cap) {
  struct json *r = get_run(f, run);
  const struct json *error = json_get(r, "error");
  const char *state = json_string(json_get(r, "state"), NULL);
  if (strcmp(state, wanted) == 0) return r;
  snprintf(found, cap, "%s: %s", state, json_type_of(error) == JSON_STRING ? json_string(error, NULL) : "no error");
  json_free(r);
  return NULL;
}

struct json *serve_run(struct fixture *f, struct fake_server *s, const char *run, const char *wanted) {
  struct err err = {0};
  struct json *r;
  char found[256];
  AWAIT((r = run_in(f, run, wanted, found, sizeof found)), "run %s is not %s but %s", run, wanted, found) {
    struct lease_answer a;
    if (poll_once(f, s, SLOTS, &a, &err) != RC_OK) fail_msg("%s", err.message);
    for (size_t i = 0; i < a.lease_count; i++) answer_lease(f, s, &a.leases[i]);
    if (a.lease_count == 0) a_moment_passes(f);
  }
  return r;
}
