/* Parts that the files of cuda/ share: the table's state, keeping errors, launching.  ops_cuda.cu makes the table; each
 * other file has one subject and implements operations of ops.h under the names below.
 *
 * Errors.  Operations return nothing, so the first failure is kept (cuda_fail), later operations do nothing, and
 * ops->status reports it.  Threading: one thread at a time calls a table, any thread in turn: cuda_enter chooses its
 * device. Memory: `scratch` and the two halves of `bounce` are the table's, made at its creation; kernels never
 * allocate. */
#ifndef LEASEHOLD_MODEL_CUDA_CUDA_TABLE_H
#define LEASEHOLD_MODEL_CUDA_CUDA_TABLE_H

#include <cuda_runtime.h>

extern "C" {
#include "common/model/exactness.h"
#include "common/model/ops.h"
}

enum {
  CUDA_SCRATCH_BYTES = 96 << 20, /* partial results of attention, softmax and sums; the vendor's workspace */
  CUDA_BOUNCE_BYTES = 8 << 20,   /* of one half: pinned, between the host's arrays and the device */
  CUDA_HEAD_DIM_MAX = 128,       /* E: an item's output fills the registers of a quad of lanes */
  CUDA_THREADS = 256,            /* of a block that works element by element */
  CUDA_BLOCKS_MAX = 4096         /* of a grid that loops over elements */
};

struct graph_cache; /* graph_cache.cu: graphs of repeated operations */
struct vendor;      /* gemm_vendor.cu: cuBLASLt's handle and the algorithms that were chosen */

struct cuda_ops {
  struct ops ops; /* first: a struct ops * is a struct cuda_ops * */
  int device;
  enum exactness exactness;
  char device_name[16];
  cudaStream_t stream;
  unsigned char *scratch; /* [CUDA_SCRATCH_BYTES] on the device */
  unsigned char *bounce;  /* [2][CUDA_BOUNCE_BYTES] pinned */
  size_t bounce_used;     /* of the half at hand */
  int bounce_half;
  cudaEvent_t bounce_sent[2]; /* the device has taken everything from that half */
  struct vendor *vendor;      /* EXACTNESS_FASTEST only */
  struct graph_cache *graphs;
  struct err failure; /* rc RC_OK: none so far */
};

static inline struct cuda_ops *cuda_of(const struct ops *o) { return (struct cuda_ops *)(void *)o; }

/* Keeps the first failure; `what` was being done. */
void cuda_fail(struct cuda_ops *c, enum rc rc, const char *what, const char *why);
/* True on success; keeps the error otherwise. */
bool cuda_check(struct cuda_ops *c, cudaError_t error, const char *what);
/* The calling thread works on the table's device now; false when something failed before. */
bool cuda_enter(struct cuda_ops *c);

/* Blocks of `unit` for n elements, at most CUDA_BLOCKS_MAX: for kernels that loop. */
static inline unsigned cuda_blocks(size_t n, size_t unit) {
  const size_t blocks = (n + unit - 1) / unit;
  return (unsigned)(blocks < CUDA_BLOCKS_MAX ? blocks : (size_t)CUDA_BLOCKS_MAX);
}

/* Queues a kernel; an empty grid is nothing to do. */
template <typename... parameters, typename... arguments>
static void cuda_launch(struct cuda_ops *c, const char *what, void (*kernel)(parameters...), dim3 grid, dim3 block,
                        size_t shared_bytes, arguments... given) {
  enum { SHARED_WITHOUT_ASKING = 48 << 10 };
  if (grid.x == 0 || grid.y == 0 || grid.z == 0 || !cuda_enter(c)) return;
  if (shared_bytes > SHARED_WITHOUT_ASKING &&
      !cuda_check(
          c, cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared_bytes),
          what))
    return;
#ifdef __CUDACC__
  kernel<<<grid, block, shared_bytes, c->stream>>>(static_cast<parameters>(given)...);
#else
  emulated_launch(c->stream, grid, block, shared_bytes, [=] { kernel(static_cast<parameters>(given)...); });
#endif
  cuda_check(c, cudaGetLastError(), what);
}

/* --- graph_cache.cu --- */
enum rc graph_cache_open(struct cuda_ops *c, struct err *err);
void graph_cache_forget(struct cuda_ops *c); /* memory is released: kept graphs may contain its address */
void graph_cache_close(struct cuda_ops *c);
bool cuda_repeat_begin(const struct ops *o, const struct repeat_key *key);
void cuda_repeat_end(const struct ops *o);

/* --- memory.cu --- */
enum rc cuda_memory_open(struct cuda_ops *c, struct err *err);
void cuda_memory_close(struct cuda_ops *c);
void *cuda_alloc(const struct ops *o, size_t bytes);
void cuda_release(const struct ops *o, void *memory);
size_t cuda_room(const struct ops *o);
void cuda_upload(const struct ops *o, void *memory, const void *host, size_t bytes);
void cuda_download(const struct ops *o, void *host, const void *memory, size_t bytes);
void cuda_copy(const struct ops *o, void *to, const void *from, size_t bytes);
void cuda_clear(const struct ops *o, void *memory, size_t bytes);

/* --- operand_moves.cu --- */
void cuda_move_rows(const struct ops *o, void *out, const void *in, const int32_t *from, int count, size_t bytes);
size_t cuda_matrix_bytes(const struct ops *o, int N, int K);
void cuda_matrix_pack(const struct ops *o, struct matrix *W, const void *w);
void cuda_matrix_pack_transposed(const struct ops *o, struct matrix *W, const void *w, int rows, int cols);
void cuda_matrix_unpack_rows(const struct ops *o, void *w, const struct matrix *W, int first, int count);
void cuda_to_operand(const struct ops *o, void *out, const float *in, size_t n);
void cuda_from_operand(const struct ops *o, float *out, const void *in, size_t n);
float cuda_largest(const struct ops *o, const void *operands, size_t n);
void cuda_embed(const struct ops *o, float *x, const struct matrix *table, const int32_t *token, int T);
void cuda_embed_backward(const struct ops *o, float *dtable, const float *dx, const int32_t *token, int T, int V,
                         int D);
void cuda_kv_write(const struct ops *o, const struct kv_layer *kv, const struct rows *rows, const void *k,
                   const void *v, const int32_t *row);

/* --- norm.cu --- */
void cuda_rmsnorm(const struct ops *o, void *y, float *rstd, const float *x, const void *w, bool plus_one, float eps,
                  int T, int D);
void cuda_rmsnorm_backward(const struct ops *o, float *dx, float *dw, const float *dy, const float *x, const void *w,
                           bool plus_one, const float *rstd, const int32_t *row, int T, int D);
void cuda_head_norm_rope(const struct ops *o, void *out, float *rstd, const float *x, const void *w, bool plus_one,
                         float eps, const float *rope, const int32_t *position, int T, int H, int E);
void cuda_head_norm_rope_backward(const struct ops *o, float *dx, float *dw, const float *dy, const float *x,
                                  const void *w, bool plus_one, const float *rstd, const float *rope,
                                  const int32_t *position, const int32_t *row, int T, int H, int E);
void cuda_add_bias(const struct ops *o, float *y, const void *b, int T, int N);
void cuda_add_bias_backward(const struct ops *o, float *db, const void *dy, int T, int N);

/* --- swiglu.cu --- */
void cuda_swiglu(const struct ops *o, void *h, const float *gate, const float *up, size_t n);
void cuda_swiglu_backward(const struct ops *o, void *dgate, void *dup, const float *dh, const float *gate,
                          const float *up, const int32_t *row, int T, int F);
void cuda_geglu(const struct ops *o, void *h, const float *gate, const float *up, size_t n);
void cuda_geglu_backward(const struct ops *o, void *dgate, void *dup, const float *dh, const float *gate,
                         const float *up, const int32_t *row, int T, int F);
void cuda_scale(const struct ops *o, float *x, float factor, size_t n);
void cuda_add_operand(const struct ops *o, float *x, const void *y, size_t n);

/* --- gemm.cu --- */
void cuda_gemm(const struct ops *o, float *y, const void *x, const struct matrix *W, int T, bool accumulate);
void cuda_gemm_weight_backward(const struct ops *o, float *dW, const void *dy, const void *x, const int32_t *row,
                               const int32_t *place, int T, int N, int K);

/* --- gemm_vendor.cu --- */
enum rc vendor_open(struct cuda_ops *c, struct err *err);
void vendor_close(struct vendor *v); /* NULL is fine */
/* y [T,N] = x [T,K] W^T, or y +=.  False, and nothing done, where the library has no kernel for the shape. */
bool vendor_gemm(struct cuda_ops *c, float *y, const void *x, const struct matrix *W, int T, bool accumulate);
/* dW [N,K] += dy^T x over T rows one behind another.  False: as above. */
bool vendor_gemm_weight_backward(struct cuda_ops *c, float *dW, const void *dy, const void *x, int T, int N, int K);

/* --- attention.cu, attention_backward.cu --- */
void cuda_attention(const struct ops *o, void *out, float *lse, const void *q, const struct kv_layer *kv,
                    const struct rows *rows, int H, float scale);
void cuda_attention_backward(const struct ops *o, float *dq, float *dk, float *dv, const void *dout, const void *out,
                             const float *lse, const void *q, const void *k, const void *v, const struct packed *batch,
                             int H, int G, int E, float scale);

/* --- softmax.cu --- */
void cuda_logprob(const struct ops *o, float *logprob, float *lse, float *entropy, const float *logits,
                  const int32_t *target, float temperature, int T, int V);
void cuda_cut(const struct ops *o, float *logits, const struct sampling_params *cut, int T, int V);
void cuda_logprob_backward(const struct ops *o, void *dlogits, const float *dlogprob, const float *dentropy,
                           const float *entropy, const float *logits, const float *lse, const int32_t *target,
                           float temperature, int T, int V);
void cuda_sample(const struct ops *o, struct draw *draws, int count, const float *logits, int V);

/* --- optimizer.cu --- */
bool cuda_accumulate(const struct ops *o, int64_t *acc, const float *g, size_t n, int scale_log2);
bool cuda_accumulate_and_clear(const struct ops *o, int64_t *acc, float *g, size_t n, int scale_log2);
void cuda_grad_from_accumulator(const struct ops *o, float *g, int64_t *acc, size_t n, int scale_log2,
                                double denominator);
double cuda_sum_of_squares(const struct ops *o, const float *g, size_t n);
void cuda_adamw(const struct ops *o, float *master, float *m, float *v, const float *g, const struct adamw *step,
                size_t n);

#endif
