/* The trainer that holds the place, as the database has it.
 *
 * Read by the driver at the beginning of every turn and by run_check.c on an HTTP worker's thread, on a connection for
 * readers; nothing is written or kept, so a result is as old as its snapshot. */
#ifndef LEASEHOLD_COORDINATOR_TRAINER_TRAINER_TARGET_H
#define LEASEHOLD_COORDINATOR_TRAINER_TRAINER_TARGET_H

#include "common/base/limits.h"
#include "services/coordinator/store/readers.h"

/* The live trainer that holds the place. */
struct trainer_target {
  bool found;
  int64_t worker; /* its incarnation */
  char url[LIMIT_URL_MAX];
  uint64_t epoch, fence;
  char name[LIMIT_NAME_MAX];
  bool fastest; /* its kernels are not batch-invariant */
};

/* On the caller's connection, or on one of the readers'.  found is false when no trainer holds the place. */
enum rc trainer_target_read(struct store *s, struct trainer_target *out, struct err *err);
enum rc trainer_target_now(struct readers *readers, struct trainer_target *out, struct err *err);

#endif
