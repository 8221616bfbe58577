/* Error records: texts are cut, never overrun, and a record may quote itself. */
#include "tests/unit/base/cm.h"

#include <errno.h>
#include <string.h>

#include "common/base/rc.h"

static void test_names_are_distinct(void **state) {
  (void)state;
  for (int a = RC_OK; a <= RC_INTERNAL; a++)
    for (int b = RC_OK; b < a; b++) assert_string_not_equal(rc_name((enum rc)a), rc_name((enum rc)b));
  assert_string_equal(rc_name(RC_CONFLICT), "conflict");
  assert_string_equal(rc_name((enum rc)99), "internal");
}

static void test_null_record_is_fine(void **state) {
  (void)state;
  assert_int_equal(err_set(NULL, RC_GONE, "x", "text %d", 1), RC_GONE);
  assert_int_equal(err_set_errno(NULL, RC_IO, "text"), RC_IO);
  err_in_field(NULL, "x");
}

static void test_long_texts_are_cut(void **state) {
  (void)state;
  char longer[2000];
  memset(longer, 'a', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  struct err err;
  assert_int_equal(err_set(&err, RC_INVALID, longer, "%s", longer), RC_INVALID);
  assert_int_equal(strlen(err.message), ERR_MESSAGE_MAX - 1);
  assert_int_equal(strlen(err.field), ERR_FIELD_MAX - 1);
  err_in_field(&err, longer);
  assert_int_equal(strlen(err.field), ERR_FIELD_MAX - 1);
}

static void test_cut_keeps_utf8_whole(void **state) {
  (void)state;
  char text[ERR_MESSAGE_MAX + 2];
  memset(text, 'a', sizeof text);
  memcpy(text + ERR_MESSAGE_MAX - 2, "\xC3\xA9", 3); /* its second byte is the first that does not fit */
  struct err err;
  err_set(&err, RC_INVALID, NULL, "%s", text);
  assert_int_equal(strlen(err.message), ERR_MESSAGE_MAX - 2);
}

static void test_quotes_itself(void **state) {
  (void)state;
  struct err err;
  err_set(&err, RC_IO, "inner", "cause");
  err_set(&err, RC_INTERNAL, err.field, "wrapped: %s", err.message);
  assert_string_equal(err.message, "wrapped: cause");
  assert_string_equal(err.field, "inner");
}

static void test_field_paths(void **state) {
  (void)state;
  struct err err;
  err_set(&err, RC_INVALID, "temperature", "m");
  err_in_field(&err, "sampling");
  assert_string_equal(err.field, "sampling.temperature");
  err_set(&err, RC_INVALID, NULL, "m");
  err_in_field(&err, "sampling");
  assert_string_equal(err.field, "sampling");
  err_set(&err, RC_INVALID, "[3]", "m");
  err_in_field(&err, "tokens");
  assert_string_equal(err.field, "tokens[3]");
}

/* A message alone, as in a log, must name the file and the field that it is about, but not twice. */
static void test_the_file_is_named_once(void **state) {
  (void)state;
  struct err err;
  err_set(&err, RC_INVALID, "vocab_size", "expected this field, got none");
  err_in_file(&err, "m/config.json");
  assert_string_equal(err.message, "m/config.json: vocab_size: expected this field, got none");
  assert_string_equal(err.field, "vocab_size");
  err_in_file(&err, "m/config.json");
  assert_string_equal(err.message, "m/config.json: vocab_size: expected this field, got none");
  err_set(&err, RC_INVALID, "w", "tensor w: expected BF16");
  err_in_file(&err, "model.safetensors");
  assert_string_equal(err.message, "model.safetensors: tensor w: expected BF16");
  err_set(&err, RC_IO, NULL, "opening x/y: no such file");
  err_in_file(&err, "x/y");
  assert_string_equal(err.message, "opening x/y: no such file");
  char longer[2000];
  memset(longer, 'p', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  err_set(&err, RC_INVALID, "field", "short");
  err_in_file(&err, longer);
  assert_non_null(strstr(err.message, ": field: short"));
  err_in_file(NULL, "x");
}

static void test_errno_survives_a_long_text(void **state) {
  (void)state;
  char longer[2000];
  memset(longer, 'a', sizeof longer - 1);
  longer[sizeof longer - 1] = '\0';
  struct err err;
  errno = ENOSPC;
  err_set_errno(&err, RC_IO, "writing %s", longer);
  assert_int_equal(errno, ENOSPC);
  assert_non_null(strstr(err.message, ": No space left on device"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_names_are_distinct),     cmocka_unit_test(test_null_record_is_fine),
      cmocka_unit_test(test_long_texts_are_cut),     cmocka_unit_test(test_cut_keeps_utf8_whole),
      cmocka_unit_test(test_quotes_itself),          cmocka_unit_test(test_field_paths),
      cmocka_unit_test(test_the_file_is_named_once), cmocka_unit_test(test_errno_survives_a_long_text),
  };
  return cmocka_run_group_tests_name("base/rc", tests, NULL, NULL);
}
