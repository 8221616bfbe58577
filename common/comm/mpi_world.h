/* MPI's life in this process, which is one, and the communicators that it begins with.  Private to common/comm.
 *
 *   one mpirun:  trainer-server-mpi x N      --> `peers`: the ranks of the trainer (comm_mpi.c)
 *                generation-server-mpi x M   --> `peers`: themselves, of no use
 *                all of them                 --> `all`:   the fabric, place = rank (fabric_mpi.c)
 *
 * MPI can be started and ended once in a process, so its users share this: the first to take it starts MPI, the last to
 * give it back ends it.  Both are done by a thread of its own, the keeper, for both may hang: to start is to wait for
 * all processes, and so is to end.  Only the way the world is divided is collective; what its users do with their
 * communicators is their own.
 *
 * Threads: with several_threads MPI is asked for MPI_THREAD_MULTIPLE.  The trainer's ranks call it from one thread, the
 * fabric from the one that pushes: were they one, what hangs or is lost in the pool would hang or lose the ranks. */
#ifndef LEASEHOLD_COMM_MPI_WORLD_H
#define LEASEHOLD_COMM_MPI_WORLD_H

#include <mpi.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/rc.h"

enum mpi_role { MPI_ROLE_TRAINER, MPI_ROLE_SERVER };

struct mpi_world {
  MPI_Comm peers, all; /* errors are returned, here and in their duplicates */
  int place, places;   /* in `all` */
  bool several_threads;
};

/* RC_UNAVAILABLE when the processes did not find each other within start_ms, or the world is not whole any more;
 * role and several_threads count at the first taking. */
enum rc mpi_world_take(struct mpi_world **out, enum mpi_role role, bool several_threads, int64_t start_ms,
                       struct err *err);
/* lost: a process is dead or frozen, so that MPI is left as it is; to end it in order would be to wait for the dead.
 * Else the last user waits end_ms for the end. */
void mpi_world_give(struct mpi_world *world, bool lost, int64_t end_ms);

/* RC_OK, or what MPI answered as a sentence. */
enum rc mpi_answer(int answer, const char *what, struct err *err);

#endif
