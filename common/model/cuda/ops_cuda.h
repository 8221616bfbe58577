/* The operation table on one of NVIDIA's GPUs (sm_80 and above), bf16 operands, float32 sums.
 *
 * What is arithmetic row by row (norms, rotation, SwiGLU, softmax, sampling, the optimizer) is NUMERICS.md to the bit, but
 * for the gradients of norm weights, whose sums run in lanes of their own.  Products of matrices and attention are the
 * tensor cores', in a fixed order: a row's bits depend on no other row, yet they are not the CPU's.  A run's weights
 * therefore repeat on the GPU, and differ from a CPU's. */
#ifndef LEASEHOLD_MODEL_CUDA_OPS_CUDA_H
#define LEASEHOLD_MODEL_CUDA_OPS_CUDA_H

#include "common/model/exactness.h"
#include "common/model/ops.h"

/* device: CUDA's number; pool: the host's threads, borrowed.  RC_UNSUPPORTED for FORMAT_F32 and for what the machine
 * lacks, RC_NO_MEMORY, RC_INTERNAL with CUDA's own words.  A table has a stream of its own: two tables work side by side,
 * and what one has filled the other may read once the first's status was asked for. */
enum rc ops_cuda_create(struct ops **out, enum number_format format, int device, enum exactness exactness,
                        struct pool *pool, struct err *err);
/* How many devices this process sees, one at least: RC_OK or RC_UNSUPPORTED. */
enum rc ops_cuda_count(int *count, struct err *err);
/* The UUID of a device that ops_cuda_check has taken. */
enum rc ops_cuda_identity(unsigned char out[DEVICE_IDENTITY_BYTES], int device, struct err *err);
/* Whether there is such a device, and one that the kernels run on: RC_OK or RC_UNSUPPORTED. */
enum rc ops_cuda_check(int device, struct err *err);

#endif
