/* Where a run's weights come from.  What would break: a run that goes on from whatever ran before it; a checkpoint that
 * is not the one named; a start that failed and left half of other weights; an evaluation that leaves a trace. */
#include "services/trainer-server/engine/engine.h"
#include "services/trainer-server/engine/memory.h"
#include "tests/unit/trainer-server/support.h"

enum { GROUPS = 2, ROUNDS = 3 };

static struct arena arena;
static struct batch_group groups[ROUNDS][GROUPS];

static int set_up(void **state) {
  rounds_make(&arena, ROUNDS, GROUPS, groups, 60);
  return rig_set_up(state);
}

static int tear_down(void **state) {
  arena_free(&arena);
  return rig_tear_down(state);
}

static const struct run_start model = {.from = START_MODEL}, current = {.from = START_CURRENT};

static struct open_run run_from(const char *run, struct run_start start) {
  struct open_run m = run_request(run);
  m.start = start;
  return m;
}

static struct run_start checkpoint_of(const char *run, int64_t version) {
  return (struct run_start){.from = START_CHECKPOINT, .run = run, .version = version};
}

static struct digest begin(struct rig *g, const char *run, struct run_start start) {
  const struct open_run m = run_from(run, start);
  struct open_run_answer answer;
  rig_open(g, &m, &answer);
  assert_int_equal(answer.version, 0);
  return answer.digest;
}

static void refuse(struct rig *g, const struct open_run *m, enum rc rc, const char *part) {
  struct open_run_answer answer;
  struct err err = {0};
  assert_rc(rc, trainer_open_run(&g->client, m, &answer, &arena, WAIT_MS, &err), err);
  if (!strstr(err.message, part)) fail_msg("expected '%s' in: %s", part, err.message);
}

static void assert_same(const struct digest *a, const struct digest *b) { assert_true(digest_equal(a, b)); }

static void a_run_from_the_model_does_not_depend_on_what_ran_before(void **state) {
  struct rig *g = *state;
  struct digest first[ROUNDS + 1], second[ROUNDS + 1];
  first[0] = begin(g, "r1", model);
  for (int v = 0; v < ROUNDS; v++) first[v + 1] = rig_round(g, "r1", v, groups[v], GROUPS);
  second[0] = begin(g, "r2", model);
  for (int v = 0; v < ROUNDS; v++) second[v + 1] = rig_round(g, "r2", v, groups[v], GROUPS);
  assert_memory_equal(first, second, sizeof first);
  const struct digest third = begin(g, "r3", current);
  assert_same(&third, &second[ROUNDS]);
  assert_false(digest_equal(&third, &first[0]));
}

static void a_run_begins_with_the_checkpoint_that_it_names(void **state) {
  struct rig *g = *state;
  struct digest made[ROUNDS + 1];
  made[0] = begin(g, "r1", model);
  for (int v = 0; v < ROUNDS; v++) made[v + 1] = rig_round(g, "r1", v, groups[v], GROUPS);
  struct digest got = begin(g, "r2", checkpoint_of("r1", 2));
  assert_same(&got, &made[2]);
  got = rig_round(g, "r2", 0, groups[0], GROUPS);
  const struct digest at_two = got;
  got = begin(g, "r3", checkpoint_of("r1", 0));
  assert_same(&got, &made[0]);
  got = begin(g, "r4", checkpoint_of("r1", 2));
  got = rig_round(g, "r4", 0, groups[0], GROUPS);
  assert_same(&got, &at_two); /* the same start, the same run */
}

/* Two are kept, and version 0. */
static void a_checkpoint_that_is_not_kept_is_refused_and_nothing_changes(void **state) {
  struct rig *g = *state;
  begin(g, "r1", model);
  struct digest last = {{0}};
  for (int v = 0; v < ROUNDS; v++) last = rig_round(g, "r1", v, groups[v], GROUPS);
  const struct open_run pruned = run_from("r2", checkpoint_of("r1", 1)),
                        unknown = run_from("r2", checkpoint_of("r9", 0));
  refuse(g, &pruned, RC_INVALID, "keeps no checkpoint of run r1, version 1");
  refuse(g, &pruned, RC_INVALID, "the newest 2 (--keep-checkpoints)");
  refuse(g, &unknown, RC_INVALID, "keeps no checkpoint of run r9, version 0");
  const struct digest got = begin(g, "r3", current);
  assert_same(&got, &last);
}

static void a_start_that_fails_half_way_leaves_the_weights_that_were_current(void **state) {
  struct rig *g = *state;
  struct buf bytes = BUF_INIT;
  struct err err = {0};
  char path[LIMIT_PATH_MAX];
  begin(g, "r1", model);
  rig_round(g, "r1", 0, groups[0], GROUPS);
  const struct digest last = rig_round(g, "r1", 1, groups[1], GROUPS);
  assert_rc(RC_OK, path_format(path, &err, "%s/r1/v1/model.safetensors", g->state_dir), err);
  assert_rc(RC_OK, file_read(&bytes, path, 1 << 20, &err), err);
  bytes.data[bytes.len - 1] ^= 1; /* the last weight: all others have been loaded when it is noticed */
  assert_rc(RC_OK, file_write_atomic(path, bytes.data, bytes.len, &err), err);
  const struct open_run damaged = run_from("r2", checkpoint_of("r1", 1));
  refuse(g, &damaged, RC_CORRUPT, "is damaged");
  buf_free(&bytes);
  write_text(g->model_dir, "model.safetensors", "no tensors");
  const struct open_run other = run_from("r2", model);
  refuse(g, &other, RC_INVALID, "model.safetensors");
  const struct digest got = begin(g, "r2", current);
  assert_same(&got, &last);
}

/* Its checkpoint cannot be written, as on a full disk, and no other run may begin with what is no version. */
static void a_step_that_is_not_durable_is_not_what_a_run_begins_with(void **state) {
  struct rig *g = *state;
  struct arena answers = ARENA_INIT;
  struct batch_status batch;
  struct step_status step;
  char folder[PATH + 64], away[PATH + 64];
  const struct digest version_0 = begin(g, "r1", model);
  snprintf(folder, sizeof folder, "%s/r1", g->state_dir);
  snprintf(away, sizeof away, "%s/away", g->dir);
  assert_int_equal(rename(folder, away), 0);
  write_text(g->state_dir, "r1", "no folder");
  rig_batch(g, "r1", "r1.0.b0", 0, groups[0], GROUPS, &batch, &answers);
  assert_int_equal(batch.state, JOB_DONE);
  const struct submit_step m = step_request("r1", "r1.0", 0, groups[0], GROUPS, &answers);
  rig_step(g, &m, &step, &answers);
  assert_int_equal(step.state, JOB_FAILED);
  const struct digest got = begin(g, "r2", current);
  assert_same(&got, &version_0);
  arena_free(&answers);
}

/* The checkpoints of two would replace each other. */
static void a_folder_of_checkpoints_has_one_trainer(void **state) {
  struct rig *g = *state;
  struct trainer *second = NULL;
  struct err err = {0};
  begin(g, "r1", model);
  const struct digest made = rig_round(g, "r1", 0, groups[0], GROUPS);
  assert_rc(RC_CONFLICT, trainer_create(&second, &g->options, &err), err);
  assert_string_equal(err.field, "state-dir");
  assert_non_null(strstr(err.message, "another trainer"));
  assert_non_null(strstr(err.message, "stop it, or give --state-dir another folder"));
  rig_round(g, "r1", 1, groups[1], GROUPS); /* the first one goes on */
  rig_stop(g);
  rig_start(g);
  const struct digest got = begin(g, "r2", checkpoint_of("r1", 1));
  assert_same(&got, &made);
}

/* The memory is planned for chunks of --chunk-tokens, and a run's chunks decide its bits. */
static void a_restart_with_smaller_chunks_keeps_the_plan_and_the_run(void **state) {
  struct rig *g = *state;
  struct arena answers = ARENA_INIT;
  struct batch_status batch;
  begin(g, "r1", model);
  const struct digest made = rig_round(g, "r1", 0, groups[0], GROUPS);
  rig_stop(g);
  g->options.chunk_tokens = CHUNK / 2;
  rig_start(g);
  const struct engine *e = trainer_engine(g->trainer);
  assert_int_equal(e->learning.learner_chunk, CHUNK / 2);
  struct open_run again = run_from("r1", model);
  again.current_version = 1;
  refuse(g, &again, RC_INVALID, "(--chunk-tokens)");
  rig_batch(g, "r1", "r1.1.b0", 1, groups[1], GROUPS, &batch, &answers);
  assert_int_equal(batch.state, JOB_FAILED);
  assert_non_null(strstr(batch.error.message, "start the trainer with --chunk-tokens"));
  struct open_run other = run_from("r2", checkpoint_of("r1", 1));
  struct open_run_answer answer;
  other.training.chunk_tokens = CHUNK / 2;
  rig_open(g, &other, &answer);
  assert_same(&answer.digest, &made);
  rig_round(g, "r2", 0, groups[1], GROUPS);
  g->options.chunk_tokens = CHUNK;
  arena_free(&answers);
}

static void an_evaluation_leaves_no_trace(void **state) {
  struct rig *g = *state;
  struct err err = {0};
  struct buf before = BUF_INIT, after = BUF_INIT;
  char latest[LIMIT_PATH_MAX], folder[LIMIT_PATH_MAX];
  begin(g, "r1", model);
  const struct digest last = rig_round(g, "r1", 0, groups[0], GROUPS);
  assert_rc(RC_OK, path_format(latest, &err, "%s/latest", g->state_dir), err);
  assert_rc(RC_OK, path_format(folder, &err, "%s/r2", g->state_dir), err);
  assert_rc(RC_OK, file_read(&before, latest, 1 << 10, &err), err);
  struct open_run evaluation = run_from("r2", model);
  evaluation.training.objective = "evaluate";
  evaluation.start = checkpoint_of("r1", 7);
  refuse(g, &evaluation, RC_INVALID, "keeps no checkpoint");
  evaluation.start = current;
  struct open_run_answer answer;
  rig_open(g, &evaluation, &answer);
  assert_same(&answer.digest, &last);
  assert_rc(RC_OK, file_read(&after, latest, 1 << 10, &err), err);
  assert_string_equal(before.data, after.data);
  assert_false(file_exists(folder));
  struct digest got = begin(g, "r3", current);
  assert_same(&got, &last);
  got = begin(g, "r4", checkpoint_of("r1", 1));
  assert_same(&got, &last);
  buf_free(&before);
  buf_free(&after);
}

/* A run is the same run after a crash, and another one under another start. */
static void a_restart_in_mid_run_keeps_the_run_and_its_start(void **state) {
  struct rig *g = *state;
  struct open_run_answer answer;
  begin(g, "r1", model);
  rig_round(g, "r1", 0, groups[0], GROUPS);
  begin(g, "r2", checkpoint_of("r1", 1));
  const struct digest made = rig_round(g, "r2", 0, groups[1], GROUPS);
  rig_restart(g);
  struct open_run again = run_from("r2", checkpoint_of("r1", 1));
  again.current_version = 1;
  rig_open(g, &again, &answer);
  assert_true(answer.version == 1 && !answer.replaying);
  assert_same(&answer.digest, &made);
  again.start = model;
  refuse(g, &again, RC_CONFLICT, "another seed");
}

/* The coordinator asks before it takes a run. */
static void a_run_that_could_not_be_opened_is_refused_beforehand(void **state) {
  struct rig *g = *state;
  struct check_run_answer answer;
  struct err err = {0};
  struct check_run m = {.start = model, .training = run_request("r1").training};
  assert_rc(RC_OK, trainer_ask_run(&g->client, &m, &answer, &arena, WAIT_MS, &err), err);
  assert_int_equal(answer.context_max, CONTEXT);
  m.training.chunk_tokens = CHUNK + 1;
  assert_rc(RC_INVALID, trainer_ask_run(&g->client, &m, &answer, &arena, WAIT_MS, &err), err);
  assert_string_equal(err.field, "training.chunk_tokens");
  m.training.chunk_tokens = CHUNK;
  m.start = checkpoint_of("r1", 0);
  assert_rc(RC_INVALID, trainer_ask_run(&g->client, &m, &answer, &arena, WAIT_MS, &err), err);
  assert_string_equal(err.field, "start");
  begin(g, "r1", model);
  assert_rc(RC_OK, trainer_ask_run(&g->client, &m, &answer, &arena, WAIT_MS, &err), err);
  m.training.kl_coefficient = 0.5;
  assert_rc(RC_OK, trainer_ask_run(&g->client, &m, &answer, &arena, WAIT_MS, &err), err);
}

static void a_reference_that_could_not_fit_is_refused_beforehand(void **state) {
  struct rig *g = *state;
  struct check_run_answer answer;
  struct err err = {0};
  struct parts parts;
  struct memory_plan plan;
  parts_make(&parts, g->model_dir);
  trainer_memory_plan(&plan, parts.model, &g->options);
  parts_free(&parts);
  rig_stop(g);
  g->options.memory_max = (int64_t)memory_plan_total(&plan);
  rig_start(g);
  struct check_run m = {.start = model, .training = run_request("r1").training};
  assert_rc(RC_OK, trainer_ask_run(&g->client, &m, &answer, &arena, WAIT_MS, &err), err);
  m.training.kl_coefficient = 0.5;
  assert_rc(RC_INVALID, trainer_ask_run(&g->client, &m, &answer, &arena, WAIT_MS, &err), err);
  assert_string_equal(err.field, "training.kl_coefficient");
  assert_non_null(strstr(err.message, "--memory-max"));
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_run_from_the_model_does_not_depend_on_what_ran_before),
      CASE(a_run_begins_with_the_checkpoint_that_it_names),
      CASE(a_checkpoint_that_is_not_kept_is_refused_and_nothing_changes),
      CASE(a_start_that_fails_half_way_leaves_the_weights_that_were_current),
      CASE(a_step_that_is_not_durable_is_not_what_a_run_begins_with),
      CASE(a_folder_of_checkpoints_has_one_trainer),
      CASE(a_restart_with_smaller_chunks_keeps_the_plan_and_the_run),
      CASE(an_evaluation_leaves_no_trace),
      CASE(a_restart_in_mid_run_keeps_the_run_and_its_start),
      CASE(a_run_that_could_not_be_opened_is_refused_beforehand),
      CASE(a_reference_that_could_not_fit_is_refused_beforehand),
  };
  return cmocka_run_group_tests_name("start", tests, NULL, NULL);
}
