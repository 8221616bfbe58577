/* The trainer's place is a lease. What would break: a newcomer with another model ends a healthy run; a restarted
 * trainer is kept from its own place; a name is enough to take another's place; a standby takes it from a living
 * holder, or never gets it; a restarted coordinator forgets whose it was. */
#include "tests/unit/coordinator/fake_server.h"

enum { TTL_MS = 10000 };

static const char *const MINE = "0123456789abcdef0123456789abcdef";
static const char *const OTHERS = "ffffffffffffffffffffffffffffffff";

static enum worker_role enter(struct fixture *f, const char *name, const char *url, const char *identity,
                              struct worker_registered *is) {
  struct err err = {0};
  const struct worker_register m = {.name = name, .kind = WORKER_TRAINER, .url = url, .identity = identity};
  if (coordinator_register(&f->client, &m, is, &f->arena, DEADLINE_MS, &err) != RC_OK) fail_msg("%s", err.message);
  return is->role;
}

static enum rc beat(struct fixture *f, const struct worker_registered *is, struct worker_heartbeat_answer *answer) {
  struct err err = {0};
  const struct worker_heartbeat m = {.epoch = is->epoch, .ready = true};
  return coordinator_heartbeat(&f->client, is->worker_id, &m, answer, &f->arena, DEADLINE_MS, &err);
}

static void leave(struct fixture *f, const struct worker_registered *is) {
  char path[64];
  snprintf(path, sizeof path, "/v1/workers/%s", is->worker_id);
  assert_int_equal(call(f, "DELETE", path, NULL, NULL), 200);
}

/* The fixture's trainer leaves: nobody holds the place. */
static void empty(struct fixture *f) { leave(f, &f->trainer_is); }

static void expect_role(struct fixture *f, const struct worker_registered *is, const char *role) {
  struct json *answer;
  const char *found = "none";
  assert_int_equal(call(f, "GET", "/v1/workers", NULL, &answer), 200);
  const struct json *all = json_get(answer, "workers");
  for (size_t i = 0; i < json_length(all); i++) {
    const struct json *w = json_at(all, i);
    if (strcmp(json_string(json_get(w, "id"), NULL), is->worker_id) == 0)
      found = json_type_of(json_get(w, "role")) == JSON_STRING ? json_string(json_get(w, "role"), NULL) : "null";
  }
  if (strcmp(found, role) != 0) fail_msg("worker %s: role %s, expected %s", is->worker_id, found, role);
  json_free(answer);
}

static void a_newcomer_stands_by_and_the_run_does_not_use_it(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct worker_registered other;
  struct lease_answer a;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(2, "}"));
  poll_leases(f, &s, 4, &a); /* it runs */
  assert_int_equal(enter(f, "newcomer", "http://127.0.0.1:9", OTHERS, &other), ROLE_STANDBY);
  assert_int_equal(other.fence, 0);
  expect_role(f, &other, "standby");
  expect_role(f, &f->trainer_is, "holder");
  expect_role(f, &s.is, "null");
  struct lease_result r = make_result(f, &s, &a.leases[0]);
  struct err err;
  assert_int_equal(put_result(f, &a.leases[0], &r, NULL, &err), RC_OK);
  assert_string_equal(a.current.trainer_url, f->trainer.url);
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  json_free(run);
}

static void a_restarted_trainer_takes_its_place_at_once_whatever_its_name_and_address(void **state) {
  struct fixture *f = *state;
  struct worker_registered first, waits, again;
  struct worker_heartbeat_answer answer;
  empty(f);
  assert_int_equal(enter(f, "trainer", "http://127.0.0.1:9", MINE, &first), ROLE_HOLDER);
  assert_int_equal(enter(f, "other", "http://127.0.0.1:9", OTHERS, &waits), ROLE_STANDBY);
  assert_int_equal(enter(f, "renamed", "http://127.0.0.1:10", MINE, &again), ROLE_HOLDER);
  assert_true(again.fence > first.fence);
  expect_role(f, &again, "holder");
  expect_role(f, &waits, "standby");
  assert_int_equal(beat(f, &first, &answer), RC_NOT_FOUND); /* this incarnation was replaced */
}

static void a_name_alone_displaces_nobody(void **state) {
  struct fixture *f = *state;
  struct worker_registered holder, other;
  struct worker_heartbeat_answer answer;
  struct fake_server s;
  empty(f);
  assert_int_equal(enter(f, "trainer", "http://127.0.0.1:9", MINE, &holder), ROLE_HOLDER);
  assert_int_equal(enter(f, "trainer", "http://127.0.0.1:9", OTHERS, &other), ROLE_STANDBY);
  assert_int_equal(enter(f, "trainer", "http://127.0.0.1:9", NULL, &other), ROLE_STANDBY);
  register_server(f, &s, "trainer"); /* nor does one of another kind */
  assert_int_equal(beat(f, &holder, &answer), RC_OK);
  assert_int_equal(answer.role, ROLE_HOLDER);
  assert_int_equal(answer.fence, holder.fence);
  expect_role(f, &holder, "holder");
}

/* Older clients send none. */
static void trainers_without_an_identity_are_known_by_name(void **state) {
  struct fixture *f = *state;
  struct worker_registered again, other;
  assert_int_equal(enter(f, "trainer", "http://127.0.0.1:9", NULL, &again), ROLE_HOLDER);
  assert_true(again.fence > f->trainer_is.fence);
  assert_int_equal(enter(f, "other", "http://127.0.0.1:9", NULL, &other), ROLE_STANDBY);
}

static void a_free_place_goes_to_the_longest_waiting_under_a_higher_fence(void **state) {
  struct fixture *f = *state;
  struct worker_registered holder, first, second, late;
  struct worker_heartbeat_answer answer;
  empty(f);
  enter(f, "a", "http://127.0.0.1:9", MINE, &holder);
  enter(f, "b", "http://127.0.0.1:9", OTHERS, &first);
  enter(f, "c", "http://127.0.0.1:9", "c", &second);
  leave(f, &holder);
  expect_role(f, &first, "holder");
  expect_role(f, &second, "standby");
  assert_int_equal(beat(f, &first, &answer), RC_OK);
  assert_int_equal(answer.role, ROLE_HOLDER);
  assert_true(answer.fence > holder.fence);
  assert_int_equal(beat(f, &second, &answer), RC_OK);
  assert_int_equal(answer.role, ROLE_STANDBY);
  assert_int_equal(enter(f, "a", "http://127.0.0.1:9", MINE, &late), ROLE_STANDBY); /* it came too late */
}

static void a_holder_that_falls_silent_loses_the_place(void **state) {
  struct fixture *f = *state;
  struct worker_registered holder, waits;
  struct worker_heartbeat_answer answer = {0};
  coordinator_down(f);
  f->options.worker_ttl_ms = TTL_MS;
  coordinator_up(f);
  enter(f, "a", "http://127.0.0.1:9", MINE, &holder);
  enter(f, "b", "http://127.0.0.1:9", OTHERS, &waits);
  time_passes(f, TTL_MS);
  assert_int_equal(beat(f, &waits, &answer), RC_OK);
  assert_int_equal(answer.role, ROLE_STANDBY);
  time_passes(f, 1);
  assert_int_equal(beat(f, &waits, &answer), RC_OK);
  assert_int_equal(answer.role, ROLE_HOLDER);
  assert_int_equal(beat(f, &holder, &answer), RC_NOT_FOUND);
}

static void a_restarted_coordinator_keeps_the_place_for_its_holder(void **state) {
  struct fixture *f = *state;
  struct worker_registered mine, other;
  empty(f);
  enter(f, "a", "http://127.0.0.1:9", MINE, &mine);
  enter(f, "b", "http://127.0.0.1:9", OTHERS, &other);
  coordinator_down(f);
  coordinator_up(f);
  assert_int_equal(enter(f, "b", "http://127.0.0.1:9", OTHERS, &other), ROLE_STANDBY); /* although it comes first */
  assert_int_equal(enter(f, "a", "http://127.0.0.1:9", MINE, &mine), ROLE_HOLDER);
  coordinator_down(f);
  f->options.worker_ttl_ms = TTL_MS;
  coordinator_up(f);
  struct worker_heartbeat_answer answer = {0};
  assert_int_equal(enter(f, "b", "http://127.0.0.1:9", OTHERS, &other), ROLE_STANDBY);
  time_passes(f, TTL_MS - 1); /* the holder does not come back */
  assert_int_equal(beat(f, &other, &answer), RC_OK);
  assert_int_equal(answer.role, ROLE_STANDBY);
  time_passes(f, 1);
  assert_int_equal(beat(f, &other, &answer), RC_OK);
  assert_int_equal(answer.role, ROLE_HOLDER);
}

/* The standby takes the place when the holder leaves, and is checked before anything is trained on it. */
static void a_standby_that_answers_garbage_pauses_the_run_and_the_right_one_goes_on(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct worker_registered garbage;
  register_server(f, &s, "gen-1");
  post_run(f, GRPO(2, "}"));
  struct lease_answer a;
  poll_leases(f, &s, 4, &a);
  enter(f, "garbage", f->url, OTHERS, &garbage); /* the coordinator itself, which opens no runs */
  empty(f);
  json_free(wait_held(f, "r1", "run"));
  leave(f, &garbage);
  register_trainer(f);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  struct lease_result r = make_result(f, &s, &a.leases[0]);
  struct err err;
  assert_int_equal(put_result(f, &a.leases[0], &r, NULL, &err), RC_OK);
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(get_int(run, "version", NULL), 2);
  assert_int_equal(get_int(run, "totals", "trained_tokens"), 72);
  json_free(run);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_newcomer_stands_by_and_the_run_does_not_use_it),
      CASE(a_restarted_trainer_takes_its_place_at_once_whatever_its_name_and_address),
      CASE(a_name_alone_displaces_nobody),
      CASE(trainers_without_an_identity_are_known_by_name),
      CASE(a_free_place_goes_to_the_longest_waiting_under_a_higher_fence),
      CASE(a_holder_that_falls_silent_loses_the_place),
      CASE(a_restarted_coordinator_keeps_the_place_for_its_holder),
      CASE(a_standby_that_answers_garbage_pauses_the_run_and_the_right_one_goes_on),
  };
  return cmocka_run_group_tests_name("coordinator/place", tests, NULL, NULL);
}
