/* Writes the answers of POST /v1/chat/completions.
 *
 * With tools the text is searched for calls (tool_calls.c).  In a stream text goes out until a call may have begun; the
 * last chunk of the choice has the calls, each with its whole arguments, or the text that turned out to be none.
 * Log-probabilities are those of all tokens, the calls' too.  On the replier's or the streamer's thread; what a stream
 * must remember of a choice lies in the request's details.
 *
 * Previous hop of a plain request: replier.c or streamer.c.  Next: the HTTP layer. */
#include "services/generation-server/shapes/chat_answer.h"

#include <stdio.h>

#include "services/generation-server/shapes/chat_request.h"
#include "services/generation-server/shapes/shown_token.h"
#include "services/generation-server/shapes/stop_reason.h"

static const struct chat_details *details_of(const struct generate_call *call) { return call->details; }

/* --- what whole answers and chunks share --- */

static void write_logprobs(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                           struct json_writer *w) {
  json_key(w, "logprobs");
  if (!details_of(call)->openai.logprobs) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_key(w, "content");
  shown_tokens_write(call, c->sample, piece->first, piece->count, c->sample->job->top_count,
                     details_of(call)->openai.tokens_as_ids ? SHOWN_BY_ID : SHOWN_AS_TEXT, w);
  json_key(w, "refusal");
  json_write_null(w);
  json_object_end(w);
}

/* In a chunk every call has its index. */
static void write_calls(const struct generate_call *call, const struct choice *c, const struct tool_calls *calls,
                        bool chunk, struct json_writer *w) {
  const size_t count = details_of(call)->one_call && calls->count > 1 ? 1 : calls->count;
  char id[LIMIT_NAME_MAX + 40];
  json_key(w, "tool_calls");
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) {
    snprintf(id, sizeof id, "call_%s_%d_%zu", call->id, c->index, i);
    json_object_begin(w);
    if (chunk) json_kv_int(w, "index", (int64_t)i);
    json_kv_string(w, "id", id);
    json_kv_string(w, "type", "function");
    json_key(w, "function");
    json_object_begin(w);
    json_kv_string(w, "name", calls->items[i].name);
    json_kv_string(w, "arguments", calls->items[i].arguments);
    json_object_end(w);
    json_object_end(w);
  }
  json_array_end(w);
}

static void write_finish(const struct choice *c, bool last, bool called, struct json_writer *w) {
  const char *reason = NULL; /* how it ended is known once it has */
  if (last) reason = called && choice_finish(c) == FINISH_STOP ? "tool_calls" : finish_reason_name(choice_finish(c));
  json_kv_string(w, "finish_reason", reason);
}

static void begin_answer(const struct generate_call *call, const char *object, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", call->id);
  json_kv_string(w, "object", object);
  json_kv_int(w, "created", call->created_ms / 1000);
  json_kv_string(w, "model", openai_model_name(call));
}

static void write_prompt_ids(const struct generate_call *call, struct json_writer *w) {
  const struct decode_job *job = call->jobs[0];
  json_kv_i32s(w, "prompt_token_ids", job->prompt, (size_t)job->prompt_count);
}

/* --- whole --- */

static enum rc write_message(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                             bool *called, struct json_writer *w, struct err *err) {
  const struct chat_details *d = details_of(call);
  struct arena arena = ARENA_INIT;
  struct tool_calls calls = {.content = piece->text, .content_len = piece->len};
  enum rc rc = RC_OK;
  if (d->tools && piece->text) rc = tool_calls_parse(&calls, piece->text, piece->len, &d->names, &arena, err);
  *called = calls.count > 0;
  json_key(w, "message");
  json_object_begin(w);
  json_kv_string(w, "role", "assistant");
  json_key(w, "content");
  if (calls.content && (calls.content_len > 0 || calls.count == 0))
    json_write_string_len(w, calls.content, calls.content_len);
  else
    json_write_null(w);
  json_key(w, "refusal");
  json_write_null(w);
  if (calls.count > 0) write_calls(call, c, &calls, false, w);
  json_object_end(w);
  arena_free(&arena);
  return rc;
}

static enum rc write_whole(struct generate_call *call, struct choice_scratch *m, struct json_writer *w,
                           struct err *err) {
  begin_answer(call, "chat.completion", w);
  json_key(w, "choices");
  json_array_begin(w);
  for (int i = 0; i < call->choice_count; i++) {
    struct choice *c = &call->choices[i];
    struct choice_piece piece;
    bool called;
    enum rc rc = choice_take(&piece, c, 0, 0, m, err);
    json_object_begin(w);
    json_kv_int(w, "index", c->index);
    if (rc == RC_OK) rc = write_message(call, c, &piece, &called, w, err);
    if (rc != RC_OK) return rc;
    write_logprobs(call, c, &piece, w);
    write_finish(c, true, called, w);
    stop_reason_write(call, c, true, w);
    if (details_of(call)->openai.return_token_ids)
      json_kv_i32s(w, "token_ids", c->sample->tokens, (size_t)piece.count);
    json_object_end(w);
  }
  json_array_end(w);
  openai_write_usage(call, w);
  if (details_of(call)->openai.return_token_ids) write_prompt_ids(call, w);
  json_object_end(w);
  return RC_OK;
}

/* --- streams --- */

/* The text of a choice that has ended, made again from its tokens. */
static void whole_text(const struct choice *c, struct buf *out) {
  const struct sample *s = c->sample;
  const size_t count = (size_t)choice_text_tokens(c);
  if (c->tokenizer) tokenizer_decode_more(c->tokenizer, s->tokens, count, !c->shows_special, out, NULL);
  if (c->stopped && out->len > c->cut) out->len = c->cut;
}

/* What is left to tell at the end: the calls, or the text that was kept back. */
static void write_rest(const struct generate_call *call, const struct choice *c, struct chat_told *told,
                       struct buf *content, bool *called, struct json_writer *w) {
  struct arena arena = ARENA_INIT;
  struct buf text = BUF_INIT;
  struct tool_calls calls = {0};
  whole_text(c, &text);
  if (tool_calls_parse(&calls, text.data ? text.data : "", text.len, &details_of(call)->names, &arena, NULL) == RC_OK) {
    const size_t sent = told->filter.sent;
    buf_clear(content);
    if (calls.content_len > sent) buf_append(content, calls.content + sent, calls.content_len - sent);
  }
  *called = calls.count > 0;
  if (content->len > 0) {
    json_key(w, "content");
    json_write_string_len(w, content->data, content->len);
  }
  if (*called) write_calls(call, c, &calls, true, w);
  buf_free(&text);
  arena_free(&arena);
}

/* Returns whether there is something in it. */
static bool write_delta(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                        bool *called, struct json_writer *w) {
  const struct chat_details *d = details_of(call);
  struct chat_told *told = &d->told[c->index];
  struct buf content = BUF_INIT;
  const bool begins = !told->role;
  bool any = begins || piece->last;
  *called = false;
  json_key(w, "delta");
  json_object_begin(w);
  if (begins) json_kv_string(w, "role", "assistant");
  told->role = true;
  if (d->tools) {
    const size_t sent = told->filter.sent;
    tool_filter_feed(&told->filter, piece->text ? piece->text : "", piece->len, &content);
    if (piece->last) told->filter.sent = sent; /* nothing of this piece has gone out: the rest is told at once */
  } else if (piece->text) {
    buf_append(&content, piece->text, piece->len);
  }
  any |= content.len > 0;
  if (d->tools && piece->last) {
    write_rest(call, c, told, &content, called, w);
  } else if (content.len > 0 || begins) {
    json_key(w, "content");
    json_write_string_len(w, content.data ? content.data : "", content.len);
  }
  json_object_end(w);
  buf_free(&content);
  return any;
}

static void write_event(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                        struct json_writer *w) {
  const struct openai_details *o = &details_of(call)->openai;
  const size_t before = w->out->len;
  const bool begins = !details_of(call)->told[c->index].role;
  bool called;
  begin_answer(call, "chat.completion.chunk", w);
  if (begins && o->return_token_ids) write_prompt_ids(call, w);
  json_key(w, "choices");
  json_array_begin(w);
  json_object_begin(w);
  json_kv_int(w, "index", c->index);
  const bool any = write_delta(call, c, piece, &called, w);
  write_logprobs(call, c, piece, w);
  write_finish(c, piece->last, called, w);
  stop_reason_write(call, c, piece->last, w);
  if (o->return_token_ids) json_kv_i32s(w, "token_ids", c->sample->tokens + piece->first, (size_t)piece->count);
  json_object_end(w);
  json_array_end(w);
  openai_write_event_usage(call, w);
  json_object_end(w);
  if (!any && !call->tells_tokens && !w->out->failed) w->out->len = before; /* kept back */
}

static void write_tail(const struct generate_call *call, struct json_writer *w) {
  if (!details_of(call)->openai.include_usage) return;
  begin_answer(call, "chat.completion.chunk", w);
  json_key(w, "choices");
  json_array_begin(w);
  json_array_end(w);
  openai_write_usage(call, w);
  json_object_end(w);
}

const struct generate_shape chat_shape = {
    .id_prefix = "chatcmpl-", .whole = write_whole, .event = write_event, .tail = write_tail};
