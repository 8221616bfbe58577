/* Starts a program with files in memory for what it reads and writes, and waits for its end. */
#include "services/cli/commands/programs.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/limits.h"

enum { FLAGS_MAX = 64, LOOK_MS = 10, ANSWER_BYTES_MAX = 16 << 20, SAID_MAX = 400 };

extern char **environ;

/* Beside this program, where there is such a one. */
static void program_find(char path[LIMIT_PATH_MAX], const char *name) {
  char own[LIMIT_PATH_MAX];
  const ssize_t len = readlink("/proc/self/exe", own, sizeof own - 1);
  own[len > 0 ? len : 0] = 0;
  char *slash = strrchr(own, '/');
  if (slash) {
    slash[1] = 0;
    if (snprintf(path, LIMIT_PATH_MAX, "%s%s", own, name) < LIMIT_PATH_MAX && access(path, X_OK) == 0) return;
  }
  snprintf(path, LIMIT_PATH_MAX, "%s", name);
}

/* What posix_spawnp takes.  words: room for the user's flags, which are cut apart in it. */
static enum rc arguments_make(char *argv[FLAGS_MAX + 1], char *path, char **words, const struct program_call *call,
                              struct err *err) {
  int count = 0;
  argv[count++] = path;
  for (const char *const *flag = call->flags; *flag && count < FLAGS_MAX; flag++)
    argv[count++] = (char *)(uintptr_t)*flag;
  *words = strdup(call->more);
  if (!*words) return err_set(err, RC_NO_MEMORY, NULL, "flags were refused memory");
  char *rest = NULL;
  for (char *word = strtok_r(*words, " \t", &rest); word; word = strtok_r(NULL, " \t", &rest)) {
    if (count == FLAGS_MAX)
      return err_set(err, RC_INVALID, NULL, "%s: expected at most %d flags", call->name, FLAGS_MAX);
    argv[count++] = word;
  }
  argv[count] = NULL;
  return RC_OK;
}

static void print_call(const struct session *s, char *const *argv, const struct buf *request) {
  if (!s->verbose) return;
  fprintf(stderr, "printf %%s ");
  session_print_quoted(request->data ? request->data : "");
  fprintf(stderr, " |");
  for (char *const *word = argv; *word; word++) {
    fputc(' ', stderr);
    session_print_quoted(*word);
  }
  fputc('\n', stderr);
}

/* A file in memory, at its beginning; -1: refused. */
static int memory_file(const char *name, const struct buf *content) {
  const int fd = memfd_create(name, MFD_CLOEXEC);
  if (fd < 0 || !content || content->len == 0) return fd;
  if (write(fd, content->data, content->len) == (ssize_t)content->len && lseek(fd, 0, SEEK_SET) == 0) return fd;
  close(fd);
  return -1;
}

static enum rc memory_file_read(struct buf *out, int fd, struct err *err) {
  char bytes[4096];
  ssize_t n;
  lseek(fd, 0, SEEK_SET);
  while ((n = read(fd, bytes, sizeof bytes)) > 0 && out->len < ANSWER_BYTES_MAX) buf_append(out, bytes, (size_t)n);
  return buf_check(out, err);
}

/* *status: as waitpid's. */
static enum rc program_run(char *const *argv, const int files[3], const struct program_call *call, int *status,
                           struct err *err) {
  posix_spawn_file_actions_t actions;
  pid_t pid, ended = 0;
  posix_spawn_file_actions_init(&actions);
  for (int i = 0; i < 3; i++) posix_spawn_file_actions_adddup2(&actions, files[i], i);
  const int failed = posix_spawnp(&pid, argv[0], &actions, NULL, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  if (failed == ENOENT)
    return err_set(
        err, RC_NOT_FOUND, NULL,
        "there is no program %s beside this one or on PATH; install the services (make install), or add their "
        "folder to PATH",
        call->name);
  if (failed) return err_set(err, RC_IO, NULL, "%s could not be started: %s", argv[0], strerror(failed));
  const int64_t end_ms = clock_monotonic_ms() + call->deadline_ms;
  while ((ended = waitpid(pid, status, WNOHANG)) == 0 && clock_monotonic_ms() < end_ms) clock_sleep_ms(LOOK_MS);
  if (ended == pid) return RC_OK;
  kill(pid, SIGKILL);
  waitpid(pid, status, 0);
  return err_set(err, RC_TIMEOUT, NULL, "%s: expected an answer within %lld s", call->name,
                 (long long)(call->deadline_ms / 1000));
}

/* The last line that it has written. */
static void said_last(char out[SAID_MAX], struct buf *text) {
  while (text->len > 0 && text->data[text->len - 1] == '\n') text->data[--text->len] = 0;
  const char *last = text->len > 0 ? strrchr(text->data, '\n') : NULL;
  snprintf(out, SAID_MAX, "%s", text->len == 0 ? "it said nothing" : last ? last + 1 : text->data);
}

static enum rc answer_parse(struct json **out, const struct program_call *call, int status, const int files[3],
                            struct err *err) {
  struct buf answer = BUF_INIT, said = BUF_INIT;
  char last[SAID_MAX];
  enum rc rc = memory_file_read(&answer, files[1], err);
  if (rc == RC_OK) rc = memory_file_read(&said, files[2], err);
  if (rc == RC_OK && status != 0) {
    said_last(last, &said);
    rc = WIFSIGNALED(status)
             ? err_set(err, RC_IO, NULL, "%s was ended by signal %d: %s", call->name, WTERMSIG(status), last)
             : err_set(err, RC_INVALID, NULL, "%s", last);
  }
  if (rc == RC_OK) {
    rc = json_parse(out, answer.data ? answer.data : "", answer.len, ANSWER_BYTES_MAX, err);
    if (rc != RC_OK) err_in_file(err, call->name);
  }
  buf_free(&answer);
  buf_free(&said);
  return rc;
}

enum rc program_ask(const struct session *s, const struct program_call *call, struct json **out, struct err *err) {
  char path[LIMIT_PATH_MAX], *argv[FLAGS_MAX + 1], *words = NULL;
  int files[3] = {memory_file("request", call->request), memory_file("answer", NULL), memory_file("log", NULL)},
      status = 0;
  *out = NULL;
  program_find(path, call->name);
  enum rc rc = arguments_make(argv, path, &words, call, err);
  if (rc == RC_OK && (files[0] < 0 || files[1] < 0 || files[2] < 0))
    rc = err_set_errno(err, RC_IO, "files in memory for %s", call->name);
  if (rc == RC_OK) {
    print_call(s, argv, call->request);
    rc = program_run(argv, files, call, &status, err);
  }
  if (rc == RC_OK) rc = answer_parse(out, call, status, files, err);
  for (int i = 0; i < 3; i++)
    if (files[i] >= 0) close(files[i]);
  free(words);
  return rc;
}
