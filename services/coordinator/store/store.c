/* Opens SQLite connections, caches statements, binds and reads values.  Only this file and wal_gather.c include
 * sqlite3.h. */
#include "services/coordinator/store/store.h"

#include <assert.h>
#include <math.h>
#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>

#include "services/coordinator/store/wal_gather.h"

enum { CACHE_SLOTS = 512, BUSY_MS = 5000, LOG_PAGES = 8000 };

struct cached {
  const char *sql;
  sqlite3_stmt *statement;
  bool used;
};

struct store {
  sqlite3 *db;
  struct cached cache[CACHE_SLOTS]; /* open addressing by the SQL's address */
  int cache_count;
  void (*committed)(void *context, int pages);
  void *committed_context;
};

static enum rc fail(struct store *s, int code, struct err *err, const char *what) {
  enum rc rc = RC_IO;
  switch (code & 0xff) {
    case SQLITE_CONSTRAINT: rc = RC_CONFLICT; break;
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: rc = RC_CORRUPT; break;
    case SQLITE_NOMEM: rc = RC_NO_MEMORY; break;
    case SQLITE_BUSY: rc = RC_TIMEOUT; break;
    case SQLITE_TOOBIG: rc = RC_TOO_LARGE; break;
    default: break;
  }
  return err_set(err, rc, NULL, "the database refused '%.80s': %s", what,
                 s->db ? sqlite3_errmsg(s->db) : sqlite3_errstr(code));
}

enum rc store_script(struct store *s, const char *sql, struct err *err) {
  int code = sqlite3_exec(s->db, sql, NULL, NULL, NULL);
  return code == SQLITE_OK ? RC_OK : fail(s, code, err, sql);
}

/* Without the count of its memory, SQLite takes no lock for every allocation.  Too late is harmless. */
static pthread_once_t configured = PTHREAD_ONCE_INIT;
static void configure(void) { sqlite3_config(SQLITE_CONFIG_MEMSTATUS, 0); }

enum rc store_open(struct store **out, const char *path, bool read_only, struct err *err) {
  struct store *s = calloc(1, sizeof *s);
  pthread_once(&configured, configure);
  if (!s) return err_set(err, RC_NO_MEMORY, NULL, "a database connection was refused %zu bytes", sizeof *s);
  int flags = (read_only ? SQLITE_OPEN_READONLY : SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE) | SQLITE_OPEN_NOMUTEX |
              SQLITE_OPEN_EXRESCODE;
  int code = sqlite3_open_v2(path, &s->db, flags, read_only ? NULL : wal_gather_vfs());
  enum rc rc = code == SQLITE_OK ? RC_OK : fail(s, code, err, path);
  if (rc == RC_OK) sqlite3_busy_timeout(s->db, BUSY_MS);
  /* Without it SQLite prepares a statement anew for every value of a parameter that a partial index might depend on. */
  if (rc == RC_OK) sqlite3_db_config(s->db, SQLITE_DBCONFIG_ENABLE_QPSG, 1, NULL);
  if (rc == RC_OK && !read_only) {
    rc = store_script(s,
                      "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON; PRAGMA "
                      "secure_delete=FAST; PRAGMA temp_store=MEMORY; PRAGMA cache_size=-8192",
                      err);
    store_on_commit(s, NULL, NULL);
  }
  if (rc == RC_OK && read_only) rc = store_script(s, "PRAGMA query_only=ON; PRAGMA cache_size=-8192", err);
  if (rc != RC_OK) {
    if (rc == RC_CORRUPT) err_in_file(err, path);
    store_close(s);
    return rc;
  }
  *out = s;
  return RC_OK;
}

void store_close(struct store *s) {
  if (!s) return;
  for (int i = 0; i < CACHE_SLOTS; i++) sqlite3_finalize(s->cache[i].statement);
  sqlite3_close(s->db);
  free(s);
}

static struct cached *cache_slot(struct store *s, const char *sql) {
  size_t at = ((uintptr_t)sql * 0x9E3779B97F4A7C15u) >> 40;
  for (size_t i = 0; i < CACHE_SLOTS; i++) {
    struct cached *c = &s->cache[(at + i) % CACHE_SLOTS];
    if (c->sql == sql || !c->sql) return c;
  }
  return NULL;
}

/* A statement that is not in use: the cached one, or a fresh one that rows_end finalizes. */
static enum rc statement_take(struct store *s, const char *sql, struct rows *q, struct err *err) {
  struct cached *c = cache_slot(s, sql);
  bool keep = c && (c->sql || s->cache_count < CACHE_SLOTS - 64);
  *q = (struct rows){.store = s, .slot = -1};
  if (c && c->sql && !c->used) {
    c->used = true;
    q->statement = c->statement;
    q->slot = (int)(c - s->cache);
    return RC_OK;
  }
  sqlite3_stmt *statement = NULL;
  int code = sqlite3_prepare_v3(s->db, sql, -1, SQLITE_PREPARE_PERSISTENT, &statement, NULL);
  if (code != SQLITE_OK) return fail(s, code, err, sql);
  q->statement = statement;
  if (keep && !c->sql) {
    *c = (struct cached){.sql = sql, .statement = statement, .used = true};
    s->cache_count++;
    q->slot = (int)(c - s->cache);
  }
  return RC_OK;
}

static int bind_one(sqlite3_stmt *statement, int at, const struct bind *b) {
  switch (b->kind) {
    case BIND_INT: return sqlite3_bind_int64(statement, at, b->integer);
    case BIND_REAL:
      return isnan(b->real) ? sqlite3_bind_null(statement, at) : sqlite3_bind_double(statement, at, b->real);
    case BIND_TEXT:
      return b->bytes ? sqlite3_bind_text64(statement, at, b->bytes, b->len, SQLITE_STATIC, SQLITE_UTF8)
                      : sqlite3_bind_null(statement, at);
    case BIND_BLOB:
      return b->bytes ? sqlite3_bind_blob64(statement, at, b->bytes, b->len, SQLITE_STATIC)
                      : sqlite3_bind_null(statement, at);
    case BIND_NULL: break;
  }
  return sqlite3_bind_null(statement, at);
}

enum rc store_query(struct store *s, struct rows *q, struct err *err, const char *sql, const struct bind *binds,
                    size_t count) {
  enum rc rc = statement_take(s, sql, q, err);
  if (rc != RC_OK) return rc;
  assert((size_t)sqlite3_bind_parameter_count(q->statement) == count);
  for (size_t i = 0; i < count; i++) {
    int code = bind_one(q->statement, (int)i + 1, &binds[i]);
    if (code != SQLITE_OK) return fail(s, code, err, sql);
  }
  return RC_OK;
}

enum rc rows_next(struct rows *q, bool *row, struct err *err) {
  int code = sqlite3_step(q->statement);
  *row = code == SQLITE_ROW;
  if (code == SQLITE_ROW || code == SQLITE_DONE) return RC_OK;
  return fail(q->store, code, err, sqlite3_sql(q->statement));
}

void rows_end(struct rows *q) {
  if (!q->statement) return;
  if (q->slot >= 0) {
    sqlite3_reset(q->statement);
    sqlite3_clear_bindings(q->statement);
    q->store->cache[q->slot].used = false;
  } else {
    sqlite3_finalize(q->statement);
  }
  q->statement = NULL;
}

enum rc store_exec(struct store *s, struct err *err, const char *sql, const struct bind *binds, size_t count) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err, sql, binds, count);
  do {
    if (rc == RC_OK) rc = rows_next(&q, &row, err);
  } while (rc == RC_OK && row);
  rows_end(&q);
  return rc;
}

enum rc store_int(struct store *s, int64_t *out, struct err *err, const char *sql, const struct bind *binds,
                  size_t count) {
  struct rows q;
  bool row = false;
  enum rc rc = store_query(s, &q, err, sql, binds, count);
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) *out = rows_int(&q, 0);
  rows_end(&q);
  return rc == RC_OK && !row ? RC_NOT_FOUND : rc;
}

enum rc store_checkpoint(struct store *s, int *pages, struct err *err) {
  int of = 0;
  const int code = sqlite3_wal_checkpoint_v2(s->db, NULL, SQLITE_CHECKPOINT_PASSIVE, &of, pages);
  return code == SQLITE_OK || code == SQLITE_BUSY ? RC_OK : fail(s, code, err, "checkpoint");
}

enum rc store_sync(struct store *s, struct err *err) {
  sqlite3_file *file = NULL;
  int code = sqlite3_file_control(s->db, NULL, SQLITE_FCNTL_FILE_POINTER, &file);
  if (code == SQLITE_OK) code = file->pMethods->xSync(file, SQLITE_SYNC_NORMAL);
  return code == SQLITE_OK ? RC_OK : fail(s, code, err, "sync");
}

static int on_commit(void *context, sqlite3 *db, const char *name, int pages) {
  struct store *s = context;
  (void)db;
  (void)name;
  s->committed(s->committed_context, pages);
  return SQLITE_OK;
}

void store_on_commit(struct store *s, void (*committed)(void *context, int pages), void *context) {
  s->committed = committed;
  s->committed_context = context;
  if (committed)
    sqlite3_wal_hook(s->db, on_commit, s);
  else
    sqlite3_wal_autocheckpoint(s->db, LOG_PAGES);
}

int64_t store_changes(struct store *s) { return sqlite3_changes64(s->db); }
int64_t store_last_id(struct store *s) { return sqlite3_last_insert_rowid(s->db); }
bool store_in_transaction(struct store *s) { return sqlite3_get_autocommit(s->db) == 0; }

int64_t rows_int(const struct rows *q, int column) { return sqlite3_column_int64(q->statement, column); }
double rows_real(const struct rows *q, int column) { return sqlite3_column_double(q->statement, column); }
bool rows_null(const struct rows *q, int column) { return sqlite3_column_type(q->statement, column) == SQLITE_NULL; }

const char *rows_text(const struct rows *q, int column, size_t *len) {
  const void *text = sqlite3_column_type(q->statement, column) == SQLITE_BLOB
                         ? sqlite3_column_blob(q->statement, column)
                         : sqlite3_column_text(q->statement, column);
  if (len) *len = text ? (size_t)sqlite3_column_bytes(q->statement, column) : 0;
  return text ? text : "";
}

const void *rows_blob(const struct rows *q, int column, size_t *len) {
  const void *bytes = sqlite3_column_blob(q->statement, column);
  *len = (size_t)sqlite3_column_bytes(q->statement, column);
  return bytes ? bytes : "";
}

bool rows_digest(const struct rows *q, int column, struct digest *out) {
  size_t len;
  const unsigned char *bytes = rows_blob(q, column, &len);
  *out = (struct digest){0};
  if (len != DIGEST_BYTES) return false;
  for (size_t i = 0; i < DIGEST_BYTES; i++) out->bytes[i] = bytes[i];
  return true;
}
