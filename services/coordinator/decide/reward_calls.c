/* Decides when reward servers are asked, and when one is left alone: see reward_calls.h. */
#include "services/coordinator/decide/reward_calls.h"

bool breaker_admits(const struct breaker *b, int64_t now_ms) {
  if (b->state == BREAKER_OPEN) return now_ms >= b->until_ms;
  return b->state == BREAKER_CLOSED;
}

void breaker_asked(struct breaker *b) {
  if (b->state == BREAKER_OPEN) b->state = BREAKER_HALF_OPEN;
}

static void breaker_open(struct breaker *b, int64_t pause_ms, int64_t now_ms) {
  b->state = BREAKER_OPEN;
  b->until_ms = now_ms + (pause_ms << b->pauses);
  if (b->pauses < BREAKER_PAUSES) b->pauses++;
}

void breaker_heard(struct breaker *b, const struct reward_policy *p, enum reward_outcome outcome, int64_t now_ms) {
  if (outcome != REWARD_FAILED) {
    *b = (struct breaker){.state = BREAKER_CLOSED};
    return;
  }
  b->failures++;
  const bool enough = b->state == BREAKER_CLOSED && b->failures >= p->breaker_failures;
  if (enough || b->state == BREAKER_HALF_OPEN) breaker_open(b, p->breaker_ms, now_ms);
}

static bool is_over(const struct reward_wait *w, const struct reward_policy *p) {
  return w->waited_ms >= p->deadline_ms || w->attempts > p->retries;
}

enum reward_move reward_next(const struct reward_wait *jobs, int n, const struct reward_policy *p,
                             const struct breaker *b, int64_t now_ms, int *which) {
  int in_flight = 0, due = n;
  for (int i = 0; i < n; i++) {
    const struct reward_wait *w = &jobs[i];
    if (w->in_flight) in_flight++;
    if (w->in_flight || w->done) continue;
    *which = i;
    if (is_over(w, p)) return REWARD_GIVE_UP;
    if (due == n && w->next_ms <= now_ms) due = i;
  }
  *which = due;
  return due < n && in_flight < p->concurrency && breaker_admits(b, now_ms) ? REWARD_ASK : REWARD_LEAVE;
}

int64_t reward_call_ms(const struct reward_wait *w, const struct reward_policy *p) {
  const int64_t left_ms = p->deadline_ms - w->waited_ms;
  return left_ms < p->timeout_ms ? left_ms : p->timeout_ms;
}

void reward_again(struct reward_wait *w, int64_t now_ms, uint32_t dice) {
  int64_t most_ms = BACKOFF_FIRST_MS;
  for (int i = 0; i < w->attempts && most_ms != BACKOFF_MOST_MS; i++) {
    most_ms *= 2;
    if (most_ms > BACKOFF_MOST_MS) most_ms = BACKOFF_MOST_MS;
  }
  w->attempts++;
  w->next_ms = now_ms + most_ms / 2 + dice % (most_ms / 2);
}

void reward_begin_anew(struct reward_wait *w, int64_t now_ms) {
  w->waited_ms = 0;
  w->attempts = 0;
  if (w->next_ms > now_ms) w->next_ms = now_ms;
}

void breaker_begin_anew(struct breaker *b, int64_t now_ms) {
  b->pauses = 0;
  if (b->until_ms > now_ms) b->until_ms = now_ms;
}
