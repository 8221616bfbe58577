/* The memory that a machine and its control groups leave, read from folders that stand for /proc and /sys; and plans
 * compared with it: a plan that does not fit is refused with all the numbers. */
#include "tests/unit/base/cm.h"

#include <string.h>

#include "common/base/memory_plan.h"
#include "tests/unit/base/machine_root.h"

enum { MIB = 1 << 20 };

static size_t left_with(size_t bound) {
  struct memory_room room;
  memory_room_read(&room, root, bound);
  return memory_room_left(&room);
}

static void test_nothing_known_bounds_nothing(void **state) {
  (void)state;
  assert_true(left_with(0) == SIZE_MAX);
  assert_int_equal(left_with(7 * MIB), 7 * MIB);
}

static void test_the_machine(void **state) {
  (void)state;
  put("/proc", "meminfo", "MemTotal:  9999999 kB\nMemFree: 5 kB\nMemAvailable:   2048 kB\n");
  assert_int_equal(left_with(0), 2 * MIB);
  assert_int_equal(left_with(3 * MIB), 2 * MIB);
  assert_int_equal(left_with(MIB), MIB);
}

/* Its own group has no limit, the group above has one: file caches do not count. */
static void test_groups_of_version_2(void **state) {
  (void)state;
  put("/proc", "meminfo", "MemAvailable: 1048576 kB\n");
  put("/proc/self", "cgroup", "0::/pod/box\n");
  put("/sys/fs/cgroup/pod/box", "memory.max", "max\n");
  assert_int_equal(left_with(0), 1024 * MIB);
  put("/sys/fs/cgroup/pod", "memory.max", "104857600\n");
  put("/sys/fs/cgroup/pod", "memory.current", "52428800\n");
  assert_int_equal(left_with(0), 50 * MIB);
  put("/sys/fs/cgroup/pod", "memory.stat", "anon 5\ninactive_file 10485760\nactive_file 7\n");
  assert_int_equal(left_with(0), 60 * MIB);
  put("/sys/fs/cgroup/pod/box", "memory.max", "41943040\n");
  put("/sys/fs/cgroup/pod/box", "memory.current", "41943041\n");
  assert_int_equal(left_with(0), 0);
}

/* Seen from inside a container: the path is that of the host, the files are at the root of the mount. */
static void test_groups_of_version_1(void **state) {
  (void)state;
  put("/proc", "meminfo", "MemAvailable: 1048576 kB\n");
  put("/proc/self", "cgroup", "12:cpu,cpuacct:/docker/0123\n7:memory:/docker/0123\n1:name=systemd:/\n");
  put("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "9223372036854771712\n");
  assert_int_equal(left_with(0), 1024 * MIB);
  put("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "20971520\n");
  put("/sys/fs/cgroup/memory", "memory.usage_in_bytes", "10485760\n");
  put("/sys/fs/cgroup/memory", "memory.stat", "inactive_file 1\ntotal_inactive_file 4194304\n");
  assert_int_equal(left_with(0), 14 * MIB);
}

static void test_this_machine_says_something(void **state) {
  (void)state;
  struct memory_room room;
  memory_room_read(&room, "", 0);
  assert_true(room.machine > 0);
  assert_true(memory_room_left(&room) > 0 && memory_room_left(&room) < SIZE_MAX);
}

static void test_a_plan_that_does_not_fit_is_refused_with_numbers(void **state) {
  (void)state;
  struct memory_plan plan = {0};
  struct err err = {0};
  const struct memory_room room = {.machine = 4 * MIB, .group_limit = 9 * MIB, .group_used = 6 * MIB, .bound = 0};
  memory_plan_add(&plan, "weights", 2 * MIB);
  memory_plan_add(&plan, "scratch", MIB);
  assert_int_equal(memory_plan_total(&plan), 3 * MIB);
  assert_int_equal(memory_plan_check(&plan, &room, "this server", &err), RC_OK);
  memory_plan_add(&plan, "KV cache", MIB / 2);
  assert_int_equal(memory_plan_check(&plan, &room, "this server", &err), RC_NO_MEMORY);
  assert_string_equal(err.message,
                      "this server needs 3.5 MiB (weights 2.0, scratch 1.0, KV cache 0.5), and the machine has 4.0 MiB "
                      "available, the control group's limit is 9.0 MiB with 6.0 in use");
  const struct memory_room bounded = {.machine = 4 * MIB, .bound = MIB};
  assert_int_equal(memory_plan_check(&plan, &bounded, "this server", &err), RC_NO_MEMORY);
  assert_string_equal(err.field, "memory-max");
  assert_non_null(strstr(err.message, "--memory-max is 1.0 MiB"));
  assert_int_equal(memory_plan_check(&plan, &(struct memory_room){0}, "this server", &err), RC_OK);
  memory_plan_add(&plan, "too much", SIZE_MAX);
  assert_true(memory_plan_total(&plan) == SIZE_MAX);
}

static void test_a_device_has_a_room_of_its_own(void **state) {
  (void)state;
  struct memory_plan plan = {0};
  struct err err = {0};
  struct memory_room room = {.machine = 4 * MIB, .device = 10 * MIB};
  memory_plan_add_where(&plan, "weights", 7 * MIB, true);
  memory_plan_add(&plan, "published versions", 3 * MIB);
  memory_plan_add_where(&plan, "optimizer", 3 * MIB, true);
  assert_int_equal(memory_plan_check(&plan, &room, "the trainer", &err), RC_OK);
  assert_int_equal(memory_plan_total(&plan), 13 * MIB);
  room.device--;
  assert_int_equal(memory_plan_check(&plan, &room, "the trainer", &err), RC_NO_MEMORY);
  assert_string_equal(err.message,
                      "the trainer needs 10.0 MiB on the device (weights 7.0, optimizer 3.0), and the device has 10.0 "
                      "MiB free");
  room.machine = 2 * MIB;
  assert_int_equal(memory_plan_check(&plan, &room, "the trainer", &err), RC_NO_MEMORY);
  assert_string_equal(err.message,
                      "the trainer needs 3.0 MiB (published versions 3.0), and the machine has 2.0 MiB available");
}

/* The plans of other processes on the device count, also when they alone exceed its memory. */
static void test_a_shared_device_must_hold_all_plans(void **state) {
  (void)state;
  struct memory_plan plan = {0};
  struct err err = {0};
  struct memory_room room = {.machine = 4 * MIB, .device = 10 * MIB, .device_others = 6 * MIB};
  memory_plan_add(&plan, "published versions", 3 * MIB);
  memory_plan_add_where(&plan, "weights", 4 * MIB, true);
  assert_int_equal(memory_plan_device(&plan), 4 * MIB);
  assert_int_equal(memory_plan_check(&plan, &room, "the trainer", &err), RC_OK);
  room.device_others++;
  assert_int_equal(memory_plan_check(&plan, &room, "the trainer", &err), RC_NO_MEMORY);
  assert_string_equal(err.message,
                      "the trainer needs 4.0 MiB on the device (weights 4.0), and the device has 10.0 MiB free, of "
                      "which other processes plan to take 6.0");
  room.device_others = 11 * MIB;
  assert_int_equal(memory_plan_check(&plan, &room, "the trainer", &err), RC_NO_MEMORY);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_nothing_known_bounds_nothing, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_the_machine, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_groups_of_version_2, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_groups_of_version_1, make_root, remove_root),
      cmocka_unit_test(test_this_machine_says_something),
      cmocka_unit_test(test_a_plan_that_does_not_fit_is_refused_with_numbers),
      cmocka_unit_test(test_a_device_has_a_room_of_its_own),
      cmocka_unit_test(test_a_shared_device_must_hold_all_plans),
  };
  return cmocka_run_group_tests_name("base/memory_plan", tests, NULL, NULL);
}
