/* The faults: with -DLEASEHOLD_FAULTS each strikes as it is described, in the second round and not in the first;
 * without, nothing of it is there. */
#include "tests/unit/trainer-server/support.h"

#include "services/trainer-server/fault.h"

#ifdef LEASEHOLD_FAULTS
static const bool EFFECT = true;
static void choose(const char *name) {
  struct err err = {0};
  assert_rc(RC_OK, fault_set(trainer_faults, name, &err), err);
}
#else
static const bool EFFECT = false;
static void choose(const char *name) { (void)name; }
#endif

/* What spoils one rank of several. */
static void a_rank_is_spoilt_only_when_chosen(void **state) {
  (void)state;
  struct shard shard = shard_of(3 * SHARD_BLOCK + 5, 1, 2), none = shard_of(1, 0, 2);
  choose("short-shard");
  fault_shard(&shard);
  fault_shard(&none);
  choose("");
  assert_int_equal(shard.end, EFFECT ? 3 * SHARD_BLOCK : 3 * SHARD_BLOCK + 5);
  assert_int_equal(none.end, 0);
  fault_shard(&shard);
  assert_int_equal(shard.end, EFFECT ? 3 * SHARD_BLOCK : 3 * SHARD_BLOCK + 5);
}

static void one_gradient_is_flipped_once(void **state) {
  (void)state;
  float zero[3] = {0}, gradient[3] = {1, -4, 2};
  choose("flip-gradient");
  fault_gradient(gradient, 3, 0);
  assert_true(gradient[1] == -4);
  fault_gradient(zero, 3, 1); /* would not be seen: not taken for the one */
  fault_gradient(gradient, 3, 1);
  assert_true(gradient[0] == 1 && gradient[1] == (EFFECT ? 4 : -4) && gradient[2] == 2);
  fault_gradient(gradient, 3, 1);
  assert_true(gradient[1] == (EFFECT ? 4 : -4));
  choose("");
}

static void one_weight_is_flipped_once(void **state) {
  (void)state;
  uint16_t matrix[2] = {0x3f80, 0x4000};
  struct matrix first = {.data = matrix};
  struct weights w = {.matrices = &first};
  choose("flip-weight");
  fault_weights(&w, 0);
  assert_int_equal(matrix[0], 0x3f80);
  fault_weights(&w, 1);
  assert_int_equal(matrix[0], EFFECT ? 0x3f81 : 0x3f80);
  fault_weights(&w, 2);
  assert_int_equal(matrix[0], EFFECT ? 0x3f81 : 0x3f80);
  assert_int_equal(matrix[1], 0x4000);
  choose("");
}

static void one_batch_is_added_twice(void **state) {
  (void)state;
  const float zero[2] = {0}, gradient[2] = {1, -4};
  choose("double-batch");
  fault_batch_begin();
  assert_false(fault_add_twice(gradient, 2, 0));
  fault_batch_begin();
  assert_false(fault_add_twice(zero, 2, 1)); /* would not be seen */
  assert_int_equal(fault_add_twice(gradient, 2, 1), EFFECT);
  assert_int_equal(fault_add_twice(zero, 2, 1), EFFECT); /* the rest of that batch */
  fault_batch_begin();
  assert_false(fault_add_twice(gradient, 2, 1));
  choose("");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_gradient_is_flipped_once),
      cmocka_unit_test(one_weight_is_flipped_once),
      cmocka_unit_test(one_batch_is_added_twice),
      cmocka_unit_test(a_rank_is_spoilt_only_when_chosen),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/fault", tests, NULL, NULL);
}
