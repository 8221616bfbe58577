/* POST /v1/generate: text or ids in, samples out, in the shape that SGLang's clients know; unknown keys are refused.
 *
 *   handler (HTTP thread): parse, tokenize, make the job, suspend --> engine --> replier (one thread): detokenize, encode, reply
 *
 * A client that hangs up marks its call as abandoned, the engine drops the job between two steps; the answer is then
 * made all the same, and discarded by the HTTP layer.
 *
 * Memory: the call lives in the request's arena, the job has its own; the body is given up before the wait.  Open
 * requests are bounded by their samples and positions together (429), each alone too (422), whatever n and
 * max_new_tokens say. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/generation-server/routes.h"

enum { GENERATE_DEADLINE_MS = 600000, CHOICES_MAX = 256, TEXT_BYTES_MAX = 4 << 20, REPLIER_NAP_MS = 500 };

void generate_params_defaults(struct generate_params *p) {
  *p = (struct generate_params){.max_new_tokens = 128, .n = 1, .temperature = 1, .top_p = 1};
}

/* --- request --- */

static enum rc read_sampling(struct generate_params *p, const struct json *value, struct arena *arena,
                             struct err *err) {
  if (!value) return RC_OK;
  const struct json_field fields[] = {
      {.name = "max_new_tokens", .kind = FIELD_I32, .target = &p->max_new_tokens, .min = 1, .max = LIMIT_NEW_TOKENS},
      {.name = "temperature", .kind = FIELD_F64, .target = &p->temperature, .min = 0, .max = 100},
      {.name = "top_k", .kind = FIELD_I32, .target = &p->top_k, .min = -1, .max = LIMIT_VOCABULARY},
      {.name = "top_p", .kind = FIELD_F64, .target = &p->top_p, .min = 1e-6, .max = 1},
      {.name = "min_p", .kind = FIELD_F64, .target = &p->min_p, .min = 0, .max = 1},
      {.name = "stop_token_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &p->stop_token_ids,
       .min = 0,
       .max = LIMIT_VOCABULARY,
       .count_max = LIMIT_STOP_TOKENS},
      {.name = "seed", .kind = FIELD_U64, .target = &p->seed, .present = &p->has_seed},
      {.name = "n", .kind = FIELD_I32, .target = &p->n, .min = 1, .max = CHOICES_MAX},
      {.name = "ignore_eos", .kind = FIELD_BOOL, .target = &p->ignore_eos},
  };
  const enum rc rc = json_fields(value, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, arena, err);
  if (rc != RC_OK) err_in_field(err, "sampling_params");
  return rc;
}

static enum rc read_request(struct generate_params *p, struct http_request *r, struct err *err) {
  const struct json *body, *sampling = NULL;
  generate_params_defaults(p);
  enum rc rc = http_body_json(r, &body, err);
  if (rc != RC_OK) return rc;
  const struct json_field fields[] = {
      {.name = "text", .kind = FIELD_STRING, .target = &p->text, .min = 1, .max = TEXT_BYTES_MAX},
      {.name = "input_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &p->input_ids,
       .min = 0,
       .max = LIMIT_VOCABULARY,
       .count_max = LIMIT_PROMPT_TOKENS},
      {.name = "sampling_params", .kind = FIELD_VALUE, .target = &sampling},
      {.name = "return_logprob", .kind = FIELD_BOOL, .target = &p->return_logprob},
  };
  rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, http_arena(r), err);
  if (rc == RC_OK && p->text) p->text_len = strlen(p->text);
  return rc == RC_OK ? read_sampling(p, sampling, http_arena(r), err) : rc;
}

/* --- submission --- */

static enum rc prompt_of(const struct generate_params *p, const struct host *h, struct token_ids *encoded,
                         const int32_t **ids, size_t *count, struct err *err) {
  const bool has_ids = p->input_ids.count > 0;
  if (has_ids == (p->text != NULL))
    return err_set(err, RC_INVALID, "text", "expected either text or input_ids, got %s", has_ids ? "both" : "neither");
  if (has_ids) {
    *ids = p->input_ids.items;
    *count = p->input_ids.count;
    return RC_OK;
  }
  if (!h->tokenizer)
    return err_set(err, RC_UNSUPPORTED, "text", "this model came without a tokenizer.json: expected input_ids");
  const enum rc rc = tokenizer_encode(h->tokenizer, p->text, p->text_len, true, LIMIT_PROMPT_TOKENS, encoded, err);
  *ids = encoded->items;
  *count = encoded->count;
  return rc;
}

static enum rc make_job(struct job **out, struct host *h, const struct generate_params *p, const char *id,
                        uint64_t seed, struct err *err) {
  struct token_ids encoded = {0};
  const int32_t *ids = NULL;
  size_t count = 0;
  int32_t stop[2 * LIMIT_STOP_TOKENS];
  int stops = 0;
  for (size_t i = 0; i < p->stop_token_ids.count && i < LIMIT_STOP_TOKENS; i++)
    stop[stops++] = p->stop_token_ids.items[i];
  for (int i = 0; i < h->config.eos_count && !p->ignore_eos; i++) stop[stops++] = h->config.eos[i];
  enum rc rc = prompt_of(p, h, &encoded, &ids, &count, err);
  if (rc == RC_OK) {
    const struct job_spec spec = {.kind = JOB_OF_REQUEST,
                                  .id = id,
                                  .prompt = ids,
                                  .prompt_count = (int32_t)count,
                                  .max_new = p->max_new_tokens,
                                  .sampling = {.temperature = (float)p->temperature,
                                               .top_k = p->top_k > 0 ? p->top_k : 0,
                                               .top_p = (float)p->top_p,
                                               .min_p = (float)p->min_p},
                                  .stop = stop,
                                  .stop_count = stops,
                                  .key = {.seed = p->has_seed ? p->seed : seed, .purpose = RNG_REQUEST},
                                  .sample_count = p->n};
    rc = job_create(out, &spec, h->model, engine_kv(h->engine), err);
  }
  token_ids_free(&encoded);
  return rc;
}

static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct generate_call *call = context;
  (void)r, (void)why;
  atomic_store(&call->abandoned, true); /* the engine then ends the job, and the replier replies */
}

/* On the engine's thread. */
static void on_done(struct job *job, void *context) {
  struct server *s = context;
  const enum rc rc = queue_push(s->finished, job);
  if (rc != RC_OK) log_error("request %s gets no answer: the replier's queue is full or closed", job->id);
}

static void budget_give_back(struct server *s, const struct generate_call *call) {
  atomic_fetch_sub(&s->samples_open, call->samples);
  atomic_fetch_sub(&s->positions_open, call->positions);
}

/* Open requests are bounded by what they hold: samples that the scheduler walks over, positions that have memory. */
static enum rc budget_take(struct server *s, struct generate_call *call, const struct job *job, struct err *err) {
  const int samples = job->sample_count;
  const int64_t positions = samples * ((int64_t)job->prompt_count + job->max_new);
  if (positions > LIMIT_OPEN_POSITIONS)
    return err_set(err, RC_INVALID, "n", "%d samples of %d prompt tokens and %d new tokens are %lld, the limit is %d",
                   samples, job->prompt_count, job->max_new, (long long)positions, LIMIT_OPEN_POSITIONS);
  const int samples_before = atomic_fetch_add(&s->samples_open, samples);
  const int64_t positions_before = atomic_fetch_add(&s->positions_open, positions);
  call->samples = samples;
  call->positions = positions;
  if (samples_before + samples <= LIMIT_QUEUED_REQUESTS && positions_before + positions <= LIMIT_OPEN_POSITIONS)
    return RC_OK;
  budget_give_back(s, call);
  return err_set(err, RC_FULL, NULL, "%d samples of %lld positions are open already; the limits are %d and %d",
                 samples_before, (long long)positions_before, LIMIT_QUEUED_REQUESTS, LIMIT_OPEN_POSITIONS);
}

void generate_submit(struct server *s, struct http_request *r, const struct generate_params *p,
                     void (*encode)(const struct generate_call *, const struct job *, struct json_writer *)) {
  struct err err;
  struct job *job = NULL;
  struct host *h = server_host(s, true, &err);
  struct generate_call *call = arena_alloc(http_arena(r), 1, sizeof *call);
  enum rc rc = h ? RC_OK : err.rc;
  if (rc == RC_OK && !call) rc = err_set(&err, RC_NO_MEMORY, NULL, "the request was refused its memory");
  if (rc == RC_OK && atomic_load(&s->samples_open) >= LIMIT_QUEUED_REQUESTS) /* before the work of making the job */
    rc = err_set(&err, RC_FULL, NULL, "%d samples are open already", LIMIT_QUEUED_REQUESTS);
  if (rc != RC_OK) {
    http_fail(r, &err);
    return;
  }
  const uint64_t number = atomic_fetch_add(&s->request_number, 1);
  *call = (struct generate_call){
      .server = s, .host = h, .request = r, .return_logprob = p->return_logprob, .encode = encode};
  snprintf(call->id, sizeof call->id, "gen-%llu", (unsigned long long)number);
  rc = make_job(&job, h, p, call->id, s->start_seed + number, &err);
  if (rc == RC_OK) rc = budget_take(s, call, job, &err);
  if (rc == RC_OK) {
    job->owner = call;
    job->context = s;
    job->done = on_done;
    job->abandoned = &call->abandoned;
    atomic_fetch_add(&s->requests_open, 1);
    http_release_body(r); /* the job has its own copy, and may wait for long */
    http_suspend(r, GENERATE_DEADLINE_MS, on_cancelled, call);
    rc = engine_submit(h->engine, job, &err);
    if (rc == RC_OK) return;
    budget_give_back(s, call);
    atomic_fetch_sub(&s->requests_open, 1);
  }
  job_free(job);
  http_fail(r, &err);
}

/* --- answer --- */

void generate_write_text(const struct generate_call *call, const int32_t *ids, size_t count, struct json_writer *w) {
  struct buf text = BUF_INIT;
  if (!call->host->tokenizer || tokenizer_decode(call->host->tokenizer, ids, count, true, &text, NULL) != RC_OK ||
      text.failed)
    json_write_null(w);
  else
    json_write_string_len(w, text.data ? text.data : "", text.len);
  buf_free(&text);
}

static void write_finish(const struct job *job, const struct sample *s, struct json_writer *w) {
  json_key(w, "finish_reason");
  json_object_begin(w);
  json_kv_string(w, "type", finish_reason_name(s->finish));
  if (s->finish == FINISH_STOP && s->count > 0) json_kv_int(w, "matched", s->tokens[s->count - 1]);
  if (s->finish == FINISH_LENGTH) json_kv_int(w, "length", job->max_new);
  json_object_end(w);
}

static void write_logprobs(const struct sample *s, struct json_writer *w) {
  json_key(w, "output_token_logprobs");
  json_array_begin(w);
  for (int32_t i = 0; i < s->count; i++) {
    json_array_begin(w);
    json_write_f32(w, s->logprobs[i]);
    json_write_int(w, s->tokens[i]);
    json_write_null(w);
    json_array_end(w);
  }
  json_array_end(w);
}

static void write_spans(const struct sample *s, struct arena *arena, struct json_writer *w) {
  size_t count = 0;
  const struct version_span *spans = sample_spans(s, &count, arena);
  json_key(w, "version_spans");
  json_array_begin(w);
  for (size_t i = 0; spans && i < count; i++) {
    json_object_begin(w);
    json_kv_int(w, "version", spans[i].version);
    json_kv_int(w, "start", spans[i].start);
    json_kv_int(w, "count", spans[i].count);
    json_object_end(w);
  }
  json_array_end(w);
}

static void write_choice(const struct generate_call *call, const struct job *job, const struct sample *s,
                         struct json_writer *w) {
  char hex[DIGEST_HEX_MAX];
  struct arena arena = ARENA_INIT;
  digest_hex(hex, &s->digest);
  json_object_begin(w);
  json_key(w, "text");
  generate_write_text(call, s->tokens, (size_t)s->count, w);
  json_kv_i32s(w, "output_ids", s->tokens, (size_t)s->count);
  json_key(w, "meta_info");
  json_object_begin(w);
  json_kv_string(w, "id", job->id);
  write_finish(job, s, w);
  json_kv_int(w, "prompt_tokens", job->prompt_count);
  json_kv_int(w, "completion_tokens", s->count);
  json_kv_int(w, "weight_version", s->count > 0 ? s->versions[s->count - 1] : job->policy.version);
  json_kv_string(w, "weights_digest", hex);
  write_spans(s, &arena, w);
  if (call->return_logprob) write_logprobs(s, w);
  json_object_end(w);
  json_object_end(w);
  arena_free(&arena);
}

static void encode_generate(const struct generate_call *call, const struct job *job, struct json_writer *w) {
  if (job->sample_count > 1) json_array_begin(w);
  for (int32_t i = 0; i < job->sample_count; i++) write_choice(call, job, &job->samples[i], w);
  if (job->sample_count > 1) json_array_end(w);
}

static void reply(struct server *s, struct job *job) {
  const struct generate_call *call = job->owner;
  struct http_request *request = call->request;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err;
  json_writer_init(&w, &body);
  call->encode(call, job, &w);
  job_free(job);
  budget_give_back(s, call);
  http_reply_json_or_fail(request, RC_OK, &body, &err);
  atomic_fetch_sub(&s->requests_open, 1);
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

void handle_generate(struct http_request *r, void *context) {
  struct server *s = context;
  struct generate_params p;
  struct err err;
  if (read_request(&p, r, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  generate_submit(s, r, &p, encode_generate);
}
