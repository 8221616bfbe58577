/* Reads what other parsers read and json_parse refuses: numbers beyond 64 bits, reals beyond a double, keys that come
 * twice.  Models write them, into the arguments of a call, and clients send them, in the schema of a tool; Python's
 * parser takes them all.  What is ours to agree on, configurations and the services' messages, is never read like this.
 *
 * Numbers are changed where they stand, to others of the same length, so that nothing is allocated or moved:
 *
 *   12345678901234567890  ->  123456789012345678e2     a real, of which a double keeps 17 digits anyway
 *   -1e999                ->  -1e308                   the largest that there is, about */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/json/json_jansson.h"

enum { NUMBER_BYTES_MAX = 400 }; /* a double has at most 309 digits before its point; longer texts stay as they are */

static bool is_of_number(char c) {
  return (c >= '0' && c <= '9') || c == '-' || c == '+' || c == '.' || (c | 32) == 'e';
}

static bool fits_integer(const char *text) {
  errno = 0;
  (void)strtoll(text, NULL, 10);
  return errno != ERANGE;
}

static bool fits_real(const char *text) {
  const double value = strtod(text, NULL);
  return value - value == 0; /* finite */
}

static void fit_number(char *bytes, size_t len) {
  char text[NUMBER_BYTES_MAX];
  const size_t sign = bytes[0] == '-';
  if (len >= sizeof text || len - sign < 5) return;
  memcpy(text, bytes, len);
  text[len] = '\0';
  const bool integer = strspn(text + sign, "0123456789") == len - sign && text[sign] != '0';
  if (integer && fits_integer(text)) return;
  if (integer) memcpy(text + len - 2, "e2", 2);
  if (!fits_real(text)) {
    memset(text + sign, ' ', len - sign);
    memcpy(text + sign, "1e308", 5);
  }
  memcpy(bytes, text, len);
}

void json_fit_numbers(char *bytes, size_t len) {
  for (size_t i = 0; i < len; i++) {
    if (bytes[i] == '"') {
      for (i++; i < len && bytes[i] != '"'; i++) i += bytes[i] == '\\';
    } else if (is_of_number(bytes[i]) && (bytes[i] | 32) != 'e') { /* true and false have an e */
      size_t end = i + 1;
      while (end < len && is_of_number(bytes[end])) end++;
      fit_number(bytes + i, end - i);
      i = end - 1;
    }
  }
}

enum rc json_parse_lenient(struct json **out, const char *bytes, size_t len, size_t bytes_max, struct err *err) {
  struct json_size size;
  *out = NULL;
  enum rc rc = json_measure_within(&size, bytes, len, bytes_max, err);
  if (rc != RC_OK) return rc;
  char *copy = malloc(len);
  if (!copy) return err_set(err, RC_NO_MEMORY, NULL, "%zu bytes of JSON were refused their memory", len);
  memcpy(copy, bytes, len);
  json_fit_numbers(copy, len);
  rc = json_parse_with(out, copy, len, &size, 0, err);
  free(copy);
  return rc;
}
