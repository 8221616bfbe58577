/* A checkpoint's record of rounds is bounded: with 65,536 of them it took 15 MB, written anew with every checkpoint. */
#include "tests/unit/trainer-server/support.h"

#include "services/trainer-server/engine/checkpoint.h"

static struct round_history history;

static int set_up(void **state) {
  (void)state;
  history.count = 0;
  return 0;
}

static void check_newest(int64_t newest, size_t count) {
  assert_int_equal(history.count, count);
  for (size_t i = 0; i < count; i++) assert_int_equal(history.items[count - 1 - i].version, newest - (int64_t)i);
}

static void test_a_long_run_keeps_its_newest_rounds(void **state) {
  (void)state;
  for (int64_t version = 1; version <= 3 * ROUNDS_RECORDED; version++) {
    const struct round_record record = {.version = version};
    round_history_add(&history, &record, 1);
    check_newest(version, version < ROUNDS_RECORDED ? (size_t)version : ROUNDS_RECORDED);
  }
}

static void test_a_longer_record_of_an_earlier_trainer_is_cut(void **state) {
  enum { THEIRS = 65536 };
  struct round_record *theirs = calloc(THEIRS, sizeof *theirs);
  (void)state;
  assert_non_null(theirs);
  for (int i = 0; i < THEIRS; i++) theirs[i].version = i + 1;
  round_history_add(&history, theirs, 3);
  check_newest(3, 3);
  history.count = 0;
  round_history_add(&history, theirs, THEIRS);
  check_newest(THEIRS, ROUNDS_RECORDED);
  round_history_add(&history, theirs, 0);
  check_newest(THEIRS, ROUNDS_RECORDED);
  free(theirs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_a_long_run_keeps_its_newest_rounds, set_up),
      cmocka_unit_test_setup(test_a_longer_record_of_an_earlier_trainer_is_cut, set_up),
  };
  return cmocka_run_group_tests_name("trainer-server/round_history", tests, NULL, NULL);
}
