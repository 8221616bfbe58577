/* Whose messages a trainer takes (I9).  What would break: a refused message, or a checkpoint, that teaches an epoch
 * which the real coordinator will never reach; a zombie's message that is taken; a trainer that stands by and trains
 * all the same; a restarted trainer that is a stranger. */
#include "services/trainer-server/board/authority.h"
#include "services/trainer-server/publish/identity.h"
#include "tests/unit/trainer-server/peers.h"

static const uint64_t HUGE_EPOCH = INT64_MAX;

/* --- without a coordinator --- */

static void a_refused_message_teaches_no_epoch(void **state) {
  (void)state;
  struct rig g;
  struct open_run_answer opened;
  struct arena arena = ARENA_INIT;
  struct batch_group groups[1];
  struct err err = {0};
  rig_make(&g, "");
  rig_start(&g);
  const struct open_run run = run_request("r1");
  rig_open(&g, &run, &opened);
  groups_make(&arena, groups, 1, 1);
  struct submit_batch batch = {
      .batch_id = "r9.0.b0", .run = "r9", .epoch = HUGE_EPOCH, .fence = HUGE_EPOCH, .groups = groups, .group_count = 1};
  assert_rc(RC_CONFLICT, trainer_submit_batch(&g.client, &batch, WAIT_MS, &err), err);
  assert_string_equal(err.field, "run");
  struct submit_step step = step_request("r9", "r9.0", 0, groups, 1, &arena);
  step.epoch = step.fence = HUGE_EPOCH;
  assert_rc(RC_CONFLICT, trainer_submit_step(&g.client, &step, WAIT_MS, &err), err);
  struct open_run other = run;
  other.epoch = other.fence = HUGE_EPOCH;
  other.training.lr *= 2; /* under the same name */
  struct open_run_answer refused;
  assert_rc(RC_CONFLICT, trainer_open_run(&g.client, &other, &refused, &arena, WAIT_MS, &err), err);
  write_text(g.state_dir, "r2", "in the way");
  other.run = "r2"; /* taken, and then refused for the disk */
  assert_rc(RC_IO, trainer_open_run(&g.client, &other, &refused, &arena, WAIT_MS, &err), err);
  rig_open(&g, &run, &opened);
  rig_round(&g, "r1", 0, groups, 1);
  arena_free(&arena);
  rig_end(&g);
}

/* --- with one --- */

struct tied {
  struct fake_coordinator coordinator;
  struct rig g;
  struct heartbeat *heartbeat;
};

static int counted(struct tied *t, const int *count) {
  pthread_mutex_lock(&t->coordinator.lock);
  const int n = *count;
  pthread_mutex_unlock(&t->coordinator.lock);
  return n;
}

static void wait_above(struct tied *t, const int *count, int seen) {
  AWAIT(counted(t, count) > seen, "no more than %d came", seen) continue;
}

static void heartbeat_up(struct tied *t) {
  struct err err = {0};
  const struct heartbeat_options tie = {.coordinator_url = t->coordinator.url,
                                        .name = "trainer",
                                        .advertise_url = t->g.url,
                                        .identity = "0123456789abcdef0123456789abcdef"};
  struct board_view v = {0};
  assert_rc(RC_OK, heartbeat_start(&t->heartbeat, &tie, trainer_board(t->g.trainer), t->g.publisher, &err), err);
  AWAIT(v.registered, "the trainer is not registered") board_view(trainer_board(t->g.trainer), &v);
}

static void tied_make(struct tied *t) {
  memset(t, 0, sizeof *t);
  fake_coordinator_start(&t->coordinator); /* epoch 3, fence 5 */
  rig_make(&t->g, t->coordinator.url);
  t->g.options.coordinator_url = t->g.coordinator_url;
  rig_start(&t->g);
}

static void tied_end(struct tied *t) {
  heartbeat_stop(t->heartbeat);
  rig_end(&t->g);
  fake_coordinator_stop(&t->coordinator);
}

static enum rc open_under(struct tied *t, uint64_t epoch, uint64_t fence, const char *field) {
  struct arena arena = ARENA_INIT;
  struct open_run_answer answer;
  struct err err = {0};
  struct open_run m = run_request("r1");
  m.epoch = epoch;
  m.fence = fence;
  const enum rc rc = trainer_open_run(&t->g.client, &m, &answer, &arena, WAIT_MS, &err);
  if (rc == RC_CONFLICT) assert_string_equal(err.field, field);
  if (rc != RC_OK && rc != RC_CONFLICT) fail_msg("%s", err.message);
  arena_free(&arena);
  return rc;
}

static void nothing_but_what_registration_brought_is_believed(void **state) {
  (void)state;
  struct tied t;
  tied_make(&t);
  assert_int_equal(open_under(&t, 3, 5, "epoch"), RC_CONFLICT); /* it does not know its coordinator yet */
  heartbeat_up(&t);
  assert_int_equal(open_under(&t, HUGE_EPOCH, HUGE_EPOCH, "epoch"), RC_CONFLICT);
  assert_int_equal(open_under(&t, 3, 6, "fence"), RC_CONFLICT);
  assert_int_equal(open_under(&t, 2, 5, "epoch"), RC_CONFLICT); /* zombies */
  assert_int_equal(open_under(&t, 3, 4, "fence"), RC_CONFLICT);
  expect(&t.g, "GET", "/v1/model", NULL, 200, "\"run\":null");
  assert_int_equal(open_under(&t, 3, 5, NULL), RC_OK);
  tied_end(&t);
}

static void a_message_of_a_newer_epoch_makes_the_trainer_ask_at_once(void **state) {
  (void)state;
  struct tied t;
  tied_make(&t);
  t.coordinator.heartbeat_ms = 60000;
  heartbeat_up(&t);
  pthread_mutex_lock(&t.coordinator.lock);
  t.coordinator.epoch = 4; /* it was started again */
  const int registrations = t.coordinator.registrations;
  pthread_mutex_unlock(&t.coordinator.lock);
  assert_int_equal(open_under(&t, 4, 6, "epoch"), RC_CONFLICT);
  wait_above(&t, &t.coordinator.registrations, registrations);
  AWAIT(open_under(&t, 4, 6, "epoch") == RC_OK, "the new epoch is not taken") continue;
  assert_int_equal(open_under(&t, 4, 6, NULL), RC_OK);
  assert_int_equal(open_under(&t, 3, 6, "epoch"), RC_CONFLICT);
  tied_end(&t);
}

/* As one that was written before refused messages stopped teaching. */
static void a_checkpoint_with_a_huge_epoch_locks_no_state_directory(void **state) {
  (void)state;
  struct tied t;
  struct batch_group groups[1];
  struct arena arena = ARENA_INIT;
  tied_make(&t);
  authority_learn(trainer_board(t.g.trainer), HUGE_EPOCH, HUGE_EPOCH, false);
  assert_int_equal(open_under(&t, HUGE_EPOCH, HUGE_EPOCH, NULL), RC_OK);
  rig_stop(&t.g);
  rig_start(&t.g);
  heartbeat_up(&t);
  expect(&t.g, "GET", "/v1/model", NULL, 200, "\"run\":\"r1\"");
  assert_int_equal(open_under(&t, 3, 5, NULL), RC_OK);
  groups_make(&arena, groups, 1, 1);
  rig_round(&t.g, "r1", 0, groups, 1);
  arena_free(&arena);
  tied_end(&t);
}

static void a_coordinator_with_a_new_database_is_the_authority(void **state) {
  (void)state;
  struct tied t;
  tied_make(&t);
  heartbeat_up(&t);
  assert_int_equal(open_under(&t, 3, 5, NULL), RC_OK);
  pthread_mutex_lock(&t.coordinator.lock);
  t.coordinator.epoch = 1;
  t.coordinator.fence = 0;
  const int registrations = t.coordinator.registrations;
  pthread_mutex_unlock(&t.coordinator.lock);
  wait_above(&t, &t.coordinator.registrations, registrations);
  AWAIT(open_under(&t, 1, 1, "epoch") == RC_OK, "the new authority is not followed") continue;
  assert_int_equal(open_under(&t, 1, 1, NULL), RC_OK);
  assert_int_equal(open_under(&t, 3, 5, "epoch"), RC_CONFLICT); /* the old one is a zombie now */
  tied_end(&t);
}

static void a_trainer_that_stands_by_takes_nothing_until_a_heartbeat_gives_it_the_place(void **state) {
  (void)state;
  struct tied t;
  tied_make(&t);
  t.coordinator.role = ROLE_STANDBY;
  heartbeat_up(&t);
  assert_int_equal(open_under(&t, 3, 5, "fence"), RC_CONFLICT);
  pthread_mutex_lock(&t.coordinator.lock);
  t.coordinator.role = ROLE_HOLDER;
  t.coordinator.fence = 7;
  pthread_mutex_unlock(&t.coordinator.lock);
  AWAIT(open_under(&t, 3, 7, "fence") == RC_OK, "it does not take the place") continue;
  assert_int_equal(open_under(&t, 3, 7, NULL), RC_OK);
  assert_int_equal(open_under(&t, 3, 5, "fence"), RC_CONFLICT);
  assert_string_equal(t.coordinator.identity, "0123456789abcdef0123456789abcdef");
  tied_end(&t);
}

/* --- who it is --- */

static void an_identity_is_drawn_once_and_kept(void **state) {
  (void)state;
  char dir[PATH], state_dir[PATH + 16], first[IDENTITY_MAX], again[IDENTITY_MAX], other[IDENTITY_MAX];
  struct err err = {0};
  folder_make(dir);
  snprintf(state_dir, sizeof state_dir, "%s/model", dir);
  assert_rc(RC_OK, identity_read(first, state_dir, &err), err);
  assert_int_equal(strlen(first), 32);
  assert_rc(RC_OK, identity_read(again, state_dir, &err), err);
  assert_string_equal(first, again);
  write_text(state_dir, "trainer-id", "0123456789abcdef");
  assert_rc(RC_OK, identity_read(other, state_dir, &err), err);
  assert_int_equal(strlen(other), 32);
  assert_string_not_equal(first, other);
  assert_rc(RC_OK, identity_read(again, state_dir, &err), err);
  assert_string_equal(other, again);
  snprintf(state_dir, sizeof state_dir, "%s/missing", dir); /* nowhere to keep it: it serves this once */
  assert_rc(RC_OK, identity_read(again, state_dir, &err), err);
  assert_int_equal(strlen(again), 32);
  folder_remove(dir);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_refused_message_teaches_no_epoch),
      cmocka_unit_test(nothing_but_what_registration_brought_is_believed),
      cmocka_unit_test(a_message_of_a_newer_epoch_makes_the_trainer_ask_at_once),
      cmocka_unit_test(a_checkpoint_with_a_huge_epoch_locks_no_state_directory),
      cmocka_unit_test(a_coordinator_with_a_new_database_is_the_authority),
      cmocka_unit_test(a_trainer_that_stands_by_takes_nothing_until_a_heartbeat_gives_it_the_place),
      cmocka_unit_test(an_identity_is_drawn_once_and_kept),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/authority", tests, NULL, NULL);
}
