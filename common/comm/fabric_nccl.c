/* Broadcasts over NCCL among processes whose GPUs reach each other.
 *
 * Compiled and linked where nccl.h is; it has not run yet, because that needs a machine with several GPUs.
 *
 *   root:    bytes --> pinned piece --> device piece --NCCL--> device piece --> pinned piece --> bytes   :members
 *
 * A push sends a file in the host's memory, and members stage it from the host's memory.  So bytes pass through a
 * window of WINDOW pieces, in pinned memory and on the device, on a stream of its own: one piece is copied while
 * another is broadcast.
 *
 * NCCL itself neither bounds a wait nor finds a lost member.  So the communicator is nonblocking, every call is polled
 * with a deadline and with `cancel`, and a lost communicator is aborted, which ends the kernels that wait for the dead.
 *  The fabric owns the window and has one communicator at a time. */
#include <cuda_runtime.h>
#include <nccl.h>
#include <stdlib.h>
#include <string.h>

#include "common/comm/fabric_membership.h"

enum { PIECE_BYTES = 4 << 20, WINDOW = 4, END_MS = 1000 };

struct fabric_nccl {
  struct fabric fabric; /* first: the table */
  int device;
  cudaStream_t stream;
  cudaEvent_t through[WINDOW]; /* the slot's piece has arrived */
  char *pinned, *on_device;    /* [WINDOW * PIECE_BYTES] */
  bool made;
};

struct group {
  struct membership member; /* first */
  struct fabric_nccl *fabric;
  ncclComm_t nccl; /* NULL: aborted */
};

static struct group *group_of(struct comm *c) { return (struct group *)c; }
static struct fabric_nccl *fabric_of(struct fabric *f) { return (struct fabric_nccl *)f; }

static enum rc cuda_answer(cudaError_t answer, const char *what, struct err *err) {
  if (answer == cudaSuccess) return RC_OK;
  return err_set(err, RC_UNAVAILABLE, NULL, "%s by CUDA failed: %s", what, cudaGetErrorString(answer));
}

static enum rc nccl_answer(ncclResult_t answer, const char *what, struct err *err) {
  if (answer == ncclSuccess || answer == ncclInProgress) return RC_OK;
  return err_set(err, RC_UNAVAILABLE, NULL, "%s by NCCL failed: %s", what, ncclGetErrorString(answer));
}

static void lose(struct group *g) {
  atomic_store(&g->member.lost, true);
  if (g->nccl) ncclCommAbort(g->nccl);
  g->nccl = NULL;
}

/* Waits until NCCL has accepted the last call and, unless `event` is NULL, the stream has reached the event. */
static enum rc settle(struct group *g, struct member_wait *w, cudaEvent_t event, const char *what, struct err *err) {
  for (w->moved_us = clock_monotonic_us();;) {
    ncclResult_t state = ncclInternalError;
    enum rc rc = nccl_answer(ncclCommGetAsyncError(g->nccl, &state), what, err);
    if (rc == RC_OK) rc = nccl_answer(state, what, err);
    if (rc != RC_OK) return rc;
    if (state == ncclSuccess) {
      const cudaError_t reached = event ? cudaEventQuery(event) : cudaSuccess;
      if (reached != cudaErrorNotReady) return cuda_answer(reached, what, err);
    }
    if ((rc = member_wait_on(w, &g->member, false, what, err)) != RC_OK) return rc;
  }
}

static size_t piece_bytes(size_t count, size_t piece) {
  const size_t left = count - piece * PIECE_BYTES;
  return left < PIECE_BYTES ? left : PIECE_BYTES;
}

/* Starts a piece whose slot is free. */
static enum rc piece_begin(struct group *g, char *bytes, size_t count, size_t piece, struct member_wait *w,
                           struct err *err) {
  struct fabric_nccl *f = g->fabric;
  const size_t slot = piece % WINDOW, n = piece_bytes(count, piece);
  char *pinned = f->pinned + slot * PIECE_BYTES, *there = f->on_device + slot * PIECE_BYTES;
  const bool root = g->member.comm.rank == 0;
  enum rc rc = RC_OK;
  if (root) {
    memcpy(pinned, bytes + piece * PIECE_BYTES, n);
    rc = cuda_answer(cudaMemcpyAsync(there, pinned, n, cudaMemcpyHostToDevice, f->stream), "broadcast", err);
  }
  if (rc == RC_OK) rc = nccl_answer(ncclBroadcast(there, there, n, ncclUint8, 0, g->nccl, f->stream), "broadcast", err);
  if (rc == RC_OK) rc = settle(g, w, NULL, "broadcast", err); /* only then is it on the stream */
  if (rc == RC_OK && !root)
    rc = cuda_answer(cudaMemcpyAsync(pinned, there, n, cudaMemcpyDeviceToHost, f->stream), "broadcast", err);
  return rc == RC_OK ? cuda_answer(cudaEventRecord(f->through[slot], f->stream), "broadcast", err) : rc;
}

static enum rc piece_end(struct group *g, char *bytes, size_t count, size_t piece, struct member_wait *w,
                         struct err *err) {
  const size_t slot = piece % WINDOW;
  const enum rc rc = settle(g, w, g->fabric->through[slot], "broadcast", err);
  if (rc == RC_OK && g->member.comm.rank > 0)
    memcpy(bytes + piece * PIECE_BYTES, g->fabric->pinned + slot * PIECE_BYTES, piece_bytes(count, piece));
  return rc;
}

static enum rc group_broadcast(struct comm *comm, void *bytes, size_t count, int root, int64_t wait_ms,
                               struct err *err) {
  struct group *g = group_of(comm);
  const size_t pieces = (count + PIECE_BYTES - 1) / PIECE_BYTES;
  struct member_wait w = member_wait_start(wait_ms);
  size_t begun = 0;
  enum rc rc = membership_broadcasts(comm, root, err);
  if (rc == RC_OK) rc = cuda_answer(cudaSetDevice(g->fabric->device), "broadcast", err);
  for (size_t done = 0; done < pieces && rc == RC_OK;) {
    if (begun < pieces && begun < done + WINDOW)
      rc = piece_begin(g, bytes, count, begun++, &w, err);
    else
      rc = piece_end(g, bytes, count, done++, &w, err);
  }
  if (rc != RC_OK) lose(g);
  return rc;
}

static void group_free(struct comm *comm) {
  lose(group_of(comm)); /* its work is done or lost, so nothing is waited for */
  free(comm);
}

/* --- the fabric --- */

static void window_free(struct fabric_nccl *f) {
  for (int s = 0; s < WINDOW; s++) {
    if (f->through[s]) cudaEventDestroy(f->through[s]);
    f->through[s] = NULL;
  }
  if (f->stream) cudaStreamDestroy(f->stream);
  cudaFreeHost(f->pinned);
  cudaFree(f->on_device);
  f->stream = NULL;
  f->pinned = f->on_device = NULL;
}

/* At the first joining: a service that never pushes needs no window. */
static enum rc window_make(struct fabric_nccl *f, struct err *err) {
  enum rc rc = cuda_answer(cudaSetDevice(f->device), "joining", err);
  if (f->made || rc != RC_OK) return rc;
  rc = cuda_answer(cudaStreamCreateWithFlags(&f->stream, cudaStreamNonBlocking), "joining", err);
  for (int s = 0; s < WINDOW && rc == RC_OK; s++)
    rc = cuda_answer(cudaEventCreateWithFlags(&f->through[s], cudaEventDisableTiming), "joining", err);
  if (rc == RC_OK)
    rc = cuda_answer(cudaHostAlloc((void **)&f->pinned, WINDOW * PIECE_BYTES, cudaHostAllocDefault), "joining", err);
  if (rc == RC_OK) rc = cuda_answer(cudaMalloc((void **)&f->on_device, WINDOW * PIECE_BYTES), "joining", err);
  f->made = rc == RC_OK;
  if (rc != RC_OK) window_free(f);
  return rc;
}

/* Waits for the end of the work that a lost communicator had started. */
static enum rc window_drain(struct fabric_nccl *f, struct err *err) {
  struct awake_timeout timeout = awake_timeout_start(END_MS, clock_monotonic_us());
  cudaError_t state;
  while ((state = cudaStreamQuery(f->stream)) == cudaErrorNotReady &&
         !awake_timeout_expired(&timeout, clock_monotonic_us()))
    polling_rest(POLLING_EAGER_US);
  return cuda_answer(state, "joining", err);
}

static enum rc nccl_join(struct fabric *fabric, struct comm **out, const struct fabric_seat *seat, int64_t wait_ms,
                         struct err *err) {
  struct fabric_nccl *f = fabric_of(fabric);
  ncclUniqueId id;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  struct member_wait w = member_wait_start(wait_ms);
  config.blocking = 0;
  enum rc rc = fabric_seat_check(seat->token, seat->rank, seat->size, err);
  if (rc == RC_OK) rc = fabric_token_read_bytes(seat->token, &id, sizeof id, err);
  if (rc == RC_OK) rc = window_make(f, err);
  if (rc == RC_OK) rc = window_drain(f, err);
  if (rc != RC_OK) return rc;
  struct group *g = calloc(1, sizeof *g);
  if (!g) return err_set(err, RC_NO_MEMORY, NULL, "a communicator's state was refused memory");
  membership_begin(&g->member, f->fabric.kind, seat);
  g->member.comm.broadcast = group_broadcast;
  g->member.comm.free = group_free;
  g->fabric = f;
  rc = nccl_answer(ncclCommInitRankConfig(&g->nccl, seat->size, id, seat->rank, &config), "joining", err);
  if (rc == RC_OK) rc = settle(g, &w, NULL, "joining", err);
  if (rc != RC_OK) {
    group_free(&g->member.comm);
    return rc;
  }
  *out = &g->member.comm;
  return RC_OK;
}

static enum rc nccl_token(struct fabric *fabric, char out[FABRIC_TOKEN_MAX], struct err *err) {
  ncclUniqueId id;
  (void)fabric;
  _Static_assert(2 * sizeof id < FABRIC_TOKEN_MAX, "room for an id in hexadecimal");
  const enum rc rc = nccl_answer(ncclGetUniqueId(&id), "a token", err);
  if (rc == RC_OK) fabric_token_write_bytes(out, &id, sizeof id);
  return rc;
}

static void nccl_free(struct fabric *fabric) {
  struct fabric_nccl *f = fabric_of(fabric);
  if (f->made && cudaSetDevice(f->device) == cudaSuccess) window_free(f);
  free(f);
}

enum rc fabric_nccl_create(struct fabric **out, int device, struct err *err) {
  struct fabric_nccl *f = calloc(1, sizeof *f);
  if (!f) return err_set(err, RC_NO_MEMORY, NULL, "the fabric's state was refused memory");
  f->fabric = (struct fabric){.kind = "nccl", .token = nccl_token, .join = nccl_join, .free = nccl_free};
  f->device = device;
  *out = &f->fabric;
  return RC_OK;
}
