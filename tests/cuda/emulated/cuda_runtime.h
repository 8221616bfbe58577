/* As much of CUDA as common/model/cuda uses, on the host, so that the kernels' logic is tested where there is no GPU:
 * found on the include path in the place of the toolkit's header when g++ compiles the .cu files.
 *
 * A launch runs its blocks one after another; a block's threads are fibers of one thread of the host that give way at
 * barriers (emulated.cc).  What is checked beside results: a barrier that not all threads reach ends the test; shared
 * memory begins as NaNs; what cp.async brings is NaNs until it was waited for; device memory can be touched inside
 * launches and copies only, else the process dies; what is written behind an allocation is found when it is freed.
 * What is not: races between barriers, the rounding inside the tensor cores, timing. */
#ifndef LEASEHOLD_TESTS_CUDA_EMULATED_CUDA_RUNTIME_H
#define LEASEHOLD_TESTS_CUDA_EMULATED_CUDA_RUNTIME_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <functional>

#define __global__
#define __device__
#define __shared__   static /* blocks run one after another */
#define __align__(n) alignas(n)

struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};
struct uint4 {
  uint32_t x, y, z, w;
};

/* Of the fiber that runs. */
extern thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

/* On a stream that is being recorded it is kept for later. */
void emulated_launch(struct emulated_stream *stream, dim3 grid, dim3 block, size_t shared_bytes,
                     const std::function<void()> &kernel);
void emulated_block_barrier(void);
void emulated_warp_barrier(void);
int emulated_block_or(int value);
/* This warp's slots, one of 64 bytes for each lane: written before a barrier of the warp, read behind it until
 * emulated_slots_read; the next are others. */
unsigned char *emulated_slot(int lane);
void emulated_slots_read(void);
int emulated_lane(void);
unsigned char *emulated_shared(void);

inline void __syncthreads(void) { emulated_block_barrier(); }
inline void __syncwarp(void) { emulated_warp_barrier(); }
inline int __syncthreads_or(int value) { return emulated_block_or(value); }

template <typename number>
number emulated_shuffle(number x, int source) {
  memcpy(emulated_slot(emulated_lane()), &x, sizeof x);
  emulated_warp_barrier();
  memcpy(&x, emulated_slot(source), sizeof x);
  emulated_slots_read();
  return x;
}
template <typename number>
number __shfl_sync(unsigned, number x, int source) {
  return emulated_shuffle(x, source);
}
template <typename number>
number __shfl_xor_sync(unsigned, number x, int mask) {
  return emulated_shuffle(x, emulated_lane() ^ mask);
}
template <typename number>
number __shfl_down_sync(unsigned, number x, unsigned delta, int width = 32) {
  const int lane = emulated_lane(), source = lane % width + (int)delta < width ? lane + (int)delta : lane;
  return emulated_shuffle(x, source);
}

template <typename number>
number atomicAdd(number *at, number x) {
  const number before = *at;
  *at = before + x;
  return before;
}
inline uint32_t atomicMax(uint32_t *at, uint32_t x) {
  const uint32_t before = *at;
  *at = x > before ? x : before;
  return before;
}

/* --- the runtime's calls --- */

enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation = 2, cudaErrorNoDevice = 100, cudaErrorLaunchFailure = 719 };
enum cudaMemcpyKind { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost, cudaMemcpyDeviceToDevice };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
enum { cudaStreamNonBlocking = 1, cudaEventDisableTiming = 2 };
typedef struct emulated_stream *cudaStream_t;
typedef struct emulated_event *cudaEvent_t;
typedef struct emulated_graph *cudaGraph_t;
typedef struct emulated_graph *cudaGraphExec_t;
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal };
struct cudaUUID_t {
  char bytes[16];
};
struct cudaDeviceProp {
  char name[256];
  cudaUUID_t uuid;
  int major, minor;
};

cudaError_t cudaGetDeviceCount(int *count);
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device);
cudaError_t cudaSetDevice(int device);
cudaError_t cudaMalloc(void **memory, size_t bytes);
cudaError_t cudaFree(void *memory);
cudaError_t cudaMallocHost(void **memory, size_t bytes);
cudaError_t cudaFreeHost(void *memory);
cudaError_t cudaMemGetInfo(size_t *available, size_t *all);
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream);
cudaError_t cudaMemsetAsync(void *memory, int value, size_t bytes, cudaStream_t stream);
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventSynchronize(cudaEvent_t event);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode);
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ready, cudaGraph_t graph, unsigned long long flags);
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream);
cudaError_t cudaGraphDestroy(cudaGraph_t graph);
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph);
cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute attribute, int value);
cudaError_t cudaGetLastError(void);
const char *cudaGetErrorName(cudaError_t error);
const char *cudaGetErrorString(cudaError_t error);

#endif
