/* Writes the answers of vLLM's POST /inference/v1/generate: token ids, their log-probabilities in the form of the chat
 * API with ids beside them, and the versions of the weights that each token was drawn from.  On the replier's
 * or the streamer's thread.
 *
 * Previous hop of a plain request: replier.c or streamer.c.  Next: the HTTP layer. */
#include "services/generation-server/shapes/vllm_answer.h"

#include "services/generation-server/shapes/openai_fields.h"
#include "services/generation-server/shapes/prompt_logprobs.h"
#include "services/generation-server/shapes/shown_token.h"
#include "services/generation-server/shapes/stop_reason.h"
#include "services/generation-server/shapes/vllm_request.h"

static const struct vllm_details *details_of(const struct generate_call *call) { return call->details; }

/* Runs of one version among tokens [first, first + count); positions are the answer's. */
static void write_versions(const struct sample *s, int32_t first, int32_t count, struct json_writer *w) {
  json_key(w, "weight_versions");
  json_array_begin(w);
  for (int32_t at = first; at < first + count;) {
    int32_t end = at + 1;
    while (end < first + count && s->versions[end] == s->versions[at]) end++;
    json_object_begin(w);
    json_kv_int(w, "version", s->versions[at]);
    json_kv_int(w, "start", at);
    json_kv_int(w, "end", end);
    json_object_end(w);
    at = end;
  }
  json_array_end(w);
}

static void write_choice(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                         struct json_writer *w) {
  const int32_t k = c->sample->job->top_count, top = details_of(call)->top;
  json_object_begin(w);
  json_kv_int(w, "index", c->index);
  json_kv_i32s(w, "token_ids", c->sample->tokens + piece->first, (size_t)piece->count);
  json_key(w, "logprobs");
  if (details_of(call)->logprobs) {
    json_object_begin(w);
    json_key(w, "content");
    shown_tokens_write(call, c->sample, piece->first, piece->count, top < k ? top : k, SHOWN_RANKED, w);
    json_object_end(w);
  } else {
    json_write_null(w);
  }
  json_kv_string(w, "finish_reason", piece->last ? finish_reason_name(choice_finish(c)) : NULL);
  stop_reason_write(call, c, piece->last, w);
  write_versions(c->sample, piece->first, piece->count, w);
  json_object_end(w);
}

static void write_prompt_logprobs(const struct generate_call *call, struct json_writer *w) {
  json_key(w, "prompt_logprobs");
  if (details_of(call)->prompt_logprobs)
    prompt_logprobs_write(call, call->jobs[0], details_of(call)->prompt_top, w);
  else
    json_write_null(w);
}

/* The prompt as it came, for who asked for it. */
static void write_prompt_ids(const struct generate_call *call, struct json_writer *w) {
  const struct decode_job *job = call->jobs[0];
  if (details_of(call)->return_token_ids)
    json_kv_i32s(w, "prompt_token_ids", job->prompt, (size_t)job->prompt_count);
}

static void begin_answer(const struct generate_call *call, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "request_id", call->id);
  json_kv_string(w, "output_mode", "tokens");
  json_key(w, "choices");
  json_array_begin(w);
}

static enum rc write_whole(struct generate_call *call, struct choice_scratch *m, struct json_writer *w,
                           struct err *err) {
  begin_answer(call, w);
  for (int i = 0; i < call->choice_count; i++) {
    struct choice_piece piece;
    const enum rc rc = choice_take(&piece, &call->choices[i], 0, 0, m, err);
    if (rc != RC_OK) return rc;
    write_choice(call, &call->choices[i], &piece, w);
  }
  json_array_end(w);
  json_kv_string(w, "model", openai_model_name(call));
  json_kv_int(w, "created", call->created_ms / 1000);
  openai_write_usage(call, w);
  write_prompt_ids(call, w);
  write_prompt_logprobs(call, w);
  json_key(w, "kv_transfer_params");
  json_write_null(w);
  json_object_end(w);
  return RC_OK;
}

static void write_event(const struct generate_call *call, const struct choice *c, const struct choice_piece *piece,
                        struct json_writer *w) {
  begin_answer(call, w);
  write_choice(call, c, piece, w);
  json_array_end(w);
  if (piece->begins) {
    write_prompt_ids(call, w);
    write_prompt_logprobs(call, w);
  }
  json_object_end(w);
}

static void write_tail(const struct generate_call *call, struct json_writer *w) { (void)call, (void)w; }

const struct generate_shape vllm_shape = {
    .id_prefix = "gen-", .whole = write_whole, .event = write_event, .tail = write_tail};
