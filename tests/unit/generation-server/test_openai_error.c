/* Errors in OpenAI's form: by the status its clients choose the exception, by the code agents know what to do. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/http/status.h"
#include "services/generation-server/shapes/openai_error.h"

static void expect(enum rc rc, int status, const char *field, int wanted, const char *body) {
  struct err err;
  struct buf out = BUF_INIT;
  err_set(&err, rc, field, "a b");
  if (status == 0) status = http_status_of(rc);
  openai_error_write(&out, &status, &err);
  assert_string_equal(out.data, body);
  assert_int_equal(status, wanted);
  buf_free(&out);
}

#define BODY(message, type, param, code)                                                                   \
  "{\"error\":{\"message\":\"" message "\",\"type\":\"" type "\",\"param\":" param ",\"code\":\"" code "\"}}"
#define REQUEST "invalid_request_error"

static void a_request_that_must_change_is_400_with_its_field(void **state) {
  (void)state;
  expect(RC_INVALID, 0, "n", 400, BODY("n: a b", REQUEST, "\"n\"", "invalid_value"));
  expect(RC_INVALID, 0, NULL, 400, BODY("a b", REQUEST, "null", "invalid_request"));
  expect(RC_INVALID, 408, NULL, 408, BODY("a b", REQUEST, "null", "invalid_request"));
  expect(RC_UNSUPPORTED, 0, "audio", 400, BODY("audio: a b", REQUEST, "\"audio\"", "unsupported_parameter"));
  expect(RC_TOO_LARGE, 0, "prompt", 400, BODY("a b", REQUEST, "\"prompt\"", "context_length_exceeded"));
}

static void a_field_that_the_sentence_names_is_not_put_before_it(void **state) {
  (void)state;
  expect(RC_INVALID, 0, "a", 400, BODY("a b", REQUEST, "\"a\"", "invalid_value"));
}

static void other_errors_keep_their_status(void **state) {
  (void)state;
  expect(RC_FORBIDDEN, 401, NULL, 401, BODY("a b", REQUEST, "null", "invalid_api_key"));
  expect(RC_FORBIDDEN, 0, NULL, 403, BODY("a b", "request_forbidden", "null", "permission_denied"));
  expect(RC_NOT_FOUND, 0, "model", 404, BODY("model: a b", REQUEST, "\"model\"", "model_not_found"));
  expect(RC_NOT_FOUND, 0, NULL, 404, BODY("a b", REQUEST, "null", "not_found"));
  expect(RC_TOO_LARGE, 0, NULL, 413, BODY("a b", REQUEST, "null", "request_too_large"));
  expect(RC_FULL, 0, NULL, 429, BODY("a b", "requests", "null", "rate_limit_exceeded"));
  expect(RC_UNSUPPORTED, 0, NULL, 501, BODY("a b", REQUEST, "null", "unsupported"));
  expect(RC_UNAVAILABLE, 0, NULL, 503, BODY("a b", "server_error", "null", "unavailable"));
  expect(RC_NO_MEMORY, 0, NULL, 503, BODY("a b", "server_error", "null", "no_memory"));
  expect(RC_INTERNAL, 0, NULL, 500, BODY("a b", "server_error", "null", "internal"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_request_that_must_change_is_400_with_its_field),
      cmocka_unit_test(a_field_that_the_sentence_names_is_not_put_before_it),
      cmocka_unit_test(other_errors_keep_their_status),
  };
  return cmocka_run_group_tests_name("OpenAI's errors", tests, NULL, NULL);
}
