/* Follows paths like "reward_model.ground_truth" and "choices[0].text" into a JSON value. */
#include "services/coordinator/run/key_path.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"

enum { INDEX_DIGITS_MAX = 6 };

/* "[-12]" at the path's beginning: its length, 0 when there is none.  *index may be NULL. */
static size_t index_length(const char *path, long *index) {
  if (path[0] != '[') return 0;
  const size_t sign = path[1] == '-', digits = strspn(path + 1 + sign, "0123456789");
  if (digits == 0 || digits > INDEX_DIGITS_MAX || path[1 + sign + digits] != ']') return 0;
  if (index) *index = strtol(path + 1, NULL, 10);
  return sign + digits + 2;
}

enum rc key_path_check(const char *path, struct err *err) {
  const char *at = path;
  bool good = utf8_characters(path, strlen(path)) <= KEY_PATH_CHARS_MAX;
  while (good) {
    const size_t key = strcspn(at, ".[]");
    good = key > 0;
    at += key;
    for (size_t n; (n = index_length(at, NULL)) > 0;) at += n;
    if (*at != '.') break;
    at++;
  }
  if (good && *at == 0) return RC_OK;
  return err_set(err, RC_INVALID, NULL,
                 "expected keys with dots between them and [indices], at most %d characters, as in a.b[0]; got '%.60s'",
                 KEY_PATH_CHARS_MAX, path);
}

const struct json *key_path_find(const struct json *line, const char *path) {
  const struct json *value = line;
  for (const char *at = path; value && *at; at += *at == '.') {
    char key[4 * KEY_PATH_CHARS_MAX + 1];
    const size_t len = strcspn(at, ".[");
    memcpy(key, at, len);
    key[len] = 0;
    value = json_get(value, key);
    at += len;
    long index;
    for (size_t n; value && (n = index_length(at, &index)) > 0; at += n) {
      const long count = json_type_of(value) == JSON_ARRAY ? (long)json_length(value) : 0;
      if (index < 0) index += count;
      value = index >= 0 && index < count ? json_at(value, (size_t)index) : NULL;
    }
  }
  return value && json_type_of(value) == JSON_NULL ? NULL : value;
}
