/* Tokens of files: who is who, what is shown, what a change of the files does, and what no change may do. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/http/trust/roles.h"
#include "common/http/trust/tokens.h"
#include "tests/unit/base/scratch.h"

#define ADMIN  "admin-token-0123456789"
#define OLD    "worker-token-old-01234"
#define NEW    "worker-token-new-01234"
#define VIEWER "viewer-token-012345678"

static char folder[128];
static int64_t now_us;

static int64_t read_clock(void *context) {
  (void)context;
  return now_us;
}

static const struct clock test_clock = {.monotonic_us = read_clock, .wall_us = read_clock};

static void time_passes(void) { now_us += TOKENS_LOOK_MS * 1000; }

static void put(const char *name, const char *text) {
  char path[256];
  struct err err;
  snprintf(path, sizeof path, "%s/%s", folder, name);
  if (file_write_atomic(path, text, strlen(text), &err) != RC_OK) fail_msg("%s", err.message);
}

static void gone(const char *name) {
  char path[256];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  unlink(path);
}

static int start(void **state) {
  (void)state;
  log_init("test", LOG_ERROR + 1);
  scratch_folder(folder, sizeof folder, "tokens");
  return 0;
}

static int stop(void **state) {
  struct err err;
  (void)state;
  return file_remove_tree(folder, &err) == RC_OK ? 0 : 1;
}

static int each(void **state) {
  (void)state;
  put("admin", ADMIN "\n");
  put("worker", "# of the pool\n\n  " OLD "  pool  \r\n");
  put("viewer", "sha256:9fa2b5d3b4f6d0f0d8d6b8ad5b0d5a55c2d6c2f6f1d7c7c5a1b3e2a6f3c4d5e6\n" VIEWER);
  gone("trainer");
  return 0;
}

static struct tokens *opened(const char *all, unsigned shows) {
  struct tokens *t;
  struct err err;
  const struct tokens_options options = {.all = all, .dir = folder, .shows = shows, .clock = &test_clock};
  if (tokens_open(&t, &options, &err) != RC_OK) fail_msg("%s", err.message);
  return t;
}

static unsigned roles_of(struct tokens *t, const char *token) {
  struct token_claim claim;
  tokens_know(t, token, &claim);
  return claim.roles;
}

static void a_token_has_the_role_of_its_file(void **state) {
  (void)state;
  struct tokens *t = opened(NULL, 0);
  assert_true(tokens_wanted(t));
  assert_int_equal(roles_of(t, ADMIN), HTTP_ADMIN);
  assert_int_equal(roles_of(t, OLD), HTTP_WORKER);
  assert_int_equal(roles_of(t, VIEWER), HTTP_VIEWER);
  static const char *const nobody[] = {"", "pool", "# of the pool", ADMIN "x", "admin-token-012345678", "sha256:", NEW};
  for (size_t i = 0; i < sizeof nobody / sizeof nobody[0]; i++) assert_int_equal(roles_of(t, nobody[i]), 0);
  tokens_close(t);
}

static void a_digest_is_accepted_and_never_shown(void **state) {
  (void)state;
  struct digest d;
  char hex[DIGEST_HEX_MAX], line[128], shown[TOKEN_BYTES_MAX + 1];
  struct err err;
  struct tokens *t;
  digest_of(&d, NEW, strlen(NEW));
  digest_hex(hex, &d);
  snprintf(line, sizeof line, "sha256:%s\n", hex);
  put("worker", line);
  t = opened(NULL, 0);
  assert_int_equal(roles_of(t, NEW), HTTP_WORKER);
  assert_int_equal(roles_of(t, line), 0); /* the line itself opens nothing */
  assert_false(tokens_shown(t, shown));
  tokens_close(t);
  const struct tokens_options options = {.dir = folder, .shows = HTTP_WORKER};
  assert_int_equal(tokens_open(&t, &options, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "worker: a token was expected"));
}

static void one_token_for_everything_goes_on_working(void **state) {
  (void)state;
  char shown[TOKEN_BYTES_MAX + 1];
  struct err err;
  struct tokens *t;
  const struct tokens_options options = {.all = "sesame", .dir = "", .shows = HTTP_TRAINER};
  assert_int_equal(tokens_open(&t, &options, &err), RC_OK);
  assert_int_equal(roles_of(t, "sesame"), HTTP_ROLES_ALL);
  assert_true(tokens_shown(t, shown));
  assert_string_equal(shown, "sesame");
  tokens_close(t);
  const struct tokens_options none = {.all = "", .dir = "", .shows = HTTP_TRAINER};
  assert_int_equal(tokens_open(&t, &none, &err), RC_OK);
  assert_false(tokens_wanted(t));
  tokens_close(t);
}

static void a_changed_file_counts_without_a_restart(void **state) {
  (void)state;
  char shown[TOKEN_BYTES_MAX + 1];
  struct token_claim before, after;
  struct tokens *t = opened(NULL, HTTP_WORKER);
  assert_true(tokens_know(t, OLD, &before));
  const unsigned generation = tokens_generation(t);
  put("worker", NEW " pool\n" OLD " pool\n");
  assert_int_equal(roles_of(t, NEW), 0); /* not before it is looked at again */
  time_passes();
  assert_int_equal(roles_of(t, NEW), HTTP_WORKER);
  assert_true(tokens_generation(t) > generation);
  assert_int_equal(roles_of(t, OLD), HTTP_WORKER);
  assert_true(tokens_shown(t, shown));
  assert_string_equal(shown, NEW);
  assert_true(tokens_know(t, NEW, &after));
  assert_true(digest_equal(&before.holder, &after.holder)); /* what the old one took is the new one's */
  put("worker", NEW "\n");
  time_passes();
  assert_int_equal(roles_of(t, OLD), 0);
  assert_false(tokens_hold(t, &before.holder));
  assert_true(tokens_know(t, NEW, &after));
  assert_false(digest_equal(&before.holder, &after.holder));
  gone("viewer");
  time_passes();
  assert_int_equal(roles_of(t, VIEWER), 0);
  tokens_close(t);
}

static void files_that_have_become_wrong_change_nothing(void **state) {
  (void)state;
  struct tokens *t = opened(NULL, HTTP_WORKER);
  put("worker", "short\n");
  put("admin", NEW "\n");
  time_passes();
  assert_int_equal(roles_of(t, OLD), HTTP_WORKER);
  assert_int_equal(roles_of(t, ADMIN), HTTP_ADMIN);
  assert_int_equal(roles_of(t, NEW), 0);
  put("worker", OLD "\n");
  time_passes();
  assert_int_equal(roles_of(t, NEW), HTTP_ADMIN);
  gone("worker"), gone("admin"), gone("viewer"); /* nothing is left: that must not open the door */
  time_passes();
  assert_int_equal(roles_of(t, OLD), HTTP_WORKER);
  tokens_close(t);
}

static void wrong_files_are_refused_without_showing_them(void **state) {
  (void)state;
  static const char *const wrong[] = {"short-secret", OLD " pool more", "sha256:12", "sha256:" OLD,
                                      "sch\xc3\xb6nes-geheimnis-123"};
  struct tokens *t;
  struct err err;
  const struct tokens_options options = {.dir = folder};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    put("worker", wrong[i]);
    assert_int_equal(tokens_open(&t, &options, &err), RC_INVALID);
    assert_non_null(strstr(err.message, "line 1"));
    assert_null(strstr(err.message, wrong[i]));
  }
  gone("worker"), gone("admin"), gone("viewer");
  assert_int_equal(tokens_open(&t, &options, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "none was found"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(a_token_has_the_role_of_its_file, each),
      cmocka_unit_test_setup(a_digest_is_accepted_and_never_shown, each),
      cmocka_unit_test_setup(one_token_for_everything_goes_on_working, each),
      cmocka_unit_test_setup(a_changed_file_counts_without_a_restart, each),
      cmocka_unit_test_setup(files_that_have_become_wrong_change_nothing, each),
      cmocka_unit_test_setup(wrong_files_are_refused_without_showing_them, each),
  };
  return cmocka_run_group_tests_name("tokens", tests, start, stop);
}
