/* Reads the flags that choose a device, checks that this build and machine have it, and makes its table of
 * operations. */
#include "common/model/device.h"

#include <stdlib.h>
#include <string.h>

#ifdef LEASEHOLD_CUDA
#include "common/model/cuda/ops_cuda.h"
#endif

enum { DEVICES_MAX = 64 };

/* "cuda" or "cuda:N"; -1 for anything else. */
static int cuda_index(const char *name) {
  char *end;
  if (strcmp(name, "cuda") == 0) return 0;
  if (strncmp(name, "cuda:", 5) != 0 || name[5] < '0' || name[5] > '9') return -1;
  const unsigned long n = strtoul(name + 5, &end, 10);
  return *end == '\0' && n < DEVICES_MAX ? (int)n : -1;
}

static enum rc parse_exactness(struct device *out, const char *exactness, struct err *err) {
  out->exactness = strcmp(exactness, "fastest") == 0 ? EXACTNESS_FASTEST : EXACTNESS_INVARIANT;
  if (out->exactness == EXACTNESS_INVARIANT && strcmp(exactness, "invariant") != 0)
    return err_set(err, RC_INVALID, "exactness", "expected invariant or fastest, got \"%.40s\"", exactness);
  if (out->exactness == EXACTNESS_FASTEST && !out->cuda)
    return err_set(err, RC_INVALID, "exactness",
                   "fastest is only for --device cuda; the CPU's kernels are invariant");
  return RC_OK;
}

enum rc device_parse(struct device *out, const char *name, const char *exactness, const char *isa, struct err *err) {
  *out = (struct device){.index = cuda_index(name), .isa = isa};
  out->cuda = out->index >= 0;
  out->pinned = out->cuda && strcmp(name, "cuda") != 0;
  if (!out->cuda && strcmp(name, "cpu") != 0)
    return err_set(err, RC_INVALID, "device", "expected cpu, cuda or cuda:N, got \"%.40s\"", name);
  const enum rc rc = parse_exactness(out, exactness, err);
  if (rc != RC_OK) return rc;
  if (!out->cuda) return ops_cpu_check(isa, err);
#ifdef LEASEHOLD_CUDA
  if (isa && *isa)
    return err_set(err, RC_INVALID, "isa", "--isa chooses among the CPU's kernels; --device %.40s has its own", name);
  return ops_cuda_check(out->index, err);
#else
  return err_set(err, RC_UNSUPPORTED, "device",
                 "this build has no CUDA, so it cannot compute on %.40s; `make cuda` builds one that can", name);
#endif
}

enum rc device_take_turn(struct device *device, int local, struct err *err) {
  if (!device->cuda || device->pinned) return RC_OK;
#ifdef LEASEHOLD_CUDA
  int count;
  const enum rc rc = ops_cuda_count(&count, err);
  if (rc != RC_OK) return rc;
  device->index = local % count;
  return ops_cuda_check(device->index, err);
#else
  (void)local;
  return err_set(err, RC_UNSUPPORTED, "device", "this build has no CUDA");
#endif
}

enum rc device_identity(unsigned char out[DEVICE_IDENTITY_BYTES], const struct device *device, struct err *err) {
  memset(out, 0, DEVICE_IDENTITY_BYTES);
#ifdef LEASEHOLD_CUDA
  if (device->cuda) return ops_cuda_identity(out, device->index, err);
#endif
  (void)device, (void)err;
  return RC_OK;
}

enum rc ops_create(struct ops **out, enum number_format format, const struct device *device, struct pool *pool,
                   struct err *err) {
#ifdef LEASEHOLD_CUDA
  if (device->cuda) return ops_cuda_create(out, format, device->index, device->exactness, pool, err);
#endif
  return ops_cpu_create(out, format, device->isa, pool, err);
}
