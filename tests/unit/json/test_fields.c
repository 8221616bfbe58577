/* Field tables: each kind with right and wrong inputs; the message names field, expectation and input. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/json/json.h"

static struct err err;
static struct arena arena;
static struct json *root;

static int tear_down(void **state) {
  (void)state;
  json_free(root);
  root = NULL;
  arena_free(&arena);
  return 0;
}

/* Reads `text` by one field named "x". */
static enum rc read_one(const char *text, struct json_field field, enum json_unknown unknown) {
  tear_down(NULL);
  memset(&err, 0, sizeof err);
  assert_int_equal(json_parse(&root, text, strlen(text), 0, &err), RC_OK);
  field.name = "x";
  return json_fields(root, &field, 1, unknown, &arena, &err);
}

#define SEVEN "abcdefg"
#define READ(text, ...) read_one(text, (struct json_field){__VA_ARGS__}, UNKNOWN_REFUSED)

static void refused(enum rc rc, const char *field, const char *part) {
  assert_int_equal(rc, RC_INVALID);
  assert_string_equal(err.field, field);
  if (!strstr(err.message, part)) fail_msg("expected \"%s\" in: %s", part, err.message);
}

static void test_presence(void **state) {
  (void)state;
  int64_t x = 7;
  bool present = true;
  assert_int_equal(READ("{}", .kind = FIELD_I64, .target = &x, .present = &present), RC_OK);
  assert_int_equal(x, 7);
  assert_false(present);
  present = true;
  assert_int_equal(READ("{\"x\":null}", .kind = FIELD_I64, .target = &x, .present = &present), RC_OK);
  assert_int_equal(x, 7);
  assert_false(present);
  assert_int_equal(READ("{\"x\":8}", .kind = FIELD_I64, .target = &x, .present = &present), RC_OK);
  assert_int_equal(x, 8);
  assert_true(present);
  refused(READ("{}", .kind = FIELD_I64, .target = &x, .required = true), "x", "got none");
  refused(READ("{\"x\":null}", .kind = FIELD_I64, .target = &x, .required = true), "x", "got null");
  refused(READ("[]", .kind = FIELD_I64, .target = &x), "", "expected a JSON object, got an array of 0");
}

/* Else "worker\0x" would be taken for "worker". */
static void test_nul_is_refused_where_a_c_string_is_handed_out(void **state) {
  (void)state;
  const char *name = NULL;
  struct digest digest;
  struct json_text text = {NULL, 0};
  uint64_t number = 7;
  refused(READ("{\"x\":\"ab\\u0000c\"}", .kind = FIELD_STRING, .target = &name), "x",
          "without NUL characters, got one at byte 2 of 4");
  refused(READ("{\"x\":\"\\u0000\"}", .kind = FIELD_STRING, .target = &name), "x", "at byte 0 of 1");
  assert_null(name);
  refused(READ("{\"x\":\"0000000000000000000000000000000000000000000000000000000000000000\\u0000\"}",
               .kind = FIELD_DIGEST, .target = &digest),
          "x", "64 hexadecimal digits");
  refused(READ("{\"x\":\"12\\u0000\"}", .kind = FIELD_U64, .target = &number), "x", "got the string \"12\"...");
  assert_int_equal(number, 7);
  assert_int_equal(READ("{\"x\":\"ab\\u0000c\"}", .kind = FIELD_TEXT, .target = &text, .max = 4), RC_OK);
  assert_int_equal(text.len, 4);
  assert_memory_equal(text.bytes, "ab\0c", 5);
  refused(READ("{\"x\":\"ab\\u0000c\"}", .kind = FIELD_TEXT, .target = &text, .max = 3), "x",
          "of 0 to 3 characters, got 4");
}

static void test_unknown_fields(void **state) {
  (void)state;
  int64_t x = 0;
  const struct json_field f = {.kind = FIELD_I64, .target = &x};
  refused(read_one("{\"x\":1,\"tpyo\":2}", f, UNKNOWN_REFUSED), "tpyo", "expected one of x");
  assert_int_equal(read_one("{\"x\":1,\"tpyo\":2}", f, UNKNOWN_IGNORED), RC_OK);
}

static void test_integers(void **state) {
  (void)state;
  int64_t i64 = 0;
  int32_t i32 = 0;
  uint64_t u64 = 0;
  assert_int_equal(READ("{\"x\":-9223372036854775808}", .kind = FIELD_I64, .target = &i64), RC_OK);
  assert_true(i64 == INT64_MIN);
  refused(READ("{\"x\":1.5}", .kind = FIELD_I64, .target = &i64), "x", "expected an integer, got 1.5");
  refused(READ("{\"x\":\"1\"}", .kind = FIELD_I64, .target = &i64), "x", "got the string \"1\"");
  refused(READ("{\"x\":\"" SEVEN SEVEN SEVEN SEVEN SEVEN SEVEN "12345\u00e9\"}", .kind = FIELD_I64, .target = &i64),
          "x", SEVEN "12345\"..."); /* 48 bytes are shown, and no half of a character */
  refused(READ("{\"x\":65}", .kind = FIELD_I64, .target = &i64, .min = 1, .max = 64), "x", "from 1 to 64, got 65");
  refused(READ("{\"x\":0}", .kind = FIELD_I64, .target = &i64, .min = 1, .max = 64), "x", "got 0");
  assert_int_equal(READ("{\"x\":64}", .kind = FIELD_I64, .target = &i64, .min = 1, .max = 64), RC_OK);
  assert_int_equal(READ("{\"x\":-2147483648}", .kind = FIELD_I32, .target = &i32), RC_OK);
  assert_true(i32 == INT32_MIN);
  refused(READ("{\"x\":2147483648}", .kind = FIELD_I32, .target = &i32), "x", "32-bit");
  assert_int_equal(READ("{\"x\":9223372036854775807}", .kind = FIELD_U64, .target = &u64), RC_OK);
  assert_true(u64 == INT64_MAX);
  assert_int_equal(READ("{\"x\":\"18446744073709551615\"}", .kind = FIELD_U64, .target = &u64), RC_OK);
  assert_true(u64 == UINT64_MAX);
  assert_int_equal(READ("{\"x\":\"0\"}", .kind = FIELD_U64, .target = &u64), RC_OK);
  assert_true(u64 == 0);
  static const char *const bad[] = {"-1",
                                    "1.5",
                                    "\"\"",
                                    "\"-1\"",
                                    "\"+1\"",
                                    "\" 1\"",
                                    "\"1x\"",
                                    "\"01\"",
                                    "\"0x1\"",
                                    "\"18446744073709551616\"",
                                    "\"99999999999999999999\"",
                                    "\"100000000000000000000\"",
                                    "true"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char text[64] = "{\"x\":";
    strcat(strcat(text, bad[i]), "}");
    u64 = 5;
    refused(READ(text, .kind = FIELD_U64, .target = &u64), "x", "decimal string");
    assert_true(u64 == 5);
  }
}

/* JSON Schema: 1722.0 and 17e2 are integers.  From 2^53 on such a number may be what another one was rounded to. */
static void an_integer_may_be_written_with_a_fraction_or_an_exponent(void **state) {
  (void)state;
  int64_t i64 = 0;
  int32_t i32 = 0;
  uint64_t u64 = 0;
  struct json_i32s is = {NULL, 9};
  assert_int_equal(READ("{\"x\":1722.0}", .kind = FIELD_I64, .target = &i64), RC_OK);
  assert_int_equal(i64, 1722);
  assert_int_equal(READ("{\"x\":-9007199254740991.0}", .kind = FIELD_I64, .target = &i64), RC_OK);
  assert_true(i64 == -9007199254740991);
  assert_int_equal(READ("{\"x\":-17e2}", .kind = FIELD_I32, .target = &i32), RC_OK);
  assert_int_equal(i32, -1700);
  assert_int_equal(READ("{\"x\":9007199254740991.0}", .kind = FIELD_U64, .target = &u64), RC_OK);
  assert_true(u64 == JSON_EXACT_MAX);
  assert_int_equal(READ("{\"x\":-0.0}", .kind = FIELD_U64, .target = &u64), RC_OK);
  assert_true(u64 == 0);
  assert_int_equal(READ("{\"x\":[1,2.0,3e0]}", .kind = FIELD_I32_ARRAY, .target = &is), RC_OK);
  assert_int_equal(is.count, 3);
  assert_true(is.items[1] == 2 && is.items[2] == 3);
  i64 = i32 = 5;
  u64 = 5;
  static const char *const bad[] = {
      "{\"x\":1722.5}", "{\"x\":9007199254740992.0}", "{\"x\":-9007199254740993.0}", "{\"x\":1e300}", "{\"x\":-1e300}",
      "{\"x\":1e-300}"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    refused(READ(bad[i], .kind = FIELD_I64, .target = &i64), "x", "expected an integer");
    refused(READ(bad[i], .kind = FIELD_I32, .target = &i32), "x", "expected a 32-bit integer");
    refused(READ(bad[i], .kind = FIELD_U64, .target = &u64), "x", "expected a non-negative integer");
  }
  refused(READ("{\"x\":-1.0}", .kind = FIELD_U64, .target = &u64), "x", "got -1");
  refused(READ("{\"x\":2147483648.0}", .kind = FIELD_I32, .target = &i32), "x", "32-bit");
  refused(READ("{\"x\":65.0}", .kind = FIELD_I32, .target = &i32, .min = 1, .max = 64), "x", "from 1 to 64");
  refused(READ("{\"x\":[0,0.5]}", .kind = FIELD_I32_ARRAY, .target = &is), "x[1]", "got 0.5");
  assert_true(i64 == 5 && i32 == 5 && u64 == 5 && is.count == 3);
}

static void test_numbers_and_booleans(void **state) {
  (void)state;
  double d = 0;
  bool b = false;
  assert_int_equal(READ("{\"x\":3}", .kind = FIELD_F64, .target = &d), RC_OK);
  assert_true(d == 3);
  assert_int_equal(READ("{\"x\":0.1}", .kind = FIELD_F64, .target = &d, .min = 0.1, .max = 2), RC_OK);
  assert_true(d == 0.1);
  refused(READ("{\"x\":0.05}", .kind = FIELD_F64, .target = &d, .min = 0.1, .max = 2), "x", "from 0.1 to 2, got 0.05");
  refused(READ("{\"x\":[]}", .kind = FIELD_F64, .target = &d), "x", "got an array of 0");
  assert_int_equal(READ("{\"x\":true}", .kind = FIELD_BOOL, .target = &b), RC_OK);
  assert_true(b);
  refused(READ("{\"x\":1}", .kind = FIELD_BOOL, .target = &b), "x", "expected true or false");
}

static void test_strings_live_in_the_arena(void **state) {
  (void)state;
  const char *s = NULL;
  assert_int_equal(READ("{\"x\":\"r7.12\"}", .kind = FIELD_STRING, .target = &s, .min = 1, .max = 5), RC_OK);
  json_free(root);
  root = NULL;
  assert_string_equal(s, "r7.12");
  refused(READ("{\"x\":\"\"}", .kind = FIELD_STRING, .target = &s, .min = 1, .max = 5), "x",
          "1 to 5 characters, got 0");
  refused(READ("{\"x\":\"123456\"}", .kind = FIELD_STRING, .target = &s, .min = 1, .max = 5), "x", "got 6");
  refused(READ("{\"x\":{}}", .kind = FIELD_STRING, .target = &s), "x", "expected a string, got an object");
}

static void lengths_count_characters_as_the_contract_does(void **state) {
  (void)state;
  const char *s = NULL;
  static const char five[] = "a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x90\xA2z"; /* of one to four bytes */
  char text[64];
  snprintf(text, sizeof text, "{\"x\":\"%s\"}", five);
  assert_int_equal(READ(text, .kind = FIELD_STRING, .target = &s, .min = 5, .max = 5), RC_OK);
  assert_string_equal(s, five);
  snprintf(text, sizeof text, "{\"x\":\"%s!\"}", five);
  refused(READ(text, .kind = FIELD_STRING, .target = &s, .min = 1, .max = 5), "x", "1 to 5 characters, got 6");
}

static void test_long_values_are_shortened_in_the_sentence(void **state) {
  (void)state;
  int64_t x;
  char text[400] = "{\"x\":\"";
  for (int i = 0; i < 100; i++) strcat(text, "\xC3\xA9");
  strcat(text, "\"}");
  refused(READ(text, .kind = FIELD_I64, .target = &x), "x", "...");
  assert_true(strlen(err.message) < 120);
}

static void test_arrays(void **state) {
  (void)state;
  struct json_i32s is = {NULL, 9};
  struct json_f32s fs = {NULL, 9};
  assert_int_equal(READ("{\"x\":[1,-2,2147483647]}", .kind = FIELD_I32_ARRAY, .target = &is), RC_OK);
  assert_int_equal(is.count, 3);
  assert_int_equal(is.items[2], INT32_MAX);
  assert_int_equal(READ("{\"x\":[]}", .kind = FIELD_I32_ARRAY, .target = &is), RC_OK);
  assert_int_equal(is.count, 0);
  assert_non_null(is.items);
  refused(READ("{\"x\":[1,2,3]}", .kind = FIELD_I32_ARRAY, .target = &is, .count_max = 2), "x",
          "at most 2 items, got 3");
  refused(READ("{\"x\":[0,10]}", .kind = FIELD_I32_ARRAY, .target = &is, .min = 0, .max = 9), "x[1]",
          "from 0 to 9, got 10");
  refused(READ("{\"x\":[0,1.5]}", .kind = FIELD_I32_ARRAY, .target = &is), "x[1]", "32-bit integer");
  refused(READ("{\"x\":7}", .kind = FIELD_I32_ARRAY, .target = &is), "x", "expected an array, got 7");
  assert_int_equal(READ("{\"x\":[1,-0.5,1e-45,3.40282347e+38]}", .kind = FIELD_F32_ARRAY, .target = &fs), RC_OK);
  assert_int_equal(fs.count, 4);
  assert_true(fs.items[1] == -0.5f && fs.items[2] > 0);
  refused(READ("{\"x\":[0,1e39]}", .kind = FIELD_F32_ARRAY, .target = &fs), "x[1]", "finite float32");
  refused(READ("{\"x\":[null]}", .kind = FIELD_F32_ARRAY, .target = &fs), "x[0]", "got null");
  refused(READ("{\"x\":[0.5]}", .kind = FIELD_F32_ARRAY, .target = &fs, .min = -1e30, .max = 0), "x[0]", "got 0.5");
  assert_int_equal(fs.count, 4); /* a refused field leaves the target alone */
}

static void test_digests_and_values(void **state) {
  (void)state;
  struct digest d, expected;
  const struct json *v = NULL;
  digest_of(&expected, "abc", 3);
  assert_int_equal(READ("{\"x\":\"ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad\"}",
                        .kind = FIELD_DIGEST, .target = &d),
                   RC_OK);
  assert_true(digest_equal(&d, &expected));
  refused(READ("{\"x\":\"ba78\"}", .kind = FIELD_DIGEST, .target = &d), "x", "64 hexadecimal");
  refused(READ("{\"x\":5}", .kind = FIELD_DIGEST, .target = &d), "x", "64 hexadecimal");
  assert_int_equal(READ("{\"x\":{\"y\":1}}", .kind = FIELD_VALUE, .target = &v), RC_OK);
  assert_int_equal(json_int(json_get(v, "y")), 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_presence, tear_down),
      cmocka_unit_test_teardown(test_nul_is_refused_where_a_c_string_is_handed_out, tear_down),
      cmocka_unit_test_teardown(test_unknown_fields, tear_down),
      cmocka_unit_test_teardown(test_integers, tear_down),
      cmocka_unit_test_teardown(an_integer_may_be_written_with_a_fraction_or_an_exponent, tear_down),
      cmocka_unit_test_teardown(lengths_count_characters_as_the_contract_does, tear_down),
      cmocka_unit_test_teardown(test_numbers_and_booleans, tear_down),
      cmocka_unit_test_teardown(test_strings_live_in_the_arena, tear_down),
      cmocka_unit_test_teardown(test_long_values_are_shortened_in_the_sentence, tear_down),
      cmocka_unit_test_teardown(test_arrays, tear_down),
      cmocka_unit_test_teardown(test_digests_and_values, tear_down),
  };
  return cmocka_run_group_tests_name("json/fields", tests, NULL, NULL);
}
