/* Gathers consecutive writes to SQLite's log into one: see wal_gather.h.  All else is done by SQLite's own VFS, which
 * opens every other file itself. */
#include "services/coordinator/store/wal_gather.h"

#include <pthread.h>
#include <sqlite3.h>
#include <stdlib.h>
#include <string.h>

enum { WAL_GATHER_BYTES = (1 << 17) - 1 }; /* SQLite's unix VFS takes fewer than 2^17 bytes for one write */

/* Followed in memory by the file of SQLite's own VFS. */
struct gathered {
  sqlite3_file base;
  char *bytes; /* [WAL_GATHER_BYTES] */
  int count;
  sqlite3_int64 at; /* where they belong in the file */
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

static int gather_read(sqlite3_file *f, void *out, int count, sqlite3_int64 at) {
  const int code = flush(f);
  return code == SQLITE_OK ? inner_of(f)->pMethods->xRead(inner_of(f), out, count, at) : code;
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

static int gather_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *f, int flags, int *got) {
  struct gathered *g = gathered_of(f);
  (void)vfs;
  if (!(flags & SQLITE_OPEN_WAL)) return inner_vfs->xOpen(inner_vfs, path, f, flags, got);
  *g = (struct gathered){.bytes = malloc(WAL_GATHER_BYTES)};
  if (!g->bytes) return SQLITE_NOMEM;
  const int code = inner_vfs->xOpen(inner_vfs, path, inner_of(f), flags, got);
  if (code == SQLITE_OK)
    g->base.pMethods = &gather_methods;
  else
    free(g->bytes);
  return code;
}

static pthread_once_t registered = PTHREAD_ONCE_INIT;
static sqlite3_vfs gather_vfs;

static void gather_register(void) {
  inner_vfs = sqlite3_vfs_find(NULL);
  if (!inner_vfs) return;
  gather_vfs = *inner_vfs;
  gather_vfs.pNext = NULL;
  gather_vfs.zName = "leasehold-wal-gather";
  gather_vfs.szOsFile += (int)sizeof(struct gathered);
  gather_vfs.xOpen = gather_open;
  if (sqlite3_vfs_register(&gather_vfs, 0) != SQLITE_OK) inner_vfs = NULL;
}

const char *wal_gather_vfs(void) {
  pthread_once(&registered, gather_register);
  return inner_vfs ? gather_vfs.zName : NULL;
}
