/* The parameter table: the one list of the model's tensors, in the order in which digests, checkpoints, gradients and
 * the optimizer walk them.
 *
 *   model.embed_tokens.weight [V,D]; per layer: input_layernorm [D], q_proj [H*E,D], k_proj [G*E,D], v_proj [G*E,D],
 *   q_norm [E], k_norm [E], o_proj [D,H*E], post_attention_layernorm [D], gate_proj [F,D], up_proj [F,D], down_proj
 *   [D,F]; model.norm [D]; lm_head [V,D] when untied.
 *
 * A layer of experts has mlp.gate [experts,D], the router, in place of the last three, and those three of each expert,
 * expert after expert.  A model has those of them that its family has (model_config_has); a projection's bias [N]
 * follows its weight, a norm of an output [D] the projection.  Where the family's files keep several parameters in one
 * tensor, their rows stand in it in table order, one below the other, so that a file's bytes are the same as if they
 * were apart.
 */
#ifndef LEASEHOLD_MODEL_NETWORK_PARAMS_H
#define LEASEHOLD_MODEL_NETWORK_PARAMS_H

#include "common/model/network/config.h"

struct param {
  char name[96]; /* transformers' name; of a fused tensor's part, the name that it would have apart */
  enum param_kind kind;
  int layer;      /* -1 outside layers */
  int expert;     /* -1 where it is none's */
  int rows, cols; /* vectors: rows = 1 */
  size_t offset;  /* of the first element in a flat array of all parameters; each starts at a multiple of 16 elements */
  size_t count;   /* rows * cols */
  /* Where files keep it: rows file_row .. file_row + rows - 1 of the tensor of this name, which has file_rows of them.
   * The parameters of one tensor follow each other; the first of them has file_row 0. */
  char file_name[96];
  int file_row, file_rows;
};

struct param_layer {
  int first;   /* index of its first parameter */
  bool sparse; /* has experts */
};

struct param_table {
  struct param *items;
  int count;
  size_t elements;           /* of the flat array, padding included */
  size_t parameters;         /* without padding */
  int layers;
  struct param_layer *in_layer; /* [layers] */
  int place[2][PARAM_KINDS]; /* among the parameters of a layer with an MLP, with experts; -1: none */
};

enum rc param_table_make(struct param_table *out, const struct model_config *config, struct err *err);
void param_table_free(struct param_table *t);
/* The first parameter in a file's tensor of this name; -1 when none is in it. */
int param_table_find(const struct param_table *t, const char *file_name);
/* -1 when the model has none; of an expert's kind the first expert's. */
int param_table_index(const struct param_table *t, enum param_kind kind, int layer);
/* The index of a parameter that each expert has, in a layer of experts. */
int param_table_expert(const struct param_table *t, enum param_kind kind, int layer, int expert);

#endif
