/* Multiplies matrices by cuBLASLt, whose kernels differ with the number of rows (EXACTNESS_FASTEST).
 *
 * The library is asked for its choice once for each shape, and the answer is kept; its workspace is fixed.  gemm.cu
 * takes shapes that the library has no kernel for (rows that are not a multiple of 16 bytes, say).  Row-major arrays
 * are the library's column-major transposes: y^T [N,T] = (W^T)^T x^T. Letters as in ops.h. */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/model/cuda/cuda_table.h"

enum { WORKSPACE_BYTES = 32 << 20, PLANS_MAX = 1024, PROBES = 8 };

/* D [rows,columns] = op(A) op(B) (+ D), sums over `depth`; all column-major. */
struct shape {
  int rows, columns, depth;
  bool weight; /* dW: A as it is, B transposed; else A transposed, B as it is */
  bool accumulate;
};

struct plan {
  bool made, has_kernel;
  struct shape shape;
  cublasLtMatmulDesc_t operation;
  cublasLtMatrixLayout_t a, b, d;
  cublasLtMatmulAlgo_t algorithm;
};

struct vendor {
  cublasLtHandle_t handle;
  void *workspace;
  struct plan plans[PLANS_MAX]; /* by a shape's hash; an old one makes room */
};

static bool holds(struct cuda_ops *c, cublasStatus_t status, const char *what) {
  if (status == CUBLAS_STATUS_SUCCESS) return true;
  cuda_fail(c, RC_INTERNAL, what, cublasLtGetStatusName(status));
  return false;
}

enum rc vendor_open(struct cuda_ops *c, struct err *err) {
  c->vendor = (struct vendor *)calloc(1, sizeof *c->vendor);
  if (!c->vendor)
    return err_set(err, RC_NO_MEMORY, NULL, "cuBLASLt's plans need %zu bytes, which were refused", sizeof *c->vendor);
  const bool good =
      holds(c, cublasLtCreate(&c->vendor->handle), "opening cuBLASLt") &&
      cuda_check(c, cudaMalloc(&c->vendor->workspace, WORKSPACE_BYTES), "allocating cuBLASLt's workspace");
  c->ops.scratch_bytes += WORKSPACE_BYTES;
  if (!good && err) *err = c->failure;
  return c->failure.rc;
}

static void forget(struct plan *p) {
  if (p->operation) (void)cublasLtMatmulDescDestroy(p->operation);
  if (p->a) (void)cublasLtMatrixLayoutDestroy(p->a);
  if (p->b) (void)cublasLtMatrixLayoutDestroy(p->b);
  if (p->d) (void)cublasLtMatrixLayoutDestroy(p->d);
  *p = (struct plan){};
}

void vendor_close(struct vendor *v) {
  if (!v) return;
  for (int i = 0; i < PLANS_MAX; i++) forget(&v->plans[i]);
  if (v->workspace) (void)cudaFree(v->workspace);
  if (v->handle) (void)cublasLtDestroy(v->handle);
  free(v);
}

static bool same_shape(const struct shape *a, const struct shape *b) {
  return a->rows == b->rows && a->columns == b->columns && a->depth == b->depth && a->weight == b->weight &&
         a->accumulate == b->accumulate;
}

/* The library's choice for a shape, into p->algorithm. */
static bool choose(struct cuda_ops *c, struct plan *p) {
  cublasLtMatmulPreference_t preference = NULL;
  cublasLtMatmulHeuristicResult_t result;
  const size_t workspace = WORKSPACE_BYTES;
  int found = 0;
  bool good = holds(c, cublasLtMatmulPreferenceCreate(&preference), "choosing a product's kernel");
  good = good && holds(c,
                       cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                            &workspace, sizeof workspace),
                       "choosing a product's kernel");
  cublasStatus_t status = CUBLAS_STATUS_SUCCESS;
  if (good)
    status = cublasLtMatmulAlgoGetHeuristic(c->vendor->handle, p->operation, p->a, p->b, p->d, p->d, preference, 1,
                                            &result, &found);
  good = good && (status == CUBLAS_STATUS_NOT_SUPPORTED || holds(c, status, "choosing a product's kernel"));
  p->has_kernel = good && status == CUBLAS_STATUS_SUCCESS && found > 0;
  if (p->has_kernel) p->algorithm = result.algo;
  if (preference) (void)cublasLtMatmulPreferenceDestroy(preference);
  return good;
}

static bool make(struct cuda_ops *c, struct plan *p, const struct shape *s) {
  const cublasOperation_t as_it_is = CUBLAS_OP_N, transposed = CUBLAS_OP_T;
  const uint64_t rows = (uint64_t)s->rows, columns = (uint64_t)s->columns, depth = (uint64_t)s->depth;
  const char *what = "describing a product";
  forget(p);
  p->shape = *s;
  bool good = holds(c, cublasLtMatmulDescCreate(&p->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), what);
  good = good && holds(c,
                       cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSA,
                                                      s->weight ? &as_it_is : &transposed, sizeof as_it_is),
                       what);
  good = good && holds(c,
                       cublasLtMatmulDescSetAttribute(p->operation, CUBLASLT_MATMUL_DESC_TRANSB,
                                                      s->weight ? &transposed : &as_it_is, sizeof as_it_is),
                       what);
  good = good && holds(c,
                       s->weight ? cublasLtMatrixLayoutCreate(&p->a, CUDA_R_16BF, rows, depth, s->rows)
                                 : cublasLtMatrixLayoutCreate(&p->a, CUDA_R_16BF, depth, rows, s->depth),
                       what);
  good = good && holds(c,
                       s->weight ? cublasLtMatrixLayoutCreate(&p->b, CUDA_R_16BF, columns, depth, s->columns)
                                 : cublasLtMatrixLayoutCreate(&p->b, CUDA_R_16BF, depth, columns, s->depth),
                       what);
  good = good && holds(c, cublasLtMatrixLayoutCreate(&p->d, CUDA_R_32F, rows, columns, s->rows), what);
  p->made = good && choose(c, p);
  return p->made;
}

static struct plan *plan_for(struct cuda_ops *c, const struct shape *s) {
  const uint32_t hash =
      ((uint32_t)s->rows * 31u + (uint32_t)s->columns * 2654435761u + (uint32_t)s->depth * 40503u) * 2u + s->accumulate;
  struct plan *plans = c->vendor->plans, *at = &plans[hash % PLANS_MAX];
  for (uint32_t i = 0; i < PROBES; i++) {
    struct plan *p = &plans[(hash + i) % PLANS_MAX];
    if (p->made && same_shape(&p->shape, s)) return p;
    if (!p->made) {
      at = p;
      break;
    }
  }
  return make(c, at, s) ? at : NULL;
}

static bool multiply(struct cuda_ops *c, const struct shape *s, float *d, const void *a, const void *b) {
  const float one = 1.0f, beta = s->accumulate ? 1.0f : 0.0f;
  if (!cuda_enter(c)) return true;
  const struct plan *p = plan_for(c, s);
  if (p && !p->has_kernel) return false;
  if (p)
    holds(c,
          cublasLtMatmul(c->vendor->handle, p->operation, &one, a, p->a, b, p->b, &beta, d, p->d, d, p->d,
                         &p->algorithm, c->vendor->workspace, WORKSPACE_BYTES, c->stream),
          "multiplying matrices");
  return true;
}

bool vendor_gemm(struct cuda_ops *c, float *y, const void *x, const struct matrix *W, int T, bool accumulate) {
  const struct shape s = {W->N, T, W->K, false, accumulate};
  return multiply(c, &s, y, W->data, x);
}

bool vendor_gemm_weight_backward(struct cuda_ops *c, float *dW, const void *dy, const void *x, int T, int N, int K) {
  const struct shape s = {K, N, T, true, true};
  return multiply(c, &s, dW, x, dy);
}
