/* Unpacks gzip (several members too), zstd (several frames too) and plain files into lines. */
#include "services/coordinator/run/line_file.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "common/base/buf.h"

enum { CHUNK = 256 * 1024, WINDOW_GZIP = 15, AS_GZIP = 16 };

enum packing { PLAIN, GZIP, ZSTD };

struct line_file {
  FILE *file;
  enum packing packing;
  unsigned char packed[CHUNK];
  size_t packed_len, packed_at;
  bool ended;   /* no more bytes come from the file */
  bool within;  /* a gzip member or a zstd frame has begun and not ended */
  z_stream gzip;
  ZSTD_DStream *zstd;
  struct buf window; /* unpacked, from `at` on not yet given out */
  size_t at, line_max, unpacked, unpacked_max;
  bool begun; /* a line was given out */
};

static enum rc refill(struct line_file *f, struct err *err) {
  f->packed_at = 0;
  f->packed_len = fread(f->packed, 1, sizeof f->packed, f->file);
  if (f->packed_len < sizeof f->packed) {
    if (ferror(f->file)) return err_set_errno(err, RC_IO, "the file cannot be read");
    f->ended = true;
  }
  return RC_OK;
}

/* A frame of zstd, or one to be passed over, with which files of pzstd begin. */
static bool is_zstd(const unsigned char *bytes, size_t len) {
  static const unsigned char frame[] = {0x28, 0xb5, 0x2f, 0xfd}, passed_over[] = {0x2a, 0x4d, 0x18};
  if (len < sizeof frame) return false;
  return memcmp(bytes, frame, sizeof frame) == 0 ||
         (bytes[0] >> 4 == 5 && memcmp(bytes + 1, passed_over, sizeof passed_over) == 0);
}

static enum rc begin(struct line_file *f, struct err *err) {
  static const unsigned char gzip[] = {0x1f, 0x8b};
  const enum rc rc = refill(f, err);
  if (rc != RC_OK) return rc;
  if (f->packed_len >= 4 && memcmp(f->packed, "PAR1", 4) == 0)
    return err_set(err, RC_INVALID, NULL,
                   "expected JSONL, plain or packed by gzip or zstd, got Parquet: deploy/parquet-to-jsonl converts it");
  if (f->packed_len >= sizeof gzip && memcmp(f->packed, gzip, sizeof gzip) == 0) {
    f->packing = GZIP;
    if (inflateInit2(&f->gzip, WINDOW_GZIP + AS_GZIP) != Z_OK)
      return err_set(err, RC_NO_MEMORY, NULL, "unpacking was refused memory");
  } else if (is_zstd(f->packed, f->packed_len)) {
    f->packing = ZSTD;
    f->zstd = ZSTD_createDStream();
    if (!f->zstd || ZSTD_isError(ZSTD_initDStream(f->zstd)))
      return err_set(err, RC_NO_MEMORY, NULL, "unpacking was refused memory");
  }
  return RC_OK;
}

enum rc line_file_open(struct line_file **out, const char *path, size_t line_max, size_t unpacked_max,
                       struct err *err) {
  struct line_file *f = calloc(1, sizeof *f);
  if (!f) return err_set(err, RC_NO_MEMORY, NULL, "a file's buffers were refused memory");
  f->line_max = line_max;
  f->unpacked_max = unpacked_max;
  buf_reserve(&f->window, CHUNK);
  f->file = fopen(path, "rbe");
  enum rc rc = buf_check(&f->window, err);
  if (rc == RC_OK && !f->file)
    rc = err_set_errno(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, "%s cannot be opened", path);
  if (rc == RC_OK) rc = begin(f, err);
  if (rc != RC_OK) {
    line_file_close(f);
    return rc;
  }
  *out = f;
  return RC_OK;
}

/* What comes after a member must be another one; zeros pad tapes and are passed over. */
static enum rc inflate_some(struct line_file *f, unsigned char *to, size_t room, size_t *made, struct err *err) {
  if (!f->within) {
    while (f->packed_at < f->packed_len && f->packed[f->packed_at] == 0) f->packed_at++;
    if (f->packed_at == f->packed_len) return RC_OK;
    inflateReset(&f->gzip);
    f->within = true;
  }
  f->gzip.next_in = f->packed + f->packed_at;
  f->gzip.avail_in = (uInt)(f->packed_len - f->packed_at);
  f->gzip.next_out = to;
  f->gzip.avail_out = (uInt)room;
  const int state = inflate(&f->gzip, Z_NO_FLUSH);
  f->packed_at = f->packed_len - f->gzip.avail_in;
  *made = room - f->gzip.avail_out;
  if (state == Z_STREAM_END) f->within = false;
  if (state == Z_OK || state == Z_STREAM_END || state == Z_BUF_ERROR) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "the gzip data is damaged: %s", f->gzip.msg ? f->gzip.msg : "unknown");
}

static enum rc unzstd_some(struct line_file *f, unsigned char *to, size_t room, size_t *made, struct err *err) {
  ZSTD_inBuffer in = {.src = f->packed, .size = f->packed_len, .pos = f->packed_at};
  ZSTD_outBuffer out = {.dst = to, .size = room};
  if (in.pos == in.size && !f->within) return RC_OK;
  const size_t state = ZSTD_decompressStream(f->zstd, &out, &in);
  if (ZSTD_isError(state))
    return err_set(err, RC_INVALID, NULL, "the zstd data is damaged: %s", ZSTD_getErrorName(state));
  f->packed_at = in.pos;
  f->within = state != 0;
  *made = out.pos;
  return RC_OK;
}

static enum rc copy_some(struct line_file *f, unsigned char *to, size_t room, size_t *made) {
  const size_t left = f->packed_len - f->packed_at;
  *made = left < room ? left : room;
  memcpy(to, f->packed + f->packed_at, *made);
  f->packed_at += *made;
  return RC_OK;
}

/* Puts more into the window; *more is false at the file's end. */
static enum rc fill(struct line_file *f, bool *more, struct err *err) {
  if (f->at > 0) {
    f->window.len -= f->at;
    memmove(f->window.data, f->window.data + f->at, f->window.len);
    f->at = 0;
  }
  buf_reserve(&f->window, CHUNK);
  enum rc rc = buf_check(&f->window, err);
  for (*more = true; rc == RC_OK;) {
    unsigned char *to = (unsigned char *)f->window.data + f->window.len;
    size_t made = 0;
    if (f->packing == GZIP) rc = inflate_some(f, to, CHUNK, &made, err);
    if (f->packing == ZSTD) rc = unzstd_some(f, to, CHUNK, &made, err);
    if (f->packing == PLAIN) rc = copy_some(f, to, CHUNK, &made);
    f->window.len += made;
    f->unpacked += made;
    if (rc == RC_OK && f->unpacked > f->unpacked_max)
      return err_set(err, RC_TOO_LARGE, NULL, "expected at most %zu bytes, unpacked; there are more", f->unpacked_max);
    if (rc != RC_OK || made > 0) break;
    if (f->packed_at < f->packed_len) continue; /* a member's or frame's end */
    if (f->ended) {
      *more = false;
      if (f->within) rc = err_set(err, RC_INVALID, NULL, "the packed data ends too early: the file was cut off");
      break;
    }
    rc = refill(f, err);
  }
  return rc;
}

/* Editors put a byte order mark before a file's first line; it is no part of it.  A line that is too long stays so: it
 * is not there as a whole. */
static void pass_mark(struct line_file *f, const char **text, size_t *len) {
  static const unsigned char mark[] = {0xef, 0xbb, 0xbf};
  if (!f->begun && *len >= sizeof mark && *len <= f->line_max && memcmp(*text, mark, sizeof mark) == 0) {
    *text += sizeof mark;
    *len -= sizeof mark;
  }
  f->begun = true;
}

enum rc line_file_next(struct line_file *f, const char **text, size_t *len, struct err *err) {
  size_t seen = 0, passed = 0; /* passed: bytes of a line that is too long, which the window no longer holds */
  *text = NULL;
  for (;;) {
    const char *from = f->window.data + f->at,
               *newline = f->window.len > f->at + seen ? memchr(from + seen, '\n', f->window.len - f->at - seen) : NULL;
    bool more = true;
    if (!newline) {
      seen = f->window.len - f->at;
      if (seen > f->line_max + 1) {
        passed += seen - f->line_max - 1;
        f->window.len = f->at + f->line_max + 1;
        seen = f->line_max + 1;
      }
      const enum rc rc = fill(f, &more, err);
      if (rc != RC_OK) return rc;
      if (more) continue;
    }
    from = f->window.data + f->at;
    if (!newline && f->window.len == f->at) return RC_OK;
    *text = from;
    *len = (newline ? (size_t)(newline - from) : f->window.len - f->at) + passed;
    f->at = newline ? (size_t)(newline - f->window.data) + 1 : f->window.len;
    pass_mark(f, text, len);
    return RC_OK;
  }
}

void line_file_close(struct line_file *f) {
  if (!f) return;
  if (f->file) fclose(f->file);
  if (f->packing == GZIP) inflateEnd(&f->gzip);
  ZSTD_freeDStream(f->zstd);
  buf_free(&f->window);
  free(f);
}
