/* vLLM's wire: /inference/v1/generate, and the routes of its development mode (VLLM_SERVER_DEV_MODE=1).
 *
 * Pure; the table is read by client.c.  Weights are loaded by the worker's reload_weights, or by /update_weights with a
 * folder, as prime-rl's server has it; the server is paused meanwhile, and its prefix cache is emptied.  The default of
 * its log-probabilities is that of the raw logits.  End-of-text ids of the model end nothing (ignore_eos): those of the
 * lease do, as stop ids. */
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "services/rollout-agent/engine/wire.h"

extern const struct engine_wire engine_vllm;

static void write_generate(struct buf *out, const struct engine_request *r) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "request_id", r->id);
  if (r->model) json_kv_string(&w, "model", r->model);
  json_kv_i32s(&w, "token_ids", r->token_ids.items, r->token_ids.count);
  json_kv_bool(&w, "stream", false);
  json_key(&w, "sampling_params");
  json_object_begin(&w);
  json_kv_int(&w, "n", 1);
  json_kv_int(&w, "max_tokens", r->max_new_tokens);
  json_kv_f32(&w, "temperature", r->temperature);
  json_kv_f64(&w, "top_p", 1);
  json_kv_int(&w, "top_k", -1);
  json_kv_f64(&w, "min_p", 0);
  json_kv_f64(&w, "repetition_penalty", 1);
  json_kv_f64(&w, "presence_penalty", 0);
  json_kv_f64(&w, "frequency_penalty", 0);
  json_kv_i32s(&w, "stop_token_ids", r->stop_token_ids.items, r->stop_token_ids.count);
  json_kv_bool(&w, "ignore_eos", true);
  json_kv_int(&w, "logprobs", 1);
  json_kv_bool(&w, "detokenize", false);
  json_object_end(&w);
  json_object_end(&w);
}

static enum rc read_logprobs(struct json_f32s *out, const struct json *content, struct arena *arena, struct err *err) {
  const size_t count = json_length(content);
  *out = (struct json_f32s){.items = arena_alloc(arena, count + 1, sizeof *out->items), .count = count};
  if (!out->items) return err_set(err, RC_NO_MEMORY, NULL, "%zu log-probabilities were refused memory", count);
  for (size_t i = 0; i < count; i++) {
    double value = 0;
    const struct json_field field = {.name = "logprob", .kind = FIELD_F64, .target = &value, .required = true};
    const enum rc rc = json_fields(json_at(content, i), &field, 1, UNKNOWN_IGNORED, arena, err);
    if (rc != RC_OK) return rc;
    out->items[i] = (float)value;
  }
  return RC_OK;
}

static enum rc read_generate(struct engine_answer *out, const struct json *body, struct arena *arena, struct err *err) {
  const struct json *choices = json_get(body, "choices"), *choice = json_at(choices, 0), *content;
  *out = (struct engine_answer){0};
  if (json_type_of(choices) != JSON_ARRAY || json_length(choices) != 1 || json_type_of(choice) != JSON_OBJECT)
    return err_set(err, RC_INVALID, "choices", "expected an array of one choice, got %s of %zu",
                   json_type_name(json_type_of(choices)), json_length(choices));
  const struct json_field field = {.name = "token_ids",
                                   .kind = FIELD_I32_ARRAY,
                                   .target = &out->token_ids,
                                   .required = true,
                                   .max = LIMIT_VOCABULARY - 1,
                                   .count_max = LIMIT_NEW_TOKENS};
  enum rc rc = json_fields(choice, &field, 1, UNKNOWN_IGNORED, arena, err);
  if (rc != RC_OK) return rc;
  content = json_get(json_get(choice, "logprobs"), "content");
  if (!content || json_type_of(content) != JSON_ARRAY)
    return err_set(err, RC_INVALID, "logprobs", "expected log-probabilities of %zu tokens, got none",
                   out->token_ids.count);
  rc = read_logprobs(&out->logprobs, content, arena, err);
  out->finish = engine_finish(json_word(json_get(choice, "finish_reason")));
  engine_versions_read(out->version, json_get(choice, "weight_versions"));
  return rc;
}

/* {"checksums": {key: hex}}: a digest over the pairs, in the order of their keys. */
static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

static enum rc read_checksum(struct digest *out, const struct json *body, struct err *err) {
  const struct json *sums = json_get(body, "checksums"), *value;
  const size_t count = json_length(sums);
  if (!sums || json_type_of(sums) != JSON_OBJECT || count == 0)
    return err_set(err, RC_INVALID, "checksums", "expected checksums by tensor, got none");
  struct arena arena = ARENA_INIT;
  struct digest_state s;
  const char *key;
  void *cursor = NULL;
  char **lines = arena_alloc(&arena, count, sizeof *lines);
  enum rc rc = lines ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "%zu checksums were refused memory", count);
  for (size_t i = 0; rc == RC_OK && i < count && json_next(sums, &cursor, &key, &value); i++) {
    const char *hex = json_word(value);
    const size_t size = strlen(key) + (hex ? strlen(hex) : 0) + 2;
    if (!hex) {
      rc = err_set(err, RC_INVALID, "checksums", "expected a text for each tensor, got none for %.80s", key);
    } else if (!(lines[i] = arena_alloc_bytes(&arena, size))) {
      rc = err_set(err, RC_NO_MEMORY, NULL, "%zu checksums were refused memory", count);
    } else {
      snprintf(lines[i], size, "%s=%s", key, hex);
    }
  }
  if (rc == RC_OK) {
    qsort(lines, count, sizeof *lines, by_text);
    digest_begin(&s);
    for (size_t i = 0; i < count; i++) digest_update_text(&s, lines[i]);
    digest_end(out, &s);
  }
  arena_free(&arena);
  return rc;
}

const struct engine_wire engine_vllm = {
    .name = "vllm",
    .generate_path = "/inference/v1/generate",
    .write_generate = write_generate,
    .read_generate = read_generate,
    .version_paths = {"/weight_info"},
    .checksum_path = "/weight_checker",
    .read_checksum = read_checksum,
    .load = {{.path = "/pause?mode=wait&clear_cache=true"},
             {.path = "/collective_rpc",
              .body = "{\"method\":\"reload_weights\",\"kwargs\":{\"weights_path\":\"{path}\"}}",
              .or_next = true},
             {.path = "/update_weights", .body = "{\"weight_dir\":\"{path}\"}"},
             {.path = "/update_weight_version", .body = "{\"new_version\":\"{version}\"}", .optional = true},
             {.path = "/resume", .always = true}},
};
