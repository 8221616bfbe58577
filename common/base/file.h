/* Files: whole reads with a ceiling, atomic durable writes. */
#ifndef LEASEHOLD_BASE_FILE_H
#define LEASEHOLD_BASE_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/rc.h"

/* A path from a printf format into out[LIMIT_PATH_MAX]; RC_TOO_LARGE when it does not fit. */
enum rc path_format(char *out, struct err *err, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Reads the whole file into *out (appended).  RC_NOT_FOUND, RC_TOO_LARGE above max_bytes, RC_IO. */
enum rc file_read(struct buf *out, const char *path, size_t max_bytes, struct err *err);
/* Writes path, neither atomically nor durably: for a folder that has not got its name yet; see file_sync_folder. */
enum rc file_write(const char *path, const void *bytes, size_t len, struct err *err);
/* Writes path.tmp, fsyncs it, renames it over path, fsyncs the folder: either the old file or the whole new one. */
enum rc file_write_atomic(const char *path, const void *bytes, size_t len, struct err *err);
/* mkdir -p, mode 0755. */
enum rc file_make_dirs(const char *path, struct err *err);
bool file_exists(const char *path);
/* RC_INVALID, with a word on what to do, where the bytes of a file are what `git clone` leaves in the place of a large
 * one that lies in Git LFS. */
enum rc file_refuse_pointer(const void *bytes, size_t len, struct err *err);
/* fsync of a file that a library has written. */
enum rc file_sync(const char *path, struct err *err);
/* fsync of a folder, after a rename inside it. */
enum rc file_sync_dir(const char *path, struct err *err);
/* Makes the files of a folder durable, and their names.  All are on their way to the disk before the first is waited
 * for, which takes a fraction of an fsync after every write.  Folders in it are not gone into. */
enum rc file_sync_folder(const char *path, struct err *err);
/* rename(2) of a folder or file, then fsync of the parent. */
enum rc file_rename_durable(const char *from, const char *to, struct err *err);
/* How fast the disk of a folder is, measured now: some megabytes are written and synced, then small blocks, one by one,
 * as a ledger does.  Takes up to some seconds, and leaves nothing behind. */
struct disk_speed {
  double write_bytes_per_s;
  int64_t sync_us_median, sync_us_most; /* of a block of 4 KiB */
};
enum rc file_disk_speed(struct disk_speed *out, const char *dir, struct err *err);
/* rm -rf of a folder that we made; refuses "/" and "". */
enum rc file_remove_tree(const char *path, struct err *err);

#endif
