/* Opens the fabric that a service was built with, for the two mains: MPI's in trainer-server-mpi and
 * generation-server-mpi, NCCL's if CUDA and NCCL were compiled in and --device is a GPU. */
#ifndef LEASEHOLD_COMM_FABRIC_OPEN_H
#define LEASEHOLD_COMM_FABRIC_OPEN_H

#include <string.h>

#include "common/comm/fabric.h"

enum { FABRIC_START_MS = 60000, FABRIC_NAME_MAX = 127 };
#define FABRIC_NAME_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-" /* as of a worker */

/* device: a CUDA device, or -1.  *out is NULL without a name.  Even then every process that mpirun started takes part
 * in starting MPI; a trainer's ranks do so by their comm. */
static inline enum rc fabric_open(struct fabric **out, const char *name, bool trainer, int device, struct err *err) {
  *out = NULL;
  (void)trainer, (void)device;
  const size_t len = strlen(name);
  if (len > FABRIC_NAME_MAX || strspn(name, FABRIC_NAME_CHARS) != len)
    return err_set(err, RC_INVALID, "fabric", "expected at most %d letters, digits, '.', '_' and '-', got '%.150s'",
                   FABRIC_NAME_MAX, name);
#ifdef LEASEHOLD_FABRIC_NCCL
  if (name[0] && device >= 0) return fabric_nccl_create(out, device, err);
#endif
#ifdef LEASEHOLD_MPI
  if (name[0] || !trainer) return fabric_mpi_create(out, trainer, FABRIC_START_MS, err);
#endif
  if (!name[0]) return RC_OK;
  return err_set(err, RC_UNSUPPORTED, "fabric",
                 "expected no --fabric, got '%.80s': this process was built with neither MPI (make mpi) nor NCCL (make "
                 "cuda NCCL=1, and --device cuda)",
                 name);
}

#endif
