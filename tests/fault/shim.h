/* The shim between a service and libc: it is preloaded (LD_PRELOAD), sees the calls that a fault may strike, and
 * strikes.
 *
 *   calls_files.c  calls_memory.c  calls_network.c  calls_sqlite.c      the calls, under libc's and SQLite's names
 *        │ shim_enter(call) before, shim_leave(act) after
 *        ▼
 *   shim.c    what the environment asks for; a site is the hash of a call's stack; records sites, or strikes at one
 *   disk.c    writes what is done to the files under one folder to a log, from which disk.py makes what a power loss leaves
 *
 * The environment, which run.py's plan.py fills:
 *   SHIM_RECORD=FILE     append each site when it is first seen, and its count at the end
 *   SHIM_CALLS=a,b       which calls are recorded (names below); all without it
 *   SHIM_SITE=HEX, SHIM_CALL=NAME, SHIM_HIT=N   strike there, when it is come to for the N-th time
 *   SHIM_ACT=kill-before | kill-after | kill-after-commit | fail | full | jump
 *   SHIM_ERROR=N         the errno or SQLite code of `fail`; the milliseconds of `jump`
 *   SHIM_STRUCK=FILE     made when the fault strikes; a process that finds it is left alone
 *   SHIM_FREED=FILE      `full`: no byte can be written from the strike until this file is there
 *   SHIM_SYNC_MS=N       every fsync takes so long
 *   SHIM_ROOT=FOLDER, SHIM_DISK=FILE   the folder that disk.c watches, and its log
 *
 * Any thread calls in here, also from within malloc: nothing here allocates, and what the shim itself calls is not seen
 * again. */
#ifndef LEASEHOLD_FAULT_SHIM_H
#define LEASEHOLD_FAULT_SHIM_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

enum shim_call {
  CALL_OPEN,
  CALL_WRITE,
  CALL_SYNC,
  CALL_RENAME,
  CALL_REMOVE,
  CALL_MKDIR,
  CALL_TRUNCATE,
  CALL_CHANGE,   /* a step of a statement that changes the database: a state transition */
  CALL_COMMIT,   /* COMMIT */
  CALL_QUERY,    /* a step of any other statement */
  CALL_MEMORY,   /* malloc, calloc, realloc, aligned memory */
  CALL_THREAD,   /* pthread_create */
  CALL_SOCKET,
  CALL_CONNECT,
  CALL_ACCEPT,
  CALL_SEND,
  CALL_RECEIVE,
  CALL_LOG,      /* a line to standard output or error: what the service says of its state */
  CALL_HANDOVER, /* a condition is signalled: a thread hands state to another one */
  CALL_CLOCK,    /* the wall clock is read */
  CALL_COUNT
};

enum shim_act { ACT_NONE, ACT_KILL_BEFORE, ACT_KILL_AFTER, ACT_KILL_AFTER_COMMIT, ACT_FAIL, ACT_FULL, ACT_JUMP };

/* libc's own function of that name; slot keeps it. */
void *shim_real(void **slot, const char *name);
#define REAL(name) ((__typeof__(&name))shim_real(&real_##name, #name))

/* Before a call.  ACT_FAIL: it must not be made and fails with *error.  Whatever comes back goes to shim_leave. */
enum shim_act shim_enter(enum shim_call call, int *error);
void shim_leave(enum shim_act act);
/* After a COMMIT that went well: dies here if a change that was struck is in it. */
void shim_committed(void);
/* Has the wall clock been made to jump?  In milliseconds. */
long long shim_clock_offset_ms(void);
/* Is the device full at this moment? */
bool shim_disk_full(void);
void shim_sync_delay(void);

/* The log of the watched folder.  disk_lock is held over a call and its entry, so that the log has the calls' order. */
bool disk_watches(const char *path);
bool disk_has(int fd);
void disk_lock(void);
void disk_unlock(void);
void disk_opened(int fd, const char *path, bool created, bool truncated);
void disk_closed(int fd);
void disk_wrote(int fd, const void *bytes, size_t length, off_t at);
void disk_truncated(int fd, off_t size);
void disk_synced(int fd);
void disk_renamed(const char *from, const char *to);
void disk_removed(const char *path);
void disk_made(const char *path);
void disk_mark(const char *what);

#endif
