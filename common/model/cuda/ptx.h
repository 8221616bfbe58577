/* Instructions for which CUDA C++ has no function.  Outside nvcc the emulation on the include path
 * (tests/cuda/emulated) defines functions of the same names.
 *
 * Fragments of mma.sync.m16n8k16 (PTX ISA, "Matrix Fragments"): lane = 4 * g + i; a: rows g and g + 8, columns 2i, 2i +
 * 1 and 8 more; b: the same columns of row g of the transposed factor; d: rows g and g + 8, columns 2i, 2i + 1. */
#ifndef LEASEHOLD_MODEL_CUDA_PTX_H
#define LEASEHOLD_MODEL_CUDA_PTX_H

#include <cuda_runtime.h>
#include <stdint.h>

#ifdef __CUDACC__
#define DEVICE        static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__

/* The block's dynamic shared memory. */
DEVICE unsigned char *shared_memory(void) {
  extern __shared__ __align__(128) unsigned char leasehold_shared[];
  return leasehold_shared;
}

DEVICE uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* d += a b, bf16 factors, float32 sums. */
DEVICE void mma_16816(float d[4], const uint32_t a[4], const uint32_t b[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Four 8 x 8 matrices of 16 bits, transposed: lane l names row l % 8 of matrix l / 8 (16 bytes, shared). */
DEVICE void ldmatrix_x4_trans(uint32_t d[4], const void *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
               : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
               : "r"(shared_address(row)));
}

/* 16 bytes from global to shared memory, later; zeros unless there. */
DEVICE void cp_async_16(void *shared, const void *global, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global),
               "r"(there ? 16 : 0)
               : "memory");
}
DEVICE void cp_async_commit(void) { asm volatile("cp.async.commit_group;" ::: "memory"); }
/* Waits until at most N of this thread's groups are on the way. */
template <int N>
DEVICE void cp_async_wait(void) {
  asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

/* Both rounded to nearest even; low in the low half. */
DEVICE uint32_t bf16_pair(float low, float high) {
  uint32_t pair;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}

#else
#include "emulated_ptx.h"
#endif

#endif
