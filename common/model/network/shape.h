/* The letters of ops.h as sizes, for laying out arrays of T rows; not for use outside common/model. */
#ifndef LEASEHOLD_MODEL_NETWORK_SHAPE_H
#define LEASEHOLD_MODEL_NETWORK_SHAPE_H

#include <stddef.h>

#include "common/model/network/config.h"

struct shape {
  size_t T, D, F, H, G, HE, GE, V;
  size_t out; /* 1 where the outputs of attention and MLP are kept for their norms, else 0 */
};

static inline struct shape shape_make(const struct model_config *c, int rows) {
  const size_t E = (size_t)c->head_dim;
  return (struct shape){.T = (size_t)rows,
                        .D = (size_t)c->hidden,
                        .F = (size_t)c->ffn,
                        .H = (size_t)c->heads,
                        .G = (size_t)c->kv_heads,
                        .HE = (size_t)c->heads * E,
                        .GE = (size_t)c->kv_heads * E,
                        .V = (size_t)c->vocabulary,
                        .out = c->out_norms};
}

#endif
