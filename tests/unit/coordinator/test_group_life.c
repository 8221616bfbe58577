/* The life of a group beyond the plain case, over real HTTP. What would break: a sample that nobody finishes holds up
 * its round for ever; time in which nobody could work counts against a group; a filtered group is not refilled, or
 * twice; the counts that dispatch orders by drift from the truth; masked segments are trained on; dispatch does not
 * learn the latency. */
#include <math.h>

#include "tests/unit/coordinator/fake_server.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/writer/core_state.h"

#define TIMED(ms)                                                                                               \
  "{\"rounds\":1,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false," \
  "\"groups_per_round\":3,"                                                                                     \
  "\"samples_per_group\":4,\"group_timeout_ms\":" #ms                                                           \
  ",\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"}}"

/* Sends a heartbeat that names the lease; true when the answer says that the lease is lost. */
static bool beat(struct fixture *f, const struct fake_server *s, const struct lease *l, bool ready) {
  struct err err = {0};
  struct lease_ref held = {l->id, l->fence};
  struct worker_heartbeat_answer answer;
  const struct worker_heartbeat m = {.epoch = s->is.epoch,
                                     .ready = ready,
                                     .has_loaded = true,
                                     .loaded_digest = s->loaded,
                                     .leases = &held,
                                     .lease_count = 1};
  if (coordinator_heartbeat(&f->client, s->is.worker_id, &m, &answer, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
  return answer.lost_count == 1 && strcmp(answer.lost[0], l->id) == 0;
}

/* ---- time-outs ---- */

static void a_group_that_takes_too_long_has_failed_and_its_round_goes_on(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err = {0};
  post_run(f, TIMED(600));
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 8, &a); /* two of three groups: the round goes on after the failure */
  assert_int_equal(a.lease_count, 2);
  answer_lease(f, &s, &a.leases[0]);
  time_passes(f, 0);                          /* time counts from the first look that finds a ready server */
  for (int64_t ms = 0; ms < 600; ms += 100) { /* the lease is renewed, but no result comes */
    assert_false(beat(f, &s, &a.leases[1], true));
    time_passes(f, 100);
  }
  assert_true(beat(f, &s, &a.leases[1], true));
  assert_int_equal(read_int(f, "SELECT groups_open FROM rounds WHERE state = 0"), 1);
  struct lease_result late = make_result(f, &s, &a.leases[1]);
  assert_int_equal(put_result(f, &a.leases[1], &late, NULL, &err), RC_CONFLICT);
  assert_non_null(strstr(err.message, "superseded"));
  struct json *run = serve_run(f, &s, "r1", "completed");
  const struct json *round = json_at(json_get(run, "history"), 0);
  assert_true(json_number(json_get(round, "completion_tokens_mean")) == 3); /* over the samples that came */
  json_free(run);
  assert_int_equal(read_int(f, "SELECT groups_failed FROM rounds"), 1);
  assert_int_equal(read_int(f, "SELECT groups_trained FROM rounds"), 2);
  assert_int_equal(read_int(f, "SELECT groups_open FROM rounds"), 0);
  assert_int_equal(read_int(f, "SELECT exact FROM rounds"), 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE state = 3 AND group_ordinal = 1"), 4);
  assert_int_equal(read_int(f, "SELECT count(*) FROM leases WHERE state = 5 AND group_ordinal = 1"), 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'group_timeout' AND subject = 'r1.0.1'"),
                   1);
  pthread_mutex_lock(&f->trainer.lock);
  assert_int_equal(f->trainer.last_groups, 2);
  pthread_mutex_unlock(&f->trainer.lock);
}

static void generation_ends_when_the_last_open_group_fails(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  post_run(f, TIMED(300));
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  answer_lease(f, &s, &a.leases[0]);
  time_passes(f, 300);
  json_free(wait_state(f, "r1", "completed")); /* although no poll and no result comes any more */
  assert_int_equal(read_int(f, "SELECT groups_failed FROM rounds"), 2);
}

static void a_group_that_nobody_took_yet_does_not_fail(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  post_run(f, TIMED(200));
  register_server(f, &s, "gen-1");
  report_ready(f, &s);
  poll_leases(f, &s, 4, &a);
  answer_lease(f, &s, &a.leases[0]);
  time_passes(f, 700);
  assert_int_equal(read_int(f, "SELECT groups_failed FROM rounds"), 0);
}

static void time_in_which_the_run_is_paused_does_not_count(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  post_run(f, TIMED(800));
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/pause", NULL, NULL), 200);
  time_passes(f, 1500);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  time_passes(f, 300); /* three looks at the time */
  for (int i = 0; i < 3; i++) answer_lease(f, &s, &a.leases[i]);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT groups_failed FROM rounds"), 0);
}

static void time_without_a_ready_server_does_not_count(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  post_run(f, TIMED(800));
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  beat(f, &s, &a.leases[0], false);
  time_passes(f, 1500);
  beat(f, &s, &a.leases[0], true);
  time_passes(f, 300);
  for (int i = 0; i < 3; i++) answer_lease(f, &s, &a.leases[i]);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT groups_failed FROM rounds"), 0);
}

static void a_groups_time_starts_again_after_a_restart(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  post_run(f, TIMED(700));
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  coordinator_down(f);
  time_leaps(f, 900);
  coordinator_up(f);
  register_trainer(f);
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  time_passes(f, 250);
  for (size_t i = 0; i < a.lease_count; i++) answer_lease(f, &s, &a.leases[i]);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT groups_failed FROM rounds"), 0);
}

/* ---- refill ---- */

static void a_filtered_group_is_refilled_once_with_the_next_prompt(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  post_run(f,
           "{\"rounds\":2,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false,\"groups_"
           "per_round\":3,"
           "\"samples_per_group\":4,\"filter\":{\"zero_advantage\":\"refill\",\"refill_max\":2},\"sampling\":{"
           "\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"}}");
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  answer_lease(f, &s, &a.leases[0]);
  answer_lease(f, &s, &a.leases[2]);
  answer_lease_alike(f, &s, &a.leases[1], true); /* the round's last: it must not end without the refill */
  assert_int_equal(read_int(f, "SELECT groups_open FROM rounds"), 1);
  assert_int_equal(read_int(f, "SELECT groups_filtered FROM rounds"), 1);
  assert_int_equal(read_int(f, "SELECT groups_refilled FROM rounds"), 1);
  for (int n = 0; n < 2; n++) { /* two refills are the most, then the round ends */
    poll_leases(f, &s, 64, &a);
    assert_int_equal(a.lease_count, 1);
    assert_int_equal(a.leases[0].group_ordinal, 3 + n);
    assert_int_equal(a.leases[0].prompt_ids.items[0], '3' + n);
    assert_int_equal(a.leases[0].round, 0);
    answer_lease_alike(f, &s, &a.leases[0], true);
  }
  json_free(serve_run(f, &s, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT groups_filtered FROM rounds WHERE round = 0"), 3);
  assert_int_equal(read_int(f, "SELECT groups_refilled FROM rounds WHERE round = 0"), 2);
  assert_int_equal(read_int(f, "SELECT dataset_index FROM groups WHERE round = 1 AND ordinal = 0"), 5);
}

/* ---- counts ---- */

/* The counts of every open group are those of its samples; one without a row was never leased, and waits. */
static void check_counts(struct fixture *f) {
  const int64_t wrong = read_int(
      f,
      "SELECT count(*) FROM groups g WHERE state = 0 AND (samples_waiting, done_samples, done_tokens, samples_open, "
      "waiting_ms IS NULL, leased_ms IS NULL) IS NOT (SELECT sample_count - total(state <> 0), total(state = 2), "
      "total(CASE state WHEN 2 THEN tokens ELSE 0 END), sample_count - total(state = 2), sample_count = total(state <> "
      "0), count(*) = 0 FROM samples s WHERE s.run = g.run AND "
      "s.round = g.round AND s.group_ordinal = g.ordinal)");
  assert_int_equal(wrong, 0);
}

static void give_back(struct fixture *f, const struct fake_server *s, const struct lease *l, int whole) {
  struct err err = {0};
  struct lease_result r = make_result(f, s, l);
  r.handed_back = true;
  for (int i = 0; i < l->sample_count; i++) {
    if (i < whole) continue;
    size_t n = (size_t)(i % 3);
    struct sample_result *p = &r.samples[i];
    if (i < (int)l->partial_count && n < l->partials[i].token_ids.count) n = l->partials[i].token_ids.count;
    p->token_ids.count = p->logprobs.count = n;
    p->segment_count = p->span_count = n ? 1 : 0;
    p->segments[0].count = p->spans[0].count = (int32_t)n;
    p->finish = FINISH_ABORT;
  }
  if (put_result(f, l, &r, NULL, &err) != RC_OK) fail_msg("%s: %s", l->id, err.message);
}

static void the_counts_that_dispatch_orders_by_stay_true(void **state) {
  struct fixture *f = *state;
  struct fake_server servers[3];
  struct lease held[64];
  int holder[64], count = 0;
  uint32_t dice = 7;
  post_run(f,
           "{\"rounds\":50,\"dataset\":{\"path\":\"train.jsonl\"},\"verify_samples\":false,\"groups_per_round\":8,"
           "\"samples_per_group\":6,"
           "\"lease_samples_max\":4,\"sampling\":{\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"}}");
  json_free(wait_state(f, "r1", "running"));
  for (int i = 0; i < 3; i++) register_server(f, &servers[i], i == 0 ? "gen-0" : i == 1 ? "gen-1" : "gen-2");
  for (int step = 0; step < 400; step++) {
    struct lease_answer a;
    struct err err = {0};
    dice = dice * 1664525u + 1013904223u;
    const uint32_t roll = (dice >> 16) % 100;
    const int who = (int)((dice >> 8) % 3), at = count ? (int)((dice >> 4) % (unsigned)count) : 0;
    bool ended = false;
    if (roll < 40 && count < 48) {
      const int slots = 1 + (int)((dice >> 20) % 9);
      if (count == 0)
        poll_leases(f, &servers[who], slots, &a); /* the next round may be still to open */
      else if (poll_once(f, &servers[who], slots, &a, &err) != RC_OK)
        fail_msg("%s", err.message);
      for (size_t i = 0; i < a.lease_count && count < 64; i++) {
        held[count] = a.leases[i];
        holder[count++] = who;
      }
    } else if (roll < 70 && count) {
      answer_lease(f, &servers[holder[at]], &held[at]);
      ended = true;
    } else if (roll < 90 && count) {
      give_back(f, &servers[holder[at]], &held[at], (int)(dice >> 24) % held[at].sample_count);
      ended = true;
    } else if (roll < 97) { /* a new incarnation: all that it held is lost */
      register_server(f, &servers[who], who == 0 ? "gen-0" : who == 1 ? "gen-1" : "gen-2");
      for (int i = count - 1; i >= 0; i--) {
        if (holder[i] != who) continue;
        held[i] = held[--count];
        holder[i] = holder[count];
      }
    } else if (roll == 99) {
      coordinator_down(f);
      coordinator_up(f);
      register_trainer(f);
      for (int i = 0; i < 3; i++) register_server(f, &servers[i], i == 0 ? "gen-0" : i == 1 ? "gen-1" : "gen-2");
      count = 0;
    }
    if (ended) {
      held[at] = held[--count];
      holder[at] = holder[count];
    }
    check_counts(f);
  }
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents"), 0);
  assert_true(read_int(f, "SELECT count(*) FROM leases WHERE state = 4") > 5); /* handed back */
  assert_true(read_int(f, "SELECT count(*) FROM leases WHERE state = 3") > 1); /* lost */
}

/* ---- segments ---- */

static void only_a_sample_that_is_not_plain_has_rows_of_its_segments(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err = {0};
  struct sample_segment parts[2] = {{0, 1, false}, {1, 2, true}};
  post_run(f, GRPO(1, "}"));
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 64, &a);
  struct lease_result r = make_result(f, &s, &a.leases[0]);
  r.samples[1].segments = parts;
  r.samples[1].segment_count = 2;
  if (put_result(f, &a.leases[0], &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
  answer_lease(f, &s, &a.leases[1]);
  answer_lease(f, &s, &a.leases[2]);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT count(*) FROM segments"), 2);
  assert_int_equal(read_int(f, "SELECT count(*) FROM spans"), 0);
  assert_int_equal(read_int(f, "SELECT trained_tokens FROM rounds"), 12 * 3 - 1); /* one token is masked */
  assert_int_equal(read_int(f, "SELECT logprob_unequal FROM rounds"), 0);
}

/* ---- what dispatch knows ---- */

static struct dispatch_rates told;

static enum rc rates_execute(struct core *c, struct command *cmd, struct err *err) {
  (void)cmd, (void)err;
  told = c->pool->rates;
  return RC_OK;
}

/* The penalty shapes what is learned, not what is stored and shown as reward. */
static void an_overlong_sample_loses_advantage_and_keeps_its_reward(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  struct err err = {0};
  post_run(
      f,
      "{\"rounds\":1,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false,"
      "\"groups_per_round\":1,"
      "\"samples_per_group\":4,\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},\"overlong\":{\"buffer\":4},"
      "\"advantage\":{\"kind\":\"leave_one_out\"},\"training\":{\"objective\":\"reinforce\"}}");
  register_server(f, &s, "gen-1");
  poll_leases(f, &s, 4, &a);
  assert_int_equal(a.leases[0].sample_count, 4);
  struct lease_result r = make_result(f, &s, &a.leases[0]);
  const struct lease_result whole = make_result_of_length(f, &s, &a.leases[0], 8, FINISH_LENGTH);
  r.samples[3] = whole.samples[3]; /* wrong, as sample 1 is, and as long as it may be */
  assert_int_equal(put_result(f, &a.leases[0], &r, NULL, &err), RC_OK);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT sum(reward) FROM samples"), 2);
  /* rewards 1, 0, 1, -1: each less the mean of the others */
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE sample IN (0, 2) AND advantage = 1"), 2);
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE sample = 1 AND abs(advantage + 1.0 / 3) < 1e-7"), 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE sample = 3 AND abs(advantage + 5.0 / 3) < 1e-6"), 1);
  assert_int_equal(read_int(f,
                            "SELECT count(*) FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND "
                            "g.ordinal = s.group_ordinal WHERE s.tokens > g.max_new_tokens - 4"),
                   1); /* the overlong share can be counted */
}

static void dispatch_knows_latency_and_length(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  post_run(f, GRPO(1, "}"));
  register_server(f, &s, "gen-1");
  AWAIT(poll_once(f, &s, 64, &a, NULL) == RC_OK && s.has_loaded, "there is no version") a_moment_passes(f);
  report_ready(f, &s);
  time_passes(f, CORE_LOOK_MS); /* what passes before that is seen does not count */
  poll_leases(f, &s, 64, &a);
  time_passes(f, 200);
  answer_lease(f, &s, &a.leases[0]);
  assert_int_equal(core_call(f->core, command_new(rates_execute, 0), NULL), RC_OK);
  assert_true(fabs(rate_value(&told.latency) - 0.2) < 1e-9);
  assert_true(rate_value(&told.tokens) == 3);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_group_that_takes_too_long_has_failed_and_its_round_goes_on),
      CASE(generation_ends_when_the_last_open_group_fails),
      CASE(a_group_that_nobody_took_yet_does_not_fail),
      CASE(time_in_which_the_run_is_paused_does_not_count),
      CASE(time_without_a_ready_server_does_not_count),
      CASE(a_groups_time_starts_again_after_a_restart),
      CASE(a_filtered_group_is_refilled_once_with_the_next_prompt),
      CASE(the_counts_that_dispatch_orders_by_stay_true),
      CASE(only_a_sample_that_is_not_plain_has_rows_of_its_segments),
      CASE(an_overlong_sample_loses_advantage_and_keeps_its_reward),
      CASE(dispatch_knows_latency_and_length),
  };
  return cmocka_run_group_tests_name("coordinator/group_life", tests, NULL, NULL);
}
