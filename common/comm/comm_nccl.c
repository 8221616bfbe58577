/* Carries the comm over NCCL, for ranks that exchange arrays in the memory of GPUs.
 *
 * Compiled and linked where nccl.h is; it has not run yet, because that needs a machine with several GPUs.
 *
 *   device memory --NCCL, on a stream of its own, polled--> device memory of the other ranks
 *   host memory   --the host comm (MPI)-------------------> host memory of the other ranks
 *
 * NCCL itself neither bounds a wait nor finds a dead rank.  So every NCCL call is nonblocking and polled, with a
 * deadline, while the host comm confirms that all ranks live; a lost communicator is aborted, which frees the kernels
 * that wait for the dead.  Sums go by a reduction to each part's owner in one group, in place, as over MPI: parts need
 * not be equal. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/comm/comm_over_host.h"
#include "common/comm/awake_timeout.h"

struct comm_nccl {
  struct over_host over; /* first */
  ncclComm_t nccl;
  cudaStream_t stream;
};

static struct comm_nccl *nccl_of(struct comm *c) { return (struct comm_nccl *)c; }

static bool on_device(const void *memory) {
  struct cudaPointerAttributes where;
  const bool known = memory && cudaPointerGetAttributes(&where, memory) == cudaSuccess;
  cudaGetLastError(); /* host memory that CUDA does not know is no error of ours */
  return known && where.type == cudaMemoryTypeDevice;
}

/* The other ranks are told through the host comm, whose loss is then this comm's. */
static enum rc lose(struct comm_nccl *c, struct err *err) {
  if (c->nccl) ncclCommAbort(c->nccl);
  c->nccl = NULL;
  c->over.host->give_up(c->over.host);
  return err ? err->rc : RC_UNAVAILABLE;
}

/* Records the loss with the answer of NCCL or CUDA. */
static enum rc lose_by(struct comm_nccl *c, const char *what, const char *why, struct err *err) {
  err_set(err, RC_UNAVAILABLE, NULL, "%s by NCCL on rank %d of %d: %s", what, c->over.comm.rank, c->over.comm.size,
          why);
  return lose(c, err);
}

/* Waits until NCCL has accepted the last call and, when `drained`, the stream has carried it out. */
static enum rc settle(struct comm_nccl *c, const char *what, bool drained, int64_t wait_ms, struct err *err) {
  struct awake_timeout timeout = awake_timeout_start(wait_ms, clock_monotonic_us());
  for (;;) {
    ncclResult_t state = ncclInternalError;
    if (ncclCommGetAsyncError(c->nccl, &state) != ncclSuccess || (state != ncclSuccess && state != ncclInProgress))
      return lose_by(c, what, ncclGetErrorString(state), err);
    if (state == ncclSuccess) {
      const cudaError_t stream = drained ? cudaStreamQuery(c->stream) : cudaSuccess;
      if (stream == cudaSuccess) return RC_OK;
      if (stream != cudaErrorNotReady) return lose_by(c, what, cudaGetErrorString(stream), err);
    }
    if (c->over.host->check(c->over.host, err) != RC_OK) return lose(c, err);
    if (awake_timeout_expired(&timeout, clock_monotonic_us())) return lose_by(c, what, "it did not end in time", err);
    sched_yield();
  }
}

/* RC_OK when there is a communicator to call. */
static enum rc begin(struct comm_nccl *c, struct err *err) {
  if (c->nccl) return RC_OK;
  const enum rc rc = c->over.host->check(c->over.host, err);
  return rc != RC_OK ? rc : err_set(err, RC_UNAVAILABLE, NULL, "the communicator was aborted");
}

static enum rc nccl_broadcast(struct comm *comm, void *bytes, size_t count, int root, int64_t wait_ms,
                              struct err *err) {
  struct comm_nccl *c = nccl_of(comm);
  if (!on_device(bytes)) return c->over.host->broadcast(c->over.host, bytes, count, root, wait_ms, err);
  const enum rc rc = begin(c, err);
  if (rc != RC_OK || count == 0) return rc;
  const ncclResult_t answer = ncclBroadcast(bytes, bytes, count, ncclUint8, root, c->nccl, c->stream);
  if (answer != ncclSuccess && answer != ncclInProgress)
    return lose_by(c, "broadcast", ncclGetErrorString(answer), err);
  return settle(c, "broadcast", true, wait_ms, err);
}

/* One call for every rank's part, in one group: the owner's bytes to all, or the sum of all to the owner. */
static enum rc by_parts(struct comm_nccl *c, const char *what, void *data, const size_t *begins, bool add,
                        int64_t wait_ms, struct err *err) {
  const enum rc rc = begin(c, err);
  if (rc != RC_OK) return rc;
  ncclResult_t answer = ncclGroupStart();
  for (int r = 0; answer == ncclSuccess && r < c->over.comm.size; r++) {
    const size_t count = begins[r + 1] - begins[r];
    char *part = (char *)data + begins[r] * (add ? sizeof(int64_t) : 1);
    if (count == 0) continue;
    answer = add ? ncclReduce(part, part, count, ncclInt64, ncclSum, r, c->nccl, c->stream)
                 : ncclBroadcast(part, part, count, ncclUint8, r, c->nccl, c->stream);
    if (answer == ncclInProgress) answer = ncclSuccess;
  }
  const ncclResult_t ended = ncclGroupEnd();
  if (answer == ncclSuccess && ended != ncclInProgress) answer = ended;
  if (answer != ncclSuccess) return lose_by(c, what, ncclGetErrorString(answer), err);
  return settle(c, what, true, wait_ms, err);
}

static enum rc nccl_all_gather(struct comm *comm, void *bytes, const size_t *begins, int64_t wait_ms, struct err *err) {
  struct comm_nccl *c = nccl_of(comm);
  if (!on_device(bytes)) return c->over.host->all_gather(c->over.host, bytes, begins, wait_ms, err);
  return by_parts(c, "all_gather", bytes, begins, false, wait_ms, err);
}

static enum rc nccl_reduce_scatter(struct comm *comm, int64_t *sums, const size_t *begins, int64_t wait_ms,
                                   struct err *err) {
  struct comm_nccl *c = nccl_of(comm);
  if (!on_device(sums)) return c->over.host->reduce_scatter(c->over.host, sums, begins, wait_ms, err);
  return by_parts(c, "reduce_scatter", sums, begins, true, wait_ms, err);
}

static void nccl_free(struct comm *comm) {
  struct comm_nccl *c = nccl_of(comm);
  if (c->nccl && c->over.host->check(c->over.host, NULL) == RC_OK && ncclCommFinalize(c->nccl) != ncclInvalidArgument &&
      settle(c, "the end", false, AWAKE_TIMEOUT_STEP_MS, NULL) == RC_OK)
    ncclCommDestroy(c->nccl);
  else if (c->nccl)
    ncclCommAbort(c->nccl);
  if (c->stream) cudaStreamDestroy(c->stream);
  free(c);
}

/* Rank 0's id, to all. */
static enum rc join(struct comm_nccl *c, int64_t start_ms, struct err *err) {
  ncclUniqueId id = {{0}};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  int64_t ready = c->over.comm.rank != 0 || ncclGetUniqueId(&id) == ncclSuccess;
  ready = ready && cudaStreamCreateWithFlags(&c->stream, cudaStreamNonBlocking) == cudaSuccess;
  enum rc rc = c->over.host->all_reduce(c->over.host, &ready, 1, COMM_MIN, start_ms, err);
  if (rc == RC_OK && !ready)
    rc = err_set(err, RC_UNSUPPORTED, NULL, "a rank has no CUDA device that can be used, or no NCCL");
  if (rc == RC_OK) rc = c->over.host->broadcast(c->over.host, &id, sizeof id, 0, start_ms, err);
  if (rc != RC_OK) return rc;
  const ncclResult_t answer = ncclCommInitRankConfig(&c->nccl, c->over.comm.size, id, c->over.comm.rank, &config);
  if (answer != ncclSuccess && answer != ncclInProgress)
    return lose_by(c, "the start", ncclGetErrorString(answer), err);
  return settle(c, "the start", false, start_ms, err);
}

enum rc comm_nccl_create(struct comm **out, struct comm *host, int64_t start_ms, struct err *err) {
  struct comm_nccl *c = calloc(1, sizeof *c);
  if (!c) return err_set(err, RC_NO_MEMORY, NULL, "the comm's state was refused memory");
  c->over = over_host_begin("nccl", host);
  c->over.comm.broadcast = nccl_broadcast;
  c->over.comm.all_gather = nccl_all_gather;
  c->over.comm.reduce_scatter = nccl_reduce_scatter;
  c->over.comm.free = nccl_free;
  const enum rc rc = join(c, start_ms, err);
  if (rc != RC_OK) {
    nccl_free(&c->over.comm);
    return rc;
  }
  *out = &c->over.comm;
  return RC_OK;
}
