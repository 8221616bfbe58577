/* What trackers are given.  What would break: a round that is written before its figures are complete, twice, or never
 * after a crash at any byte; an evaluation that a later one has overtaken; two figures of one name; statistics over
 * samples that were not trained on. */
#include "tests/unit/base/cm.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/file.h"
#include "services/coordinator/store/migrations.h"
#include "services/coordinator/trackers/jsonl.h"
#include "services/coordinator/trackers/sample_figures.h"
#include "services/coordinator/trackers/tensorboard.h"
#include "services/coordinator/trackers/trackio.h"

enum { RUN = 1 };

struct ledger {
  struct store *store;
  struct readers *readers;
  char folder[64];
};

static void must(enum rc rc, const struct err *err) {
  if (rc != RC_OK) fail_msg("%s: %s", rc_name(rc), err->message);
}

static void sql(const struct ledger *l, const char *text) {
  struct err err = {0};
  must(store_script(l->store, text, &err), &err);
}

static int setup(void **state) {
  static struct ledger l;
  snprintf(l.folder, sizeof l.folder, "/tmp/coordinator-trackers-XXXXXX");
  if (!mkdtemp(l.folder)) return 1;
  if (store_open(&l.store, ":memory:", false, NULL) != RC_OK || migrations_apply(l.store, NULL) != RC_OK) return 1;
  if (readers_create_of_one(&l.readers, l.store, NULL) != RC_OK) return 1;
  sql(&l,
      "INSERT INTO runs (id, name, state, mode, objective, config, config_hash, rounds, seed, created_ms) VALUES (1, "
      "'x', 2, 1, "
      "'grpo', '{}', x'00', 100, '1', 0);"
      "INSERT INTO versions (run, version, state, digest, published, step, created_ms) VALUES (1, 0, 1, x'00', 1, '', "
      "0);"
      "INSERT INTO rounds (run, round, state, version, opened_ms, published_ms, groups_open, reward_mean, grad_norm, "
      "finished) "
      "VALUES (1, 0, 4, 0, 500, 1500, 0, 0.25, 2.0, 1), (1, 1, 4, 0, 1500, 2500, 0, 0.5, 3.0, 1), (1, 2, 4, 0, 2500, "
      "3500, 0, "
      "0.75, NULL, 0), (1, 3, 1, 0, 3500, NULL, 1, NULL, NULL, 0)");
  *state = &l;
  return 0;
}

static int teardown(void **state) {
  struct ledger *l = *state;
  readers_destroy(l->readers);
  store_close(l->store);
  return file_remove_tree(l->folder, NULL) == RC_OK ? 0 : 1;
}

static struct track_entries entries_from(const struct ledger *l, int64_t training, int64_t evaluation,
                                         enum track_naming naming) {
  struct track_entries e;
  struct err err = {0};
  must(track_entries_read(l->readers, RUN, &(struct track_cursor){training, evaluation}, naming, &e, &err), &err);
  return e;
}

static double value_of(const struct track_entry *e, const char *name) {
  for (int i = 0; i < e->count; i++)
    if (strcmp(e->figures[i].name, name) == 0) return e->figures[i].value;
  return NAN;
}

/* ---- which entries there are ---- */

static void test_a_round_is_an_entry_once_its_step_was_answered(void **state) {
  struct ledger *l = *state;
  struct track_entries e = entries_from(l, 0, 0, TRACK_TRL);
  assert_int_equal(e.count, 2);
  for (int i = 0; i < 2; i++) {
    assert_false(e.items[i].evaluation);
    assert_int_equal(e.items[i].round, i);
    assert_int_equal(e.items[i].step, i + 1);
    assert_int_equal(e.items[i].at_ms, 1500 + 1000 * i);
    assert_true(value_of(&e.items[i], "reward") == 0.25 + 0.25 * i && value_of(&e.items[i], "grad_norm") == 2 + i);
    assert_true(value_of(&e.items[i], "step_time") == 1);
    assert_true(isnan(value_of(&e.items[i], "kl")) &&
                isnan(value_of(&e.items[i], "reward_std"))); /* not measured: left out */
  }
  track_entries_free(&e);
  e = entries_from(l, 2, 0, TRACK_TRL);
  assert_int_equal(e.count, 0);
  track_entries_free(&e);
  sql(l, "UPDATE runs SET state = 5, ended_ms = 9000"); /* then no answer will come */
  e = entries_from(l, 2, 0, TRACK_TRL);
  assert_int_equal(e.count, 1);
  assert_true(value_of(&e.items[0], "reward") == 0.75 && isnan(value_of(&e.items[0], "grad_norm")));
  track_entries_free(&e);
}

static void test_a_later_round_waits_for_an_earlier_ones_answer(void **state) {
  struct ledger *l = *state;
  sql(l, "UPDATE rounds SET finished = 0 WHERE round = 0");
  struct track_entries e = entries_from(l, 0, 0, TRACK_TRL);
  assert_int_equal(e.count, 0);
  track_entries_free(&e);
}

static void test_evaluations_come_in_order_and_without_training_alone(void **state) {
  struct ledger *l = *state;
  sql(l,
      "INSERT INTO evaluations (run, round, version, problems, samples, accuracy, well_formed, at_ms) VALUES (1, 1, 1, "
      "4, 8, "
      "0.5, 1, 1600), (1, 0, 0, 4, 8, 0.5, 1, 600);"
      "INSERT INTO evaluation_sets (run, round, number, name, problems, samples, accuracy, well_formed, tokens) VALUES "
      "(1, 1, "
      "0, 'gsm', 4, 8, 0.5, 1, 12), (1, 0, 0, 'gsm', 4, 8, 0.25, 1, 12), (1, 0, 1, 'aime', 4, 16, 0.125, 1, 12);"
      "INSERT INTO evaluation_figures (run, round, number, place, figure, value) VALUES (1, 0, 1, 0, 'accuracy', "
      "0.125), (1, 0, "
      "1, 1, 'pass@4', 0.375), (1, 0, 1, 2, 'majority', 0.0625);"
      "INSERT INTO groups (run, round, ordinal, state, purpose, dataset_index, sample_count, samples_open, prompt_ids, "
      "prompt, "
      "answer, extra) VALUES (1, 0, 9000, 0, 1, 0, 2, 1, x'', '', '', '')");
  struct track_entries e = entries_from(l, 0, 0, TRACK_TRL);
  assert_int_equal(e.count, 3); /* round 1's evaluation waits for the group of round 0's */
  assert_true(e.items[0].evaluation && e.items[0].step == 0 && e.items[0].at_ms == 600);
  assert_true(value_of(&e.items[0], "eval_gsm_reward") == 0.25 && value_of(&e.items[0], "eval_aime_reward") == 0.125);
  assert_true(value_of(&e.items[0], "eval_aime_pass@4") == 0.375 &&
              value_of(&e.items[0], "eval_aime_majority") == 0.0625);
  assert_true(!e.items[1].evaluation && e.items[1].round == 0 && e.items[2].round == 1);
  track_entries_free(&e);
  sql(l, "UPDATE groups SET state = 6; UPDATE runs SET objective = 'evaluate'");
  e = entries_from(l, 0, 1, TRACK_VERL);
  assert_int_equal(e.count, 1);
  assert_true(e.items[0].step == 1 && value_of(&e.items[0], "val-core/gsm/reward/mean@2") == 0.5);
  track_entries_free(&e);
}

static void test_figures_without_a_name_of_theirs_have_ours(void **state) {
  (void)state;
  static const struct track_name lag = {"lag.mean", NULL, "x", 1}, time = {"train_ms", NULL, "x", 0.001},
                                 sample = {"samples.cut_share", NULL, "x", 1};
  struct buf out = BUF_INIT;
  track_name_write(&out, &lag, TRACK_TRL);
  buf_puts(&out, " ");
  track_name_write(&out, &time, TRACK_TRL);
  buf_puts(&out, " ");
  track_name_write(&out, &sample, TRACK_TRL);
  buf_puts(&out, " ");
  track_name_write(&out, &time, TRACK_VERL);
  assert_string_equal(out.data, "leasehold/lag/mean leasehold/train_seconds leasehold/cut_share x");
  buf_free(&out);
  for (int i = 0; i < track_name_count; i++) {
    const size_t len = strlen(track_names[i].figure);
    const bool in_ms = len > 3 && strcmp(track_names[i].figure + len - 3, "_ms") == 0;
    assert_true(track_names[i].scale == (in_ms ? 0.001 : 1));
  }
}

static void test_no_two_figures_have_one_name(void **state) {
  (void)state;
  for (int naming = TRACK_TRL; naming <= TRACK_VERL; naming++) {
    for (int i = 0; i < track_name_count; i++) {
      struct buf a = BUF_INIT, b = BUF_INIT;
      track_name_write(&a, &track_names[i], (enum track_naming)naming);
      assert_false(track_name_evaluates(a.data, a.len));
      for (int k = 0; k < i; k++) {
        buf_clear(&b);
        track_name_write(&b, &track_names[k], (enum track_naming)naming);
        assert_string_not_equal(a.data, b.data);
      }
      buf_free(&a);
      buf_free(&b);
    }
  }
}

/* ---- statistics of samples ---- */

static void test_statistics_are_of_the_groups_that_were_trained_on_or_filtered(void **state) {
  struct ledger *l = *state;
  struct sample_figures f;
  struct err err = {0};
  sql(l,
      "INSERT INTO groups (run, round, ordinal, state, purpose, trained_in, batch, dataset_index, sample_count, "
      "samples_open, "
      "prompt_ids, prompt, answer, extra) VALUES "
      "(1, 0, 0, 3, 0, 1, 0, 0, 2, 0, x'0102030405060708', '', '', '')," /* round 1's step took a group of round 0 */
      "(1, 1, 0, 3, 0, 1, 0, 0, 2, 0, x'01020304', '', '', ''),"
      "(1, 1, 1, 4, 0, NULL, NULL, 0, 2, 0, x'01020304', '', '', ''),"    /* filtered */
      "(1, 1, 2, 3, 0, 2, 0, 0, 2, 0, x'01020304', '', '', ''),"          /* a later step took it */
      "(1, 1, 9000, 6, 1, NULL, NULL, 0, 2, 0, x'01020304', '', '', '');" /* evaluated */
      "INSERT INTO samples (run, round, group_ordinal, sample, state, tokens, finish, reward, advantage) VALUES "
      "(1, 0, 0, 0, 2, 10, 0, 1, 0.5), (1, 0, 0, 1, 2, 20, 0, 0, -0.5),"
      "(1, 1, 0, 0, 2, 30, 1, 4, 1.5), (1, 1, 0, 1, 2, 30, 0, 1, -1.5),"
      "(1, 1, 1, 0, 2, 40, 1, 2, NULL), (1, 1, 1, 1, 2, 5, 0, 2, NULL),"
      "(1, 1, 2, 0, 2, 99, 1, 9, 9), (1, 1, 2, 1, 2, 99, 1, 9, 9),"
      "(1, 1, 9000, 0, 2, 77, 1, 7, NULL), (1, 1, 9000, 1, 3, 0, NULL, NULL, NULL);"
      "UPDATE rounds SET groups_trained = 2 WHERE round = 1");
  must(sample_figures_read(l->store, RUN, 1, &f, &err), &err);
  assert_true(f.reward_min == 0 && f.reward_max == 4 && f.advantage_min == -1.5 && f.advantage_max == 1.5);
  assert_true(fabs(f.reward_std - (sqrt(0.5) + sqrt(4.5) + 0) / 3) < 1e-12);
  assert_true(fabs(f.zero_std_share - 1.0 / 3) < 1e-12);
  assert_true(f.length_mean == 22.5 && f.length_min == 5 && f.length_max == 40);
  assert_true(fabs(f.cut_share - 2.0 / 6) < 1e-12 && f.ended_length_mean == 65.0 / 4);
  assert_true(fabs(f.prompt_length_mean - 8.0 / 6) < 1e-12 && f.prompt_length_max == 2 && f.all_tokens == 135 + 8);
  must(sample_figures_read(l->store, RUN, 3, &f, &err), &err);
  assert_true(isnan(f.reward_std) && isnan(f.length_mean) && isnan(f.cut_share));
  static const char *const dropping[] = {
      /* of the round that issued a group, then of the step's own; and what is left behind a round that is gone */
      "UPDATE rounds SET rollouts_state = 1 WHERE round = 0; DELETE FROM samples WHERE round = 0 AND sample = 0",
      "UPDATE rounds SET rollouts_state = 1 WHERE round IN (0, 1)",
      "UPDATE rounds SET rollouts_state = 2 * (round = 0) WHERE round IN (0, 1); DELETE FROM samples WHERE round = 0; "
      "DELETE FROM groups WHERE round = 0"};
  for (size_t i = 0; i < sizeof dropping / sizeof dropping[0]; i++) {
    sql(l, dropping[i]);
    must(sample_figures_read(l->store, RUN, 1, &f, &err), &err);
    assert_true(isnan(f.reward_std) && isnan(f.length_mean) && isnan(f.cut_share));
  }
}

/* ---- files ---- */

enum { ENTRIES = 4 };
static const struct track_figure training[] = {{"reward", 0.5}, {"entropy", 1.25}},
                                 evaluated[] = {{"eval_reward", 0.75}};
static const struct track_entry written[ENTRIES] = {
    {.evaluation = true, .round = 0, .step = 0, .at_ms = 1000, .figures = (struct track_figure *)evaluated, .count = 1},
    {.round = 0, .step = 1, .at_ms = 1250, .figures = (struct track_figure *)training, .count = 2},
    {.round = 1, .step = 2, .at_ms = 2000, .figures = (struct track_figure *)training, .count = 2},
    {.evaluation = true,
     .round = 200,
     .step = 200,
     .at_ms = 3000,
     .figures = (struct track_figure *)evaluated,
     .count = 1}};

/* Opens the file as a coordinator does that comes back, writes all entries, and closes it. */
static void write_all(bool lines, const char *path, int entries) {
  struct jsonl j = JSONL_NONE;
  struct tensorboard t = TENSORBOARD_NONE;
  struct err err = {0};
  must(lines ? jsonl_open(&j, path, &err) : tensorboard_open(&t, path, 500, &err), &err);
  for (int i = 0; i < entries; i++)
    must(lines ? jsonl_append(&j, "r1", &written[i], &err) : tensorboard_append(&t, &written[i], &err), &err);
  track_file_close(&j.file);
  track_file_close(&t.file);
}

static struct buf content(const char *path) {
  struct buf b = BUF_INIT;
  struct err err = {0};
  must(file_read(&b, path, 1 << 20, &err), &err);
  return b;
}

static void put_bytes(const char *path, const char *bytes, size_t len, size_t zeroes) {
  struct buf b = BUF_INIT;
  struct err err = {0};
  buf_append(&b, bytes, len);
  for (size_t i = 0; i < zeroes; i++) buf_append(&b, "", 1);
  must(file_write(path, b.data ? b.data : "", b.len, &err), &err);
  buf_free(&b);
}

static void test_a_file_that_was_cut_at_any_byte_is_continued_to_the_same_bytes(void **state) {
  struct ledger *l = *state;
  char path[128];
  for (int lines = 0; lines <= 1; lines++) {
    snprintf(path, sizeof path, "%s/whole-%d", l->folder, lines);
    write_all(lines, path, ENTRIES);
    struct buf whole = content(path);
    write_all(lines, path, ENTRIES); /* nothing is written twice */
    struct buf again = content(path);
    assert_true(again.len == whole.len && memcmp(again.data, whole.data, whole.len) == 0);
    buf_free(&again);
    snprintf(path, sizeof path, "%s/cut-%d", l->folder, lines);
    for (size_t cut = 0; cut < whole.len; cut++) {
      for (size_t zeroes = 0; zeroes <= 40; zeroes += 20) { /* as a power failure may leave behind */
        put_bytes(path, whole.data, cut, zeroes);
        write_all(lines, path, ENTRIES);
        again = content(path);
        if (again.len != whole.len || memcmp(again.data, whole.data, whole.len) != 0)
          fail_msg("%s, cut at byte %zu of %zu, %zu zeroes: it ends otherwise", lines ? "lines" : "events", cut,
                   whole.len, zeroes);
        buf_free(&again);
      }
    }
    buf_free(&whole);
  }
}

static void test_a_full_disk_leaves_no_half_record(void **state) {
  struct ledger *l = *state;
  char path[128];
  struct jsonl j = JSONL_NONE;
  struct err err = {0};
  struct rlimit before;
  snprintf(path, sizeof path, "%s/full", l->folder);
  must(jsonl_open(&j, path, &err), &err);
  must(jsonl_append(&j, "r1", &written[0], &err), &err);
  struct buf whole = content(path);
  assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, SIG_IGN);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &(struct rlimit){whole.len + 9, before.rlim_max}),
                   0); /* room for 9 bytes of a line */
  const enum rc rc = jsonl_append(&j, "r1", &written[1], &err);
  assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
  assert_int_equal(rc, RC_IO);
  struct buf after = content(path);
  assert_true(after.len == whole.len && memcmp(after.data, whole.data, whole.len) == 0);
  buf_free(&after);
  must(jsonl_append(&j, "r1", &written[1], &err), &err);
  track_file_close(&j.file);
  after = content(path);
  assert_non_null(strstr(after.data + whole.len, "{\"round\":0,\"step\":1,"));
  buf_free(&whole);
  buf_free(&after);
}

static void test_a_fragment_has_the_entries_that_are_wanted_under_ids_that_never_change(void **state) {
  struct ledger *l = *state;
  char path[160];
  struct err err = {0};
  struct stat st;
  struct track_entries e = {.count = ENTRIES};
  memcpy(e.items, written, sizeof written);
  const struct trackio_run run = {"r1", "demo", "{\"seed\":7}", 1234};
  must(trackio_write(l->folder, &run, &e, &(struct track_cursor){1, 1}, &err), &err);
  snprintf(path, sizeof path, "%s/inbox/leasehold-r1-1234/00000003.jsonl", l->folder);
  struct buf b = content(path);
  assert_non_null(strstr(b.data, "\"log_id\":\"r1-1234-training-1\""));
  assert_non_null(strstr(b.data, "\"log_id\":\"r1-1234-evaluation-200\""));
  assert_null(strstr(b.data, "-0\""));
  assert_non_null(strstr(b.data, "\"timestamp\":\"1970-01-01T00:00:02.000+00:00\""));
  assert_non_null(strstr(b.data, "\"config\":{\"seed\":7}"));
  buf_free(&b);
  unlink(path);
  must(trackio_write(l->folder, &run, &e, &(struct track_cursor){2, 201}, &err), &err);
  assert_true(stat(path, &st) != 0);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(test_a_round_is_an_entry_once_its_step_was_answered, setup, teardown),
      cmocka_unit_test_setup_teardown(test_a_later_round_waits_for_an_earlier_ones_answer, setup, teardown),
      cmocka_unit_test_setup_teardown(test_evaluations_come_in_order_and_without_training_alone, setup, teardown),
      cmocka_unit_test(test_no_two_figures_have_one_name),
      cmocka_unit_test(test_figures_without_a_name_of_theirs_have_ours),
      cmocka_unit_test_setup_teardown(test_statistics_are_of_the_groups_that_were_trained_on_or_filtered, setup,
                                      teardown),
      cmocka_unit_test_setup_teardown(test_a_file_that_was_cut_at_any_byte_is_continued_to_the_same_bytes, setup,
                                      teardown),
      cmocka_unit_test_setup_teardown(test_a_full_disk_leaves_no_half_record, setup, teardown),
      cmocka_unit_test_setup_teardown(test_a_fragment_has_the_entries_that_are_wanted_under_ids_that_never_change,
                                      setup, teardown),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
