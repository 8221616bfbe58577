/* Reads Hugging Face's config.json of a qwen3 model.
 *
 * Unknown keys are tolerated (every release of transformers adds some); keys that would change the arithmetic
 * (another activation, biases, sliding windows, scaled rope) are refused when the forward pass does not support their
 * values, so that a model never loads and silently computes something else. */
#include "common/model/network/config.h"

#include <stdio.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/file.h"
#include "common/json/json.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* The fields as they stand in the file, before checks between them. */
struct raw_config {
  const char *model_type, *activation;
  int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, positions;
  double rms_eps, rope_theta, initializer_range;
  bool tied, attention_bias, sliding;
  const struct json *rope_scaling, *rope_parameters, *eos;
};

static enum rc read_fields(struct raw_config *raw, const struct json *root, struct arena *arena, struct err *err) {
  const struct json_field fields[] = {
      {.name = "model_type", .kind = FIELD_STRING, .target = &raw->model_type, .required = true, .min = 1, .max = 64},
      {.name = "hidden_act", .kind = FIELD_STRING, .target = &raw->activation, .min = 1, .max = 64},
      {.name = "num_hidden_layers", .kind = FIELD_I32, .target = &raw->layers, .required = true, .min = 1, .max = 1024},
      {.name = "hidden_size", .kind = FIELD_I32, .target = &raw->hidden, .required = true, .min = 1, .max = 65536},
      {.name = "num_attention_heads",
       .kind = FIELD_I32,
       .target = &raw->heads,
       .required = true,
       .min = 1,
       .max = 1024},
      {.name = "num_key_value_heads",
       .kind = FIELD_I32,
       .target = &raw->kv_heads,
       .required = true,
       .min = 1,
       .max = 1024},
      {.name = "head_dim", .kind = FIELD_I32, .target = &raw->head_dim, .min = 2, .max = 512},
      {.name = "intermediate_size", .kind = FIELD_I32, .target = &raw->ffn, .required = true, .min = 1, .max = 262144},
      {.name = "vocab_size",
       .kind = FIELD_I32,
       .target = &raw->vocabulary,
       .required = true,
       .min = 2,
       .max = LIMIT_VOCABULARY},
      {.name = "max_position_embeddings",
       .kind = FIELD_I32,
       .target = &raw->positions,
       .required = true,
       .min = 1,
       .max = 1 << 24},
      {.name = "rms_norm_eps", .kind = FIELD_F64, .target = &raw->rms_eps, .min = 1e-12, .max = 1},
      {.name = "rope_theta", .kind = FIELD_F64, .target = &raw->rope_theta, .min = 1, .max = 1e12},
      {.name = "initializer_range", .kind = FIELD_F64, .target = &raw->initializer_range, .min = 1e-9, .max = 10},
      {.name = "tie_word_embeddings", .kind = FIELD_BOOL, .target = &raw->tied},
      {.name = "attention_bias", .kind = FIELD_BOOL, .target = &raw->attention_bias},
      {.name = "use_sliding_window", .kind = FIELD_BOOL, .target = &raw->sliding},
      {.name = "rope_scaling", .kind = FIELD_VALUE, .target = &raw->rope_scaling},
      {.name = "rope_parameters", .kind = FIELD_VALUE, .target = &raw->rope_parameters},
      {.name = "eos_token_id", .kind = FIELD_VALUE, .target = &raw->eos},
  };
  return json_fields(root, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
}

/* transformers 5 writes {"rope_theta": ..., "rope_type": "default"} instead of the plain key; both places say the
 * type. */
static enum rc read_rope(struct raw_config *raw, const struct json *rope, const char *field, struct arena *arena,
                         struct err *err) {
  if (!rope || json_type_of(rope) == JSON_NULL) return RC_OK;
  if (json_type_of(rope) != JSON_OBJECT)
    return err_set(err, RC_INVALID, field, "expected an object or null, got %s", json_type_name(json_type_of(rope)));
  const char *type = "default";
  const struct json_field fields[] = {
      {.name = "rope_type", .kind = FIELD_STRING, .target = &type, .min = 1, .max = 64},
      {.name = "type", .kind = FIELD_STRING, .target = &type, .min = 1, .max = 64},
      {.name = "rope_theta", .kind = FIELD_F64, .target = &raw->rope_theta, .min = 1, .max = 1e12},
  };
  const enum rc rc = json_fields(rope, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
  if (rc != RC_OK) {
    err_in_field(err, field);
    return rc;
  }
  if (strcmp(type, "default") != 0)
    return err_set(err, RC_UNSUPPORTED, field, "expected plain rope (\"default\"), got \"%s\"", type);
  return RC_OK;
}

static enum rc check_arithmetic(const struct raw_config *raw, struct err *err) {
  if (strcmp(raw->model_type, "qwen3") != 0)
    return err_set(err, RC_UNSUPPORTED, "model_type", "expected \"qwen3\", got \"%s\"", raw->model_type);
  if (strcmp(raw->activation, "silu") != 0)
    return err_set(err, RC_UNSUPPORTED, "hidden_act", "expected \"silu\", got \"%s\"", raw->activation);
  if (raw->attention_bias)
    return err_set(err, RC_UNSUPPORTED, "attention_bias", "expected false: projections have no biases here");
  if (raw->sliding)
    return err_set(err, RC_UNSUPPORTED, "use_sliding_window",
                   "expected false: attention covers the whole context here");
  if (raw->heads % raw->kv_heads != 0)
    return err_set(err, RC_INVALID, "num_key_value_heads", "expected a divisor of num_attention_heads %d, got %d",
                   raw->heads, raw->kv_heads);
  if (raw->head_dim % 2 != 0)
    return err_set(err, RC_INVALID, "head_dim", "expected an even number (rope rotates pairs), got %d", raw->head_dim);
  if ((int64_t)raw->heads * raw->head_dim > 1 << 20)
    return err_set(err, RC_INVALID, "head_dim", "expected num_attention_heads x head_dim up to %d, got %d x %d",
                   1 << 20, raw->heads, raw->head_dim);
  return RC_OK;
}

static enum rc add_eos(struct model_config *out, int64_t id, struct err *err) {
  if (id < 0 || id >= out->vocabulary)
    return err_set(err, RC_INVALID, "eos_token_id", "expected ids below the vocabulary's %d, got %lld", out->vocabulary,
                   (long long)id);
  for (int i = 0; i < out->eos_count; i++)
    if (out->eos[i] == (int32_t)id) return RC_OK;
  if (out->eos_count == LIMIT_STOP_TOKENS)
    return err_set(err, RC_INVALID, "eos_token_id", "expected at most %d different ids", LIMIT_STOP_TOKENS);
  out->eos[out->eos_count++] = (int32_t)id;
  return RC_OK;
}

/* An integer, an array of integers, or null. */
static enum rc read_eos(struct model_config *out, const struct json *eos, struct err *err) {
  if (!eos || json_type_of(eos) == JSON_NULL) return RC_OK;
  if (json_type_of(eos) == JSON_INT) return add_eos(out, json_int(eos), err);
  if (json_type_of(eos) != JSON_ARRAY)
    return err_set(err, RC_INVALID, "eos_token_id", "expected an integer, an array of integers or null, got %s",
                   json_type_name(json_type_of(eos)));
  for (size_t i = 0; i < json_length(eos); i++) {
    const struct json *item = json_at(eos, i);
    if (json_type_of(item) != JSON_INT)
      return err_set(err, RC_INVALID, "eos_token_id", "expected integers, item %zu is %s", i,
                     json_type_name(json_type_of(item)));
    const enum rc rc = add_eos(out, json_int(item), err);
    if (rc != RC_OK) return rc;
  }
  return RC_OK;
}

enum rc model_config_parse(struct model_config *out, const char *json, size_t len, struct err *err) {
  *out = (struct model_config){0};
  /* Defaults are those of transformers' Qwen3Config. */
  struct raw_config raw = {
      .activation = "silu", .head_dim = 128, .rms_eps = 1e-6, .rope_theta = 10000, .initializer_range = 0.02};
  struct arena arena = ARENA_INIT;
  struct json *root = NULL;
  enum rc rc = json_parse(&root, json, len, CONFIG_BYTES_MAX, err);
  if (rc != RC_OK) goto out;
  rc = read_fields(&raw, root, &arena, err);
  if (rc != RC_OK) goto out;
  rc = read_rope(&raw, raw.rope_parameters, "rope_parameters", &arena, err);
  if (rc != RC_OK) goto out;
  rc = read_rope(&raw, raw.rope_scaling, "rope_scaling", &arena, err);
  if (rc != RC_OK) goto out;
  rc = check_arithmetic(&raw, err);
  if (rc != RC_OK) goto out;
  *out = (struct model_config){.layers = raw.layers,
                               .hidden = raw.hidden,
                               .heads = raw.heads,
                               .kv_heads = raw.kv_heads,
                               .head_dim = raw.head_dim,
                               .ffn = raw.ffn,
                               .vocabulary = raw.vocabulary,
                               .positions_max = raw.positions,
                               .rms_eps = (float)raw.rms_eps,
                               .rope_theta = raw.rope_theta,
                               .initializer_range = (float)raw.initializer_range,
                               .tied = raw.tied};
  rc = read_eos(out, raw.eos, err);
out:
  json_free(root);
  arena_free(&arena);
  return rc;
}

enum rc model_config_add_generation(struct model_config *config, const char *json, size_t len, struct err *err) {
  struct json *root = NULL;
  enum rc rc = json_parse(&root, json, len, CONFIG_BYTES_MAX, err);
  if (rc == RC_OK && json_type_of(root) != JSON_OBJECT)
    rc = err_set(err, RC_INVALID, NULL, "expected an object, got %s", json_type_name(json_type_of(root)));
  if (rc == RC_OK) rc = read_eos(config, json_get(root, "eos_token_id"), err);
  json_free(root);
  return rc;
}

enum rc model_config_load(struct model_config *out, const char *dir, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct buf bytes = BUF_INIT;
  if (snprintf(path, sizeof path, "%s/generation_config.json", dir) >= (int)sizeof path)
    return err_set(err, RC_INVALID, NULL, "expected a model folder's path of fewer than %d bytes", LIMIT_PATH_MAX - 32);
  const bool generation = file_exists(path);
  snprintf(path, sizeof path, "%s/config.json", dir);
  enum rc rc = file_read(&bytes, path, CONFIG_BYTES_MAX, err);
  if (rc == RC_OK) rc = model_config_parse(out, bytes.data, bytes.len, err);
  if (rc == RC_OK && generation) {
    buf_clear(&bytes);
    snprintf(path, sizeof path, "%s/generation_config.json", dir);
    rc = file_read(&bytes, path, CONFIG_BYTES_MAX, err);
    if (rc == RC_OK) rc = model_config_add_generation(out, bytes.data, bytes.len, err);
  }
  if (rc != RC_OK) err_in_file(err, path);
  buf_free(&bytes);
  return rc;
}
