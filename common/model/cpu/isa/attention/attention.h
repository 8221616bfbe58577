/* Parts that the attention kernels of one instruction set share. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_ATTENTION_ATTENTION_H
#define LEASEHOLD_MODEL_CPU_ISA_ATTENTION_ATTENTION_H

#include "common/model/cpu/isa/elementary.h"

/* Where 16 keys from `position` (a multiple of 16) on lie: element offsets into keys and values. */
INLINE void attention_locate(const struct attention_args *c, int sequence, int g, int position, size_t *keys,
                             size_t *values) {
  const struct kv_layer *kv = c->kv;
  const int32_t *pages = c->rows->pages + (size_t)sequence * (size_t)c->rows->pages_per_sequence;
  const size_t page = (size_t)pages[position / kv->page_tokens], head = page * (size_t)kv->G + (size_t)g;
  const size_t offset = (size_t)(position % kv->page_tokens), tokens = (size_t)kv->page_tokens;
  *keys = (head * (tokens / 16) + offset / 16) * (size_t)round_up(kv->E, 32) * 16;
  *values = (head * tokens + offset) * (size_t)round_up(kv->E, 16);
}

/* Where the rows of t0's sequence end. */
INLINE int attention_run_end(const struct attention_args *c, int t0, int end) {
  int t1 = t0 + 1;
  while (t1 < end && c->rows->sequence[t1] == c->rows->sequence[t0]) t1++;
  return t1;
}

/* The first position that a row at `position` attends to. */
INLINE int attention_first(int window, int position) {
  return window > 0 && position >= window ? position - window + 1 : 0;
}

/* The end of the queries that see one of the `keys` keys from kb on; rows of a sample of `length`. */
INLINE int attention_queries_end(int window, int kb, int keys, int length) {
  return window > 0 && length - kb - keys >= window ? kb + keys + window - 1 : length;
}

/* Where a query's maximum begins.  With a window a query may have no key in the first blocks that others of its call go
 * through.  There all scores are -infinity, and from a finite maximum on such a block changes nothing: its p are
 * exp(-infinity) = 0, its correction exp(0) = 1.  The correction in the first block with a key is 0 either way. */
INLINE float attention_lowest(int window) { return window > 0 ? -__FLT_MAX__ : -HUGE_VALF; }

/* What makes a score of a dot product; cap 0: none. */
struct score_scale {
  float scale, cap;
};

INLINE struct score_scale attention_scale(const struct attention_args *c) {
  return (struct score_scale){c->scale, c->rows->cap};
}

INLINE struct score_scale attention_scale_back(const struct attention_backward_args *c) {
  return (struct score_scale){c->scale, c->batch->cap};
}

INLINE vf attention_score(vf dot, struct score_scale s) {
  const vf x = dot * s.scale;
  return s.cap > 0 ? soft_capped(x, s.cap) : x;
}

/* The score's gradient to the dot's, given the uncapped dot. */
INLINE vf attention_score_backward(vf dscore, vf dot, struct score_scale s) {
  if (s.cap > 0) {
    const vf t = vtanh((dot * s.scale) / s.cap);
    dscore = dscore * (1.0f - t * t);
  }
  return dscore * s.scale;
}

/* Scores of 16 keys, -infinity before the unseen-th and from the valid-th on. */
INLINE struct f16 attention_seen(struct f16 score, int unseen, int valid) {
  vi lane;
  for (int l = 0; l < VL; l++) lane[l] = l;
  UNROLL
  for (int i = 0; i < PARTS; i++)
    score.v[i] = vselect((lane < valid - i * VL) & (lane >= unseen - i * VL), score.v[i], vset(-HUGE_VALF));
  return score;
}

/* What queries along the lanes attend to: each its first .. position.  Keys first .. last are seen by some, those from
 * `unseen` .. least by all. */
struct attention_span {
  int first, unseen, least, last;
};

INLINE struct attention_span attention_span_none(void) {
  return (struct attention_span){.first = INT32_MAX, .least = INT32_MAX};
}

INLINE void attention_span_add(struct attention_span *span, int first, int position) {
  span->first = first < span->first ? first : span->first;
  span->unseen = first > span->unseen ? first : span->unseen;
  span->least = position < span->least ? position : span->least;
  span->last = position > span->last ? position : span->last;
}

/* The scores of a key, -infinity for queries that do not see it. */
INLINE vf attention_seen_key(vf score, int key, vi first, vi position, const struct attention_span *span) {
  if (key > span->least) score = vselect(position >= key, score, vset(-HUGE_VALF));
  if (key < span->unseen) score = vselect(first <= key, score, vset(-HUGE_VALF));
  return score;
}

/* TREE (NUMERICS.md) of 16 vectors. */
INLINE vf attention_tree(vf lane[16]) {
  UNROLL
  for (int j = 0; j < 8; j++) lane[j] = lane[j] + lane[j + 8];
  UNROLL
  for (int j = 0; j < 4; j++) lane[j] = lane[j] + lane[j + 4];
  return (lane[0] + lane[2]) + (lane[1] + lane[3]);
}

/* A block (micro_kernel.h) of floats whose rows of a are columns of what lies in memory, [along the dot][rows]:
 * attention_backward.c.  Compiled once: it is large. */
struct block;
void ISA_NAME(attention_columns)(const struct block *b);

/* Rows [t0, t1) of one sequence, all heads of kv head g: attention_many.c. */
void ISA_NAME(attend_many)(const struct attention_args *c, void *scratch, int t0, int t1, int g);

#if defined(__AVX512BF16__)
/* Rows [t0, t1) of one sequence, all heads of kv head g; bf16: attention_bf16.c. */
void ISA_NAME(attend_bf16)(const struct attention_args *c, void *scratch, int t0, int t1, int g);
/* Rows [t0, t1) of any sequences, all their heads; bf16: attention_rows_bf16.c. */
void ISA_NAME(attend_rows_bf16)(const struct attention_args *c, void *scratch, int t0, int t1);
void ISA_NAME(attention_backward_bf16)(const struct attention_backward_args *c, size_t begin, size_t end,
                                       void *scratch);
#endif

#endif
