/* Judges what an engine answered, and writes the bodies of a load.  Pure; called by client.c and worker/sampling.c. */
#include "services/rollout-agent/engine/wire.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum finish_reason engine_finish(const char *name) {
  if (name && strcmp(name, "stop") == 0) return FINISH_STOP;
  if (name && strcmp(name, "length") == 0) return FINISH_LENGTH;
  return FINISH_ABORT;
}

void engine_version_read(char out[ENGINE_VERSION_MAX], const struct json *value) {
  const char *word = value ? json_word(value) : NULL;
  int64_t number;
  if (word)
    snprintf(out, ENGINE_VERSION_MAX, "%s", word);
  else if (value && json_as_int(value, &number))
    snprintf(out, ENGINE_VERSION_MAX, "%" PRId64, number);
  else
    out[0] = '\0';
}

void engine_versions_read(char out[ENGINE_VERSION_MAX], const struct json *spans) {
  out[0] = '\0';
  for (size_t i = 0; i < json_length(spans); i++) {
    char name[ENGINE_VERSION_MAX];
    engine_version_read(name, json_get(json_at(spans, i), "version"));
    const bool same = i == 0 || strcmp(name, out) == 0;
    snprintf(out, ENGINE_VERSION_MAX, "%s", same ? name : "several");
    if (!same) return;
  }
}

static bool stops_at(const struct engine_request *r, int32_t token) {
  for (size_t i = 0; i < r->stop_token_ids.count; i++)
    if (r->stop_token_ids.items[i] == token) return true;
  return false;
}

enum rc engine_answer_check(const struct engine_answer *a, const struct engine_request *r, struct err *err) {
  const size_t n = a->token_ids.count;
  if (a->finish == FINISH_ABORT)
    return err_set(err, RC_UNAVAILABLE, "finish_reason", "the engine ended the request before its time");
  if (n < 1 || n > (size_t)r->max_new_tokens || a->logprobs.count != n)
    return err_set(err, RC_INVALID, "token_ids", "expected 1 to %d tokens, got %zu and %zu log-probabilities",
                   r->max_new_tokens, n, a->logprobs.count);
  for (size_t i = 0; i < n; i++) {
    if (a->token_ids.items[i] < 0)
      return err_set(err, RC_INVALID, "token_ids", "expected ids, got %d", a->token_ids.items[i]);
    if (!isfinite(a->logprobs.items[i]) || a->logprobs.items[i] > 0)
      return err_set(err, RC_INVALID, "logprobs",
                     "expected finite log-probabilities of at most 0, got %.9g at token %zu",
                     (double)a->logprobs.items[i], i);
    if (i + 1 < n && stops_at(r, a->token_ids.items[i]))
      return err_set(err, RC_INVALID, "token_ids", "token %zu of %zu is the stop token %d", i, n,
                     a->token_ids.items[i]);
  }
  const bool stopped = stops_at(r, a->token_ids.items[n - 1]);
  if (a->finish == FINISH_STOP && !stopped)
    return err_set(err, RC_INVALID, "finish_reason",
                   "the sample stopped at token %d, which is no stop token of the lease", a->token_ids.items[n - 1]);
  if (a->finish == FINISH_LENGTH && (stopped || n != (size_t)r->max_new_tokens))
    return err_set(err, RC_INVALID, "finish_reason", "the sample ended by length after %zu of %d tokens%s", n,
                   r->max_new_tokens, stopped ? ", at a stop token" : "");
  return RC_OK;
}

static void put_string(struct buf *out, const char *text) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_write_string(&w, text);
}

void engine_call_body(struct buf *out, const struct engine_call *call, const char *path, const char *version) {
  static const char path_mark[] = "\"{path}\"", version_mark[] = "\"{version}\"";
  for (const char *at = call->body ? call->body : ""; *at;) {
    if (strncmp(at, path_mark, sizeof path_mark - 1) == 0) {
      put_string(out, path);
      at += sizeof path_mark - 1;
    } else if (strncmp(at, version_mark, sizeof version_mark - 1) == 0) {
      put_string(out, version);
      at += sizeof version_mark - 1;
    } else {
      buf_append(out, at++, 1);
    }
  }
}
