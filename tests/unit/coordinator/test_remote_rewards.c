/* Rewards that servers answer, from the accepted sample to the sealed group, over real HTTP; the test plays the
 * server's side by the commands that rewards.c sends.  What would break: a group is sealed without a reward, or never;
 * an answer counts twice, or for a sample that was drawn anew; what a group is worth, or its digest, depends on the
 * order in which answers come or on a restart between them; a deadline does something else than it was configured to;
 * waiting for a judge counts as waiting for a sampler. */
#include <math.h>
#include <string.h>

#include "services/coordinator/decide/states.h"
#include "services/coordinator/rewards/reward_answers.h"
#include "services/coordinator/rewards/reward_ledger.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/run/run_context.h"
#include "tests/unit/coordinator/fake_server.h"

enum { GROUPS = 3, SAMPLES = 4 };

#define TERM(url, weight, rule)                                                                                       \
  "{\"kind\":\"http\",\"weight\":" #weight ",\"server\":{\"url\":\"http://" url "/\",\"deadline_ms\":600,"            \
  "\"on_deadline\":\"" rule "\"}}"
#define JUDGED(verifier, more)                                                                                  \
  "{\"rounds\":1,\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false," \
  "\"groups_per_round\":3,"                                                                                     \
  "\"samples_per_group\":4,\"group_timeout_ms\":800,\"verifier\":" verifier                                     \
  ",\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"}" more "}"
/* numeric x 0.5 + a x 1 + b x 0.25 */
#define THREE \
  "{\"terms\":[{\"kind\":\"numeric\",\"weight\":0.5}," TERM("a:1", 1, "fail") "," TERM("b:2", 0.25, "fail") "]}"
#define ALONE(rule) "{\"terms\":[" TERM("a:1", 1, rule) "]}"

static int setup(void **state) {
  if (fixture_setup(state) != 0) return -1;
  struct fixture *f = *state;
  f->options.reward_hosts = "a,b:2";
  coordinator_restart(f);
  return 0;
}

static void sampled(struct fixture *f, struct fake_server *s, const char *run) {
  struct lease leases[GROUPS];
  post_run(f, run);
  register_server(f, s, "gen-1");
  collect_leases(f, s, leases, GROUPS);
  for (int i = 0; i < GROUPS; i++) answer_lease(f, s, &leases[i]);
}

static struct digest digest_of_sample(struct fixture *f, int64_t group, int sample) {
  struct digest out = {{0}};
  struct store *s;
  struct rows q;
  struct err err = {0};
  bool row = false;
  if (readers_take(core_readers(f->core), &s, &err) != RC_OK) fail_msg("%s", err.message);
  if (store_query(s, &q, &err,
                  "SELECT digest FROM samples WHERE run = 1 AND round = 0 AND group_ordinal = ?1 AND sample = ?2",
                  BINDS(b_int(group), b_int(sample))) != RC_OK ||
      rows_next(&q, &row, &err) != RC_OK || !row)
    fail_msg("sample %d: %s", sample, err.message);
  rows_digest(&q, 0, &out);
  rows_end(&q);
  readers_give(core_readers(f->core), s);
  return out;
}

static struct command *message(struct fixture *f, command_execute execute, int64_t group, int term, int first,
                               int count) {
  struct command *cmd = command_new(execute, sizeof(struct reward_message));
  struct reward_message *m = cmd->message;
  *m = (struct reward_message){.run = 1, .group = group, .term = term, .count = count, .why = "no route"};
  m->values = arena_alloc(&cmd->arena, (size_t)count, sizeof *m->values);
  for (int i = 0; i < count; i++)
    m->values[i] = (struct reward_value){first + i, digest_of_sample(f, group, first + i),
                                         0.125 * (first + i) + (double)group + term};
  return cmd;
}

static void answered(struct fixture *f, int64_t group, int term, int first, int count) {
  struct err err = {0};
  if (core_call(f->core, message(f, reward_answer_execute, group, term, first, count), &err) != RC_OK)
    fail_msg("%s", err.message);
}

static void missed(struct fixture *f, int64_t group, int first, int count) {
  struct err err = {0};
  if (core_call(f->core, message(f, reward_loss_execute, group, 0, first, count), &err) != RC_OK)
    fail_msg("%s", err.message);
}

static int64_t in_state(struct fixture *f, enum group_state state) {
  return read_int_of(f, "SELECT count(*) FROM groups WHERE state = ?1 AND run = 1", state);
}

#define BOTH(f, group)             \
  answered((f), (group), 1, 0, 4); \
  answered((f), (group), 2, 0, 4)

/* What the three terms gave is kept before their weights; NaN of those that a server has not answered.  Returns how
 * many values are known. */
static int check_term_values(struct fixture *f) {
  struct store *s;
  struct rows q;
  struct err err = {0};
  bool row = false;
  int known = 0, samples = 0;
  if (readers_take(core_readers(f->core), &s, &err) != RC_OK) fail_msg("%s", err.message);
  enum rc rc =
      store_query(s, &q, &err, "SELECT group_ordinal, sample, term_values FROM samples WHERE run = 1", NO_BINDS);
  while (rc == RC_OK && (rc = rows_next(&q, &row, &err)) == RC_OK && row) {
    const double server = 0.125 * (double)rows_int(&q, 1) + (double)rows_int(&q, 0);
    const double expected[3] = {rows_int(&q, 1) % 2 == 0, server + 1, server + 2};
    double values[3];
    size_t len;
    const void *bytes = rows_blob(&q, 2, &len);
    assert_int_equal(len, sizeof values);
    memcpy(values, bytes, len);
    for (int i = 0; i < 3; i++) {
      assert_true(values[i] == expected[i] || (i > 0 && isnan(values[i])));
      known += !isnan(values[i]);
    }
    samples++;
  }
  rows_end(&q);
  readers_give(core_readers(f->core), s);
  assert_int_equal(rc, RC_OK);
  assert_int_equal(samples, 12);
  return known;
}

static void a_group_is_sealed_with_its_last_reward(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  sampled(f, &s, JUDGED(THREE, ""));
  assert_int_equal(in_state(f, GROUP_OPEN), 3);
  assert_int_equal(read_int(f, "SELECT count(*) FROM remote_rewards WHERE state = 0"), 24);
  answered(f, 1, 2, 2, 2);
  answered(f, 1, 1, 0, 4);
  assert_int_equal(in_state(f, GROUP_OPEN), 3);
  assert_int_equal(check_term_values(f), 12); /* a group's are told when all are there */
  answered(f, 1, 2, 0, 2);
  assert_int_equal(check_term_values(f), 12 + 8);
  assert_int_equal(read_int(f, "SELECT state <> 0 FROM groups WHERE ordinal = 1"), 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE group_ordinal = 1 AND advantage IS NOT NULL"), 4);
  assert_int_equal(read_int(f, "SELECT count(*) FROM samples WHERE group_ordinal = 1 AND sample = 3 AND detail LIKE "
                               "'http 2.375, http 3.375 x 0.25; numeric 0 x 0.5; %'"),
                   1);
  BOTH(f, 0);
  BOTH(f, 2);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f,
                            "SELECT count(*) FROM samples WHERE reward = 0.5 * (sample % 2 = 0) + (0.125 * sample + "
                            "group_ordinal + 1) + 0.25 * (0.125 * sample + group_ordinal + 2)"),
                   12);
  assert_int_equal(check_term_values(f), 36);
  assert_int_equal(read_int(f, "SELECT exact FROM rounds"), 1);
  assert_int_equal(read_int(f, "SELECT sum(answered) = 24 AND sum(missed) = 0 FROM reward_servers"), 1);
}

/* What is learned from depends on nothing else: the first run's digests are those of the others. */
static void check_digests(struct fixture *f) {
  static struct digest known[GROUPS];
  static bool is_known;
  struct store *s;
  struct rows q;
  struct err err = {0};
  bool row = true;
  int n = 0;
  if (readers_take(core_readers(f->core), &s, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(store_query(s, &q, &err, "SELECT digest FROM groups WHERE run = 1 ORDER BY ordinal", NO_BINDS),
                   RC_OK);
  while (rows_next(&q, &row, &err) == RC_OK && row) {
    struct digest d;
    assert_true(rows_digest(&q, 0, &d));
    if (!is_known) known[n] = d;
    if (!digest_equal(&d, &known[n])) fail_msg("group %d has another digest", n);
    n++;
  }
  rows_end(&q);
  readers_give(core_readers(f->core), s);
  assert_int_equal(n, GROUPS);
  is_known = true;
}

static bool is_attached(struct fixture *f) {
  struct run_context *x = rounds_context_keep(f->core);
  run_context_release(x);
  return x != NULL;
}

static void the_plain_order(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  sampled(f, &s, JUDGED(THREE, ""));
  for (int64_t g = 0; g < GROUPS; g++) {
    BOTH(f, g);
  }
  json_free(wait_state(f, "r1", "completed"));
  check_digests(f);
}

static void neither_order_nor_repetition_nor_a_restart_changes_anything(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  sampled(f, &s, JUDGED(THREE, ""));
  answered(f, 2, 1, 0, 4);
  answered(f, 2, 1, 0, 4);
  coordinator_restart(f);
  AWAIT(is_attached(f), "the run is not taken up again") a_moment_passes(f);
  assert_int_equal(read_int(f, "SELECT count(*) FROM remote_rewards WHERE state = 0"), 20);
  answered(f, 2, 1, 0, 4); /* by a server that was asked before */
  assert_int_equal(read_int(f, "SELECT rewards_open FROM groups WHERE ordinal = 2"), 4);
  answered(f, 2, 2, 2, 2);
  answered(f, 2, 2, 0, 2);
  BOTH(f, 1);
  answered(f, 1, 2, 0, 4); /* sealed already */
  answered(f, 0, 2, 0, 4);
  answered(f, 0, 1, 3, 1);
  answered(f, 0, 1, 0, 3);
  json_free(wait_state(f, "r1", "completed"));
  check_digests(f);
  assert_int_equal(check_term_values(f), 36);
  assert_int_equal(read_int(f, "SELECT sum(answered) FROM reward_servers"), 24);
}

static void counted(struct fixture *f, int64_t passed_ms) {
  struct err err = {0};
  struct command *cmd = command_new(reward_clock_execute, sizeof(struct reward_clock));
  *(struct reward_clock *)cmd->message = (struct reward_clock){.run = 1, .passed_ms = passed_ms};
  assert_int_equal(core_call(f->core, cmd, &err), RC_OK);
}

/* How long both groups that have all their samples have waited. */
static void check_waited(struct fixture *f, int64_t first_ms, int64_t second_ms) {
  const struct http_term term = {.batch = 64};
  struct reward_part parts[GROUPS];
  struct err err = {0};
  bool running = false;
  int n = 0;
  assert_int_equal(reward_parts_read(core_readers(f->core), 1, 0, &term, parts, GROUPS, &n, &running, &err), RC_OK);
  assert_int_equal(n, 2);
  assert_int_equal(parts[0].waited_ms, first_ms);
  assert_int_equal(parts[1].waited_ms, second_ms);
}

/* A group waits from its last sample on, and no restart makes it wait anew; being resumed does. */
static void a_deadline_outlives_a_restart(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  post_run(f, JUDGED(ALONE("fail"), ""));
  register_server(f, &s, "gen-1");
  collect_leases(f, &s, leases, GROUPS);
  counted(f, 10);
  answer_lease(f, &s, &leases[0]);
  counted(f, 100);
  answer_lease(f, &s, &leases[1]);
  counted(f, 50);
  check_waited(f, 150, 50);
  coordinator_restart(f);
  AWAIT(is_attached(f), "the run is not taken up again") a_moment_passes(f);
  check_waited(f, 150, 50);
  counted(f, 5);
  check_waited(f, 155, 55);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/pause", NULL, NULL), 200);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  check_waited(f, 0, 0);
  counted(f, 7);
  check_waited(f, 7, 7);
}

static void an_answer_about_other_tokens_is_not_counted(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err = {0};
  sampled(f, &s, JUDGED(ALONE("fail"), ""));
  struct command *cmd = message(f, reward_answer_execute, 0, 0, 0, 4);
  ((struct reward_message *)cmd->message)->values[2].digest.bytes[0] ^= 1;
  assert_int_equal(core_call(f->core, cmd, &err), RC_OK);
  assert_int_equal(
      read_int(f, "SELECT group_concat(sample) = '2' FROM remote_rewards WHERE group_ordinal = 0 AND state = 0"), 1);
  assert_int_equal(in_state(f, GROUP_OPEN), 3);
}

/* Longer than group_timeout_ms, which the group fails by whose samples do not come. */
static void judges_are_not_waited_for_as_samplers_are(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[GROUPS];
  post_run(f, JUDGED(ALONE("fail"), ""));
  register_server(f, &s, "gen-1");
  collect_leases(f, &s, leases, GROUPS);
  for (int i = 0; i < 2; i++) answer_lease(f, &s, &leases[i]);
  time_passes(f, 2000);
  assert_int_equal(in_state(f, GROUP_FAILED), 1);
  assert_int_equal(in_state(f, GROUP_OPEN), 2);
  for (int64_t g = 0; g < 2; g++) answered(f, g, 0, 0, 4);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT groups_trained FROM rounds"), 2);
}

static void zero_counts_nothing_and_says_so(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  sampled(f, &s, JUDGED(ALONE("zero"), ""));
  answered(f, 0, 0, 0, 4);
  answered(f, 1, 0, 0, 3);
  missed(f, 1, 0, 4); /* of one of them: the others have a reward */
  answered(f, 1, 0, 3, 1); /* too late */
  assert_int_equal(
      read_int(f, "SELECT group_concat(reward, ' ') = '1.0 1.125 1.25 0.0' FROM samples WHERE group_ordinal = 1"), 1);
  assert_int_equal(
      read_int(f,
               "SELECT detail = 'http 0 (not answered in time)' FROM samples WHERE group_ordinal = 1 AND sample = 3"),
      1);
  answered(f, 2, 0, 0, 4);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT exact FROM rounds"), 0);
  assert_int_equal(read_int(f, "SELECT inexact_reason LIKE '1 reward was not answered in time%' FROM rounds"), 1);
  assert_int_equal(read_int(f, "SELECT missed FROM reward_servers"), 1);
  assert_int_equal(read_int(f,
                            "SELECT count(*) FROM incidents WHERE kind = 'reward_missed' AND subject = 'r1.0.1' AND "
                            "detail LIKE '%no route'"),
                   1);
}

static void drop_leaves_the_group_out(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  sampled(f, &s, JUDGED(ALONE("drop"), ""));
  answered(f, 0, 0, 0, 4);
  answered(f, 1, 0, 0, 2);
  missed(f, 1, 2, 2);
  assert_int_equal(in_state(f, GROUP_FAILED), 1);
  answered(f, 1, 0, 2, 2);
  missed(f, 1, 0, 4);
  answered(f, 2, 0, 0, 4);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT groups_failed = 1 AND groups_trained = 2 AND exact = 0 FROM rounds"), 1);
  assert_int_equal(read_int(f, "SELECT count(*) FROM remote_rewards WHERE state = 0"), 0);
  assert_int_equal(read_int(f, "SELECT count(*) FROM incidents WHERE kind = 'reward_missed'"), 1);
}

/* All that is sampled waits for a judge that has failed; what it earns is not known, and 0 is no answer. */
static void a_judge_that_fails_is_what_the_run_waits_for(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err = {0};
  struct json *rollouts = NULL;
  struct command *cmd = command_new(reward_note_execute, sizeof(struct reward_note));
  sampled(f, &s, JUDGED(ALONE("fail"), ""));
  struct reward_note *note = cmd->message;
  *note = (struct reward_note){.run = 1, .url = "http://a:1/", .state = BREAKER_OPEN, .requests = 1, .failures = 1};
  note->last_error = "http://a:1/ answered with status 422: oops";
  if (core_call(f->core, cmd, &err) != RC_OK) fail_msg("%s", err.message);
#define MISSED \
  "SELECT count(*) FROM runs WHERE waiting_for LIKE 'finished samples still lack rewards: http://a:1/%: oops'"
  AWAIT(read_int(f, MISSED) == 1, "the run does not say whom it waits for") time_passes(f, 20);
  assert_int_equal(call(f, "GET", "/v1/runs/r1/rollouts?round=0", NULL, &rollouts), 200);
  const struct json *all = json_get(rollouts, "rollouts");
  assert_int_equal(json_length(all), GROUPS * 4);
  for (size_t i = 0; i < json_length(all); i++)
    assert_int_equal(json_type_of(json_get(json_at(all, i), "reward")), JSON_NULL);
  json_free(rollouts);
  for (int g = 0; g < GROUPS; g++) answered(f, g, 0, 0, 4);
  json_free(wait_state(f, "r1", "completed"));
}

static void fail_pauses_the_run_and_resuming_goes_on(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  sampled(f, &s, JUDGED(ALONE("fail"), ""));
  answered(f, 0, 0, 0, 4);
  missed(f, 1, 0, 4);
  missed(f, 2, 0, 4);
  json_free(wait_held(f, "r1", "no reward for 4 samples of group r1.0.1 within 600 ms or 1000 retries: no route"));
  assert_int_equal(read_int(f, "SELECT count(*) FROM events WHERE type = 'state' AND data LIKE '%no reward%'"), 1);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/resume", NULL, NULL), 200);
  answered(f, 1, 0, 0, 4);
  answered(f, 2, 0, 0, 4);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT exact FROM rounds"), 1);
}

static void a_filtered_group_is_refilled_when_it_is_judged(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  sampled(f, &s,
          JUDGED("{\"terms\":[" TERM("a:1", 0, "fail") ",{\"kind\":\"length\",\"min\":1}]}",
                 ",\"filter\":{\"zero_advantage\":\"refill\",\"refill_max\":1}"));
  answered(f, 2, 0, 0, 4);
  poll_leases(f, &s, 64, &a);
  assert_int_equal(a.lease_count, 1);
  assert_int_equal(a.leases[0].prompt_ids.items[0], '3');
  answer_lease(f, &s, &a.leases[0]);
  for (int64_t g = 0; g < 4; g++)
    if (g != 2) answered(f, g, 0, 0, 4);
  json_free(wait_state(f, "r1", "completed"));
  assert_int_equal(read_int(f, "SELECT groups_filtered = 4 AND groups_refilled = 1 FROM rounds"), 1);
}

static void a_stopped_run_waits_for_nothing(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct err err = {0};
  sampled(f, &s, JUDGED(ALONE("fail"), ""));
  struct command *late = message(f, reward_answer_execute, 0, 0, 0, 4);
  assert_int_equal(call(f, "POST", "/v1/runs/r1/stop", NULL, NULL), 200);
  json_free(wait_state(f, "r1", "stopped"));
  assert_int_equal(read_int(f, "SELECT count(*) FROM remote_rewards"), 0);
  assert_int_equal(core_call(f->core, late, &err), RC_UNAVAILABLE);
}

/* Behind a gate of one group, the next one is begun when all samples of the one before are in; known from memory, and
 * read anew. */
static void a_gate_does_not_wait_for_judges(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease_answer a;
  post_run(f, JUDGED(ALONE("fail"), ",\"frontier\":\"gate\",\"frontier_groups\":1"));
  register_server(f, &s, "gen-1");
  for (int g = 0; g < GROUPS; g++) {
    if (g == 2) {
      coordinator_restart(f);
      register_server(f, &s, "gen-1");
    }
    poll_leases(f, &s, 64, &a);
    assert_int_equal(a.lease_count, 1);
    assert_int_equal(a.leases[0].group_ordinal, g);
    answer_lease(f, &s, &a.leases[0]);
  }
  for (int64_t g = 0; g < GROUPS; g++) answered(f, g, 0, 0, 4);
  json_free(wait_state(f, "r1", "completed"));
}

/* Everything is of version 0: groups 2 and 3 make version 1, 4 and 5 version 2.  Groups 0 and 1 still wait for judges
 * then, and are too old: they are drawn again, and judged again. */
static void what_is_drawn_again_is_judged_again(void **state) {
  struct fixture *f = *state;
  struct fake_server s;
  struct lease leases[8];
  struct lease_answer a;
  f->trainer.slow_steps = true;
  post_run(f,
           "{\"mode\":\"inflight\",\"max_lag\":1,\"rounds\":4,\"samples_ahead\":16,\"seed\":3,\"dataset\":{\"path\":"
           "\"train.jsonl\",\"shuffle\":false},"
           "\"verify_samples\":false,\"groups_per_round\":2,\"samples_per_group\":2,\"lease_samples_max\":2,"
           "\"sampling\":{\"max_new_tokens\":8},\"verifier\":" ALONE("fail") ",\"training\":{\"objective\":\"grpo\"}}");
  json_free(wait_state(f, "r1", "running"));
  register_server(f, &s, "gen-1");
  collect_leases(f, &s, leases, 8);
  for (int g = 0; g < 6; g++) answer_lease(f, &s, &leases[g]);
  answered(f, 1, 0, 1, 1);
  struct command *late = message(f, reward_answer_execute, 0, 0, 0, 2);
  for (int64_t g = 2; g < 6; g++) answered(f, g, 0, 0, 2);
  fake_trainer_finish_steps(&f->trainer);
  AWAIT(read_int(f, "SELECT max(version) FROM versions WHERE state = 1") == 2, "version 2 is not current")
  a_moment_passes(f);
  assert_int_equal(read_int(f, "SELECT count(*) FROM remote_rewards WHERE group_ordinal < 2"), 0);
  assert_int_equal(
      read_int(
          f,
          "SELECT count(*) FROM groups WHERE ordinal < 2 AND rewards_open = 0 AND samples_waiting = 2 AND state = 0"),
      2);
  struct err err = {0};
  assert_int_equal(core_call(f->core, late, &err), RC_OK);
  assert_int_equal(read_int(f, "SELECT rewards_open FROM groups WHERE ordinal = 0"), 0);
  s.has_loaded = true;
  fake_digest(&s.loaded, "r1", 2);
  assert_int_equal(poll_once(f, &s, 4, &a, &err), RC_OK);
  assert_int_equal(a.lease_count, 2);
  for (int i = 0; i < 2; i++) answer_lease(f, &s, &a.leases[i]);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE ordinal < 2 AND rewards_open = 2"), 2);
  answered(f, 0, 0, 0, 2);
  answered(f, 1, 0, 0, 2);
  assert_int_equal(read_int(f, "SELECT count(*) FROM groups WHERE ordinal < 2 AND state <> 0"), 2);
}

static void hosts_that_are_not_allowed_are_refused_when_a_run_is_posted(void **state) {
  struct fixture *f = *state;
  struct json *answer = NULL;
  assert_int_equal(call(f, "POST", "/v1/runs", JUDGED("{\"terms\":[" TERM("b:3", 1, "fail") "]}", ""), &answer), 422);
  assert_string_equal(json_word(json_get(json_get(answer, "error"), "field")), "verifier.terms[0].server.url");
  json_free(answer);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, fixture_teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(a_group_is_sealed_with_its_last_reward),
      CASE(the_plain_order),
      CASE(neither_order_nor_repetition_nor_a_restart_changes_anything),
      CASE(an_answer_about_other_tokens_is_not_counted),
      CASE(a_deadline_outlives_a_restart),
      CASE(judges_are_not_waited_for_as_samplers_are),
      CASE(zero_counts_nothing_and_says_so),
      CASE(drop_leaves_the_group_out),
      CASE(a_judge_that_fails_is_what_the_run_waits_for),
      CASE(fail_pauses_the_run_and_resuming_goes_on),
      CASE(a_filtered_group_is_refilled_when_it_is_judged),
      CASE(a_stopped_run_waits_for_nothing),
      CASE(a_gate_does_not_wait_for_judges),
      CASE(what_is_drawn_again_is_judged_again),
      CASE(hosts_that_are_not_allowed_are_refused_when_a_run_is_posted),
  };
  return cmocka_run_group_tests_name("coordinator/remote_rewards", tests, NULL, NULL);
}
