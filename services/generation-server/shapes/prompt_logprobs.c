/* Writes the log-probabilities of a prompt's tokens. */
#include "services/generation-server/shapes/prompt_logprobs.h"

#include <stdio.h>

#include "services/generation-server/shapes/shown_token.h"

static void write_token(const struct generate_call *call, int32_t token, float logprob, int64_t rank,
                        struct json_writer *w) {
  char key[16];
  struct buf shown = BUF_INIT;
  snprintf(key, sizeof key, "%d", token);
  shown_token(call, token, &shown);
  json_key(w, key);
  json_object_begin(w);
  json_kv_f32(w, "logprob", logprob);
  json_kv_int(w, "rank", rank);
  json_key(w, "decoded_token");
  json_write_string_len(w, shown.data ? shown.data : "", shown.len);
  json_object_end(w);
  buf_free(&shown);
}

void prompt_logprobs_write(const struct generate_call *call, const struct decode_job *job, int32_t top,
                           struct json_writer *w) {
  const int32_t k = job->top_count;
  json_array_begin(w);
  for (int32_t i = 0; i < job->prompt_count; i++) {
    if (!(job->prompt_logprobs[i] <= 0)) {
      json_write_null(w);
      continue;
    }
    json_object_begin(w);
    write_token(call, job->prompt[i], job->prompt_logprobs[i], job->prompt_ranks[i], w);
    for (int32_t j = 0; j < top; j++)
      if (job->prompt_top_tokens[i * k + j] != job->prompt[i])
        write_token(call, job->prompt_top_tokens[i * k + j], job->prompt_top_logprobs[i * k + j], j + 1, w);
    json_object_end(w);
  }
  json_array_end(w);
}
