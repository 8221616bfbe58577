/* The model's sizes, from a Hugging Face config.json (model_type qwen3), checked for consistency and bounds. */
#ifndef LEASEHOLD_MODEL_NETWORK_CONFIG_H
#define LEASEHOLD_MODEL_NETWORK_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/rc.h"

struct model_config {
  int layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary;
  int positions_max; /* max_position_embeddings */
  float rms_eps;
  double rope_theta;
  float initializer_range;
  bool tied; /* tie_word_embeddings */
  int32_t eos[LIMIT_STOP_TOKENS];
  int eos_count; /* from config.json, then generation_config.json when present */
};

enum rc model_config_parse(struct model_config *out, const char *json, size_t len, struct err *err);
/* Adds the eos_token_id of a generation_config.json. */
enum rc model_config_add_generation(struct model_config *config, const char *json, size_t len, struct err *err);
/* dir/config.json, and dir/generation_config.json's eos_token_id when there is one. */
enum rc model_config_load(struct model_config *out, const char *dir, struct err *err);

#endif
