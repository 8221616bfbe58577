/* The texts by which members of a communicator find each other: a written token reads back, and a token from a client
 * is refused unless we could have written it, so that no join begins with a place that does not exist. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/comm/fabric.h"

enum { PLACES = 12 };

static void test_a_place_reads_back(void **state) {
  (void)state;
  static const uint64_t serials[] = {0, 1, 29999, 30000, UINT64_C(9999999999999999999)};
  char token[FABRIC_TOKEN_MAX];
  for (size_t i = 0; i < sizeof serials / sizeof serials[0]; i++) {
    for (int64_t at = 0; at < PLACES; at++) {
      uint64_t serial = 77;
      int64_t place = 77;
      fabric_token_write_place(token, serials[i], at);
      assert_int_equal(fabric_seat_check(token, 1, 2, NULL), RC_OK);
      assert_int_equal(fabric_token_read_place(token, &serial, &place, PLACES, NULL), RC_OK);
      assert_true(serial == serials[i] && place == at);
    }
  }
}

static void test_hostile_places_are_refused(void **state) {
  (void)state;
  static const char *const bad[] = {"",
                                    ".",
                                    "1",
                                    "1.",
                                    ".1",
                                    "1.2.3",
                                    "-1.2",
                                    "1.-2",
                                    " 1.2",
                                    "1. 2",
                                    "1.2 ",
                                    "+1.2",
                                    "01.2",
                                    "1.02",
                                    "1.12",
                                    "1.99",
                                    "0x1.2",
                                    "1e3.2",
                                    "1,2",
                                    "1.2\n",
                                    "1.\xff",
                                    "a.b",
                                    "1.2a",
                                    "%s.%n",
                                    "18446744073709551616.0",
                                    "1.4294967296",
                                    "1.99999999999999999999",
                                    "99999999999999999999.1"};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct err err = {0};
    uint64_t serial;
    int64_t place;
    assert_int_equal(fabric_token_read_place(bad[i], &serial, &place, PLACES, &err), RC_INVALID);
    assert_string_equal(err.field, "token");
  }
}

static void test_bytes_read_back(void **state) {
  (void)state;
  unsigned char bytes[128], again[128];
  char token[FABRIC_TOKEN_MAX];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = (unsigned char)(i * 37 + 5);
  fabric_token_write_bytes(token, bytes, sizeof bytes);
  assert_int_equal(strlen(token), 2 * sizeof bytes);
  assert_int_equal(fabric_seat_check(token, 1, 2, NULL), RC_OK);
  assert_int_equal(fabric_token_read_bytes(token, again, sizeof again, NULL), RC_OK);
  assert_memory_equal(again, bytes, sizeof bytes);
  assert_int_equal(fabric_token_read_bytes(token, again, sizeof again - 1, NULL), RC_INVALID);
  token[2 * sizeof bytes - 1] = 0;
  assert_int_equal(fabric_token_read_bytes(token, again, sizeof again, NULL), RC_INVALID);
  static const char bad[] = {'g', 'G', 'A', ' ', '.', '\n', '/', ':', '`', '\xff'};
  for (size_t i = 0; i < sizeof bad; i++) {
    fabric_token_write_bytes(token, bytes, sizeof bytes);
    token[i * 20] = bad[i];
    assert_int_equal(fabric_token_read_bytes(token, again, sizeof again, NULL), RC_INVALID);
  }
}

static void test_seats_that_cannot_be(void **state) {
  (void)state;
  char longest[FABRIC_TOKEN_MAX + 1];
  struct err err = {0};
  memset(longest, 'a', sizeof longest);
  longest[FABRIC_TOKEN_MAX - 1] = 0;
  assert_int_equal(fabric_seat_check(longest, 0, 2, NULL), RC_OK);
  longest[FABRIC_TOKEN_MAX - 1] = 'a';
  longest[FABRIC_TOKEN_MAX] = 0;
  assert_int_equal(fabric_seat_check(longest, 0, 2, &err), RC_INVALID);
  assert_int_equal(fabric_seat_check("", 0, 2, &err), RC_INVALID);
  assert_int_equal(fabric_seat_check("1.0;", 0, 2, &err), RC_INVALID);
  assert_string_equal(err.field, "token");
  static const struct {
    int64_t rank, size;
    const char *field;
  } bad[] = {{-1, 2, "rank"},       {2, 2, "rank"},  {INT64_MAX, 2, "rank"}, {0, 1, "size"},
             {0, 0, "size"},        {0, -5, "size"}, {INT64_MIN, 3, "rank"}, {1, FABRIC_GROUP_MAX + 1, "size"},
             {1, INT64_MAX, "size"}};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    assert_int_equal(fabric_seat_check("1.0", bad[i].rank, bad[i].size, &err), RC_INVALID);
    assert_string_equal(err.field, bad[i].field);
  }
  assert_int_equal(fabric_seat_check("1.0", FABRIC_GROUP_MAX - 1, FABRIC_GROUP_MAX, NULL), RC_OK);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_a_place_reads_back), cmocka_unit_test(test_hostile_places_are_refused),
      cmocka_unit_test(test_bytes_read_back), cmocka_unit_test(test_seats_that_cannot_be)};
  return cmocka_run_group_tests_name("comm/fabric_token", tests, NULL, NULL);
}
