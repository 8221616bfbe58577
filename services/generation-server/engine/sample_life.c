/* A sample's way through the engine: into a slot, out of it, and to its end, with which its job may end.
 *
 *   WAITING --sample_enter_slot--> RUNNING --sample_finish, decode_job_break_off--> DONE
 *      ^                              |
 *      +-------- sample_evict --------+
 *
 * Nothing here decides: the step picks who enters and who is evicted, the engine which jobs are broken off.  Ended jobs
 * wait in engine->ended until the engine has swept the live list, since their callbacks may free them.  On the engine's
 * thread; nothing allocates. */
#include "services/generation-server/engine/sample_life.h"

#include <assert.h>

#include "services/generation-server/engine/engine_state.h"

/* --- slots and pages --- */

static bool is_leased(const struct sample *s) { return s->job->kind == DECODE_JOB_OF_LEASE; }

static void leave_slot(struct engine *e, struct sample *s) {
  if (s->slot < 0) return;
  assert(e->slot_used[s->slot]);
  e->slot_used[s->slot] = false;
  e->slots_busy--;
  e->leased_busy -= is_leased(s);
  s->slot = -1;
  if (s->state == DECODE_RUNNING) s->state = DECODE_WAITING;
}

void sample_enter_slot(struct engine *e, struct sample *s) {
  int slot = 0;
  while (e->slot_used[slot]) slot++;
  assert(slot < e->options.slots && s->state == DECODE_WAITING);
  e->slot_used[slot] = true;
  e->slots_busy++;
  e->leased_busy += is_leased(s);
  s->slot = slot;
  s->state = DECODE_RUNNING;
}

void samples_show(struct engine *e) {
  atomic_store(&e->shown_slots_busy, e->slots_busy);
  atomic_store(&e->shown_waiting, e->live_count - e->slots_busy);
  atomic_store(&e->shown_pages_free, kv_pages_free(e->kv));
}

void sample_drop_kv(struct engine *e, struct sample *s) {
  if (!s->kv_judged) kv_distrust(e->kv, &s->kv); /* left within its prompt */
  kv_truncate(e->kv, &s->kv, 0);
  s->kv_used = s->kv_judged = false;
  s->row = s->row_before = (struct row_name){0};
}

void sample_evict(struct engine *e, struct sample *s) {
  leave_slot(e, s);
  sample_drop_kv(e, s);
  s->recomputing = false;
  if (s->job->leader == s && !s->job->prompt_ready) s->job->leader = NULL;
}

/* --- endings --- */

void decode_job_ended(struct engine *e, struct decode_job *job, enum decode_job_end end) {
  job->end = end;
  job->policy = e->policy;
  job->next_ended = e->ended;
  e->ended = job;
}

void sample_show(struct engine *e, struct sample *s) {
  atomic_store_explicit(&s->shown, s->count, memory_order_release);
  if (s->state == DECODE_DONE) atomic_store_explicit(&s->over, true, memory_order_release);
  if (s->job->follower) e->told = s->job->follower;
}

void sample_finish(struct engine *e, struct sample *s, enum finish_reason finish) {
  struct decode_job *job = s->job;
  assert(s->state != DECODE_DONE);
  sample_evict(e, s);
  s->state = DECODE_DONE;
  s->finish = finish;
  s->digest = e->policy.digest;
  sample_show(e, s);
  if (job->sample_done) job->sample_done(job, job->context);
  if (++job->done_count == job->sample_count) decode_job_ended(e, job, DECODE_JOB_COMPLETE);
}

void decode_job_break_off(struct engine *e, struct decode_job *job, enum decode_job_end end) {
  for (int32_t i = 0; i < job->sample_count; i++) {
    struct sample *s = &job->samples[i];
    if (s->state == DECODE_DONE) continue;
    sample_evict(e, s);
    s->state = DECODE_DONE;
    s->finish = FINISH_ABORT;
    s->digest = e->policy.digest;
    sample_show(e, s);
    job->done_count++;
    if (job->sample_done) job->sample_done(job, job->context);
  }
  decode_job_ended(e, job, end);
}
