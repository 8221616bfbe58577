/* A device that fails fails the batch it was asked for, with its sentence, before anything of it is answered; then the
 * trainer ends, with that sentence, which main exits with. */
#include "services/trainer-server/engine/engine.h"
#include "tests/unit/trainer-server/support.h"

static enum rc failing_status(const struct ops *ops, struct err *err) {
  (void)ops;
  return err_set(err, RC_INTERNAL, NULL, "cuda:0: lost while adding a gradient");
}

static void a_failed_device_fails_the_batch_and_the_trainer(void **state) {
  struct arena arena = ARENA_INIT;
  struct open_run_answer opened;
  struct batch_status batch;
  struct batch_group group;
  struct err why = {0};
  struct rig g;
  const struct open_run run = run_request("r1");
  (void)state;
  rig_make(&g, "");
  rig_start(&g);
  rig_open(&g, &run, &opened);
  assert_false(trainer_ended(g.trainer, &why));
  ((struct engine *)(void *)g.trainer)->ops->status = failing_status; /* the engine waits for jobs */
  groups_make(&arena, &group, 1, 3);
  rig_batch(&g, "r1", "r1.0.b0", 0, &group, 1, &batch, &arena);
  assert_int_equal(batch.state, JOB_FAILED);
  assert_int_equal(batch.sample_count, 0);
  assert_non_null(strstr(batch.error.message, "cuda:0: lost while adding a gradient"));
  AWAIT(trainer_ended(g.trainer, &why), "the trainer does not end") continue;
  assert_int_equal(why.rc, RC_INTERNAL);
  assert_string_equal(why.message, "cuda:0: lost while adding a gradient");
  rig_end(&g);
  arena_free(&arena);
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(a_failed_device_fails_the_batch_and_the_trainer)};
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/failure", tests, NULL, NULL);
}
