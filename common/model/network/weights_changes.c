/* Encodes what differs between two versions of a tensor, and decodes it.
 *
 * Encoding compares 64 values at a time into a word of the mask, and writes codes and extras for those that differ;
 * places become gaps at the end, where that is less. */
#include "common/model/network/weights_changes.h"

#include <emmintrin.h>
#include <string.h>

enum {
  BLOCK = 64,
  GAP_LONG = 255,
  MAGIC_BYTES = 8,
  RECORD_BYTES = 32,
  FIXED_BYTES = MAGIC_BYTES + 2 * DIGEST_BYTES + 8
};
enum { CODE_UP, CODE_DOWN, CODE_BYTE, CODE_TWO, CODES_PENDING = 32 };
enum { DENSE_SEEN = 1 << 16, DENSE_WHOLE = 5, DENSE_PART = 2 };

static const char MAGIC[MAGIC_BYTES + 1] = "LHCHANGE";

static size_t mask_bytes(size_t count) { return (count + BLOCK - 1) / BLOCK * sizeof(uint64_t); }
static size_t code_bytes(size_t changes) { return (changes + 3) / 4; }

/* --- encoding --- */

void changes_encode_begin(struct changes_encoder *e, const void *base, const void *now, size_t count, void *out) {
  *e = (struct changes_encoder){.base = base, .now = now, .count = count, .out = out};
  /* mask | codes | extras, while it is not known how many there will be */
  e->too_many = mask_bytes(count) + code_bytes(count) > count * sizeof *e->now / CHANGES_PART;
}

static __m128i load8(const uint16_t *x) { return _mm_loadu_si128((const __m128i *)(const void *)x); }

static uint64_t differing(const uint16_t *a, const uint16_t *b, size_t count) {
  uint64_t word = 0;
  if (count < BLOCK) {
    for (size_t i = 0; i < count; i++) {
      uint16_t x, y;
      memcpy(&x, a + i, sizeof x);
      memcpy(&y, b + i, sizeof y);
      word |= (uint64_t)(x != y) << i;
    }
    return word;
  }
  for (int i = 0; i < BLOCK; i += 16) {
    const __m128i low = _mm_cmpeq_epi16(load8(a + i), load8(b + i));
    const __m128i high = _mm_cmpeq_epi16(load8(a + i + 8), load8(b + i + 8));
    const unsigned equal = (unsigned)_mm_movemask_epi8(_mm_packs_epi16(low, high));
    word |= (uint64_t)(~equal & 0xFFFF) << i;
  }
  return word;
}

/* The changes of one block.  Extras have room for all of it. */
static void encode_block(struct changes_encoder *e, uint64_t word, unsigned char *codes, unsigned char *extras) {
  const uint16_t *base = e->base + e->done, *now = e->now + e->done;
  size_t k = e->changes, x = e->extra_bytes;
  uint64_t pending = e->codes;
  for (; word; word &= word - 1) {
    const int i = __builtin_ctzll(word);
    uint16_t was, is;
    memcpy(&was, base + i, sizeof was);
    memcpy(&is, now + i, sizeof is);
    const uint16_t added = (uint16_t)(is - was);
    uint64_t code = added >> 15; /* by a unit: UP or DOWN */
    if ((uint16_t)(added + 1) & 0xFFFD) {
      code = (int16_t)added == (int8_t)added ? CODE_BYTE : CODE_TWO;
      extras[x++] = (unsigned char)added;
      if (code == CODE_TWO) extras[x++] = (unsigned char)(added >> 8);
    }
    pending |= code << k % CODES_PENDING * 2;
    if (++k % CODES_PENDING > 0) continue;
    memcpy(codes + (k - CODES_PENDING) / 4, &pending, sizeof pending);
    pending = 0;
  }
  e->codes = pending;
  e->changes = k;
  e->extra_bytes = x;
}

/* Do so many values differ that finding and encoding them would take longer than sending all of them? */
static bool is_dense(const struct changes_encoder *e) {
  return e->done >= DENSE_SEEN && e->changes > e->done / DENSE_WHOLE * DENSE_PART;
}

void changes_encode(struct changes_encoder *e, size_t ready) {
  unsigned char *codes = e->out + mask_bytes(e->count), *extras = codes + code_bytes(e->count);
  const size_t room = e->count * sizeof *e->now / CHANGES_PART;
  const size_t extra_room = e->too_many ? 0 : room - (size_t)(extras - e->out);
  while (e->done < ready && !(e->too_many && e->changes > 0)) {
    const size_t left = ready - e->done, count = left < BLOCK ? left : BLOCK;
    if (count < BLOCK && ready < e->count) return; /* when the block is whole */
    const uint64_t word = differing(e->base + e->done, e->now + e->done, count);
    if (e->too_many) {
      e->changes += word != 0;
    } else {
      memcpy(e->out + e->done / BLOCK * sizeof word, &word, sizeof word);
      if (e->extra_bytes + 2 * BLOCK > extra_room &&
          e->extra_bytes + 2 * (size_t)__builtin_popcountll(word) > extra_room) {
        e->too_many = true;
        e->changes++;
        return;
      }
      encode_block(e, word, codes, extras);
    }
    e->done += count;
  }
  e->too_many |= is_dense(e);
}

/* Mask -> gaps at `to`.  0 when they take `room` bytes or more. */
static size_t write_gaps(const struct changes_encoder *e, unsigned char *to, size_t room) {
  size_t used = 0, next = 0; /* next: the value behind the last change */
  for (size_t at = 0; at < e->count; at += BLOCK) {
    uint64_t word;
    memcpy(&word, e->out + at / BLOCK * sizeof word, sizeof word);
    for (; word; word &= word - 1) {
      const size_t i = at + (size_t)__builtin_ctzll(word), gap = i - next;
      if (used + gap / GAP_LONG + 1 >= room) return 0;
      memset(to + used, GAP_LONG, gap / GAP_LONG);
      used += gap / GAP_LONG;
      to[used++] = (unsigned char)(gap % GAP_LONG);
      next = i + 1;
    }
  }
  return used;
}

struct change_record changes_encode_end(struct changes_encoder *e) {
  const size_t mask = mask_bytes(e->count), codes_at = mask, extras_at = mask + code_bytes(e->count);
  struct change_record r = {.form = CHANGE_NONE};
  if (e->changes == 0) return r;
  if (e->too_many) return (struct change_record){.form = CHANGE_WHOLE, .bytes = e->count * sizeof *e->now};
  const size_t pending = e->changes % CODES_PENDING;
  memcpy(e->out + codes_at + (e->changes - pending) / 4, &e->codes, code_bytes(pending));
  r = (struct change_record){.form = CHANGE_MASK, .changes = e->changes, .places = mask};
  unsigned char *gaps = e->out + extras_at + e->extra_bytes;
  const size_t gap_bytes = e->changes < mask ? write_gaps(e, gaps, mask) : 0;
  if (gap_bytes > 0) {
    r.form = CHANGE_GAPS;
    r.places = gap_bytes;
    memcpy(e->out, gaps, gap_bytes); /* fewer than the mask had */
  }
  memmove(e->out + r.places, e->out + codes_at, code_bytes(r.changes));
  memmove(e->out + r.places + code_bytes(r.changes), e->out + extras_at, e->extra_bytes);
  r.bytes = r.places + code_bytes(r.changes) + e->extra_bytes;
  return r;
}

/* --- the header --- */

size_t changes_header_bytes(size_t tensors) { return FIXED_BYTES + tensors * RECORD_BYTES; }

static void put_u64(unsigned char *to, uint64_t value) { memcpy(to, &value, sizeof value); }

static uint64_t get_u64(const unsigned char *from) {
  uint64_t value;
  memcpy(&value, from, sizeof value);
  return value;
}

void changes_header_write(void *out, const struct digest *base, const struct digest *made,
                          const struct change_record *records, size_t tensors) {
  unsigned char *to = out;
  memcpy(to, MAGIC, MAGIC_BYTES);
  memcpy(to + MAGIC_BYTES, base->bytes, DIGEST_BYTES);
  memcpy(to + MAGIC_BYTES + DIGEST_BYTES, made->bytes, DIGEST_BYTES);
  put_u64(to + FIXED_BYTES - 8, tensors);
  to += FIXED_BYTES;
  for (size_t i = 0; i < tensors; i++, to += RECORD_BYTES) {
    put_u64(to, records[i].form);
    put_u64(to + 8, records[i].bytes);
    put_u64(to + 16, records[i].changes);
    put_u64(to + 24, records[i].places);
  }
}

static bool record_read(struct change_record *r, const unsigned char *from, size_t count) {
  const uint64_t form = get_u64(from);
  *r = (struct change_record){.bytes = get_u64(from + 8), .changes = get_u64(from + 16), .places = get_u64(from + 24)};
  if (form >= CHANGE_FORMS) return false;
  r->form = (enum change_form)form;
  if (form == CHANGE_NONE || form == CHANGE_WHOLE)
    return r->bytes == (form == CHANGE_NONE ? 0 : count * sizeof(uint16_t)) && r->changes == 0 && r->places == 0;
  if (r->changes == 0 || r->changes > count || r->places > r->bytes) return false;
  if (form == CHANGE_MASK && r->places != mask_bytes(count)) return false;
  return r->bytes - r->places >= code_bytes(r->changes);
}

enum rc changes_header_read(struct digest *base, struct digest *made, struct change_record *records, size_t *used,
                            const void *bytes, size_t len, const size_t *counts, size_t tensors, struct err *err) {
  const unsigned char *from = bytes;
  if (len < changes_header_bytes(tensors) || memcmp(from, MAGIC, MAGIC_BYTES) != 0 ||
      get_u64(from + FIXED_BYTES - 8) != tensors)
    return err_set(err, RC_INVALID, NULL, "expected the changes of %zu tensors, got %zu bytes that begin otherwise",
                   tensors, len);
  memcpy(base->bytes, from + MAGIC_BYTES, DIGEST_BYTES);
  memcpy(made->bytes, from + MAGIC_BYTES + DIGEST_BYTES, DIGEST_BYTES);
  size_t left = len - changes_header_bytes(tensors);
  for (size_t i = 0; i < tensors; i++) {
    if (!record_read(&records[i], from + FIXED_BYTES + i * RECORD_BYTES, counts[i]) || records[i].bytes > left)
      return err_set(err, RC_INVALID, NULL, "tensor %zu: its changes cannot be those of %zu values", i, counts[i]);
    left -= records[i].bytes;
  }
  *used = len - left;
  return RC_OK;
}

/* --- decoding --- */

static void stop_wrong(struct changes_cursor *c) {
  c->wrong = true;
  c->at = c->count;
}

/* The next change's place, which is `from` or later. */
static inline void find_next(struct changes_cursor *c, size_t from) {
  if (c->left == 0) {
    c->at = c->count;
    return;
  }
  if (c->record.form == CHANGE_GAPS) {
    while (c->place < c->place_end && *c->place == GAP_LONG) {
      from += GAP_LONG;
      c->place++;
    }
    c->wrong |= c->place == c->place_end;
    if (!c->wrong) from += *c->place++;
  } else {
    while (c->word == 0 && c->place < c->place_end) {
      c->word_at = (size_t)(c->place - (c->place_end - c->record.places)) / sizeof c->word * BLOCK;
      memcpy(&c->word, c->place, sizeof c->word);
      c->place += sizeof c->word;
    }
    c->wrong |= c->word == 0;
    if (c->word) from = c->word_at + (size_t)__builtin_ctzll(c->word);
    c->word &= c->word - 1;
  }
  c->at = from;
  if (c->wrong || from >= c->count) stop_wrong(c);
}

void changes_begin(struct changes_cursor *c, const struct change_record *record, const void *bytes, size_t count) {
  const unsigned char *from = bytes;
  *c = (struct changes_cursor){.record = *record, .count = count, .at = count};
  if (record->form == CHANGE_WHOLE) c->whole = from;
  if (record->form != CHANGE_GAPS && record->form != CHANGE_MASK) return;
  c->place = from;
  c->place_end = c->codes = from + record->places;
  c->extra = c->codes + code_bytes(record->changes);
  c->extra_end = from + record->bytes;
  c->left = record->changes;
  find_next(c, 0);
}

static bool is_finite(uint16_t bits) { return (bits & 0x7F80) != 0x7F80; }

void changes_apply(struct changes_cursor *cursor, uint16_t *x, size_t first, size_t end) {
  if (cursor->whole) {
    memcpy(x, cursor->whole + first * sizeof *x, (end - first) * sizeof *x);
    for (size_t i = 0; i < end - first; i++) cursor->wrong |= !is_finite(x[i]);
    return;
  }
  struct changes_cursor at = *cursor, *c = &at; /* which stays in registers */
  while (c->at < end) {
    const unsigned code = c->codes[c->taken / 4] >> c->taken % 4 * 2 & 3;
    uint16_t added = (uint16_t)(1 - 2 * (int)code); /* UP or DOWN, which no branch predictor foresees */
    if (code >= CODE_BYTE) {
      const size_t bytes = code == CODE_BYTE ? 1 : 2;
      if ((size_t)(c->extra_end - c->extra) < bytes) {
        stop_wrong(c);
        break;
      }
      const int extra = code == CODE_BYTE ? (int8_t)c->extra[0] : c->extra[0] | c->extra[1] << 8;
      added = (uint16_t)extra;
      c->extra += bytes;
    }
    uint16_t *to = &x[c->at - first];
    *to = (uint16_t)(*to + added);
    if (!is_finite(*to)) {
      stop_wrong(c);
      break;
    }
    c->taken++;
    c->left--;
    find_next(c, c->at + 1);
  }
  *cursor = at;
}

bool changes_end(const struct changes_cursor *c) {
  if (c->wrong || c->left > 0) return false;
  if (!c->place) return true;
  if (c->word != 0 || c->extra != c->extra_end) return false;
  for (const unsigned char *rest = c->place; rest < c->place_end; rest++)
    if (c->record.form == CHANGE_GAPS || *rest != 0) return false;
  return true;
}
