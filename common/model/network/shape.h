/* The letters of ops.h as sizes, for laying out arrays of T rows; not for use outside common/model. */
#ifndef LEASEHOLD_MODEL_NETWORK_SHAPE_H
#define LEASEHOLD_MODEL_NETWORK_SHAPE_H

#include <stddef.h>

#include "common/model/network/config.h"

struct shape {
  size_t T, D, F, H, G, HE, GE, V;
  size_t out; /* 1 where the outputs of attention and MLP are kept for their norms, else 0 */
  size_t experts, chosen, FE; /* of layers of experts: how many there are, that a row takes, and their width */
  size_t wide, mlp;           /* the widest MLP; gate, up and h of a row, in the layer that has most of them */
};

/* Whether some layer has an MLP. */
static inline bool shape_has_mlp(const struct model_config *c) {
  for (int layer = 0; layer < c->layers; layer++)
    if (!model_config_sparse(c, layer)) return true;
  return false;
}

static inline struct shape shape_make(const struct model_config *c, int rows) {
  const size_t E = (size_t)c->head_dim;
  const size_t mlp = shape_has_mlp(c) ? (size_t)c->ffn : 0, FE = (size_t)c->expert_ffn, taken = (size_t)c->chosen * FE;
  return (struct shape){.T = (size_t)rows,
                        .D = (size_t)c->hidden,
                        .F = (size_t)c->ffn,
                        .H = (size_t)c->heads,
                        .G = (size_t)c->kv_heads,
                        .HE = (size_t)c->heads * E,
                        .GE = (size_t)c->kv_heads * E,
                        .V = (size_t)c->vocabulary,
                        .out = c->out_norms,
                        .experts = (size_t)c->experts,
                        .chosen = (size_t)c->chosen,
                        .FE = FE,
                        .wide = mlp > FE ? mlp : FE,
                        .mlp = mlp > taken ? mlp : taken};
}

#endif
