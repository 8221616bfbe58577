/* Grows a byte buffer by doubling, with one sticky failure flag instead of a check at every append.
 *
 * Sizes stay below PTRDIFF_MAX; an append that would cross it counts as refused memory. */
#include "common/base/buf.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BUF_FIRST_CAP = 256 };

void buf_reserve(struct buf *b, size_t extra) {
  if (b->failed) return;
  if (extra >= (size_t)PTRDIFF_MAX - b->len) {
    b->failed = true;
    return;
  }
  const size_t need = b->len + extra + 1; /* the NUL */
  if (need <= b->cap) return;
  if (b->fixed) {
    b->failed = true;
    return;
  }
  size_t cap = b->cap ? b->cap : BUF_FIRST_CAP;
  while (cap < need) cap = cap > (size_t)PTRDIFF_MAX / 2 ? need : cap * 2;
  char *data = realloc(b->data, cap);
  if (!data && cap > need) { /* doubling was refused: the exact size may still fit */
    cap = need;
    data = realloc(b->data, cap);
  }
  if (!data) {
    b->failed = true;
    return;
  }
  b->data = data;
  b->cap = cap;
  b->data[b->len] = '\0';
}

void buf_append(struct buf *b, const void *bytes, size_t len) {
  if (b->len + len >= b->cap) buf_reserve(b, len);
  if (b->failed) return;
  if (len) memcpy(b->data + b->len, bytes, len);
  b->len += len;
  b->data[b->len] = '\0';
}

void buf_puts(struct buf *b, const char *text) { buf_append(b, text, strlen(text)); }

void buf_vprintf(struct buf *b, const char *format, va_list args) {
  if (b->failed) return;
  va_list again;
  va_copy(again, args);
  const size_t spare = b->cap - b->len;
  const int n = vsnprintf(b->data ? b->data + b->len : NULL, spare, format, args);
  if (n < 0) {
    b->failed = true;
  } else if ((size_t)n < spare) {
    b->len += (size_t)n;
  } else {
    if (b->data) b->data[b->len] = '\0';
    buf_reserve(b, (size_t)n);
    if (!b->failed) {
      vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
      b->len += (size_t)n;
    }
  }
  va_end(again);
}

void buf_printf(struct buf *b, const char *format, ...) {
  va_list args;
  va_start(args, format);
  buf_vprintf(b, format, args);
  va_end(args);
}

enum rc buf_check(const struct buf *b, struct err *err) {
  if (!b->failed) return RC_OK;
  return err_set(err, RC_NO_MEMORY, NULL, "a buffer of %zu bytes could not grow: memory was refused", b->len);
}

void buf_clear(struct buf *b) {
  b->len = 0;
  b->failed = false;
  if (b->data) b->data[0] = '\0';
}

void buf_free(struct buf *b) {
  if (!b->fixed) free(b->data);
  *b = (struct buf)BUF_INIT;
}

char *buf_take(struct buf *b, size_t *len) {
  char *data = b->data;
  if (len) *len = b->len;
  *b = (struct buf)BUF_INIT;
  return data;
}
