/* In NCCL's place over the emulated device, so that what chooses it is tested where there is no GPU: the comm that
 * copies, by the emulated runtime's copies and under NCCL's name.  EMULATED_NCCL=0 is a rank that has none, which all
 * of them learn. */
#include <cuda_runtime.h>
#include <stdlib.h>

extern "C" {
#include "common/comm/comm.h"
}

enum { BOUNCE_BYTES = 1 << 20 };

static enum rc copy(void *stream, void *to, const void *from, size_t bytes, cudaMemcpyKind kind, struct err *err) {
  if (cudaMemcpyAsync(to, from, bytes, kind, (cudaStream_t)stream) == cudaSuccess) return RC_OK;
  return err_set(err, RC_INTERNAL, NULL, "an emulated copy failed");
}

static enum rc to_host(void *stream, void *host, const void *device, size_t bytes, struct err *err) {
  return copy(stream, host, device, bytes, cudaMemcpyDeviceToHost, err);
}

static enum rc to_device(void *stream, void *device, const void *host, size_t bytes, struct err *err) {
  return copy(stream, device, host, bytes, cudaMemcpyHostToDevice, err);
}

extern "C" enum rc comm_nccl_create(struct comm **out, struct comm *host, int64_t start_ms, struct err *err) {
  static cudaStream_t stream;
  const char *has = getenv("EMULATED_NCCL");
  int64_t ready = !has || atoi(has) != 0;
  enum rc rc = host->all_reduce(host, &ready, 1, COMM_MIN, start_ms, err);
  if (rc == RC_OK && !ready) rc = err_set(err, RC_UNSUPPORTED, NULL, "a rank has no emulated NCCL");
  if (rc != RC_OK) return rc;
  cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  const struct comm_copies copies = {stream, to_host, to_device};
  rc = comm_staged_create(out, host, &copies, BOUNCE_BYTES, err);
  if (rc == RC_OK) (*out)->name = "nccl";
  return rc;
}
