/* Rounds that begin with few groups, over real HTTP.  What would break: a ramp that is not kept or never ends; a group
 * that waits for ever for one that failed, for a coordinator that forgot the plan, behind a pause; lost samples that
 * are shut out with the groups to come; evaluation that goes before training; lengths that are known or remembered and
 * not made use of, after a restart too; a plan that nobody sees. */
#include "tests/unit/coordinator/fake_server.h"
#include "services/coordinator/decide/states.h"

#define RUN(groups, rest)                                                                                         \
  "{\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"rounds\":2,\"verify_samples\":false,\"groups_per_" \
  "round\":" #groups ",\"samples_per_group\":4,\"seed\":3" rest "}"
#define SAMPLING ",\"sampling\":{\"max_new_tokens\":8}"

enum { GROUPS = 3, SLOTS = 64, ROUND_MS = 60000 /* longer than any ramp here */ };

static void wait_batches(struct fixture *f, int n) {
  AWAIT(fake_trainer_batches(&f->trainer) >= n, "the trainer has seen %d batches, not %d",
        fake_trainer_batches(&f->trainer), n)
  continue;
}

/* Four rows more make every token take nearly half a second more. */
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

/* Round 0, of so many leases, is measured: rows are dear, and a group takes the trainer 3 s.  The clock stands. */
static void measure(struct fixture *f, struct fake_server *s, const char *config, int leases) {
  struct lease all[16];
  f->trainer.compute_us = 3000000;
  f->clock_stands = true;
  register_server(f, s, "gen-1");
  post_run(f, config);
  collect_leases(f, s, all, leases);
  tell_costs(f, s);
  for (int i = 0, trained = 0; i < leases; i++) {
    answer_lease(f, s, &all[i]);
    trained += all[i].purpose == LEASE_TRAINING;
    wait_batches(f, trained); /* of one group each */
  }
}

/* Round 1 begins: of its groups there is but one, whole. */
static struct lease first_of_round(struct fixture *f, struct fake_server *s) {
  struct lease_answer a;
  poll_leases(f, s, SLOTS, &a);
  assert_int_equal(a.lease_count, 1);
  assert_int_equal(a.leases[0].round, 1);
  assert_int_equal(a.leases[0].sample_count, 4);
  return a.leases[0];
}

static struct lease_answer polled(struct fixture *f, struct fake_server *s, int slots) {
  struct lease_answer a;
  struct err err = {0};
  if (poll_once(f, s, slots, &a, &err) != RC_OK) fail_msg("%s", err.message);
  return a;
}
static void nothing_is_granted(struct fixture *f, struct fake_server *s) {
  const struct lease_answer a = polled(f, s, SLOTS);
  if (a.lease_count) fail_msg("%s was granted", a.leases[0].id);
}

static const struct json *planned(const struct json *run, int round) {
  return json_get(json_at(json_get(run, "history"), (size_t)round), "admission");
}

/* Nobody gets another group before it is due. */
static void a_round_begins_with_few_groups_where_rows_are_dear(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  static struct waiting_poll w;
  measure(f, &s, RUN(3, SAMPLING), GROUPS);
  const struct lease first = first_of_round(f, &s);
  wait_for_leases(&w, f, &s, 60, 10000);
  time_passes(f, 1500);
  assert_true(read_metric(f, "leasehold_waiting_polls") == 1);
  time_passes(f, 1500); /* the second group takes the trainer's 3 s at most */
  assert_true(read_metric(f, "leasehold_waiting_polls") == 0);
  pthread_join(w.thread, NULL);
  assert_int_equal(w.rc, RC_OK);
  assert_int_equal(w.answer.lease_count, 1);
  answer_lease(f, &s, &first);
  answer_lease(f, &s, &w.answer.leases[0]);
  arena_free(&w.arena);
  f->clock_stands = false;
  struct json *run = serve_run(f, &s, "r1", "completed");
  assert_int_equal(json_type_of(planned(run, 0)), JSON_NULL); /* nothing was known */
  assert_int_equal(get_int(planned(run, 1), "first", NULL), 1);
  const int64_t spacing_ms = get_int(planned(run, 1), "spacing_ms", NULL);
  assert_in_range(spacing_ms, 1500, 3000);
  const int64_t end_ms = get_int(planned(run, 1), "expected_end_ms", NULL);
  assert_in_range(end_ms, 3 * 3000, get_int(planned(run, 1), "filled_end_ms", NULL) - 1);
  assert_true(json_type_of(json_get(planned(run, 1), "ordered")) == JSON_BOOL &&
              !json_bool(json_get(planned(run, 1), "ordered")));
  json_free(run);
}

/* One server after the other goes away with the group: it comes first again, alone. */
static void what_was_begun_goes_on_when_it_is_lost(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  measure(f, &s, RUN(3, SAMPLING), GROUPS);
  struct lease first = first_of_round(f, &s);
  for (int fence = 2; fence < 5; fence++) {
    const struct lease before = first;
    register_server(f, &s, "gen-1"); /* another incarnation: what the one before held is lost */
    first = first_of_round(f, &s);
    assert_string_equal(first.id, before.id);
    assert_int_equal(first.fence, fence);
    nothing_is_granted(f, &s);
  }
}

/* Nothing of the round is under way: time need not pass until another group begins. */
static void the_next_group_begins_when_the_pool_would_stand_still(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  static struct waiting_poll w;
  measure(f, &s, RUN(3, SAMPLING), GROUPS);
  const struct lease first = first_of_round(f, &s);
  wait_for_leases(&w, f, &s, 60, 10000);
  answer_lease(f, &s, &first);
  pthread_join(w.thread, NULL);
  assert_int_equal(w.rc, RC_OK);
  assert_int_equal(w.answer.lease_count, 1);
  nothing_is_granted(f, &s);
  answer_lease(f, &s, &w.answer.leases[0]);
  arena_free(&w.arena);
  const struct lease last = first_of_round(f, &s);
  answer_lease(f, &s, &last);
  json_free(wait_state(f, "r1", "completed"));
}

static void a_group_that_fails_lets_another_begin(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  static struct waiting_poll w;
  measure(f, &s, RUN(3, SAMPLING ",\"group_timeout_ms\":1000"), GROUPS);
  const struct lease first = first_of_round(f, &s);
  wait_for_leases(&w, f, &s, 60, 10000);
  time_passes(f, 1400); /* sooner than the ramp */
  pthread_join(w.thread, NULL);
  assert_int_equal(w.rc, RC_OK);
  assert_int_equal(w.answer.lease_count, 1);
  assert_int_equal(read_int_of(f, "SELECT groups_failed FROM rounds WHERE run = 1 AND round = ?1", 1), 1);
  assert_true(w.answer.leases[0].group_ordinal != first.group_ordinal);
  arena_free(&w.arena);
}

/* A refill takes its turn behind the planned groups, and has one. */
static void refills_are_admitted_too(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  measure(f, &s, RUN(3, SAMPLING ",\"filter\":{\"zero_advantage\":\"refill\"}"), GROUPS);
  struct lease l = first_of_round(f, &s);
  answer_lease_alike(f, &s, &l, true);
  for (int g = 1; g <= GROUPS; g++) {
    l = first_of_round(f, &s);
    assert_int_equal(l.group_ordinal, g);
    if (g < GROUPS) nothing_is_granted(f, &s);
    answer_lease(f, &s, &l);
  }
  json_free(wait_state(f, "r1", "completed"));
}

static void evaluation_comes_behind_every_training_group(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  measure(f, &s,
          RUN(3, SAMPLING ",\"evaluation\":{\"path\":\"train.jsonl\",\"every_rounds\":1,\"samples\":1,\"problems\":2}"),
          GROUPS + 2);
  struct lease l = first_of_round(f, &s);
  nothing_is_granted(f, &s);
  for (int g = 1; g < GROUPS; g++) {
    answer_lease(f, &s, &l);
    const struct lease_answer a = polled(f, &s, SLOTS);
    assert_int_equal(a.lease_count, g < GROUPS - 1 ? 1 : 3); /* with the last one evaluation is let in */
    assert_int_equal(a.leases[0].purpose, LEASE_TRAINING);
    l = a.leases[0];
    for (size_t i = 1; i < a.lease_count; i++) {
      assert_int_equal(a.leases[i].purpose, LEASE_EVALUATION);
      answer_lease(f, &s, &a.leases[i]);
    }
  }
  answer_lease(f, &s, &l);
  json_free(wait_state(f, "r1", "completed"));
}

/* The plan is gone with the coordinator: nothing is shut out any more, and nothing is planned in mid-round. */
static void a_coordinator_that_comes_back_fills_every_slot(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  measure(f, &s, RUN(3, SAMPLING), GROUPS);
  const struct lease first = first_of_round(f, &s);
  coordinator_restart(f);
  f->clock_stands = false;
  register_server(f, &s, "gen-1");
  tell_costs(f, &s);
  poll_leases(f, &s, SLOTS, &a);
  assert_int_equal(a.lease_count, GROUPS);
  assert_string_equal(a.leases[0].id, first.id);
  assert_int_equal(a.leases[0].fence, 2);
  for (int i = 0; i < GROUPS; i++) answer_lease(f, &s, &a.leases[i]);
  json_free(wait_state(f, "r1", "completed"));
}

/* Of a paused run nothing is granted; time goes by, and afterwards more may begin. */
static void a_paused_round_goes_on_where_it_was(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  measure(f, &s, RUN(3, SAMPLING), GROUPS);
  struct lease l = first_of_round(f, &s);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/pause", "{}", NULL), 200);
  answer_lease(f, &s, &l);
  time_passes(f, ROUND_MS);
  register_server(f, &s, "gen-1");
  nothing_is_granted(f, &s);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", "{}", NULL), 200);
  const struct lease_answer a = polled(f, &s, SLOTS);
  assert_int_equal(a.lease_count, GROUPS - 1);
  for (size_t i = 0; i < a.lease_count; i++) answer_lease(f, &s, &a.leases[i]);
  json_free(wait_state(f, "r1", "completed"));
}

static void answer_with_length(struct fixture *f, const struct fake_server *s, const struct lease *l, int tokens) {
  struct err err = {0};
  const struct lease_result r =
      make_result_of_length(f, s, l, tokens, tokens < l->max_new_tokens ? FINISH_STOP : FINISH_LENGTH);
  if (put_result(f, l, &r, NULL, &err) != RC_OK) fail_msg("%s: %s", l->id, err.message);
}

static void answer_at_full_length(struct fixture *f, const struct fake_server *s, const struct lease *l) {
  answer_with_length(f, s, l, l->max_new_tokens);
}

enum { KNOWN = 10, KNOWN_SAMPLES = 16 }; /* groups of a round; four of them fill the slots */
static const int known_lengths[KNOWN] = {14, 12, 9, 3, 11, 8, 2, 7, 20, 25};

/* So many prompts; told: each says how long its samples are. */
static void write_prompts(struct fixture *f, int lines, bool told) {
  char text[4096] = "";
  size_t n = 0;
  for (int i = 0; i < lines; i++) {
    n += (size_t)snprintf(text + n, sizeof text - n, "{\"prompt\":\"%d+0=\",\"answer\":\"%d\"", i, i);
    if (told) n += (size_t)snprintf(text + n, sizeof text - n, ",\"max_new_tokens\":%d", known_lengths[i % KNOWN]);
    n += (size_t)snprintf(text + n, sizeof text - n, "}\n");
  }
  write_data(f, "train.jsonl", text);
}

static void post_rounds(struct fixture *f, int rounds, bool told, const char *update) {
  char config[512];
  snprintf(config, sizeof config,
           "{\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"rounds\":%d,\"verify_samples\":false,"
           "\"groups_per_round\":10,%s\"samples_per_group\":16,\"lease_samples_max\":8,\"sampling\":"
           "{\"max_new_tokens\":60,\"ignore_eos\":%s}}",
           rounds, update, told ? "true" : "false");
  post_run(f, config);
}

/* Round 0 where every prompt says how long its samples are, and a batch takes the trainer so long. */
static void measure_known_lengths(struct fixture *f, struct fake_server *s, int64_t compute_us, const char *update) {
  struct lease all[2 * KNOWN];
  write_prompts(f, KNOWN, true);
  f->trainer.compute_us = compute_us;
  f->clock_stands = true;
  register_server(f, s, "gen-1");
  post_rounds(f, 2, true, update);
  collect_leases(f, s, all, 2 * KNOWN);
  tell_costs(f, s);
  for (int i = 0; i < 2 * KNOWN; i++) {
    answer_at_full_length(f, s, &all[i]);
    wait_batches(f, (i + 1) / 2);
  }
}

/* A round whose samples are as long as their prompts' places say; so many batches were trained before. */
static void round_of_lengths(struct fixture *f, struct fake_server *s, int batches) {
  struct lease all[2 * KNOWN];
  collect_leases(f, s, all, 2 * KNOWN);
  tell_costs(f, s);
  for (int i = 0; i < 2 * KNOWN; i++) {
    answer_with_length(f, s, &all[i], known_lengths[all[i].group_ordinal]);
    wait_batches(f, batches + (i + 1) / 2);
  }
}

/* An epoch later the longest samples are expected of the same prompts. */
static void the_longest_prompt_goes_first(struct fixture *f, struct fake_server *s, int64_t round) {
  struct lease_answer a;
  bool longest_begun = false;
  poll_leases(f, s, 2 * KNOWN_SAMPLES, &a);
  assert_int_equal(a.leases[0].round, round);
  assert_int_equal(a.lease_count, 4);
  for (size_t i = 0; i < a.lease_count; i++) longest_begun = longest_begun || a.leases[i].group_ordinal == 9;
  assert_true(longest_begun);
}

static void the_longest_go_first_where_an_epoch_before_has_told(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  write_prompts(f, KNOWN, false);
  f->trainer.compute_us = 1000;
  f->clock_stands = true;
  register_server(f, &s, "gen-1");
  post_rounds(f, 2, false, "");
  round_of_lengths(f, &s, 0);
  the_longest_prompt_goes_first(f, &s, 1);
}

/* Round 3 has the prompts of round 1, which another life of the coordinator has seen. */
static void lengths_are_remembered_over_a_restart(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  write_prompts(f, 2 * KNOWN, false);
  f->trainer.compute_us = 1000;
  f->clock_stands = true;
  register_server(f, &s, "gen-1");
  post_rounds(f, 4, false, "");
  round_of_lengths(f, &s, 0);
  round_of_lengths(f, &s, KNOWN);
  coordinator_restart(f);
  f->clock_stands = false;
  register_server(f, &s, "gen-1");
  round_of_lengths(f, &s, 2 * KNOWN);
  the_longest_prompt_goes_first(f, &s, 3);
}

static void the_longest_go_first_where_lengths_are_known(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease all[KNOWN][2];
  measure_known_lengths(f, &s, 1000, "");
  for (int i = 0; i < KNOWN; i++) { /* as slots become free */
    struct lease_answer a;
    poll_leases(f, &s, KNOWN_SAMPLES, &a);
    assert_int_equal(a.lease_count, 2);
    assert_int_equal(a.leases[0].group_ordinal, a.leases[1].group_ordinal);
    memcpy(all[i], a.leases, sizeof all[i]);
  }
  bool longest_begun = false;
  for (int i = 0; i < 4; i++) longest_begun = longest_begun || all[i][0].max_new_tokens == 25; /* so many at once */
  assert_true(longest_begun);
  assert_true(all[KNOWN - 1][0].max_new_tokens <= 10 && all[KNOWN - 2][0].max_new_tokens <= 10); /* in the tail */
  for (int i = 0; i < 2 * KNOWN; i++) answer_at_full_length(f, &s, &all[i / 2][i % 2]);
  struct json *run = wait_state(f, "r1", "completed");
  assert_true(json_bool(json_get(planned(run, 1), "ordered")));
  json_free(run);
}

/* Two groups are lost, the second of them half done: the first comes first again, though it lacks more. */
static void what_is_lost_keeps_its_place_in_the_order(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer before, after;
  measure_known_lengths(f, &s, 1000, "");
  poll_leases(f, &s, 2 * KNOWN_SAMPLES, &before);
  assert_int_equal(before.lease_count, 4);
  answer_at_full_length(f, &s, &before.leases[2]);
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 2 * KNOWN_SAMPLES, &after);
  for (int i = 0; i < 2; i++) assert_string_equal(after.leases[i].id, before.leases[i].id);
  assert_string_equal(after.leases[2].id, before.leases[3].id);
}

static void first_grants(struct fixture *f, struct fake_server *s, bool *begun) {
  struct lease_answer a;
  poll_leases(f, s, 2 * KNOWN_SAMPLES, &a);
  assert_int_equal(a.lease_count, 4);
  for (int i = 0; i < KNOWN; i++) begun[i] = false;
  for (size_t i = 0; i < a.lease_count; i++) begun[a.leases[i].group_ordinal] = true;
}

/* A trainer that takes long is given the shortest group first; but the first step's where it goes step by step. */
static void the_shortest_goes_first_unless_steps_go_by_ordinals(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  bool begun[KNOWN];
  measure_known_lengths(f, &s, 100000000, "");
  first_grants(f, &s, begun);
  assert_true(begun[6]); /* of 2 tokens */
}

static void the_first_step_goes_first_where_steps_go_by_ordinals(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  bool begun[KNOWN];
  measure_known_lengths(f, &s, 100000000, "\"update\":\"minibatch\",\"groups_per_step\":2,");
  first_grants(f, &s, begun);
  assert_true(begun[0] && begun[1]);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_round_begins_with_few_groups_where_rows_are_dear),
      CASE(what_was_begun_goes_on_when_it_is_lost),
      CASE(the_next_group_begins_when_the_pool_would_stand_still),
      CASE(a_group_that_fails_lets_another_begin),
      CASE(refills_are_admitted_too),
      CASE(evaluation_comes_behind_every_training_group),
      CASE(a_coordinator_that_comes_back_fills_every_slot),
      CASE(a_paused_round_goes_on_where_it_was),
      CASE(the_longest_go_first_where_lengths_are_known),
      CASE(the_longest_go_first_where_an_epoch_before_has_told),
      CASE(lengths_are_remembered_over_a_restart),
      CASE(what_is_lost_keeps_its_place_in_the_order),
      CASE(the_shortest_goes_first_unless_steps_go_by_ordinals),
      CASE(the_first_step_goes_first_where_steps_go_by_ordinals),
  };
  return cmocka_run_group_tests_name("coordinator/planned_rounds", tests, NULL, NULL);
}
