/* SHA-256 against FIPS 180-4's examples; the canonical encodings; hexadecimal in both directions. */
#include "tests/unit/base/cm.h"

#include <malloc.h>
#include <string.h>

#include "common/base/digest.h"

static void assert_hex(const struct digest *d, const char *expected) {
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, d);
  assert_string_equal(hex, expected);
}

static void test_known_answers(void **state) {
  (void)state;
  struct digest d;
  digest_of(&d, "abc", 3);
  assert_hex(&d, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  digest_of(&d, NULL, 0);
  assert_hex(&d, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
}

static void test_pieces_equal_the_whole(void **state) {
  (void)state;
  struct digest whole, pieces;
  static const uint8_t bytes[] = {4, 3, 2, 1, 8, 7, 6, 5, 4, 3, 2, 1, 2, 0, 0, 0, 0, 0, 0, 0, 'h', 'i'};
  digest_of(&whole, bytes, sizeof bytes);
  struct digest_state s;
  digest_begin(&s);
  digest_update_u32(&s, 0x01020304);
  digest_update_u64(&s, 0x0102030405060708);
  digest_update(&s, NULL, 0);
  digest_update_text(&s, "hi");
  digest_end(&pieces, &s);
  assert_true(digest_equal(&whole, &pieces));
}

/* Weights are digested while tokens are generated: a digest must not fail there for want of memory. */
static void test_a_digest_takes_no_memory(void **state) {
  (void)state;
  static const uint8_t bytes[1000];
  struct digest whole, alone;
  struct digest_state s;
  digest_of(&alone, bytes, sizeof bytes); /* libcrypto's first use may allocate */
  const size_t before = mallinfo2().uordblks;
  digest_begin(&s);
  digest_update(&s, bytes, sizeof bytes);
  const size_t between = mallinfo2().uordblks;
  digest_end(&whole, &s);
  assert_int_equal(between, before);
  assert_true(digest_equal(&whole, &alone));
}

static void test_hex_round_trip_and_refusals(void **state) {
  (void)state;
  struct digest d, back;
  digest_of(&d, "x", 1);
  char hex[DIGEST_HEX_MAX + 1];
  digest_hex(hex, &d);
  assert_true(digest_from_hex(&back, hex));
  assert_true(digest_equal(&d, &back));
  back.bytes[31] ^= 1;
  assert_false(digest_equal(&d, &back));

  const struct digest before = back;
  char bad[DIGEST_HEX_MAX + 1];
  strcpy(bad, hex);
  bad[63] = '\0'; /* too short */
  assert_false(digest_from_hex(&back, bad));
  strcpy(bad, hex);
  strcat(bad, "0"); /* too long */
  assert_false(digest_from_hex(&back, bad));
  strcpy(bad, hex);
  bad[40] = 'g';
  assert_false(digest_from_hex(&back, bad));
  assert_false(digest_from_hex(&back, ""));
  assert_true(digest_equal(&back, &before)); /* untouched by refusals */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_known_answers),
      cmocka_unit_test(test_pieces_equal_the_whole),
      cmocka_unit_test(test_a_digest_takes_no_memory),
      cmocka_unit_test(test_hex_round_trip_and_refusals),
  };
  return cmocka_run_group_tests_name("base/digest", tests, NULL, NULL);
}
