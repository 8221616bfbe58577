/* Reads a text file line by line, unpacking gzip and zstd on the way.  A file's first bytes say what it is, not its
 * name.
 *
 *   file --inflate | ZSTD_decompressStream | as it is--> a window of a few lines --> one line at a time
 *
 * Called by dataset.c on the thread that loads or checks a dataset.  Memory is bounded by the longest line and the
 * packer's window, whatever the file's size; packed data may be hostile, so lines, window and sum are bounded. */
#ifndef LEASEHOLD_COORDINATOR_RUN_LINE_FILE_H
#define LEASEHOLD_COORDINATOR_RUN_LINE_FILE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/rc.h"

struct line_file;

/* unpacked_max: of all lines together.  RC_NOT_FOUND, RC_IO, RC_NO_MEMORY; RC_INVALID for a Parquet file, whose
 * converter the message names. */
enum rc line_file_open(struct line_file **out, const char *path, size_t line_max, size_t unpacked_max,
                       struct err *err);
/* The next line without its newline, valid until the next call; *text NULL at the end.  A line beyond line_max is still
 * a line: *len is its length, but *text does not hold all of it.  RC_INVALID: the packed data is damaged
 * or ends too early; RC_TOO_LARGE: more than unpacked_max; RC_IO. */
enum rc line_file_next(struct line_file *f, const char **text, size_t *len, struct err *err);
void line_file_close(struct line_file *f); /* NULL is fine */

#endif
