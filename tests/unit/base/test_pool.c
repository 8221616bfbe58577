/* The pool: every part once, on its thread, with the promised floating-point mode; slices that tile exactly. */
#include "tests/unit/base/cm.h"

#include <pthread.h>
#include <string.h>
#include <xmmintrin.h>

#include "common/base/clock.h"
#include "common/base/pool.h"

enum { PARTS_MAX = 64 };

struct record {
  int calls[PARTS_MAX];
  pthread_t thread[PARTS_MAX];
  unsigned mode[PARTS_MAX];
};

static void note(void *ctx, int part) {
  struct record *r = ctx;
  r->calls[part]++;
  r->thread[part] = pthread_self();
  r->mode[part] = _mm_getcsr() & (0x8000u | 0x0040u | 0x6000u);
}

static void test_every_part_once_on_its_thread(void **state) {
  (void)state;
  for (int threads = 1; threads <= 5; threads++) {
    struct pool *p;
    assert_int_equal(pool_create(&p, threads, NULL), RC_OK);
    assert_int_equal(pool_threads(p), threads);
    for (int parts = 0; parts <= 13; parts++) {
      struct record r;
      memset(&r, 0, sizeof r);
      pool_run(p, note, &r, parts);
      for (int i = 0; i < parts; i++) {
        assert_int_equal(r.calls[i], 1);
        assert_int_equal(r.mode[i], 0x8040);
        if (i >= threads) assert_true(pthread_equal(r.thread[i], r.thread[i - threads]));
        if (i > 0 && i < threads) assert_false(pthread_equal(r.thread[i], r.thread[i - 1]));
      }
      if (parts) assert_true(pthread_equal(r.thread[0], pthread_self()));
      assert_int_equal(r.calls[parts], 0);
    }
    pool_destroy(p);
  }
  pool_destroy(NULL);
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
      cmocka_unit_test(test_every_part_once_on_its_thread),
      cmocka_unit_test(test_many_jobs_with_sleeps),
      cmocka_unit_test(test_more_threads_than_cpus),
      cmocka_unit_test(test_wrong_sizes_are_refused),
  };
  return cmocka_run_group_tests_name("base/pool", tests, NULL, NULL);
}
