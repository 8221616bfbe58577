/* Keeps the two slots and the carried gradient. */
#include "common/model/learning/gradient_parts.h"

#include <assert.h>
#include <stdlib.h>

#include "common/model/learning/scratch_file.h"
#include "common/model/network/array_layout.h"

enum { NONE = -1 };

struct slot {
  float *values;
  int param; /* that is open in it, or NONE */
};

struct gradient_parts {
  const struct model *model; /* borrowed */
  void *memory;
  struct slot table, other;    /* of the embedding and the head; of all else */
  struct scratch_file carried; /* [params.elements] the chunks before */
  struct optimizer *sums;      /* of the unit at hand, or NULL */
  bool first, last, good;      /* first, last: of the chunk at hand; good: of the unit so far */
};

static bool is_table(const struct param *p) { return p->kind == PARAM_EMBED || p->kind == PARAM_HEAD; }

static size_t place(struct gradient_parts *g, char *base, const struct model *m) {
  struct array_layout l = {base, 0};
  size_t table = 0, other = 0;
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    size_t *most = is_table(p) ? &table : &other;
    if (p->count > *most) *most = p->count;
  }
  g->table.values = array_layout_take(&l, table, sizeof(float));
  g->other.values = array_layout_take(&l, other, sizeof(float));
  return l.used;
}

size_t gradient_parts_bytes(const struct model *m) {
  struct gradient_parts measured;
  return place(&measured, NULL, m);
}

enum rc gradient_parts_create(struct gradient_parts **out, const struct model *m, const char *scratch_dir,
                              struct err *err) {
  struct gradient_parts *g = calloc(1, sizeof *g);
  const size_t bytes = gradient_parts_bytes(m);
  *out = NULL;
  assert(m->ops->host_memory);
  if (!g) return err_set(err, RC_NO_MEMORY, NULL, "a record of %zu bytes for gradients was refused", sizeof *g);
  g->model = m;
  g->table.param = g->other.param = NONE;
  enum rc rc = scratch_file_make(&g->carried, scratch_dir, m->params.elements * sizeof(float), err);
  if (rc == RC_OK && !(g->memory = m->ops->alloc(m->ops, bytes)))
    rc = err_set(err, RC_NO_MEMORY, NULL, "gradients of the largest tensors need %zu bytes, which were refused", bytes);
  if (rc != RC_OK) {
    gradient_parts_free(g);
    return rc;
  }
  place(g, g->memory, m);
  *out = g;
  return RC_OK;
}

void gradient_parts_free(struct gradient_parts *g) {
  if (!g) return;
  if (g->memory) g->model->ops->release(g->model->ops, g->memory);
  if (g->carried.memory) scratch_file_free(&g->carried);
  free(g);
}

void gradient_parts_begin(struct gradient_parts *g, struct optimizer *sums) {
  g->sums = sums;
  g->good = true;
  g->table.param = g->other.param = NONE;
}

bool gradient_parts_end(struct gradient_parts *g) {
  assert(g->table.param == NONE && g->other.param == NONE);
  return g->sums ? optimizer_end_parts(g->sums, g->good) : true;
}

void gradient_parts_chunk(struct gradient_parts *g, bool first, bool last) {
  g->first = first;
  g->last = last;
}

static struct slot *slot_of(struct gradient_parts *g, int param) {
  return is_table(&g->model->params.items[param]) ? &g->table : &g->other;
}

float *gradient_parts_open(struct gradient_parts *g, int param) {
  const struct ops *ops = g->model->ops;
  const struct param *p = &g->model->params.items[param];
  struct slot *s = slot_of(g, param);
  const size_t bytes = p->count * sizeof *s->values;
  if (s->param == param) return s->values;
  assert(s->param == NONE);
  s->param = param;
  if (g->first)
    ops->clear(ops, s->values, bytes);
  else
    ops->copy(ops, s->values, g->carried.memory + p->offset * sizeof *s->values, bytes);
  return s->values;
}

void gradient_parts_close(struct gradient_parts *g, int param) {
  const struct ops *ops = g->model->ops;
  const struct param *p = &g->model->params.items[param];
  struct slot *s = slot_of(g, param);
  char *carried = g->carried.memory + p->offset * sizeof *s->values;
  assert(s->param == param);
  s->param = NONE;
  if (!g->last)
    ops->copy(ops, carried, s->values, p->count * sizeof *s->values);
  else if (g->sums && !optimizer_add_part(g->sums, p->offset, s->values, p->count))
    g->good = false;
  if (!g->first || !g->last) scratch_file_done(&g->carried, carried, p->count * sizeof *s->values);
}
