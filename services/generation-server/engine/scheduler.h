/* The engine's decisions, as pure functions over a picture of its samples: who gets a slot, how many rows each computes
 * in this step, who gives up its pages.
 *
 * Items are all unfinished samples, oldest first (order of arrival, kept through preemption).  Progress: the oldest
 * item is always admitted first, gets its rows first, and may take the pages of every younger one; since one sample
 * alone always fits the pool (decode_job_create checks it), the oldest always finishes.  Simulated by the thousand in
 * tests/unit/generation-server/test_scheduler.c.
 *
 * Called by engine_step.c before it gathers a step's rows. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_SCHEDULER_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_SCHEDULER_H

#include <stdbool.h>

struct sched_item {
  bool running;     /* has a slot */
  bool blocked;     /* waits until its group's prompt has been computed by another sample, in a slot or without */
  int pending;      /* positions to compute, >= 1; 1 is a decode step */
  int pages_held;   /* pages that it refers to, shared ones included */
  int pages_needed; /* pages to take from the pool to compute all pending positions */
};

/* The item that gets a free slot now, or -1.  Strictly by age.  An item enters when the pool has pages for all
 * positions that it and the running items still have to compute, and one more page each to grow into, or when nothing
 * runs. */
int scheduler_admit(const struct sched_item *items, int count, int slots_free, int pages_free);

/* rows[i]: positions to compute of each running item that is not blocked: 1 for every decode step; prefill shares
 * `chunk` rows among items, oldest first. */
void scheduler_rows(const struct sched_item *items, int count, int chunk, int *rows);

/* The item that gives up its pages when `needy` lacks some: the youngest holder that is younger than needy, else needy
 * itself. */
int scheduler_victim(const struct sched_item *items, int count, int needy);

#endif
