/* Flags and variables: precedence, strict values, sentences of refusal. */
#include "tests/unit/base/cm.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/options.h"

static const char *host;
static int64_t ttl;
static bool verbose;
static double rate;

static const struct option table[] = {
    {.name = "host", .type = OPTION_STRING, .target = &host, .default_text = "localhost", .help = "h"},
    {.name = "lease-ttl-ms",
     .type = OPTION_INT,
     .target = &ttl,
     .default_text = "500",
     .min = 1,
     .max = 1000,
     .help = "h"},
    {.name = "verbose", .type = OPTION_BOOL, .target = &verbose, .default_text = "false", .help = "h"},
    {.name = "rate", .type = OPTION_FLOAT, .target = &rate, .default_text = "0.5", .help = "h"},
};

static struct err err;

#define PARSE(...) parse((char *[]){"program", __VA_ARGS__, NULL})
static enum rc parse_as(enum options_action *action, char **argv) {
  int argc = 0;
  while (argv[argc]) argc++;
  memset(&err, 0, sizeof err);
  return options_parse(action, table, sizeof table / sizeof table[0], argc, argv, &err);
}
static enum rc parse(char **argv) {
  enum options_action action;
  const enum rc rc = parse_as(&action, argv);
  if (!rc) assert_int_equal(action, OPTIONS_RUN);
  return rc;
}

static int clean_environment(void **state) {
  (void)state;
  unsetenv("LEASEHOLD_HOST");
  unsetenv("LEASEHOLD_LEASE_TTL_MS");
  unsetenv("LEASEHOLD_VERBOSE");
  unsetenv("LEASEHOLD_RATE");
  return 0;
}

static void test_defaults_then_environment_then_flags(void **state) {
  (void)state;
  assert_int_equal(parse((char *[]){"program", NULL}), RC_OK);
  assert_string_equal(host, "localhost");
  assert_int_equal(ttl, 500);
  assert_false(verbose);
  assert_true(rate == 0.5);
  setenv("LEASEHOLD_LEASE_TTL_MS", "600", 1);
  setenv("LEASEHOLD_HOST", "", 1); /* empty counts as unset */
  assert_int_equal(parse((char *[]){"program", NULL}), RC_OK);
  assert_int_equal(ttl, 600);
  assert_string_equal(host, "localhost");
  assert_int_equal(PARSE("--lease-ttl-ms=700", "--host", "h2"), RC_OK);
  assert_int_equal(ttl, 700);
  assert_string_equal(host, "h2");
  assert_int_equal(PARSE("--lease-ttl-ms", "1", "--lease-ttl-ms", "2"), RC_OK);
  assert_int_equal(ttl, 2);
}

static void test_booleans(void **state) {
  (void)state;
  assert_int_equal(PARSE("--verbose"), RC_OK);
  assert_true(verbose);
  assert_int_equal(PARSE("--verbose", "false", "--host=x"), RC_OK);
  assert_false(verbose);
  assert_int_equal(PARSE("--verbose", "--host=x"), RC_OK);
  assert_true(verbose);
  assert_int_equal(PARSE("--verbose=0"), RC_OK);
  assert_false(verbose);
  assert_int_equal(PARSE("--verbose=maybe"), RC_INVALID);
}

static void test_numbers_are_strict(void **state) {
  (void)state;
  static char *const bad_ints[] = {"",  "5x",  " 5", "+5", "0x10", "1e2", "5.0", "-", "99999999999999999999",
                                   "0", "1001"};
  for (size_t i = 0; i < sizeof bad_ints / sizeof bad_ints[0]; i++) {
    assert_int_equal(PARSE("--lease-ttl-ms", bad_ints[i]), RC_INVALID);
    assert_string_equal(err.field, "lease-ttl-ms");
    assert_non_null(strstr(err.message, "--lease-ttl-ms: expected"));
  }
  static char *const bad_floats[] = {"", "nan", "inf", "0x1p3", "1e999", "1.0.0", "+1", " 1", "."};
  for (size_t i = 0; i < sizeof bad_floats / sizeof bad_floats[0]; i++)
    assert_int_equal(PARSE("--rate", bad_floats[i]), RC_INVALID);
  assert_int_equal(PARSE("--rate", "-2.5e-3"), RC_OK); /* no bounds given */
  assert_true(rate == -2.5e-3);
  setenv("LEASEHOLD_LEASE_TTL_MS", "soon", 1);
  assert_int_equal(parse((char *[]){"program", NULL}), RC_INVALID);
  assert_non_null(strstr(err.message, "LEASEHOLD_LEASE_TTL_MS"));
}

static void test_unknown_flags_point_to_help(void **state) {
  (void)state;
  assert_int_equal(PARSE("--leese", "5"), RC_INVALID);
  assert_non_null(strstr(err.message, "--leese"));
  assert_non_null(strstr(err.message, "--help"));
  assert_int_equal(PARSE("--hos=x"), RC_INVALID); /* no abbreviations */
  assert_int_equal(PARSE("stray"), RC_INVALID);
  assert_non_null(strstr(err.message, "stray"));
  assert_int_equal(PARSE("--"), RC_INVALID);
  assert_int_equal(PARSE("--host"), RC_INVALID); /* no value */
}

static void test_help_and_version_win(void **state) {
  (void)state;
  enum options_action action;
  assert_int_equal(parse_as(&action, (char *[]){"program", "--wrong", "--help", NULL}), RC_OK);
  assert_int_equal(action, OPTIONS_HELP);
  assert_int_equal(parse_as(&action, (char *[]){"program", "--version", NULL}), RC_OK);
  assert_int_equal(action, OPTIONS_VERSION);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(test_defaults_then_environment_then_flags, clean_environment),
      cmocka_unit_test_setup(test_booleans, clean_environment),
      cmocka_unit_test_setup(test_numbers_are_strict, clean_environment),
      cmocka_unit_test_setup(test_unknown_flags_point_to_help, clean_environment),
      cmocka_unit_test_setup(test_help_and_version_win, clean_environment),
  };
  return cmocka_run_group_tests_name("base/options", tests, NULL, NULL);
}
