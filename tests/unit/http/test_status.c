/* Codes and statuses must agree in both directions: a service that relays an error must not change whose fault it
 * was. */
#include "http_test.h"

static void test_round_trip(void **state) {
  (void)state;
  static const enum rc same[] = {RC_OK,        RC_INVALID, RC_NOT_FOUND,   RC_FORBIDDEN, RC_CONFLICT,    RC_GONE,
                                 RC_TOO_LARGE, RC_FULL,    RC_UNAVAILABLE, RC_TIMEOUT,   RC_UNSUPPORTED, RC_INTERNAL};
  for (size_t i = 0; i < sizeof same / sizeof same[0]; i++)
    assert_int_equal(http_rc_of_status(http_status_of(same[i])), same[i]);
  assert_int_equal(http_status_of(RC_INVALID), 422);
  assert_int_equal(http_status_of(RC_NO_MEMORY), 503);
  assert_int_equal(http_status_of(RC_CORRUPT), 500);
  assert_int_equal(http_rc_of_status(202), RC_OK);
  assert_int_equal(http_rc_of_status(400), RC_INVALID);
  assert_int_equal(http_rc_of_status(401), RC_FORBIDDEN);
  assert_int_equal(http_rc_of_status(302), RC_INTERNAL);
  assert_int_equal(http_rc_of_status(418), RC_INTERNAL);
}

static void test_error_body_escapes(void **state) {
  (void)state;
  struct err err;
  err_set(&err, RC_CONFLICT, "lease.fence", "fence \"7\" was expected\n");
  struct buf body = BUF_INIT;
  http_error_body(&body, &err);
  assert_string_equal(
      body.data,
      "{\"error\":{\"code\":\"conflict\",\"message\":\"fence \\\"7\\\" was expected\\n\",\"field\":\"lease.fence\"}}");
  buf_free(&body);
}

static struct http_answer answer_of(int status, const char *body) {
  struct http_answer a = {.status = status};
  buf_puts(&a.body, body);
  return a;
}

static void expect_error(int status, const char *body, enum rc rc, const char *field, const char *message) {
  struct http_answer a = answer_of(status, body);
  struct err err;
  assert_int_equal(http_answer_error(&a, "coordinator", &err), rc);
  assert_int_equal(err.rc, rc);
  assert_string_equal(err.field, field);
  assert_string_equal(err.message, message);
  http_answer_free(&a);
}

static void test_answer_error(void **state) {
  (void)state;
  expect_error(503, "{\"error\":{\"code\":\"no_memory\",\"message\":\"m\",\"field\":\"f\"}}", RC_NO_MEMORY, "f",
               "coordinator: status 503: m");
  expect_error(409, "{\"error\":{\"code\":\"nonsense\",\"message\":\"m\"}}", RC_CONFLICT, "",
               "coordinator: status 409: m");
  expect_error(409, "{\"error\":{\"code\":7,\"message\":[]}}", RC_CONFLICT, "",
               "coordinator: status 409 came without an error body");
  expect_error(404, "<html>", RC_NOT_FOUND, "", "coordinator: status 404 came without an error body");
  expect_error(500, "[1]", RC_INTERNAL, "", "coordinator: status 500 came without an error body");
  expect_error(500, "", RC_INTERNAL, "", "coordinator: status 500 came without an error body");
  expect_error(200, "{\"error\":{\"code\":\"ok\",\"message\":\"m\"}}", RC_INTERNAL, "", "coordinator: status 200: m");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_round_trip),
      cmocka_unit_test(test_error_body_escapes),
      cmocka_unit_test(test_answer_error),
  };
  return cmocka_run_group_tests_name("http/status", tests, NULL, NULL);
}
