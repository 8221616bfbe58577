/* Reads from a Hugging Face config.json what the forward pass needs to know about a model: its sizes, and the facts in
 * which families differ (family.h), resolved and checked for consistency and bounds. */
#ifndef LEASEHOLD_MODEL_NETWORK_CONFIG_H
#define LEASEHOLD_MODEL_NETWORK_CONFIG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/limits.h"
#include "common/base/rc.h"
#include "common/model/network/family.h"

enum { CONFIG_LAYERS_MAX = 1024, CONFIG_CHOSEN_MAX = 64 };

/* How the rotation's frequencies differ from theta^(-2i/E); rope.h computes them. */
enum rope_kind {
  ROPE_PLAIN,
  ROPE_LINEAR, /* each divided by factor */
  ROPE_LLAMA3, /* low ones divided by factor, smoothly */
  ROPE_YARN    /* low ones divided by factor along a ramp; cosines and sines times attention_factor */
};
struct rope_scaling {
  enum rope_kind kind;
  double factor;
  double low_freq_factor, high_freq_factor;      /* llama3 */
  double beta_fast, beta_slow, attention_factor; /* yarn */
  bool truncate;                                 /* yarn: the ramp begins and ends at whole numbers */
  int original_positions;                        /* llama3, yarn: the context that the model was trained with first */
};

struct model_config {
  int layers, hidden, heads, kv_heads, head_dim, ffn, vocabulary;
  int positions_max; /* max_position_embeddings */
  float rms_eps;
  double rope_theta;
  struct rope_scaling rope;
  float initializer_range;
  bool tied;                       /* tie_word_embeddings */
  bool plus_one;                   /* norms multiply by 1 + w */
  bool out_norms;                  /* what attention and MLP add to the residual goes through a norm */
  bool gelu;                       /* GeGLU instead of SwiGLU */
  bool root_embedding;             /* embeddings are multiplied by the root of hidden */
  float query_scalar;              /* scores are divided by its root; 0: head_dim */
  float scores_cap, logits_cap;    /* scores of attention, logits: softly capped, by tanh, at these; 0: not */
  double rope_local_theta;         /* of sliding layers, whose rotation is plain; 0: they rotate as all do */
  bool head_norms;                 /* an RMS norm of each head of q and k, before the rotation */
  bool qkv_bias, o_bias, mlp_bias; /* of q, k and v; of o; of gate, up and down */
  /* A row of a sliding layer attends to the last `window` positions up to its own; 0: no layer slides. */
  int window;
  uint64_t sliding[CONFIG_LAYERS_MAX / 64]; /* a bit for each layer */
  /* Layers of experts: a router's softmax chooses `chosen` of `experts` MLPs of width expert_ffn for each row, whose
   * outputs are added, weighted by its probabilities. */
  int experts, chosen, expert_ffn;
  bool normalizes_chosen;                /* the chosen ones' probabilities are divided by their sum */
  uint64_t sparse[CONFIG_LAYERS_MAX / 64]; /* a bit for each layer of experts; the others have an MLP */
  const struct fused_tensor *fused;         /* [FUSED_MAX] of the family, or NULL */
  int32_t eos[LIMIT_STOP_TOKENS];
  int eos_count; /* from config.json, generation_config.json when present, and the tokenizer's where it is added */
};

/* The layer's window, 0: it attends to all positions up to the row's own. */
static inline int model_config_window(const struct model_config *c, int layer) {
  return c->sliding[layer / 64] >> (layer % 64) & 1 ? c->window : 0;
}
/* Whether the layer has experts instead of an MLP. */
static inline bool model_config_sparse(const struct model_config *c, int layer) {
  return c->sparse[layer / 64] >> (layer % 64) & 1;
}
/* Whether the model has parameters of this kind, in its layers that are sparse or those that are not, or outside of
 * layers. */
bool model_config_has(const struct model_config *c, enum param_kind kind, bool sparse);

enum rc model_config_parse(struct model_config *out, const char *json, size_t len, struct err *err);
/* Adds the eos_token_id of a generation_config.json. */
enum rc model_config_add_generation(struct model_config *config, const char *json, size_t len, struct err *err);
/* Adds an id below the vocabulary's size that ends samples too, unless it is there or the list is full. */
void model_config_add_eos(struct model_config *config, int32_t id);
/* dir/config.json, and dir/generation_config.json's eos_token_id when there is one. */
enum rc model_config_load(struct model_config *out, const char *dir, struct err *err);

#endif
