/* A lock that two processes have, or that outlives the process that had it, is none. */
#include "tests/unit/base/cm.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/file_lock.h"

enum { AT = 7 };

static char root[] = "/tmp/leasehold-lock-XXXXXX";
static char path[64], alias[64];

static int make_root(void **state) {
  (void)state;
  if (!mkdtemp(root)) return -1;
  snprintf(path, sizeof path, "%s/lock", root);
  snprintf(alias, sizeof alias, "%s/alias", root);
  return symlink(path, alias);
}

static int remove_root(void **state) {
  (void)state;
  return file_remove_tree(root, NULL) == RC_OK ? 0 : -1;
}

/* A process that has the lock, and has signed, until it is killed. */
static pid_t holder_start(void) {
  int said[2], fd;
  long other;
  char word;
  assert_int_equal(pipe(said), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    if (file_lock_take(&fd, &other, path, AT, NULL) != RC_OK) _exit(1);
    file_lock_sign(fd, AT);
    if (write(said[1], "x", 1) == 1)
      for (;;) pause();
    _exit(1);
  }
  close(said[1]);
  assert_int_equal(read(said[0], &word, 1), 1);
  close(said[0]);
  return pid;
}

static void one_process_has_it_by_any_name_and_while_it_lives(void **state) {
  (void)state;
  struct err err = {0};
  int fd, second;
  long holder;
  const pid_t pid = holder_start();
  assert_int_equal(file_lock_take(&fd, &holder, path, AT, &err), RC_CONFLICT);
  assert_true(fd == -1 && holder == (long)pid);
  assert_int_equal(file_lock_take(&fd, &holder, alias, AT, &err), RC_CONFLICT);
  assert_true(holder == (long)pid);
  kill(pid, SIGKILL);
  waitpid(pid, NULL, 0);
  assert_int_equal(file_lock_take(&fd, &holder, alias, AT, &err), RC_OK);
  assert_true(fd >= 0 && holder == 0);
  assert_int_equal(file_lock_take(&second, &holder, path, AT, &err), RC_CONFLICT); /* in one process, too */
  file_lock_release(second);
  file_lock_release(fd);
  assert_int_equal(file_lock_take(&fd, &holder, path, AT, &err), RC_OK);
  file_lock_release(fd);
}

static void what_cannot_be_opened_is_named(void **state) {
  (void)state;
  struct err err = {0};
  char nowhere[96];
  int fd;
  long holder;
  snprintf(nowhere, sizeof nowhere, "%s/none/lock", root);
  assert_int_equal(file_lock_take(&fd, &holder, nowhere, AT, &err), RC_IO);
  assert_int_equal(fd, -1);
  assert_non_null(strstr(err.message, nowhere));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(one_process_has_it_by_any_name_and_while_it_lives),
      cmocka_unit_test(what_cannot_be_opened_is_named),
  };
  return cmocka_run_group_tests_name("base/file_lock", tests, make_root, remove_root);
}
