/* What models and their clients write is read as other parsers read it; what is no JSON for them either is refused. */
#include "tests/unit/base/cm.h"

#include <stdlib.h>
#include <string.h>

#include "common/json/json.h"

static struct err err;

static void test_numbers_beyond_ours_become_reals_where_they_stand(void **state) {
  (void)state;
  static const struct {
    const char *text, *fitted;
  } cases[] = {
      {"[9223372036854775807,-9223372036854775808]", "[9223372036854775807,-9223372036854775808]"},
      {"[9223372036854775808,-9223372036854775809]", "[92233720368547758e2,-92233720368547758e2]"},
      {"12345678901234567890", "123456789012345678e2"},
      {"{\"18446744073709551616\":18446744073709551616}", "{\"18446744073709551616\":184467440737095516e2}"},
      {"\"\\\"\\\\\\\"18446744073709551616\"", "\"\\\"\\\\\\\"18446744073709551616\""},
      {"[1e999,-1E+9999,1.5e308,0.1e309,0e99999,true,false]", "[1e308,-1e308  ,1.5e308,0.1e309,0e99999,true,false]"},
      {"1e99", "1e99"},
      {"[", "["},
      {"\"open 18446744073709551616", "\"open 18446744073709551616"},
      {"\"\\", "\"\\"},
      {"", ""},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const size_t len = strlen(cases[i].text);
    char *bytes = malloc(len + 1); /* of their own, so that a sanitizer sees what lies behind */
    memcpy(bytes, cases[i].text, len);
    json_fit_numbers(bytes, len);
    bytes[len] = '\0';
    assert_string_equal(bytes, cases[i].fitted);
    free(bytes);
  }
}

static double number_of(const char *text) {
  struct json *v;
  assert_int_equal(json_parse_lenient(&v, text, strlen(text), 0, &err), RC_OK);
  const double number = json_number(v);
  json_free(v);
  return number;
}

static void test_they_are_near_what_was_written(void **state) {
  (void)state;
  char long_one[320];
  assert_true(number_of("18446744073709551615") == 18446744073709551615.0);
  assert_true(number_of("-12345678901234567890123") == -12345678901234567890123.0);
  assert_true(number_of("1e999") == 1e308);
  memset(long_one, '9', sizeof long_one - 1);
  long_one[sizeof long_one - 1] = '\0';
  assert_true(number_of(long_one) == 1e308);
}

/* What transformers writes for a model_max_length that it does not know. */
static void test_one_with_thirty_zeros_is_nearly_what_was_meant(void **state) {
  (void)state;
  struct json *v;
  assert_int_equal(json_parse_lenient(&v, "[1000000000000000019884624838656]", 33, 0, &err), RC_OK);
  const double value = json_number(json_at(v, 0));
  assert_true(value > 0.999e30 && value < 1.001e30);
  json_free(v);
}

static void test_of_a_key_that_comes_twice_the_last_value_counts(void **state) {
  (void)state;
  static const char text[] = "{\"a\":{\"x\":1},\"b\":2,\"a\":[3]}";
  struct json *v;
  struct buf out = BUF_INIT;
  struct json_writer w;
  assert_int_equal(json_parse_lenient(&v, text, sizeof text - 1, 0, &err), RC_OK);
  json_writer_init(&w, &out);
  json_write_value(&w, v);
  assert_string_equal(out.data, "{\"a\":[3],\"b\":2}"); /* in the first one's place, as Python has it */
  buf_free(&out);
  json_free(v);
}

static void test_what_is_no_json_is_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"", "not json", "{\"a\":1e}", "{\"a\":01}", "[1,]", "12345678901234567890x"};
  struct json *v;
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(json_parse_lenient(&v, bad[i], strlen(bad[i]), 0, &err), RC_INVALID);
    assert_null(v);
  }
  assert_int_equal(json_parse_lenient(&v, "[1,2]", 5, 4, &err), RC_TOO_LARGE);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_numbers_beyond_ours_become_reals_where_they_stand),
      cmocka_unit_test(test_they_are_near_what_was_written),
      cmocka_unit_test(test_one_with_thirty_zeros_is_nearly_what_was_meant),
      cmocka_unit_test(test_of_a_key_that_comes_twice_the_last_value_counts),
      cmocka_unit_test(test_what_is_no_json_is_refused),
  };
  return cmocka_run_group_tests_name("json/lenient", tests, NULL, NULL);
}
