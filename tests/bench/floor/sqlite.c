/* What SQLite alone costs the coordinator: a whole coordinator whose statements are recorded while it serves.  When it
 * has ended, this thread executes them again on an empty database.  Called by tests/bench/bench-coordinator.
 *
 *   floor_sqlite OUT FLAG...      flags: the coordinator's.  OUT: a line of JSON; OUT.db: the second database
 *
 * The linker leads the services' calls of store.h's functions to __wrap_..., which record them and go on to the real
 * ones.  What is executed again has the same order, values, transactions and connections, and as many rows are read of
 * each query, but all at once; SQLite copies its log into the database by itself.  CPU time counts from the run's
 * insertion on.
 *
 * Recorded values are kept until the program ends.  The lock guards all that is recorded. */
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "services/coordinator/store/store.h"

int coordinator_main(int argc, char **argv);

enum rc __real_store_open(struct store **out, const char *path, bool read_only, struct err *err);
enum rc __real_store_script(struct store *s, const char *sql, struct err *err);
enum rc __real_store_exec(struct store *s, struct err *err, const char *sql, const struct bind *binds, size_t count);
enum rc __real_store_query(struct store *s, struct rows *q, struct err *err, const char *sql, const struct bind *binds,
                           size_t count);
enum rc __real_rows_next(struct rows *q, bool *row, struct err *err);
void __real_rows_end(struct rows *q);
enum rc __real_store_int(struct store *s, int64_t *out, struct err *err, const char *sql, const struct bind *binds,
                         size_t count);
enum rc __wrap_store_open(struct store **out, const char *path, bool read_only, struct err *err);
enum rc __wrap_store_script(struct store *s, const char *sql, struct err *err);
enum rc __wrap_store_exec(struct store *s, struct err *err, const char *sql, const struct bind *binds, size_t count);
enum rc __wrap_store_query(struct store *s, struct rows *q, struct err *err, const char *sql, const struct bind *binds,
                           size_t count);
enum rc __wrap_rows_next(struct rows *q, bool *row, struct err *err);
void __wrap_rows_end(struct rows *q);
enum rc __wrap_store_int(struct store *s, int64_t *out, struct err *err, const char *sql, const struct bind *binds,
                         size_t count);

enum { CONNECTIONS_MAX = 64, READING_MAX = 256, SCRIPT = -1 };

struct recorded {
  int connection;
  const char *sql;
  struct bind *binds;
  size_t count;
  int rows; /* that were asked for, or SCRIPT */
};

static struct {
  pthread_mutex_t lock;
  struct store *connections[CONNECTIONS_MAX];
  bool read_only[CONNECTIONS_MAX];
  int connection_count;
  struct recorded *items;
  size_t count, room;
  struct {
    const void *statement;
    size_t item;
  } reading[READING_MAX]; /* queries that have not ended */
  int reading_count;
} record = {.lock = PTHREAD_MUTEX_INITIALIZER};

static _Noreturn void give_up(const char *why) {
  fprintf(stderr, "floor: %s\n", why);
  exit(1);
}

static void *kept(const void *bytes, size_t len) {
  void *copy = malloc(len + 1);
  if (!copy) give_up("no memory");
  if (len) memcpy(copy, bytes, len);
  ((char *)copy)[len] = 0;
  return copy;
}

/* lock held; the newest of that address: a connection may lie where another lay */
static int connection_of(const struct store *s) {
  for (int i = record.connection_count - 1; i >= 0; i--)
    if (record.connections[i] == s) return i;
  give_up("a connection that was not opened");
}

static size_t note(struct store *s, const char *sql, const struct bind *binds, size_t count, int rows) {
  struct bind *copies = count ? kept(binds, count * sizeof *binds) : NULL;
  for (size_t i = 0; i < count; i++)
    if (copies[i].bytes) copies[i].bytes = kept(copies[i].bytes, copies[i].len);
  pthread_mutex_lock(&record.lock);
  if (record.count == record.room) {
    record.room = record.room ? 2 * record.room : 4096;
    record.items = realloc(record.items, record.room * sizeof *record.items);
    if (!record.items) give_up("no memory");
  }
  const size_t at = record.count++;
  record.items[at] =
      (struct recorded){.connection = connection_of(s), .sql = sql, .binds = copies, .count = count, .rows = rows};
  pthread_mutex_unlock(&record.lock);
  return at;
}

enum rc __wrap_store_open(struct store **out, const char *path, bool read_only, struct err *err) {
  const enum rc rc = __real_store_open(out, path, read_only, err);
  if (rc != RC_OK) return rc;
  pthread_mutex_lock(&record.lock);
  if (record.connection_count == CONNECTIONS_MAX) give_up("too many connections");
  record.connections[record.connection_count] = *out;
  record.read_only[record.connection_count++] = read_only;
  pthread_mutex_unlock(&record.lock);
  return rc;
}

enum rc __wrap_store_script(struct store *s, const char *sql, struct err *err) {
  note(s, sql, NULL, 0, SCRIPT);
  return __real_store_script(s, sql, err);
}

enum rc __wrap_store_exec(struct store *s, struct err *err, const char *sql, const struct bind *binds, size_t count) {
  note(s, sql, binds, count, 1);
  return __real_store_exec(s, err, sql, binds, count);
}

enum rc __wrap_store_int(struct store *s, int64_t *out, struct err *err, const char *sql, const struct bind *binds,
                         size_t count) {
  note(s, sql, binds, count, 1);
  return __real_store_int(s, out, err, sql, binds, count);
}

enum rc __wrap_store_query(struct store *s, struct rows *q, struct err *err, const char *sql, const struct bind *binds,
                           size_t count) {
  const size_t item = note(s, sql, binds, count, 0);
  const enum rc rc = __real_store_query(s, q, err, sql, binds, count);
  if (rc != RC_OK) return rc;
  pthread_mutex_lock(&record.lock);
  if (record.reading_count == READING_MAX) give_up("too many queries at once");
  record.reading[record.reading_count].statement = q->statement;
  record.reading[record.reading_count++].item = item;
  pthread_mutex_unlock(&record.lock);
  return rc;
}

enum rc __wrap_rows_next(struct rows *q, bool *row, struct err *err) {
  pthread_mutex_lock(&record.lock);
  for (int i = 0; i < record.reading_count; i++)
    if (record.reading[i].statement == q->statement) record.items[record.reading[i].item].rows++;
  pthread_mutex_unlock(&record.lock);
  return __real_rows_next(q, row, err);
}

void __wrap_rows_end(struct rows *q) {
  pthread_mutex_lock(&record.lock);
  for (int i = 0; i < record.reading_count; i++)
    if (record.reading[i].statement == q->statement) record.reading[i--] = record.reading[--record.reading_count];
  pthread_mutex_unlock(&record.lock);
  __real_rows_end(q);
}

/* ---- again ---- */

static enum rc execute(struct store *s, const struct recorded *r) {
  struct rows q;
  bool row = true;
  if (r->rows == SCRIPT) return __real_store_script(s, r->sql, NULL);
  enum rc rc = __real_store_query(s, &q, NULL, r->sql, r->binds, r->count);
  for (int i = 0; rc == RC_OK && row && i < r->rows; i++) rc = __real_rows_next(&q, &row, NULL);
  __real_rows_end(&q);
  return rc;
}

static int64_t cpu_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec * 1000000 + t.tv_nsec / 1000;
}

static void play_again(const char *out) {
  struct store *connections[CONNECTIONS_MAX] = {NULL};
  char path[4096];
  int64_t begun_us = 0, statements = 0, commits = 0, refused = 0;
  snprintf(path, sizeof path, "%s.db", out);
  for (size_t i = 0; i < record.count; i++) {
    const struct recorded *r = &record.items[i];
    struct store **s = &connections[r->connection];
    if (!*s && __real_store_open(s, path, record.read_only[r->connection], NULL) != RC_OK)
      give_up("no second database");
    if (!begun_us && strncmp(r->sql, "INSERT INTO runs", 16) == 0) begun_us = cpu_us();
    refused += execute(*s, r) != RC_OK;
    statements += begun_us != 0;
    commits += begun_us != 0 && strcmp(r->sql, "COMMIT") == 0 && !record.read_only[r->connection];
  }
  const int64_t took_us = cpu_us() - begun_us;
  FILE *f = fopen(out, "w");
  if (!f) give_up("no output");
  fprintf(
      f, "{\"cpu_us\": %" PRId64 ", \"statements\": %" PRId64 ", \"commits\": %" PRId64 ", \"refused\": %" PRId64 "}\n",
      begun_us ? took_us : 0, statements, commits, refused);
  fclose(f);
}

int main(int argc, char **argv) {
  if (argc < 2) give_up("usage: floor_sqlite OUT FLAG...");
  const char *out = argv[1];
  argv[1] = argv[0];
  const int status = coordinator_main(argc - 1, argv + 1);
  if (status == 0) play_again(out);
  return status;
}
