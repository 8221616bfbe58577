/* Log lines as text, logfmt and JSON: one line an event whatever a peer's text holds, keys that are known and no
 * others, ids that are read strictly.  tests/e2e/test_logs.py reads them with others' readers. */
#include "tests/unit/base/cm.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/utf8.h"

static char logged[16384];

/* What `say` writes to standard error, into `logged`. */
static void capture(void (*say)(const void *with), const void *with) {
  FILE *file = tmpfile();
  const int saved = dup(STDERR_FILENO);
  assert_non_null(file);
  dup2(fileno(file), STDERR_FILENO);
  say(with);
  dup2(saved, STDERR_FILENO);
  close(saved);
  rewind(file);
  const size_t len = fread(logged, 1, sizeof logged - 1, file);
  logged[len] = 0;
  fclose(file);
}

static void say_text(const void *with) { log_info("%s", (const char *)with); }

/* Behind the time, which is as long in each. */
static void expect_line(enum log_format format, const char *text, const char *line) {
  static const size_t time_chars[] = {25, 30, 35};
  log_as(format);
  capture(say_text, text);
  assert_string_equal(logged + time_chars[format], line);
}

static void test_a_peers_text_cannot_forge_a_line_or_a_field(void **state) {
  (void)state;
  const char *hostile = "a\"b\\c\nd\te=f \x1b[2J\x7f \xC2\x85\xE2\x80\xA8 \xFF\xC3( \xF0\x9F\x98\x80";
#define ESCAPED "a\\\"b\\\\c\\nd\\te=f \\u001b[2J\\u007f \\u0085\\u2028 \xEF\xBF\xBD\xEF\xBF\xBD( \xF0\x9F\x98\x80"
  expect_line(LOG_AS_TEXT, hostile,
              "info tester a\"b\\c?d?e=f ?[2J? \xC2\x85\xE2\x80\xA8 \xFF\xC3( \xF0\x9F\x98\x80\n");
  expect_line(LOG_AS_LOGFMT, hostile, "level=info service=tester message=\"" ESCAPED "\"\n");
  expect_line(LOG_AS_JSON, hostile, "\"level\":\"info\",\"service\":\"tester\",\"message\":\"" ESCAPED "\"}\n");
}

static void test_what_needs_no_quotes_has_none(void **state) {
  (void)state;
  expect_line(LOG_AS_LOGFMT, "ready", "level=info service=tester message=ready\n");
  expect_line(LOG_AS_LOGFMT, "", "level=info service=tester message=\"\"\n");
  expect_line(LOG_AS_LOGFMT, "a=b", "level=info service=tester message=\"a=b\"\n");
  expect_line(LOG_AS_JSON, "", "\"level\":\"info\",\"service\":\"tester\",\"message\":\"\"}\n");
}

/* A line that is too long is cut between characters and ends as every line does. */
static void test_long_texts_are_cut_and_the_line_is_whole(void **state) {
  (void)state;
  static char text[8000];
  for (size_t i = 0; i + 1 < sizeof text; i++) text[i] = "\x01\xE2\x82\xAC"[i % 4];
  for (int turn = 0; turn < 4 * (LOG_AS_JSON + 1); turn++) { /* the cut meets each byte of a character */
    const int format = turn / 4;
    log_as((enum log_format)format);
    capture(say_text, text + turn % 4);
    const size_t len = strlen(logged);
    assert_true(len <= 4096 && len > 4000);
    assert_int_equal(utf8_whole(logged, len - 1), len - 1);
    assert_ptr_equal(strchr(logged, '\n'), logged + len - 1);
    if (format == LOG_AS_LOGFMT) assert_int_equal(logged[len - 2], '"');
    if (format == LOG_AS_JSON) assert_string_equal(logged + len - 3, "\"}\n");
  }
}

static void test_the_context_is_shown_and_cleared(void **state) {
  (void)state;
  log_context_id("r7.12.3.0-3");
  log_context_number(LOG_VERSION, 12);
  log_context_number(LOG_REQUEST, 417);
  expect_line(LOG_AS_TEXT, "x", "info tester x\n");
  expect_line(LOG_AS_LOGFMT, "x",
              "level=info service=tester run=r7 round=12 group=r7.12.3 lease=r7.12.3.0-3 version=12 request=417 "
              "message=x\n");
  expect_line(LOG_AS_JSON, "x",
              "\"level\":\"info\",\"service\":\"tester\",\"run\":\"r7\",\"round\":12,\"group\":\"r7.12.3\",\"lease\":"
              "\"r7.12.3.0-3\",\"version\":12,\"request\":417,\"message\":\"x\"}\n");
  log_context_set(LOG_VERSION, NULL);
  log_context_set(LOG_LEASE, "a b\"\n=");
  expect_line(LOG_AS_LOGFMT, "x",
              "level=info service=tester run=r7 round=12 group=r7.12.3 lease=\"a b\\\"\\n=\" request=417 message=x\n");
  log_context_clear();
  expect_line(LOG_AS_LOGFMT, "x", "level=info service=tester message=x\n");
}

static void expect_id(const char *id, const char *run, const char *round, const char *group, const char *lease) {
  log_context_clear();
  log_context_id(id);
  assert_string_equal(log_context_get(LOG_RUN), run);
  assert_string_equal(log_context_get(LOG_ROUND), round);
  assert_string_equal(log_context_get(LOG_GROUP), group);
  assert_string_equal(log_context_get(LOG_LEASE), lease);
}

static void test_ids_are_read_strictly(void **state) {
  (void)state;
  static const char *const none[] = {"",          "r",          "w3",        "run",       "r7x",     "r7.",
                                     "r7..1",     "r7.1.",      "r7.1.x",    "r7.1.b",    "r7.1.b2.3", "r7.1.2.",
                                     "r7.1.2.3-", "r7.1.2.3-4-", "r7.1.2.3.4", "r7\n",     " r7",
                                     "r1234567890123456789",
                                     "r7.12345678901234567890123456789012345678901234567890123456789"};
  expect_id("r7", "r7", "", "", "");
  expect_id("r7.12", "r7", "12", "", "");
  expect_id("r7.12.b0", "r7", "12", "", "");
  expect_id("r7.12.s3", "r7", "12", "", "");
  expect_id("r7.12.3", "r7", "12", "r7.12.3", "");
  expect_id("r7.12.3.0", "r7", "12", "r7.12.3", "r7.12.3.0");
  expect_id("r7.12.3.0-3", "r7", "12", "r7.12.3", "r7.12.3.0-3");
  for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) expect_id(none[i], "", "", "", "");
  log_context_clear();
}

static void *on_another_thread(void *context) {
  const struct log_context *given = context;
  assert_string_equal(log_context_get(LOG_RUN), "");
  log_context_restore(given);
  assert_string_equal(log_context_get(LOG_RUN), "r9");
  return NULL;
}

static void test_a_context_is_a_threads_and_can_be_handed_on(void **state) {
  (void)state;
  struct log_context mine;
  pthread_t thread;
  log_context_id("r9");
  log_context_save(&mine);
  assert_int_equal(pthread_create(&thread, NULL, on_another_thread, &mine), 0);
  pthread_join(thread, NULL);
  log_context_clear();
}

static void test_format_names(void **state) {
  (void)state;
  enum log_format format;
  struct err err;
  assert_int_equal(log_format_parse(&format, "json", &err), RC_OK);
  assert_int_equal(format, LOG_AS_JSON);
  assert_int_equal(log_format_parse(&format, "xml", &err), RC_INVALID);
  assert_string_equal(err.field, "log-format");
  assert_non_null(strstr(err.message, "text, logfmt, json"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_peers_text_cannot_forge_a_line_or_a_field),
      cmocka_unit_test(test_what_needs_no_quotes_has_none),
      cmocka_unit_test(test_long_texts_are_cut_and_the_line_is_whole),
      cmocka_unit_test(test_the_context_is_shown_and_cleared),
      cmocka_unit_test(test_ids_are_read_strictly),
      cmocka_unit_test(test_a_context_is_a_threads_and_can_be_handed_on),
      cmocka_unit_test(test_format_names),
  };
  log_init("tester", LOG_INFO);
  return cmocka_run_group_tests_name("base/log", tests, NULL, NULL);
}
