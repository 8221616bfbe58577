/* The names of the model that is loaded: without them a client is answered by a model that it has not asked for, or
 * refused the one that it has. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "services/generation-server/requests/model_names.h"

static void expect_names(const char *run, const char *folder, size_t count, const char *const wanted[]) {
  const char *names[MODEL_NAMES_MAX];
  assert_int_equal(model_names(names, run, folder), count);
  for (size_t i = 0; i < count; i++) assert_string_equal(names[i], wanted[i]);
  assert_string_equal(model_name_of_run(run), wanted[0]);
}

static void the_name_that_answers_bear_comes_first_and_none_twice(void **state) {
  (void)state;
  expect_names("", NULL, 1, (const char *const[]){"leasehold"});
  expect_names("", "", 1, (const char *const[]){"leasehold"});
  expect_names("", "/srv/base", 2, (const char *const[]){"leasehold", "/srv/base"});
  expect_names("r7", NULL, 2, (const char *const[]){"r7", "leasehold"});
  expect_names("r7", "/srv/base", 3, (const char *const[]){"r7", "leasehold", "/srv/base"});
  expect_names("leasehold", "leasehold", 1, (const char *const[]){"leasehold"});
  expect_names("base", "base", 2, (const char *const[]){"base", "leasehold"});
}

static void what_is_listed_is_taken_and_so_is_no_name(void **state) {
  (void)state;
  struct err err;
  const char *const taken[] = {NULL, "", "r7", "leasehold", "/srv/base"};
  for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
    assert_int_equal(model_name_check(taken[i], "r7", "/srv/base", &err), RC_OK);
}

static void another_name_is_refused_with_those_that_there_are(void **state) {
  (void)state;
  struct err err;
  const char *const refused[] = {"r8", "R7", "r7 ", "r", "Leasehold", "/srv/base/"};
  for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
    assert_int_equal(model_name_check(refused[i], "r7", "/srv/base", &err), RC_NOT_FOUND);
  assert_int_equal(model_name_check("r6", "r7", "/srv/base", &err), RC_NOT_FOUND);
  assert_string_equal(err.field, "model");
  assert_string_equal(err.message, "The model `r6` does not exist: expected r7 or leasehold or /srv/base");
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_name_that_answers_bear_comes_first_and_none_twice),
      cmocka_unit_test(what_is_listed_is_taken_and_so_is_no_name),
      cmocka_unit_test(another_name_is_refused_with_those_that_there_are),
  };
  return cmocka_run_group_tests_name("names of the model", tests, NULL, NULL);
}
