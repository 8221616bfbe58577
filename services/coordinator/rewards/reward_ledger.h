/* Reads from the database which parts of which groups wait for rewards from servers, and the texts of one part.
 *
 * Any thread, on a reader's connection; what is read lies in the caller's arena.  Called by rewards.c. */
#ifndef LEASEHOLD_COORDINATOR_REWARDS_REWARD_LEDGER_H
#define LEASEHOLD_COORDINATOR_REWARDS_REWARD_LEDGER_H

#include "services/coordinator/rewards/reward_message.h"
#include "services/coordinator/store/readers.h"

/* Samples [part * batch, (part + 1) * batch) of a group, for a term: what one request asks about. */
struct reward_part {
  int64_t round, group;
  int32_t part;
  int64_t waited_ms; /* since the group's last sample, of the time that counts, as far as the database knows */
};

/* Do a's samples come before b's?  <0, 0, >0. */
int reward_part_order(const struct reward_part *a, const struct reward_part *b);

/* The first parts that wait, in order, of groups that have all their samples: out[max], *count of them.  *running: the
 * run's time counts. */
enum rc reward_parts_read(struct readers *readers, int64_t run, int term, const struct http_term *t,
                          struct reward_part *out, int max, int *count, bool *running, struct err *err);
/* Reads the samples of the part that still wait; *count 0: none does. */
enum rc reward_items_read(struct readers *readers, int64_t run, int term, const struct http_term *t,
                          const struct reward_part *part, struct reward_item **out, int *count, struct arena *arena,
                          struct err *err);

#endif
