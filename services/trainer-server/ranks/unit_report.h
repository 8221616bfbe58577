/* The outcome of one gradient unit, and how the rank that computed it reports it to rank 0: its length in 64 bits,
 * then the wire's batch_status as tensors with the group for a batch.  So log-probabilities arrive bit for bit, also
 * those that are not finite, which JSON does not have. */
#ifndef LEASEHOLD_TRAINER_SERVER_RANKS_UNIT_REPORT_H
#define LEASEHOLD_TRAINER_SERVER_RANKS_UNIT_REPORT_H

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/wire/training.h"

/* Which rank computes the n-th unit since the last step: in turns, whatever batch it comes in.  The weights do not
 * depend on it, only how evenly the work is spread.  Pure. */
static inline int unit_rank(size_t n, int ranks) { return (int)(n % (size_t)ranks); }

enum unit_state { UNIT_ABSENT, UNIT_DONE, UNIT_FAILED };

struct unit_report {
  enum unit_state state;
  struct batch_stats stats; /* of this unit alone */
  struct sample_logprobs *samples;
  size_t sample_count;
  struct draw_difference *differences; /* of a check: at most one a sample, in order */
  size_t difference_count;
  bool unlike; /* a group that was to go ahead has others, or other log-probabilities were recorded; not in the sums */
  /* In a batch that is verified, in order; where there are any the gradient is not in the sums, and stats has only
   * times. */
  struct sample_refusal *refusals;
  size_t refusal_count;
  struct err error; /* when failed */
};

/* Appends the reports that are not ABSENT, in the order of the groups. */
enum rc unit_reports_encode(const struct unit_report *reports, const struct batch_group *groups, size_t count,
                            struct buf *out, struct err *err);
/* Fills the reports of the groups that `bytes` tell of; their memory is the arena's.  RC_INVALID when it is not
 * unit_reports_encode's output for these groups. */
enum rc unit_reports_decode(struct unit_report *reports, const struct batch_group *groups, size_t count,
                            const char *bytes, size_t len, struct arena *arena, struct err *err);

#endif
