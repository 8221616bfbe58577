/* One rank of the comm over NCCL, with a GPU each: `mpirun -n GPUS build/tests/ranks/check_nccl`.  Broadcast,
 * all_gather and reduce_scatter of device memory against what they must give; then the fabric over NCCL
 * (check_fabric.h).  It has been compiled and linked, and not run yet: only a machine with several GPUs can. */
#include <cuda_runtime.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/comm/comm.h"
#include "tests/ranks/check_fabric.h"

enum { WAIT_MS = 60000, COUNT = 3000017 };

static struct comm *host, *comm;
static int64_t *here, *there; /* [COUNT] of the host, of the device */

static void must(bool good, const char *what) {
  if (good) return;
  fprintf(stderr, "rank %d: %s\n", host ? host->rank : -1, what);
  exit(1);
}

static int64_t value_at(int rank, size_t i) { return (int64_t)((i * 2654435761u) ^ 0x5bd1e995u) * (rank + 1) - 77; }

static void fill(void) {
  for (size_t i = 0; i < COUNT; i++) here[i] = value_at(comm->rank, i);
  must(cudaMemcpy(there, here, COUNT * sizeof *here, cudaMemcpyHostToDevice) == cudaSuccess, "copying to the device");
}

static void fetch(enum rc rc, const struct err *err) {
  must(rc == RC_OK, err->message);
  must(cudaMemcpy(here, there, COUNT * sizeof *here, cudaMemcpyDeviceToHost) == cudaSuccess, "copying from the device");
}

static void fail(const char *what) { must(false, what); }

int main(void) {
  const struct comm_mpi_options options = {.start_ms = WAIT_MS, .silence_ms = 10000};
  struct err err;
  int devices = 0, device = 0;
  must(comm_mpi_create(&host, &options, &err) == RC_OK, err.message);
  if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) cudaSetDevice(device = host->rank % devices);
  must(comm_nccl_create(&comm, host, WAIT_MS, &err) == RC_OK, err.message);
  here = malloc(COUNT * sizeof *here);
  must(here && cudaMalloc((void **)&there, COUNT * sizeof *there) == cudaSuccess, "no memory");
  size_t *begin = calloc((size_t)comm->size + 1, sizeof *begin), *bytes = calloc((size_t)comm->size + 1, sizeof *bytes);
  must(begin && bytes, "no memory");
  for (int r = 0; r <= comm->size; r++) {
    begin[r] = (size_t)COUNT * (size_t)(r * r) / (size_t)(comm->size * comm->size); /* parts of unequal size */
    bytes[r] = begin[r] * sizeof *here;
  }
  const int last = comm->size - 1;
  fill();
  fetch(comm->broadcast(comm, there, COUNT * sizeof *there, last, WAIT_MS, &err), &err);
  for (size_t i = 0; i < COUNT; i++) must(here[i] == value_at(last, i), "broadcast brought something else");
  fill();
  fetch(comm->all_gather(comm, there, bytes, WAIT_MS, &err), &err);
  for (int r = 0; r < comm->size; r++) {
    for (size_t i = begin[r]; i < begin[r + 1]; i++)
      must(here[i] == value_at(r, i), "all_gather brought something else");
  }
  fill();
  fetch(comm->reduce_scatter(comm, there, begin, WAIT_MS, &err), &err);
  for (size_t i = begin[comm->rank]; i < begin[comm->rank + 1]; i++) {
    int64_t sum = 0;
    for (int r = 0; r < comm->size; r++) sum += value_at(r, i);
    must(here[i] == sum, "reduce_scatter brought another sum");
  }
  struct fabric *fabric;
  must(fabric_nccl_create(&fabric, device, &err) == RC_OK, err.message);
  fabric_check(host, fabric, fail);
  fabric->free(fabric);
  if (comm->rank == 0) printf("device memory of %d ranks over %s is carried right\n", comm->size, comm->name);
  cudaFree(there);
  free(here);
  free(begin);
  free(bytes);
  comm->free(comm);
  host->free(host);
  return 0;
}
