/* SGLang's wire: /generate, /model_info, /update_weights_from_disk, /weights_checker.
 *
 * Pure; the table is read by client.c.  Its log-probabilities are those of logits / temperature by default.  With
 * ignore_eos it would pass over stop ids too, so it is set only for a lease without any; a sample that ends at an
 * end-of-text id of the model that is no stop id of the lease is refused by engine_answer_check. */
#include <string.h>

#include "services/rollout-agent/engine/wire.h"

extern const struct engine_wire engine_sglang;

static void write_generate(struct buf *out, const struct engine_request *r) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "rid", r->id);
  json_kv_i32s(&w, "input_ids", r->token_ids.items, r->token_ids.count);
  json_kv_bool(&w, "return_logprob", true);
  json_kv_bool(&w, "stream", false);
  json_key(&w, "sampling_params");
  json_object_begin(&w);
  json_kv_int(&w, "n", 1);
  json_kv_int(&w, "max_new_tokens", r->max_new_tokens);
  json_kv_f32(&w, "temperature", r->temperature);
  json_kv_f64(&w, "top_p", 1);
  json_kv_int(&w, "top_k", -1);
  json_kv_f64(&w, "min_p", 0);
  json_kv_f64(&w, "repetition_penalty", 1);
  json_kv_f64(&w, "presence_penalty", 0);
  json_kv_f64(&w, "frequency_penalty", 0);
  json_kv_i32s(&w, "stop_token_ids", r->stop_token_ids.items, r->stop_token_ids.count);
  json_kv_bool(&w, "ignore_eos", r->stop_token_ids.count == 0);
  json_object_end(&w);
  json_object_end(&w);
}

/* [[log-probability, id, text or null], ...] */
static enum rc read_logprobs(struct engine_answer *out, const struct json *pairs, struct arena *arena,
                             struct err *err) {
  const size_t count = json_length(pairs);
  out->logprobs = (struct json_f32s){.items = arena_alloc(arena, count + 1, sizeof(float)), .count = count};
  if (!out->logprobs.items) return err_set(err, RC_NO_MEMORY, NULL, "%zu log-probabilities were refused memory", count);
  for (size_t i = 0; i < count; i++) {
    const struct json *pair = json_at(pairs, i), *value = json_at(pair, 0);
    int64_t id = -1;
    const bool number = json_type_of(pair) == JSON_ARRAY && json_length(pair) >= 2 &&
                        (json_type_of(value) == JSON_REAL || json_type_of(value) == JSON_INT);
    if (!number || !json_as_int(json_at(pair, 1), &id) || i >= out->token_ids.count || id != out->token_ids.items[i])
      return err_set(err, RC_INVALID, "meta_info.output_token_logprobs",
                     "expected the log-probability and the id of each token, got something else at token %zu", i);
    out->logprobs.items[i] = (float)json_number(value);
  }
  return RC_OK;
}

static enum rc read_generate(struct engine_answer *out, const struct json *body, struct arena *arena, struct err *err) {
  const struct json *meta = NULL;
  *out = (struct engine_answer){0};
  const struct json_field fields[] = {
      {.name = "output_ids",
       .kind = FIELD_I32_ARRAY,
       .target = &out->token_ids,
       .required = true,
       .max = LIMIT_VOCABULARY - 1,
       .count_max = LIMIT_NEW_TOKENS},
      {.name = "meta_info", .kind = FIELD_VALUE, .target = &meta, .required = true},
  };
  const enum rc rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
  if (rc != RC_OK) return rc;
  const struct json *pairs = json_get(meta, "output_token_logprobs");
  if (!pairs || json_type_of(pairs) != JSON_ARRAY)
    return err_set(err, RC_INVALID, "meta_info.output_token_logprobs", "expected log-probabilities, got none");
  out->finish = engine_finish(json_word(json_get(json_get(meta, "finish_reason"), "type")));
  engine_versions_read(out->version, json_get(meta, "weight_versions"));
  if (!out->version[0]) engine_version_read(out->version, json_get(meta, "weight_version")); /* an older server's */
  return read_logprobs(out, pairs, arena, err);
}

/* {"success", "message", "ranks", "per_engine_checksum"} */
static enum rc read_checksum(struct digest *out, const struct json *body, struct err *err) {
  const char *sum = json_word(json_get(body, "per_engine_checksum")), *message = json_word(json_get(body, "message"));
  if (!sum || !*sum)
    return err_set(err, RC_INVALID, "per_engine_checksum", "expected the engine's checksum, got none: %.200s",
                   message ? message : "");
  digest_of(out, sum, strlen(sum));
  return RC_OK;
}

const struct engine_wire engine_sglang = {
    .name = "sglang",
    .generate_path = "/generate",
    .write_generate = write_generate,
    .read_generate = read_generate,
    .version_paths = {"/model_info", "/get_model_info"},
    .checksum_path = "/weights_checker",
    .read_checksum = read_checksum,
    .load = {{.path = "/update_weights_from_disk",
              .body = "{\"model_path\":\"{path}\",\"weight_version\":\"{version}\",\"flush_cache\":true,\"abort_all_"
                      "requests\":false}"}},
    .logprobs_at_temperature = true,
};
