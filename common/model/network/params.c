/* Makes the parameter table, in the order in which digests, checkpoints, gradients and the optimizer walk it. */
#include "common/model/network/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYER_PARAMS = 11, ALIGN_ELEMENTS = 16 };

struct shape {
  int rows, cols;
};

static struct shape shape_of(enum param_kind kind, const struct model_config *c) {
  const int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
  switch (kind) {
    case PARAM_EMBED:
    case PARAM_HEAD: return (struct shape){c->vocabulary, c->hidden};
    case PARAM_Q: return (struct shape){q, c->hidden};
    case PARAM_K:
    case PARAM_V: return (struct shape){kv, c->hidden};
    case PARAM_Q_NORM:
    case PARAM_K_NORM: return (struct shape){1, c->head_dim};
    case PARAM_O: return (struct shape){c->hidden, q};
    case PARAM_GATE:
    case PARAM_UP: return (struct shape){c->ffn, c->hidden};
    case PARAM_DOWN: return (struct shape){c->hidden, c->ffn};
    case PARAM_INPUT_NORM:
    case PARAM_POST_NORM:
    case PARAM_FINAL_NORM: break;
  }
  return (struct shape){1, c->hidden};
}

static const char *const NAME[] = {
    [PARAM_EMBED] = "model.embed_tokens.weight",
    [PARAM_INPUT_NORM] = "input_layernorm.weight",
    [PARAM_Q] = "self_attn.q_proj.weight",
    [PARAM_K] = "self_attn.k_proj.weight",
    [PARAM_V] = "self_attn.v_proj.weight",
    [PARAM_Q_NORM] = "self_attn.q_norm.weight",
    [PARAM_K_NORM] = "self_attn.k_norm.weight",
    [PARAM_O] = "self_attn.o_proj.weight",
    [PARAM_POST_NORM] = "post_attention_layernorm.weight",
    [PARAM_GATE] = "mlp.gate_proj.weight",
    [PARAM_UP] = "mlp.up_proj.weight",
    [PARAM_DOWN] = "mlp.down_proj.weight",
    [PARAM_FINAL_NORM] = "model.norm.weight",
    [PARAM_HEAD] = "lm_head.weight",
};

static void add(struct param_table *t, const struct model_config *c, enum param_kind kind, int layer) {
  struct param *p = &t->items[t->count++];
  const struct shape shape = shape_of(kind, c);
  if (layer >= 0) {
    snprintf(p->name, sizeof p->name, "model.layers.%d.%s", layer, NAME[kind]);
  } else {
    snprintf(p->name, sizeof p->name, "%s", NAME[kind]);
  }
  p->kind = kind;
  p->layer = layer;
  p->rows = shape.rows;
  p->cols = shape.cols;
  p->offset = t->elements;
  p->count = (size_t)shape.rows * (size_t)shape.cols;
  t->elements += (p->count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
  t->parameters += p->count;
}

enum rc param_table_make(struct param_table *out, const struct model_config *config, struct err *err) {
  *out = (struct param_table){0};
  const size_t count = (size_t)config->layers * LAYER_PARAMS + (config->tied ? 2 : 3);
  if (count > LIMIT_TENSORS)
    return err_set(err, RC_INVALID, "num_hidden_layers", "a model has at most %d tensors, this one would have %zu",
                   LIMIT_TENSORS, count);
  out->items = calloc(count, sizeof *out->items);
  if (!out->items)
    return err_set(err, RC_NO_MEMORY, NULL, "the parameter table needs %zu bytes, which were refused",
                   count * sizeof *out->items);
  add(out, config, PARAM_EMBED, -1);
  for (int layer = 0; layer < config->layers; layer++)
    for (int kind = PARAM_INPUT_NORM; kind <= PARAM_DOWN; kind++) add(out, config, (enum param_kind)kind, layer);
  add(out, config, PARAM_FINAL_NORM, -1);
  if (!config->tied) add(out, config, PARAM_HEAD, -1);
  return RC_OK;
}

void param_table_free(struct param_table *t) {
  free(t->items);
  *t = (struct param_table){0};
}

int param_table_find(const struct param_table *t, const char *name) {
  for (int i = 0; i < t->count; i++)
    if (strcmp(t->items[i].name, name) == 0) return i;
  return -1;
}

int param_table_index(const struct param_table *t, enum param_kind kind, int layer) {
  const int tail = t->items[t->count - 1].kind == PARAM_HEAD ? 2 : 1; /* final norm, head */
  int index = -1;
  if (kind == PARAM_EMBED) {
    index = 0;
  } else if (kind == PARAM_FINAL_NORM) {
    index = t->count - tail;
  } else if (kind == PARAM_HEAD) {
    index = tail == 2 ? t->count - 1 : -1;
  } else if (layer >= 0 && layer < (t->count - 1) / LAYER_PARAMS) {
    index = 1 + layer * LAYER_PARAMS + ((int)kind - PARAM_INPUT_NORM);
  }
  return index >= 0 && t->items[index].kind == kind ? index : -1;
}
