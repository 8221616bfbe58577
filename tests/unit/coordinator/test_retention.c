/* keep_rounds: which rounds' rollouts are dropped, and what of them.  What would break: a round dropped that a replay
 * needs, or that is not consumed; a piece without bounds; what the timeline shows; a database that goes on growing. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <string.h>

#include "services/coordinator/decide/states.h"
#include "services/coordinator/records/retention.h"
#include "services/coordinator/store/migrations.h"

enum { RUN = 1, GROUPS = 2, SAMPLES = 3 };

static void must(enum rc rc, const struct err *err) {
  if (rc != RC_OK) fail_msg("%s: %s", rc_name(rc), err->message);
}

#define RUN_SQL(s, sql, ...)                                   \
  do {                                                         \
    struct err sql_err = {0};                                  \
    must(store_exec(s, &sql_err, sql, __VA_ARGS__), &sql_err); \
  } while (0)

static int64_t number(struct store *s, const char *sql, const struct bind *binds, size_t count) {
  struct err err = {0};
  int64_t n = -1;
  must(store_int(s, &n, &err, sql, binds, count), &err);
  return n;
}

static int setup(void **state) {
  struct store *s = NULL;
  if (store_open(&s, ":memory:", false, NULL) != RC_OK || migrations_apply(s, NULL) != RC_OK) return 1;
  RUN_SQL(s,
          "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) VALUES "
          "(?1, 'x', 2, 1, 'grpo', '{}', x'00', 100, '1', 0)",
          BINDS(b_int(RUN)));
  RUN_SQL(
      s,
      "INSERT INTO workers (id, name, kind, url, slots, epoch, fence, live, registered_ms, seen_ms) VALUES (1, 'g', "
      "0, '', 1, 1, 1, 1, 0, 0)",
      NO_BINDS);
  *state = s;
  return 0;
}

static int teardown(void **state) {
  store_close(*state);
  return 0;
}

static void group_add(struct store *s, int64_t round, int64_t group, int64_t samples, int64_t bytes) {
  char lease[40];
  RUN_SQL(s,
          "INSERT INTO groups (run, round, ordinal, state, purpose, dataset_index, sample_count, samples_open, batch, "
          "sealed_ms, prompt_ids, prompt, answer, extra) VALUES (?1, ?2, ?3, 3, 0, 0, ?4, 0, 0, 1000 + ?2 * 10 + ?3, "
          "x'00000000', 'p', 'a', '')",
          BINDS(b_int(RUN), b_int(round), b_int(group), b_int(samples)));
  RUN_SQL(s, "INSERT INTO refills (run, round, ordinal, replaces, dataset_ordinal) VALUES (?1, ?2, ?3, 0, 0)",
          BINDS(b_int(RUN), b_int(round), b_int(group)));
  RUN_SQL(
      s,
      "INSERT INTO passes (run, round, group_ordinal, state, fence, first_ms, deadline_ms, logprobs) VALUES (?1, ?2, "
      "?3, 2, 1, 0, 0, zeroblob(8))",
      BINDS(b_int(RUN), b_int(round), b_int(group)));
  snprintf(lease, sizeof lease, "r1.%d.%d.0-%d", (int)round, (int)group, (int)samples - 1);
  RUN_SQL(s,
          "INSERT INTO leases (id, fence, run, round, group_ordinal, sample_first, sample_count, worker, state, epoch, "
          "version_min, version_max, digest, granted_ms, deadline_ms) VALUES (?1, 1, ?2, ?3, ?4, 0, ?5, 1, 1, 1, 0, 0, "
          "x'00', 0, 0)",
          BINDS(b_text(lease), b_int(RUN), b_int(round), b_int(group), b_int(samples)));
  for (int64_t i = 0; i < samples; i++) {
    RUN_SQL(s, "INSERT INTO samples (run, round, group_ordinal, sample, state) VALUES (?1, ?2, ?3, ?4, 2)",
            BINDS(b_int(RUN), b_int(round), b_int(group), b_int(i)));
    RUN_SQL(s,
            "INSERT INTO rollouts (run, round, group_ordinal, sample, partial, token_ids, logprobs, text) VALUES (?1, "
            "?2, ?3, ?4, 0, zeroblob(?5 / 2), zeroblob(?5 / 2), NULL)",
            BINDS(b_int(RUN), b_int(round), b_int(group), b_int(i), b_int(bytes)));
    RUN_SQL(s, "INSERT INTO segments VALUES (?1, ?2, ?3, ?4, 0, 1, 1)",
            BINDS(b_int(RUN), b_int(round), b_int(group), b_int(i)));
    RUN_SQL(s, "INSERT INTO spans VALUES (?1, ?2, ?3, ?4, 0, 1, 0, 1)",
            BINDS(b_int(RUN), b_int(round), b_int(group), b_int(i)));
  }
}

/* A round that was sampled at the version of its number, in this state, with one batch. */
static void round_begin(struct store *s, int64_t round, enum round_state state, bool finished) {
  RUN_SQL(s,
          "INSERT INTO versions (run, version, state, digest, published, created_ms) VALUES (?1, ?2, 2, x'00', 1, 0)",
          BINDS(b_int(RUN), b_int(round)));
  RUN_SQL(
      s,
      "INSERT INTO rounds (run, round, state, version, opened_ms, groups_open, finished) VALUES (?1, ?2, ?3, ?2, 0, "
      "0, ?4)",
      BINDS(b_int(RUN), b_int(round), b_int((int64_t)state), b_int(finished)));
  RUN_SQL(s, "INSERT INTO batches (run, round, number, done, groups, tokens) VALUES (?1, ?2, 0, 1, 2, 6)",
          BINDS(b_int(RUN), b_int(round)));
}

static void round_add(struct store *s, int64_t round, enum round_state state, bool finished) {
  round_begin(s, round, state, finished);
  for (int64_t g = 0; g < GROUPS; g++) group_add(s, round, g, SAMPLES, 40);
}

static void mark(struct store *s, int64_t keep_rounds, int64_t oldest_checkpoint) {
  struct err err = {0};
  must(retention_mark(s, RUN, keep_rounds, oldest_checkpoint, &err), &err);
}

/* One piece; returns whether something is left. */
static bool piece(struct store *s) {
  struct err err = {0};
  bool more = true;
  must(retention_drop(s, &more, &err), &err);
  return more;
}

static int pieces(struct store *s) {
  int n = 0;
  while (piece(s))
    if (++n > 100000) fail_msg("dropping never ends");
  return n;
}

/* The rounds that still have rollouts, as bits. */
static int64_t kept(struct store *s) {
  pieces(s);
  return number(s, "SELECT coalesce(sum(DISTINCT 1 << round), 0) FROM rollouts", NO_BINDS);
}

static void the_newest_consumed_rounds_are_kept(void **state) {
  for (int64_t r = 0; r < 5; r++) round_add(*state, r, ROUND_DONE, true);
  round_add(*state, 5, ROUND_TRAINING, false); /* is not consumed, and does not count */
  mark(*state, 2, 100);
  assert_int_equal(kept(*state), 1 << 3 | 1 << 4 | 1 << 5);
}

static void all_are_kept_without_a_bound(void **state) {
  for (int64_t r = 0; r < 4; r++) round_add(*state, r, ROUND_DONE, true);
  mark(*state, 0, 100);
  assert_int_equal(kept(*state), 15);
}

/* A trainer may come back with the oldest checkpoint that it keeps: the round sampled at that version is the first that
 * it is fed. */
static void what_the_oldest_checkpoint_needs_is_kept(void **state) {
  for (int64_t r = 0; r < 6; r++) round_add(*state, r, ROUND_DONE, true);
  mark(*state, 1, 2);
  assert_int_equal(kept(*state), 1 << 2 | 1 << 3 | 1 << 4 | 1 << 5);
}

static void without_a_checkpoint_above_version_0_nothing_goes(void **state) {
  for (int64_t r = 0; r < 4; r++) round_add(*state, r, ROUND_DONE, true);
  mark(*state, 1, 0);
  assert_int_equal(kept(*state), 15);
}

/* In flight a group may be trained in a later round than its own, or not yet. */
static void a_round_whose_groups_a_replay_may_need_later_is_kept(void **state) {
  for (int64_t r = 0; r < 6; r++) round_add(*state, r, ROUND_DONE, true);
  RUN_SQL(*state, "UPDATE groups SET trained_in = 3 WHERE round = 1 AND ordinal = 0", NO_BINDS);
  mark(*state, 1, 4);
  assert_int_equal(kept(*state), 1 << 4 | 1 << 5); /* the oldest checkpoint has it */
  RUN_SQL(*state, "UPDATE groups SET trained_in = 5 WHERE round = 4 AND ordinal = 0", NO_BINDS);
  mark(*state, 1, 5);
  assert_int_equal(kept(*state), 1 << 4 | 1 << 5);
  mark(*state, 1, 6);
  assert_int_equal(kept(*state), 1 << 5);
}

static void a_round_with_groups_in_no_step_is_kept(void **state) {
  static const enum group_state waiting[] = {GROUP_OPEN, GROUP_SEALED, GROUP_SUBMITTED};
  for (int64_t r = 0; r < 5; r++) round_add(*state, r, ROUND_DONE, true);
  for (int64_t r = 0; r < 3; r++)
    RUN_SQL(*state, "UPDATE groups SET state = ?2 WHERE round = ?1 AND ordinal = 1",
            BINDS(b_int(r), b_int(waiting[r])));
  mark(*state, 1, 100);
  assert_int_equal(kept(*state), 1 << 0 | 1 << 1 | 1 << 2 | 1 << 4);
}

/* Its step's groups are named to the trainer once more when the figures are fetched. */
static void a_round_whose_figures_are_still_to_come_is_kept(void **state) {
  round_add(*state, 0, ROUND_DONE, true);
  round_add(*state, 1, ROUND_DONE, false);
  round_add(*state, 2, ROUND_DONE, true);
  mark(*state, 1, 100);
  assert_int_equal(kept(*state), 1 << 1 | 1 << 2);
}

static void run_add(struct store *s, int64_t id, const char *from) {
  char config[80];
  snprintf(config, sizeof config, "{\"dataset\":{\"curriculum\":{\"from\":\"%s\"}}}", from);
  RUN_SQL(s,
          "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) VALUES "
          "(?1, 'x', ?2, 1, 'grpo', ?3, x'00', 1, '1', 0)",
          BINDS(b_int(id), b_int(RUN_QUEUED), b_text(config)));
}

static void release(struct store *s, int64_t run) {
  struct err err = {0};
  must(retention_release(s, run, &err), &err);
}

/* A run that begins later counts the pass rates of all of this one's rollouts.  They were dropped while it was queued,
 * and then it was paused with the word that they are not known any more. */
static void a_run_whose_pass_rates_a_queued_run_waits_for_drops_nothing(void **state) {
  for (int64_t r = 0; r < 4; r++) round_add(*state, r, ROUND_DONE, true);
  run_add(*state, 2, "r1");
  mark(*state, 1, 100);
  assert_int_equal(kept(*state), 15);
  RUN_SQL(*state, "UPDATE runs SET state = ?1 WHERE id = 2", BINDS(b_int(RUN_PAUSED))); /* its trainer was refused */
  mark(*state, 1, 100);
  assert_int_equal(kept(*state), 15);
}

static void a_queued_run_that_counts_others_keeps_nothing_here(void **state) {
  for (int64_t r = 0; r < 4; r++) round_add(*state, r, ROUND_DONE, true);
  run_add(*state, 2, "r11");
  mark(*state, 1, 100);
  assert_int_equal(kept(*state), 1 << 3);
}

/* Its last step is done by then, so no step marks them. */
static void what_was_kept_for_a_queued_run_goes_once_that_has_counted_it(void **state) {
  for (int64_t r = 0; r < 4; r++) round_add(*state, r, ROUND_DONE, true);
  RUN_SQL(*state, "UPDATE runs SET config = '{\"keep_rounds\":1}', ended_ms = 5 WHERE id = 1", NO_BINDS);
  RUN_SQL(*state, "INSERT INTO checkpoints (run, version, best) VALUES (1, 0, 0), (1, 2, 0), (1, 4, 0)", NO_BINDS);
  run_add(*state, 2, "r1");
  run_add(*state, 3, "r1");
  RUN_SQL(*state,
          "INSERT INTO versions (run, version, state, digest, published, created_ms) VALUES (2, 0, 2, x'', 1, 0)",
          NO_BINDS);
  release(*state, 2);
  assert_int_equal(kept(*state), 15); /* the third still waits */
  RUN_SQL(*state, "UPDATE runs SET state = ?1, ended_ms = 6 WHERE id = 3", BINDS(b_int(RUN_STOPPED)));
  release(*state, 3);
  assert_int_equal(kept(*state), 1 << 2 | 1 << 3); /* the oldest checkpoint's, and what keep_rounds says */
}

static void of_a_dropped_round_its_figures_stay(void **state) {
  static const char *const gone[] = {
      "SELECT count(*) FROM groups WHERE round = 0",   "SELECT count(*) FROM refills WHERE round = 0",
      "SELECT count(*) FROM leases WHERE round = 0",   "SELECT count(*) FROM samples WHERE round = 0",
      "SELECT count(*) FROM segments WHERE round = 0", "SELECT count(*) FROM spans WHERE round = 0",
      "SELECT count(*) FROM rollouts WHERE round = 0", "SELECT count(*) FROM passes WHERE round = 0"};
  for (int64_t r = 0; r < 2; r++) round_add(*state, r, ROUND_DONE, true);
  mark(*state, 1, 1);
  assert_int_equal(number(*state, "SELECT rollouts_state FROM rounds WHERE round = 0", NO_BINDS), ROLLOUTS_DROPPING);
  pieces(*state);
  for (size_t i = 0; i < sizeof gone / sizeof gone[0]; i++)
    if (number(*state, gone[i], NO_BINDS) != 0) fail_msg("%s: rows are left", gone[i]);
  assert_int_equal(number(*state, "SELECT count(*) FROM leases", NO_BINDS), GROUPS);
  assert_int_equal(number(*state, "SELECT rollouts_state FROM rounds WHERE round = 0", NO_BINDS), ROLLOUTS_DROPPED);
  assert_int_equal(number(*state, "SELECT rollouts_state FROM rounds WHERE round = 1", NO_BINDS), ROLLOUTS_KEPT);
  assert_int_equal(number(*state, "SELECT first_sealed_ms FROM rounds WHERE round = 0", NO_BINDS), 1000);
  assert_int_equal(number(*state, "SELECT count(*) FROM batches WHERE round = 0", NO_BINDS), 1);
  assert_int_equal(number(*state, "SELECT count(*) FROM versions", NO_BINDS), 2);
}

/* The writer does other work between two pieces: none may delete more than its bounds allow, and each deletes
 * something. */
static void check_pieces(struct store *s, int64_t samples, int64_t bytes, int64_t of_a_piece) {
  round_begin(s, 0, ROUND_DONE, true);
  group_add(s, 0, 0, samples, bytes);
  round_add(s, 1, ROUND_DONE, true);
  mark(s, 1, 100);
  for (int64_t left = samples; left > 0;) {
    const int64_t before = left;
    assert_true(piece(s));
    left = number(s, "SELECT count(*) FROM rollouts WHERE round = 0", NO_BINDS);
    assert_int_equal(before - left, before < of_a_piece ? before : of_a_piece);
  }
}

static void a_piece_is_bounded_by_samples(void **state) { check_pieces(*state, 700, 8, RETENTION_SAMPLES); }
static void a_piece_is_bounded_by_bytes(void **state) { check_pieces(*state, 5, RETENTION_BYTES / 2, 2); }
static void a_piece_drops_one_sample_at_least(void **state) { check_pieces(*state, 3, RETENTION_BYTES * 2, 1); }

/* As a supervised round has them: the piece counts groups then. */
static void a_piece_is_bounded_over_groups_without_samples(void **state) {
  round_begin(*state, 0, ROUND_DONE, true);
  for (int64_t g = 0; g < 2 * RETENTION_SAMPLES; g++) group_add(*state, 0, g, 0, 0);
  round_add(*state, 1, ROUND_DONE, true);
  mark(*state, 1, 100);
  assert_true(piece(*state));
  assert_int_equal(number(*state, "SELECT count(*) FROM groups WHERE round = 0", NO_BINDS), RETENTION_SAMPLES);
}

/* Freed pages are used again: no round after the first few makes the file larger than its rounds' figures do. */
static void the_database_stops_growing(void **state) {
  struct store *s = *state;
  int64_t at_20 = 0;
  for (int64_t r = 0; r < 120; r++) {
    round_begin(s, r, ROUND_DONE, true);
    for (int64_t g = 0; g < 4; g++) group_add(s, r, g, 4, 8192);
    mark(s, 2, r);
    pieces(s);
    if (r == 20) at_20 = number(s, "PRAGMA page_count", NO_BINDS);
  }
  const int64_t grown = number(s, "PRAGMA page_count", NO_BINDS) - at_20;
  if (grown > 20) fail_msg("100 rounds of 33 pages and more made the database grow by %d pages", (int)grown);
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
  const struct CMUnitTest tests[] = {
      CASE(the_newest_consumed_rounds_are_kept),
      CASE(all_are_kept_without_a_bound),
      CASE(what_the_oldest_checkpoint_needs_is_kept),
      CASE(without_a_checkpoint_above_version_0_nothing_goes),
      CASE(a_round_whose_groups_a_replay_may_need_later_is_kept),
      CASE(a_round_with_groups_in_no_step_is_kept),
      CASE(a_round_whose_figures_are_still_to_come_is_kept),
      CASE(a_run_whose_pass_rates_a_queued_run_waits_for_drops_nothing),
      CASE(a_queued_run_that_counts_others_keeps_nothing_here),
      CASE(what_was_kept_for_a_queued_run_goes_once_that_has_counted_it),
      CASE(of_a_dropped_round_its_figures_stay),
      CASE(a_piece_is_bounded_by_samples),
      CASE(a_piece_is_bounded_by_bytes),
      CASE(a_piece_drops_one_sample_at_least),
      CASE(a_piece_is_bounded_over_groups_without_samples),
      CASE(the_database_stops_growing),
  };
  return cmocka_run_group_tests_name("retention", tests, NULL, NULL);
}
