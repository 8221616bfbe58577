/* Allocates the device's memory (never managed memory), and copies between it and the host's.
 *
 * An upload is copied into one half of `bounce`, pinned memory from which the device copies later, so that the call
 * returns at once and the device goes on computing.  A full half is filled again only after the device has taken
 * everything from it.  A download comes the same way, and the call waits for it. */
#include <string.h>

#include "common/model/cuda/cuda_table.h"

enum { ALIGNMENT = 64 };

enum rc cuda_memory_open(struct cuda_ops *c, struct err *err) {
  bool good =
      cuda_enter(c) && cuda_check(c, cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking), "making a stream");
  for (int half = 0; half < 2 && good; half++)
    good = cuda_check(c, cudaEventCreateWithFlags(&c->bounce_sent[half], cudaEventDisableTiming), "making an event");
  good = good && cuda_check(c, cudaMalloc((void **)&c->scratch, CUDA_SCRATCH_BYTES), "allocating the kernels' scratch");
  good = good &&
         cuda_check(c, cudaMallocHost((void **)&c->bounce, 2 * (size_t)CUDA_BOUNCE_BYTES), "allocating pinned memory");
  if (!good && err) *err = c->failure;
  return c->failure.rc;
}

void cuda_memory_close(struct cuda_ops *c) {
  if (c->stream) (void)cudaStreamSynchronize(c->stream);
  if (c->scratch) (void)cudaFree(c->scratch);
  if (c->bounce) (void)cudaFreeHost(c->bounce);
  for (int half = 0; half < 2; half++)
    if (c->bounce_sent[half]) (void)cudaEventDestroy(c->bounce_sent[half]);
}

/* A refusal is not a failure of the table: the caller reports it. */
void *cuda_alloc(const struct ops *o, size_t bytes) {
  struct cuda_ops *c = cuda_of(o);
  void *memory = NULL;
  if (!cuda_enter(c)) return NULL;
  if (cudaMalloc(&memory, bytes ? bytes : (size_t)ALIGNMENT) != cudaSuccess) {
    (void)cudaGetLastError();
    return NULL;
  }
  cuda_clear(o, memory, bytes);
  return memory;
}

void cuda_release(const struct ops *o, void *memory) {
  struct cuda_ops *c = cuda_of(o);
  if (!memory || !cuda_enter(c)) return;
  graph_cache_forget(c);
  cuda_check(c, cudaFree(memory), "releasing memory");
}

size_t cuda_room(const struct ops *o) {
  struct cuda_ops *c = cuda_of(o);
  size_t available = 0, all = 0;
  if (!cuda_enter(c) || !cuda_check(c, cudaMemGetInfo(&available, &all), "asking for free memory")) return 0;
  return available;
}

/* `bytes` <= CUDA_BOUNCE_BYTES of the half at hand, or of the other one; NULL when the device has failed. */
static unsigned char *take_bounce(struct cuda_ops *c, size_t bytes) {
  if (c->bounce_used + bytes > CUDA_BOUNCE_BYTES) {
    if (!cuda_check(c, cudaEventRecord(c->bounce_sent[c->bounce_half], c->stream), "marking a copy")) return NULL;
    c->bounce_half ^= 1;
    c->bounce_used = 0;
    if (!cuda_check(c, cudaEventSynchronize(c->bounce_sent[c->bounce_half]), "waiting for a copy")) return NULL;
  }
  unsigned char *at = c->bounce + (size_t)c->bounce_half * CUDA_BOUNCE_BYTES + c->bounce_used;
  c->bounce_used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  return at;
}

void cuda_upload(const struct ops *o, void *memory, const void *host, size_t bytes) {
  struct cuda_ops *c = cuda_of(o);
  for (size_t done = 0; done < bytes && cuda_enter(c);) {
    const size_t n = bytes - done < CUDA_BOUNCE_BYTES ? bytes - done : (size_t)CUDA_BOUNCE_BYTES;
    unsigned char *at = take_bounce(c, n);
    if (!at) return;
    memcpy(at, (const char *)host + done, n);
    cuda_check(c, cudaMemcpyAsync((char *)memory + done, at, n, cudaMemcpyHostToDevice, c->stream),
               "copying to the device");
    done += n;
  }
}

void cuda_download(const struct ops *o, void *host, const void *memory, size_t bytes) {
  struct cuda_ops *c = cuda_of(o);
  for (size_t done = 0; done < bytes;) {
    const size_t n = bytes - done < CUDA_BOUNCE_BYTES ? bytes - done : (size_t)CUDA_BOUNCE_BYTES;
    unsigned char *at = cuda_enter(c) ? take_bounce(c, n) : NULL;
    if (at)
      cuda_check(c, cudaMemcpyAsync(at, (const char *)memory + done, n, cudaMemcpyDeviceToHost, c->stream),
                 "copying from the device");
    if (at && c->failure.rc == RC_OK)
      cuda_check(c, cudaStreamSynchronize(c->stream), "waiting for a copy from the device");
    if (c->failure.rc == RC_OK)
      memcpy((char *)host + done, at, n);
    else
      memset((char *)host + done, 0, n);
    done += n;
  }
}

void cuda_copy(const struct ops *o, void *to, const void *from, size_t bytes) {
  struct cuda_ops *c = cuda_of(o);
  if (bytes == 0 || !cuda_enter(c)) return;
  cuda_check(c, cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, c->stream), "copying on the device");
}

void cuda_clear(const struct ops *o, void *memory, size_t bytes) {
  struct cuda_ops *c = cuda_of(o);
  if (bytes == 0 || !cuda_enter(c)) return;
  cuda_check(c, cudaMemsetAsync(memory, 0, bytes, c->stream), "clearing memory");
}
