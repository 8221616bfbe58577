/* The seam between the model and the machine: a table of operations with shapes.  The model is written once, over
 * this table; cpu/ implements it (reference kernels compiled per x86-64 level), cuda/ for NVIDIA's GPUs.
 *
 * Letters, used in every kernel:
 *   T rows (tokens) of the call   K, N inner and outer width of a matrix   D hidden   F ffn
 *   H query heads   G key/value heads   E head dimension (head_dim)   V vocabulary
 *
 * Formats.  `operand` arrays hold GEMM operands: bf16 (uint16_t) or, in the fp32 mode that the fixtures use, float;
 * ops->format says which. Everything else is float32.  All arrays are dense, row-major and 64-byte aligned
 * (ops->alloc gives such memory).
 *
 * Memory.  Every array that an operation takes is the table's memory (ops->alloc), on a device the device's, and the
 * host reads or writes it by upload and download alone.  Lists that the host makes (tokens, rows, positions, pages,
 * targets) become such memory by ops_stage, which copies nothing if alloc's memory is the host's own.  Only arguments
 * that are marked so are in the host's memory: draws, returned results, and the structs themselves.  Operations and
 * copies take effect in the order of the calls.
 *
 * The arithmetic of every operation is fixed in NUMERICS.md; a row's result never depends on the other rows of the
 * call or on threads.  Operations cannot fail: sizes are checked where buffers are made.  A device fails later than
 * the call: from then on operations do nothing, results are zero, and ops->status says what happened; ask it before
 * using results.  Threading: one thread (the engine's) calls a table at a time; the table splits outputs over its pool.
 * Where memory is the host's, parts of a job of that pool may call it side by side: each then computes alone.
 */
#ifndef LEASEHOLD_MODEL_OPS_H
#define LEASEHOLD_MODEL_OPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/rc.h"
#include "common/threads/pool.h"

enum number_format { FORMAT_BF16, FORMAT_F32 };

/* A weight matrix [N, K] (y = x W^T) in the backend's own layout.
 *
 *   CPU    tiles of 16 rows of W, K in pairs (AMX's), zero padded, Kpad = K rounded up to 32; element (n, k) lies at
 *            ((n/16 * Kpad/2 + k/2) * 16 + n%16) * 2 + k%2
 *          levels that multiply by links (cpu/isa/bf16_chain.h) keep bf16 with every four of K in the order 2 0 3 1:
 *            ((n/16 * Kpad/2 + k/4*2 + k%2) * 16 + n%16) * 2 + (k%4 < 2)
 *   CUDA   row-major */
struct matrix {
  void *data;
  int N, K;
};

/* Which sequence each row of a call belongs to, where it stands, and where that sequence's keys and values lie. */
struct rows {
  int T;                   /* rows */
  const int32_t *sequence; /* [T] index into the page table */
  const int32_t *position; /* [T] absolute position; the row attends to positions 0..position */
  const int32_t *pages;    /* [sequences, pages_per_sequence] page numbers of the KV pool */
  int pages_per_sequence;
  int sequences;
  int longest; /* the largest position, plus 1 (forward.c fills it in) */
  int window;  /* attention: to the last `window` positions up to a row's own; 0: to all (forward.c fills it in) */
  float cap;   /* attention: scores are softly capped (tanh) at it; 0: not (forward.c fills it in) */
};

/* The KV pool of one layer.  A page holds page_tokens (a multiple of 16) positions; position p of a sequence is in its
 * page p / page_tokens.  Epad: E rounded up to 32, E16: E rounded up to 16.
 *
 *   CPU    keys    operand [page][G][page_tokens/16][Epad/2][16][2]   for a head a tile of 16 keys, E in pairs
 *          values  operand [page][G][page_tokens/2][E16][2]           positions in pairs
 *          levels that multiply by links keep bf16 with every four of E (keys), of positions (values), in the order
 *          2 0 3 1, as they keep matrices
 *   CUDA   keys [page][G][page_tokens][Epad], values [page][G][page_tokens][E16]
 *
 * Both are zero where nothing was written, and stay finite. */
struct kv_layer {
  void *keys, *values;
  int page_tokens, G, E;
};

/* A packed training batch: sequences one after another, sequence s in rows [start[s], start[s+1]). */
struct packed {
  int T, sequences;
  const int32_t *start; /* [sequences + 1] */
  const int32_t *row;   /* [T] where a row's key and value lie; NULL: t */
  /* [T] where a row's dout and dq lie; -1: its dout is zero, its q and out finite, and it has no dq.  NULL: t */
  const int32_t *query;
  const int32_t *query_row; /* [queries] where a query's q, out and lse lie; NULL: as dout */
  int window;               /* as in struct rows */
  float cap;                /* as in struct rows */
};

/* How tokens are drawn from a row of logits. */
struct sampling_params {
  float temperature; /* 0: greedy (lowest id among equals) */
  int top_k;         /* 0: off */
  float top_p;       /* 1: off */
  float min_p;       /* 0: off */
};

/* Whether anything is left out of a row (NUMERICS.md, "Cuts").  All zero: no. */
static inline bool sampling_cuts(const struct sampling_params *p) {
  return p->temperature > 0 && (p->top_k > 0 || (p->top_p > 0 && p->top_p < 1) || p->min_p > 0);
}

/* One token from a row of logits. */
struct draw {
  int32_t row;
  float temperature; /* 0: the likeliest, whose log-probability is that of temperature 1 */
  float u;           /* uniform in (0,1) */
  int32_t token;     /* result */
  float logprob;     /* result: logprob's, bit for bit */
};

struct adamw {
  float lr, beta1, beta2, eps, weight_decay;
  float bias1, bias2; /* 1 - beta^t */
  float grad_scale;   /* the clip coefficient, multiplied into every gradient */
};

/* Moments in 8 bits, as NUMERICS.md tells: a code for each element, and the largest magnitude of each block. */
enum { MOMENT_BLOCK = 256 };
struct moments8 {
  uint8_t *m, *v;
  float *m_max, *v_max;
};

/* Everything except its arrays' content that a sequence of operations depends on (repeat_begin). */
struct repeat_key {
  const void *arrays[3];
  int numbers[3];
};

struct ops {
  const char *name;   /* of the kernels: "cpu-v4", "cuda-invariant" */
  const char *device; /* "cpu", "cuda:0" */
  enum number_format format;
  size_t operand_bytes; /* 2 or 4 */
  struct pool *pool;    /* borrowed */
  size_t scratch_bytes; /* of the table itself */
  bool host_memory;     /* alloc's memory is the host's own */
  int head_dim_max;     /* E that the kernels take; model_create refuses more */
  bool caps_scores;     /* attention and its backward take a cap; else model_create refuses one */

  /* RC_OK, or RC_INTERNAL with a sentence once an operation has failed since the table was made.  Waits until all
   * queued operations are done. */
  enum rc (*status)(const struct ops *, struct err *err);
  void (*destroy)(struct ops *); /* ops_free calls it */

  /* For operations that are repeated with the same arguments, like a decode step's.  True: the caller calls them and
   * then repeat_end.  False: the table kept them under this key earlier and has queued them.  Until the table releases
   * memory the key must determine the arguments; the content of the arrays may change.  Between the two calls there
   * must be neither copies from or to the host, nor status. */
  bool (*repeat_begin)(const struct ops *, const struct repeat_key *key);
  void (*repeat_end)(const struct ops *);

  /* --- memory (device memory on a device); alloc zeroes, NULL when refused --- */
  void *(*alloc)(const struct ops *, size_t bytes);
  void (*release)(const struct ops *, void *memory);
  size_t (*room)(const struct ops *); /* bytes that alloc may still give; SIZE_MAX: bounded by the host only */
  void (*upload)(const struct ops *, void *memory, const void *host, size_t bytes);   /* host is free again on return */
  void (*download)(const struct ops *, void *host, const void *memory, size_t bytes); /* host is filled on return */
  void (*copy)(const struct ops *, void *to, const void *from, size_t bytes);         /* both the table's, apart */
  void (*clear)(const struct ops *, void *memory, size_t bytes);                      /* to zero */
  /* Row i of out = row from[i] of in, rows of `bytes` (a multiple of 2); zero where from[i] < 0.  out may be in when
   * every from[i] >= i, or every from[i] <= i: every row is read before it is overwritten.  from: a list */
  void (*move_rows)(const struct ops *, void *out, const void *in, const int32_t *from, int count, size_t bytes);

  /* --- weights --- */
  size_t (*matrix_bytes)(const struct ops *, int N, int K);
  void (*matrix_pack)(const struct ops *, struct matrix *W, const void *w_operand); /* from [N,K]; W->data given */
  /* W = w^T: N = cols, K = rows */
  void (*matrix_pack_transposed)(const struct ops *, struct matrix *W, const void *w_operand, int rows, int cols);
  /* T = rows [first, first + T->N) of W's transpose; T->data given, T->K = W->N, first a multiple of 16.  NULL where
   * memory is not the host's. */
  void (*matrix_transpose)(const struct ops *, struct matrix *T, const struct matrix *W, int first);
  /* Rows [first, first+count) -> [count,K] */
  void (*matrix_unpack_rows)(const struct ops *, void *w_operand, const struct matrix *W, int first, int count);
  void (*to_operand)(const struct ops *, void *out, const float *in, size_t n); /* round to nearest even */
  void (*from_operand)(const struct ops *, float *out, const void *in, size_t n);
  /* The largest magnitude; infinite when one is not a number. */
  float (*largest)(const struct ops *, const void *operands, size_t n);

  /* --- forward --- */
  /* x[T,K] = table[token] */
  void (*embed)(const struct ops *, float *x, const struct matrix *table, const int32_t *token, int T);
  /* rstd[T] may be NULL.  Norms multiply by w, or by 1 + w when plus_one. */
  void (*rmsnorm)(const struct ops *, void *y_operand, float *rstd, const float *x, const void *w_operand,
                  bool plus_one, float eps, int T, int D);
  /* y[T,N] = x[T,K] W^T, or y += when accumulate: the dot product from zero, then one addition. */
  void (*gemm)(const struct ops *, float *y, const void *x_operand, const struct matrix *W, int T, bool accumulate);
  /* y[T,N] += b[N] */
  void (*add_bias)(const struct ops *, float *y, const void *b_operand, int T, int N);
  /* Per head: RMS norm over E with weight w, then rotate by position (pairs e, e + E/2, Hugging Face's half layout).
   * out operand[T,H,E]; rstd[T,H] may be NULL. w NULL: no norm. rope: [positions][E/2][2] cos, sin. */
  void (*head_norm_rope)(const struct ops *, void *out_operand, float *rstd, const float *x, const void *w_operand,
                         bool plus_one, float eps, const float *rope, const int32_t *position, int T, int H, int E);
  /* [.,G,E] each; row[T]: which of them is a row's, NULL: t */
  void (*kv_write)(const struct ops *, const struct kv_layer *kv, const struct rows *rows, const void *k_operand,
                   const void *v_operand, const int32_t *row);
  /* out operand[T,H,E]; lse[T,H] may be NULL. Key blocks of 32 counted from position 0, online softmax. */
  void (*attention)(const struct ops *, void *out_operand, float *lse, const void *q_operand, const struct kv_layer *kv,
                    const struct rows *rows, int H, float scale);
  /* x = cap * tanh(x / cap); NULL in a table that caps nothing */
  void (*soft_cap)(const struct ops *, float *x, float cap, size_t n);
  /* silu(gate) * up */
  void (*swiglu)(const struct ops *, void *h_operand, const float *gate, const float *up, size_t n);
  /* gelu(gate) * up, GELU's approximation by tanh */
  void (*geglu)(const struct ops *, void *h_operand, const float *gate, const float *up, size_t n);
  /* x *= factor; x += y */
  void (*scale)(const struct ops *, float *x, float factor, size_t n);
  void (*add_operand)(const struct ops *, float *x, const void *y_operand, size_t n);
  /* Layers of experts (network/experts.h), N of them, k for each row; NULL in a table that has none of the five.
   * prob [T,N]: logits, then their softmax.  expert[T,k]: those of the k largest logits, of equals the lower ones,
   * ascending; share[T,k]: their probabilities, divided by their sum when normalize. */
  void (*route)(const struct ops *, int32_t *expert, float *share, float *prob, bool normalize, int T, int N, int k);
  /* x[row[i]] += y[i] * share[slot[i]] for i < count, no row twice; share NULL: += y[i] */
  void (*add_rows)(const struct ops *, float *x, const float *y, const float *share, const int32_t *slot,
                   const int32_t *row, int count, int D);
  /* out operand[count,D]: x[row[i]] * share[slot[i]] */
  void (*share_rows)(const struct ops *, void *out_operand, const float *x, const float *share, const int32_t *slot,
                     const int32_t *row, int count, int D);
  /* z = logits / temperature: logprob[t] = z[target] - lse; lse[T] = max + log sum exp (stored for the backward);
   * entropy[T] may be NULL. target < 0: the row is skipped (outputs 0). */
  void (*logprob)(const struct ops *, float *logprob, float *lse, float *entropy, const float *logits,
                  const int32_t *target, float temperature, int T, int V);

  /* In each row the entries that the cut leaves out become -infinity: see NUMERICS.md, "Cuts".  A row is cut once. */
  void (*cut)(const struct ops *, float *logits, const struct sampling_params *cut, int T, int V);

  /* draws are the host's.  Each draw's token among p[v] = exp(z[v] - max), z = logits / temperature: see NUMERICS.md,
   * "Sampling"; and its log-probability.  Neighbours that draw from one row at one temperature share its sums. */
  void (*sample)(const struct ops *, struct draw *draws, int count, const float *logits, int V);

  /* --- backward: names as in forward, gradients d*; parameter gradients are added to ---
   * row[T]: which row of what the forward pass saved (x, gate, up, rstd; not the gradients) is row t's.  NULL: t */
  /* Tokens in order */
  void (*embed_backward)(const struct ops *, float *dtable, const float *dx, const int32_t *token, int T, int V, int D);
  /* dx +=.  Where memory is the host's, dx or dw may be NULL: it is not wanted. */
  void (*rmsnorm_backward)(const struct ops *, float *dx, float *dw, const float *dy, const float *x,
                           const void *w_operand, bool plus_one, const float *rstd, const int32_t *row, int T, int D);
  /* dW[N,K] += dy^T x, dot over places.  place[T], ascending: the place of row t of dy along the dot; dy is zero at the
   * other places, and x there is finite.  NULL: t. */
  void (*gemm_weight_backward)(const struct ops *, float *dW, const void *dy_operand, const void *x_operand,
                               const int32_t *row, const int32_t *place, int T, int N, int K);
  /* db[N] += dy[T,N], token after token */
  void (*add_bias_backward)(const struct ops *, float *db, const void *dy_operand, int T, int N);
  /* dx overwritten.  Without w no norm, and no dw.  Where memory is the host's, dx or dw may be NULL: it is not
   * wanted. */
  void (*head_norm_rope_backward)(const struct ops *, float *dx, float *dw, const float *dy, const float *x,
                                  const void *w_operand, bool plus_one, const float *rstd, const float *rope,
                                  const int32_t *position, const int32_t *row, int T, int H, int E);
  /* All [T,.,E], or as `batch` says */
  void (*attention_backward)(const struct ops *, float *dq, float *dk, float *dv, const void *dout_operand,
                             const void *out_operand, const float *lse, const void *q_operand, const void *k_operand,
                             const void *v_operand, const struct packed *batch, int H, int G, int E, float scale);
  /* All [T,F] */
  void (*swiglu_backward)(const struct ops *, void *dgate_operand, void *dup_operand, const float *dh,
                          const float *gate, const float *up, const int32_t *row, int T, int F);
  void (*geglu_backward)(const struct ops *, void *dgate_operand, void *dup_operand, const float *dh, const float *gate,
                         const float *up, const int32_t *row, int T, int F);
  /* d operand *= the slope of soft_cap, from what it gave */
  void (*soft_cap_backward)(const struct ops *, void *d_operand, const float *capped, float cap, size_t n);
  /* dshare[slot[i]] = SUM of dh[i] * h[pair[i]]; then dh[i] *= share[saved[i]].  dh [count,F] */
  void (*share_backward)(const struct ops *, float *dshare, float *dh, const void *h_operand, const float *share,
                         const int32_t *slot, const int32_t *saved, const int32_t *pair, int count, int F);
  /* dlogits operand[T,N] of the router, from dshare [T,k]; row: of prob, expert and share */
  void (*route_backward)(const struct ops *, void *dlogits_operand, const float *dshare, const float *prob,
                         const int32_t *expert, const float *share, const int32_t *row, bool normalize, int T, int N,
                         int k);
  /* dlogits operand[T,V] = (dlogprob[t] * (1[v = target] - p) - dentropy[t] * p * (log p + entropy[t])) / temperature:
   * p = exp(z - lse), entropy as `logprob` gave it; rows with target < 0 are zero.  dentropy and entropy NULL: no
   * entropy counts, and rows whose dentropy is 0 are the same, bit for bit. */
  void (*logprob_backward)(const struct ops *, void *dlogits_operand, const float *dlogprob, const float *dentropy,
                           const float *entropy, const float *logits, const float *lse, const int32_t *target,
                           float temperature, int T, int V);

  /* --- optimizer --- */
  /* acc[i] += round(g[i] * 2^scale_log2); false (and acc untouched where it happened) when a value is not finite or
   * exceeds 2^50 after scaling. */
  bool (*accumulate)(const struct ops *, int64_t *acc, const float *g, size_t n, int scale_log2);
  /* The same, and g is zero afterwards, whatever was in it. */
  bool (*accumulate_and_clear)(const struct ops *, int64_t *acc, float *g, size_t n, int scale_log2);
  /* acc is zero afterwards. */
  void (*grad_from_accumulator)(const struct ops *, float *g, int64_t *acc, size_t n, int scale_log2,
                                double denominator);
  double (*sum_of_squares)(const struct ops *, const float *g, size_t n); /* fixed lanes, fixed tree, in double */
  void (*adamw)(const struct ops *, float *master, float *m, float *v, const float *g, const struct adamw *step,
                size_t n);
  /* The same with moments in 8 bits, block after block: the first has `first` elements, 1 to MOMENT_BLOCK, the others
   * MOMENT_BLOCK, the last what is left of n.  NULL where memory is not the host's. */
  void (*adamw8)(const struct ops *, float *master, const struct moments8 *moments, const float *g,
                 const struct adamw *step, size_t first, size_t n);
};

/* The best kernels that this machine can run, or those of `isa` ("v2", "v3", "v4", "v4-bf16", "amx"; NULL or "": the
 * best).  pool is borrowed.  RC_INVALID for another name, RC_UNSUPPORTED when the machine lacks them; the message lists
 * the available ones.  An instruction set whose instructions do not give NUMERICS.md's bits counts as lacking, and is
 * logged when it would have been the best. */
enum rc ops_cpu_create(struct ops **out, enum number_format format, const char *isa, struct pool *pool,
                       struct err *err);
static inline void ops_free(struct ops *ops) /* NULL is fine */
{
  if (ops) ops->destroy(ops);
}
/* RC_OK if ops_cpu_create would accept `isa`, else its error; for callers that create their table later. */
enum rc ops_cpu_check(const char *isa, struct err *err);

/* --- between the host and the table's memory --- */

/* Bytes that a `place` below needs: none if the table's memory is the host's. */
static inline size_t ops_place_bytes(const struct ops *ops, size_t bytes) { return ops->host_memory ? 0 : bytes; }

/* A list of the host's as operations take it: itself, or a copy in `place` (the table's memory, ops_place_bytes). */
static inline const void *ops_stage(const struct ops *ops, void *place, const void *list, size_t bytes) {
  if (ops->host_memory || !list) return list;
  ops->upload(ops, place, list, bytes);
  return place;
}

/* The table's memory as the host reads it: itself, or a copy in `place` (the host's, ops_place_bytes). */
static inline const void *ops_fetch(const struct ops *ops, void *place, const void *memory, size_t bytes) {
  if (ops->host_memory) return memory;
  ops->download(ops, place, memory, bytes);
  return place;
}

#endif
