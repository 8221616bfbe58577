/* Which core a pool's threads run on.  What would break: the caller's thread stays bound, a mask that somebody else has
 * set is overruled, a worker that has lost its core gets another one that is lost too. */
#include "tests/unit/base/cm.h"

#include <sys/resource.h>

#include "common/base/clock.h"
#include "common/threads/pool.h"
#include "common/threads/pool_cores.h"

static cpu_set_t before;

static int setup(void **state) {
  (void)state;
  return sched_getaffinity(0, sizeof before, &before);
}

static int teardown(void **state) {
  (void)state;
  return sched_setaffinity(0, sizeof before, &before);
}

static int cores(void) { return CPU_COUNT(&before) < LIMIT_THREADS ? CPU_COUNT(&before) : LIMIT_THREADS; }

static cpu_set_t mask(void) {
  cpu_set_t now;
  assert_int_equal(sched_getaffinity(0, sizeof now, &now), 0);
  return now;
}

static struct pool_cores made(int threads) {
  struct pool_cores c;
  pool_cores_init(&c, threads);
  return c;
}

/* As if the caller had lost its core so often since the last look. */
static void lose(struct pool_cores *c, int switches) {
  struct rusage used;
  assert_int_equal(getrusage(RUSAGE_THREAD, &used), 0);
  c->looked_us = clock_monotonic_us() - 60000;
  c->switches = used.ru_nivcsw - switches;
}

static void threads_have_cores_where_there_are_as_many(void **state) {
  (void)state;
  const int n = cores();
  assert_int_equal(made(n + 1).threads, 0);
  assert_int_equal(made(1).threads, 0);
  if (n < 2) return;
  const struct pool_cores c = made(n);
  assert_int_equal(c.threads, n);
  for (int i = 0; i < n; i++) {
    assert_true(CPU_ISSET((size_t)c.core[i], &before));
    assert_true(i == 0 || c.core[i] > c.core[i - 1]);
  }
}

struct places {
  int parts;
  atomic_int begun;
  cpu_set_t masks[LIMIT_THREADS];
};

/* Parts wait for each other, so that each has a thread of its own. */
static void where(void *ctx, int part) {
  struct places *p = ctx;
  const int64_t until = clock_monotonic_ms() + 20000;
  p->masks[part] = mask();
  atomic_fetch_add(&p->begun, 1);
  while (atomic_load(&p->begun) < p->parts && clock_monotonic_ms() < until) sched_yield();
}

static void workers_are_bound_and_the_caller_is_not(void **state) {
  (void)state;
  const int n = cores();
  static struct places places;
  struct pool *p;
  if (n < 2) return;
  assert_int_equal(pool_create(&p, n, NULL), RC_OK);
  places = (struct places){.parts = n};
  pool_run(p, where, &places, n);
  int bound = 0;
  for (int i = 0; i < n; i++) {
    assert_true(CPU_EQUAL(&places.masks[i], &before) || CPU_COUNT(&places.masks[i]) == 1);
    bound += CPU_COUNT(&places.masks[i]) == 1;
  }
  const cpu_set_t now = mask();
  assert_int_equal(bound, n - 1);
  assert_true(CPU_EQUAL(&now, &before));
  pool_destroy(p);
}

static void a_caller_that_loses_its_core_changes_places(void **state) {
  (void)state;
  const int n = cores();
  if (n < 2) return;
  struct pool_cores c = made(n);
  const int first = c.core[0], second = c.core[1];
  lose(&c, 3);
  assert_int_equal(pool_cores_look(&c), 0);
  lose(&c, 40);
  assert_int_equal(pool_cores_look(&c), 1);
  assert_int_equal(c.core[0], second);
  assert_int_equal(c.core[1], first);
  assert_true(c.moved_us > 0 || sched_getcpu() == second);
  const cpu_set_t now = mask();
  assert_true(CPU_EQUAL(&now, &before));
}

static void nobody_changes_places_with_a_worker_that_loses_its_own(void **state) {
  (void)state;
  const int n = cores();
  if (n < 2) return;
  struct pool_cores c = made(n);
  pool_cores_robbed(&c, 1, 400); /* for a moment: that is nothing */
  lose(&c, 40);
  assert_int_equal(pool_cores_look(&c), 1);
  for (int i = 1; i < n; i++) pool_cores_robbed(&c, i, 4000);
  lose(&c, 40);
  assert_int_equal(pool_cores_look(&c), 0);
  lose(&c, 40); /* that was long ago */
  assert_int_equal(pool_cores_look(&c), 1);
}

static void a_mask_of_somebody_else_is_left_as_it_is(void **state) {
  (void)state;
  const int n = cores();
  if (n < 2) return;
  struct pool_cores c = made(n);
  cpu_set_t other;
  CPU_ZERO(&other);
  CPU_SET((size_t)c.core[1], &other);
  assert_int_equal(sched_setaffinity(0, sizeof other, &other), 0);
  assert_int_equal(pool_cores_look(&c), 0);
  const cpu_set_t now = mask();
  assert_true(CPU_EQUAL(&now, &other));
  assert_int_equal(c.threads, 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(threads_have_cores_where_there_are_as_many, setup, teardown),
      cmocka_unit_test_setup_teardown(workers_are_bound_and_the_caller_is_not, setup, teardown),
      cmocka_unit_test_setup_teardown(a_caller_that_loses_its_core_changes_places, setup, teardown),
      cmocka_unit_test_setup_teardown(nobody_changes_places_with_a_worker_that_loses_its_own, setup, teardown),
      cmocka_unit_test_setup_teardown(a_mask_of_somebody_else_is_left_as_it_is, setup, teardown),
  };
  return cmocka_run_group_tests_name("threads/pool_cores", tests, NULL, NULL);
}
