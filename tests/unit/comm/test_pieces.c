/* What every rank must do alike, and how long it waits: pieces cover an array exactly once, in order and within bounds;
 * patience counts the waiter's own time; one rank alone needs no carrier. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "common/comm/comm.h"
#include "common/comm/patience.h"
#include "common/comm/pieces.h"

static void test_pieces_cover_every_part_once(void **state) {
  (void)state;
  static const size_t begin[] = {0, 0, 7, 7, 17, 18, 18};
  enum { PARTS = 6 };
  for (size_t most = 1; most <= 20; most++) {
    struct pieces p = {.begin = begin, .parts = PARTS, .most = most};
    struct piece piece;
    size_t at = 0;
    while (pieces_next(&p, &piece)) {
      assert_int_equal(piece.begin, at);
      assert_true(piece.count >= 1 && piece.count <= most);
      assert_true(piece.begin >= begin[piece.part] && piece.begin + piece.count <= begin[piece.part + 1]);
      at += piece.count;
    }
    assert_int_equal(at, begin[PARTS]);
    assert_false(pieces_next(&p, &piece));
  }
}

static void test_nothing_is_no_piece(void **state) {
  (void)state;
  static const size_t begin[] = {0, 0, 0};
  struct pieces p = {.begin = begin, .parts = 2, .most = 5};
  struct piece piece;
  assert_false(pieces_next(&p, &piece));
}

static void test_patience_ends_after_its_time(void **state) {
  (void)state;
  struct patience p = patience_of(2500, 1000);
  int64_t now_us = 1000;
  for (int look = 0; look < 24; look++) assert_false(patience_over(&p, now_us += 100000));
  assert_true(patience_over(&p, now_us += 100000));
  assert_true(patience_over(&p, now_us)); /* and stays so */
}

/* A waiter that stood still for an hour has not waited for an hour. */
static void test_standing_still_counts_little(void **state) {
  (void)state;
  struct patience p = patience_of(3000, 0);
  assert_false(patience_over(&p, 3600000000));
  assert_false(patience_over(&p, 7200000000));
  assert_true(patience_over(&p, 10800000000));
}

static void test_one_rank_has_what_all_have(void **state) {
  (void)state;
  struct comm *c = comm_self();
  struct err err;
  const size_t begin[] = {0, 3};
  int64_t values[] = {5, -6, 7};
  assert_int_equal(c->rank, 0);
  assert_int_equal(c->size, 1);
  assert_int_equal(c->broadcast(c, values, sizeof values, 0, 1, &err), RC_OK);
  assert_int_equal(c->all_gather(c, values, begin, 1, &err), RC_OK);
  assert_int_equal(c->reduce_scatter(c, values, begin, 1, &err), RC_OK);
  assert_int_equal(c->all_reduce(c, values, 3, COMM_SUM, 1, &err), RC_OK);
  assert_int_equal(c->barrier(c, 1, &err), RC_OK);
  assert_true(values[0] == 5 && values[1] == -6 && values[2] == 7);
  assert_int_equal(c->check(c, &err), RC_OK);
  c->give_up(c);
  c->free(c);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_pieces_cover_every_part_once), cmocka_unit_test(test_nothing_is_no_piece),
      cmocka_unit_test(test_patience_ends_after_its_time), cmocka_unit_test(test_standing_still_counts_little),
      cmocka_unit_test(test_one_rank_has_what_all_have),
  };
  return cmocka_run_group_tests_name("comm/pieces", tests, NULL, NULL);
}
