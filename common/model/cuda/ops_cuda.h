/* The operation table on one of NVIDIA's GPUs (sm_80 and above), bf16 operands, float32 sums.
 *
 * Row by row arithmetic (norms, rotation, SwiGLU, softmax, sampling, the optimizer) is NUMERICS.md to the bit, except
 * for the gradients of norm weights, whose sums run in lanes of their own.  The tensor cores compute products of
 * matrices and attention in a fixed order: a row's bits do not depend on other rows, but they are not the CPU's.  So a
 * run's weights repeat on the GPU and differ from a CPU's. */
#ifndef LEASEHOLD_MODEL_CUDA_OPS_CUDA_H
#define LEASEHOLD_MODEL_CUDA_OPS_CUDA_H

#include "common/model/exactness.h"
#include "common/model/ops.h"

/* device: CUDA's number; pool: the host's threads, borrowed.  RC_UNSUPPORTED for FORMAT_F32 and when the machine lacks
 * something, RC_NO_MEMORY, RC_INTERNAL with CUDA's own words.  A table has a stream of its own: two tables work side by
 * side, and one may read memory that the other has filled after the other's status was asked for. */
enum rc ops_cuda_create(struct ops **out, enum number_format format, int device, enum exactness exactness,
                        struct pool *pool, struct err *err);
/* The number of devices that this process sees, at least one; RC_UNSUPPORTED when there is none. */
enum rc ops_cuda_count(int *count, struct err *err);
/* The UUID of a device that ops_cuda_check has taken. */
enum rc ops_cuda_identity(unsigned char out[DEVICE_IDENTITY_BYTES], int device, struct err *err);
/* RC_OK when there is such a device and the kernels run on it, else RC_UNSUPPORTED. */
enum rc ops_cuda_check(int device, struct err *err);

#endif
