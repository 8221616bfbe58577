/* What a terminal is given.  What would break: text of a model that clears the screen, moves the cursor or turns what
 * follows around; a figure that was not measured shown as 0. */
#include "tests/unit/base/cm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "services/cli/commands/show.h"

static void shown_as(const char *text, size_t len, const char *expected) {
  char *out = NULL;
  size_t size = 0;
  FILE *file = open_memstream(&out, &size);
  show_text(file, text, len);
  fclose(file);
  assert_string_equal(out, expected);
  assert_int_equal(size, strlen(expected));
  free(out);
}
#define SHOWN(text, expected) shown_as(text, sizeof(text) - 1, expected)

static void test_text_cannot_steer_a_terminal(void **state) {
  (void)state;
  SHOWN("7+5=2", "7+5=2");
  SHOWN("gr\303\274n \346\260\264 \360\237\214\212", "gr\303\274n \346\260\264 \360\237\214\212");
  SHOWN("\033[2J\033]0;x\007", "\\x1b[2J\\x1b]0;x\\x07");
  SHOWN("a\nb\r\t\177", "a\\nb\\x0d\\x09\\x7f");
  SHOWN("a\0b", "a\\x00b");
  SHOWN("\302\2332J", "\\xc2\\x9b2J"); /* CSI as one character of Unicode */
  SHOWN("\302\240", "\302\240");
  SHOWN("\342\200\256abc\342\201\246", "\\xe2\\x80\\xaeabc\\xe2\\x81\\xa6"); /* right to left from here */
  SHOWN("\342\200\224", "\342\200\224");                                     /* a dash steers nothing */
  SHOWN("\377\303", "\\xff\\xc3");                                           /* no UTF-8, and cut short */
}

static void test_figures_that_are_missing_are_no_zeroes(void **state) {
  (void)state;
  struct json *v = NULL;
  static const char text[] = "{\"a\":{\"b\":2.5,\"c\":null},\"d\":true,\"e\":\"word\"}";
  assert_int_equal(json_parse(&v, text, sizeof text - 1, 0, NULL), RC_OK);
  assert_true(json_find_number(v, "a.b") == 2.5 && json_find_number(v, "d") == 1);
  assert_true(isnan(json_find_number(v, "a.c")) && isnan(json_find_number(v, "a.x.y")) &&
              isnan(json_find_number(v, "e")));
  assert_string_equal(show_word(v, "e", "none"), "word");
  assert_string_equal(show_word(v, "d", "none"), "none");
  assert_string_equal(show_word(NULL, "e", "none"), "none");
  json_free(v);
  assert_string_equal(show_figure(NAN, 2).text, "-");
  assert_string_equal(show_figure(1.005, 1).text, "1.0");
  assert_string_equal(show_duration(NAN).text, "-");
  assert_string_equal(show_duration(350).text, "350 ms");
  assert_string_equal(show_duration(12345).text, "12.3 s");
  assert_string_equal(show_duration(250000).text, "4 min 10 s");
  assert_string_equal(show_duration(7500000).text, "2 h 5 min");
}

/* A reward server that is dead held a run for ten minutes, and nothing but the JSON told. */
static void test_a_failing_reward_server_is_told_while_samples_wait(void **state) {
  (void)state;
  static const struct {
    const char *server, *line;
  } cases[] = {
      {"{\"url\":\"http://r\",\"waiting\":12,\"last_error\":\"refused\"}",
       "12 samples wait for the reward server http://r, whose last request failed: refused"},
      {"{\"url\":\"http://r\",\"waiting\":1,\"last_error\":\"refused\"}",
       "1 sample waits for the reward server http://r, whose last request failed: refused"},
      {"{\"url\":\"http://r\",\"waiting\":12,\"last_error\":null}", NULL},
      {"{\"url\":\"http://r\",\"waiting\":0,\"last_error\":\"refused\"}", NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct buf line = BUF_INIT;
    struct json *server = NULL;
    assert_int_equal(json_parse(&server, cases[i].server, strlen(cases[i].server), 0, NULL), RC_OK);
    assert_int_equal(show_reward_server(&line, server), cases[i].line != NULL);
    if (cases[i].line)
      assert_string_equal(line.data, cases[i].line);
    else
      assert_int_equal(line.len, 0);
    json_free(server);
    buf_free(&line);
  }
}

static void test_bars_are_as_wide_as_they_should_be(void **state) {
  (void)state;
  static const struct {
    double share;
    const char *bar;
  } cases[] = {{0, "...."}, {0.5, "##.."}, {1, "####"}, {7, "####"}, {-1, "...."}, {NAN, "...."}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char *out = NULL;
    size_t size = 0;
    FILE *file = open_memstream(&out, &size);
    show_bar(file, cases[i].share, 4);
    fclose(file);
    assert_string_equal(out, cases[i].bar);
    free(out);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_text_cannot_steer_a_terminal),
      cmocka_unit_test(test_figures_that_are_missing_are_no_zeroes),
      cmocka_unit_test(test_a_failing_reward_server_is_told_while_samples_wait),
      cmocka_unit_test(test_bars_are_as_wide_as_they_should_be),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
