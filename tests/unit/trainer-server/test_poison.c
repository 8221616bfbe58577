/* A unit whose gradient is not finite poisons its step: skipped, recorded, the same everywhere, and without a trace in
 * what comes after it. */
#include "tests/unit/trainer-server/support.h"

enum { GROUPS = 3 };

static struct arena arena;

static int tear_down(void **state) {
  (void)state;
  arena_free(&arena);
  arena = (struct arena)ARENA_INIT;
  return 0;
}

/* An advantage that is a float32, and whose gradient is beyond what the sums hold. */
static void poison(struct batch_group *group, float advantage) { group->samples[1].advantage = advantage; }

/* Round 0 with the groups in this order, one batch each, the given one poisoned (-1: none). */
static void round_of(struct rig *g, const int *order, int poisoned, float advantage, struct step_status *step) {
  struct batch_group groups[GROUPS], sent;
  groups_make(&arena, groups, GROUPS, 3);
  if (poisoned >= 0) poison(&groups[poisoned], advantage);
  for (int i = 0; i < GROUPS; i++) {
    struct batch_status batch;
    char id[32];
    snprintf(id, sizeof id, "r1.0.b%d", i);
    sent = groups[order[i]];
    rig_batch(g, "r1", id, 0, &sent, 1, &batch, &arena);
    if (batch.state != JOB_DONE) fail_msg("%s", batch.error.message);
    assert_int_equal(batch.stats.poisoned, order[i] == poisoned);
    for (size_t s = 0; s < batch.sample_count; s++) /* its log-probabilities are as good as any */
      for (size_t k = 0; k < batch.samples[s].logprobs.count; k++) assert_true(batch.samples[s].logprobs.items[k] < 0);
  }
  const struct submit_step m = step_request("r1", "r1.0", 0, groups, GROUPS, &arena);
  rig_step(g, &m, step, &arena);
  if (step->state != JOB_DONE) fail_msg("%s", step->error.message);
}

static struct digest next_round(struct rig *g) {
  struct batch_group groups[GROUPS];
  groups_make(&arena, groups, GROUPS, 4);
  return rig_round(g, "r1", 1, groups, GROUPS);
}

/* Wherever it stands, and whatever overflows, the poisoned step changes no weight and counts no optimizer step, as if
 * the round had had no groups; the round after it is one of that history, also after a restart. */
static void a_poisoned_step_is_skipped_and_leaves_no_trace(void **state) {
  (void)state;
  static const int orders[][GROUPS] = {{0, 1, 2}, {2, 1, 0}, {1, 0, 2}};
  static const float advantages[] = {3e38f, -3e38f, 1e30f};
  struct digest empty_next, sound_next;
  struct open_run_answer opened;
  struct step_status step;
  const struct open_run run = run_request("r1");
  struct rig g;
  rig_make(&g, ""); /* what it must be equal to: a round without groups */
  rig_start(&g);
  rig_open(&g, &run, &opened);
  const struct submit_step none = step_request("r1", "r1.0", 0, NULL, 0, &arena);
  rig_step(&g, &none, &step, &arena);
  assert_true(step.skipped);
  empty_next = next_round(&g);
  rig_end(&g);
  rig_make(&g, ""); /* and what it must differ from */
  rig_start(&g);
  rig_open(&g, &run, &opened);
  round_of(&g, orders[0], -1, 0, &step);
  assert_false(step.skipped || digest_equal(&step.digest, &opened.digest));
  sound_next = next_round(&g);
  assert_false(digest_equal(&sound_next, &empty_next));
  rig_end(&g);
  for (int way = 0; way < 3; way++) {
    rig_make(&g, "");
    rig_start(&g);
    rig_open(&g, &run, &opened);
    round_of(&g, orders[way], 1, advantages[way], &step);
    assert_true(step.skipped && step.version == 1 && step.grad_norm == 0);
    assert_true(digest_equal(&step.digest, &opened.digest));
    expect(&g, "GET", "/metrics", NULL, 200, "leasehold_trainer_steps_skipped_total ");
    if (way == 1) {
      rig_stop(&g);
      rig_start(&g);
      rig_open(&g, &run, &opened);
      assert_true(opened.version == 1 && digest_equal(&opened.digest, &step.digest));
    }
    const struct digest next = next_round(&g);
    assert_true(digest_equal(&next, &empty_next));
    rig_end(&g);
  }
}

/* The record of it: in the checkpoint's history, where a loss that is not finite must not stop the loading. */
static void a_poisoned_step_is_recorded(void **state) {
  (void)state;
  static const int order[] = {0, 1, 2};
  struct rig g;
  struct open_run_answer opened;
  struct step_status step;
  struct buf bytes = BUF_INIT;
  struct json *root = NULL;
  struct err err = {0};
  char path[PATH + 64];
  const struct open_run run = run_request("r1");
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &run, &opened);
  round_of(&g, order, 2, 3e38f, &step);
  next_round(&g);
  snprintf(path, sizeof path, "%s/r1/v2/trainer_state.json", g.state_dir);
  assert_rc(RC_OK, file_read(&bytes, path, 1 << 20, &err), err);
  assert_rc(RC_OK, json_parse(&root, bytes.data, bytes.len, 0, &err), err);
  const struct json *history = json_get(root, "history");
  assert_int_equal(json_length(history), 2);
  assert_true(json_bool(json_get(json_at(history, 0), "skipped")));
  assert_false(json_bool(json_get(json_at(history, 1), "skipped")));
  assert_int_equal(json_int(json_get(root, "optimizer_steps")), 1);
  json_free(root);
  buf_free(&bytes);
  rig_end(&g);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(a_poisoned_step_is_skipped_and_leaves_no_trace, tear_down),
      cmocka_unit_test_teardown(a_poisoned_step_is_recorded, tear_down),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/poison", tests, NULL, NULL);
}
