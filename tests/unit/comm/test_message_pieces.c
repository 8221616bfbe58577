/* Message pieces, which every rank must cut alike: they cover an array exactly once, in order and within bounds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/comm/message_pieces.h"

static void test_pieces_cover_every_part_once(void **state) {
  (void)state;
  static const size_t begin[] = {0, 0, 7, 7, 17, 18, 18};
  enum { PARTS = 6 };
  for (size_t most = 1; most <= 20; most++) {
    struct message_pieces p = {.begin = begin, .parts = PARTS, .most = most};
    struct message_piece piece;
    size_t at = 0;
    while (message_pieces_next(&p, &piece)) {
      assert_int_equal(piece.begin, at);
      assert_true(piece.count >= 1 && piece.count <= most);
      assert_true(piece.begin >= begin[piece.part] && piece.begin + piece.count <= begin[piece.part + 1]);
      at += piece.count;
    }
    assert_int_equal(at, begin[PARTS]);
    assert_false(message_pieces_next(&p, &piece));
  }
}

static void test_nothing_is_no_piece(void **state) {
  (void)state;
  static const size_t begin[] = {0, 0, 0};
  struct message_pieces p = {.begin = begin, .parts = 2, .most = 5};
  struct message_piece piece;
  assert_false(message_pieces_next(&p, &piece));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pieces_cover_every_part_once),
      cmocka_unit_test(test_nothing_is_no_piece),
  };
  return cmocka_run_group_tests_name("comm/message_pieces", tests, NULL, NULL);
}
