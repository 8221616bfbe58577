/* A growable byte buffer with a ceiling.  Owner frees with buf_free.  Not thread-safe. */
#ifndef LEASEHOLD_BASE_BUF_H
#define LEASEHOLD_BASE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/base/rc.h"

struct buf {
  char *data; /* NUL-terminated at data[len] whenever data is not NULL */
  size_t len;
  size_t cap;
  bool failed; /* an append ran out of memory; later appends are ignored, buf_check reports it */
  bool fixed;  /* data is somebody else's memory of cap bytes: it never grows, and buf_free lets it go */
};

#define BUF_INIT \
  { 0 }

/* Appends never fail visibly: writers check once at the end with buf_check. */
void buf_append(struct buf *b, const void *bytes, size_t len);
void buf_puts(struct buf *b, const char *text);
void buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));
void buf_vprintf(struct buf *b, const char *format, va_list args) __attribute__((format(printf, 2, 0)));
/* Makes room for `extra` more bytes; sets failed when there is none. */
void buf_reserve(struct buf *b, size_t extra);
/* RC_NO_MEMORY when an append failed, else RC_OK. */
enum rc buf_check(const struct buf *b, struct err *err);
/* Empties without giving memory back. */
void buf_clear(struct buf *b);
void buf_free(struct buf *b);
/* Hands the memory over to the caller (free() it); the buffer is empty afterwards. */
char *buf_take(struct buf *b, size_t *len);

#endif
