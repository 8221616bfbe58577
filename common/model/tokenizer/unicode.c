/* Checks UTF-8 and normalizes text to form C.
 *
 * Normalization is utf8proc's data with a sort of our own: utf8proc orders combining marks by swapping neighbours,
 * which takes quadratic time over a long run of them, and prompts come from strangers.  So: decompose each code
 * point, sort each run of marks by combining class (stable, by counting), compose, encode. Stateless; any thread.
 *
 * The library that trained the tokenizers has older Unicode tables: combining marks assigned since Unicode 10
 * (U+1DF6) may be ordered differently there. White_Space is spelled out here because libraries disagree about U+180E,
 * which stopped being white space in Unicode 6.3. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "common/model/tokenizer/tokenizer_state.h"

enum {
  FIRST_CHANGING_BYTE = 0xCC, /* code points below U+0300 are in normal form C unless something above follows */
  DECOMPOSED_MAX = 18,        /* code points that one code point may become */
  CLASSES = 256
};

size_t text_code(uint32_t *code, const char *s, size_t len) {
  utf8proc_int32_t found;
  if (len > 4) len = 4;
  const utf8proc_ssize_t n = utf8proc_iterate((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)len, &found);
  if (n <= 0) return 0;
  *code = (uint32_t)found;
  return (size_t)n;
}

bool text_is_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

enum rc text_check(const char *text, size_t len, struct err *err) {
  for (size_t i = 0; i < len;) {
    uint32_t code;
    const size_t n = (uint8_t)text[i] < 0x80 ? 1 : text_code(&code, text + i, len - i);
    if (n == 0)
      return err_set(err, RC_INVALID, NULL, "expected UTF-8 text, got byte 0x%02x at offset %zu", (uint8_t)text[i], i);
    i += n;
  }
  return RC_OK;
}

bool text_may_change(const char *text, size_t len) {
  for (size_t i = 0; i < len; i++)
    if ((uint8_t)text[i] >= FIRST_CHANGING_BYTE) return true;
  return false;
}

static int class_of(utf8proc_int32_t code) { return utf8proc_get_property(code)->combining_class & (CLASSES - 1); }

/* Sorts codes[0..n) by combining class, keeping the order within a class.  spare: n codes. */
static void sort_marks(utf8proc_int32_t *codes, utf8proc_int32_t *spare, size_t n) {
  size_t place[CLASSES] = {0}, next = 0;
  for (size_t i = 0; i < n; i++) place[class_of(codes[i])]++;
  for (int c = 0; c < CLASSES; c++) {
    const size_t count = place[c];
    place[c] = next;
    next += count;
  }
  for (size_t i = 0; i < n; i++) spare[place[class_of(codes[i])]++] = codes[i];
  memcpy(codes, spare, n * sizeof *codes);
}

/* Sorts every run of code points whose class is not 0. */
static enum rc order_marks(utf8proc_int32_t *codes, size_t count, struct err *err) {
  utf8proc_int32_t *spare = NULL;
  size_t spare_cap = 0;
  for (size_t i = 0, run; i < count; i += run + 1) {
    for (run = 0; i + run < count && class_of(codes[i + run]) != 0; run++) {}
    if (run < 2) continue;
    if (run > spare_cap) {
      free(spare);
      spare_cap = run * 2;
      spare = malloc(spare_cap * sizeof *spare);
      if (!spare) return err_set(err, RC_NO_MEMORY, NULL, "%zu combining marks to sort were refused memory", run);
    }
    sort_marks(codes + i, spare, run);
  }
  free(spare);
  return RC_OK;
}

/* The canonical decomposition, marks not yet in order, into memory that the caller frees. */
static enum rc decompose(utf8proc_int32_t **out, size_t *out_count, const char *text, size_t len, struct err *err) {
  size_t cap = len + DECOMPOSED_MAX, count = 0;
  utf8proc_int32_t *codes = malloc(cap * sizeof *codes);
  for (size_t i = 0; codes && i < len;) {
    uint32_t code;
    const size_t n = text_code(&code, text + i, len - i);
    if (cap - count < DECOMPOSED_MAX) {
      cap *= 2;
      utf8proc_int32_t *more = realloc(codes, cap * sizeof *codes);
      if (!more) free(codes);
      if (!(codes = more)) break;
    }
    int boundary = 0;
    const utf8proc_ssize_t made = n == 0
                                      ? -1
                                      : utf8proc_decompose_char((utf8proc_int32_t)code, codes + count, DECOMPOSED_MAX,
                                                                UTF8PROC_STABLE | UTF8PROC_COMPOSE, &boundary);
    if (made < 0 || made > DECOMPOSED_MAX) {
      free(codes);
      return err_set(err, RC_INTERNAL, NULL, "expected text to decompose, byte %zu does not", i);
    }
    count += (size_t)made;
    i += n;
  }
  if (!codes)
    return err_set(err, RC_NO_MEMORY, NULL, "normalizing %zu bytes was refused %zu bytes", len, cap * sizeof *codes);
  *out = codes;
  *out_count = count;
  return RC_OK;
}

enum rc text_normalize(struct buf *out, const char *text, size_t len, struct err *err) {
  utf8proc_int32_t *codes = NULL;
  size_t count = 0;
  enum rc rc = decompose(&codes, &count, text, len, err);
  if (rc == RC_OK) rc = order_marks(codes, count, err);
  if (rc == RC_OK) {
    const utf8proc_ssize_t composed =
        utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)count, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (composed < 0)
      rc = err_set(err, RC_INTERNAL, NULL, "expected %zu code points to compose: %s", count, utf8proc_errmsg(composed));
    buf_reserve(out, len);
    for (utf8proc_ssize_t i = 0; i < composed; i++) {
      utf8proc_uint8_t bytes[4];
      buf_append(out, bytes, (size_t)utf8proc_encode_char(codes[i], bytes));
    }
    if (rc == RC_OK) rc = buf_check(out, err);
  }
  free(codes);
  return rc;
}
