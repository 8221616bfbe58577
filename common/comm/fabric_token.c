/* Writes a fabric's tokens as texts and checks them: they come by HTTP from any client that may push.  Pure. */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/comm/fabric.h"

enum { SERIAL_DIGITS = 19, PLACE_DIGITS = 10 };

void fabric_token_write_place(char out[FABRIC_TOKEN_MAX], uint64_t serial, int64_t place) {
  snprintf(out, FABRIC_TOKEN_MAX, "%" PRIu64 ".%" PRId64, serial, place);
}

/* True for a number of at most `most` digits without a leading zero. */
static bool is_number(const char *text, size_t digits, size_t most) {
  if (digits == 0 || digits > most || (digits > 1 && text[0] == '0')) return false;
  return strspn(text, "0123456789") >= digits;
}

enum rc fabric_token_read_place(const char *token, uint64_t *serial, int64_t *place, int64_t places, struct err *err) {
  const char *dot = strchr(token, '.');
  const bool numbers = dot && is_number(token, (size_t)(dot - token), SERIAL_DIGITS) &&
                       is_number(dot + 1, strlen(dot + 1), PLACE_DIGITS);
  if (!numbers) return err_set(err, RC_INVALID, "token", "expected SERIAL.PLACE, two numbers, got '%.40s'", token);
  *serial = strtoull(token, NULL, 10);
  *place = strtoll(dot + 1, NULL, 10);
  if (*place < places) return RC_OK;
  return err_set(err, RC_INVALID, "token", "expected a root at one of %" PRId64 " places, got place %" PRId64, places,
                 *place);
}

void fabric_token_write_bytes(char out[FABRIC_TOKEN_MAX], const void *bytes, size_t count) {
  hex_write(out, bytes, count);
}

enum rc fabric_token_read_bytes(const char *token, void *bytes, size_t count, struct err *err) {
  const bool as_written = strspn(token, "0123456789abcdef") == 2 * count;
  if (as_written && hex_read(bytes, count, token)) return RC_OK;
  return err_set(err, RC_INVALID, "token", "expected %zu hexadecimal digits, got '%.40s'", 2 * count, token);
}

enum rc fabric_seat_check(const char *token, int64_t rank, int64_t size, struct err *err) {
  const size_t len = strlen(token);
  if (len == 0 || len >= FABRIC_TOKEN_MAX || strspn(token, "0123456789abcdef.") != len)
    return err_set(err, RC_INVALID, "token", "expected 1 to %d characters of 0-9, a-f and '.', got '%.40s'",
                   FABRIC_TOKEN_MAX - 1, token);
  if (size < 2 || size > FABRIC_GROUP_MAX)
    return err_set(err, RC_INVALID, "size", "expected a group of 2 to %d members, got %" PRId64, FABRIC_GROUP_MAX,
                   size);
  if (rank < 0 || rank >= size)
    return err_set(err, RC_INVALID, "rank", "expected 0 to %" PRId64 " in a group of %" PRId64 ", got %" PRId64,
                   size - 1, size, rank);
  return RC_OK;
}
