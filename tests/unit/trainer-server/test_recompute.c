/* --recompute-activations, --lean and --optimizer-state mapped change what a trainer holds in memory, and no bit of
 * what it makes: the same rounds end with the same weights, with and without them, and from one to the other across a
 * restart.  Moments in 8 bits make other weights, the same ones wherever they lie, and a checkpoint or a run of the
 * other kind is refused. */
#include "tests/unit/trainer-server/support.h"

enum { ROUNDS = 3, GROUPS = 2 };

static struct arena arena;
static struct batch_group groups[ROUNDS][GROUPS];

enum { RECOMPUTE = 1, LEAN = 2, MAPPED = 4, MOMENTS8 = 8 };

/* The digests that a trainer reaches whose round v is computed as modes[v] says. */
static void play(struct digest digests[ROUNDS], const int modes[ROUNDS], int chunk_tokens) {
  struct rig g;
  struct open_run_answer answer;
  struct open_run run = run_request("r1");
  run.training.kl_coefficient = 0.5; /* log-probabilities of a reference as well */
  run.training.chunk_tokens = chunk_tokens;
  run.training.moments8 = modes[0] & MOMENTS8;
  rig_make(&g, "");
  g.options.chunk_tokens = chunk_tokens;
  for (int v = 0; v < ROUNDS; v++) {
    g.options.recompute_activations = modes[v] & RECOMPUTE;
    g.options.lean = modes[v] & LEAN;
    g.options.optimizer_mapped = modes[v] & MAPPED;
    g.options.moments8 = modes[v] & MOMENTS8;
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

static void test_moments_in_8_bits_are_another_arithmetic(void **state) {
  (void)state;
  static const int off[ROUNDS] = {0}, on[][ROUNDS] = {{MOMENTS8, MOMENTS8, MOMENTS8},
                                                      {MOMENTS8 | LEAN, MOMENTS8 | MAPPED, MOMENTS8},
                                                      {MOMENTS8, MOMENTS8 | LEAN | MAPPED, MOMENTS8 | RECOMPUTE}};
  struct digest kept[ROUNDS], first[ROUNDS], again[ROUNDS];
  rounds_make(&arena, ROUNDS, GROUPS, groups, 70);
  play(kept, off, 16);
  for (size_t m = 0; m < sizeof on / sizeof on[0]; m++) {
    play(m ? again : first, on[m], 16);
    for (int v = 0; m > 0 && v < ROUNDS; v++) assert_true(digest_equal(&first[v], &again[v]));
  }
  assert_true(digest_equal(&kept[0], &first[0])); /* the first step encodes its moments after it has used them */
  assert_false(digest_equal(&kept[ROUNDS - 1], &first[ROUNDS - 1]));
  arena_free(&arena);
}

static void test_the_other_kind_of_moments_is_refused(void **state) {
  (void)state;
  for (int moments8 = 0; moments8 < 2; moments8++) {
    struct rig g;
    struct open_run_answer answer;
    struct err err = {0};
    char sentence[128];
    rig_make(&g, "");
    g.options.moments8 = moments8;
    rig_start(&g);
    struct open_run run = run_request("r1");
    run.training.moments8 = !moments8;
    assert_rc(RC_INVALID, trainer_open_run(&g.client, &run, &answer, &arena, WAIT_MS, &err), err);
    assert_string_equal(err.field, "training.optimizer_moments");
    run.training.moments8 = moments8;
    rig_open(&g, &run, &answer);
    rig_stop(&g);
    g.options.moments8 = !moments8;
    assert_rc(RC_UNSUPPORTED, rig_try_start(&g, &err), err);
    assert_string_equal(err.field, "optimizer-moments");
    snprintf(sentence, sizeof sentence, "start it with --optimizer-moments %s", moments8 ? "8bit" : "32bit");
    assert_non_null(strstr(err.message, sentence));
    g.trainer = NULL;
    g.options.moments8 = moments8;
    rig_start(&g);
    rig_end(&g);
    arena_free(&arena);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_the_same_weights_on_and_off),
                                     cmocka_unit_test(test_moments_in_8_bits_are_another_arithmetic),
                                     cmocka_unit_test(test_the_other_kind_of_moments_is_refused)};
  return cmocka_run_group_tests_name("trainer-server/recompute", tests, NULL, NULL);
}
