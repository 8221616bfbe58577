/* What changes the KL term from round to round: a coefficient that follows a target, a reference that is taken anew.
 * What would break: weights that depend on how groups were batched or on a restart in the middle, a reference whose
 * checkpoint is gone when it is needed, a controller that goes the other way. */
#include <math.h>

#include "tests/unit/trainer-server/support.h"

#include "common/model/learning/schedule.h"

enum { ROUNDS = 6, GROUPS = 3, RESTART = 3 };

static struct arena arena;
static struct batch_group groups[ROUNDS][GROUPS];

static int set_up(void **state) {
  (void)state;
  rounds_make(&arena, ROUNDS, GROUPS, groups, 60);
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  arena_free(&arena);
  return 0;
}

static struct open_run the_run(double kl_target, int reference_every) {
  struct open_run run = run_request("r1");
  run.start.from = START_MODEL;
  run.training.kl_coefficient = 0.25;
  run.training.kl_target = kl_target;
  run.training.kl_horizon = kl_target > 0 ? 40 : 0;
  run.training.reference_every = reference_every;
  return run;
}

/* The last round's, as the newest checkpoint has it; 0: none. */
static double stored_coefficient(const struct rig *g, int version) {
  char path[PATH + 64];
  struct buf text = BUF_INIT;
  struct err err = {0};
  double value = 0;
  snprintf(path, sizeof path, "%s/r1/v%d/trainer_state.json", g->state_dir, version);
  assert_rc(RC_OK, file_read(&text, path, 1 << 20, &err), err);
  const char *history = strstr(text.data, "\"history\":");
  assert_non_null(history);
  for (const char *at = history; (at = strstr(at, "\"kl_coefficient\":")); at++)
    value = strtod(at + strlen("\"kl_coefficient\":"), NULL);
  buf_free(&text);
  return value;
}

static double last_kl; /* of a token, in the last round that was played */

/* apart: a batch for each group, the last one first, and the trainer is started again in the middle. */
static void play(const struct open_run *run, bool apart, struct digest *digests, double *coefficients) {
  struct rig g;
  struct open_run_answer opened;
  rig_make(&g, "");
  g.options.keep_checkpoints = 1;
  rig_start(&g);
  rig_open(&g, run, &opened);
  double now = run->training.kl_coefficient;
  for (int v = 0; v < ROUNDS; v++) {
    double kl = 0, tokens = 0, samples = 0;
    char id[32];
    if (apart && v == RESTART) rig_restart(&g);
    for (int k = 0; k < (apart ? GROUPS : 1); k++) {
      struct batch_status batch;
      snprintf(id, sizeof id, "r1.%d.b%d", v, k);
      rig_batch(&g, "r1", id, v, apart ? &groups[v][GROUPS - 1 - k] : groups[v], apart ? 1 : GROUPS, &batch, &arena);
      assert_int_equal(batch.state, JOB_DONE);
      kl += batch.stats.kl_reference_sum;
      tokens += (double)batch.stats.tokens;
      samples += (double)batch.stats.samples;
    }
    struct step_status step;
    snprintf(id, sizeof id, "r1.%d", v);
    const struct submit_step m = step_request("r1", id, v, groups[v], GROUPS, &arena);
    rig_step(&g, &m, &step, &arena);
    assert_int_equal(step.state, JOB_DONE);
    digests[v] = step.digest;
    coefficients[v] = stored_coefficient(&g, v + 1);
    last_kl = kl / tokens;
    if (run->training.kl_target == 0) continue;
    const double error = kl / tokens / run->training.kl_target - 1; /* by hand */
    now *= 1 + fmin(fmax(error, -0.2), 0.2) * fmin(samples / run->training.kl_horizon, 1);
    if (!(fabs(coefficients[v] - now) < 1e-6)) fail_msg("round %d: %.9g, expected %.9g", v, coefficients[v], now);
  }
  rig_end(&g);
}

static void weights_are_the_same_however_groups_come(void **state) {
  (void)state;
  enum { CASES = 6 };
  static const struct {
    double kl_target; /* -1: what the first case came to, so that the change is not at its bound */
    int reference_every;
  } cases[CASES] = {{0, 0}, {0, 2}, {1e-7, 0}, {1e6, 0}, {1e-7, 2}, {-1, 0}};
  static struct digest straight[CASES][ROUNDS], apart[ROUNDS];
  double a[ROUNDS], b[ROUNDS], near = 0;
  for (int i = 0; i < CASES; i++) {
    const struct open_run run = the_run(cases[i].kl_target < 0 ? near : cases[i].kl_target, cases[i].reference_every);
    play(&run, false, straight[i], a);
    play(&run, true, apart, b);
    for (int v = 0; v < ROUNDS; v++) {
      if (!digest_equal(&straight[i][v], &apart[v])) fail_msg("case %d: round %d made another version", i, v);
      assert_true(a[v] == b[v]);
    }
    if (i == 0) near = last_kl;
    if (cases[i].kl_target == 0) assert_true(a[ROUNDS - 1] == 0);
    if (i == 2) assert_true(a[ROUNDS - 1] > 0.25); /* far above the target: more of it */
    if (i == 3) assert_true(a[ROUNDS - 1] < 0.25);
  }
  for (int i = 1; i < CASES; i++) {
    const int same = cases[i].kl_target == 0 ? cases[i].reference_every : 1; /* rounds before anything has changed */
    for (int v = 0; v < same; v++) assert_true(digest_equal(&straight[i][v], &straight[0][v]));
    assert_false(digest_equal(&straight[i][ROUNDS - 1], &straight[0][ROUNDS - 1]));
  }
}

/* With a reference of the newest version before each round there is nothing to be near to: the KL is exactly zero. */
static void a_reference_of_every_round_is_the_policy(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  const struct open_run run = the_run(0, 1);
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &run, &opened);
  for (int v = 0; v < 3; v++) {
    struct batch_status batch;
    struct step_status step;
    char id[32];
    snprintf(id, sizeof id, "r1.%d.b0", v);
    rig_batch(&g, "r1", id, v, groups[v], GROUPS, &batch, &arena);
    assert_true(batch.state == JOB_DONE && batch.stats.kl_reference_sum == 0);
    snprintf(id, sizeof id, "r1.%d", v);
    const struct submit_step m = step_request("r1", id, v, groups[v], GROUPS, &arena);
    rig_step(&g, &m, &step, &arena);
    if (v == 0) rig_restart(&g);
  }
  rig_end(&g);
}

static void the_controller_is_bounded(void **state) {
  (void)state;
  assert_true(schedule_kl_coefficient(0.5, 2, 2, 10, 100) == 0.5);
  assert_true(fabs(schedule_kl_coefficient(0.5, 2.2, 2, 10, 100) - 0.5 * 1.01) < 1e-15);
  assert_true(fabs(schedule_kl_coefficient(0.5, 9, 2, 10, 100) - 0.5 * 1.02) < 1e-15);
  assert_true(fabs(schedule_kl_coefficient(0.5, 0, 2, 10, 100) - 0.5 * 0.98) < 1e-15);
  assert_true(fabs(schedule_kl_coefficient(0.5, 0, 2, 1000, 100) - 0.5 * 0.8) < 1e-15);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(weights_are_the_same_however_groups_come),
      cmocka_unit_test(a_reference_of_every_round_is_the_policy),
      cmocka_unit_test(the_controller_is_bounded),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/kl_schedule", tests, set_up, tear_down);
}
