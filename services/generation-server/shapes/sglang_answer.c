/* Writes the answers of SGLang's POST /generate.
 *
 *   one prompt, n 1:  {"text", "output_ids", "meta_info"}
 *   otherwise:        an array of them, the choices of a prompt beside each other
 *
 * A stream's chunks are such objects too, each of one choice as far as it has come ("index" says which).  They hold all
 * of it from the first token on, so chunks of a long answer come further apart: together they stay within a few hundred
 * times the answer.  On the replier's or the streamer's thread.
 *
 * Previous hop of a plain request: replier.c or streamer.c.  Next: the HTTP layer. */
#include "services/generation-server/shapes/sglang_answer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "common/base/clock.h"
#include "common/base/utf8.h"
#include "services/generation-server/shapes/sglang_request.h"
#include "services/generation-server/shapes/shown_token.h"
#include "services/generation-server/shapes/stop_reason.h"

enum { CHUNKS_APART = 256 }; /* a chunk comes with every token up to here, then this many for each doubling */

/* One choice while it is told. */
struct told {
  const struct generate_call *call;
  const struct sglang_details *details;
  const struct sglang_item *item;
  const struct choice *choice;
  const struct decode_job *job;
  int32_t count; /* tokens of it */
  bool last;     /* nothing comes after them */
};

static struct told told_of(const struct generate_call *call, const struct choice *c, bool last) {
  const struct sglang_details *d = call->details;
  const int per_prompt = call->choice_count / call->job_count;
  const struct sglang_item *item = &d->items[c->index / per_prompt];
  return (struct told){.call = call,
                       .details = d,
                       .item = item,
                       .choice = c,
                       .job = c->sample->job,
                       .count = c->told,
                       .last = last};
}

/* --- text --- */

/* A token that ends its sample is no part of the text, as a stop text is none. */
static int32_t tokens_of_text(const struct told *t) {
  const bool ends = t->count > 0 && sample_stops_at(t->job, t->choice->sample->tokens[t->count - 1]);
  return ends && !t->choice->stopped && !t->item->keeps_stop ? t->count - 1 : t->count;
}

/* Bytes that may still belong to a character or a stop text are told later: clients cut what they have off the next
 * event's text. */
static void write_text(const struct told *t, struct json_writer *w) {
  struct buf text = BUF_INIT;
  const struct choice *c = t->choice;
  json_key(w, "text");
  if (!c->tokenizer ||
      tokenizer_decode_more(c->tokenizer, c->sample->tokens, (size_t)tokens_of_text(t), !c->shows_special, &text,
                            NULL) != RC_OK ||
      text.failed) {
    json_write_null(w);
  } else {
    const size_t len = text.len < c->sent ? text.len : c->sent;
    json_write_string_len(w, text.data ? text.data : "", t->last || len == 0 ? len : utf8_whole(text.data, len));
  }
  buf_free(&text);
}

/* --- log-probabilities --- */

static void write_pair(const struct told *t, float logprob, int32_t token, struct json_writer *w) {
  struct buf shown = BUF_INIT;
  json_array_begin(w);
  json_write_f32(w, logprob); /* NaN, of a prompt's first token, becomes null */
  json_write_int(w, token);
  if (t->details->texts) {
    shown_token(t->call, token, &shown);
    json_write_string_len(w, shown.data ? shown.data : "", shown.len);
  } else {
    json_write_null(w);
  }
  json_array_end(w);
  buf_free(&shown);
}

static void write_pairs(const struct told *t, const float *logprobs, const int32_t *tokens, int32_t count,
                        struct json_writer *w) {
  json_array_begin(w);
  for (int32_t i = 0; i < count; i++) write_pair(t, logprobs[i], tokens[i], w);
  json_array_end(w);
}

/* The first of the prompt's tokens that are told has none, wherever it stands. */
static void write_of_prompt(const struct told *t, struct json_writer *w) {
  const struct decode_job *job = t->job;
  const int32_t start = t->item->logprob_start < 0 ? job->prompt_count : t->item->logprob_start, k = job->top_count;
  json_key(w, "input_token_logprobs");
  json_array_begin(w);
  for (int32_t i = start; i < job->prompt_count; i++)
    write_pair(t, i == start ? (float)NAN : job->prompt_logprobs[i], job->prompt[i], w);
  json_array_end(w);
  if (k == 0) return;
  json_key(w, "input_top_logprobs");
  json_array_begin(w);
  for (int32_t i = start; i < job->prompt_count; i++) {
    if (i == start)
      json_write_null(w);
    else
      write_pairs(t, job->prompt_top_logprobs + i * k, job->prompt_top_tokens + i * k, k, w);
  }
  json_array_end(w);
}

static void write_of_tokens(const struct told *t, struct json_writer *w) {
  const struct sample *s = t->choice->sample;
  const int32_t k = t->job->top_count;
  json_key(w, "output_token_logprobs");
  write_pairs(t, s->logprobs, s->tokens, t->count, w);
  if (k == 0) return;
  json_key(w, "output_top_logprobs");
  json_array_begin(w);
  for (int32_t i = 0; i < t->count; i++) write_pairs(t, s->top_logprobs + i * k, s->top_tokens + i * k, k, w);
  json_array_end(w);
}

/* --- meta_info --- */

static void write_finish(const struct told *t, struct json_writer *w) {
  json_key(w, "finish_reason");
  if (!t->last) {
    json_write_null(w);
    return;
  }
  const enum finish_reason finish = choice_finish(t->choice);
  json_object_begin(w);
  json_kv_string(w, "type", finish_reason_name(finish));
  if (finish == FINISH_LENGTH) {
    json_kv_int(w, "length", t->choice->only_prompt ? 0 : t->job->max_new);
  } else if (finish == FINISH_ABORT) {
    json_kv_string(w, "message", "it was ended before its last token");
  } else {
    json_key(w, "matched");
    if (t->choice->stopped)
      stop_text_write(t->choice, w);
    else
      json_write_int(w, t->choice->sample->tokens[t->count - 1]);
  }
  json_object_end(w);
}

/* Versions are texts to SGLang. */
static void write_name(const char *key, int64_t version, struct json_writer *w) {
  char name[24];
  snprintf(name, sizeof name, "%" PRId64, version);
  json_kv_string(w, key, name);
}

/* Runs of one version among the tokens, as positions [start, end). */
static void write_versions(const struct told *t, struct json_writer *w) {
  const int64_t *versions = t->choice->sample->versions;
  json_key(w, "weight_versions");
  json_array_begin(w);
  for (int32_t at = 0; at < t->count;) {
    int32_t end = at + 1;
    while (end < t->count && versions[end] == versions[at]) end++;
    json_object_begin(w);
    write_name("version", versions[at], w);
    json_kv_int(w, "start", at);
    json_kv_int(w, "end", end);
    json_object_end(w);
    at = end;
  }
  json_array_end(w);
}

/* Of the last token, or of what decodes now where there is none. */
static void write_version(const struct told *t, struct json_writer *w) {
  struct policy active = {0};
  if (t->count == 0) engine_policy(t->call->loaded->engine, &active);
  write_name("weight_version", t->count > 0 ? t->choice->sample->versions[t->count - 1] : active.version, w);
}

static void write_choice(const struct told *t, struct json_writer *w) {
  json_object_begin(w);
  write_text(t, w);
  json_kv_i32s(w, "output_ids", t->choice->sample->tokens, (size_t)t->count);
  json_key(w, "meta_info");
  json_object_begin(w);
  json_kv_string(w, "id", t->item->id ? t->item->id : t->call->id);
  write_finish(t, w);
  json_kv_int(w, "prompt_tokens", t->job->prompt_count);
  json_kv_int(w, "completion_tokens", t->count);
  json_kv_int(w, "cached_tokens", 0);
  write_version(t, w);
  write_versions(t, w);
  if (t->last) json_kv_f64(w, "e2e_latency", (double)(clock_real_ms() - t->call->created_ms) / 1000);
  if (t->item->logprobs) {
    json_kv_int(w, "output_token_logprobs_length", t->count);
    write_of_prompt(t, w);
    write_of_tokens(t, w);
  }
  json_object_end(w);
  if (!t->last || t->call->stream) {
    if (t->call->choice_count > 1 || t->details->batch) json_kv_int(w, "index", t->choice->index);
  }
  json_object_end(w);
}

/* --- answers --- */

static enum rc write_whole(struct generate_call *call, struct choice_scratch *m, struct json_writer *w,
                           struct err *err) {
  const struct sglang_details *d = call->details;
  const bool several = d->batch || call->choice_count > 1;
  if (several) json_array_begin(w);
  for (int i = 0; i < call->choice_count; i++) {
    struct choice_piece piece;
    const enum rc rc = choice_take(&piece, &call->choices[i], 0, 0, m, err);
    if (rc != RC_OK) return rc;
    const struct told t = told_of(call, &call->choices[i], true);
    write_choice(&t, w);
  }
  if (several) json_array_end(w);
  return RC_OK;
}

static void write_event(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                        struct json_writer *w) {
  const struct told t = told_of(call, c, piece->last);
  int32_t *before = &t.item->told[c->sample - t.job->samples];
  if (!t.last && (t.count == 0 || t.count - *before <= *before / CHUNKS_APART)) return;
  *before = t.count;
  write_choice(&t, w);
}

static void write_tail(const struct generate_call *call, struct json_writer *w) { (void)call, (void)w; }

const struct generate_shape sglang_shape = {
    .id_prefix = "gen-", .whole = write_whole, .event = write_event, .tail = write_tail};
