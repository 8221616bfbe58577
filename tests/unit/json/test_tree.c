/* Parsing: documents that are refused before jansson and by it, and walking accepted ones. */
#include "tests/unit/base/cm.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json.h"

static struct err err;

static enum rc parse_len(const char *text, size_t len) {
  struct json *v;
  memset(&err, 0, sizeof err);
  const enum rc rc = json_parse(&v, text, len, 0, &err);
  if (rc) assert_null(v);
  json_free(v);
  return rc;
}

static enum rc parse(const char *text) { return parse_len(text, strlen(text)); }

static void test_malformed_is_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    " ",
                                    "{",
                                    "}",
                                    "[1,]",
                                    "{\"a\":1,}",
                                    "{\"a\" 1}",
                                    "{a:1}",
                                    "nul",
                                    "01",
                                    "1.",
                                    ".5",
                                    "+1",
                                    "NaN",
                                    "Infinity",
                                    "1e999",
                                    "9223372036854775808",
                                    "\"\\ud800\"",
                                    "\"\\x\"",
                                    "\"unterminated",
                                    "\"tab\there\"",
                                    "'a'",
                                    "1 2",
                                    "{} x",
                                    "[1] // comment",
                                    "\"\xFF\"",
                                    "\"\xC0\x80\"",
                                    "\xEF\xBB\xBF{}",
                                    "{\"a\\u0000b\":1}",
                                    "\"\\"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    if (parse(bad[i]) != RC_INVALID) fail_msg("accepted: %s", bad[i]);
    assert_true(err.message[0]);
  }
  assert_int_equal(parse_len("{}\0", 3), RC_INVALID);
  assert_int_equal(parse_len("\"a\0b\"", 5), RC_INVALID);
  assert_int_equal(parse("{\n \"a\": ?}"), RC_INVALID);
  assert_non_null(strstr(err.message, "line 2"));
}

/* A tokenizer of bytes has a token for byte 0, so a text may hold one. */
static void test_nul_in_strings_is_kept_with_the_length(void **state) {
  (void)state;
  static const char text[] = "[\"a\\u0000b\",\"\\u0000\",\"ab\",7]";
  struct json *root;
  size_t len;
  if (json_parse(&root, text, sizeof text - 1, 0, &err) != RC_OK) fail_msg("%s", err.message);
  assert_memory_equal(json_string(json_at(root, 0), &len), "a\0b", 4);
  assert_int_equal(len, 3);
  assert_memory_equal(json_string(json_at(root, 1), &len), "\0", 2);
  assert_int_equal(len, 1);
  assert_null(json_word(json_at(root, 0))); /* a C string would end before the text does */
  assert_null(json_word(json_at(root, 1)));
  assert_string_equal(json_word(json_at(root, 2)), "ab");
  assert_null(json_word(json_at(root, 3)));
  assert_null(json_word(json_at(root, 4)));
  struct buf out = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &out);
  json_write_value(&w, root);
  assert_memory_equal(out.data, text, sizeof text - 1);
  buf_free(&out);
  json_free(root);
}

static void test_every_truncation_is_refused(void **state) {
  (void)state;
  static const char text[] = "{\"a\":[1,2.5e3,\"x\\n\\u00e9\",null,true],\"b\":{\"c\":false}}";
  assert_int_equal(parse(text), RC_OK);
  for (size_t len = 0; len + 1 < sizeof text - 1; len++) assert_int_equal(parse_len(text, len), RC_INVALID);
}

static void test_duplicate_keys_are_refused(void **state) {
  (void)state;
  assert_int_equal(parse("{\"a\":1,\"a\":1}"), RC_INVALID);
  assert_int_equal(parse("[{\"x\":{\"a\":1,\"\\u0061\":2}}]"), RC_INVALID);
  assert_int_equal(parse("{\"a\":{\"a\":1}}"), RC_OK);
}

static void test_depth_is_bounded(void **state) {
  (void)state;
  char text[2 * LIMIT_JSON_DEPTH + 8];
  for (int depth = 1; depth <= LIMIT_JSON_DEPTH + 1; depth++) {
    memset(text, '[', (size_t)depth);
    memset(text + depth, ']', (size_t)depth);
    assert_int_equal(parse_len(text, 2 * (size_t)depth), depth <= LIMIT_JSON_DEPTH ? RC_OK : RC_INVALID);
  }
  assert_non_null(strstr(err.message, "column 33"));
  /* brackets in strings do not count, and a million open ones must not reach jansson's recursion */
  assert_int_equal(parse("[\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[[[[\"]"), RC_OK);
  char *many = malloc(1000000);
  memset(many, '{', 1000000);
  assert_int_equal(parse_len(many, 1000000), RC_INVALID);
  free(many);
}

static void test_size_is_bounded(void **state) {
  (void)state;
  struct json *v;
  assert_int_equal(json_parse(&v, "[1,2]", 5, 4, &err), RC_TOO_LARGE);
  assert_non_null(strstr(err.message, "at most 4"));
  assert_int_equal(json_parse(&v, "[1,2]", 5, 5, &err), RC_OK);
  json_free(v);
  json_free(NULL);
}

static void test_walking(void **state) {
  (void)state;
  static const char text[] = "{\"z\":1,\"a\":[true,null,2.0,\"s\\u00e9\"],\"m\":{}}";
  struct json *root;
  assert_int_equal(json_parse(&root, text, sizeof text - 1, 0, NULL), RC_OK);
  assert_int_equal(json_type_of(root), JSON_OBJECT);
  assert_int_equal(json_length(root), 3);
  void *cursor = NULL;
  const char *key, *order[] = {"z", "a", "m"};
  const struct json *v;
  int n = 0;
  while (json_next(root, &cursor, &key, &v)) assert_string_equal(key, order[n++]);
  assert_int_equal(n, 3);
  const struct json *a = json_get(root, "a");
  assert_int_equal(json_length(a), 4);
  assert_true(json_bool(json_at(a, 0)));
  assert_int_equal(json_type_of(json_at(a, 1)), JSON_NULL);
  assert_int_equal(json_type_of(json_at(a, 2)), JSON_REAL); /* 2.0 is no integer */
  assert_true(json_number(json_at(a, 2)) == 2.0);
  size_t len;
  assert_string_equal(json_string(json_at(a, 3), &len), "s\xC3\xA9");
  assert_int_equal(len, 3);
  assert_null(json_at(a, 4));
  assert_null(json_at(root, 0)); /* an object has a length, and no items */
  assert_int_equal(json_type_of(json_at(root, 0)), JSON_NULL);
  assert_null(json_get(a, "z"));
  assert_null(json_get(root, "absent"));
  assert_null(json_get(NULL, "z"));
  assert_int_equal(json_int(json_get(root, "z")), 1);
  cursor = NULL;
  assert_false(json_next(a, &cursor, &key, &v));
  json_free(root);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_malformed_is_refused),
      cmocka_unit_test(test_nul_in_strings_is_kept_with_the_length),
      cmocka_unit_test(test_every_truncation_is_refused),
      cmocka_unit_test(test_duplicate_keys_are_refused),
      cmocka_unit_test(test_depth_is_bounded),
      cmocka_unit_test(test_size_is_bounded),
      cmocka_unit_test(test_walking),
  };
  return cmocka_run_group_tests_name("json/tree", tests, NULL, NULL);
}
