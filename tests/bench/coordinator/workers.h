/* Emulated generation-servers over one run: they register, poll, make up samples and put results, each on a connection
 * of its own, until every sample of round 0 is in.  The trainer is fake_trainer.h, behind real HTTP.
 *
 * With `close`, they go on until round 1 gives leases, and a worker that only reports measures how long the writer
 * keeps it waiting meanwhile.  With `idle`, no run is posted: all polls wait, and the service's memory is read. */
#ifndef LEASEHOLD_BENCH_WORKERS_H
#define LEASEHOLD_BENCH_WORKERS_H

#include <stdbool.h>

struct worker_load {
  int port, pid, workers;
  int slots;                   /* of each, and asked for at once */
  int groups, samples, tokens; /* of the round, of a group, of a sample */
  int sampling_us;             /* between a grant and its first result, a half to three halves of it; 0: none */
  const char *dataset;         /* its path in the coordinator's data folder */
  bool close, idle;
};

/* Prints one line of JSON. */
void workers_measure(const struct worker_load *load);

#endif
