/* Connections to SQLite, cached statements, typed binding and reading.  No other room knows SQLite.
 *
 * A connection belongs to one thread at a time: the writer's to core.c, a reader's to its borrower (readers.h), one
 * more to checkpoints.h.  Statements are cached by the address of their SQL, so SQL must be literal text.  A statement
 * that is in use (a nested query with the same text) is prepared a second time.  WAL and synchronous=FULL: a commit is
 * on disk.  Errors: RC_IO (also for a full disk), RC_CONFLICT for a violated constraint, RC_CORRUPT for a damaged
 * file. */
#ifndef LEASEHOLD_COORDINATOR_STORE_STORE_H
#define LEASEHOLD_COORDINATOR_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/rc.h"

struct store;

enum bind_kind { BIND_NULL, BIND_INT, BIND_REAL, BIND_TEXT, BIND_BLOB };
struct bind {
  enum bind_kind kind;
  int64_t integer;
  double real;
  const void *bytes; /* NULL binds null */
  size_t len;
};
static inline struct bind b_int(int64_t v) { return (struct bind){.kind = BIND_INT, .integer = v}; }
static inline struct bind b_real(double v) {
  return (struct bind){.kind = BIND_REAL, .real = v};
} /* a NaN becomes null */
static inline struct bind b_chars(const char *v, size_t len) { /* may hold NULs */
  return (struct bind){.kind = BIND_TEXT, .bytes = v, .len = len};
}
static inline struct bind b_text(const char *v) { return b_chars(v, v ? strlen(v) : 0); }
static inline struct bind b_blob(const void *v, size_t len) {
  return (struct bind){.kind = BIND_BLOB, .bytes = v ? v : "", .len = len};
}
static inline struct bind b_digest(const struct digest *v) {
  return (struct bind){.kind = BIND_BLOB, .bytes = v ? v->bytes : NULL, .len = DIGEST_BYTES};
}
static inline struct bind b_null(void) { return (struct bind){.kind = BIND_NULL}; }

#define BINDS(...) (const struct bind[]){__VA_ARGS__}, sizeof((const struct bind[]){__VA_ARGS__}) / sizeof(struct bind)
#define NO_BINDS   NULL, 0

/* Creates the file when it is missing, unless read_only. */
enum rc store_open(struct store **out, const char *path, bool read_only, struct err *err);
void store_close(struct store *s); /* NULL is fine */

/* Runs one statement that gives no rows. */
enum rc store_exec(struct store *s, struct err *err, const char *sql, const struct bind *binds, size_t count);
/* Runs several statements without parameters (migrations). */
enum rc store_script(struct store *s, const char *sql, struct err *err);
int64_t store_changes(struct store *s);     /* rows that the last store_exec changed */
int64_t store_last_id(struct store *s);     /* rowid of the last insert */
bool store_in_transaction(struct store *s); /* false after SQLite rolled back by itself (disk full, I/O) */

/* The log (checkpoints.h).  Copies what no reader needs there into the database, without making anybody wait; *pages:
 * of the log that are copied by now. */
enum rc store_checkpoint(struct store *s, int *pages, struct err *err);
enum rc store_sync(struct store *s, struct err *err); /* the database's file, not the log */
/* Called within every commit with the length of the log.  NULL: never, and SQLite copies the log by itself. */
void store_on_commit(struct store *s, void (*committed)(void *context, int pages), void *context);

/* bool row;
 *   rc = store_query(...);
 *   while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) ...
 *   rows_end(&q);                                                            (always, also after a failed
 *   store_query) */
struct rows {
  struct store *store;
  void *statement;
  int slot;
}; /* slot: in the cache, or -1 */
enum rc store_query(struct store *s, struct rows *q, struct err *err, const char *sql, const struct bind *binds,
                    size_t count);
enum rc rows_next(struct rows *q, bool *row, struct err *err);
void rows_end(struct rows *q);
/* Columns of the current row; pointers live until the next rows_next or rows_end. */
int64_t rows_int(const struct rows *q, int column);
double rows_real(const struct rows *q, int column);
bool rows_null(const struct rows *q, int column);
const char *rows_text(const struct rows *q, int column, size_t *len); /* "" for null; len may be NULL */
const void *rows_blob(const struct rows *q, int column, size_t *len);
/* False (and zeroes) when it is null or not 32 bytes */
bool rows_digest(const struct rows *q, int column, struct digest *out);

/* The first column of the only row; RC_NOT_FOUND without a row (err untouched). null reads as 0. */
enum rc store_int(struct store *s, int64_t *out, struct err *err, const char *sql, const struct bind *binds,
                  size_t count);

#endif
