/* Writes the answers of POST /v1/completions.
 *
 * Log-probabilities are the usual raw ones, before temperature, cuts and biases.  With echo the prompt's tokens come
 * first, in the piece that begins; the first of them has none: null.  Only writes, on the replier's or the streamer's
 * thread.
 *
 * Previous hop of a plain request: replier.c or streamer.c.  Next: the HTTP layer. */
#include "services/generation-server/shapes/completion_answer.h"

#include <string.h>

#include "common/base/utf8.h"
#include "services/generation-server/shapes/openai_fields.h"
#include "services/generation-server/shapes/prompt_logprobs.h"
#include "services/generation-server/shapes/shown_token.h"
#include "services/generation-server/shapes/stop_reason.h"

/* --- log-probabilities --- */

/* One token, and the likeliest ones at its place. */
struct judged {
  int32_t token, count;
  float logprob;
  const int32_t *top_tokens; /* [count] */
  const float *top_logprobs;
};

static struct judged judged_new(const struct sample *s, int32_t at) {
  const int32_t k = s->job->top_count;
  return (struct judged){s->tokens[at], k, s->logprobs[at], k ? s->top_tokens + at * k : NULL,
                         k ? s->top_logprobs + at * k : NULL};
}

static struct judged judged_prompt(const struct decode_job *job, int32_t at) {
  const int32_t k = job->top_count;
  return (struct judged){job->prompt[at], k, job->prompt_logprobs[at], k ? job->prompt_top_tokens + at * k : NULL,
                         k ? job->prompt_top_logprobs + at * k : NULL};
}

static const struct openai_details *details_of(const struct generate_call *call) { return call->details; }

static void show(const struct generate_call *call, int32_t token, struct buf *out) {
  if (!details_of(call)->tokens_as_ids) {
    shown_token(call, token, out);
    return;
  }
  buf_clear(out);
  buf_printf(out, "token_id:%d", token);
}

/* {text: log-probability} of the likeliest tokens and the chosen one; of tokens with the same text only the likeliest
 * is shown. */
static void write_top(const struct generate_call *call, const struct judged *j, struct json_writer *w) {
  struct buf shown[LIMIT_TOP_LOGPROBS + 1] = {0};
  json_object_begin(w);
  for (int32_t i = 0; i <= j->count; i++) {
    const bool chosen = i == j->count;
    bool twice = false;
    show(call, chosen ? j->token : j->top_tokens[i], &shown[i]);
    for (int32_t k = 0; k < i && !twice; k++)
      twice = shown[k].len == shown[i].len && memcmp(shown[k].data, shown[i].data, shown[i].len) == 0;
    if (twice || !shown[i].data) continue;
    json_kv_f32(w, shown[i].data, chosen ? j->logprob : j->top_logprobs[i]);
  }
  for (int32_t i = 0; i <= j->count; i++) buf_free(&shown[i]);
  json_object_end(w);
}

/* The characters of the prompt's text that begin before each of its tokens.  Of a prompt that came as a text it has
 * none of the tokens that the tokenizer put around it. */
static void write_prompt_offsets(const struct generate_call *call, const struct decode_job *job,
                                 struct json_writer *w) {
  struct buf text = BUF_INIT, one = BUF_INIT;
  const struct tokenizer *t = call->loaded->files.tokenizer;
  int64_t characters = 0;
  size_t begin = 0, at = 0, before = 0, after = 0;
  if (t && details_of(call)->prompts_are_texts) tokenizer_affixes(t, &before, &after);
  const size_t first = before, end = (size_t)job->prompt_count - after;
  if (t) tokenizer_decode(t, job->prompt + first, end - first, false, &text, NULL);
  for (size_t i = 0; i < (size_t)job->prompt_count; i++) {
    while (at < begin && at < text.len) {
      const int n = utf8_length(text.data + at, text.len - at);
      at += n > 0 ? (size_t)n : 1;
      characters++;
    }
    json_write_int(w, characters);
    buf_clear(&one);
    if (!t || i < first || i >= end) continue;
    (i == first ? tokenizer_decode : tokenizer_decode_more)(t, &job->prompt[i], 1, false, &one, NULL);
    begin += one.len;
  }
  buf_free(&text);
  buf_free(&one);
}

static void write_logprobs(const struct generate_call *call, const struct sample *s, const struct choice_piece *piece,
                           struct json_writer *w) {
  struct buf shown = BUF_INIT;
  const struct decode_job *job = s->job;
  const int32_t P = job->prompt_logprobs && piece->begins ? job->prompt_count : 0, count = P + piece->count;
  json_object_begin(w);
  json_key(w, "tokens");
  json_array_begin(w);
  for (int32_t i = 0; i < count; i++) {
    show(call, i < P ? job->prompt[i] : s->tokens[piece->first + i - P], &shown);
    json_write_string_len(w, shown.data ? shown.data : "", shown.len);
  }
  json_array_end(w);
  json_key(w, "token_logprobs");
  json_array_begin(w);
  for (int32_t i = 0; i < count; i++)
    json_write_f32(w, i < P ? job->prompt_logprobs[i] : s->logprobs[piece->first + i - P]);
  json_array_end(w);
  json_key(w, "top_logprobs");
  if (job->top_count > 0 || details_of(call)->tokens_as_ids) {
    json_array_begin(w);
    for (int32_t i = 0; i < count; i++) {
      const struct judged j = i < P ? judged_prompt(job, i) : judged_new(s, piece->first + i - P);
      if (i < P && !(j.logprob <= 0))
        json_write_null(w);
      else
        write_top(call, &j, w);
    }
    json_array_end(w);
  } else {
    json_write_null(w);
  }
  json_key(w, "text_offset");
  json_array_begin(w);
  if (P > 0) write_prompt_offsets(call, job, w);
  for (int32_t i = 0; i < piece->count; i++) json_write_int(w, piece->offsets[i]);
  json_array_end(w);
  json_object_end(w);
  buf_free(&shown);
}

/* --- answers --- */

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
  stop_reason_write(call, c, piece->last, w);
  if (details_of(call)->prompt_logprobs && piece->begins) {
    json_key(w, "prompt_logprobs");
    prompt_logprobs_write(call, job, job->top_count, w);
  }
  if (details_of(call)->return_token_ids) {
    if (piece->begins) json_kv_i32s(w, "prompt_token_ids", job->prompt, (size_t)job->prompt_count);
    json_kv_i32s(w, "token_ids", c->sample->tokens + piece->first, (size_t)piece->count);
  }
  json_object_end(w);
}

/* The fields that whole answers and events share; the array of choices is open afterwards. */
static void begin_completion(const struct generate_call *call, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", call->id);
  json_kv_string(w, "object", "text_completion");
  json_kv_int(w, "created", call->created_ms / 1000);
  json_kv_string(w, "model", openai_model_name(call));
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
  openai_write_usage(call, w);
  json_object_end(w);
  return RC_OK;
}

static void write_event(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                        struct json_writer *w) {
  begin_completion(call, w);
  write_choice(call, c, piece, w);
  json_array_end(w);
  openai_write_event_usage(call, w);
  json_object_end(w);
}

static void write_tail(const struct generate_call *call, struct json_writer *w) {
  if (!details_of(call)->include_usage) return;
  begin_completion(call, w);
  json_array_end(w);
  openai_write_usage(call, w);
  json_object_end(w);
}

const struct generate_shape completion_shape = {
    .id_prefix = "cmpl-", .whole = write_whole, .event = write_event, .tail = write_tail};
