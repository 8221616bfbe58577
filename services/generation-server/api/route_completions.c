/* POST /v1/completions: the OpenAI shape over the same engine, whole or streamed.  Unknown keys are ignored, as clients
 * of that API expect; fields that would change the result and are not offered (penalties, biases, suffixes) are
 * refused.  Of vLLM's additions it takes top_k, min_p, ignore_eos, stop_token_ids, return_token_ids.
 *
 * Log-probabilities are the usual raw ones, before temperature and cuts.  Tokens are shown as their text; one that is
 * no text by itself (part of a character) as bytes:\xNN..., one without any as token_id:N.
 *
 * This file knows the shape only: it reads fields (with completion_request.c) and writes answers.  The handler runs on
 * an HTTP thread, the writers on the replier's or the streamer's.
 *
 * Previous hop of a plain request: the HTTP layer.  Next: requests.c. */
#include <string.h>

#include "services/generation-server/requests/completion_request.h"
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"

/* --- log-probabilities --- */

static void show_token(const struct generate_call *call, int32_t id, struct buf *out) {
  struct buf bytes = BUF_INIT;
  const struct tokenizer *t = call->loaded->tokenizer;
  buf_clear(out);
  if (!t || tokenizer_decode_more(t, &id, 1, false, &bytes, NULL) != RC_OK || bytes.len == 0) {
    buf_printf(out, "token_id:%d", id);
  } else if (choice_is_text(bytes.data, bytes.len) && !memchr(bytes.data, 0, bytes.len)) { /* it may become a key */
    buf_append(out, bytes.data, bytes.len);
  } else {
    buf_puts(out, "bytes:");
    for (size_t i = 0; i < bytes.len; i++) buf_printf(out, "\\x%02x", (unsigned char)bytes.data[i]);
  }
  buf_free(&bytes);
}

/* {text: log-probability} of the likeliest tokens and the chosen one; of tokens with the same text only the likeliest
 * is shown. */
static void write_top(const struct generate_call *call, const struct sample *s, int32_t at, struct json_writer *w) {
  const int32_t k = s->job->top_count;
  struct buf shown[LIMIT_TOP_LOGPROBS + 1] = {0};
  json_object_begin(w);
  for (int32_t i = 0; i <= k; i++) {
    const bool chosen = i == k;
    bool twice = false;
    show_token(call, chosen ? s->tokens[at] : s->top_tokens[at * k + i], &shown[i]);
    for (int32_t j = 0; j < i && !twice; j++)
      twice = shown[j].len == shown[i].len && memcmp(shown[j].data, shown[i].data, shown[i].len) == 0;
    if (twice || !shown[i].data) continue;
    json_kv_f32(w, shown[i].data, chosen ? s->logprobs[at] : s->top_logprobs[at * k + i]);
  }
  for (int32_t i = 0; i <= k; i++) buf_free(&shown[i]);
  json_object_end(w);
}

static void write_logprobs(const struct generate_call *call, const struct sample *s, const struct choice_piece *piece,
                           struct json_writer *w) {
  struct buf shown = BUF_INIT;
  const int32_t end = piece->first + piece->count;
  json_object_begin(w);
  json_key(w, "tokens");
  json_array_begin(w);
  for (int32_t i = piece->first; i < end; i++) {
    show_token(call, s->tokens[i], &shown);
    json_write_string_len(w, shown.data ? shown.data : "", shown.len);
  }
  json_array_end(w);
  json_kv_f32s(w, "token_logprobs", s->logprobs + piece->first, (size_t)piece->count);
  json_key(w, "top_logprobs");
  if (s->job->top_count > 0) {
    json_array_begin(w);
    for (int32_t i = piece->first; i < end; i++) write_top(call, s, i, w);
    json_array_end(w);
  } else {
    json_write_null(w);
  }
  json_key(w, "text_offset");
  json_array_begin(w);
  for (int32_t i = 0; i < piece->count; i++) json_write_int(w, piece->offsets[i]);
  json_array_end(w);
  json_object_end(w);
  buf_free(&shown);
}

/* --- answers --- */

static const struct completion_details *details_of(const struct generate_call *call) { return call->details; }

static void write_choice(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                         struct json_writer *w) {
  const struct decode_job *job = c->sample->job;
  json_object_begin(w);
  json_kv_int(w, "index", c->index);
  json_key(w, "text");
  if (piece->text)
    json_write_string_len(w, piece->text, piece->len);
  else
    json_write_null(w);
  json_key(w, "logprobs");
  if (details_of(call)->logprobs)
    write_logprobs(call, c->sample, piece, w);
  else
    json_write_null(w);
  json_kv_string(w, "finish_reason", piece->last ? finish_reason_name(choice_finish(c)) : NULL);
  if (details_of(call)->return_token_ids) {
    if (piece->begins) json_kv_i32s(w, "prompt_token_ids", job->prompt, (size_t)job->prompt_count);
    json_kv_i32s(w, "token_ids", c->sample->tokens + piece->first, (size_t)piece->count);
  }
  json_object_end(w);
}

static void write_usage(const struct generate_call *call, struct json_writer *w) {
  int64_t prompt_tokens = 0, completion_tokens = 0;
  for (int i = 0; i < call->job_count; i++) prompt_tokens += call->jobs[i]->prompt_count;
  for (int i = 0; i < call->choice_count; i++) completion_tokens += call->choices[i].scanned;
  json_key(w, "usage");
  json_object_begin(w);
  json_kv_int(w, "prompt_tokens", prompt_tokens);
  json_kv_int(w, "completion_tokens", completion_tokens);
  json_kv_int(w, "total_tokens", prompt_tokens + completion_tokens);
  json_object_end(w);
}

/* The fields that whole answers and events share; the array of choices is open afterwards. */
static void begin_completion(const struct generate_call *call, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", call->id);
  json_kv_string(w, "object", "text_completion");
  json_kv_int(w, "created", call->created_ms / 1000);
  json_kv_string(w, "model", call->run[0] ? call->run : "leasehold");
  json_key(w, "choices");
  json_array_begin(w);
}

static enum rc write_whole(struct generate_call *call, struct choice_scratch *m, struct json_writer *w,
                           struct err *err) {
  begin_completion(call, w);
  for (int i = 0; i < call->choice_count; i++) {
    struct choice_piece piece;
    const enum rc rc = choice_take(&piece, &call->choices[i], 0, 0, m, err);
    if (rc != RC_OK) return rc;
    write_choice(call, &call->choices[i], &piece, w);
  }
  json_array_end(w);
  write_usage(call, w);
  json_object_end(w);
  return RC_OK;
}

static void write_event(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                        struct json_writer *w) {
  begin_completion(call, w);
  write_choice(call, c, piece, w);
  json_array_end(w);
  if (details_of(call)->include_usage) {
    json_key(w, "usage");
    json_write_null(w);
  }
  json_object_end(w);
}

static void write_tail(const struct generate_call *call, struct json_writer *w) {
  if (!details_of(call)->include_usage) return;
  begin_completion(call, w);
  json_array_end(w);
  write_usage(call, w);
  json_object_end(w);
}

void handle_completions(struct http_request *r, void *context) {
  static const struct generate_shape shape = {
      .id_prefix = "cmpl-", .whole = write_whole, .event = write_event, .tail = write_tail};
  struct generate_params p;
  struct err err;
  generate_params_defaults(&p, &shape);
  enum rc rc = completion_request_read(&p, r, &err);
  if (rc == RC_OK) rc = requests_submit(((struct server *)context)->requests, r, &p, &err);
  if (rc == RC_OK) return;
  completion_request_name_field(&err);
  http_fail(r, &err);
}
