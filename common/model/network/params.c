/* Makes the parameter table, in the order in which digests, checkpoints, gradients and the optimizer walk it. */
#include "common/model/network/params.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALIGN_ELEMENTS = 16, FIRST_IN_LAYER = PARAM_INPUT_NORM, LAST_IN_LAYER = PARAM_MLP_OUT_NORM };

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

static void name_in(char *out, size_t size, const char *name, int layer) {
  if (layer >= 0)
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
      if (!model_config_has(c, (enum param_kind)kind)) continue;
      if (kind == (int)p->kind) p->file_row = p->file_rows;
      p->file_rows += shape_of((enum param_kind)kind, c).rows;
    }
    name_in(p->file_name, sizeof p->file_name, f->name, p->layer);
  }
}

static void add(struct param_table *t, const struct model_config *c, enum param_kind kind, int layer) {
  struct param *p = &t->items[t->count++];
  const struct shape shape = shape_of(kind, c);
  p->kind = kind;
  p->layer = layer;
  p->rows = shape.rows;
  p->cols = shape.cols;
  p->offset = t->elements;
  p->count = (size_t)shape.rows * (size_t)shape.cols;
  name_in(p->name, sizeof p->name, param_kind_name(kind, c->out_norms), layer);
  place_in_file(p, c);
  t->elements += (p->count + ALIGN_ELEMENTS - 1) / ALIGN_ELEMENTS * ALIGN_ELEMENTS;
  t->parameters += p->count;
}

enum rc param_table_make(struct param_table *out, const struct model_config *config, struct err *err) {
  *out = (struct param_table){.layers = config->layers};
  for (int kind = 0; kind < PARAM_KINDS; kind++) {
    const bool in_layer = kind >= (int)FIRST_IN_LAYER && kind <= (int)LAST_IN_LAYER;
    out->place[kind] = -1;
    if (in_layer && model_config_has(config, (enum param_kind)kind)) out->place[kind] = (int8_t)out->layer_params++;
  }
  const size_t count = (size_t)config->layers * (size_t)out->layer_params + (config->tied ? 2 : 3);
  if (count > LIMIT_TENSORS)
    return err_set(err, RC_INVALID, "num_hidden_layers", "a model has at most %d tensors, this one would have %zu",
                   LIMIT_TENSORS, count);
  out->items = calloc(count, sizeof *out->items);
  if (!out->items)
    return err_set(err, RC_NO_MEMORY, NULL, "the parameter table needs %zu bytes, which were refused",
                   count * sizeof *out->items);
  add(out, config, PARAM_EMBED, -1);
  for (int layer = 0; layer < config->layers; layer++)
    for (int kind = FIRST_IN_LAYER; kind <= LAST_IN_LAYER; kind++)
      if (out->place[kind] >= 0) add(out, config, (enum param_kind)kind, layer);
  add(out, config, PARAM_FINAL_NORM, -1);
  if (!config->tied) add(out, config, PARAM_HEAD, -1);
  return RC_OK;
}

void param_table_free(struct param_table *t) {
  free(t->items);
  *t = (struct param_table){0};
}

int param_table_find(const struct param_table *t, const char *file_name) {
  for (int i = 0; i < t->count; i++)
    if (strcmp(t->items[i].file_name, file_name) == 0) return i;
  return -1;
}

int param_table_index(const struct param_table *t, enum param_kind kind, int layer) {
  const int tail = 1 + t->layers * t->layer_params; /* final norm, then the head of an untied model */
  if (kind == PARAM_EMBED) return 0;
  if (kind == PARAM_FINAL_NORM) return tail;
  if (kind == PARAM_HEAD) return tail + 1 < t->count ? tail + 1 : -1;
  if (layer < 0 || layer >= t->layers || t->place[kind] < 0) return -1;
  return 1 + layer * t->layer_params + t->place[kind];
}
