/* Applies a swap of weights to the engine's jobs and samples, and measures what it costs them.
 *
 *   lease not valid for the new version --> handed back, before the swap
 *   sample in a slot that decodes       --> keeps its keys and values (kv: keep), or computes them again (recompute)
 *   any other sample                    --> computes its prompt again: none of its tokens attends to older keys
 *
 * Keys and values that are computed again are a prefill like a prompt's: in chunks, once for the samples of a group as
 * far as they share the prompt, and no token is drawn again.  Until every sample that lost them in its slot has drawn a
 * token the engine is not settled: then a further version waits, or else versions that come faster than keys and values
 * can be computed would keep samples from ever getting a token.
 *
 * The pause is the time from the end of the last step under the old weights to the start of the first one under the
 * new, for samples that go on.  It is short because others are told of the swap after that step.  On the engine's
 * thread but for engine_settled (engine.h); nothing allocates. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_ACTIVATION_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_ACTIVATION_H

#include "services/generation-server/engine/decode_job.h"

struct engine;

/* Pure.  Two runs may give different weights the same number: a lease of one version is checked against its digest, one
 * of several against its run. */
bool activation_allows(const struct decode_job *job, const struct policy *policy);

/* Registers the histograms. */
void activation_open(struct engine *e);
/* Before the swap, when the jobs that it voids have gone back. */
void activation_pauses(struct engine *e);
/* After the swap: drops the keys and values that are not kept. */
void activation_drop_kv(struct engine *e);
/* A step has rows and begins, at begin_us; the next ends a pause. */
void activation_step_begins(struct engine *e, int64_t begin_us);
/* Others have been told of all that the step ended, and of a swap before it. */
void activation_step_ended(struct engine *e, int64_t end_us);
/* Nothing is left to run: there is no pause to end. */
void activation_rests(struct engine *e);
/* After a step and after messages: tells the stager when the engine has become settled. */
void activation_settle(struct engine *e);

#endif
