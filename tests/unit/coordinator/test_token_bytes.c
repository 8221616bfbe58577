/* Stored token ids. What would break: ids come back changed, rows from before they were packed are read as others, or
 * rows that no width fits are read at all. */
#include <string.h>

#include "services/coordinator/store/token_bytes.h"
#include "tests/unit/base/cm.h"

enum { COUNT = 5 };

static void comes_back(const int32_t *ids, size_t count, int32_t vocabulary, size_t width) {
  struct arena arena = ARENA_INIT;
  const void *bytes;
  int32_t *back;
  size_t len, n;
  assert_int_equal(token_bytes_pack(&bytes, &len, ids, count, vocabulary, &arena, NULL), RC_OK);
  assert_int_equal(len, count * width);
  assert_int_equal(token_bytes_unpack(&back, &n, bytes, len, count * sizeof(float), &arena, NULL), RC_OK);
  assert_int_equal(n, count);
  assert_memory_equal(back, ids, count * sizeof *ids);
  arena_free(&arena);
}

static void ids_come_back_in_every_width(void **state) {
  (void)state;
  comes_back((const int32_t[]){0, 1, 255, 256, 65535}, COUNT, 65536, 2);
  comes_back((const int32_t[]){0, 65535, 65536, 151935, 16777215}, COUNT, 65537, 3);
  comes_back((const int32_t[]){0, 65536, 16777215}, 3, 16777216, 3);
  comes_back((const int32_t[]){0, 65536, 16777216, 33554431, 7}, COUNT, 33554432, 4);
  comes_back((const int32_t[]){0}, 0, 65536, 2);
}

static void rows_of_four_bytes_are_read(void **state) {
  (void)state;
  const int32_t ids[COUNT] = {3, 0, 151935, 2, 65536};
  struct arena arena = ARENA_INIT;
  int32_t *back;
  size_t n;
  assert_int_equal(token_bytes_unpack(&back, &n, ids, sizeof ids, COUNT * sizeof(float), &arena, NULL), RC_OK);
  assert_int_equal(n, COUNT);
  assert_memory_equal(back, ids, sizeof ids);
  arena_free(&arena);
}

static void lengths_that_fit_no_width_are_corrupt(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  const unsigned char bytes[32] = {0};
  const size_t wrong[][2] = {{0, 4}, {1, 1}, {5, 1}, {7, 2}, {9, 2}, {4, 0}};
  int32_t *ids;
  size_t n;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
    assert_int_equal(token_bytes_unpack(&ids, &n, bytes, wrong[i][0], wrong[i][1] * sizeof(float), &arena, NULL),
                     RC_CORRUPT);
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(ids_come_back_in_every_width),
      cmocka_unit_test(rows_of_four_bytes_are_read),
      cmocka_unit_test(lengths_that_fit_no_width_are_corrupt),
  };
  return cmocka_run_group_tests_name("coordinator/token_bytes", tests, NULL, NULL);
}
