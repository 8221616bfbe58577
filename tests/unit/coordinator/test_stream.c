/* The stream of an `inflight` run through the coordinator's API.  What would break: a lease is valid for another range
 * than max_lag versions from its oldest token on; a server whose version is old but not too old stands still; tokens of
 * versions that the lease is not valid for, or that its server cannot have had, are taken; what has become too old is
 * trained on, and what has not is thrown away; samples are issued while the run is paused or too far ahead; the run
 * ends before its last evaluation is in. */
#include <string.h>

#include "services/coordinator/decide/states.h"
#include "tests/unit/coordinator/fake_server.h"

enum { SLOTS = 64, GROUPS = 2, SAMPLES = 2 };

/* Steps of 2 groups of 2 samples; max_lag 1; what is ahead: 4 groups. */
#define STREAM(rounds, more)                                                                                        \
  "{\"mode\":\"inflight\",\"max_lag\":1,\"rounds\":" #rounds                                                        \
  ",\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false,\"groups_per_"     \
  "round\":2,\"samples_per_group\""                                                                                 \
  ":2,\"lease_samples_max\":2,\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},\"training\":{\"objective\":" \
  "\"grpo\"}" more "}"

static int64_t current_version(struct fixture *f) {
  return read_int(f, "SELECT coalesce(max(version), -1) FROM versions WHERE state = 1");
}

static void wait_version(struct fixture *f, int64_t version) {
  AWAIT(current_version(f) >= version, "version %lld is not current", (long long)version) a_moment_passes(f);
  assert_int_equal(current_version(f), version);
}

/* What it has loaded stays. */
static void poll_with(struct fixture *f, const struct fake_server *s, int slots, struct lease_answer *out) {
  struct fake_server as_it_is = *s;
  struct err err = {0};
  if (poll_once(f, &as_it_is, slots, out, &err) != RC_OK) fail_msg("%s", err.message);
}

/* A server with version 0, and all that may be issued at first: so many groups, in as many leases. */
static struct fake_server begin(struct fixture *f, const char *run, struct lease *leases, int groups) {
  struct fake_server s;
  post_run(f, run);
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "gen-1");
  collect_leases(f, &s, leases, groups);
  return s;
}

/* It loads it. */
static void to_version(struct fake_server *s, int64_t version) {
  s->has_loaded = true;
  fake_digest(&s->loaded, "r1", version);
}

/* Of the sample's tokens, so many are of the first version and the others of another one. */
static void two_versions(struct fixture *f, struct sample_result *r, int32_t first, int64_t a, int64_t b) {
  struct version_span *spans = arena_alloc(&f->arena, 2, sizeof *spans);
  const int32_t count = (int32_t)r->token_ids.count;
  spans[0] = (struct version_span){a, 0, first, true};
  spans[1] = (struct version_span){b, first, count - first, false};
  r->spans = spans;
  r->span_count = 2;
}

static void a_lease_is_valid_for_max_lag_versions_and_no_more_are_issued_than_may_be_ahead(void **state) {
  struct fixture *f = *state;
  struct lease leases[2 * GROUPS];
  struct lease_answer a;
  struct fake_server s = begin(f, STREAM(4, ""), leases, 2 * GROUPS);
  for (int i = 0; i < 2 * GROUPS; i++) {
    assert_int_equal(leases[i].version_min, 0);
    assert_int_equal(leases[i].version_max, 1);
    assert_int_equal(leases[i].sample_count, SAMPLES);
    assert_true(digest_equal(&leases[i].weights_digest, &s.loaded));
  }
  poll_with(f, &s, SLOTS, &a);
  assert_int_equal(a.lease_count, 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups"), 2 * GROUPS);
}

/* Two groups make version 1; the others' leases stand, being valid for it. */
static void an_older_version_that_is_not_too_old_has_leases_of_its_own(void **state) {
  struct fixture *f = *state;
  struct lease leases[2 * GROUPS];
  struct lease_answer a;
  struct fake_server s = begin(f, STREAM(4, ""), leases, 2 * GROUPS);
  for (int i = 0; i < GROUPS; i++) answer_lease(f, &s, &leases[i]);
  wait_version(f, 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM leases WHERE state = 0"), GROUPS);
  poll_with(f, &s, SLOTS, &a);
  assert_true(a.current.has && a.current.version == 1);
  assert_int_equal(a.lease_count, GROUPS);
  assert_int_equal(a.leases[0].version_min, 0);
  assert_int_equal(a.leases[0].version_max, 1);
  assert_true(digest_equal(&a.leases[0].weights_digest, &s.loaded));
  struct fake_server newer = s;
  to_version(&newer, 1);
  answer_lease(f, &s, &leases[2]);
  answer_lease(f, &s, &leases[3]);
  wait_version(f, 2);
  poll_with(f, &s, SLOTS, &a); /* version 0 is two behind now */
  assert_int_equal(a.lease_count, 0);
  poll_with(f, &newer, SLOTS, &a);
  assert_true(a.lease_count > 0);
  assert_int_equal(a.leases[0].version_min, 1);
  assert_int_equal(a.leases[0].version_max, 2);
}

static void spans_outside_the_range_or_newer_than_what_is_loaded_are_refused(void **state) {
  struct fixture *f = *state;
  struct lease leases[2 * GROUPS];
  struct err err = {0};
  struct fake_server s = begin(f, STREAM(4, ""), leases, 2 * GROUPS);
  struct lease_result r = make_result(f, &s, &leases[0]);
  two_versions(f, &r.samples[0], 1, 0, 2);
  assert_int_equal(put_result(f, &leases[0], &r, NULL, &err), RC_CONFLICT);
  assert_non_null(strstr(err.message, "valid for 0 to 1"));
  two_versions(f, &r.samples[0], 1, 0, 1);
  assert_int_equal(put_result(f, &leases[0], &r, NULL, &err), RC_CONFLICT);
  assert_non_null(strstr(err.message, "the weights that are loaded are of version 0"));
  fake_digest(&r.loaded_digest, "r1", 1); /* there is no such version yet */
  assert_int_equal(put_result(f, &leases[0], &r, NULL, &err), RC_CONFLICT);
  answer_lease(f, &s, &leases[0]);
  answer_lease(f, &s, &leases[1]);
  wait_version(f, 1);
  r = make_result(f, &s, &leases[2]);
  two_versions(f, &r.samples[0], 1, 0, 1);
  fake_digest(&r.loaded_digest, "r1", 1);
  assert_int_equal(put_result(f, &leases[2], &r, NULL, &err), RC_OK);
  assert_int_equal(read_int(f, "SELECT count(*) FROM spans WHERE run = 1"), 2);
  assert_int_equal(read_int(f,
                            "SELECT version_first * 10 + version_last FROM samples WHERE round = 0 AND "
                            "group_ordinal = 2 AND sample = 0"),
                   1);
}

/* Tokens of version 0 and 1, continued: the lease is as old as the oldest. */
static void what_was_handed_back_keeps_its_versions(void **state) {
  struct fixture *f = *state;
  struct lease leases[2 * GROUPS];
  struct lease_answer a;
  struct err err = {0};
  struct fake_server s = begin(f, STREAM(4, ""), leases, 2 * GROUPS);
  answer_lease(f, &s, &leases[0]);
  answer_lease(f, &s, &leases[1]);
  wait_version(f, 1);
  to_version(&s, 1);
  struct lease_result r = make_result_of_length(f, &s, &leases[2], 3, FINISH_ABORT);
  r.handed_back = true;
  for (int i = 0; i < SAMPLES; i++) two_versions(f, &r.samples[i], 2, 0, 1);
  assert_int_equal(put_result(f, &leases[2], &r, NULL, &err), RC_OK);
  struct fake_server behind = s; /* its version may not go on behind a newer one */
  to_version(&behind, 0);
  poll_with(f, &behind, SAMPLES, &a);
  assert_int_equal(a.lease_count, 0);
  poll_with(f, &s, SAMPLES, &a);
  assert_int_equal(a.lease_count, 1);
  const struct lease *l = &a.leases[0];
  assert_int_equal(l->group_ordinal, 2);
  assert_int_equal(l->fence, 2);
  assert_int_equal(l->version_min, 0);
  assert_int_equal(l->version_max, 1);
  assert_int_equal(l->partial_count, SAMPLES);
  assert_int_equal(l->partials[0].span_count, 2);
  assert_int_equal(l->partials[0].spans[1].version, 1);
  assert_int_equal(l->partials[0].spans[1].start, 2);
  assert_false(l->partials[0].spans[1].fresh);
}

/* Everything is of version 0: group 0 is leased, of group 1 one sample is finished, groups 2 and 3 make version 1, 4
 * and 5 version 2, and group 6 is complete, in no step, and too old then. */
static void a_version_voids_what_falls_out_of_the_range_and_nothing_else(void **state) {
  struct fixture *f = *state;
  struct lease leases[4 * GROUPS];
  struct lease_answer a;
  struct err err = {0};
  f->trainer.slow_steps = true;
  struct fake_server s = begin(f, STREAM(6, ",\"samples_ahead\":16"), leases, 4 * GROUPS);
  for (int g = 2; g < 7; g++) answer_lease(f, &s, &leases[g]);
  struct lease_result part = make_result(f, &s, &leases[1]);
  part.sample_count = 1;
  part.handed_back = true;
  assert_int_equal(put_result(f, &leases[1], &part, NULL, &err), RC_OK);
  assert_int_equal(read_int(f, "SELECT count(*) FROM rollouts WHERE group_ordinal = 1 AND partial = 0"), 1);
  assert_int_equal(read_int(f, "SELECT samples_open FROM groups WHERE ordinal = 1"), 1);
  fake_trainer_finish_steps(&f->trainer);
  wait_version(f, 2);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE trained_in = 1 AND ordinal IN (4, 5)"), 2);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE ordinal = 6 AND state = 4 AND reason = 'lag'"), 1);
  assert_int_equal(read_int(f, "SELECT sum(groups_lagged) FROM rounds"), 1);
  assert_int_equal(read_int(f, "SELECT state FROM leases WHERE group_ordinal = 0"), LEASE_SUPERSEDED);
  assert_int_equal(read_int(f, "SELECT samples_waiting FROM groups WHERE ordinal = 0"), SAMPLES);
  assert_int_equal(read_int(f, "SELECT samples_waiting FROM groups WHERE ordinal = 1"), SAMPLES);
  assert_int_equal(read_int(f, "SELECT count(*) FROM rollouts WHERE group_ordinal = 1"), 0);
  const struct lease_result late = make_result(f, &s, &leases[0]);
  assert_int_equal(put_result(f, &leases[0], &late, NULL, &err), RC_CONFLICT);
  assert_non_null(strstr(err.message, "superseded"));
  to_version(&s, 2);
  poll_with(f, &s, 2 * SAMPLES, &a);
  assert_int_equal(a.lease_count, 2);
  for (int g = 0; g < 2; g++) {
    assert_int_equal(a.leases[g].group_ordinal, g);
    assert_int_equal(a.leases[g].version_min, 2);
    assert_int_equal(a.leases[g].partial_count, 0);
    answer_lease(f, &s, &a.leases[g]);
  }
  wait_version(f, 3);
}

/* At max_lag behind it is still good: only then a step takes groups of which the oldest token is of an older
 * version. */
static void what_is_max_lag_old_is_trained_on(void **state) {
  struct fixture *f = *state;
  struct lease leases[2 * GROUPS];
  struct fake_server s = begin(f, STREAM(4, ""), leases, 2 * GROUPS);
  for (int g = 0; g < 2 * GROUPS; g++) answer_lease(f, &s, &leases[g]);
  wait_version(f, 2);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE trained_in = 1 AND version_first = 0"), GROUPS);
  assert_int_equal(read_int(f, "SELECT lag_min * 10 + lag_max FROM batches WHERE round = 1 LIMIT 1"), 11);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE state = 4"), 0);
}

/* Steps are slow: the first takes groups 0 and 1, then five more are complete, of which the queue holds four.  Sampling
 * goes on all the while. */
static void a_full_queue_drops_its_oldest_and_counts_it(void **state) {
  struct fixture *f = *state;
  struct lease leases[8];
  struct fake_server s;
  f->trainer.slow_steps = true;
  s = begin(f, STREAM(4, ",\"full\":\"drop_oldest\""), leases, 2 * GROUPS);
  for (int g = 0; g < GROUPS; g++) answer_lease(f, &s, &leases[g]);
  AWAIT(read_int(f, "SELECT count(*) FROM groups WHERE trained_in = 0") == GROUPS, "the step does not take its groups")
  a_moment_passes(f);
  AWAIT(read_int(f, "SELECT state FROM rounds WHERE round = 0") == ROUND_STEPPING, "the step does not begin")
  a_moment_passes(f);
  collect_leases(f, &s, &leases[2 * GROUPS], GROUPS);
  for (int g = 2; g < 6; g++) answer_lease(f, &s, &leases[g]);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE state = 4"), 0); /* as many as it holds */
  collect_leases(f, &s, &leases[6], 2);
  answer_lease(f, &s, &leases[6]);
  assert_int_equal(read_int(f, "SELECT ordinal FROM groups WHERE state = 4 AND reason = 'queue'"), 2);
  assert_int_equal(read_int(f, "SELECT groups_overflowed * 10 + groups_filtered FROM rounds WHERE round = 0"), 11);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE state = 1"), 2 * GROUPS);
  answer_lease(f, &s, &leases[7]);
  assert_int_equal(read_int(f, "SELECT max(ordinal) FROM groups WHERE state = 4 AND reason = 'queue'"), 3);
  fake_trainer_finish_steps(&f->trainer);
  wait_version(f, 2); /* the first two of the four that were left make the next step */
  assert_int_equal(read_int(f, "SELECT min(ordinal) FROM groups WHERE trained_in = 1"), 4);
}

/* The evaluation of round 0 outlasts it, that of the last round comes in last. */
static void the_last_step_waits_for_all_evaluations(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease evaluation[4];
  int kept = 0, trained = 0;
  post_run(f, STREAM(2, ",\"evaluation\":{\"path\":\"train.jsonl\",\"every_rounds\":9,\"samples\":1,\"problems\":2}"));
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "gen-1");
  while (kept < 4 || trained < 2 * GROUPS) {
    struct lease_answer a;
    poll_leases(f, &s, SLOTS, &a);
    for (size_t i = 0; i < a.lease_count; i++) {
      if (a.leases[i].purpose == LEASE_EVALUATION) {
        assert_true(kept < 4);
        evaluation[kept++] = a.leases[i];
      } else {
        answer_lease(f, &s, &a.leases[i]);
        trained++;
      }
    }
  }
  AWAIT(read_int(f, "SELECT count(*) FROM batches WHERE round = 1 AND done = 0") == 0 &&
            read_int(f, "SELECT coalesce(sum(groups), 0) FROM batches WHERE round = 1") == GROUPS,
        "the last step does not take its groups")
  a_moment_passes(f);
  for (int e = 0; e < 4; e++) {
    driver_has_looked(f);
    assert_int_equal(fake_trainer_steps(&f->trainer), 1);
    assert_int_equal(read_int(f, "SELECT state FROM rounds WHERE round = 1"), ROUND_OPEN);
    answer_lease(f, &s, &evaluation[3 - e]); /* round 0's last */
  }
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT count(*) FROM evaluations"), 2);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE state NOT IN (3, 6)"), 0);
}

/* One sample of the problem is in, drawn by versions 0 and 1, and its sibling is not: no lag makes it too old. */
static void a_finished_sample_of_an_evaluation_stays_however_old(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[2 * GROUPS], problem = {0};
  struct lease_answer a;
  struct err err = {0};
  int n = 0;
  post_run(f, STREAM(3, ",\"evaluation\":{\"path\":\"train.jsonl\",\"every_rounds\":9,\"samples\":4,\"problems\":1}"));
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "gen-1");
  while (!problem.id || n < 2 * GROUPS) {
    poll_leases(f, &s, SLOTS, &a);
    for (size_t i = 0; i < a.lease_count; i++) {
      if (a.leases[i].purpose == LEASE_EVALUATION)
        problem = a.leases[i];
      else if (n < 2 * GROUPS)
        leases[n++] = a.leases[i];
    }
  }
  assert_int_equal(problem.sample_count, SAMPLES); /* of four */
  for (int i = 0; i < GROUPS; i++) answer_lease(f, &s, &leases[i]);
  wait_version(f, 1);
  struct lease_result r = make_result(f, &s, &problem);
  for (int i = 0; i < SAMPLES; i++) two_versions(f, &r.samples[i], 1, 0, 1);
  fake_digest(&r.loaded_digest, "r1", 1);
  if (put_result(f, &problem, &r, NULL, &err) != RC_OK) fail_msg("%s", err.message);
#define ROLLOUTS "SELECT count(*) FROM rollouts WHERE group_ordinal >= 8192"
  assert_int_equal(read_int(f, ROLLOUTS), SAMPLES);
  for (int i = GROUPS; i < 2 * GROUPS; i++) answer_lease(f, &s, &leases[i]);
  wait_version(f, 2);
  assert_int_equal(read_int(f, ROLLOUTS), SAMPLES);
}

static void a_paused_run_issues_nothing(void **state) {
  struct fixture *f = *state;
  struct lease leases[2 * GROUPS];
  struct lease_answer a;
  struct fake_server s = begin(f, STREAM(4, ""), leases, 2 * GROUPS);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/pause", NULL, NULL), 200);
  for (int i = 0; i < GROUPS; i++) answer_lease(f, &s, &leases[i]);
  wait_version(f, 1);
  to_version(&s, 1);
  poll_with(f, &s, SLOTS, &a);
  assert_int_equal(a.lease_count, 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups"), 2 * GROUPS);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  poll_leases(f, &s, SLOTS, &a);
  assert_int_equal(a.lease_count, GROUPS);
  assert_int_equal(a.leases[0].round, 1); /* the round that is being filled has them */
}

int main(void) {
#define T(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)
  const struct CMUnitTest tests[] = {
      T(a_lease_is_valid_for_max_lag_versions_and_no_more_are_issued_than_may_be_ahead),
      T(an_older_version_that_is_not_too_old_has_leases_of_its_own),
      T(spans_outside_the_range_or_newer_than_what_is_loaded_are_refused),
      T(what_was_handed_back_keeps_its_versions),
      T(a_version_voids_what_falls_out_of_the_range_and_nothing_else),
      T(what_is_max_lag_old_is_trained_on),
      T(a_full_queue_drops_its_oldest_and_counts_it),
      T(the_last_step_waits_for_all_evaluations),
      T(a_finished_sample_of_an_evaluation_stays_however_old),
      T(a_paused_run_issues_nothing),
  };
  return cmocka_run_group_tests_name("coordinator/stream", tests, NULL, NULL);
}
