/* Stop texts against a literal search: what is found, and what is held back, for every way of cutting the input. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/tokenizer/stop_text.h"

enum { TRIALS = 20000, INPUT_MAX = 40 };

static uint32_t state_of_random = 1;
static int below(int n) {
  state_of_random = state_of_random * 1664525u + 1013904223u;
  return (int)((state_of_random >> 8) % (uint32_t)n);
}

/* The first place behind `from` at which some text ends, and the longest of those that end there. */
static size_t literal_end(const struct stop_texts *s, const char *input, size_t from, size_t len, size_t *longest) {
  for (size_t end = from + 1; end <= len; end++) {
    *longest = 0;
    for (int k = 0; k < s->count; k++) {
      const size_t n = s->items[k].len;
      if (n <= end && n > *longest && memcmp(input + end - n, s->items[k].text, n) == 0) *longest = n;
    }
    if (*longest > 0) return end;
  }
  return 0;
}

static size_t literal_held(const struct stop_texts *s, const char *input, size_t len) {
  for (size_t held = len; held > 0; held--)
    for (int k = 0; k < s->count; k++)
      if (held < s->items[k].len && memcmp(input + len - held, s->items[k].text, held) == 0) return held;
  return 0;
}

static void matching_equals_a_literal_search_however_the_input_is_cut(void **state) {
  (void)state;
  int found = 0, held = 0;
  for (int trial = 0; trial < TRIALS; trial++) {
    struct arena arena = ARENA_INIT;
    struct stop_texts stops = {0};
    struct stop_state at = {0};
    char input[INPUT_MAX], text[12];
    for (int k = below(LIMIT_STOP_TEXTS) + 1; k > 0; k--) {
      const size_t len = (size_t)below(10) + 1;
      for (size_t i = 0; i < len; i++) text[i] = (char)('a' + below(2));
      assert_int_equal(stop_texts_add(&stops, text, len, &arena, NULL), RC_OK);
    }
    for (int i = 0; i < INPUT_MAX;) { /* beginnings of the texts, and anything */
      const int which = below(stops.count), len = below((int)stops.items[which].len);
      for (int j = 0; j < len && i < INPUT_MAX; j++) input[i++] = stops.items[which].text[j];
      if (i < INPUT_MAX) input[i++] = (char)('a' + (below(4) == 0 ? 2 : below(2)));
    }
    size_t longest = 0, got = 0, used = 0, done = 0;
    const size_t from = (size_t)below(2 * INPUT_MAX) % INPUT_MAX * (size_t)below(2); /* what ends by then is fed on */
    const size_t end = literal_end(&stops, input, from, INPUT_MAX, &longest);
    while (done < INPUT_MAX && got == 0) {
      const size_t chunk = (size_t)below(INPUT_MAX - (int)done) + 1;
      got = stop_texts_feed(&stops, &at, input + done, chunk, &used);
      done += used;
      if (got > 0 && done <= from) {
        stop_texts_pass(&stops, &at);
        got = 0;
        continue;
      }
      if (got == 0) assert_int_equal(used, chunk);
      if (got == 0) assert_int_equal(stop_texts_held(&stops, &at), literal_held(&stops, input, done));
      held += got == 0 && stop_texts_held(&stops, &at) > 0;
    }
    assert_int_equal(got, longest);
    if (got > 0) assert_int_equal(done, end);
    found += got > 0;
    arena_free(&arena);
  }
  assert_true(found > TRIALS / 4 && found < TRIALS && held > TRIALS / 4);
}

static void what_exceeds_the_limits_is_refused(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct stop_texts stops = {0};
  struct err err;
  char *longest = calloc(1, LIMIT_STOP_TEXT_BYTES + 1);
  memset(longest, 'x', LIMIT_STOP_TEXT_BYTES + 1);
  assert_int_equal(stop_texts_add(&stops, "", 0, &arena, &err), RC_INVALID);
  assert_string_equal(err.field, "stop");
  assert_int_equal(stop_texts_add(&stops, longest, LIMIT_STOP_TEXT_BYTES + 1, &arena, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "4097"));
  for (int k = 0; k < LIMIT_STOP_TEXTS; k++)
    assert_int_equal(stop_texts_add(&stops, longest, LIMIT_STOP_TEXT_BYTES, &arena, &err), RC_OK);
  assert_int_equal(stop_texts_add(&stops, "x", 1, &arena, &err), RC_INVALID);
  assert_int_equal(stops.count, LIMIT_STOP_TEXTS);
  free(longest);
  arena_free(&arena);
}

static void without_stop_texts_nothing_is_found_or_held(void **state) {
  (void)state;
  const struct stop_texts stops = {0};
  struct stop_state at = {0};
  size_t used;
  assert_int_equal(stop_texts_feed(&stops, &at, "abc", 3, &used), 0);
  assert_int_equal(used, 3);
  assert_int_equal(stop_texts_held(&stops, &at), 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(matching_equals_a_literal_search_however_the_input_is_cut),
      cmocka_unit_test(what_exceeds_the_limits_is_refused),
      cmocka_unit_test(without_stop_texts_nothing_is_found_or_held),
  };
  return cmocka_run_group_tests_name("stop texts", tests, NULL, NULL);
}
