/* A long run's totals: what closed rounds come to is summed up once, and a status reads the newest alone.  What would
 * break: totals that differ from the sums of all rounds, a status or a scrape that costs more with every round that
 * ever was. */
#include "tests/unit/base/cm.h"

#include <math.h>
#include <stdio.h>

#include "common/base/limits.h"
#include "services/coordinator/rounds/settled.h"
#include "services/coordinator/views/round_view.h"
#include "services/coordinator/views/gauges.h"
#include "services/coordinator/views/run_sums.h"
#include "services/coordinator/views/run_view.h"
#include "tests/unit/coordinator/counted_store.h"

enum { RUN = 1, LONG = 40 * SETTLED_STEP };

static int setup(void **state) {
  (void)state;
  if (counted_store_open() != RC_OK) return 1;
  run_sql(
      "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) VALUES "
      "(1, 'x', 2, 1, 'grpo', '{}', x'00', 100000, '1', 0)");
  run_sql(
      "INSERT INTO workers (id, name, kind, url, slots, epoch, fence, live, registered_ms, seen_ms) VALUES (1, 'a', 0, "
      "'', 8, 1, 1, 1, 0, 0), (2, 'b', 0, '', 8, 1, 1, 1, 0, 0)");
  return 0;
}

static int teardown(void **state) {
  (void)state;
  store_close(core.store);
  return 0;
}

/* A round that is over, with figures of its own, but no reward, as of a supervised run; the trainer told of every
 * second. */
static void round_done(int64_t round) {
  struct err err = {0};
  must(store_exec(core.store, &err,
                  "INSERT INTO versions (run, version, state, digest, published, step, created_ms) VALUES (1, ?1, 2, "
                  "x'00', 1, '', 0)",
                  BINDS(b_int(round))),
       &err);
  must(store_exec(core.store, &err,
                  "INSERT INTO rounds (run, round, state, version, opened_ms, groups_open, finished, sampled_tokens, "
                  "trained_tokens, published_ms, submitted_ms, trained_ms, groups_trained, stale_groups, exact, "
                  "logprob_unequal, logprob_max_abs_diff, logprob_abs_sum, logprob_k1_sum, logprob_k3_sum) VALUES (1, "
                  "?1, 4, ?1, 1000 + 10 * ?1, 0, 1, 7 + ?1, 5 + ?1, 1009 + 10 * ?1, 1004 + 10 * ?1, 1006 + 10 * ?1, ?1 "
                  "% 3, ?1 % 5 = 0, ?1 % 7 <> 0, ?1 % 2, 1.0 / (1 + ?1), 0.1 * ?1, 1e-9 * ?1, 1e9 / (1 + ?1))",
                  BINDS(b_int(round))),
       &err);
  if (round % 2)
    must(store_exec(core.store, &err,
                    "INSERT INTO cause_times VALUES (1, ?1, 0, 3 + ?1, 4, 5, 6 + ?1, 0, 0, 0, 0, 0, 0, 0)",
                    BINDS(b_int(round))),
         &err);
  must(store_exec(core.store, &err,
                  "INSERT INTO contributions (run, round, worker, samples, tokens) VALUES (1, ?1, 1 + ?1 % 2, 3, 20)",
                  BINDS(b_int(round))),
       &err);
}

static void play(int64_t from, int64_t to) {
  struct err err = {0};
  for (int64_t round = from; round < to; round++) {
    round_done(round);
    must(settled_advance(&core, RUN, round, &err), &err);
  }
}

static struct run_sums sums(void) {
  struct err err = {0};
  struct run_sums out = {0};
  must(run_sums_read(core.store, RUN, &out, &err), &err);
  return out;
}

static void contributions(char *out, size_t size) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  json_writer_init(&w, &text);
  json_object_begin(&w);
  must(contributions_of_run_write(core.store, &w, RUN, INT64_MAX, &err), &err);
  json_object_end(&w);
  must(buf_check(&text, &err), &err);
  snprintf(out, size, "%.*s", (int)text.len, text.data);
  buf_free(&text);
}

/* Of what is stored now, and of all rounds one by one: the same to the last bit. */
static void check_against_all_rounds(void) {
  char settled_text[512], text[512];
  const struct run_sums settled = sums();
  contributions(settled_text, sizeof settled_text);
  run_sql("SAVEPOINT look");
  run_sql("DELETE FROM settled_rounds");
  run_sql("DELETE FROM settled_contributions");
  const struct run_sums all = sums();
  contributions(text, sizeof text);
  run_sql("ROLLBACK TO look");
  run_sql("RELEASE look");
  assert_memory_equal(&settled, &all, sizeof all);
  assert_string_equal(settled_text, text);
}

static void totals_are_those_of_all_rounds(void **state) {
  (void)state;
  play(0, 3 * SETTLED_STEP);
  assert_int_equal(number("SELECT before_round FROM settled_rounds"), 2 * SETTLED_STEP);
  assert_int_equal(sums().done, 3 * SETTLED_STEP);
  check_against_all_rounds();
  play(3 * SETTLED_STEP, 4 * SETTLED_STEP + 1);
  assert_int_equal(number("SELECT before_round FROM settled_rounds"), 3 * SETTLED_STEP);
  check_against_all_rounds();
}

static void time_that_is_told_of_late_counts(void **state) {
  struct err err = {0};
  (void)state;
  play(0, 2 * SETTLED_STEP);
  const struct run_sums before = sums();
  for (int64_t round = 0; round < 2 * SETTLED_STEP; round += 2 * SETTLED_STEP - 1) { /* a settled one and a newer one */
    must(store_exec(core.store, &err,
                    "INSERT INTO cause_times VALUES (1, ?1, 0, 100, 0, 0, 10, 0, 0, 0, 0, 0, 0, 0) ON CONFLICT DO "
                    "UPDATE SET fill_us = fill_us + 100, compute_us = compute_us + 10",
                    BINDS(b_int(round))),
         &err);
    must(settled_add_times(&core, RUN, round, 100, 10, &err), &err);
  }
  assert_true(sums().wait_us == before.wait_us + 200 && sums().work_us == before.work_us + 20);
  check_against_all_rounds();
}

static void rounds_with_something_open_are_not_settled(void **state) {
  (void)state;
  play(0, SETTLED_STEP);
  run_sql("UPDATE rounds SET finished = 0 WHERE round = 40");
  run_sql(
      "INSERT INTO groups (run, round, ordinal, state, purpose, dataset_index, sample_count, samples_open, "
      "prompt_ids, prompt, answer, extra) VALUES (1, 30, 0, 0, 1, 0, 4, 1, x'', '', '', '')");
  play(SETTLED_STEP, 2 * SETTLED_STEP);
  assert_int_equal(number("SELECT before_round FROM settled_rounds"), 30);
  run_sql("UPDATE groups SET state = 1");
  run_sql("UPDATE rounds SET sampled_tokens = sampled_tokens + 1000 WHERE round = 30");
  play(2 * SETTLED_STEP, 3 * SETTLED_STEP);
  assert_int_equal(number("SELECT before_round FROM settled_rounds"), 40);
  check_against_all_rounds();
  run_sql("UPDATE rounds SET finished = 1");
  play(3 * SETTLED_STEP, 4 * SETTLED_STEP);
  assert_int_equal(number("SELECT before_round FROM settled_rounds"), 3 * SETTLED_STEP);
  check_against_all_rounds();
}

/* A run's status, without its history, and a scrape. */
static int64_t cost_of_a_look(void) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  json_writer_init(&w, &text);
  count_begin();
  must(run_write(core.store, &w, RUN, &(struct run_part){0, INT64_MAX, INT64_MAX}, 2000, &err), &err);
  must(run_gauges_set(core.store, &err), &err);
  must(state_gauges_set(core.store, 0, &err), &err);
  const int64_t cost = count_end();
  buf_free(&text);
  return cost;
}

static void a_status_and_a_scrape_cost_the_same_however_long_the_run(void **state) {
  (void)state;
  play(0, 2 * SETTLED_STEP);
  const int64_t early = cost_of_a_look();
  play(2 * SETTLED_STEP, LONG);
  const int64_t late = cost_of_a_look();
  assert_true(early > 0);
  if (late > early + early / 10)
    fail_msg("%lld instructions, %lld after %d rounds", (long long)early, (long long)late, LONG);
}

/* The status's evaluations, or the totals' workers; the caller frees *out. */
static const struct json *shown(struct json **out, const struct run_part *part, const char *list) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  json_writer_init(&w, &text);
  must(run_write(core.store, &w, RUN, part, 2000, &err), &err);
  must(json_parse(out, text.data, text.len, LIMIT_BODY_BYTES, &err), &err);
  buf_free(&text);
  return json_find(*out, list);
}

static int64_t first_round(const struct json *evaluations) {
  return (int64_t)json_find_number(json_at(evaluations, 0), "round");
}

/* A run that evaluates often and whose samplers are started again for months: each status had all of them. */
static void a_status_shows_the_newest_evaluations_and_workers_and_the_others_when_asked(void **state) {
  enum { EVALUATIONS = LIMIT_SHOWN_EVALUATIONS + 7, WORKERS = LIMIT_SHOWN_WORKERS + 9 };
  struct json *status = NULL;
  (void)state;
#define NUMBERS(most) "WITH RECURSIVE n (i) AS (VALUES (0) UNION ALL SELECT i + 1 FROM n WHERE i + 1 < " #most ") "
  run_sql("INSERT INTO versions (run, version, state, digest, published, step, created_ms) VALUES (1, 0, 2, x'00', 1, "
          "'', 0)");
  run_sql(NUMBERS(507) "INSERT INTO rounds (run, round, state, version, opened_ms, groups_open, finished) SELECT 1, i, "
                       "4, 0, 1000, 0, 1 FROM n");
  run_sql(NUMBERS(507) "INSERT INTO evaluations SELECT 1, i, 0, 1, 1, 0.5, 1, 0 FROM n");
  run_sql(NUMBERS(1009) "INSERT INTO workers (id, name, kind, url, slots, epoch, fence, live, registered_ms, seen_ms) "
                        "SELECT 10 + i, 'gen-' || i, 0, '', 8, 1, 1, 0, 0, 0 FROM n");
  run_sql(NUMBERS(1009) "INSERT INTO contributions SELECT 1, 0, 10 + i, 3, 20 FROM n");
  const struct json *list = shown(&status, &(struct run_part){0, INT64_MAX, INT64_MAX}, "evaluations");
  assert_int_equal(json_length(list), LIMIT_SHOWN_EVALUATIONS);
  assert_int_equal(first_round(list), EVALUATIONS - LIMIT_SHOWN_EVALUATIONS);
  assert_true(json_find_number(status, "evaluations_count") == EVALUATIONS);
  list = json_find(status, "totals.workers");
  assert_int_equal(json_length(list), LIMIT_SHOWN_WORKERS);
  assert_string_equal(json_word(json_get(json_at(list, 0), "id")), "w19");
  assert_true(json_find_number(status, "totals.workers_count") == WORKERS);
  json_free(status);
  list = shown(&status, &(struct run_part){0, 7, 19}, "evaluations");
  assert_int_equal(json_length(list), 7);
  assert_int_equal(first_round(list), 0);
  list = json_find(status, "totals.workers");
  assert_int_equal(json_length(list), 9);
  assert_string_equal(json_word(json_get(json_at(list, 8), "id")), "w18");
  json_free(status);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int main(void) {
  const struct CMUnitTest tests[] = {
      CASE(totals_are_those_of_all_rounds),
      CASE(time_that_is_told_of_late_counts),
      CASE(rounds_with_something_open_are_not_settled),
      CASE(a_status_and_a_scrape_cost_the_same_however_long_the_run),
      CASE(a_status_shows_the_newest_evaluations_and_workers_and_the_others_when_asked),
  };
  return cmocka_run_group_tests_name("coordinator/settled", tests, NULL, NULL);
}
