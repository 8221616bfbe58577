/* Decides how old the tokens of a step may be, where weights are swapped while samples are drawn (`mode: inflight`).
 *
 *   version   v-2      v-1      v = current          max_lag 2
 *   tokens     a a a    a a      a a        sample a: lag 2, fits
 *              b b      (stale as soon as v+1 is current)
 *
 * A step is computed by the version that is current when it takes its groups, and the lag of a token is how many
 * versions came between: current - the version that drew it.  A sample counts by its oldest token.  So a lease that
 * begins at version v is valid for v to v + max_lag, and a sample that falls out of that range when a version is
 * published is drawn again or left out.
 *
 * How far sampling may run ahead of the trainer is bounded too: by `samples_ahead`, and by what the run's remaining
 * steps can take.
 *
 * Pure, any thread, no memory.  Called by pool/workers.c, rounds/stream.c and driver/batch_lag.c. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_LAG_H
#define LEASEHOLD_COORDINATOR_DECIDE_LAG_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The oldest version that a step of version `current` may still train on. */
int64_t lag_oldest(int64_t current, int64_t max_lag);
/* May samples be drawn from weights that a server has loaded?  Older ones are too old; newer ones are not current
 * yet. */
bool lag_may_sample(int64_t loaded, int64_t current, int64_t max_lag);

/* Over the trained tokens of a batch; min and max mean nothing while tokens is 0. */
struct lag_sums {
  int64_t tokens, min, max, sum;
  int64_t compared; /* whose log-probabilities the trainer's must equal, bit for bit: driver/batch_lag.h */
};
void lag_add(struct lag_sums *sums, int64_t lag, bool compared);
/* Over the tokens of both. */
void lag_merge(struct lag_sums *sums, const struct lag_sums *more);
/* The first trained token from which on all are compared; as many as there are: the last one is not. */
int32_t lag_exact_from(const bool *compared, size_t count);

struct stream_state {
  int64_t samples_ahead; /* the configured bound */
  int64_t samples;       /* of a group */
  int64_t groups_ahead;  /* issued and in no step: open or sealed */
  int64_t groups_needed; /* that the run's remaining steps can still take */
};
/* The complete groups that no step has taken are a queue of samples_ahead samples.  A full queue blocks (the groups in
 * it are ahead, so nothing more is issued), or drops the oldest: then they are not ahead, and this tells how many must
 * go. */
int64_t lag_groups_dropped(int64_t samples_ahead, int64_t samples, int64_t complete);

/* How many complete groups of which a step can take none, because all advantages are zero, are more than chance. */
int64_t lag_groups_without_signal(int64_t groups_per_step);

/* How many groups may be issued now.  One is let through when none is ahead, so that the stream cannot dry up. */
int64_t lag_groups_allowed(const struct stream_state *s);

#endif
