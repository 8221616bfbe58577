/* Stored entropies. What would break: a sample is shown another's entropies, a number comes back as another, or bytes
 * that were cut are read beyond their end. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/store/entropy_bytes.h"
#include "tests/unit/base/cm.h"

static const float FIRST[] = {0, 0.25F, 5.606F, -0.001F, 15.9F}, LAST[] = {1000, NAN, INFINITY};

static struct buf three_samples(void) {
  struct buf bytes = BUF_INIT;
  entropy_bytes_append(&bytes, FIRST, 5);
  entropy_bytes_append(&bytes, NULL, 0);
  entropy_bytes_append(&bytes, LAST, 3);
  return bytes;
}

static void each_sample_finds_its_own_to_half_a_step(void **state) {
  (void)state;
  struct buf bytes = three_samples();
  size_t count;
  const void *of = entropy_bytes_of(bytes.data, bytes.len, 0, &count);
  assert_int_equal(count, 5);
  for (size_t i = 0; i < count; i++)
    assert_true(fabs(entropy_bytes_at(of, i) - fmax(0, (double)FIRST[i])) <= 0.5 / ENTROPY_STEPS_PER_NAT + 1e-6);
  assert_true(entropy_bytes_at(of, 0) == 0 && entropy_bytes_at(of, 1) == 0.25);
  assert_non_null(entropy_bytes_of(bytes.data, bytes.len, 1, &count));
  assert_int_equal(count, 0);
  of = entropy_bytes_of(bytes.data, bytes.len, 2, &count);
  assert_int_equal(count, 3);
  assert_true(entropy_bytes_at(of, 0) == (double)ENTROPY_STEP_LAST / ENTROPY_STEPS_PER_NAT);
  assert_true(isnan(entropy_bytes_at(of, 1)) && isnan(entropy_bytes_at(of, 2)));
  assert_null(entropy_bytes_of(bytes.data, bytes.len, 3, &count));
  buf_free(&bytes);
}

static void a_long_sample_comes_back_whole(void **state) {
  (void)state;
  float nats[1000];
  struct buf bytes = BUF_INIT;
  size_t count;
  for (int i = 0; i < 1000; i++) nats[i] = (float)i / 128;
  entropy_bytes_append(&bytes, nats, 1000);
  const void *of = entropy_bytes_of(bytes.data, bytes.len, 0, &count);
  assert_int_equal(count, 1000);
  for (size_t i = 0; i < count; i++) assert_true(entropy_bytes_at(of, i) == (double)nats[i]);
  buf_free(&bytes);
}

static void what_is_cut_has_none(void **state) {
  (void)state;
  struct buf bytes = three_samples();
  size_t count;
  assert_null(entropy_bytes_of(NULL, 0, 0, &count));
  for (size_t len = 0; len < bytes.len; len++) {
    char *exact = malloc(len + 1); /* for the address sanitizer */
    memcpy(exact, bytes.data, len);
    assert_null(entropy_bytes_of(exact, len, 2, &count));
    free(exact);
  }
  buf_free(&bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(each_sample_finds_its_own_to_half_a_step),
      cmocka_unit_test(a_long_sample_comes_back_whole),
      cmocka_unit_test(what_is_cut_has_none),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
