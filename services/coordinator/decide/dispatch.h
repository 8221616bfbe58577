/* Decides how many samples a worker gets, and cuts them into leases.  frontier.c decides which groups go first; here
 * samples are taken in the given order, whichever worker asks.
 *
 * Pure; called by leases.c on the writer's thread.  These decisions must change only how long a round takes, never
 * what a sample becomes (randomness is keyed by position).  Simulated by the thousand in tests/sim. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_DISPATCH_H
#define LEASEHOLD_COORDINATOR_DECIDE_DISPATCH_H

#include <stdint.h>

/* Given in the order of service, a group's samples together and in order of their index. */
struct waiting_sample {
  int32_t group, sample;
  int64_t fence;
};
/* A run of consecutive samples of one group. */
struct planned_lease {
  int32_t group, first, count;
  int64_t fence;
}; /* fence: above every fence that its samples had */

/* How many samples one poll may take, so that few samples (the last of a round, the first of one that begins with few)
 * are spread over the ready servers: as many as bring the server to its share of all waiting and held samples, rounded
 * up; at least one, at most its free slots.  held_here: samples that this server holds; held: that all ready servers
 * do. */
int dispatch_share(int waiting, int servers_ready, int slots_free, int held_here, int held);

/* Cuts the first `samples_max` of n waiting samples into leases of one group each, of at most lease_samples_max (0:
 * no bound), at most leases_max of them.  Returns how many. */
int dispatch_plan(const struct waiting_sample *waiting, int n, int samples_max, int lease_samples_max,
                  struct planned_lease *out, int leases_max);

#endif
