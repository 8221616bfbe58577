/* The pool: every part once, with the promised floating-point mode; a thread that is held up costs its part only. */
#include "tests/unit/base/cm.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <xmmintrin.h>

#include "common/base/clock.h"
#include "common/threads/pool.h"

enum { PARTS_MAX = 64 };

struct record {
  struct pool *pool;
  int calls[PARTS_MAX];
  int number[PARTS_MAX]; /* of the thread */
  pthread_t thread[PARTS_MAX];
  unsigned mode[PARTS_MAX];
  atomic_int begun;
  int together; /* parts that wait for each other, so that each has a thread of its own */
};

static void note(void *ctx, int part) {
  struct record *r = ctx;
  assert_true(pool_in_part(r->pool));
  r->calls[part]++;
  r->number[part] = pool_thread(r->pool);
  r->thread[part] = pthread_self();
  r->mode[part] = _mm_getcsr() & (0x8000u | 0x0040u | 0x6000u);
  atomic_fetch_add(&r->begun, 1);
  const int64_t until = clock_monotonic_ms() + 20000;
  while (atomic_load(&r->begun) < r->together && clock_monotonic_ms() < until) sched_yield();
}

/* One number a thread, below the pool's number of threads, and the caller's is 0: scratch memory goes by it. */
static void test_every_part_once(void **state) {
  (void)state;
  for (int threads = 2; threads <= 5; threads++) {
    struct pool *p;
    assert_int_equal(pool_create(&p, threads, NULL), RC_OK);
    assert_int_equal(pool_threads(p), threads);
    for (int parts = 2; parts <= 23; parts++) {
      struct record r;
      memset(&r, 0, sizeof r);
      r.pool = p;
      r.together = parts < threads ? parts : threads;
      pool_run(p, note, &r, parts);
      for (int i = 0; i < parts; i++) {
        assert_int_equal(r.calls[i], 1);
        assert_int_equal(r.mode[i], 0x8040);
        assert_true(r.number[i] >= 0 && r.number[i] < threads);
        assert_int_equal(r.number[i] == 0, pthread_equal(r.thread[i], pthread_self()) != 0);
        for (int k = 0; k < i; k++)
          assert_int_equal(r.number[i] == r.number[k], pthread_equal(r.thread[i], r.thread[k]) != 0);
      }
      assert_int_equal(r.calls[parts], 0);
      assert_false(pool_in_part(p));
      assert_int_equal(pool_thread(p), 0);
    }
    pool_destroy(p);
  }
  pool_destroy(NULL);
}

static void count_calls(void *ctx, int part) { ((int *)ctx)[part]++; }

/* Nothing to share: on the caller's thread, and a part may use the whole pool. */
static void test_one_part_or_one_thread(void **state) {
  (void)state;
  for (int threads = 1; threads <= 2; threads++) {
    struct pool *p;
    int calls[3] = {0};
    assert_int_equal(pool_create(&p, threads, NULL), RC_OK);
    pool_run(p, count_calls, calls, 0);
    assert_int_equal(calls[0], 0);
    pool_run(p, count_calls, calls, 1);
    assert_int_equal(calls[0], 1);
    pool_run(p, count_calls, calls, 3);
    assert_int_equal(calls[0] + calls[1] + calls[2], 4);
    pool_destroy(p);
  }
}

enum { HELD_PARTS = 16 };

struct held {
  struct pool *pool;
  atomic_int others; /* parts of the caller's thread */
  atomic_int of_held;
  bool in_time;
};

/* The worker's first part lasts until the caller has done all others; a share of its own would never be done. */
static void hold_worker(void *ctx, int part) {
  struct held *h = ctx;
  (void)part;
  if (pool_thread(h->pool) == 0) {
    if (atomic_load(&h->of_held) == 0) clock_sleep_ms(1); /* until the worker has come */
    atomic_fetch_add(&h->others, 1);
    return;
  }
  atomic_fetch_add(&h->of_held, 1);
  const int64_t until = clock_monotonic_ms() + 20000;
  while (atomic_load(&h->others) < HELD_PARTS - 1 && clock_monotonic_ms() < until) clock_sleep_ms(1);
  h->in_time = atomic_load(&h->others) == HELD_PARTS - 1;
}

static void test_a_thread_that_is_held_up_costs_its_part_only(void **state) {
  (void)state;
  struct pool *p;
  bool held = false;
  assert_int_equal(pool_create(&p, 2, NULL), RC_OK);
  for (int i = 0; i < 50 && !held; i++) {
    struct held h = {.pool = p};
    pool_run(p, hold_worker, &h, HELD_PARTS);
    assert_int_equal(h.others + h.of_held, HELD_PARTS);
    held = h.of_held > 0;
    if (held) assert_int_equal(h.of_held, 1);
    if (held) assert_true(h.in_time);
  }
  assert_true(held);
  pool_destroy(p);
}

struct nested {
  struct pool *pool;
  atomic_int calls, elsewhere;
  pthread_t outer[4];
};

static void inner(void *ctx, int part) {
  struct nested *n = ctx;
  (void)part;
  atomic_fetch_add(&n->calls, 1);
  if (!pthread_equal(n->outer[pool_thread(n->pool)], pthread_self())) atomic_fetch_add(&n->elsewhere, 1);
}

static void outer(void *ctx, int part) {
  struct nested *n = ctx;
  (void)part;
  n->outer[pool_thread(n->pool)] = pthread_self();
  pool_run(n->pool, inner, n, 5);
}

/* Lanes of units run operations, which split over the same pool when they run alone. */
static void test_a_part_runs_its_own_parts_itself(void **state) {
  (void)state;
  struct nested n = {0};
  assert_int_equal(pool_create(&n.pool, 3, NULL), RC_OK);
  for (int i = 0; i < 200; i++) pool_run(n.pool, outer, &n, 7);
  assert_int_equal(n.calls, 200 * 7 * 5);
  assert_int_equal(n.elsewhere, 0);
  pool_destroy(n.pool);
}

static void add_one(void *ctx, int part) { ((int64_t *)ctx)[part * 8]++; }

/* Many tiny jobs, with pauses long enough for the workers to fall asleep in between: a lost wake-up hangs here. */
static void test_many_jobs_with_sleeps(void **state) {
  (void)state;
  struct pool *p;
  assert_int_equal(pool_create(&p, 2, NULL), RC_OK);
  int64_t counts[3 * 8] = {0};
  const int64_t begin = clock_monotonic_ms();
  for (int i = 0; i < 20000; i++) {
    pool_run(p, add_one, counts, 2 + i % 2);
    if (i % 1000 == 0) clock_sleep_ms(1);
  }
  assert_int_equal(counts[0], 20000);
  assert_int_equal(counts[8], 20000);
  assert_int_equal(counts[16], 10000);
  assert_true(clock_monotonic_ms() - begin < 5000);
  pool_destroy(p);
}

static void test_more_threads_than_cpus(void **state) {
  (void)state;
  struct pool *p;
  assert_int_equal(pool_create(&p, 24, NULL), RC_OK);
  int64_t counts[48 * 8] = {0};
  for (int i = 0; i < 300; i++) pool_run(p, add_one, counts, 48);
  for (int i = 0; i < 48; i++) assert_int_equal(counts[i * 8], 300);
  pool_destroy(p);
}

static void test_wrong_sizes_are_refused(void **state) {
  (void)state;
  struct pool *p;
  struct err err;
  assert_int_equal(pool_create(&p, 0, &err), RC_INVALID);
  assert_int_equal(pool_create(&p, 257, &err), RC_INVALID);
  assert_string_equal(err.field, "threads");
  assert_null(p);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_every_part_once),
      cmocka_unit_test(test_one_part_or_one_thread),
      cmocka_unit_test(test_a_thread_that_is_held_up_costs_its_part_only),
      cmocka_unit_test(test_a_part_runs_its_own_parts_itself),
      cmocka_unit_test(test_many_jobs_with_sleeps),
      cmocka_unit_test(test_more_threads_than_cpus),
      cmocka_unit_test(test_wrong_sizes_are_refused),
  };
  return cmocka_run_group_tests_name("threads/pool", tests, NULL, NULL);
}
