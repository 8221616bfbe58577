/* The emulated device has no cuBLASLt: EXACTNESS_FASTEST is refused, and nothing else calls these. */
#include "common/model/cuda/cuda_table.h"

enum rc vendor_open(struct cuda_ops *c, struct err *err) {
  (void)c;
  return err_set(err, RC_UNSUPPORTED, "exactness", "the emulated device has no kernels of a vendor's");
}
void vendor_close(struct vendor *v) { (void)v; }
bool vendor_gemm(struct cuda_ops *, float *, const void *, const struct matrix *, int, bool) { return false; }
bool vendor_gemm_weight_backward(struct cuda_ops *, float *, const void *, const void *, int, int, int) {
  return false;
}
