/* The table of families: which norms, biases, windows and tensors a model_type has (family.h).
 *
 * A family whose arithmetic is not computed as transformers does has no row, so that config.c refuses it by name: a
 * model never loads and silently computes something else. */
#include "common/model/network/family.h"

#include <string.h>

#define FAMILY_LIST "qwen3, qwen3_moe, qwen2, llama, mistral, phi3, gemma2, gemma3_text"

static const struct family FAMILIES[] = {
    {.model_type = "qwen3",
     .head_norms = true,
     .biases = BIASES_CONFIGURED,
     .window = WINDOW_WHEN_USED,
     .head_dim = 128,
     .kv_heads = 32,
     .sliding_window = 4096,
     .window_from = 28,
     .rms_eps = 1e-6f},
    {.model_type = "qwen3_moe",
     .head_norms = true,
     .experts = true,
     .biases = BIASES_CONFIGURED,
     .window = WINDOW_ALL_WHEN_USED,
     .kv_heads = 4,
     .sliding_window = 4096,
     .rms_eps = 1e-6f},
    {.model_type = "qwen2",
     .biases = BIASES_QKV,
     .window = WINDOW_WHEN_USED,
     .kv_heads = 32,
     .sliding_window = 4096,
     .window_from = 28,
     .rms_eps = 1e-6f},
    {.model_type = "llama", .biases = BIASES_CONFIGURED, .mlp_biases = true, .rms_eps = 1e-6f},
    {.model_type = "mistral", .window = WINDOW_LISTED, .kv_heads = 8, .sliding_window = 4096, .rms_eps = 1e-6f},
    {.model_type = "phi3",
     .plain_rope = true,
     .window = WINDOW_EVERYWHERE,
     .fused = {{"self_attn.qkv_proj.weight", PARAM_Q, PARAM_V}, {"mlp.gate_up_proj.weight", PARAM_GATE, PARAM_UP}},
     .rms_eps = 1e-5f},
    {.model_type = "gemma2",
     .plus_one = true,
     .out_norms = true,
     .gelu = true,
     .root_embedding = true,
     .query_scalar = true,
     .soft_caps = true,
     .biases = BIASES_CONFIGURED,
     .window = WINDOW_PATTERN,
     .window_pattern = 2,
     .head_dim = 256,
     .kv_heads = 4,
     .sliding_window = 4096,
     .scores_cap = 50,
     .logits_cap = 30,
     .rms_eps = 1e-6f,
     .tied = true},
    {.model_type = "gemma3_text",
     .head_norms = true,
     .plus_one = true,
     .out_norms = true,
     .gelu = true,
     .root_embedding = true,
     .local_rope = true,
     .query_scalar = true,
     .biases = BIASES_CONFIGURED,
     .window = WINDOW_PATTERN,
     .window_pattern = 6,
     .head_dim = 256,
     .kv_heads = 4,
     .sliding_window = 4096,
     .rms_eps = 1e-6f,
     .rope_theta = 1e6,
     .tied = true},
};

const struct family *family_find(const char *model_type) {
  for (size_t i = 0; i < sizeof FAMILIES / sizeof FAMILIES[0]; i++)
    if (strcmp(FAMILIES[i].model_type, model_type) == 0) return &FAMILIES[i];
  return NULL;
}

const char *family_list(void) { return FAMILY_LIST; }

const char *param_kind_name(enum param_kind kind, bool out_norms) {
  static const char *const names[PARAM_KINDS] = {
      [PARAM_EMBED] = "model.embed_tokens.weight",
      [PARAM_INPUT_NORM] = "input_layernorm.weight",
      [PARAM_Q] = "self_attn.q_proj.weight",
      [PARAM_Q_BIAS] = "self_attn.q_proj.bias",
      [PARAM_K] = "self_attn.k_proj.weight",
      [PARAM_K_BIAS] = "self_attn.k_proj.bias",
      [PARAM_V] = "self_attn.v_proj.weight",
      [PARAM_V_BIAS] = "self_attn.v_proj.bias",
      [PARAM_Q_NORM] = "self_attn.q_norm.weight",
      [PARAM_K_NORM] = "self_attn.k_norm.weight",
      [PARAM_O] = "self_attn.o_proj.weight",
      [PARAM_O_BIAS] = "self_attn.o_proj.bias",
      [PARAM_ATTENTION_OUT_NORM] = "post_attention_layernorm.weight",
      [PARAM_POST_NORM] = "post_attention_layernorm.weight",
      [PARAM_ROUTER] = "mlp.gate.weight",
      [PARAM_EXPERT_GATE] = "gate_proj.weight",
      [PARAM_EXPERT_UP] = "up_proj.weight",
      [PARAM_EXPERT_DOWN] = "down_proj.weight",
      [PARAM_GATE] = "mlp.gate_proj.weight",
      [PARAM_GATE_BIAS] = "mlp.gate_proj.bias",
      [PARAM_UP] = "mlp.up_proj.weight",
      [PARAM_UP_BIAS] = "mlp.up_proj.bias",
      [PARAM_DOWN] = "mlp.down_proj.weight",
      [PARAM_DOWN_BIAS] = "mlp.down_proj.bias",
      [PARAM_MLP_OUT_NORM] = "post_feedforward_layernorm.weight",
      [PARAM_FINAL_NORM] = "model.norm.weight",
      [PARAM_HEAD] = "lm_head.weight",
  };
  return out_norms && kind == PARAM_POST_NORM ? "pre_feedforward_layernorm.weight" : names[kind];
}

bool param_kind_is_norm(enum param_kind kind) {
  return kind == PARAM_INPUT_NORM || kind == PARAM_Q_NORM || kind == PARAM_K_NORM || kind == PARAM_POST_NORM ||
         kind == PARAM_ATTENTION_OUT_NORM || kind == PARAM_MLP_OUT_NORM || kind == PARAM_FINAL_NORM;
}

bool param_kind_is_bias(enum param_kind kind) {
  return kind == PARAM_Q_BIAS || kind == PARAM_K_BIAS || kind == PARAM_V_BIAS || kind == PARAM_O_BIAS ||
         kind == PARAM_GATE_BIAS || kind == PARAM_UP_BIAS || kind == PARAM_DOWN_BIAS;
}

bool param_kind_is_of_expert(enum param_kind kind) {
  return kind == PARAM_EXPERT_GATE || kind == PARAM_EXPERT_UP || kind == PARAM_EXPERT_DOWN;
}
