/* The choice of the device that computes: read from a service's flags once, checked before anything is loaded.
 *
 * Only `make cuda` compiles CUDA in; other builds refuse it here, with a sentence. */
#ifndef LEASEHOLD_MODEL_DEVICE_H
#define LEASEHOLD_MODEL_DEVICE_H

#include "common/model/exactness.h"
#include "common/model/ops.h"

struct device {
  bool cuda;
  bool pinned; /* index was named: "cuda:N" */
  int index;   /* of the CUDA device */
  enum exactness exactness;
  const char *isa; /* of the CPU's kernels: see ops_cpu_create; borrowed */
};

/* name: "cpu", "cuda" (the first device) or "cuda:N"; exactness: "invariant" or "fastest"; isa: see ops_cpu_create.
 * RC_INVALID, or RC_UNSUPPORTED when this build or this machine lacks it; the field is the flag's name. */
enum rc device_parse(struct device *out, const char *name, const char *exactness, const char *isa, struct err *err);
/* The device of one of several processes that share a task on this machine, of which this one is number `local`: if no
 * device was named, they take the machine's devices in turns.  RC_UNSUPPORTED when the kernels do not run on it. */
enum rc device_take_turn(struct device *device, int local, struct err *err);
/* Equal for two processes that compute on the same GPU; zero for the CPU. */
enum rc device_identity(unsigned char out[DEVICE_IDENTITY_BYTES], const struct device *device, struct err *err);
/* A table on a parsed device; pool is borrowed.  Errors: ops_cpu_create, ops_cuda_create. */
enum rc ops_create(struct ops **out, enum number_format format, const struct device *device, struct pool *pool,
                   struct err *err);

#endif
