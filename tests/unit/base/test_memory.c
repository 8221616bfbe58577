/* Buffers and arenas: growth, refusal, alignment, zeroes. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/buf.h"

static void test_buf_grows_and_stays_terminated(void **state) {
  (void)state;
  struct buf b = BUF_INIT;
  char expected[20000] = "";
  size_t at = 0;
  for (int i = 0; at < 15000; i++) {
    at += (size_t)sprintf(expected + at, "%d,", i);
    buf_printf(&b, "%d,", i);
    assert_int_equal(b.len, at);
    assert_int_equal(b.data[b.len], 0);
  }
  assert_string_equal(b.data, expected);
  assert_int_equal(buf_check(&b, NULL), RC_OK);
  buf_clear(&b);
  assert_int_equal(b.len, 0);
  assert_string_equal(b.data, "");
  buf_free(&b);
  assert_null(b.data);
}

static void test_buf_printf_longer_than_its_room(void **state) {
  (void)state;
  struct buf b = BUF_INIT;
  buf_puts(&b, "x");
  buf_printf(&b, "%1000d", 7);
  assert_int_equal(b.len, 1001);
  assert_int_equal(b.data[1000], '7');
  buf_printf(&b, "%s", "");
  assert_int_equal(b.len, 1001);
  buf_free(&b);
}

static void test_buf_refusal_is_sticky(void **state) {
  (void)state;
  struct buf b = BUF_INIT;
  buf_puts(&b, "kept");
  buf_reserve(&b, (size_t)PTRDIFF_MAX);
  struct err err;
  assert_int_equal(buf_check(&b, &err), RC_NO_MEMORY);
  buf_puts(&b, "ignored");
  assert_string_equal(b.data, "kept");
  buf_free(&b);
}

static void test_buf_take(void **state) {
  (void)state;
  struct buf b = BUF_INIT;
  buf_append(&b, "a\0b", 3);
  size_t len;
  char *data = buf_take(&b, &len);
  assert_int_equal(len, 3);
  assert_memory_equal(data, "a\0b", 4);
  assert_null(b.data);
  free(data);
}

static void test_arena_is_aligned_zeroed_and_apart(void **state) {
  (void)state;
  struct arena a = ARENA_INIT;
  unsigned char *previous = NULL;
  for (size_t i = 0; i < 3000; i++) {
    const size_t size = i % 97 == 0 ? 50000 + i : i % 61;
    const bool filled = i % 5 == 4; /* by us: what comes after it is zeroed all the same */
    unsigned char *p = filled ? arena_alloc_bytes(&a, size) : arena_alloc(&a, size, 1);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    assert_ptr_not_equal(p, previous);
    for (size_t j = 0; j < size && !filled; j++) assert_int_equal(p[j], 0);
    memset(p, 0xFF, size); /* would spoil the next one's zeroes if they overlapped */
    previous = p;
  }
  arena_free(&a);
  assert_null(a.head);
  arena_free(&a);
}

static void test_arena_refuses_overflow(void **state) {
  (void)state;
  struct arena a = ARENA_INIT;
  assert_null(arena_alloc(&a, SIZE_MAX / 2, 3));
  assert_null(arena_alloc(&a, SIZE_MAX, 1));
  assert_null(arena_alloc_bytes(&a, SIZE_MAX));
  assert_null(arena_strndup(&a, "x", SIZE_MAX));
  assert_string_equal(arena_strndup(&a, "lease", 3), "lea");
  assert_string_equal(arena_strdup(&a, ""), "");
  arena_free(&a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_buf_grows_and_stays_terminated),
      cmocka_unit_test(test_buf_printf_longer_than_its_room),
      cmocka_unit_test(test_buf_refusal_is_sticky),
      cmocka_unit_test(test_buf_take),
      cmocka_unit_test(test_arena_is_aligned_zeroed_and_apart),
      cmocka_unit_test(test_arena_refuses_overflow),
  };
  return cmocka_run_group_tests_name("base/memory", tests, NULL, NULL);
}
