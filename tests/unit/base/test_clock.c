/* The clock of stored times: no duration jumps or turns negative when somebody sets the machine's clock, and logs show
 * the machine's clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <cmocka.h>

#include "clock_virtual.h"
#include "common/base/clock.h"

enum { MS = 1000, SECOND = 1000000 };

static void a_step_of_the_wall_clock_is_no_duration(void **state) {
  (void)state;
  uint32_t dice = 5;
  const int64_t begin_us = clock_wall_us(), offset_us = clock_wall_offset_us();
  assert_int_equal(begin_us, WALL_AT_START_US + virtual_us);
  int64_t passed_us = 0;
  for (int i = 0; i < 1000; i++) {
    dice = dice * 1664525u + 1013904223u;
    clock_set_us += ((int64_t)(dice >> 8) % 7200 - 3600) * SECOND; /* an hour ahead, an hour back */
    virtual_us += 7 * MS;
    passed_us += 7 * MS;
    assert_int_equal(clock_wall_us() - begin_us, passed_us);
    assert_int_equal(clock_wall_ms(), clock_wall_us() / 1000);
  }
  assert_int_equal(clock_wall_offset_us(), offset_us);
  assert_int_equal(clock_real_ms(), (WALL_AT_START_US + virtual_us + clock_set_us) / 1000);
}

static void the_machines_clock_as_a_value_tells_the_same_times(void **state) {
  (void)state;
  virtual_us += 5;
  assert_int_equal(clock_machine.monotonic_us(clock_machine.context), clock_monotonic_us());
  assert_int_equal(clock_machine.wall_us(clock_machine.context), clock_wall_us());
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_step_of_the_wall_clock_is_no_duration),
      cmocka_unit_test(the_machines_clock_as_a_value_tells_the_same_times),
  };
  return cmocka_run_group_tests_name("base/clock", tests, NULL, NULL);
}
