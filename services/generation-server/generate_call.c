/* See generate_call.h: from parameters to jobs, and from ended jobs to the reply.
 *
 * Previous hop of a plain request: route_generate.c or route_completions.c.  Next: engine.c, stream.c. */
#include "services/generation-server/generate_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/generation-server/stream.h"

enum {
  WHOLE_DEADLINE_MS = 600000,
  STREAM_DEADLINE_MS = 3600000,
  REPLIER_NAP_MS = 500,
  STOP_IDS_MAX = 2 * LIMIT_STOP_TOKENS + LIMIT_STOP_TEXTS
};

void generate_params_defaults(struct generate_params *p, const struct generate_shape *shape) {
  *p = (struct generate_params){.max_new_tokens = 128, .n = 1, .temperature = 1, .top_p = 1, .shape = shape};
}

/* --- the budget --- */

/* Open requests are bounded by what they hold: samples that the scheduler walks over, positions that have memory.
 * Alternatives of a token take half as much as a position each. */
static int64_t positions_of(const struct job *job) {
  return job->sample_count * (job->prompt_count + job->max_new * (1 + (int64_t)job->top_count / 2));
}

static void budget_give_back(const struct generate_call *call) {
  atomic_fetch_sub(&call->server->samples_open, call->samples);
  atomic_fetch_sub(&call->server->positions_open, call->positions);
}

static enum rc budget_take(struct generate_call *call, struct err *err) {
  struct server *s = call->server;
  const int samples_before = atomic_fetch_add(&s->samples_open, call->samples);
  const int64_t positions_before = atomic_fetch_add(&s->positions_open, call->positions);
  if (samples_before + call->samples <= LIMIT_QUEUED_REQUESTS &&
      positions_before + call->positions <= LIMIT_OPEN_POSITIONS)
    return RC_OK;
  budget_give_back(call);
  return err_set(err, RC_FULL, NULL, "%d samples of %lld positions are open already; the limits are %d and %d",
                 samples_before, (long long)positions_before, LIMIT_QUEUED_REQUESTS, LIMIT_OPEN_POSITIONS);
}

/* --- jobs --- */

static enum rc encode_prompt(const struct generate_prompt *prompt, const struct host *h, struct token_ids *encoded,
                             struct err *err) {
  if (!prompt->text) return RC_OK;
  if (!h->tokenizer)
    return err_set(err, RC_UNSUPPORTED, "text", "this model came without a tokenizer.json: expected token ids");
  return tokenizer_encode(h->tokenizer, prompt->text, prompt->text_len, true, LIMIT_PROMPT_TOKENS, encoded, err);
}

/* A stop text that is a special token would never be met in the text, which does not show those: its id is. */
static int stop_ids_of(int32_t ids[STOP_IDS_MAX], const struct generate_params *p, const struct host *h) {
  int count = 0;
  for (size_t i = 0; i < p->stop_token_ids.count && i < LIMIT_STOP_TOKENS; i++)
    ids[count++] = p->stop_token_ids.items[i];
  for (int i = 0; i < h->config.eos_count && i < LIMIT_STOP_TOKENS && !p->ignore_eos; i++)
    ids[count++] = h->config.eos[i];
  for (int i = 0; i < p->stops.count && h->tokenizer; i++) {
    const char *text = p->stops.items[i].text;
    const int32_t id = strlen(text) == p->stops.items[i].len ? tokenizer_id_of(h->tokenizer, text) : -1;
    if (id >= 0 && tokenizer_is_special(h->tokenizer, id)) ids[count++] = id;
  }
  return count;
}

static void on_done(struct job *job, void *context);

static enum rc make_job(struct job **out, const struct generate_call *call, const struct generate_params *p, size_t at,
                        uint64_t seed, struct err *err) {
  const struct host *h = call->host;
  const struct generate_prompt *prompt = &p->prompts[at];
  struct token_ids encoded = {0};
  int32_t stop[STOP_IDS_MAX];
  const int stop_count = stop_ids_of(stop, p, h);
  enum rc rc = encode_prompt(prompt, h, &encoded, err);
  if (rc == RC_OK) {
    const struct job_spec spec = {.kind = JOB_OF_REQUEST,
                                  .id = call->id,
                                  .prompt = prompt->text ? encoded.items : prompt->ids.items,
                                  .prompt_count = (int32_t)(prompt->text ? encoded.count : prompt->ids.count),
                                  .max_new = p->max_new_tokens,
                                  .sampling = {.temperature = (float)p->temperature,
                                               .top_k = p->top_k > 0 ? p->top_k : 0,
                                               .top_p = (float)p->top_p,
                                               .min_p = (float)p->min_p},
                                  .stop = stop,
                                  .stop_count = stop_count,
                                  .key = {.seed = seed, .purpose = RNG_REQUEST, .group = (uint32_t)at},
                                  .sample_count = p->n,
                                  .raw_logprobs = p->raw_logprobs,
                                  .top_count = p->top_logprobs};
    rc = job_create(out, &spec, h->model, engine_kv(h->engine), err);
  }
  token_ids_free(&encoded);
  return rc;
}

/* The prompt as it came, or the text of its ids, special ones included. */
static enum rc echo_of(const char **text, size_t *len, const struct generate_prompt *prompt, const struct host *h,
                       struct arena *arena, struct err *err) {
  struct buf decoded = BUF_INIT;
  if (!prompt->text && !h->tokenizer)
    return err_set(err, RC_UNSUPPORTED, "echo", "this model came without a tokenizer.json: its prompts have no text");
  enum rc rc = RC_OK;
  if (!prompt->text) rc = tokenizer_decode(h->tokenizer, prompt->ids.items, prompt->ids.count, false, &decoded, err);
  *len = prompt->text ? prompt->text_len : decoded.len;
  *text = arena_strndup(arena, prompt->text ? prompt->text : decoded.data ? decoded.data : "", *len);
  if (rc == RC_OK && !*text)
    rc = err_set(err, RC_NO_MEMORY, "echo", "a prompt of %zu bytes was refused its memory", *len);
  buf_free(&decoded);
  return rc;
}

static enum rc add_prompt(struct generate_call *call, const struct generate_params *p, size_t at, uint64_t seed,
                          struct err *err) {
  const char *echo = "";
  size_t echo_len = 0;
  struct job *job = NULL;
  enum rc rc = make_job(&job, call, p, at, seed, err);
  if (rc != RC_OK) return rc;
  call->jobs[call->job_count++] = job;
  job->context = call;
  job->done = on_done;
  job->abandoned = &call->abandoned;
  if (call->followed) job->follower = streamer_follower(call->server->streamer);
  call->samples += job->sample_count;
  call->positions += positions_of(job);
  if (call->positions > LIMIT_OPEN_POSITIONS)
    return err_set(err, RC_INVALID, "n",
                   "%d samples of up to %d prompt tokens and %d new tokens are %lld, the limit is %d", call->samples,
                   job->prompt_count, job->max_new, (long long)call->positions, LIMIT_OPEN_POSITIONS);
  if (p->echo) rc = echo_of(&echo, &echo_len, &p->prompts[at], call->host, http_arena(call->request), err);
  for (int32_t i = 0; i < job->sample_count && rc == RC_OK; i++) {
    struct choice *c = &call->choices[call->choice_count];
    choice_init(c, &job->samples[i], call->choice_count++, call->host->tokenizer, &call->stops, echo, echo_len);
    c->wants_offsets = p->raw_logprobs;
  }
  return rc;
}

static void free_jobs(struct generate_call *call) {
  for (int i = 0; i < call->job_count; i++) job_free(call->jobs[i]);
  call->job_count = 0;
}

static enum rc make_call(struct generate_call **out, struct server *s, struct host *h, struct http_request *r,
                         const struct generate_params *p, struct err *err) {
  struct arena *arena = http_arena(r);
  const size_t choices = p->prompt_count * (size_t)p->n;
  struct generate_call *call = *out = arena_alloc(arena, 1, sizeof *call);
  if (choices > LIMIT_QUEUED_REQUESTS)
    return err_set(err, RC_INVALID, "n", "expected at most %d samples, got %zu prompts of %d", LIMIT_QUEUED_REQUESTS,
                   p->prompt_count, p->n);
  if (p->stops.count > 0 && !h->tokenizer)
    return err_set(err, RC_UNSUPPORTED, "stop", "this model came without a tokenizer.json: expected stop token ids");
  if (atomic_load(&s->samples_open) >= LIMIT_QUEUED_REQUESTS) /* before the work of making the jobs */
    return err_set(err, RC_FULL, NULL, "%d samples are open already", LIMIT_QUEUED_REQUESTS);
  struct job **jobs = arena_alloc(arena, p->prompt_count, sizeof *jobs);
  struct choice *choice = arena_alloc(arena, choices, sizeof *choice);
  if (!call || !jobs || !choice)
    return err_set(err, RC_NO_MEMORY, NULL, "a request for %zu samples was refused its memory", choices);
  const uint64_t number = atomic_fetch_add(&s->request_number, 1);
  *call = (struct generate_call){.server = s,
                                 .host = h,
                                 .request = r,
                                 .shape = p->shape,
                                 .details = p->details,
                                 .created_ms = clock_real_ms(),
                                 .stream = p->stream,
                                 .tells_tokens = p->tells_tokens,
                                 .followed = p->stream || p->stops.count > 0,
                                 .stops = p->stops,
                                 .jobs = jobs,
                                 .choices = choice};
  struct policy active = {0};
  engine_policy(h->engine, &active);
  memcpy(call->run, active.run, sizeof call->run);
  snprintf(call->id, sizeof call->id, "%s%llu", p->shape->id_prefix, (unsigned long long)number);
  const uint64_t seed = p->has_seed ? p->seed : s->start_seed + number;
  enum rc rc = RC_OK;
  for (size_t i = 0; i < p->prompt_count && rc == RC_OK; i++) rc = add_prompt(call, p, i, seed, err);
  if (rc == RC_OK) rc = budget_take(call, err);
  if (rc != RC_OK) free_jobs(call);
  return rc;
}

/* --- submission --- */

/* Whoever gives up the last share hands the call on, and touches it no more. */
static void give_up_shares(struct generate_call *call, int count) {
  struct server *s = call->server;
  const bool followed = call->followed;
  if (count == 0 || atomic_fetch_sub(&call->shares, count) != count) return;
  if (followed)
    streamer_over(s->streamer, call);
  else if (queue_push(s->finished, call) != RC_OK) /* it has room for every open sample until the server has stopped */
    log_error("a request gets no answer: the replier's queue is full or closed");
}

/* On the engine's thread. */
static void on_done(struct job *job, void *context) {
  (void)job;
  give_up_shares(context, 1);
}

static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct generate_call *call = context;
  (void)r;
  atomic_store(&call->hung_up, why == HTTP_CANCEL_HANGUP);
  atomic_store(&call->abandoned, true); /* the engine then ends the jobs, and whoever owns the call replies */
}

/* From here on whoever gets the call replies, also when not all jobs find a place in the engine's inbox. */
static void submit_jobs(struct generate_call *call, struct engine *engine) {
  int submitted = 0;
  struct err refusal = {0};
  while (submitted < call->job_count && engine_submit(engine, call->jobs[submitted], &refusal) == RC_OK) submitted++;
  if (submitted < call->job_count) {
    call->refusal = refusal;
    atomic_store(&call->abandoned, true);
  }
  give_up_shares(call, 1 + call->job_count - submitted);
}

enum rc generate_submit(struct server *s, struct http_request *r, const struct generate_params *p, struct err *err) {
  struct generate_call *call;
  struct host *h = server_host(s, true, err);
  if (!h) return err->rc;
  const enum rc rc = make_call(&call, s, h, r, p, err);
  if (rc != RC_OK) return rc;
  atomic_store(&call->shares, call->job_count + 1);
  atomic_fetch_add(&s->requests_open, 1);
  http_release_body(r); /* the jobs have their own copies, and may wait for long */
  http_suspend(r, call->stream ? STREAM_DEADLINE_MS : WHOLE_DEADLINE_MS, on_cancelled, call);
  if (call->followed) streamer_follow(s->streamer, call);
  submit_jobs(call, h->engine);
  return RC_OK;
}

/* --- answer --- */

void generate_release(struct generate_call *call) {
  free_jobs(call);
  budget_give_back(call);
}

void generate_replied(struct server *s) { atomic_fetch_sub(&s->requests_open, 1); }

void generate_write_text(const struct generate_call *call, const int32_t *ids, size_t count, struct json_writer *w) {
  struct buf text = BUF_INIT;
  if (!call->host->tokenizer || tokenizer_decode(call->host->tokenizer, ids, count, true, &text, NULL) != RC_OK ||
      text.failed)
    json_write_null(w);
  else
    json_write_string_len(w, text.data ? text.data : "", text.len);
  buf_free(&text);
}

static void reply(struct server *s, struct generate_call *call) {
  struct http_request *request = call->request;
  struct choice_scratch scratch = {0};
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = call->refusal;
  if (atomic_load(&call->hung_up)) err_set(&err, RC_GONE, NULL, "the client has hung up");
  enum rc rc = err.rc;
  json_writer_init(&w, &body);
  for (int i = 0; i < call->choice_count && rc == RC_OK; i++) rc = choice_scan(&call->choices[i], &scratch, &err);
  if (rc == RC_OK) rc = call->shape->whole(call, &scratch, &w, &err);
  choice_scratch_free(&scratch);
  generate_release(call);
  http_reply_json_or_fail(request, rc, &body, &err);
  generate_replied(s);
}

void *replier_main(void *server) {
  struct server *s = server;
  for (;;) {
    void *item;
    const enum rc rc = queue_pop(s->finished, &item, REPLIER_NAP_MS);
    if (rc == RC_OK)
      reply(s, item);
    else if (rc != RC_TIMEOUT)
      return NULL; /* closed and empty */
  }
}
