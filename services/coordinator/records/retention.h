/* A run's retention: with `keep_rounds`, the rollouts of older rounds are dropped, so that the database of a long
 * run stops growing.
 *
 *   step done --retention_mark--> rounds that nothing needs any more --retention_drop, a piece at a time--> free pages, used again
 *
 * A round may go when it is consumed, at least keep_rounds newer rounds are consumed too, and no replay can need it:
 * it was sampled at a version before the oldest checkpoint (above version 0's) that the trainer says it keeps.
 * In `inflight` a round's groups may be trained in later rounds: all of them must be old enough.
 * A trainer whose newest checkpoint is damaged falls back to an older one, so the oldest counts and not the newest.
 * While a run whose `dataset.curriculum.from` names this one waits in the queue, no round of this one is dropped: its
 * pass rates are counted when that run begins, from all of its rollouts.  They are not counted when it is posted,
 * because those of the rounds in between would be missing, and its prompts would be others. A trainer that has lost all
 * of its checkpoints can then no longer replay from version 0: the run is paused with a sentence (driver/replay.c).
 *
 * The round's groups are dropped, with their prompts, samples, rollouts, passes, refills and leases.  The rows behind
 * status, timeline, digests and versions stay: rounds, versions, batches, contributions, evaluations, times by cause.
 *
 * Writer's thread only, inside the caller's savepoint; no memory of its own: a marked round stays marked across a
 * restart, and its rollouts count as dropped from the mark on. */
#ifndef LEASEHOLD_COORDINATOR_RECORDS_RETENTION_H
#define LEASEHOLD_COORDINATOR_RECORDS_RETENTION_H

#include "services/coordinator/decide/stored.h"
#include "services/coordinator/store/store.h"

/* Bounds of one piece: how many samples, and about how many bytes of them. */
enum { RETENTION_SAMPLES = 256, RETENTION_BYTES = 4 << 20 };

/* A step of the run is done.  keep_rounds 0: all are kept; oldest_checkpoint as the trainer told it, 0: none above
 * version 0's. */
enum rc retention_mark(struct store *s, int64_t run, int64_t keep_rounds, int64_t oldest_checkpoint, struct err *err);

/* The run has counted the pass rates of the one that its curriculum names, or will not begin: if that one has ended, so
 * that no step of it marks any more, its older rounds are marked now. */
enum rc retention_release(struct store *s, int64_t run, struct err *err);

/* Drops one piece of the oldest marked round.  *more: something is left. */
enum rc retention_drop(struct store *s, bool *more, struct err *err);

#endif
