/* The interface between ops_cpu.c and the kernels of isa/: one table of kernels per instruction set, compiled from the
 * same C except for products that have instructions of their own.
 *
 * Every kernel has one signature: it computes the outputs [begin, end) of a call, whose arguments stand in a struct
 * of this file, with `scratch` (CPU_SCRATCH_BYTES, 64-byte aligned) to itself.  Each struct says what begin and end
 * count.  Kernels never synchronize, never allocate, and an output's bits do not depend on how the outputs were
 * split (NUMERICS.md). Letters as in ops.h.
 */
#ifndef LEASEHOLD_MODEL_CPU_KERNELS_H
#define LEASEHOLD_MODEL_CPU_KERNELS_H

#include "common/model/ops.h"

enum {
  CPU_HEAD_DIM_MAX = 512,      /* E; sizes stack arrays and the scratch of the attention kernels */
  CPU_SCRATCH_BYTES = 1 << 20, /* of one thread */
  CPU_SQUARES_BLOCK = 1 << 16  /* elements of one block of sum_of_squares */
};

typedef void cpu_kernel(const void *args, size_t begin, size_t end, void *scratch);

/* row[t], or t when there is no such list. */
static inline size_t row_of(const int32_t *row, size_t t) { return row ? (size_t)row[t] : t; }

static inline int round_up(int n, int unit) { return (n + unit - 1) / unit * unit; }

struct convert_args {
  enum number_format format;
  void *out;
  const void *in;
}; /* elements */

struct gemm_args { /* rows when by_rows, else panels of 32 outputs */
  enum number_format format;
  float *y;
  const void *x;
  const struct matrix *W;
  int T;
  bool accumulate, by_rows;
};

/* A window of dW: a kernel lays out what it takes of dy and x for one at a time. */
struct window_size {
  int rows, columns;
};

/* The largest window of a kernel; rows are best cut in multiples of row_unit. */
struct window_limit {
  struct window_size size;
  int row_unit;
};

struct weight_backward_args { /* windows of dW, those of the same rows side by side */
  enum number_format format;
  float *dW;
  const void *dy, *x;
  const int32_t *row, *place;
  int T, N, K;
  struct window_size window; /* within the kernel's limit */
};

struct bias_args { /* elements of y */
  enum number_format format;
  float *y;
  const void *b;
  int N;
};

struct bias_backward_args { /* columns */
  enum number_format format;
  float *db;
  const void *dy;
  int T, N;
};

struct rmsnorm_args { /* rows */
  enum number_format format;
  void *y;
  float *rstd;
  const float *x;
  const void *w;
  bool plus_one;
  float eps;
  int D;
};

struct rmsnorm_backward_args { /* rows for dx; columns for dw */
  enum number_format format;
  float *dx, *dw;
  const float *dy, *x;
  const void *w;
  bool plus_one;
  const float *rstd;
  const int32_t *row;
  int T, D;
};

struct rope_args { /* rows */
  enum number_format format;
  void *out;
  float *rstd;
  const float *x;
  const void *w;
  bool plus_one;
  float eps;
  const float *rope;
  const int32_t *position;
  int H, E;
};

struct rope_backward_args { /* rows for dx; pairs (e, e + E/2) for dw */
  enum number_format format;
  float *dx, *dw;
  const float *dy, *x;
  const void *w;
  bool plus_one;
  const float *rstd, *rope;
  const int32_t *position, *row;
  int T, H, E;
};

struct attention_args { /* rows */
  enum number_format format;
  void *out;
  float *lse;
  const void *q;
  const struct kv_layer *kv;
  const struct rows *rows;
  int H;
  float scale;
};

struct attention_backward_args { /* items: sequence * G + kv head */
  enum number_format format;
  float *dq, *dk, *dv;
  const void *dout, *out;
  const float *lse;
  const void *q, *k, *v;
  const struct packed *batch;
  int H, G, E;
  float scale;
};

struct scale_args { /* elements */
  float *x;
  float factor;
};

struct soft_cap_args { /* elements; of the backward too, which has d and capped in place of x */
  enum number_format format;
  float *x;
  void *d;
  const float *capped;
  float cap;
};

struct add_operand_args { /* elements */
  enum number_format format;
  float *x;
  const void *y;
};

struct swiglu_args { /* elements; of geglu too */
  enum number_format format;
  void *h;
  const float *gate, *up;
};

struct swiglu_backward_args { /* rows; of geglu too */
  enum number_format format;
  void *dgate, *dup;
  const float *dh, *gate, *up;
  const int32_t *row;
  int F;
};

struct route_args { /* rows */
  int32_t *expert;
  float *share, *prob;
  bool normalize;
  int N, k;
};

struct add_rows_args { /* entries of the list */
  float *x;
  const float *y, *share;
  const int32_t *slot, *row;
  int D;
};

struct share_rows_args { /* entries of the list */
  enum number_format format;
  void *out;
  const float *x, *share;
  const int32_t *slot, *row;
  int D;
};

struct share_backward_args { /* entries of the list */
  enum number_format format;
  float *dshare, *dh;
  const void *h;
  const float *share;
  const int32_t *slot, *saved, *pair;
  int F;
};

struct route_backward_args { /* rows */
  enum number_format format;
  void *dlogits;
  const float *dshare, *prob;
  const int32_t *expert;
  const float *share;
  const int32_t *row;
  bool normalize;
  int N, k;
};

struct logprob_args { /* rows */
  float *logprob, *lse, *entropy;
  const float *logits;
  const int32_t *target;
  float temperature;
  int V;
};

struct logprob_backward_args { /* rows */
  enum number_format format;
  void *dlogits;
  const float *dlogprob, *logits, *lse;
  const float *dentropy, *entropy; /* or NULL */
  const int32_t *target;
  float temperature;
  int V;
};

struct cut_args { /* rows */
  float *logits;
  const struct sampling_params *cut;
  int V;
};

struct sample_args { /* draws */
  struct draw *draws;
  const float *logits;
  int V;
};

struct embed_backward_args { /* columns */
  float *dtable;
  const float *dx;
  const int32_t *token;
  int T, D;
};

struct accumulate_args { /* elements */
  int64_t *acc;
  const float *g;
  float *clear; /* NULL, or g: set to zero afterwards */
  double scale;
  bool *bad; /* set by any part, atomically; never cleared */
};

struct grad_args { /* elements */
  float *g;
  int64_t *acc; /* set to zero afterwards */
  double scale, denominator;
};

struct squares_args { /* blocks of CPU_SQUARES_BLOCK elements; sums[block - first] */
  const float *g;
  size_t n, first;
  double *sums;
};

struct adamw_args { /* elements */
  float *master, *m, *v;
  const float *g;
  const struct adamw *step;
};

/* What codes stand for, without the block's largest magnitude: NUMERICS.md, "Moments in 8 bits". */
struct moment_values {
  float m[256], v[256];
};

struct adamw8_args { /* blocks */
  float *master;
  struct moments8 moments;
  const float *g;
  const struct adamw *step;
  size_t first, n; /* elements of the first block, of all */
  const struct moment_values *values;
};

struct cpu_kernels {
  const char *level;
  bool links; /* matrices, keys and values of bf16 are kept in links (ops.h, struct matrix and kv_layer) */
  cpu_kernel *to_operand, *from_operand;
  cpu_kernel *rmsnorm, *gemm, *add_bias, *head_norm_rope, *attention, *swiglu, *geglu, *scale, *add_operand, *logprob,
      *cut, *sample, *route, *add_rows, *share_rows, *soft_cap;
  cpu_kernel *embed_backward, *rmsnorm_backward_x, *rmsnorm_backward_w, *gemm_weight_backward, *add_bias_backward,
      *head_norm_rope_backward_x, *head_norm_rope_backward_w, *attention_backward, *swiglu_backward, *geglu_backward,
      *soft_cap_backward, *share_backward, *route_backward, *logprob_backward;
  const struct window_limit *weight_windows[2]; /* by format */
  cpu_kernel *accumulate, *grad_from_accumulator, *sum_of_squares, *adamw, *adamw8;
  /* Checks properties of the CPU that the kernels rely on and CPUID does not tell; NULL: nothing to check. */
  bool (*holds)(void);
  /* Tells whether they are faster here than those of the next lower level; NULL: they are. */
  bool (*pays)(void);
  /* For the tests of the elementary functions. */
  void (*exp_row)(float *y, const float *x, int n);
  float (*log)(float x);
};

extern const struct cpu_kernels cpu_kernels_v2, cpu_kernels_v3, cpu_kernels_v4, cpu_kernels_v4_bf16, cpu_kernels_amx;

/* ops_cpu_create over given kernels; `name` is the table's. */
enum rc cpu_ops_create(struct ops **out, enum number_format format, const struct cpu_kernels *kernels, const char *name,
                       struct pool *pool, struct err *err);

/* Moving operands, for which no instruction set matters: operand_moves.c.  Ranges: rows of the call, or tiles of 16
 * rows of W. */
struct pack_args { /* tiles of 16 rows of W */
  size_t operand_bytes;
  bool links; /* ops.h, struct matrix */
  struct matrix *W;
  const void *w;
  bool transposed; /* w is [W->K, W->N] */
};
struct transpose_args { /* tiles of 16 rows of T */
  size_t operand_bytes;
  bool links; /* ops.h, struct matrix */
  struct matrix *T;
  const struct matrix *W;
  int first; /* row of W's transpose */
};
struct unpack_args { /* rows, counted from 0 at `first` */
  size_t operand_bytes;
  bool links;
  const struct matrix *W;
  void *w;
  int first;
};
struct embed_args { /* rows */
  enum number_format format;
  bool links;
  float *x;
  const struct matrix *table;
  const int32_t *token;
};
struct kv_write_args { /* rows */
  size_t operand_bytes;
  bool links; /* ops.h, struct kv_layer */
  const struct kv_layer *kv;
  const struct rows *rows;
  const void *k, *v;
  const int32_t *row;
};
cpu_kernel cpu_matrix_pack, cpu_matrix_transpose, cpu_matrix_unpack_rows, cpu_embed, cpu_kv_write;

#endif
