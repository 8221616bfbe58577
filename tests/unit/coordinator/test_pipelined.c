/* Pipelined rounds and refills over real HTTP.  What would break: groups that wait for their round although they are
 * complete; a round that begins its step with a group missing; a refill that depends on who was first; a round that
 * hangs on filtered groups; the next round beginning on prompts that a refill has used. */
#include "service_fixture.h"

#include "services/coordinator/decide/states.h"

/* 3 groups x 4 samples of ten prompts in file order. */
#define RUN(rest)                                                                                                      \
  "{\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"groups_per_round\":3,\"samples_per_group\":4,\"seed\":" \
  "3,"                                                                                                                 \
  "\"sampling\":{\"max_new_tokens\":8}," rest

static int batches_seen(struct fixture *f) {
  pthread_mutex_lock(&f->trainer.lock);
  int n = f->trainer.batches;
  pthread_mutex_unlock(&f->trainer.lock);
  return n;
}

static int64_t query_int(struct fixture *f, const char *sql, int64_t a) {
  struct store *s;
  struct err err = {0};
  int64_t out = -1;
  assert_int_equal(readers_take(core_readers(f->core), &s, &err), RC_OK);
  if (store_int(s, &out, &err, sql, BINDS(b_int(a))) != RC_OK) fail_msg("%s", err.message);
  readers_give(core_readers(f->core), s);
  return out;
}

static void collect_leases(struct fixture *f, struct fake_server *s, struct lease *leases, int wanted) {
  struct lease_answer a;
  for (int n = 0; n < wanted;) {
    poll_leases(f, s, 64, &a);
    for (size_t i = 0; i < a.lease_count; i++) leases[n++] = a.leases[i];
  }
}

/* right: every other sample is; wrong: all get the same reward, so the group has no advantages. */
static void answer(struct fixture *f, struct fake_server *s, const struct lease *l, bool filtered) {
  struct err err = {0};
  struct lease_result r = make_result(f, s, l);
  for (int i = 0; i < l->sample_count && filtered; i++) make_sample(f, &r.samples[i], l, i, false);
  if (put_result(f, l, &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
}

static void wait_batches(struct fixture *f, int n) {
  int64_t until_ms = clock_monotonic_ms() + DEADLINE_MS;
  while (batches_seen(f) < n) {
    if (clock_monotonic_ms() > until_ms) fail_msg("the trainer has seen %d batches, not %d", batches_seen(f), n);
    clock_sleep_ms(2);
  }
}

static void a_complete_group_is_trained_while_others_are_open(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[3];
  register_server(f, &s, "gen-1");
  post_run(f, RUN("\"mode\":\"pipelined\",\"rounds\":1}"));
  collect_leases(f, &s, leases, 3);
  answer(f, &s, &leases[2], false); /* whichever is first */
  wait_batches(f, 1);
  assert_int_equal(query_int(f, "SELECT state FROM rounds WHERE run = ?1", 1), ROUND_OPEN);
  answer(f, &s, &leases[0], false);
  wait_batches(f, 2);
  assert_int_equal(f->trainer.steps, 0);
  assert_int_equal(query_int(f, "SELECT state FROM rounds WHERE run = ?1", 1), ROUND_OPEN);
  answer(f, &s, &leases[1], false);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(f->trainer.batches, 3);
  assert_int_equal(f->trainer.last_groups, 3);
  assert_true(f->trainer.last_denominator == 36);
  assert_int_equal(query_int(f, "SELECT count(*) FROM groups WHERE run = ?1 AND state = 3", 1), 3);
}

/* Four rows more make every token take nearly half a second more, and the trainer's group takes as long as is told. */
static void tell_costs(struct fixture *f, const struct fake_server *s) {
  struct step_sum sums[] = {{0, 10, 10, 10 * 128000}, {2, 10, 40, 10 * 428000}, {4, 10, 120, 10 * 1228000}};
  const struct worker_heartbeat m = {.epoch = s->is.epoch,
                                     .ready = true,
                                     .has_loaded = s->has_loaded,
                                     .loaded_digest = s->loaded,
                                     .steps = sums,
                                     .step_count = 3};
  struct worker_heartbeat_answer answer;
  struct err err = {0};
  if (coordinator_heartbeat(&f->client, s->is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
}

/* The first round measures, the second begins with one group, and gets the others in time without being asked again. */
static void a_round_begins_with_few_groups_where_rows_are_dear(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[3];
  struct lease_answer a;
  struct err err = {0};
  f->trainer.compute_us = 3000000;
  register_server(f, &s, "gen-1");
  post_run(f, RUN("\"mode\":\"pipelined\",\"rounds\":2}"));
  collect_leases(f, &s, leases, 3);
  tell_costs(f, &s);
  for (int i = 0; i < 3; i++) answer(f, &s, &leases[i], false);
  poll_leases(f, &s, 64, &a);
  const int64_t begun_ms = clock_monotonic_ms();
  assert_int_equal(a.lease_count, 1);
  assert_int_equal(a.leases[0].sample_count, 4);
  if (poll_once(f, &s, 60, 10000, &a, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(a.lease_count, 1);
  assert_in_range(clock_monotonic_ms() - begun_ms, 150, 3000);
}

static void in_sync_nothing_is_sent_before_the_last_group(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[3];
  register_server(f, &s, "gen-1");
  post_run(f, RUN("\"mode\":\"sync\",\"rounds\":1}"));
  collect_leases(f, &s, leases, 3);
  answer(f, &s, &leases[0], false);
  answer(f, &s, &leases[1], false);
  clock_sleep_ms(300);
  assert_int_equal(batches_seen(f), 0);
  answer(f, &s, &leases[2], false);
  json_free(wait_state(f, "r1", "completed"));
}

/* The last group is filtered after all others are trained: nothing but its filtering is left to begin the step. */
static void a_round_whose_last_group_is_filtered_goes_on(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[3];
  register_server(f, &s, "gen-1");
  post_run(f, RUN("\"filter\":{\"zero_advantage\":\"shrink\"},\"rounds\":1}"));
  collect_leases(f, &s, leases, 3);
  answer(f, &s, &leases[0], false);
  answer(f, &s, &leases[1], false);
  wait_batches(f, 1);
  clock_sleep_ms(100);
  answer(f, &s, &leases[2], true);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(f->trainer.last_groups, 2);
}

/* Round 0: groups 0, 1, 2 and the refills 3 and 4 (group 3 is filtered too).  Round 1 begins with prompt 5.  In both
 * orders of completion. */
static void refills_are_the_next_prompts_whoever_is_first(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[3], more;
  for (int order = 0; order < 2; order++) {
    char run[16];
    snprintf(run, sizeof run, "r%d", order + 1);
    register_server(f, &s, "gen-1");
    post_run(f, RUN("\"filter\":{\"zero_advantage\":\"refill\"},\"rounds\":2}"));
    collect_leases(f, &s, leases, 3);
    answer(f, &s, &leases[order ? 2 : 0], true);
    collect_leases(f, &s, &more, 1);
    assert_int_equal(more.group_ordinal, 3);
    assert_int_equal(more.prompt_ids.items[0], '3');
    if (order) { /* the refill is filtered before or after the others are done */
      answer(f, &s, &leases[0], false);
      answer(f, &s, &leases[1], false);
    }
    answer(f, &s, &more, true);
    collect_leases(f, &s, &more, 1);
    assert_int_equal(more.group_ordinal, 4);
    assert_int_equal(more.prompt_ids.items[0], '4');
    answer(f, &s, &more, false);
    if (!order) {
      answer(f, &s, &leases[1], false);
      answer(f, &s, &leases[2], false);
    }
    collect_leases(f, &s, leases, 3);
    assert_int_equal(leases[0].round, 1);
    assert_int_equal(leases[0].group_ordinal, 0);
    assert_int_equal(leases[0].prompt_ids.items[0], '5');
    assert_int_equal(leases[2].prompt_ids.items[0], '7');
    for (int i = 0; i < 3; i++) answer(f, &s, &leases[i], false);
    json_free(wait_state(f, run, "completed"));
    assert_int_equal(query_int(f, "SELECT count(*) FROM groups WHERE run = ?1 AND round = 0 AND state = 3", order + 1),
                     3);
    assert_int_equal(query_int(f, "SELECT groups_refilled FROM rounds WHERE run = ?1 AND round = 0", order + 1), 2);
    assert_int_equal(query_int(f, "SELECT count(*) FROM refills WHERE run = ?1", order + 1), 2);
  }
}

static void refills_have_an_end(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[3];
  register_server(f, &s, "gen-1");
  post_run(f, RUN("\"filter\":{\"zero_advantage\":\"refill\",\"refill_max\":2},\"rounds\":1}"));
  collect_leases(f, &s, leases, 3);
  for (int i = 0; i < 3; i++) answer(f, &s, &leases[i], true);
  collect_leases(f, &s, leases, 2);
  for (int i = 0; i < 2; i++) answer(f, &s, &leases[i], true);
  struct json *run = wait_state(f, "r1", "completed");
  assert_int_equal(f->trainer.last_groups, 0); /* a step over nothing */
  assert_int_equal(query_int(f, "SELECT groups_filtered FROM rounds WHERE run = ?1", 1), 5);
  json_free(run);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_complete_group_is_trained_while_others_are_open), CASE(a_round_begins_with_few_groups_where_rows_are_dear),
      CASE(in_sync_nothing_is_sent_before_the_last_group),     CASE(a_round_whose_last_group_is_filtered_goes_on),
      CASE(refills_are_the_next_prompts_whoever_is_first),     CASE(refills_have_an_end),
  };
  return cmocka_run_group_tests_name("coordinator/pipelined", tests, NULL, NULL);
}
