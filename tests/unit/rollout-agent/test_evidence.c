/* The evidence that a foreign engine gives of its weights.  What would break: a load that did nothing is believed,
 * weights that change between two requests go unnoticed, a difference within the tolerance is called a change of
 * weights. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <string.h>

#include "services/rollout-agent/engine/evidence.h"

static struct evidence by_checksum(const char *version, uint8_t sum) {
  struct evidence e = {.has_checksum = true, .checksum = {{sum}}};
  snprintf(e.version, sizeof e.version, "%s", version);
  return e;
}

static struct evidence by_probe(const char *version, float last) {
  struct evidence e = {.probe_count = 2, .probe_ids = {7, 9}, .probe_logprobs = {-0.5f, last}};
  snprintf(e.version, sizeof e.version, "%s", version);
  return e;
}

static void agrees(struct evidence a, struct evidence b, double tolerance) {
  struct err err = {0};
  if (evidence_agrees(&a, &b, tolerance, &err) != RC_OK) fail_msg("%s", err.message);
}

static void differs(struct evidence a, struct evidence b, double tolerance, const char *field) {
  struct err err = {0};
  assert_int_equal(evidence_agrees(&a, &b, tolerance, &err), RC_CONFLICT);
  assert_string_equal(err.field, field);
}

static void the_same_is_agreement(void **state) {
  (void)state;
  agrees(by_checksum("a", 1), by_checksum("a", 1), 0);
  agrees(by_probe("a", -2), by_probe("a", -2), 0);
  agrees(by_probe("", -2), by_probe("", -2), 0); /* an engine that does not say what it has */
}

static void each_difference_is_noticed(void **state) {
  (void)state;
  differs(by_checksum("a", 1), by_checksum("b", 1), 0, "version");
  differs(by_checksum("a", 1), by_checksum("", 1), 0, "version");
  differs(by_checksum("a", 1), by_checksum("a", 2), 0, "checksum");
  differs(by_checksum("a", 1), by_probe("a", -2), 0, "checksum");
  differs(by_probe("a", -2), by_checksum("a", 1), 0, "checksum");
  differs(by_probe("a", -2), by_probe("a", -2.0000002f), 0, "probe");
  struct evidence other_token = by_probe("a", -2), shorter = by_probe("a", -2);
  other_token.probe_ids[0] = 8;
  shorter.probe_count = 1;
  differs(by_probe("a", -2), other_token, 1, "probe");
  differs(by_probe("a", -2), shorter, 1, "probe");
}

static void the_tolerance_is_the_largest_difference_that_counts_as_none(void **state) {
  (void)state;
  agrees(by_probe("a", -2), by_probe("a", -2.25f), 0.25);
  agrees(by_probe("a", -2.25f), by_probe("a", -2), 0.25);
  differs(by_probe("a", -2), by_probe("a", -2.25f), 0.2499, "probe");
}

static void moved(struct evidence before, struct evidence after, double tolerance, enum rc expected) {
  struct err err = {0};
  if (evidence_moved(&before, &after, tolerance, &err) != expected) fail_msg("%s: %s", after.version, err.message);
}

static void a_load_must_change_something(void **state) {
  (void)state;
  moved(by_checksum("a", 1), by_checksum("b", 2), 0, RC_OK);
  moved(by_checksum("a", 1), by_checksum("b", 1), 0, RC_CONFLICT); /* its word changed alone */
  moved(by_probe("a", -2), by_probe("b", -2.5f), 0, RC_OK);
  moved(by_probe("a", -2), by_probe("b", -2), 0, RC_CONFLICT);
  moved(by_probe("a", -2), by_probe("b", -2.25f), 0.25,
        RC_CONFLICT); /* cannot be told from what a repeat may differ by */
  moved(by_probe("a", -2), by_probe("b", -2.25f), 0.2499, RC_OK);
  moved(by_probe("a", -2), by_checksum("b", 1), 0, RC_CONFLICT); /* nothing to compare */
  struct evidence other_token = by_probe("b", -2);
  other_token.probe_ids[1] = 8;
  moved(by_probe("a", -2), other_token, 0.25, RC_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_same_is_agreement),
      cmocka_unit_test(each_difference_is_noticed),
      cmocka_unit_test(the_tolerance_is_the_largest_difference_that_counts_as_none),
      cmocka_unit_test(a_load_must_change_something),
  };
  return cmocka_run_group_tests_name("rollout-agent/evidence", tests, NULL, NULL);
}
