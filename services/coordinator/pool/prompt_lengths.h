/* Remembers how long each prompt's samples were when it was last sampled: a later epoch's round is planned by that.
 *
 *   a sealed group --note--> tokens of its prompt's samples --expect--> pace.h, which plans a round with that prompt
 *
 * A policy that says more than it did an epoch ago says more to most prompts.  So an expectation is what is remembered
 * times how much longer the last groups were than what was remembered of them.
 *
 * The writer's thread only; in struct pool.  Filled again from the ledger when a run is attached, so a restart forgets
 * no epoch.  Four bytes a prompt.  Only the order of a round and how many groups are under way depend on it. */
#ifndef LEASEHOLD_COORDINATOR_POOL_PROMPT_LENGTHS_H
#define LEASEHOLD_COORDINATOR_POOL_PROMPT_LENGTHS_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/rc.h"
#include "services/coordinator/decide/frontier.h"
#include "services/coordinator/store/store.h"

enum { PROMPT_LENGTHS_READ_MAX = 65536 }; /* groups of the ledger, the newest first */

/* Zero-initialized: of no run. */
struct prompt_lengths {
  int64_t run;
  int32_t prompts;   /* of its dataset */
  float *tokens;     /* [prompts] of a sample in the mean; 0: not known */
  struct rate drift; /* tokens of the last groups by those that were remembered of their prompts */
};

/* Begins anew for this run, with nothing known. */
enum rc prompt_lengths_begin(struct prompt_lengths *p, int64_t run, int32_t prompts, struct err *err);
void prompt_lengths_free(struct prompt_lengths *p);
/* Notes the mean tokens of a group's samples.  Groups of other runs and unknown prompts are passed over. */
void prompt_lengths_note(struct prompt_lengths *p, int64_t run, int64_t prompt, double tokens, int64_t now_ms);
/* expected [count]: the lengths of these prompts' samples; 0: not known.  False: none is known. */
bool prompt_lengths_expect(const struct prompt_lengths *p, int64_t run, const int32_t *prompts, int32_t count,
                           float *expected);

/* Unless it is this run's already: begun, and filled with what the ledger has of the run. */
enum rc prompt_lengths_open(struct prompt_lengths *p, struct store *store, int64_t run, int32_t prompts, int64_t now_ms,
                            struct err *err);

#endif
