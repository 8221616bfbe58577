/* The queue: order, fullness reported, deadlines kept, waiters woken by items and by closing. */
#include "tests/unit/base/cm.h"

#include "common/base/clock.h"
#include "common/base/queue.h"
#include "tests/unit/base/await.h"

static void test_order_fullness_and_wrap(void **state) {
  (void)state;
  struct queue *q;
  int items[3];
  void *got;
  assert_int_equal(queue_create(&q, 2, NULL), RC_OK);
  for (int round = 0; round < 5; round++) {
    assert_int_equal(queue_push(q, &items[0]), RC_OK);
    assert_int_equal(queue_push(q, &items[1]), RC_OK);
    assert_int_equal(queue_push(q, &items[2]), RC_FULL);
    assert_int_equal(queue_length(q), 2);
    assert_int_equal(queue_pop(q, &got, 0), RC_OK);
    assert_ptr_equal(got, &items[0]);
    assert_int_equal(queue_push(q, &items[2]), RC_OK);
    assert_int_equal(queue_pop(q, &got, 1000), RC_OK);
    assert_ptr_equal(got, &items[1]);
    assert_int_equal(queue_pop(q, &got, 1000), RC_OK);
    assert_ptr_equal(got, &items[2]);
  }
  queue_destroy(q);
  queue_destroy(NULL);
  assert_int_equal(queue_create(&q, 0, NULL), RC_INVALID);
}

static void test_what_is_pushed_first_is_popped_first(void **state) {
  (void)state;
  struct queue *q;
  int items[4];
  void *got;
  assert_int_equal(queue_create(&q, 3, NULL), RC_OK);
  for (int round = 0; round < 4; round++) {
    assert_int_equal(queue_push(q, &items[1]), RC_OK);
    assert_int_equal(queue_push_first(q, &items[0]), RC_OK);
    assert_int_equal(queue_push(q, &items[2]), RC_OK);
    assert_int_equal(queue_push_first(q, &items[3]), RC_FULL);
    for (int i = 0; i < 3; i++) {
      assert_int_equal(queue_pop(q, &got, 0), RC_OK);
      assert_ptr_equal(got, &items[i]);
    }
    assert_int_equal(queue_push(q, &items[0]), RC_OK); /* the ring turns */
    assert_int_equal(queue_pop(q, &got, 0), RC_OK);
  }
  queue_close(q);
  assert_int_equal(queue_push_first(q, &items[0]), RC_UNAVAILABLE);
  queue_destroy(q);
}

static void test_deadline(void **state) {
  (void)state;
  struct queue *q;
  void *got;
  assert_int_equal(queue_create(&q, 1, NULL), RC_OK);
  const int64_t begin = clock_monotonic_ms();
  assert_int_equal(queue_pop(q, &got, 30), RC_TIMEOUT);
  assert_true(clock_monotonic_ms() - begin >= 29);
  assert_int_equal(queue_pop(q, &got, 0), RC_TIMEOUT);
  assert_int_equal(queue_pop(q, &got, -5), RC_TIMEOUT);
  queue_destroy(q);
}

static void test_closed_gives_what_is_left(void **state) {
  (void)state;
  struct queue *q;
  int item;
  void *got;
  assert_int_equal(queue_create(&q, 2, NULL), RC_OK);
  assert_int_equal(queue_push(q, &item), RC_OK);
  queue_close(q);
  assert_int_equal(queue_push(q, &item), RC_UNAVAILABLE);
  assert_int_equal(queue_pop(q, &got, 1000), RC_OK);
  assert_int_equal(queue_pop(q, &got, 1000), RC_UNAVAILABLE);
  queue_destroy(q);
}

static void *consume(void *arg) {
  intptr_t n = 0;
  void *got;
  while (queue_pop(arg, &got, 5000) == RC_OK) n++;
  return (void *)n;
}

static void test_consumers_get_everything_and_leave_on_close(void **state) {
  (void)state;
  struct queue *q;
  int item;
  pthread_t threads[3];
  assert_int_equal(queue_create(&q, 8, NULL), RC_OK);
  for (int i = 0; i < 3; i++) assert_int_equal(pthread_create(&threads[i], NULL, consume, q), 0);
  for (int sent = 0; sent < 2000; sent++) AWAIT(queue_push(q, &item) == RC_OK, "the queue stays full") continue;
  clock_sleep_ms(20); /* let them wait on the empty queue */
  const int64_t closed_at = clock_monotonic_ms();
  queue_close(q);
  intptr_t total = 0;
  for (int i = 0; i < 3; i++) {
    void *n;
    pthread_join(threads[i], &n);
    total += (intptr_t)n;
  }
  assert_int_equal(total, 2000);
  assert_true(clock_monotonic_ms() - closed_at < 2000); /* woken, not timed out */
  queue_destroy(q);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_order_fullness_and_wrap),
      cmocka_unit_test(test_what_is_pushed_first_is_popped_first),
      cmocka_unit_test(test_deadline),
      cmocka_unit_test(test_closed_gives_what_is_left),
      cmocka_unit_test(test_consumers_get_everything_and_leave_on_close),
  };
  return cmocka_run_group_tests_name("base/queue", tests, NULL, NULL);
}
