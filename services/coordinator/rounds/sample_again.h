/* Has a finished sample of an open group wait for another lease: it was drawn by a version that is too old (stream.c),
 * or the trainer would not have drawn it (checks/settle.c).  What was kept of it goes; its fence stays, so the next
 * lease has a higher one.
 *
 * Writer's thread only, inside the caller's savepoint.  The caller forgets what waits (pool/waiting.h). */
#ifndef LEASEHOLD_COORDINATOR_ROUNDS_SAMPLE_AGAIN_H
#define LEASEHOLD_COORDINATOR_ROUNDS_SAMPLE_AGAIN_H

#include "services/coordinator/writer/core_state.h"

struct again_sample {
  int64_t round, group, sample, tokens; /* tokens: of its completion */
};

/* Its tokens alone, of one that is not finished. */
enum rc sample_tokens_drop(struct core *c, int64_t run, const struct again_sample *s, struct err *err);
enum rc sample_again(struct core *c, int64_t run, const struct again_sample *s, struct err *err);

#endif
