/* One chunk of a gradient unit as index arrays: all rows, the rows that are computed, and the rows that need the whole
 * last layer.  Samples of any lengths stand one behind another, so no kernel sees a row of padding.
 *
 *   all rows            [T]         sample after sample; gradients flow through every one of them
 *     --row-->          [computed]  one for each distinct beginning: samples of a group share their prompt, and as much
 *                                   of their completions as they have in common
 *     --finish-->       [finished]  those that the last layer takes to the end: rows whose hidden state predicts a scored
 *                                   token, or all of them
 *   active rows         [active]    rows among all whose last layer has a gradient; --active_row--> [finished]
 *   once                            all rows and active rows of samples that repeat no earlier one: samples with the
 *                                   same tokens and the same dlogprob have the same gradients in every row
 *
 * The cut into chunks depends only on the samples' lengths and chunk_tokens, never on memory, time or threads, because
 * it is part of the arithmetic (NUMERICS.md).  Computing a row once, or not at all, changes no bit.
 *
 * Memory belongs to the learner, which gives a device its copy.  Not for use outside common/model. */
#ifndef LEASEHOLD_MODEL_LEARNING_CHUNK_H
#define LEASEHOLD_MODEL_LEARNING_CHUNK_H

#include "common/model/learning/train_sample.h"
#include "common/model/network/forward.h"
#include "common/model/network/array_layout.h"

enum { CHUNK_PAGE_TOKENS = 32 };

struct chunk {
  int chunk_tokens, sequences_max, pages_max; /* constant */
  bool shares;                                /* constant: beginnings are computed once */

  bool forward_only; /* filled by chunk_fill_forward */
  int T, sequences, scored;
  int32_t *tokens, *sequence, *position; /* [T] */
  int32_t *start;                        /* [sequences + 1] */
  int32_t *pages;                        /* [sequences, pages_per_sequence] */
  int pages_per_sequence;
  int32_t *pick, *target;                    /* [scored] row that predicts, token predicted */
  float *logprob, *lse, *entropy, *dlogprob, *dentropy; /* [scored] */

  int computed;
  int32_t *row;                                      /* [T] which computed row */
  int32_t *own_tokens, *own_sequence, *own_position; /* [computed] */
  int32_t *own_parent;                               /* [computed] the row before; -1 */
  int32_t *table;                                    /* [table_size] of (parent, token) -> computed row; -1 */

  bool partly; /* the last layer leaves rows out */
  int finished, active;
  int32_t *finish, *finished_sequence, *finished_position; /* [finished]; of no meaning unless partly */
  int32_t *hidden_row;                                     /* [scored] finished row that predicts */
  int32_t *active_row, *active_own, *active_position;      /* [active] finished row, computed row; unless partly: T's */
  int32_t *query;                                          /* [T] active row, -1: none; unless partly of no meaning */
  int32_t *mark;                                           /* [T] scratch, -1 between calls */

  bool repeats; /* chunk_find_repeats has found samples that repeat others; else what follows has no meaning */
  struct {
    int T, sequences, active;
    int32_t *start, *row, *position, *query;                           /* as above */
    int32_t *active_from, *active_row, *active_own, *active_position; /* active_from: which of the active rows */
  } once;
  int32_t *repeat, *repeat_active; /* [T], [active] which of once's rows has a row's gradient; ascends no faster than
                                    * the row */
};

/* All arrays stand one behind another in memory [chunk_bytes], which is the host's and aligned to 64. */
void chunk_init(struct chunk *c, void *memory, int chunk_tokens);
size_t chunk_bytes(int chunk_tokens);
int chunk_sequences_max(int chunk_tokens);
int chunk_pages_max(int chunk_tokens);
/* Fills the chunk with whole samples from samples[0] on, dealing out pages[pages_max]; returns how many. */
int chunk_fill(struct chunk *c, const struct train_sample *samples, int count, const int32_t *pages);
/* The same for a forward pass alone, where the cut is no part of the arithmetic: as many samples as have room when rows
 * of equal beginnings, and their whole pages, are there once, so that a group's prompt is computed once.  T and its
 * lists are the rows whose keys and values are written; start, pick and what serves gradients is not filled.  Only
 * where the chunk shares. */
int chunk_fill_forward(struct chunk *c, const struct train_sample *samples, int count, const int32_t *pages);
/* After filling: whether the last layer leaves out rows that predict nothing. */
void chunk_finish(struct chunk *c, bool partly);
/* After the loss, which has written dlogprob (and dentropy, where there is an entropy term): finds the samples that
 * repeat others.  Only where the last layer leaves rows out. */
void chunk_find_repeats(struct chunk *c, bool entropy);
struct forward_call chunk_call(const struct chunk *c);
/* The distinct hidden rows behind scored tokens [first, first + count): ask[i] of them, where[i] of token first + i,
 * where[i] <= i; returns how many. */
int chunk_distinct(struct chunk *c, int first, int count, int32_t *ask, int32_t *where);

#endif
