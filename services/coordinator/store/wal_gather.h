/* A VFS of SQLite that gathers what is written to the log, and what is copied from it into the database.
 *
 * SQLite writes every page of a transaction to its write-ahead log by two calls, a header of 24 bytes and the page, one
 * right behind the other.  Here they are gathered and reach the file together: when SQLite syncs the log, which it does
 * before a commit is known to anybody, or before anything else is done with the file.  So a commit costs a few writes
 * in place of thousands, and what is on disk when it returns is the same.
 *
 *   SQLite: write, write, ... sync --> here: one write, then the operating system's sync
 *
 * A checkpoint reads and writes page by page.  Here it reads far ahead where the log lies in the order of pages, and
 * pages that follow each other reach the database together, the last ones before SQLite counts any as copied.  A page
 * that cannot be written fails the checkpoint, which is tried again later.  SQLite would not hear of a failure of the
 * last ones: then the process ends at once, before any is counted, and the next start finds the log whole.
 *
 * Sound only with synchronous=FULL: a commit without a sync would be seen by readers before its pages are in the file.
 * store.c opens the writer's connection with it and the one that copies; readers only read.  A connection's thread is
 * its only caller.  Memory: WAL_GATHER_BYTES for each open log, and as much again while it is copied. */
#ifndef LEASEHOLD_COORDINATOR_STORE_WAL_GATHER_H
#define LEASEHOLD_COORDINATOR_STORE_WAL_GATHER_H

/* The VFS's name for sqlite3_open_v2, registered at the first call; NULL: SQLite refused it, its own must do. */
const char *wal_gather_vfs(void);

#endif
