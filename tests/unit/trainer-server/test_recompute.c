/* --recompute-activations changes what a trainer holds in memory, and no bit of what it makes: the same rounds end with
 * the same weights, with and without it, and from one to the other across a restart. */
#include "tests/unit/trainer-server/support.h"

enum { ROUNDS = 3, GROUPS = 2 };

static struct arena arena;
static struct batch_group groups[ROUNDS][GROUPS];

/* The digests that a trainer reaches whose round v recomputes where modes[v] says so. */
static void play(struct digest digests[ROUNDS], const bool modes[ROUNDS]) {
  struct rig g;
  struct open_run_answer answer;
  struct open_run run = run_request("r1");
  run.training.kl_coefficient = 0.5; /* log-probabilities of a reference as well */
  rig_make(&g, "");
  for (int v = 0; v < ROUNDS; v++) {
    g.options.recompute_activations = modes[v];
    rig_start(&g);
    run.current_version = v;
    rig_open(&g, &run, &answer);
    digests[v] = rig_round(&g, "r1", v, groups[v], GROUPS);
    rig_stop(&g);
  }
  rig_end(&g);
}

static void test_the_same_weights_on_and_off(void **state) {
  (void)state;
  static const bool off[ROUNDS] = {false}, on[ROUNDS] = {true, true, true}, mixed[ROUNDS] = {true, false, true};
  struct digest kept[ROUNDS], recomputed[ROUNDS], by_turns[ROUNDS];
  rounds_make(&arena, ROUNDS, GROUPS, groups, 70);
  play(kept, off);
  play(recomputed, on);
  play(by_turns, mixed);
  for (int v = 0; v < ROUNDS; v++) {
    assert_true(digest_equal(&kept[v], &recomputed[v]));
    assert_true(digest_equal(&kept[v], &by_turns[v]));
  }
  assert_false(digest_equal(&kept[0], &kept[1]));
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_same_weights_on_and_off)};
  return cmocka_run_group_tests_name("trainer-server/recompute", tests, NULL, NULL);
}
