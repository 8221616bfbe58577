/* Verifies the batches of an `inflight` run: fills in the message's part about it, and applies the answer to the batch.
 *
 *   built batch --batch_verify_fill--> uniforms' keys, bounds, and from which token on each sample must be exact
 *      ... the trainer's pass, whose gradient of a refused group is in no sum ...
 *   answer --batch_verify_sift--> the batch without the refused groups | what was refused, and who held (checks/refusals.h)
 *          --batch_verify_older--> and how far off older tokens were, where whole log-probabilities came
 *
 * Whether a sample promises the trainer's bits is read from the database, from the row of the worker that drew it: a
 * batch that is sent again says the same. A batch of a round that is over comes from the record, which has no refused
 * groups any more, and is not verified.
 *
 * Called by batch.c, with a connection for readers; memory is the batch's. */
#ifndef LEASEHOLD_COORDINATOR_DRIVER_BATCH_VERIFY_H
#define LEASEHOLD_COORDINATOR_DRIVER_BATCH_VERIFY_H

#include "services/coordinator/checks/refusals.h"
#include "services/coordinator/driver/batch_build.h"

/* Where each sample of a batch came from, in the order of the message. */
struct sample_source {
  int64_t round, group, sample;
  int64_t worker; /* that ended it */
  bool promised;  /* all who drew of it promise the trainer's bits */
  int64_t version_first, version_last; /* of its tokens */
};
struct batch_sources {
  struct sample_source *items; /* [the batch's samples]; NULL: it is not verified */
};

enum rc batch_verify_fill(struct batch_sources *out, struct built_batch *b, struct store *s,
                          const struct batch_key *key, const struct run_config *config, struct arena *arena,
                          struct err *err);
/* Takes the groups that the answer refuses out of the batch and its sources.  *found: the outcome, without the caller's
 * fields (run, round, number); its memory is the arena's and the answer's.  RC_CORRUPT when the answer refuses samples
 * that the batch does not have; a group that was refused before, and is not in the batch any more, does not count. */
enum rc batch_verify_sift(struct refusals *found, struct built_batch *b, struct batch_sources *sources,
                          const struct batch_status *answer, struct arena *arena, struct err *err);
/* For a sifted batch, whose samples the answer has. */
void batch_verify_older(struct refusals *found, const struct built_batch *b, const struct batch_sources *sources,
                        const struct batch_status *answer);

#endif
