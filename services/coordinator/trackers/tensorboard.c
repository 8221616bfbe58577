/* Encodes events, and reads those of a file that is continued. */
#include "services/coordinator/trackers/tensorboard.h"

#include <stdbool.h>
#include <string.h>

#include "common/base/buf.h"

enum { HEAD_BYTES = 12, TAIL_BYTES = 4 };
enum { WIRE_VARINT, WIRE_64, WIRE_BYTES, WIRE_32 = 5 };

/* ---- checksums ---- */

/* CRC-32C, bit by bit from the lowest on: polynomial 0x1EDC6F41, reflected. */
static uint32_t crc32c(const char *bytes, size_t len) {
  uint32_t crc = 0xFFFFFFFFu;
  for (size_t i = 0; i < len; i++) {
    crc ^= (unsigned char)bytes[i];
    for (int bit = 0; bit < 8; bit++) crc = (crc >> 1) ^ (0x82F63B78u & (0u - (crc & 1)));
  }
  return ~crc;
}

static uint32_t masked(const char *bytes, size_t len) {
  const uint32_t crc = crc32c(bytes, len);
  return ((crc >> 15) | (crc << 17)) + 0xA282EAD8u;
}

/* ---- writing ---- */

static void put_le(struct buf *b, uint64_t value, int bytes) {
  for (int i = 0; i < bytes; i++) buf_append(b, &(const char){(char)(value >> (8 * i))}, 1);
}

static void put_varint(struct buf *b, uint64_t value) {
  for (; value >= 0x80; value >>= 7) buf_append(b, &(const char){(char)(value | 0x80)}, 1);
  buf_append(b, &(const char){(char)value}, 1);
}

static void put_key(struct buf *b, int field, int wire) { put_varint(b, (uint64_t)(field << 3 | wire)); }

static void put_bytes(struct buf *b, int field, const char *bytes, size_t len) {
  put_key(b, field, WIRE_BYTES);
  put_varint(b, len);
  buf_append(b, bytes, len);
}

static void put_time(struct buf *b, int64_t at_ms) {
  const double seconds = (double)at_ms / 1000;
  uint64_t bits;
  memcpy(&bits, &seconds, sizeof bits);
  put_key(b, 1, WIRE_64);
  put_le(b, bits, 8);
}

static void put_value(struct buf *summary, const struct track_figure *f) {
  struct buf value = BUF_INIT;
  const float number = (float)f->value;
  uint32_t bits;
  memcpy(&bits, &number, sizeof bits);
  put_bytes(&value, 1, f->name, strlen(f->name));
  put_key(&value, 2, WIRE_32);
  put_le(&value, bits, 4);
  put_bytes(summary, 1, value.data, value.len);
  summary->failed |= value.failed;
  buf_free(&value);
}

static enum rc append_record(struct track_file *f, const struct buf *event, struct err *err) {
  struct buf record = BUF_INIT;
  put_le(&record, event->len, 8);
  enum rc rc = buf_check(event, err);
  if (rc == RC_OK) rc = buf_check(&record, err);
  if (rc == RC_OK) {
    put_le(&record, masked(record.data, 8), 4);
    buf_append(&record, event->data, event->len);
    put_le(&record, masked(event->data, event->len), 4);
    rc = buf_check(&record, err);
  }
  if (rc == RC_OK) rc = track_file_append(f, record.data, record.len, err);
  buf_free(&record);
  return rc;
}

enum rc tensorboard_append(struct tensorboard *t, const struct track_entry *e, struct err *err) {
  struct buf event = BUF_INIT, summary = BUF_INIT;
  if (!track_cursor_wants(&t->cursor, e)) return RC_OK;
  for (int i = 0; i < e->count; i++) put_value(&summary, &e->figures[i]);
  put_time(&event, e->at_ms);
  put_key(&event, 2, WIRE_VARINT);
  put_varint(&event, (uint64_t)e->step);
  put_bytes(&event, 5, summary.data, summary.len);
  event.failed |= summary.failed;
  const enum rc rc = append_record(&t->file, &event, err);
  if (rc == RC_OK) track_cursor_pass(&t->cursor, e->evaluation, e->round);
  buf_free(&summary);
  buf_free(&event);
  return rc;
}

/* ---- reading ---- */

static uint64_t get_le(const char *bytes, int count) {
  uint64_t value = 0;
  for (int i = 0; i < count; i++) value |= (uint64_t)(unsigned char)bytes[i] << (8 * i);
  return value;
}

struct span {
  const char *bytes;
  size_t len;
};

static bool take_varint(struct span *s, uint64_t *out) {
  *out = 0;
  for (int shift = 0; s->len && shift < 64; shift += 7) {
    const unsigned char byte = (unsigned char)*s->bytes;
    s->bytes++, s->len--;
    *out |= (uint64_t)(byte & 0x7F) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/* The next field of a message: its number, and its value or its bytes. */
static bool take_field(struct span *s, int *field, uint64_t *value, struct span *bytes) {
  uint64_t key, len;
  if (!take_varint(s, &key)) return false;
  *field = (int)(key >> 3);
  *bytes = (struct span){s->bytes, 0};
  switch (key & 7) {
    case WIRE_VARINT: return take_varint(s, value);
    case WIRE_64: len = 8; break;
    case WIRE_32: len = 4; break;
    case WIRE_BYTES:
      if (!take_varint(s, &len)) return false;
      break;
    default: return false;
  }
  if (len > s->len) return false;
  *bytes = (struct span){s->bytes, (size_t)len};
  s->bytes += len, s->len -= (size_t)len;
  return true;
}

static bool find_bytes(struct span message, int wanted, struct span *out) {
  int field;
  uint64_t value;
  while (take_field(&message, &field, &value, out))
    if (field == wanted) return true;
  return false;
}

static void note_event(struct track_cursor *c, struct span event) {
  struct span summary, value, tag, rest = event, bytes;
  uint64_t number, step = 0;
  int field;
  while (take_field(&rest, &field, &number, &bytes))
    if (field == 2) step = number;
  if (!find_bytes(event, 5, &summary) || !find_bytes(summary, 1, &value) || !find_bytes(value, 1, &tag)) return;
  const bool evaluation = track_name_evaluates(tag.bytes, tag.len);
  track_cursor_pass(c, evaluation, (int64_t)step - !evaluation);
}

static size_t scan(void *context, const char *bytes, size_t len) {
  struct tensorboard *t = context;
  size_t at = 0;
  while (len - at >= HEAD_BYTES + TAIL_BYTES) {
    const char *record = bytes + at;
    const uint64_t event = get_le(record, 8);
    if (get_le(record + 8, 4) != masked(record, 8) || event > len - at - HEAD_BYTES - TAIL_BYTES) break;
    if (get_le(record + HEAD_BYTES + event, 4) != masked(record + HEAD_BYTES, (size_t)event)) break;
    note_event(&t->cursor, (struct span){record + HEAD_BYTES, (size_t)event});
    at += HEAD_BYTES + (size_t)event + TAIL_BYTES;
  }
  return at;
}

enum rc tensorboard_open(struct tensorboard *t, const char *path, int64_t begun_ms, struct err *err) {
  static const char version[] = "brain.Event:2";
  struct buf event = BUF_INIT;
  t->cursor = (struct track_cursor){0};
  enum rc rc = track_file_open(&t->file, path, scan, t, err);
  if (rc != RC_OK || t->file.end > 0) return rc;
  put_time(&event, begun_ms);
  put_bytes(&event, 3, version, sizeof version - 1);
  rc = append_record(&t->file, &event, err);
  buf_free(&event);
  if (rc != RC_OK) track_file_close(&t->file);
  return rc;
}
