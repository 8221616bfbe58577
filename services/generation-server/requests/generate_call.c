/* Makes a call from a request's parameters: encodes prompts, makes decode jobs and choices, takes a share of the
 * budget. Runs on an HTTP thread; the thread that replies releases the call.
 *
 * Previous hop of a plain request: a route of api/, which has read it in its client's shape.  Next: requests.c submits
 * the jobs. */
#include "services/generation-server/requests/generate_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/wire/fields.h"
#include "services/generation-server/requests/room.h"

enum { STOP_IDS_MAX = 2 * LIMIT_STOP_TOKENS + LIMIT_STOP_TEXTS };

void generate_params_defaults(struct generate_params *p, const struct generate_shape *shape) {
  *p = (struct generate_params){.max_new_tokens = 128,
                                .n = 1,
                                .temperature = 1,
                                .top_p = 1,
                                .changes = LOGIT_CHANGES_NONE,
                                .shape = shape};
}

/* --- jobs --- */

static enum rc encode_prompt(const struct generate_prompt *prompt, const struct loaded_model *loaded,
                             struct token_ids *encoded, struct err *err) {
  if (!prompt->text) return RC_OK;
  if (!loaded->files.tokenizer)
    return err_set(err, RC_UNSUPPORTED, "text", "this model came without a tokenizer.json: expected token ids");
  return tokenizer_encode_prompt(loaded->files.tokenizer, prompt->text, prompt->text_len, LIMIT_PROMPT_TOKENS, encoded,
                                 err);
}

/* Of a shape whose lengths are cut to the context: a prompt may have all of it but one token, and a wish all. */
static enum rc check_room(enum rc encoded, int32_t prompt_count, const struct generate_params *p,
                          const struct loaded_model *loaded, struct err *err) {
  const int64_t room = room_of(loaded);
  char why[ERR_MESSAGE_MAX];
  if (!p->cuts_to_room || (encoded != RC_OK && encoded != RC_TOO_LARGE)) return encoded;
  if (encoded == RC_OK && !p->cuts_any && p->max_new_tokens > room)
    return err_set(err, RC_INVALID, "max_new_tokens", "expected at most %lld new tokens, the whole context, got %d",
                   (long long)room, p->max_new_tokens);
  if (encoded == RC_OK && prompt_count < room) return RC_OK;
  if (encoded == RC_OK)
    snprintf(why, sizeof why, "it has %d tokens, and an answer needs room for one more", prompt_count);
  else
    snprintf(why, sizeof why, "%s", err ? err->message : "");
  return room_refuse(loaded, "input_ids", why, err);
}

/* A text does not show special tokens, so a stop text that names one is looked for by its id. */
static int stop_ids_of(int32_t ids[STOP_IDS_MAX], const struct generate_params *p, const struct loaded_model *loaded) {
  int count = 0;
  for (size_t i = 0; i < p->stop_token_ids.count && i < LIMIT_STOP_TOKENS; i++)
    ids[count++] = p->stop_token_ids.items[i];
  for (int i = 0; i < loaded->files.config.eos_count && i < LIMIT_STOP_TOKENS && !p->ignore_eos; i++)
    ids[count++] = loaded->files.config.eos[i];
  for (int i = 0; i < p->stops.count && loaded->files.tokenizer; i++) {
    const char *text = p->stops.items[i].text;
    const int32_t id = strlen(text) == p->stops.items[i].len ? tokenizer_id_of(loaded->files.tokenizer, text) : -1;
    if (id >= 0 && tokenizer_is_special(loaded->files.tokenizer, id)) ids[count++] = id;
  }
  return count;
}

/* As many tokens as the client asks for; or as there is room for behind the prompt, where it leaves that open or asks
 * for more of a shape that cuts. */
static int32_t new_tokens(const struct generate_params *p, int32_t prompt_count, const struct loaded_model *loaded) {
  const int64_t left = room_of(loaded) - prompt_count;
  const int32_t room = (int32_t)(left < 1 ? 1 : left > LIMIT_NEW_TOKENS ? LIMIT_NEW_TOKENS : left);
  if (p->only_prompt) return 1; /* no job is without */
  if (p->max_new_tokens == 0 || (p->cuts_to_room && p->max_new_tokens > room)) return room;
  return p->max_new_tokens;
}

static enum rc check_biases(const struct logit_changes *c, int vocabulary, struct err *err) {
  for (size_t i = 0; i < c->bias_count; i++)
    if (c->biases[i].token >= vocabulary)
      return err_set(err, RC_INVALID, "logit_bias", "expected ids from 0 to %d, got %d", vocabulary - 1,
                     c->biases[i].token);
  return RC_OK;
}

static enum rc check_told(const struct generate_params *p, int32_t prompt_count, struct err *err) {
  if (!p->prompt_logprobs || p->prompt_logprobs_from <= prompt_count) return RC_OK;
  return err_set(err, RC_INVALID, "prompt_logprobs_from", "expected at most the prompt's %d tokens, got %d",
                 prompt_count, p->prompt_logprobs_from);
}

static enum rc make_job(struct decode_job **out, const struct generate_call *call, const struct generate_params *p,
                        size_t at, uint64_t seed, struct err *err) {
  const struct loaded_model *loaded = call->loaded;
  const struct generate_prompt *prompt = &p->prompts[at];
  const bool alone = prompt->alone && prompt->own && prompt->own->has_seed;
  struct token_ids encoded = {0};
  int32_t stop[STOP_IDS_MAX];
  if (prompt->own) p = prompt->own;
  const int stop_count = stop_ids_of(stop, p, loaded);
  enum rc rc = check_biases(&p->changes, loaded->files.config.vocabulary, err);
  if (rc == RC_OK) rc = encode_prompt(prompt, loaded, &encoded, err);
  const int32_t prompt_count = (int32_t)(prompt->text ? encoded.count : prompt->ids.count);
  rc = check_room(rc, prompt_count, p, loaded, err);
  if (rc == RC_OK) {
    struct logit_changes changes = p->changes;
    changes.barred = stop;
    changes.barred_count = stop_count;
    changes.min_new = p->min_new_tokens;
    const struct decode_job_spec spec = {
        .kind = DECODE_JOB_OF_REQUEST,
        .id = prompt->id ? prompt->id : call->id,
        .prompt = prompt->text ? encoded.items : prompt->ids.items,
        .prompt_count = prompt_count,
        .max_new = new_tokens(p, prompt_count, loaded),
        .sampling = {.temperature = p->temperature < WIRE_TEMPERATURE_MIN ? 0 : (float)p->temperature,
                     .top_k = p->top_k > 0 ? p->top_k : 0,
                     .top_p = (float)p->top_p,
                     .min_p = (float)p->min_p},
        .stop = stop,
        .stop_count = stop_count,
        .key = {.seed = alone ? p->seed : seed, .purpose = RNG_REQUEST, .group = alone ? 0 : (uint32_t)at},
        .sample_count = p->n,
        .raw_logprobs = p->raw_logprobs,
        .top_count = p->top_logprobs,
        .changes = &changes,
        .prompt_logprobs = p->prompt_logprobs};
    rc = check_told(p, prompt_count, err);
    if (rc == RC_OK) rc = decode_job_create(out, &spec, loaded->model, engine_kv(loaded->engine), err);
  }
  token_ids_free(&encoded);
  return rc;
}

/* The prompt as it came, or the text of its ids, special ones included. */
static enum rc echo_of(const char **text, size_t *len, const struct generate_prompt *prompt,
                       const struct loaded_model *loaded, struct arena *arena, struct err *err) {
  struct buf decoded = BUF_INIT;
  if (!prompt->text && !loaded->files.tokenizer)
    return err_set(err, RC_UNSUPPORTED, "echo", "this model came without a tokenizer.json: its prompts have no text");
  enum rc rc = RC_OK;
  if (!prompt->text)
    rc = tokenizer_decode(loaded->files.tokenizer, prompt->ids.items, prompt->ids.count, false, &decoded, err);
  *len = prompt->text ? prompt->text_len : decoded.len;
  *text = arena_strndup(arena, prompt->text ? prompt->text : decoded.data ? decoded.data : "", *len);
  if (rc == RC_OK && !*text)
    rc = err_set(err, RC_NO_MEMORY, "echo", "a prompt of %zu bytes was refused its memory", *len);
  buf_free(&decoded);
  return rc;
}

/* A job's share of the budget.  Alternatives of a token take half as much as a position each. */
static int64_t positions_of(const struct decode_job *job) {
  const int64_t judged = job->prompt_logprobs ? job->prompt_count * (1 + (int64_t)job->top_count) : 0;
  return judged + job->sample_count * (job->prompt_count + job->max_new * (1 + (int64_t)job->top_count / 2));
}

static enum rc add_prompt(struct generate_call *call, const struct generate_params *p, size_t at, uint64_t seed,
                          struct err *err) {
  const char *echo = "";
  size_t echo_len = 0;
  struct decode_job *job = NULL;
  const struct generate_params *own = p->prompts[at].own ? p->prompts[at].own : p;
  enum rc rc = make_job(&job, call, p, at, seed, err);
  if (rc != RC_OK) return rc;
  call->jobs[call->job_count++] = job;
  call->samples += job->sample_count;
  call->positions += positions_of(job);
  if (call->positions > LIMIT_OPEN_POSITIONS)
    return err_set(err, RC_INVALID, "n",
                   "%d samples of up to %d prompt tokens and %d new tokens take %lld positions, the limit is %d",
                   call->samples, job->prompt_count, job->max_new, (long long)call->positions, LIMIT_OPEN_POSITIONS);
  if (p->echo) rc = echo_of(&echo, &echo_len, &p->prompts[at], call->loaded, http_arena(call->request), err);
  for (int32_t i = 0; i < job->sample_count && rc == RC_OK; i++) {
    struct choice *c = &call->choices[call->choice_count];
    choice_init(c, &job->samples[i], call->choice_count++, call->loaded->files.tokenizer,
                own == p ? &call->stops : &own->stops, echo, echo_len);
    c->wants_offsets = own->raw_logprobs;
    c->keeps_stop = own->keeps_stop;
    c->stops_from = own->puts_off_stops ? own->min_new_tokens : 0;
    c->drops_end = own->drops_end && !own->keeps_stop;
    c->shows_special = own->shows_special;
    c->ignores_eos = own->ignore_eos;
    c->awaits_token = own->prompt_logprobs;
    c->only_prompt = own->only_prompt;
  }
  return rc;
}

static void free_jobs(struct generate_call *call) {
  for (int i = 0; i < call->job_count; i++) decode_job_free(call->jobs[i]);
  call->job_count = 0;
}

/* Of any prompt. */
static bool has_stops(const struct generate_params *p) {
  bool any = p->stops.count > 0;
  for (size_t i = 0; i < p->prompt_count && !any; i++) any = p->prompts[i].own && p->prompts[i].own->stops.count > 0;
  return any;
}

/* Where each prompt that has a name of its own is listed by it; of a batch only some may have one. */
static enum rc make_parts(struct generate_call *call, const struct generate_params *p, struct arena *arena,
                          struct err *err) {
  bool named = false;
  for (size_t i = 0; i < p->prompt_count && !named; i++) named = p->prompts[i].id != NULL;
  if (!named) return RC_OK;
  call->parts = arena_alloc(arena, p->prompt_count, sizeof *call->parts);
  if (!call->parts)
    return err_set(err, RC_NO_MEMORY, NULL, "the names of %zu prompts were refused their memory", p->prompt_count);
  for (size_t i = 0; i < p->prompt_count; i++)
    call->parts[i].link = (struct open_link){.name = p->prompts[i].id, .abandoned = &call->parts[i].abandoned};
  return RC_OK;
}

enum rc generate_call_make(struct generate_call **out, struct admission *a, struct loaded_model *loaded,
                           struct http_request *r, const struct generate_params *p, struct err *err) {
  struct arena *arena = http_arena(r);
  const size_t choices = p->prompt_count * (size_t)p->n;
  struct generate_call *call = *out = arena_alloc(arena, 1, sizeof *call);
  if (choices > LIMIT_QUEUED_REQUESTS)
    return err_set(err, RC_INVALID, "n", "expected at most %d samples, got %zu prompts of %d", LIMIT_QUEUED_REQUESTS,
                   p->prompt_count, p->n);
  if (has_stops(p) && !loaded->files.tokenizer)
    return err_set(err, RC_UNSUPPORTED, "stop", "this model came without a tokenizer.json: expected stop token ids");
  enum rc rc = admission_check(a, err);
  if (rc != RC_OK) return rc;
  struct decode_job **jobs = arena_alloc(arena, p->prompt_count, sizeof *jobs);
  struct choice *choice = arena_alloc(arena, choices, sizeof *choice);
  if (!call || !jobs || !choice)
    return err_set(err, RC_NO_MEMORY, NULL, "a request for %zu samples was refused its memory", choices);
  const uint64_t number = admission_number(a);
  *call = (struct generate_call){.admission = a,
                                 .loaded = loaded,
                                 .request = r,
                                 .shape = p->shape,
                                 .details = p->details,
                                 .created_ms = clock_real_ms(),
                                 .stream = p->stream,
                                 .tells_tokens = p->tells_tokens,
                                 .followed = p->stream || has_stops(p),
                                 .stops = p->stops,
                                 .jobs = jobs,
                                 .choices = choice};
  struct policy active = {0};
  engine_policy(loaded->engine, &active);
  memcpy(call->run, active.run, sizeof call->run);
  if (p->id)
    snprintf(call->id, sizeof call->id, "%s", p->id);
  else
    snprintf(call->id, sizeof call->id, "%s%s", p->shape->id_prefix, http_request_id(r));
  const uint64_t seed = p->has_seed ? p->seed : a->start_seed + number;
  rc = make_parts(call, p, arena, err);
  for (size_t i = 0; i < p->prompt_count && rc == RC_OK; i++) rc = add_prompt(call, p, i, seed, err);
  if (rc == RC_OK) rc = admission_take(a, call->samples, call->positions, err);
  if (rc != RC_OK) free_jobs(call);
  return rc;
}

/* --- answer --- */

void generate_call_release(struct generate_call *call) {
  open_calls_remove(call->open, &call->link);
  for (int i = 0; i < call->job_count && call->parts; i++) open_calls_remove(call->open, &call->parts[i].link);
  free_jobs(call);
  admission_give_back(call->admission, call->samples, call->positions);
}

void generate_call_write_text(const struct generate_call *call, const int32_t *ids, size_t count,
                              struct json_writer *w) {
  struct buf text = BUF_INIT;
  if (!call->loaded->files.tokenizer ||
      tokenizer_decode_more(call->loaded->files.tokenizer, ids, count, true, &text, NULL) != RC_OK || text.failed)
    json_write_null(w);
  else
    json_write_string_len(w, text.data ? text.data : "", text.len);
  buf_free(&text);
}
