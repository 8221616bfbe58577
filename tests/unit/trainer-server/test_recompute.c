/* --recompute-activations, --lean and --optimizer-state mapped change what a trainer holds in memory, and no bit of what it
 * makes: the same rounds end with the same weights, with and without them, and from one to the other across a restart. */
#include "tests/unit/trainer-server/support.h"

enum { ROUNDS = 3, GROUPS = 2 };

static struct arena arena;
static struct batch_group groups[ROUNDS][GROUPS];

enum { RECOMPUTE = 1, LEAN = 2, MAPPED = 4 };

/* The digests that a trainer reaches whose round v is computed as modes[v] says. */
static void play(struct digest digests[ROUNDS], const int modes[ROUNDS], int chunk_tokens) {
  struct rig g;
  struct open_run_answer answer;
  struct open_run run = run_request("r1");
  run.training.kl_coefficient = 0.5; /* log-probabilities of a reference as well */
  run.training.chunk_tokens = chunk_tokens;
  rig_make(&g, "");
  g.options.chunk_tokens = chunk_tokens;
  for (int v = 0; v < ROUNDS; v++) {
    g.options.recompute_activations = modes[v] & RECOMPUTE;
    g.options.lean = modes[v] & LEAN;
    g.options.optimizer_mapped = modes[v] & MAPPED;
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
  static const int off[ROUNDS] = {0}, on[][ROUNDS] = {{RECOMPUTE, RECOMPUTE, RECOMPUTE},
                                                      {RECOMPUTE, 0, RECOMPUTE},
                                                      {LEAN, LEAN, LEAN},
                                                      {LEAN, RECOMPUTE, LEAN | RECOMPUTE | MAPPED},
                                                      {LEAN | MAPPED, LEAN | MAPPED, 0}};
  struct digest kept[ROUNDS], frugal[ROUNDS];
  rounds_make(&arena, ROUNDS, GROUPS, groups, 70);
  for (int chunk_tokens = 16; chunk_tokens <= 64; chunk_tokens += 48) { /* several chunks a group, and one */
    play(kept, off, chunk_tokens);
    for (size_t m = 0; m < sizeof on / sizeof on[0]; m++) {
      play(frugal, on[m], chunk_tokens);
      for (int v = 0; v < ROUNDS; v++) assert_true(digest_equal(&kept[v], &frugal[v]));
    }
    assert_false(digest_equal(&kept[0], &kept[1]));
  }
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_same_weights_on_and_off)};
  return cmocka_run_group_tests_name("trainer-server/recompute", tests, NULL, NULL);
}
