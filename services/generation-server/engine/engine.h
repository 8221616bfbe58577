/* The engine: one thread that owns the active weights, the KV pool, the slots and the sampler, and does nothing but
 * decode.
 *
 *   HTTP threads, lease puller, stager --messages--> inbox --> [ take messages | admit | one forward_run | sample | finish ] --> job->done
 *
 * Each step is one forward pass over decode rows and prefill chunks of all running samples (continuous batching).
 * Between two steps it may swap the weights pointer (activation), drop or hand back jobs.  The loop allocates
 * nothing: buffers are made here, jobs bring theirs.
 *
 * A sample's tokens do not depend on the steps in which they were computed, on its slot or its neighbours; preempting
 * it and computing it again under the same weights gives the same bits.  Samples that other weights do not void go on
 * under them (activation.h), and each token says which weights it was drawn from, and whether all that it attended to
 * was computed by them. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_ENGINE_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_ENGINE_H

#include "common/wire/worker.h"
#include "services/generation-server/engine/engine_options.h"

struct engine;

/* Read from any thread. */
struct engine_counters {
  int64_t tokens_sampled, steps, rows, rows_shared, preemptions, busy_slot_us; /* rows_shared: of these */
  int64_t activations, pauses, pause_us; /* pauses: activations between two steps of samples that went on */
  int64_t recomputed;                    /* positions of running samples that lost keys and values at an activation */
  int slots_busy, samples_waiting, pages_free, pages_total;
  struct engine_steps {
    int64_t steps, rows, us;
  } by_rows[WIRE_STEP_SLOTS]; /* steps that only decoded: [i] those of up to 2^i rows */
};

/* How much an engine allocates; pure. */
struct engine_memory {
  size_t kv;      /* the KV pool */
  size_t scratch; /* rows of a step, logits, sampler, lists */
};
struct engine_memory engine_memory(const struct engine_options *options);

/* RC_NO_MEMORY says how much was needed. */
enum rc engine_create(struct engine **out, const struct engine_options *options, struct err *err);
enum rc engine_start(struct engine *e, struct err *err);
/* Drops every job (done is called for each) and ends the thread. */
void engine_stop(struct engine *e);
/* Hands the active weights back to the caller. NULL is fine. */
struct weights *engine_free(struct engine *e);
/* Instead of engine_start, for tests: takes messages and computes one step in the caller's thread; false when there
 * was nothing to do. */
bool engine_step(struct engine *e);

/* The job is the engine's on RC_OK. RC_FULL, RC_UNAVAILABLE. */
enum rc engine_submit(struct engine *e, struct decode_job *job, struct err *err);
/* Drops a lease's job if it is still there; requests are dropped by their `abandoned` mark. */
enum rc engine_cancel(struct engine *e, const char *id, uint64_t fence);
/* The engine takes over the weights; policy names them (its digest was computed from them). */
enum rc engine_activate(struct engine *e, struct weights *weights, const struct policy *policy);
/* False while running samples compute keys and values again because of the last activation: a further one then waits
 * until `settled` is called.  Any thread. */
bool engine_settled(const struct engine *e);
/* The active weights are this version too (the same digest, another run or a skipped step). */
enum rc engine_relabel(struct engine *e, const struct policy *policy);
/* All leases go back with the tokens that they have. */
enum rc engine_hand_back(struct engine *e);

/* What becomes of open requests when the engine pauses: they keep slots, keys and values; or end with the tokens that
 * they have; or wait for a slot again with their tokens, and compute keys and values anew under the weights that are
 * active then; or come to their own end first, while those that come later wait. */
enum engine_pause { ENGINE_PAUSE_KEEP, ENGINE_PAUSE_ABORT, ENGINE_PAUSE_RETRACT, ENGINE_PAUSE_WAIT };
/* From the end of its step on, or when the last of those requests has ended, the engine computes nothing until
 * engine_resume; it still takes messages, new jobs and new weights among them.  engine_paused tells when it has come to
 * rest, engine_pausing whether it waits for that. */
enum rc engine_pause(struct engine *e, enum engine_pause mode);
enum rc engine_resume(struct engine *e);
bool engine_paused(const struct engine *e);
bool engine_pausing(const struct engine *e);

/* False before the first activation. */
bool engine_policy(struct engine *e, struct policy *out);
void engine_read_counters(struct engine *e, struct engine_counters *out);
/* RC_OK, or the error of a device that failed (ops->status): from then on the engine takes no job, and every job that
 * it had has gone back with its tokens from before.  Any thread. */
enum rc engine_failure(struct engine *e, struct err *err);
const struct kv_cache *engine_kv(const struct engine *e); /* for decode_job_create: its constant sizes only */

#endif
