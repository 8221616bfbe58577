/* The order in which dW's products over tokens go through memory: window by window of dW, and for each window through
 * all rows of dy and x, some at a time.  While these are multiplied, the next ones are prefetched, because laying them
 * out would otherwise wait for memory. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_GEMM_WEIGHT_WINDOW_H
#define LEASEHOLD_MODEL_CPU_ISA_GEMM_WEIGHT_WINDOW_H

#include "common/model/cpu/isa/vec.h"

/* A part of dW: rows from n0 on, columns from k0 on. */
struct window {
  int n0, n_count, k0, k_count;
};

/* Which windows there are: rows [begin, end) of dW, of `rows` x `columns` each. */
struct windows {
  const struct weight_backward_args *c;
  int end, rows, columns;
};

INLINE struct window window_at(const struct windows *all, int n0, int k0) {
  const int n_left = all->end - n0, k_left = all->c->K - k0;
  return (struct window){.n0 = n0,
                         .n_count = n_left < all->rows ? n_left : all->rows,
                         .k0 = k0,
                         .k_count = k_left < all->columns ? k_left : all->columns};
}

/* The window after w; an empty one (n_count 0) behind the last. */
INLINE struct window window_after(const struct windows *all, const struct window *w) {
  if (w->k0 + w->k_count < all->c->K) return window_at(all, w->n0, w->k0 + w->k_count);
  return window_at(all, w->n0 + w->n_count, 0);
}

/* Rows [t, end) of dy and x, in the columns of their window. */
struct ahead {
  const struct weight_backward_args *c;
  struct window window;
  int t, end;
};

/* The rows after w's rows before t: at most `rows` of them. */
INLINE struct ahead ahead_of(const struct windows *all, const struct window *w, int t, int rows) {
  const struct weight_backward_args *c = all->c;
  const bool over = t == c->T;
  struct ahead a = {.c = c, .window = over ? window_after(all, w) : *w, .t = over ? 0 : t};
  if (a.window.n_count > 0) a.end = c->T - a.t < rows ? c->T : a.t + rows;
  return a;
}

INLINE void ask_columns(const uint16_t *row, int count) {
  for (int i = 0; i < count; i += 32) _mm_prefetch((const char *)(row + i), _MM_HINT_T1);
}

/* Asks for the next row. */
INLINE void ahead_ask(struct ahead *a) {
  const struct weight_backward_args *c = a->c;
  if (a->t >= a->end) return;
  const size_t t = (size_t)a->t++;
  ask_columns((const uint16_t *)c->x + row_of(c->row, t) * (size_t)c->K + a->window.k0, a->window.k_count);
  ask_columns((const uint16_t *)c->dy + t * (size_t)c->N + a->window.n0, a->window.n_count);
}

#endif
