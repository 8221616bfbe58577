/* Which prompts rest.  What would break: a prompt without a record is never tried; a rate at a bound counts as outside;
 * a prompt that rested never comes back, or comes too early; a configuration outside its bounds is taken, or reads back
 * as another. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/coordinator/run/curriculum.h"

static bool rests(double rate_min, double rate_max, int32_t rest, int64_t passed, int64_t samples, int64_t recorded,
                  int64_t epoch) {
  const struct curriculum_rule rule = {rate_min, rate_max, rest};
  const struct curriculum_record record = {samples, passed, recorded};
  return curriculum_rests(&rule, &record, epoch);
}

static void a_prompt_without_a_record_is_tried(void **state) {
  (void)state;
  assert_false(rests(0.5, 0.5, 1000, 0, 0, 0, 0));
  assert_false(rests(0.5, 0.5, 1000, 3, 0, 0, 0)); /* whatever else it says */
  assert_true(rests(0.5, 0.5, 1000, 0, 1, 0, 0));
}

static void rates_between_the_bounds_come_and_so_do_those_at_them(void **state) {
  (void)state;
  for (int64_t passed = 0; passed <= 8; passed++)
    assert_int_equal(rests(0.25, 0.75, 1, passed, 8, 0, 1), passed < 2 || passed > 6);
  assert_true(rests(0.001, 1, 1, 0, 8, 0, 1));
  assert_false(rests(0, 0.999, 1, 0, 8, 0, 1));
  assert_true(rests(0, 0.999, 1, 8, 8, 0, 1));
}

static void what_rested_is_tried_again(void **state) {
  (void)state;
  assert_true(rests(0, 0.5, 1, 8, 8, 3, 3)); /* once more in the same epoch, where parts go round at their own pace */
  assert_true(rests(0, 0.5, 1, 8, 8, 3, 4));
  assert_false(rests(0, 0.5, 1, 8, 8, 3, 5));
  assert_true(rests(0, 0.5, 3, 8, 8, 3, 6));
  assert_false(rests(0, 0.5, 3, 8, 8, 3, 7));
}

/* Rates of an earlier run are of epoch -1. */
static void an_earlier_runs_rates_count_in_the_first_epoch(void **state) {
  (void)state;
  assert_true(rests(0, 0.5, 1, 8, 8, -1, 0));
  assert_false(rests(0, 0.5, 1, 8, 8, -1, 1));
}

static struct arena arena = ARENA_INIT;

static enum rc read_config(struct curriculum_config *out, const char *text, struct err *err) {
  struct json *v = NULL;
  *err = (struct err){0};
  enum rc rc = json_parse(&v, text, strlen(text), 0, err);
  if (rc == RC_OK) rc = curriculum_config_read(out, v, &arena, err);
  json_free(v);
  return rc;
}

/* NULL: it was taken. */
static const char *refused(const char *text) {
  static struct err err;
  struct curriculum_config c;
  return read_config(&c, text, &err) == RC_OK ? NULL : err.field;
}

static void what_is_left_out_has_its_default(void **state) {
  (void)state;
  struct curriculum_config c;
  struct err err;
  assert_int_equal(read_config(&c, "{\"rate_max\":0.5}", &err), RC_OK);
  assert_true(c.given && c.rule.rate_min == 0 && c.rule.rate_max == 0.5 && c.rule.rest_epochs == 1 &&
              c.pass_reward == 1);
  assert_string_equal(c.from, "");
  assert_int_equal(read_config(&c, "{\"rate_min\":0.5}", &err), RC_OK);
  assert_true(c.rule.rate_min == 0.5 && c.rule.rate_max == 1);
  assert_int_equal(read_config(&c, "null", &err), RC_OK);
  assert_false(c.given);
}

static void bounds_are_taken_and_nothing_past_them(void **state) {
  (void)state;
  static const struct {
    const char *text, *field;
  } cases[] = {
      {"{\"rate_min\":1}", NULL},
      {"{\"rate_min\":1.01,\"rate_max\":1}", "curriculum.rate_min"},
      {"{\"rate_min\":-0.01}", "curriculum.rate_min"},
      {"{\"rate_max\":0}", NULL},
      {"{\"rate_max\":1.01,\"rate_min\":0.5}", "curriculum.rate_max"},
      {"{\"rate_min\":0.5,\"rate_max\":0.5}", NULL},
      {"{\"rate_min\":0.5,\"rate_max\":0.49}", "curriculum.rate_max"},
      {"{\"rate_min\":0,\"rate_max\":1}", "curriculum.rate_max"},
      {"{\"rate_max\":0.5,\"rest_epochs\":1}", NULL},
      {"{\"rate_max\":0.5,\"rest_epochs\":0}", "curriculum.rest_epochs"},
      {"{\"rate_max\":0.5,\"rest_epochs\":1000000}", NULL},
      {"{\"rate_max\":0.5,\"rest_epochs\":1000001}", "curriculum.rest_epochs"},
      {"{\"rate_max\":0.5,\"pass_reward\":1000000}", NULL},
      {"{\"rate_max\":0.5,\"pass_reward\":1000000.5}", "curriculum.pass_reward"},
      {"{\"rate_max\":0.5,\"pass_reward\":-1000000}", NULL},
      {"{\"rate_max\":0.5,\"pass_reward\":-1000000.5}", "curriculum.pass_reward"},
      {"{\"rate_max\":0.5,\"from\":\"r\"}", NULL},
      {"{\"rate_max\":0.5,\"from\":\"\"}", "curriculum.from"},
      {"{\"rate_max\":0.5,\"unknown\":1}", "curriculum.unknown"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    const char *field = refused(cases[i].text);
    if (!field != !cases[i].field || (field && strcmp(field, cases[i].field) != 0))
      fail_msg("%s: %s, expected %s", cases[i].text, field ? field : "taken",
               cases[i].field ? cases[i].field : "taken");
  }
  char text[LIMIT_NAME_MAX + 64];
  snprintf(text, sizeof text, "{\"rate_max\":0.5,\"from\":\"%0*d\"}", LIMIT_NAME_MAX - 1, 0);
  assert_null(refused(text));
  snprintf(text, sizeof text, "{\"rate_max\":0.5,\"from\":\"%0*d\"}", LIMIT_NAME_MAX, 0);
  assert_string_equal(refused(text), "curriculum.from");
  struct curriculum_config c;
  struct err err;
  assert_int_not_equal(read_config(&c, "{\"rate_max\":-0.5}", &err), RC_OK);
  assert_null(strstr(err.message, "rate_min")); /* of its own bounds */
}

static void check_written(const char *text, const char *expected) {
  struct curriculum_config c;
  struct err err;
  struct buf out = BUF_INIT;
  struct json_writer w;
  assert_int_equal(read_config(&c, text, &err), RC_OK);
  json_writer_init(&w, &out);
  json_object_begin(&w);
  curriculum_config_write(&c, &w);
  json_object_end(&w);
  assert_int_equal(out.len, strlen(expected));
  assert_memory_equal(out.data, expected, out.len);
  buf_free(&out);
}

static void what_is_written_is_whole(void **state) {
  (void)state;
  check_written(
      "{\"rate_min\":0.25,\"rate_max\":0.75,\"pass_reward\":2,\"rest_epochs\":3,\"from\":\"r\"}",
      "{\"curriculum\":{\"rate_min\":0.25,\"rate_max\":0.75,\"pass_reward\":2,\"rest_epochs\":3,\"from\":\"r\"}}");
  check_written("{\"rate_max\":0.75}",
                "{\"curriculum\":{\"rate_min\":0,\"rate_max\":0.75,\"pass_reward\":1,\"rest_epochs\":1}}");
  check_written("null", "{}");
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_prompt_without_a_record_is_tried),
      cmocka_unit_test(rates_between_the_bounds_come_and_so_do_those_at_them),
      cmocka_unit_test(what_rested_is_tried_again),
      cmocka_unit_test(an_earlier_runs_rates_count_in_the_first_epoch),
      cmocka_unit_test(what_is_left_out_has_its_default),
      cmocka_unit_test(bounds_are_taken_and_nothing_past_them),
      cmocka_unit_test(what_is_written_is_whole),
  };
  return cmocka_run_group_tests_name("curriculum", tests, NULL, NULL);
}
