/* Gathers consecutive writes to SQLite's log into one, and what is read and written to copy it: see wal_gather.h.  All
 * else is done by SQLite's own VFS, which opens every other file itself.
 *
 * The log is a file of ours with that of SQLite's VFS inside.  The database's file stays SQLite's; only two entries of
 * its table of methods, of which it gets a copy, lead here. */
#include "services/coordinator/store/wal_gather.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

enum {
  WAL_GATHER_BYTES = (1 << 17) - 1, /* SQLite's unix VFS takes fewer than 2^17 bytes for one write */
  FRAME_HEAD_BYTES = 24,            /* between two pages of the log */
  SYNC_BYTES = 1 << 20              /* of a copy: a commit's own sync waits behind no more than these */
};

/* A log.  Followed in memory by the file of SQLite's own VFS. */
struct gathered {
  sqlite3_file base;
  char *bytes;      /* [WAL_GATHER_BYTES] to be written or, while the log is copied, read ahead */
  int count;        /* of those to be written */
  sqlite3_int64 at; /* where they belong in the file */
  struct copied *database;
  bool copying;             /* between a checkpoint's first and last word */
  int ahead;                /* bytes that were read from `at` on; none while there are some to be written */
  sqlite3_int64 read_until; /* where the last read ended */
};

/* A database.  Lies in memory behind the file of SQLite's own VFS. */
struct copied {
  sqlite3_io_methods methods; /* SQLite's, but for those below */
  int (*write)(sqlite3_file *f, const void *bytes, int count, sqlite3_int64 at);
  int (*control)(sqlite3_file *f, int what, void *value);
  struct gathered *log; /* NULL while it is closed */
  char *bytes;          /* [WAL_GATHER_BYTES], of a checkpoint; NULL: every page is written at once */
  int count;
  sqlite3_int64 at;
  int unsynced; /* bytes of this copy */
};

static sqlite3_vfs *inner_vfs;

static struct gathered *gathered_of(sqlite3_file *f) { return (struct gathered *)(void *)f; }
static sqlite3_file *inner_of(sqlite3_file *f) { return (sqlite3_file *)(void *)(gathered_of(f) + 1); }

/* After a failure the bytes stay: what is done next with the file fails too, or comes after them, as it would have. */
static int flush(sqlite3_file *f) {
  struct gathered *g = gathered_of(f);
  if (g->count == 0) return SQLITE_OK;
  const int code = inner_of(f)->pMethods->xWrite(inner_of(f), g->bytes, g->count, g->at);
  if (code == SQLITE_OK) g->count = 0;
  return code;
}

static int gather_write(sqlite3_file *f, const void *bytes, int count, sqlite3_int64 at) {
  struct gathered *g = gathered_of(f);
  g->ahead = 0;
  if (at != g->at + g->count || count > WAL_GATHER_BYTES - g->count) {
    const int code = flush(f);
    if (code != SQLITE_OK) return code;
    if (count > WAL_GATHER_BYTES) return inner_of(f)->pMethods->xWrite(inner_of(f), bytes, count, at);
    g->at = at;
  }
  memcpy(g->bytes + g->count, bytes, (size_t)count);
  g->count += count;
  return SQLITE_OK;
}

static int gather_sync(sqlite3_file *f, int flags) {
  const int code = flush(f);
  return code == SQLITE_OK ? inner_of(f)->pMethods->xSync(inner_of(f), flags) : code;
}

/* Reads what a checkpoint will ask for next: it goes by the order of pages, which is mostly that of the log.  Frames
 * that it copies were written before it began, so what is read ahead for it does not change. */
static void read_ahead(sqlite3_file *f, sqlite3_int64 at) {
  struct gathered *g = gathered_of(f);
  sqlite3_int64 size = 0;
  g->ahead = 0;
  if (inner_of(f)->pMethods->xFileSize(inner_of(f), &size) != SQLITE_OK || size <= at) return;
  const int count = size - at < WAL_GATHER_BYTES ? (int)(size - at) : WAL_GATHER_BYTES;
  if (inner_of(f)->pMethods->xRead(inner_of(f), g->bytes, count, at) != SQLITE_OK)
    return; /* whoever wants it is told */
  g->at = at;
  g->ahead = count;
}

static bool is_ahead(const struct gathered *g, int count, sqlite3_int64 at) {
  return at >= g->at && at + count <= g->at + g->ahead;
}

static int gather_read(sqlite3_file *f, void *out, int count, sqlite3_int64 at) {
  struct gathered *g = gathered_of(f);
  const int code = flush(f);
  if (code != SQLITE_OK) return code;
  const bool goes_on = at == g->read_until + FRAME_HEAD_BYTES;
  if (g->copying && goes_on && !is_ahead(g, count, at)) read_ahead(f, at);
  g->read_until = at + count;
  if (!is_ahead(g, count, at)) return inner_of(f)->pMethods->xRead(inner_of(f), out, count, at);
  memcpy(out, g->bytes + (at - g->at), (size_t)count);
  return SQLITE_OK;
}

static int gather_truncate(sqlite3_file *f, sqlite3_int64 size) {
  const int code = flush(f);
  return code == SQLITE_OK ? inner_of(f)->pMethods->xTruncate(inner_of(f), size) : code;
}

static int gather_size(sqlite3_file *f, sqlite3_int64 *size) {
  const int code = flush(f);
  return code == SQLITE_OK ? inner_of(f)->pMethods->xFileSize(inner_of(f), size) : code;
}

static int gather_close(sqlite3_file *f) {
  const int flushed = flush(f), closed = inner_of(f)->pMethods->xClose(inner_of(f));
  if (gathered_of(f)->database) gathered_of(f)->database->log = NULL;
  free(gathered_of(f)->bytes);
  return flushed == SQLITE_OK ? closed : flushed;
}

static int gather_lock(sqlite3_file *f, int how) { return inner_of(f)->pMethods->xLock(inner_of(f), how); }
static int gather_unlock(sqlite3_file *f, int how) { return inner_of(f)->pMethods->xUnlock(inner_of(f), how); }
static int gather_reserved(sqlite3_file *f, int *out) {
  return inner_of(f)->pMethods->xCheckReservedLock(inner_of(f), out);
}
static int gather_control(sqlite3_file *f, int what, void *value) {
  return inner_of(f)->pMethods->xFileControl(inner_of(f), what, value);
}
static int gather_sector(sqlite3_file *f) { return inner_of(f)->pMethods->xSectorSize(inner_of(f)); }
static int gather_device(sqlite3_file *f) { return inner_of(f)->pMethods->xDeviceCharacteristics(inner_of(f)); }

/* Version 1: what came with later ones is for the database's file, and for the index of its log. */
static const sqlite3_io_methods gather_methods = {.iVersion = 1,
                                                  .xClose = gather_close,
                                                  .xRead = gather_read,
                                                  .xWrite = gather_write,
                                                  .xTruncate = gather_truncate,
                                                  .xSync = gather_sync,
                                                  .xFileSize = gather_size,
                                                  .xLock = gather_lock,
                                                  .xUnlock = gather_unlock,
                                                  .xCheckReservedLock = gather_reserved,
                                                  .xFileControl = gather_control,
                                                  .xSectorSize = gather_sector,
                                                  .xDeviceCharacteristics = gather_device};

/* ---- the database ---- */

static struct copied *copied_of(sqlite3_file *f) { return (struct copied *)(void *)((char *)f + inner_vfs->szOsFile); }

static int pages_flush(sqlite3_file *f) {
  struct copied *c = copied_of(f);
  const int code = c->count ? c->write(f, c->bytes, c->count, c->at) : SQLITE_OK;
  c->unsynced += c->count;
  c->count = 0;
  return code;
}

static int pages_sync(sqlite3_file *f) {
  struct copied *c = copied_of(f);
  if (c->unsynced < SYNC_BYTES) return SQLITE_OK;
  c->unsynced = 0;
  return f->pMethods->xSync(f, SQLITE_SYNC_NORMAL | SQLITE_SYNC_DATAONLY);
}

/* A page that cannot be kept is written: then the checkpoint learns what becomes of it. */
static int page_write(sqlite3_file *f, const void *bytes, int count, sqlite3_int64 at) {
  struct copied *c = copied_of(f);
  if (!c->bytes || count > WAL_GATHER_BYTES) return c->write(f, bytes, count, at);
  if (at != c->at + c->count || count > WAL_GATHER_BYTES - c->count) {
    int code = pages_flush(f);
    if (code == SQLITE_OK) code = pages_sync(f);
    if (code != SQLITE_OK) return code;
    c->at = at;
  }
  memcpy(c->bytes + c->count, bytes, (size_t)count);
  c->count += count;
  return SQLITE_OK;
}

static void copy_begins(sqlite3_file *f) {
  struct copied *c = copied_of(f);
  if (!c->bytes) c->bytes = malloc(WAL_GATHER_BYTES); /* without it all goes page by page */
  c->unsynced = 0;
  if (!c->log) return;
  c->log->copying = true;
  c->log->ahead = 0;
}

/* SQLite does not ask what becomes of the last pages: it would count them as copied now, and let the log go some
 * day. */
static void copy_ends(sqlite3_file *f) {
  struct copied *c = copied_of(f);
  if (pages_flush(f) != SQLITE_OK) {
    log_error(
        "pages of the log could not be written into the database (is the disk full?); the process ends here, and its "
        "next start copies the whole log again");
    _exit(EXIT_FAILURE);
  }
  free(c->bytes);
  c->bytes = NULL;
  if (!c->log) return;
  c->log->copying = false;
  c->log->ahead = 0;
}

static int database_control(sqlite3_file *f, int what, void *value) {
  if (what == SQLITE_FCNTL_CKPT_START) copy_begins(f);
  if (what == SQLITE_FCNTL_CKPT_DONE) copy_ends(f);
  return copied_of(f)->control(f, what, value);
}

static int database_open(const char *path, sqlite3_file *f, int flags, int *got) {
  struct copied *c = copied_of(f);
  *c = (struct copied){.log = NULL};
  const int code = inner_vfs->xOpen(inner_vfs, path, f, flags, got);
  if (code != SQLITE_OK) return code;
  c->methods = *f->pMethods;
  c->write = f->pMethods->xWrite;
  c->control = f->pMethods->xFileControl;
  c->methods.xWrite = page_write;
  c->methods.xFileControl = database_control;
  f->pMethods = &c->methods;
  return code;
}

/* ---- both ---- */

static int log_open(const char *path, sqlite3_file *f, int flags, int *got) {
  struct gathered *g = gathered_of(f);
  *g = (struct gathered){.bytes = malloc(WAL_GATHER_BYTES), .read_until = -1};
  if (!g->bytes) return SQLITE_NOMEM;
  const int code = inner_vfs->xOpen(inner_vfs, path, inner_of(f), flags, got);
  if (code != SQLITE_OK) {
    free(g->bytes);
    return code;
  }
  g->base.pMethods = &gather_methods;
  sqlite3_file *database = sqlite3_database_file_object(path);
  if (database->pMethods && database->pMethods->xWrite == page_write) {
    g->database = copied_of(database);
    g->database->log = g;
  }
  return code;
}

static int gather_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *f, int flags, int *got) {
  (void)vfs;
  if (flags & SQLITE_OPEN_WAL) return log_open(path, f, flags, got);
  if (flags & SQLITE_OPEN_MAIN_DB) return database_open(path, f, flags, got);
  return inner_vfs->xOpen(inner_vfs, path, f, flags, got);
}

static pthread_once_t registered = PTHREAD_ONCE_INIT;
static sqlite3_vfs gather_vfs;

static void gather_register(void) {
  inner_vfs = sqlite3_vfs_find(NULL);
  if (!inner_vfs) return;
  gather_vfs = *inner_vfs;
  gather_vfs.pNext = NULL;
  gather_vfs.zName = "leasehold-wal-gather";
  gather_vfs.szOsFile +=
      (int)(sizeof(struct gathered) > sizeof(struct copied) ? sizeof(struct gathered) : sizeof(struct copied));
  gather_vfs.xOpen = gather_open;
  if (sqlite3_vfs_register(&gather_vfs, 0) != SQLITE_OK) inner_vfs = NULL;
}

const char *wal_gather_vfs(void) {
  pthread_once(&registered, gather_register);
  return inner_vfs ? gather_vfs.zName : NULL;
}
