/* The parameter table: the one list of the model's tensors, in the order in which digests, checkpoints, gradients and
 * the optimizer walk them.
 *
 *   model.embed_tokens.weight [V,D]; per layer: input_layernorm [D], q_proj [H*E,D], k_proj [G*E,D], v_proj [G*E,D], q_norm [E], k_norm [E],
 *   o_proj [D,H*E], post_attention_layernorm [D], gate_proj [F,D], up_proj [F,D], down_proj [D,F]; model.norm [D]; lm_head [V,D] when untied.
 */
#ifndef LEASEHOLD_MODEL_NETWORK_PARAMS_H
#define LEASEHOLD_MODEL_NETWORK_PARAMS_H

#include "common/model/network/config.h"

enum param_kind {
  PARAM_EMBED,
  PARAM_INPUT_NORM,
  PARAM_Q,
  PARAM_K,
  PARAM_V,
  PARAM_Q_NORM,
  PARAM_K_NORM,
  PARAM_O,
  PARAM_POST_NORM,
  PARAM_GATE,
  PARAM_UP,
  PARAM_DOWN,
  PARAM_FINAL_NORM,
  PARAM_HEAD
};

struct param {
  char name[96]; /* Hugging Face's name */
  enum param_kind kind;
  int layer;      /* -1 outside layers */
  int rows, cols; /* vectors: rows = 1 */
  size_t offset;  /* of the first element in a flat array of all parameters; each starts at a multiple of 16 elements */
  size_t count;   /* rows * cols */
};

struct param_table {
  struct param *items;
  int count;
  size_t elements;   /* of the flat array, padding included */
  size_t parameters; /* without padding */
};

enum rc param_table_make(struct param_table *out, const struct model_config *config, struct err *err);
void param_table_free(struct param_table *t);
/* -1 when there is none. */
int param_table_find(const struct param_table *t, const char *name);
int param_table_index(const struct param_table *t, enum param_kind kind, int layer);

#endif
