/* decide/reward_calls.h.  What would break: a server that is down is called by every group all the time, or never
 * again; a job that fails holds up those behind it; more calls at once than were configured; a job is given up before
 * its time, or waits for ever; a call goes on after its job's deadline. */
#include "services/coordinator/decide/reward_calls.h"

#include "tests/unit/base/cm.h"

enum { NOW = 1000000 };

static const struct reward_policy policy = {
    .concurrency = 2, .retries = 3, .breaker_failures = 3, .timeout_ms = 400, .deadline_ms = 5000, .breaker_ms = 100};
static const struct breaker closed = {.state = BREAKER_CLOSED};

static void the_next_move(void **state) {
  (void)state;
#define FRESH      {.next_ms = NOW}
#define LATER      {.next_ms = NOW + 1}
#define FLYING     {.in_flight = true}
#define DONE       {.done = true, .waited_ms = 5000}
#define OLD        {.next_ms = NOW, .waited_ms = 4999, .attempts = 3}
#define TOO_LATE   {.next_ms = NOW + 9, .waited_ms = 5000}
#define USED_UP    {.next_ms = NOW + 9, .attempts = 4}
#define FLYING_OLD {.in_flight = true, .waited_ms = 9000, .attempts = 9}
  static const struct {
    struct reward_wait jobs[5];
    int n;
    enum reward_move move;
    int which;
  } cases[] = {
      {{FRESH}, 0, REWARD_LEAVE, 0},
      {{FRESH}, 1, REWARD_ASK, 0},
      {{FRESH, FRESH}, 2, REWARD_ASK, 0}, /* in the order of the groups */
      {{LATER, FRESH}, 2, REWARD_ASK, 1}, /* one that failed delays nobody */
      {{LATER}, 1, REWARD_LEAVE, 1},
      {{FLYING, FRESH}, 2, REWARD_ASK, 1},
      {{FLYING, FLYING, FRESH}, 3, REWARD_LEAVE, 2}, /* two at once */
      {{FLYING, FLYING, FRESH, TOO_LATE}, 4, REWARD_GIVE_UP, 3}, /* that needs no call */
      {{DONE, FRESH}, 2, REWARD_ASK, 1},
      {{DONE}, 1, REWARD_LEAVE, 1},
      {{OLD}, 1, REWARD_ASK, 0},
      {{FRESH, TOO_LATE}, 2, REWARD_GIVE_UP, 1},
      {{FRESH, USED_UP}, 2, REWARD_GIVE_UP, 1},
      {{FLYING_OLD}, 1, REWARD_LEAVE, 1}, /* its call ends with the deadline */
      {{FLYING_OLD, FRESH}, 2, REWARD_ASK, 1},
  };
  for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
    int which = -1;
    const enum reward_move move = reward_next(cases[c].jobs, cases[c].n, &policy, &closed, NOW, &which);
    if (move != cases[c].move || (move != REWARD_LEAVE && which != cases[c].which))
      fail_msg("case %zu: move %d of job %d", c, move, which);
  }
}

static void an_open_breaker_stops_calls_and_no_deadline(void **state) {
  (void)state;
  const struct reward_wait jobs[] = {FRESH, TOO_LATE};
  const struct breaker open = {.state = BREAKER_OPEN, .until_ms = NOW + 1};
  int which = -1;
  assert_int_equal(reward_next(jobs, 1, &policy, &open, NOW, &which), REWARD_LEAVE);
  assert_int_equal(reward_next(jobs, 1, &policy, &open, NOW + 1, &which), REWARD_ASK);
  assert_int_equal(reward_next(jobs, 2, &policy, &open, NOW, &which), REWARD_GIVE_UP);
  assert_int_equal(which, 1);
}

static void a_breaker_opens_after_failures_in_a_row(void **state) {
  (void)state;
  struct breaker b = closed;
  breaker_heard(&b, &policy, REWARD_FAILED, NOW);
  breaker_heard(&b, &policy, REWARD_FAILED, NOW);
  assert_true(breaker_admits(&b, NOW));
  breaker_heard(&b, &policy, REWARD_REFUSED, NOW); /* nonsense, but it lives */
  breaker_heard(&b, &policy, REWARD_FAILED, NOW);
  breaker_heard(&b, &policy, REWARD_FAILED, NOW);
  assert_int_equal(b.state, BREAKER_CLOSED);
  breaker_heard(&b, &policy, REWARD_FAILED, NOW);
  assert_int_equal(b.state, BREAKER_OPEN);
  assert_false(breaker_admits(&b, NOW + 99));
  assert_true(breaker_admits(&b, NOW + 100));
  breaker_heard(&b, &policy, REWARD_FAILED, NOW + 50); /* a call that was under way: the pause does not grow by it */
  assert_true(breaker_admits(&b, NOW + 100));
}

static void a_breaker_is_tried_by_one_call_and_pauses_grow(void **state) {
  (void)state;
  struct breaker b = closed;
  int64_t now = NOW, pause = 100;
  for (int i = 0; i < 3; i++) breaker_heard(&b, &policy, REWARD_FAILED, now);
  for (int i = 0; i < 7; i++) {
    assert_false(breaker_admits(&b, now + pause - 1));
    now += pause;
    assert_true(breaker_admits(&b, now));
    breaker_asked(&b);
    assert_int_equal(b.state, BREAKER_HALF_OPEN);
    assert_false(breaker_admits(&b, now + 1000000)); /* one call */
    breaker_heard(&b, &policy, REWARD_FAILED, now);
    assert_int_equal(b.state, BREAKER_OPEN);
    if (pause < 1600) pause *= 2;
  }
  breaker_asked(&b);
  breaker_heard(&b, &policy, REWARD_ANSWERED, now);
  assert_int_equal(b.state, BREAKER_CLOSED);
  breaker_asked(&b);
  assert_int_equal(b.state, BREAKER_CLOSED); /* of a closed one it is no trial */
  for (int i = 0; i < 3; i++) breaker_heard(&b, &policy, REWARD_FAILED, now);
  assert_false(breaker_admits(&b, now + 99));
  assert_true(breaker_admits(&b, now + 100)); /* the first pause again */
}

static void jobs_come_back_later_each_time_and_not_together(void **state) {
  (void)state;
  static const int64_t most[] = {200, 400, 800, 1600, 3200, 6400, 10000, 10000, 10000};
  struct reward_wait w = {.next_ms = NOW};
  for (int i = 0; i < 9; i++) {
    struct reward_wait early = w, last = w;
    reward_again(&early, NOW, (uint32_t)most[i] / 2 * 7);
    reward_again(&last, NOW, (uint32_t)most[i] / 2 - 1);
    assert_int_equal(early.next_ms, NOW + most[i] / 2);
    assert_int_equal(last.next_ms, NOW + most[i] - 1);
    assert_int_equal(early.attempts, i + 1);
    w = early;
  }
  w.attempts = 1000000; /* no end of doubling */
  reward_again(&w, NOW, 0);
  assert_int_equal(w.next_ms, NOW + 5000);
}

static void a_call_ends_with_its_jobs_deadline(void **state) {
  (void)state;
  struct reward_wait w = {.waited_ms = 4600};
  assert_int_equal(reward_call_ms(&w, &policy), 400);
  w.waited_ms = 4601;
  assert_int_equal(reward_call_ms(&w, &policy), 399);
}

static void a_run_that_is_resumed_asks_at_once(void **state) {
  (void)state;
  struct reward_wait late = {.waited_ms = 4601, .attempts = 7, .next_ms = NOW + 9},
                     due = {.waited_ms = 1, .next_ms = NOW - 9};
  struct breaker b = {.state = BREAKER_OPEN, .failures = 9, .pauses = 3, .until_ms = NOW + 9},
                 over = {.state = BREAKER_OPEN, .until_ms = NOW - 9};
  reward_begin_anew(&late, NOW);
  reward_begin_anew(&due, NOW);
  breaker_begin_anew(&b, NOW);
  breaker_begin_anew(&over, NOW);
  assert_true(late.waited_ms == 0 && late.attempts == 0 && late.next_ms == NOW);
  assert_true(due.waited_ms == 0 && due.next_ms == NOW - 9);
  assert_true(breaker_admits(&b, NOW) && b.pauses == 0);
  assert_int_equal(over.until_ms, NOW - 9);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_next_move),
      cmocka_unit_test(an_open_breaker_stops_calls_and_no_deadline),
      cmocka_unit_test(a_breaker_opens_after_failures_in_a_row),
      cmocka_unit_test(a_breaker_is_tried_by_one_call_and_pauses_grow),
      cmocka_unit_test(jobs_come_back_later_each_time_and_not_together),
      cmocka_unit_test(a_call_ends_with_its_jobs_deadline),
      cmocka_unit_test(a_run_that_is_resumed_asks_at_once),
  };
  return cmocka_run_group_tests_name("coordinator/reward_calls", tests, NULL, NULL);
}
