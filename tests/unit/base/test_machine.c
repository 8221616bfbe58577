/* The cores that control groups grant, read from folders that stand for /proc and /sys. */
#include "tests/unit/base/cm.h"

#include <sched.h>

#include "common/base/machine.h"
#include "tests/unit/base/machine_root.h"

static void test_nothing_known_bounds_nothing(void **state) {
  (void)state;
  assert_int_equal(cores_granted(root), 0);
}

/* Half a core more is another thread's worth; the least of all groups counts. */
static void test_groups_of_version_2(void **state) {
  (void)state;
  put("/proc/self", "cgroup", "0::/pod/box\n");
  put("/sys/fs/cgroup/pod/box", "cpu.max", "max 100000\n");
  assert_int_equal(cores_granted(root), 0);
  put("/sys/fs/cgroup/pod", "cpu.max", "350000 100000\n");
  assert_int_equal(cores_granted(root), 4);
  put("/sys/fs/cgroup/pod/box", "cpu.max", "100000 50000\n");
  assert_int_equal(cores_granted(root), 2);
  put("/sys/fs/cgroup/pod/box", "cpu.max", "1000 100000\n");
  assert_int_equal(cores_granted(root), 1);
  put("/sys/fs/cgroup/pod/box", "cpu.max", "nonsense");
  assert_int_equal(cores_granted(root), 4);
}

/* Seen from inside a container: the path is that of the host, the files are at the root of the mount. */
static void test_groups_of_version_1(void **state) {
  (void)state;
  put("/proc/self", "cgroup", "12:cpu,cpuacct:/docker/0123\n7:memory:/docker/0123\n1:name=systemd:/\n");
  put("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "-1\n");
  put("/sys/fs/cgroup/cpu", "cpu.cfs_period_us", "100000\n");
  assert_int_equal(cores_granted(root), 0);
  put("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", "300000\n");
  assert_int_equal(cores_granted(root), 3);
}

static void test_the_affinity_of_this_process(void **state) {
  (void)state;
  cpu_set_t before, one;
  assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
  assert_true(cores_usable() >= 1 && cores_usable() <= CPU_COUNT(&before));
  CPU_ZERO(&one);
  for (size_t cpu = 0; CPU_COUNT(&one) == 0; cpu++)
    if (CPU_ISSET(cpu, &before)) CPU_SET(cpu, &one);
  assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
  assert_int_equal(cores_usable(), 1);
  assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_nothing_known_bounds_nothing, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_groups_of_version_2, make_root, remove_root),
      cmocka_unit_test_setup_teardown(test_groups_of_version_1, make_root, remove_root),
      cmocka_unit_test(test_the_affinity_of_this_process),
  };
  return cmocka_run_group_tests_name("base/machine", tests, NULL, NULL);
}
