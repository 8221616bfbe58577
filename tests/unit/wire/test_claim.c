/* The headers of a large message: what the client writes is what the server reads, what is no number is refused by
 * name, and a header that says otherwise than the body makes the message malformed. */
#include <string.h>

#include "common/wire/claim.h"
#include "tests/unit/wire/wire_test.h"

static const char *value_of(const char *line) { return strchr(line, ':') + 2; }

static void what_is_written_is_read(void **state) {
  (void)state;
  struct claim_lines lines;
  struct claim c;
  struct err err;
  claim_write(&lines, UINT64_MAX, 7, "w3");
  assert_string_equal(lines.lines[0], "X-Leasehold-Epoch: 18446744073709551615");
  assert_string_equal(lines.lines[1], "X-Leasehold-Fence: 7");
  assert_string_equal(lines.lines[2], "X-Leasehold-Worker: w3");
  assert_null(lines.lines[3]);
  assert_int_equal(claim_read(&c, value_of(lines.epoch), value_of(lines.fence), value_of(lines.worker), &err), RC_OK);
  assert_true(c.has_epoch && c.has_fence && c.epoch == UINT64_MAX && c.fence == 7);
  assert_string_equal(c.worker, "w3");
  claim_write(&lines, 1, 2, NULL);
  assert_null(lines.lines[2]);
}

static void headers_may_be_left_out(void **state) {
  (void)state;
  struct claim c;
  struct err err;
  assert_int_equal(claim_read(&c, NULL, NULL, NULL, &err), RC_OK);
  assert_false(c.has_epoch || c.has_fence || c.worker);
  assert_int_equal(claim_agrees(&c, 5, 6, "w1", &err), RC_OK);
  assert_int_equal(claim_read(&c, NULL, "6", NULL, &err), RC_OK);
  assert_false(c.has_epoch);
  assert_int_equal(claim_agrees(&c, 5, 6, "w1", &err), RC_OK);
}

static void what_is_no_number_is_refused_by_name(void **state) {
  (void)state;
  const char *const wrong[] = {"", "-1", "+1", " 1", "1 ", "0x1", "1.0", "1,2", "18446744073709551616", "one"};
  struct claim c;
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct err err = {0};
    assert_int_equal(claim_read(&c, wrong[i], "1", "w1", &err), RC_INVALID);
    assert_string_equal(err.field, "epoch");
    assert_int_equal(claim_read(&c, "1", wrong[i], "w1", &err), RC_INVALID);
    assert_string_equal(err.field, "fence");
  }
}

static void a_header_that_contradicts_the_body_is_refused_by_name(void **state) {
  (void)state;
  struct claim c;
  struct err err = {0};
  assert_int_equal(claim_read(&c, "5", "6", "w1", &err), RC_OK);
  assert_int_equal(claim_agrees(&c, 5, 6, "w1", &err), RC_OK);
  assert_int_equal(claim_agrees(&c, 5, 6, NULL, &err), RC_OK);
  assert_int_equal(claim_agrees(&c, 4, 6, "w1", &err), RC_INVALID);
  assert_string_equal(err.field, "epoch");
  assert_int_equal(claim_agrees(&c, 5, 7, "w1", &err), RC_INVALID);
  assert_string_equal(err.field, "fence");
  assert_int_equal(claim_agrees(&c, 5, 6, "w11", &err), RC_INVALID);
  assert_string_equal(err.field, "worker_id");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_is_written_is_read),
      cmocka_unit_test(headers_may_be_left_out),
      cmocka_unit_test(what_is_no_number_is_refused_by_name),
      cmocka_unit_test(a_header_that_contradicts_the_body_is_refused_by_name),
  };
  return cmocka_run_group_tests_name("wire: claim", tests, NULL, NULL);
}
