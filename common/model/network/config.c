/* Reads Hugging Face's config.json and resolves what the families differ in.
 *
 * Unknown keys are tolerated (every release of transformers adds some); keys that would change the arithmetic
 * (another activation, another rotation, quantized weights) are refused by name, with the list of what is supported, so
 * that a model never loads and silently computes something else. */
#include "common/model/network/config.h"

#include <stdio.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/file.h"
#include "common/json/json.h"
#include "common/model/network/elementary.h"

enum { CONFIG_BYTES_MAX = 1 << 20 };

/* The fields as they stand in the file, before checks between them. */
struct raw_config {
  const struct family *family;
  const char *activation;
  int32_t layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary, positions, original_positions;
  int32_t sliding_window, window_from, window_pattern;
  int32_t experts, chosen, expert_ffn, sparse_step;
  double rms_eps, rope_theta, rope_local_theta, initializer_range, rotated_share, query_scalar, scores_cap, logits_cap;
  bool tied, attention_bias, mlp_bias, use_sliding_window, bidirectional, normalizes_chosen;
  const struct json *mlp_only_layers;
  const struct json *rope_scaling, *rope_parameters, *eos, *layer_types, *quantization;
};

static bool is_null(const struct json *root, const char *name) {
  const struct json *v = json_get(root, name);
  return v && json_type_of(v) == JSON_NULL;
}

static enum rc read_family(struct raw_config *raw, const struct json *root, struct arena *arena, struct err *err) {
  const char *model_type = NULL;
  const struct json_field field = {
      .name = "model_type", .kind = FIELD_STRING, .target = &model_type, .required = true, .min = 1, .max = 64};
  const enum rc rc = json_fields(root, &field, 1, UNKNOWN_IGNORED, arena, err);
  if (rc != RC_OK) return rc;
  const struct family *f = family_find(model_type);
  if (!f)
    return err_set(err, RC_UNSUPPORTED, "model_type", "expected one of %s, got \"%s\"", family_list(), model_type);
  *raw = (struct raw_config){.family = f,
                             .activation = f->gelu ? "gelu_pytorch_tanh" : "silu",
                             .head_dim = f->head_dim,
                             .kv_heads = f->kv_heads,
                             .sliding_window = f->sliding_window,
                             .window_from = f->window_from,
                             .rms_eps = (double)f->rms_eps,
                             .rope_theta = f->rope_theta > 0 ? f->rope_theta : 10000,
                             .rope_local_theta = f->local_rope ? 10000 : 0,
                             .window_pattern = f->window_pattern,
                             .scores_cap = (double)f->scores_cap,
                             .logits_cap = (double)f->logits_cap,
                             .query_scalar = f->query_scalar ? 256 : 0,
                             .tied = f->tied,
                             .experts = f->experts ? 128 : 0,
                             .chosen = 8,
                             .expert_ffn = 768,
                             .sparse_step = 1,
                             .initializer_range = 0.02,
                             .rotated_share = 1};
  return RC_OK;
}

static enum rc read_fields(struct raw_config *raw, const struct json *root, struct arena *arena, struct err *err) {
  const struct json_field fields[] = {
      {.name = raw->family->gelu ? "hidden_activation" : "hidden_act",
       .kind = FIELD_STRING,
       .target = &raw->activation,
       .min = 1,
       .max = 64},
      {.name = "num_hidden_layers",
       .kind = FIELD_I32,
       .target = &raw->layers,
       .required = true,
       .min = 1,
       .max = CONFIG_LAYERS_MAX},
      {.name = "hidden_size", .kind = FIELD_I32, .target = &raw->hidden, .required = true, .min = 1, .max = 65536},
      {.name = "num_attention_heads",
       .kind = FIELD_I32,
       .target = &raw->heads,
       .required = true,
       .min = 1,
       .max = 1024},
      {.name = "num_key_value_heads", .kind = FIELD_I32, .target = &raw->kv_heads, .min = 1, .max = 1024},
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
      {.name = "original_max_position_embeddings",
       .kind = FIELD_I32,
       .target = &raw->original_positions,
       .min = 1,
       .max = 1 << 24},
      {.name = "rms_norm_eps", .kind = FIELD_F64, .target = &raw->rms_eps, .min = 1e-12, .max = 1},
      {.name = "rope_theta", .kind = FIELD_F64, .target = &raw->rope_theta, .min = 1, .max = 1e12},
      {.name = "partial_rotary_factor", .kind = FIELD_F64, .target = &raw->rotated_share},
      {.name = "initializer_range", .kind = FIELD_F64, .target = &raw->initializer_range, .min = 1e-9, .max = 10},
      {.name = "tie_word_embeddings", .kind = FIELD_BOOL, .target = &raw->tied},
      {.name = "attention_bias", .kind = FIELD_BOOL, .target = &raw->attention_bias},
      {.name = "mlp_bias", .kind = FIELD_BOOL, .target = &raw->mlp_bias},
      {.name = "use_sliding_window", .kind = FIELD_BOOL, .target = &raw->use_sliding_window},
      {.name = "sliding_window", .kind = FIELD_I32, .target = &raw->sliding_window, .min = 1, .max = INT32_MAX},
      {.name = "max_window_layers", .kind = FIELD_I32, .target = &raw->window_from, .min = 0, .max = INT32_MAX},
      {.name = "sliding_window_pattern", .kind = FIELD_I32, .target = &raw->window_pattern, .min = 1, .max = INT32_MAX},
      {.name = "rope_local_base_freq", .kind = FIELD_F64, .target = &raw->rope_local_theta, .min = 1, .max = 1e12},
      {.name = "query_pre_attn_scalar", .kind = FIELD_F64, .target = &raw->query_scalar, .min = 1e-3, .max = 1e6},
      {.name = "use_bidirectional_attention", .kind = FIELD_BOOL, .target = &raw->bidirectional},
      {.name = "num_experts", .kind = FIELD_I32, .target = &raw->experts, .min = 0, .max = LIMIT_EXPERTS},
      {.name = "num_local_experts", .kind = FIELD_I32, .target = &raw->experts, .min = 0, .max = LIMIT_EXPERTS},
      {.name = "num_experts_per_tok", .kind = FIELD_I32, .target = &raw->chosen, .min = 1, .max = CONFIG_CHOSEN_MAX},
      {.name = "moe_intermediate_size", .kind = FIELD_I32, .target = &raw->expert_ffn, .min = 1, .max = 262144},
      {.name = "decoder_sparse_step", .kind = FIELD_I32, .target = &raw->sparse_step, .min = 1, .max = INT32_MAX},
      {.name = "norm_topk_prob", .kind = FIELD_BOOL, .target = &raw->normalizes_chosen},
      {.name = "mlp_only_layers", .kind = FIELD_VALUE, .target = &raw->mlp_only_layers},
      {.name = "layer_types", .kind = FIELD_VALUE, .target = &raw->layer_types},
      {.name = "rope_scaling", .kind = FIELD_VALUE, .target = &raw->rope_scaling},
      {.name = "rope_parameters", .kind = FIELD_VALUE, .target = &raw->rope_parameters},
      {.name = "quantization_config", .kind = FIELD_VALUE, .target = &raw->quantization},
      {.name = "eos_token_id", .kind = FIELD_VALUE, .target = &raw->eos},
  };
  return json_fields(root, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
}

/* --- the rotation --- */

/* What one of the two places says; numbers are 0 where it says nothing. */
struct raw_rope {
  const char *type;
  double factor, low_freq_factor, high_freq_factor, beta_fast, beta_slow, attention_factor, mscale, mscale_all_dim;
  int32_t original_positions;
  bool truncate;
};

static enum rc missing(const char *what, const char *type, struct err *err) {
  return err_set(err, RC_INVALID, what, "expected a number: rope_type is \"%s\"", type);
}

static double yarn_scale(double factor, double mscale) {
  return factor <= 1 ? 1 : 0.1 * mscale * elementary_log(factor) + 1;
}

/* transformers' formulas. */
static enum rc resolve_yarn(struct rope_scaling *out, const struct raw_rope *r, int positions, double theta,
                            struct err *err) {
  out->kind = ROPE_YARN;
  if (r->factor == 0) out->factor = (double)positions / out->original_positions;
  if (out->factor <= 0) return missing("factor", r->type, err);
  if (theta <= 1) return err_set(err, RC_INVALID, "rope_theta", "expected a number above 1 with yarn, got %g", theta);
  out->beta_fast = r->beta_fast > 0 ? r->beta_fast : 32;
  out->beta_slow = r->beta_slow > 0 ? r->beta_slow : 1;
  out->truncate = r->truncate;
  if (r->attention_factor > 0)
    out->attention_factor = r->attention_factor;
  else if (r->mscale > 0 && r->mscale_all_dim > 0)
    out->attention_factor = yarn_scale(out->factor, r->mscale) / yarn_scale(out->factor, r->mscale_all_dim);
  else
    out->attention_factor = yarn_scale(out->factor, 1);
  return RC_OK;
}

static enum rc resolve_rope(struct rope_scaling *out, const struct raw_rope *r, const struct raw_config *raw,
                            struct err *err) {
  *out = (struct rope_scaling){.factor = r->factor,
                               .low_freq_factor = r->low_freq_factor,
                               .high_freq_factor = r->high_freq_factor,
                               .original_positions = raw->original_positions ? raw->original_positions
                                                     : r->original_positions ? r->original_positions
                                                                             : raw->positions};
  if (raw->family->plain_rope && strcmp(r->type, "default") != 0)
    return err_set(err, RC_UNSUPPORTED, "rope_type",
                   "expected default, got \"%s\": this family's other rotation is longrope, which is not computed here",
                   r->type);
  /* "dynamic" changes nothing within max_position_embeddings, and longer contexts are not served. */
  if (strcmp(r->type, "default") == 0 || strcmp(r->type, "dynamic") == 0) return RC_OK;
  if (strcmp(r->type, "linear") == 0) {
    out->kind = ROPE_LINEAR;
    return r->factor > 0 ? RC_OK : missing("factor", r->type, err);
  }
  if (strcmp(r->type, "llama3") == 0) {
    out->kind = ROPE_LLAMA3;
    if (r->factor <= 0) return missing("factor", r->type, err);
    if (r->low_freq_factor <= 0) return missing("low_freq_factor", r->type, err);
    if (r->high_freq_factor <= r->low_freq_factor)
      return err_set(err, RC_INVALID, "high_freq_factor", "expected a number above low_freq_factor %g, got %g",
                     r->low_freq_factor, r->high_freq_factor);
    return RC_OK;
  }
  if (strcmp(r->type, "yarn") == 0) return resolve_yarn(out, r, raw->positions, raw->rope_theta, err);
  return err_set(err, RC_UNSUPPORTED, "rope_type", "expected one of default, linear, dynamic, llama3, yarn, got \"%s\"",
                 r->type);
}

static enum rc read_rope_fields(struct raw_rope *r, struct raw_config *raw, const struct json *rope,
                                struct arena *arena, struct err *err) {
  const struct json_field fields[] = {
      {.name = "type", .kind = FIELD_STRING, .target = &r->type, .min = 1, .max = 64},
      {.name = "rope_type", .kind = FIELD_STRING, .target = &r->type, .min = 1, .max = 64},
      {.name = "rope_theta", .kind = FIELD_F64, .target = &raw->rope_theta, .min = 1, .max = 1e12},
      {.name = "partial_rotary_factor", .kind = FIELD_F64, .target = &raw->rotated_share},
      {.name = "factor", .kind = FIELD_F64, .target = &r->factor, .min = 1e-3, .max = 1e6},
      {.name = "low_freq_factor", .kind = FIELD_F64, .target = &r->low_freq_factor, .min = 1e-6, .max = 1e6},
      {.name = "high_freq_factor", .kind = FIELD_F64, .target = &r->high_freq_factor, .min = 1e-6, .max = 1e6},
      {.name = "beta_fast", .kind = FIELD_F64, .target = &r->beta_fast, .min = 0, .max = 1e6},
      {.name = "beta_slow", .kind = FIELD_F64, .target = &r->beta_slow, .min = 0, .max = 1e6},
      {.name = "attention_factor", .kind = FIELD_F64, .target = &r->attention_factor, .min = 1e-3, .max = 1e3},
      {.name = "mscale", .kind = FIELD_F64, .target = &r->mscale, .min = 0, .max = 1e3},
      {.name = "mscale_all_dim", .kind = FIELD_F64, .target = &r->mscale_all_dim, .min = 0, .max = 1e3},
      {.name = "truncate", .kind = FIELD_BOOL, .target = &r->truncate},
      {.name = "original_max_position_embeddings",
       .kind = FIELD_I32,
       .target = &r->original_positions,
       .min = 1,
       .max = 1 << 24},
  };
  return json_fields(rope, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
}

/* The rotation of sliding layers where they have one of their own, which is plain. */
static enum rc read_local_rope(struct raw_config *raw, const struct json *local, struct arena *arena, struct err *err) {
  const char *type = "default";
  const struct json_field fields[] = {
      {.name = "rope_type", .kind = FIELD_STRING, .target = &type, .min = 1, .max = 64},
      {.name = "rope_theta", .kind = FIELD_F64, .target = &raw->rope_local_theta, .min = 1, .max = 1e12},
  };
  if (!local || json_type_of(local) == JSON_NULL) return RC_OK;
  enum rc rc = json_fields(local, fields, sizeof fields / sizeof fields[0], UNKNOWN_IGNORED, arena, err);
  if (rc == RC_OK && strcmp(type, "default") != 0)
    rc = err_set(err, RC_UNSUPPORTED, "rope_type", "expected \"default\" in sliding layers, got \"%s\"", type);
  if (rc != RC_OK) err_in_field(err, "sliding_attention");
  return rc;
}

/* transformers 5 writes rope_parameters with the theta in it instead of rope_theta and rope_scaling; both places say
 * the type. */
static enum rc read_rope(struct rope_scaling *out, struct raw_config *raw, const struct json *rope, const char *field,
                         struct arena *arena, struct err *err) {
  if (!rope || json_type_of(rope) == JSON_NULL) return RC_OK;
  if (json_type_of(rope) != JSON_OBJECT)
    return err_set(err, RC_INVALID, field, "expected an object or null, got %s", json_type_name(json_type_of(rope)));
  struct raw_rope r = {.type = "default", .truncate = true};
  const struct json *full = json_get(rope, "full_attention"), *local = json_get(rope, "sliding_attention");
  enum rc rc = RC_OK;
  if ((full || local) && raw->family->local_rope)
    rc = read_local_rope(raw, local, arena, err);
  else if (full || local)
    rc = err_set(err, RC_UNSUPPORTED, "full_attention", "expected one rotation for all layers");
  if (rc == RC_OK && full && json_type_of(full) != JSON_OBJECT)
    rc = err_set(err, RC_INVALID, "full_attention", "expected an object, got %s", json_type_name(json_type_of(full)));
  if (rc == RC_OK) rc = read_rope_fields(&r, raw, full ? full : rope, arena, err);
  if (rc == RC_OK) rc = resolve_rope(out, &r, raw, err);
  if (rc != RC_OK) err_in_field(err, field);
  return rc;
}

/* --- windows --- */

static void slide(struct model_config *out, int layer) { out->sliding[layer / 64] |= 1ull << (layer % 64); }

/* ["full_attention", "sliding_attention", ..], one for each layer. */
static enum rc read_layer_types(struct model_config *out, const struct json *types, struct err *err) {
  if (json_type_of(types) != JSON_ARRAY || json_length(types) != (size_t)out->layers)
    return err_set(err, RC_INVALID, "layer_types", "expected an array of %d strings", out->layers);
  for (int i = 0; i < out->layers; i++) {
    const char *type = json_word(json_at(types, (size_t)i));
    if (type && strcmp(type, "sliding_attention") == 0)
      slide(out, i);
    else if (!type || strcmp(type, "full_attention") != 0)
      return err_set(err, RC_UNSUPPORTED, "layer_types",
                     "layer %d: expected \"full_attention\" or \"sliding_attention\", got \"%s\"", i,
                     type ? type : "?");
  }
  return RC_OK;
}

static enum rc read_windows(struct model_config *out, const struct raw_config *raw, const struct json *root,
                            struct err *err) {
  const bool none = is_null(root, "sliding_window");
  const bool listed = raw->layer_types && json_type_of(raw->layer_types) != JSON_NULL;
  const enum family_window kind = raw->family->window;
  if (kind == WINDOW_PATTERN && none)
    return err_set(err, RC_INVALID, "sliding_window", "expected a number: some layers slide");
  if (kind == WINDOW_NEVER || none || raw->sliding_window == 0) return RC_OK;
  const bool everywhere =
      kind == WINDOW_EVERYWHERE || kind == WINDOW_ALL_WHEN_USED || (kind == WINDOW_LISTED && !listed);
  if ((kind == WINDOW_WHEN_USED || kind == WINDOW_ALL_WHEN_USED) && !raw->use_sliding_window) return RC_OK;
  out->window = raw->sliding_window;
  if (!everywhere && listed) return read_layer_types(out, raw->layer_types, err);
  if (kind == WINDOW_PATTERN) {
    for (int i = 0; i < out->layers; i++)
      if ((i + 1) % raw->window_pattern != 0) slide(out, i);
    return RC_OK;
  }
  for (int i = everywhere ? 0 : raw->window_from; i < out->layers; i++) slide(out, i);
  return RC_OK;
}

/* --- experts --- */

/* null, or an array of the layers that have an MLP whatever decoder_sparse_step says. */
static enum rc drop_mlp_layers(struct model_config *out, const struct json *layers, struct err *err) {
  if (!layers || json_type_of(layers) == JSON_NULL) return RC_OK;
  if (json_type_of(layers) != JSON_ARRAY)
    return err_set(err, RC_INVALID, "mlp_only_layers", "expected an array of layers or null, got %s",
                   json_type_name(json_type_of(layers)));
  for (size_t i = 0; i < json_length(layers); i++) {
    const struct json *item = json_at(layers, i);
    if (json_type_of(item) != JSON_INT)
      return err_set(err, RC_INVALID, "mlp_only_layers", "expected integers, item %zu is %s", i,
                     json_type_name(json_type_of(item)));
    const int64_t layer = json_int(item);
    if (layer >= 0 && layer < out->layers) out->sparse[layer / 64] &= ~(1ull << (layer % 64));
  }
  return RC_OK;
}

static enum rc read_experts(struct model_config *out, const struct raw_config *raw, struct err *err) {
  if (!raw->family->experts || raw->experts == 0) return RC_OK;
  if (raw->chosen > raw->experts)
    return err_set(err, RC_INVALID, "num_experts_per_tok", "expected at most num_experts %d, got %d", raw->experts,
                   raw->chosen);
  for (int i = 0; i < out->layers; i++)
    if ((i + 1) % raw->sparse_step == 0) out->sparse[i / 64] |= 1ull << (i % 64);
  const enum rc rc = drop_mlp_layers(out, raw->mlp_only_layers, err);
  uint64_t any = 0;
  for (size_t i = 0; i < sizeof out->sparse / sizeof out->sparse[0]; i++) any |= out->sparse[i];
  if (rc != RC_OK || any == 0) return rc;
  out->experts = raw->experts;
  out->chosen = raw->chosen;
  out->expert_ffn = raw->expert_ffn;
  out->normalizes_chosen = raw->normalizes_chosen;
  return RC_OK;
}

/* --- checks --- */

static enum rc check_arithmetic(const struct raw_config *raw, struct err *err) {
  const char *activation = raw->family->gelu ? "gelu_pytorch_tanh" : "silu";
  if (strcmp(raw->activation, activation) != 0)
    return err_set(err, RC_UNSUPPORTED, raw->family->gelu ? "hidden_activation" : "hidden_act",
                   "expected \"%s\", got \"%s\"", activation, raw->activation);
  if (raw->bidirectional)
    return err_set(err, RC_UNSUPPORTED, "use_bidirectional_attention",
                   "expected false: rows attend to earlier ones here");
  if (raw->quantization && json_type_of(raw->quantization) != JSON_NULL)
    return err_set(err, RC_UNSUPPORTED, "quantization_config", "expected none: quantized weights are not read");
  if (raw->rotated_share != 1)
    return err_set(err, RC_UNSUPPORTED, "partial_rotary_factor", "expected 1: whole heads are rotated here, got %g",
                   raw->rotated_share);
  if (raw->heads % raw->kv_heads != 0)
    return err_set(err, RC_INVALID, "num_key_value_heads", "expected a divisor of num_attention_heads %d, got %d",
                   raw->heads, raw->kv_heads);
  if (raw->head_dim < 2 || raw->head_dim % 2 != 0)
    return err_set(err, RC_INVALID, "head_dim", "expected an even number (rope rotates pairs), got %d", raw->head_dim);
  if ((int64_t)raw->heads * raw->head_dim > 1 << 20)
    return err_set(err, RC_INVALID, "head_dim", "expected num_attention_heads x head_dim up to %d, got %d x %d",
                   1 << 20, raw->heads, raw->head_dim);
  return RC_OK;
}

/* A positive number, or null: not capped. */
static enum rc read_cap(double *out, const struct json *root, const char *name, bool supported, struct err *err) {
  const struct json *cap = json_get(root, name);
  if (!cap) return RC_OK;
  if (json_type_of(cap) == JSON_NULL) {
    *out = 0;
    return RC_OK;
  }
  if (!supported) return err_set(err, RC_UNSUPPORTED, name, "expected null: this family's are not capped here");
  const bool number = json_type_of(cap) == JSON_INT || json_type_of(cap) == JSON_REAL;
  *out = number ? json_number(cap) : 0;
  if (!(*out >= 1e-3 && *out <= 1e6))
    return err_set(err, RC_INVALID, name, "expected a number of 0.001 to 1000000, or null");
  return RC_OK;
}

static enum rc read_caps(struct raw_config *raw, const struct json *root, struct err *err) {
  const bool supported = raw->family->soft_caps;
  const enum rc rc = read_cap(&raw->scores_cap, root, "attn_logit_softcapping", supported, err);
  return rc == RC_OK ? read_cap(&raw->logits_cap, root, "final_logit_softcapping", supported, err) : rc;
}

bool model_config_has(const struct model_config *c, enum param_kind kind, bool sparse) {
  switch (kind) {
    case PARAM_ROUTER:
    case PARAM_EXPERT_GATE:
    case PARAM_EXPERT_UP:
    case PARAM_EXPERT_DOWN: return sparse;
    case PARAM_GATE:
    case PARAM_UP:
    case PARAM_DOWN: return !sparse;
    case PARAM_Q_NORM:
    case PARAM_K_NORM: return c->head_norms;
    case PARAM_Q_BIAS:
    case PARAM_K_BIAS:
    case PARAM_V_BIAS: return c->qkv_bias;
    case PARAM_O_BIAS: return c->o_bias;
    case PARAM_GATE_BIAS:
    case PARAM_UP_BIAS:
    case PARAM_DOWN_BIAS: return c->mlp_bias && !sparse;
    case PARAM_ATTENTION_OUT_NORM:
    case PARAM_MLP_OUT_NORM: return c->out_norms;
    case PARAM_HEAD: return !c->tied;
    default: return true;
  }
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

static void resolve(struct model_config *out, const struct raw_config *raw, const struct rope_scaling *rope) {
  const struct family *f = raw->family;
  const bool attention = f->biases == BIASES_CONFIGURED && raw->attention_bias;
  *out = (struct model_config){.layers = raw->layers,
                               .hidden = raw->hidden,
                               .heads = raw->heads,
                               .kv_heads = raw->kv_heads,
                               .head_dim = raw->head_dim,
                               .ffn = raw->ffn,
                               .vocabulary = raw->vocabulary,
                               .positions_max = raw->positions,
                               .rms_eps = (float)raw->rms_eps,
                               .rope_theta = raw->rope_theta,
                               .rope = *rope,
                               .initializer_range = (float)raw->initializer_range,
                               .tied = raw->tied,
                               .head_norms = f->head_norms,
                               .plus_one = f->plus_one,
                               .out_norms = f->out_norms,
                               .gelu = f->gelu,
                               .root_embedding = f->root_embedding,
                               .query_scalar = f->query_scalar ? (float)raw->query_scalar : 0,
                               .scores_cap = (float)raw->scores_cap,
                               .logits_cap = (float)raw->logits_cap,
                               .rope_local_theta = f->local_rope ? raw->rope_local_theta : 0,
                               .qkv_bias = attention || f->biases == BIASES_QKV,
                               .o_bias = attention,
                               .mlp_bias = f->mlp_biases && raw->mlp_bias,
                               .fused = f->fused[0].name ? f->fused : NULL};
}

enum rc model_config_parse(struct model_config *out, const char *json, size_t len, struct err *err) {
  *out = (struct model_config){0};
  struct raw_config raw = {0};
  struct rope_scaling rope = {0};
  struct arena arena = ARENA_INIT;
  struct json *root = NULL;
  enum rc rc = json_parse(&root, json, len, CONFIG_BYTES_MAX, err);
  if (rc == RC_OK) rc = read_family(&raw, root, &arena, err);
  if (rc == RC_OK) rc = read_fields(&raw, root, &arena, err);
  if (rc == RC_OK && is_null(root, "num_key_value_heads")) raw.kv_heads = 0; /* the default is another number */
  if (rc == RC_OK && raw.kv_heads == 0) raw.kv_heads = raw.heads;
  if (rc == RC_OK && raw.head_dim == 0) raw.head_dim = raw.hidden / raw.heads;
  if (rc == RC_OK) rc = read_rope(&rope, &raw, raw.rope_parameters, "rope_parameters", &arena, err);
  if (rc == RC_OK) rc = read_rope(&rope, &raw, raw.rope_scaling, "rope_scaling", &arena, err);
  if (rc == RC_OK) rc = check_arithmetic(&raw, err);
  if (rc == RC_OK) rc = read_caps(&raw, root, err);
  if (rc == RC_OK) {
    resolve(out, &raw, &rope);
    rc = read_windows(out, &raw, root, err);
  }
  if (rc == RC_OK) rc = read_experts(out, &raw, err);
  if (rc == RC_OK) rc = read_eos(out, raw.eos, err);
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

void model_config_add_eos(struct model_config *config, int32_t id) {
  if (config->eos_count < LIMIT_STOP_TOKENS) add_eos(config, id, NULL);
}

enum rc model_config_load(struct model_config *out, const char *dir, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct buf bytes = BUF_INIT;
  if (snprintf(path, sizeof path, "%s/generation_config.json", dir) >= (int)sizeof path)
    return err_set(err, RC_INVALID, NULL, "expected a model folder's path of fewer than %d bytes", LIMIT_PATH_MAX - 32);
  const bool generation = file_exists(path);
  snprintf(path, sizeof path, "%s/config.json", dir);
  enum rc rc = file_read(&bytes, path, CONFIG_BYTES_MAX, err);
  if (rc == RC_NOT_FOUND)
    return err_set(err, rc, NULL, "expected a Hugging Face folder, got '%s', which holds no config.json", dir);
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
