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

INLINE int windows_across(const struct weight_backward_args *c) {
  return (c->K + c->window.columns - 1) / c->window.columns;
}

/* Window `at`; an empty one (n_count 0) from `end` on. */
INLINE struct window window_at(const struct weight_backward_args *c, int at, int end) {
  if (at >= end) return (struct window){0};
  const int n0 = at / windows_across(c) * c->window.rows, k0 = at % windows_across(c) * c->window.columns;
  const int n_left = c->N - n0, k_left = c->K - k0;
  return (struct window){.n0 = n0,
                         .n_count = n_left < c->window.rows ? n_left : c->window.rows,
                         .k0 = k0,
                         .k_count = k_left < c->window.columns ? k_left : c->window.columns};
}

/* Rows [t, end) of dy and x, in the columns of their window. */
struct ahead {
  const struct weight_backward_args *c;
  struct window window;
  int t, end;
};

/* What comes behind the rows before t of window `at`, at most `rows` rows: of it or, after the last ones, of the
 * next. */
INLINE struct ahead ahead_of(const struct weight_backward_args *c, int at, int end, int t, int rows) {
  const bool over = t == c->T;
  struct ahead a = {.c = c, .window = window_at(c, at + over, end), .t = over ? 0 : t};
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
