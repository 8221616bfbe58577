/* The life of MPI in this process, and the communicators that it begins with.  Private to common/comm.
 *
 *   one mpirun:  trainer-server-mpi x N      --> `peers`: the ranks of the trainer (comm_mpi.c)
 *                generation-server-mpi x M   --> `peers`: themselves, of no use
 *                all of them                 --> `all`:   the fabric, place = rank (fabric_mpi.c)
 *
 * MPI can be started and ended once in a process, so its users share this: the first to take it starts MPI, the last to
 * give it back ends it.  A thread of its own, the keeper, does both, because both wait for all processes and may hang.
 * Only dividing the world is collective; each user then works with its own communicators.
 *
 * Threads: with several_threads MPI is asked for MPI_THREAD_MULTIPLE.  The trainer's ranks call it from one thread, the
 * fabric from the thread that pushes: on a shared thread a server that hangs or is lost would take the ranks with
 * it. */
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
  int peers_machines, all_machines; /* on which these processes run */
  bool several_threads;
};

/* RC_UNAVAILABLE when the processes did not find each other within start_ms, or the world is no longer whole; role and
 * several_threads are those of the first call. */
enum rc mpi_world_take(struct mpi_world **out, enum mpi_role role, bool several_threads, int64_t start_ms,
                       struct err *err);
/* lost: a process is dead or frozen, so MPI is left as it is, because ending it in order would wait for the dead.
 * Otherwise the last user waits end_ms for the end. */
void mpi_world_give(struct mpi_world *world, bool lost, int64_t end_ms);

/* RC_OK, or MPI's error as a sentence. */
enum rc mpi_answer(int answer, const char *what, struct err *err);

#endif
