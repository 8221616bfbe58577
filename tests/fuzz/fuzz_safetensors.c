/* Safetensors files: every tensor that is handed out lies within the bytes, and its header, written again, is read as
 * the same tensors. */
#include <string.h>

#include "common/safetensors/safetensors.h"
#include "tests/fuzz/fuzz.h"

enum { ENTRIES_MAX = 64 };

static void written_again(const struct st_file *f) {
  struct st_entry entries[ENTRIES_MAX];
  struct st_file *again = NULL;
  struct buf bytes = BUF_INIT;
  struct err err = {0};
  const size_t count = st_count(f);
  if (count > ENTRIES_MAX) return;
  for (size_t i = 0; i < count; i++) {
    const struct st_tensor *t = st_at(f, i);
    entries[i] = (struct st_entry){.name = t->name, .dtype = t->dtype, .dims = t->dims};
    memcpy(entries[i].shape, t->shape, sizeof t->shape);
  }
  FUZZ_CHECK(st_write_header(&bytes, entries, count, NULL, &err) == RC_OK);
  for (size_t i = 0; i < count; i++) buf_append(&bytes, st_data(f, st_at(f, i)), st_at(f, i)->bytes);
  FUZZ_CHECK(st_open_memory(&again, bytes.data, bytes.len, &err) == RC_OK);
  FUZZ_CHECK(st_count(again) == count);
  for (size_t i = 0; i < count; i++) {
    const struct st_tensor *a = st_at(f, i), *b = st_find(again, a->name);
    FUZZ_CHECK(b && a->bytes == b->bytes && a->dtype == b->dtype);
    FUZZ_CHECK(a->bytes == 0 || memcmp(st_data(f, a), st_data(again, b), a->bytes) == 0);
  }
  st_close(again);
  buf_free(&bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct st_file *f = NULL;
  struct err err = {0};
  if (st_open_memory(&f, data, size, &err) != RC_OK) {
    FUZZ_CHECK(err.message[0]);
    return 0;
  }
  for (size_t i = 0; i < st_count(f); i++) {
    const struct st_tensor *t = st_at(f, i);
    const uint8_t *bytes = st_data(f, t);
    FUZZ_CHECK(bytes >= data && t->bytes <= size && bytes + t->bytes <= data + size);
    FUZZ_CHECK(st_find(f, t->name) == t);
  }
  st_metadata(f, "format");
  written_again(f);
  st_close(f);
  return 0;
}
