/* Unicode for the tokenizer: checks UTF-8, brings text into normal forms and lower case, and classifies characters.
 *
 * Normalization is utf8proc's data with a sort of our own: utf8proc orders combining marks by swapping neighbours,
 * which takes quadratic time over a long run of them, and prompts come from strangers.  So: decompose each code
 * point, sort each run of marks by combining class (stable, by counting), compose, encode. Stateless; any thread.
 *
 * The tokenizers library has older tables for that: what was assigned since Unicode 9 is an atom to it, which is not
 * decomposed, not ordered, and combines with nothing (unicode_tables.h lists these).  White_Space is spelled out here
 * because libraries disagree about U+180E, which stopped being white space in Unicode 6.3. */
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "common/model/tokenizer/tokenizer_state.h"
#include "common/model/tokenizer/unicode_tables.h"

#define COUNT(table) (sizeof(table) / sizeof(table)[0])

enum {
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

/* Code points below U+0300 are in form C unless something above follows; below U+00C0 they have no canonical
 * decomposition, below U+00A0 none at all. */
bool text_may_change(const char *text, size_t len, struct normal_form form) {
  const uint8_t lead = form.compatible ? 0xC2 : form.compose ? 0xCC : 0xC3;
  for (size_t i = 0; i < len; i++)
    if ((uint8_t)text[i] >= lead) return true;
  return false;
}

static bool in_ranges(const struct code_range *ranges, size_t count, uint32_t code) {
  size_t low = 0, high = count;
  while (low < high) {
    const size_t middle = low + (high - low) / 2;
    if (code > ranges[middle].last)
      low = middle + 1;
    else
      high = middle;
  }
  return low < count && code >= ranges[low].first;
}

static bool is_atom(utf8proc_int32_t code) { return in_ranges(normal_atoms, COUNT(normal_atoms), (uint32_t)code); }

bool text_is_mark(uint32_t code) {
  if (in_ranges(older_marks, COUNT(older_marks), code)) return true;
  const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)code);
  return (c == UTF8PROC_CATEGORY_MN || c == UTF8PROC_CATEGORY_MC || c == UTF8PROC_CATEGORY_ME) &&
         !in_ranges(newer_marks, COUNT(newer_marks), code);
}

bool text_is_word(uint32_t code) {
  static const struct code_range circled[] = {
      {0x24B6, 0x24E9}, {0x1F130, 0x1F149}, {0x1F150, 0x1F169}, {0x1F170, 0x1F189}};
  switch (utf8proc_category((utf8proc_int32_t)code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC: return true;
    default: break;
  }
  return in_ranges(circled, COUNT(circled), code) || in_ranges(newer_words, COUNT(newer_words), code) ||
         in_ranges(rust_words, COUNT(rust_words), code);
}

void text_put(struct buf *out, uint32_t code) {
  utf8proc_uint8_t bytes[4];
  buf_append(out, bytes, (size_t)utf8proc_encode_char((utf8proc_int32_t)code, bytes));
}

void text_put_lower(struct buf *out, uint32_t code) {
  if (code < 0x80) {
    const char c = (char)(code >= 'A' && code <= 'Z' ? code + 32 : code);
    buf_append(out, &c, 1);
    return;
  }
  for (size_t i = 0; i < COUNT(newer_lowers); i++) {
    if (code < newer_lowers[i].first || code > newer_lowers[i].last) continue;
    text_put(out, (uint32_t)((int64_t)code + newer_lowers[i].offset));
    return;
  }
  text_put(out, (uint32_t)utf8proc_tolower((utf8proc_int32_t)code));
  if (code == 0x130) text_put(out, 0x307); /* the one letter that becomes two */
}

static int class_of(utf8proc_int32_t code) {
  return is_atom(code) ? 0 : utf8proc_get_property(code)->combining_class & (CLASSES - 1);
}

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

/* The decomposition, marks not yet in order, into memory that the caller frees. */
static enum rc decompose(utf8proc_int32_t **out, size_t *out_count, const char *text, size_t len, bool compatible,
                         struct err *err) {
  const utf8proc_option_t options =
      UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (compatible ? UTF8PROC_COMPAT : (utf8proc_option_t)0);
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
    utf8proc_ssize_t made = -1;
    if (n > 0 && is_atom((utf8proc_int32_t)code)) {
      codes[count] = (utf8proc_int32_t)code;
      made = 1;
    } else if (n > 0) {
      made = utf8proc_decompose_char((utf8proc_int32_t)code, codes + count, DECOMPOSED_MAX, options, &boundary);
    }
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

/* Composes codes between two atoms and appends them. */
static enum rc put_composed(struct buf *out, utf8proc_int32_t *codes, size_t count, bool compose, struct err *err) {
  utf8proc_ssize_t left = (utf8proc_ssize_t)count;
  if (compose && count > 1) left = utf8proc_normalize_utf32(codes, left, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
  if (left < 0)
    return err_set(err, RC_INTERNAL, NULL, "expected %zu code points to compose: %s", count, utf8proc_errmsg(left));
  for (utf8proc_ssize_t i = 0; i < left; i++) text_put(out, (uint32_t)codes[i]);
  return RC_OK;
}

enum rc text_normalize(struct buf *out, const char *text, size_t len, struct normal_form form, struct err *err) {
  utf8proc_int32_t *codes = NULL;
  size_t count = 0;
  enum rc rc = decompose(&codes, &count, text, len, form.compatible, err);
  if (rc == RC_OK) rc = order_marks(codes, count, err);
  if (rc == RC_OK) buf_reserve(out, len);
  for (size_t i = 0; i < count && rc == RC_OK;) {
    size_t run = 0;
    while (i + run < count && !is_atom(codes[i + run])) run++;
    rc = put_composed(out, codes + i, run, form.compose, err);
    i += run;
    if (i < count && rc == RC_OK) text_put(out, (uint32_t)codes[i++]);
  }
  if (rc == RC_OK) rc = buf_check(out, err);
  free(codes);
  return rc;
}
