/* Makes the parameter table, in the order in which digests, checkpoints, gradients and the optimizer walk it. */
#include "common/model/network/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
  ALIGN_ELEMENTS = 16,
  FIRST_IN_LAYER = PARAM_INPUT_NORM,
  LAST_IN_LAYER = PARAM_MLP_OUT_NORM,
  EXPERT_PARAMS = PARAM_EXPERT_DOWN - PARAM_EXPERT_GATE + 1 /* of each expert */
};

struct shape {
  int rows, cols;
};

static struct shape shape_of(enum param_kind kind, const struct model_config *c) {
  const int q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
  switch (kind) {
    case PARAM_EMBED:
    case PARAM_HEAD: return (struct shape){c->vocabulary, c->hidden};
    case PARAM_Q: return (struct shape){q, c->hidden};
    case PARAM_Q_BIAS: return (struct shape){1, q};
    case PARAM_K:
    case PARAM_V: return (struct shape){kv, c->hidden};
    case PARAM_K_BIAS:
    case PARAM_V_BIAS: return (struct shape){1, kv};
    case PARAM_Q_NORM:
    case PARAM_K_NORM: return (struct shape){1, c->head_dim};
    case PARAM_ROUTER: return (struct shape){c->experts, c->hidden};
    case PARAM_EXPERT_GATE:
    case PARAM_EXPERT_UP: return (struct shape){c->expert_ffn, c->hidden};
    case PARAM_EXPERT_DOWN: return (struct shape){c->hidden, c->expert_ffn};
    case PARAM_O: return (struct shape){c->hidden, q};
    case PARAM_GATE:
    case PARAM_UP: return (struct shape){c->ffn, c->hidden};
    case PARAM_GATE_BIAS:
    case PARAM_UP_BIAS: return (struct shape){1, c->ffn};
    case PARAM_DOWN: return (struct shape){c->hidden, c->ffn};
    case PARAM_O_BIAS:
    case PARAM_DOWN_BIAS:
    case PARAM_ATTENTION_OUT_NORM:
    case PARAM_MLP_OUT_NORM:
    case PARAM_INPUT_NORM:
    case PARAM_POST_NORM:
    case PARAM_FINAL_NORM:
    case PARAM_KINDS: break;
  }
  return (struct shape){1, c->hidden};
}

static void name_in(char *out, size_t size, const char *name, int layer, int expert) {
  if (expert >= 0)
    snprintf(out, size, "model.layers.%d.mlp.experts.%d.%s", layer, expert, name);
  else if (layer >= 0)
    snprintf(out, size, "model.layers.%d.%s", layer, name);
  else
    snprintf(out, size, "%s", name);
}

/* Where the parameter lies in files; rows of the fused tensor's parts before it and of all of them. */
static void place_in_file(struct param *p, const struct model_config *c) {
  p->file_rows = p->rows;
  memcpy(p->file_name, p->name, sizeof p->file_name);
  for (int i = 0; c->fused && i < FUSED_MAX && c->fused[i].name; i++) {
    const struct fused_tensor *f = &c->fused[i];
    if (p->kind < f->first || p->kind > f->last) continue;
    p->file_rows = 0;
    for (int kind = (int)f->first; kind <= (int)f->last; kind++) {
      if (!model_config_has(c, (enum param_kind)kind, false)) continue;
      if (kind == (int)p->kind) p->file_row = p->file_rows;
      p->file_rows += shape_of((enum param_kind)kind, c).rows;
    }
    name_in(p->file_name, sizeof p->file_name, f->name, p->layer, -1);
  }
}

static void add(struct param_table *t, const struct model_config *c, enum param_kind kind, int layer, int expert) {
  struct param *p = &t->items[t->count++];
  const struct shape shape = shape_of(kind, c);
  p->kind = kind;
  p->layer = layer;
  p->expert = expert;
  p->rows = shape.rows;
  p->cols = shape.cols;
  p->offset = t->elements;
  p->count = (size_t)shape.rows * (size_t)shape.cols;
  name_in(p->name, sizeof p->name, param_kind_name(kind, c->out_norms), layer, expert);
  place_in_file(p, c);
  t->elements += (p->count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
  t->parameters += p->count;
}

/* Where a layer's parameters stand among them; returns how many there are. */
static int place_kinds(int place[PARAM_KINDS], const struct model_config *c, bool sparse) {
  int count = 0;
  for (int kind = 0; kind < PARAM_KINDS; kind++) {
    const bool in_layer = kind >= (int)FIRST_IN_LAYER && kind <= (int)LAST_IN_LAYER;
    place[kind] = -1;
    if (in_layer && model_config_has(c, (enum param_kind)kind, sparse)) place[kind] = count++;
    if (sparse && kind == PARAM_EXPERT_DOWN) count += (c->experts - 1) * EXPERT_PARAMS;
  }
  return count;
}

static void add_layer(struct param_table *t, const struct model_config *c, int layer) {
  const bool sparse = model_config_sparse(c, layer);
  t->in_layer[layer] = (struct param_layer){.first = t->count, .sparse = sparse};
  for (int k = FIRST_IN_LAYER; k <= LAST_IN_LAYER; k++) {
    const enum param_kind kind = (enum param_kind)k;
    if (t->place[sparse][kind] < 0 || (param_kind_is_of_expert(kind) && kind != PARAM_EXPERT_GATE)) continue;
    if (kind != PARAM_EXPERT_GATE) add(t, c, kind, layer, -1);
    for (int expert = 0; kind == PARAM_EXPERT_GATE && expert < c->experts; expert++)
      for (int i = 0; i < EXPERT_PARAMS; i++) add(t, c, (enum param_kind)(k + i), layer, expert);
  }
}

enum rc param_table_make(struct param_table *out, const struct model_config *config, struct err *err) {
  *out = (struct param_table){.layers = config->layers};
  const int params[2] = {place_kinds(out->place[0], config, false), place_kinds(out->place[1], config, true)};
  size_t count = config->tied ? 2 : 3;
  for (int layer = 0; layer < config->layers; layer++) count += (size_t)params[model_config_sparse(config, layer)];
  if (count > LIMIT_TENSORS)
    return err_set(err, RC_INVALID, "num_hidden_layers", "a model has at most %d tensors, this one would have %zu",
                   LIMIT_TENSORS, count);
  out->items = calloc(count, sizeof *out->items);
  out->in_layer = calloc((size_t)config->layers, sizeof *out->in_layer);
  if (!out->items || !out->in_layer) {
    param_table_free(out);
    return err_set(err, RC_NO_MEMORY, NULL, "the parameter table needs %zu bytes, which were refused",
                   count * sizeof *out->items);
  }
  add(out, config, PARAM_EMBED, -1, -1);
  for (int layer = 0; layer < config->layers; layer++) add_layer(out, config, layer);
  add(out, config, PARAM_FINAL_NORM, -1, -1);
  if (!config->tied) add(out, config, PARAM_HEAD, -1, -1);
  return RC_OK;
}

void param_table_free(struct param_table *t) {
  free(t->items);
  free(t->in_layer);
  *t = (struct param_table){0};
}

int param_table_find(const struct param_table *t, const char *file_name) {
  for (int i = 0; i < t->count; i++)
    if (strcmp(t->items[i].file_name, file_name) == 0) return i;
  return -1;
}

int param_table_index(const struct param_table *t, enum param_kind kind, int layer) {
  if (kind == PARAM_EMBED) return 0;
  if (kind == PARAM_HEAD) return t->items[t->count - 1].kind == PARAM_HEAD ? t->count - 1 : -1;
  if (kind == PARAM_FINAL_NORM) return t->items[t->count - 1].kind == PARAM_HEAD ? t->count - 2 : t->count - 1;
  if (layer < 0 || layer >= t->layers) return -1;
  const struct param_layer *l = &t->in_layer[layer];
  return t->place[l->sparse][kind] < 0 ? -1 : l->first + t->place[l->sparse][kind];
}

int param_table_expert(const struct param_table *t, enum param_kind kind, int layer, int expert) {
  return param_table_index(t, kind, layer) + expert * EXPERT_PARAMS;
}
