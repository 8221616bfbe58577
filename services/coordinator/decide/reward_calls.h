/* Decides when a reward server is asked, asked again, left alone and given up.
 *
 *   waiting --asked--> in flight --answered--> stored
 *      ^                   |
 *      '----- backoff -----'  it failed, or its answer was of no use
 *   waiting for deadline_ms, or asked retries + 1 times --> given up: what then happens is the run's on_deadline
 *
 *   breaker   closed --breaker_failures in a row--> open --its pause is over: one call--> half open --answered--> closed
 *                                                    ^------------------ failed ------------'
 *
 * A job is the part of one group that one request asks about.  Requests never mix groups, so a sample that the server
 * chokes on delays only its own group. A server that answers nonsense is alive: its job is asked again, and the breaker
 * stays closed.
 *
 * Pure, any thread, no memory: time and dice are arguments.  Called by rewards/rewards.c. */
#ifndef LEASEHOLD_COORDINATOR_DECIDE_REWARD_CALLS_H
#define LEASEHOLD_COORDINATOR_DECIDE_REWARD_CALLS_H

#include <stdbool.h>
#include <stdint.h>

/* What a deadline means: the run is paused and says why; the term is worth 0 for these samples; the group is left
 * out. */
enum deadline_rule { DEADLINE_FAIL, DEADLINE_ZERO, DEADLINE_DROP };

struct reward_policy {
  int32_t concurrency; /* calls at once */
  int32_t retries;     /* of one job */
  int32_t breaker_failures;
  int64_t timeout_ms;  /* of one call */
  int64_t deadline_ms; /* of a job: from its group's last sample, while the run is running */
  int64_t breaker_ms;  /* the first pause; each further one is twice as long, up to BREAKER_PAUSES times doubled */
};

enum { BREAKER_PAUSES = 4, BACKOFF_FIRST_MS = 200, BACKOFF_MOST_MS = 10000 };

enum breaker_state { BREAKER_CLOSED, BREAKER_OPEN, BREAKER_HALF_OPEN };

struct breaker {
  enum breaker_state state;
  int32_t failures; /* in a row */
  int32_t pauses;   /* since it was last closed */
  int64_t until_ms; /* open: no call before */
};

enum reward_outcome {
  REWARD_ANSWERED,
  REWARD_REFUSED, /* it answered, with a status or a body that is of no use */
  REWARD_FAILED   /* no answer, or that it is overloaded or broken */
};

bool breaker_admits(const struct breaker *b, int64_t now_ms);
void breaker_asked(struct breaker *b);
void breaker_heard(struct breaker *b, const struct reward_policy *p, enum reward_outcome outcome, int64_t now_ms);

/* How long a job has waited, and what was done about it. */
struct reward_wait {
  bool in_flight, done;
  int32_t attempts;
  int64_t next_ms;   /* it is not asked about before */
  int64_t waited_ms; /* of the time that counts */
};

enum reward_move { REWARD_LEAVE, REWARD_ASK, REWARD_GIVE_UP };

/* The next move, and the job that it is about.  The jobs are in the order of their groups: earlier ones go first. */
enum reward_move reward_next(const struct reward_wait *jobs, int n, const struct reward_policy *p,
                             const struct breaker *b, int64_t now_ms, int *which);
/* How long its call may take: no longer than the job may still wait. */
int64_t reward_call_ms(const struct reward_wait *w, const struct reward_policy *p);
/* A call came back without a reward: when to ask again.  dice: any number, so that jobs that failed together do not
 * come back together. */
void reward_again(struct reward_wait *w, int64_t now_ms, uint32_t dice);
/* The run was paused because of it, or goes on after a pause: the job's time begins anew, and the server is asked at
 * once. */
void reward_begin_anew(struct reward_wait *w, int64_t now_ms);
void breaker_begin_anew(struct breaker *b, int64_t now_ms);

#endif
