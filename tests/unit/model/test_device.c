/* The accepted values of --device, --exactness and --isa, and a build without CUDA, which says so before anything is
 * loaded. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/device.h"

static void refused(enum rc rc, const char *field, const char *name, const char *exactness, const char *isa) {
  struct device device;
  struct err err = {0};
  assert_int_equal(device_parse(&device, name, exactness, isa, &err), rc);
  assert_string_equal(err.field, field);
}

static void test_the_cpu(void **state) {
  struct device device;
  struct ops *ops;
  (void)state;
  assert_int_equal(device_parse(&device, "cpu", "invariant", "v2", NULL), RC_OK);
  assert_false(device.cuda);
  assert_int_equal(ops_create(&ops, FORMAT_BF16, &device, NULL, NULL), RC_OK);
  assert_string_equal(ops->name, "cpu-v2");
  assert_string_equal(ops->device, "cpu");
  assert_true(ops->host_memory);
  ops_free(ops);
}

/* There is nothing to take in turns, and no two processes are told that they share something. */
static void test_ranks_on_the_cpu(void **state) {
  struct device device;
  unsigned char identity[DEVICE_IDENTITY_BYTES], nobody[DEVICE_IDENTITY_BYTES] = {0};
  (void)state;
  memset(identity, 1, sizeof identity);
  assert_int_equal(device_parse(&device, "cpu", "invariant", "", NULL), RC_OK);
  const struct device before = device;
  assert_int_equal(device_take_turn(&device, 3, NULL), RC_OK);
  assert_int_equal(device.cuda, before.cuda);
  assert_int_equal(device.index, before.index);
  assert_int_equal(device_identity(identity, &device, NULL), RC_OK);
  assert_memory_equal(identity, nobody, sizeof identity);
}

static void test_what_is_refused(void **state) {
  static const char *const names[] = {"", "gpu", "cuda:", "cuda:x", "cuda:1x", "cuda:-1", "cuda:64", "cuda1", "CPU"};
  (void)state;
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) refused(RC_INVALID, "device", names[i], "invariant", "");
  refused(RC_INVALID, "exactness", "cpu", "fastest", "");
  refused(RC_INVALID, "exactness", "cuda", "exact", "");
  refused(RC_INVALID, "isa", "cpu", "invariant", "v9");
}

static void test_a_build_without_cuda(void **state) {
  struct device device;
  struct err err = {0};
  (void)state;
#ifndef LEASEHOLD_CUDA
  assert_int_equal(device_parse(&device, "cuda:1", "fastest", "", &err), RC_UNSUPPORTED);
  assert_string_equal(err.message,
                      "this build has no CUDA, so it cannot compute on cuda:1; `make cuda` builds one that can");
#else
  (void)device, (void)err;
#endif
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_cpu), cmocka_unit_test(test_ranks_on_the_cpu),
                                     cmocka_unit_test(test_what_is_refused),
                                     cmocka_unit_test(test_a_build_without_cuda)};
  return cmocka_run_group_tests_name("model/device", tests, NULL, NULL);
}
