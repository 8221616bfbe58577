/* JSON: parsing any bytes, and writing what was parsed gives text that parses and is written the same way again. */
#include <string.h>

#include "common/json/json.h"
#include "tests/fuzz/fuzz.h"

static void walk(const struct json *v) {
  void *cursor = NULL;
  const char *key;
  const struct json *value;
  int64_t n;
  size_t len;
  json_as_int(v, &n);
  switch (json_type_of(v)) {
    case JSON_STRING:
      FUZZ_CHECK(strlen(json_string(v, &len)) <= len);
      FUZZ_CHECK(json_characters(v) <= len);
      break;
    case JSON_ARRAY:
      for (size_t i = 0; i < json_length(v); i++) walk(json_at(v, i));
      break;
    case JSON_OBJECT:
      while (json_next(v, &cursor, &key, &value)) {
        FUZZ_CHECK(json_get(v, key) == value); /* no key comes twice */
        walk(value);
      }
      break;
    default: break;
  }
}

static void write(const struct json *v, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_write_value(&w, v);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  struct json *v = NULL, *again = NULL;
  struct buf text = BUF_INIT, second = BUF_INIT;
  struct err err = {0};
  if (json_parse(&v, (const char *)data, size, 0, &err) != RC_OK) {
    FUZZ_CHECK(err.message[0]);
    return 0;
  }
  walk(v);
  write(v, &text);
  FUZZ_CHECK(json_parse(&again, text.data, text.len, 0, &err) == RC_OK);
  write(again, &second);
  FUZZ_CHECK(text.len == second.len && memcmp(text.data, second.data, text.len) == 0);
  buf_free(&text);
  buf_free(&second);
  json_free(v);
  json_free(again);
  return 0;
}
