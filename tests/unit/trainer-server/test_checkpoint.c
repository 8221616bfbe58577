/* Checkpoints: what is loaded is what was written, bit for bit, or it is refused; and training goes on from one as if
 * nothing had happened. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "tests/unit/trainer-server/checkpoints.h"

/* The machine's clock, as far as this program asks for it: files' times are the kernel's. */
static time_t clock_ahead_s;

int clock_gettime(clockid_t id, struct timespec *out) {
  const int rc = (int)syscall(SYS_clock_gettime, id, out);
  if (rc == 0 && id == CLOCK_REALTIME) out->tv_sec += clock_ahead_s;
  return rc;
}

/* Everything comes back: metadata to the last digit, weights, masters, moments; and the folder is one that
 * transformers would load. */
static void what_was_written_is_loaded(void **state) {
  (void)state;
  struct err err = {0};
  struct checkpoint c;
  const size_t bytes = parts.model->params.elements * sizeof(float);
  assert_rc(RC_NOT_FOUND, load(&c, &err), err);
  for (int i = 1; i <= 3; i++) train_step(optimizer, parts.weights, i);
  float *kept[3] = {malloc(bytes), malloc(bytes), malloc(bytes)};
  float *const arrays[3] = {optimizer_masters(optimizer), optimizer_moment1(optimizer), optimizer_moment2(optimizer)};
  for (int a = 0; a < 3; a++) memcpy(kept[a], arrays[a], bytes);
  struct digest digest, loaded;
  assert_rc(RC_OK, weights_digest(&digest, parts.weights, &err), err);
  write_version(3);
  for (int a = 0; a < 3; a++) memset(arrays[a], 0x11, bytes);
  weights_from_masters(parts.weights, parts.masters);
  assert_rc(RC_OK, load(&c, &err), err);
  assert_string_equal(c.meta.run, "r7");
  assert_string_equal(c.meta.step_id, "r7.2");
  assert_int_equal(c.meta.step_request.bytes[0], 6);
  assert_int_equal(c.meta.version, 3);
  assert_true(c.meta.seed == UINT64_MAX - 1 && c.meta.epoch == 3 && c.meta.fence == 4);
  assert_int_equal(c.meta.optimizer_steps, 3);
  assert_true(c.meta.training.lr == 0.1 + 0.2);
  assert_string_equal(c.meta.training.objective, "grpo");
  assert_int_equal(c.meta.history_count, 2);
  assert_true(c.meta.history[0].loss == 0.1 && c.meta.history[0].lr == 1e-6 && c.meta.history[0].tokens == 17 &&
              c.meta.history[0].digest.bytes[0] == 1);
  assert_true(c.meta.history[1].skipped);
  assert_rc(RC_OK, weights_digest(&loaded, parts.weights, &err), err);
  assert_true(digest_equal(&loaded, &digest) && digest_equal(&c.meta.digest, &digest));
  const struct param *p = &parts.model->params.items[0];
  for (int a = 0; a < 3; a++) {
    for (int i = 0; i < parts.model->params.count; i++) {
      p = &parts.model->params.items[i];
      assert_memory_equal(arrays[a] + p->offset, kept[a] + p->offset, p->count * sizeof(float));
    }
    free(kept[a]);
  }
  assert_true(exists("r7/v3/config.json") && exists("r7/v3/tokenizer.json") && exists("r7/v3/model.safetensors") &&
              !exists("r7/v3/generation_config.json"));
  assert_false(exists("r7/.partial-v3"));
  checkpoint_free(&c);
}

/* N steps straight == k steps, checkpoint, another process's memory, N - k steps; schedule and bias corrections
 * included. */
static void training_goes_on_bit_for_bit(void **state) {
  (void)state;
  enum { N = 7, K = 3 };
  struct err err = {0};
  struct digest straight, resumed;
  struct checkpoint c;
  for (int i = 1; i <= K; i++) train_step(optimizer, parts.weights, i);
  write_version(K);
  for (int i = K + 1; i <= N; i++) train_step(optimizer, parts.weights, i);
  assert_rc(RC_OK, weights_digest(&straight, parts.weights, &err), err);
  float *masters = malloc(parts.model->params.elements * sizeof *masters);
  memcpy(masters, optimizer_masters(optimizer), parts.model->params.elements * sizeof *masters);

  struct parts other;
  struct optimizer *fresh;
  parts_make(&other, model_dir);
  assert_rc(RC_OK, optimizer_create(&fresh, other.model, &config, &err), err);
  const struct checkpoint_arrays arrays = checkpoint_arrays_of(fresh);
  assert_rc(RC_OK, checkpoint_load(&c, state_dir, other.model, other.weights, &arrays, &err), err);
  optimizer_configure(fresh, &config);
  optimizer_set_step_count(fresh, c.meta.optimizer_steps);
  for (int i = K + 1; i <= N; i++) train_step(fresh, other.weights, i);
  assert_rc(RC_OK, weights_digest(&resumed, other.weights, &err), err);
  assert_true(digest_equal(&straight, &resumed));
  for (int i = 0; i < parts.model->params.count; i++) {
    const struct param *p = &parts.model->params.items[i];
    assert_memory_equal(masters + p->offset, optimizer_masters(fresh) + p->offset, p->count * sizeof(float));
  }
  checkpoint_free(&c);
  optimizer_free(fresh);
  parts_free(&other);
  free(masters);
}

/* Half-written folders, left by a crash at any moment before the rename, are neither loaded nor in the way, and the
 * next pruning sweeps them. */
static void half_written_checkpoints_are_ignored(void **state) {
  (void)state;
  struct err err = {0};
  struct checkpoint c;
  char path[LIMIT_PATH_MAX];
  write_version(1);
  path_of(path, "r7/.partial-v2");
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  write_text(path, "model.safetensors", "half");
  assert_rc(RC_OK, load(&c, &err), err);
  assert_int_equal(c.meta.version, 1);
  checkpoint_free(&c);
  write_version(2); /* over the leftover of its own name */
  path_of(path, "r7/.partial-v9");
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  assert_rc(RC_OK, load(&c, &err), err);
  assert_int_equal(c.meta.version, 2);
  checkpoint_free(&c);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 2, 2, 0, &err), err);
  assert_false(exists("r7/.partial-v9"));
  assert_true(exists("r7/v1") && exists("r7/v2"));
}

/* Run r7's versions 0 to `newest`, each a folder with this file. */
static void make_versions(int newest, const char *file) {
  struct err err = {0};
  char path[LIMIT_PATH_MAX];
  for (int v = 0; v <= newest; v++) {
    snprintf(path, sizeof path, "%s/r7/v%d", state_dir, v);
    assert_rc(RC_OK, file_make_dirs(path, &err), err);
    write_text(path, file, "x");
  }
}

/* Pruning keeps version 0 (the KL term's reference) and the newest `keep`; what is newer was left by another run of
 * that name, or by a step that was not finished, and must not become an older one.  Other runs, and what is no version,
 * are left alone. */
static void pruning_keeps_the_newest_and_version_zero(void **state) {
  (void)state;
  struct err err = {0};
  char path[LIMIT_PATH_MAX];
  make_versions(12, "x");
  path_of(path, "r7/vault");
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  path_of(path, "r7/v013");
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  path_of(path, "r8/v12");
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 11, 3, 0, &err), err);
  assert_true(exists("r7/v0") && exists("r7/v9") && exists("r7/v10") && exists("r7/v11") && exists("r7/vault") &&
              exists("r7/v013") && exists("r8/v12"));
  assert_false(exists("r7/v12"));
  assert_int_equal(checkpoint_oldest(state_dir, "r7", 3), 9);
  for (int v = 1; v <= 8; v++) {
    snprintf(path, sizeof path, "r7/v%d", v);
    assert_false(exists(path));
  }
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 11, 1, 0, &err), err);
  assert_true(exists("r7/v0") && exists("r7/v11") && !exists("r7/v10"));
  assert_int_equal(checkpoint_oldest(state_dir, "r7", 3), 11);
  path_of(path, "r9/v0");
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  assert_int_equal(checkpoint_oldest(state_dir, "r9", 3), 0);
  assert_int_equal(checkpoint_oldest(state_dir, "absent", 3), 0);
}

/* What a run names stays beside the newest, and is no place to begin again from; after a new run of the name nothing is
 * named.  Where it cannot be known what is named, nothing goes. */
static void named_versions_stay(void **state) {
  (void)state;
  struct err err = {0};
  struct arena arena = ARENA_INIT;
  char path[LIMIT_PATH_MAX];
  int32_t best[] = {7, 2};
  for (int v = 0; v <= 9; v++) {
    snprintf(path, sizeof path, "%s/r7/v%d", state_dir, v);
    assert_rc(RC_OK, file_make_dirs(path, &err), err);
    write_text(path, "x", "x");
  }
  assert_rc(RC_OK, checkpoint_keep(state_dir, "r7", &(struct kept_checkpoints){2, {best, 2}, 0}, &err), err);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 9, 5, 0, &err), err);
  const struct json_i32s kept = checkpoint_versions(state_dir, "r7", &arena);
  static const int32_t expected[] = {0, 2, 7, 8, 9};
  assert_int_equal(kept.count, 5);
  assert_memory_equal(kept.items, expected, sizeof expected);
  assert_int_equal(checkpoint_oldest(state_dir, "r7", 5), 8);
  path_of(path, "r7");
  write_text(path, "kept.json", "{\"last\":");
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 9, 1, 0, &err), err);
  assert_true(exists("r7/v2") && exists("r7/v8"));
  assert_rc(RC_OK, checkpoint_keep(state_dir, "r7", &(struct kept_checkpoints){0}, &err), err);
  assert_rc(RC_OK, checkpoint_keep(state_dir, "r7", &(struct kept_checkpoints){0}, &err), err);
  assert_false(exists("r7/kept.json"));
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 9, 1, 0, &err), err);
  assert_true(exists("r7/v0") && exists("r7/v9") && !exists("r7/v8") && !exists("r7/v7") && !exists("r7/v2"));
  arena_free(&arena);
}

/* A run that is posted asks for its checkpoint while a step is under way that has not heard of it.  The step's pruning
 * spares it, and that of a restart; a step sent long after has been told of every queued run. */
static void what_is_asked_for_stays_until_the_runs_steps_can_name_it(void **state) {
  (void)state;
  struct err err = {0};
  make_versions(4, "trainer_state.json");
  assert_true(checkpoint_ask(state_dir, "r7", 2));
  assert_false(checkpoint_ask(state_dir, "r7", 5));
  assert_false(checkpoint_ask(state_dir, "absent", 0));
  const int64_t asked_ms = clock_wall_ms();
  struct kept_checkpoints kept = {.asked_since_ms = asked_ms - 60000};
  assert_rc(RC_OK, checkpoint_keep(state_dir, "r7", &kept, &err), err);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 4, 1, 0, &err), err);
  assert_true(exists("r7/v0") && exists("r7/v2") && exists("r7/v4") && !exists("r7/v1") && !exists("r7/v3"));
  assert_false(checkpoint_ask(state_dir, "r7", 3));
  kept.asked_since_ms = asked_ms + 60000;
  assert_rc(RC_OK, checkpoint_keep(state_dir, "r7", &kept, &err), err);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 4, 1, 0, &err), err);
  assert_true(exists("r7/v0") && exists("r7/v4") && !exists("r7/v2"));
}

/* Machines that start with a clock that is ahead have it set back once they have asked for the time.  The mark that a
 * version was asked for has its file's time, which was of the clock that is set: it seemed to be an hour old, and the
 * next step removed the checkpoint. */
static void what_is_asked_for_stays_though_the_machines_clock_was_set_back(void **state) {
  (void)state;
  struct err err = {0};
  make_versions(4, "trainer_state.json");
  const struct kept_checkpoints kept = {.asked_since_ms = clock_wall_ms() - 60000};
  assert_true(kept.asked_since_ms > clock_real_ms());
  assert_true(checkpoint_ask(state_dir, "r7", 2));
  assert_rc(RC_OK, checkpoint_keep(state_dir, "r7", &kept, &err), err);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 4, 1, 0, &err), err);
  assert_true(exists("r7/v2") && !exists("r7/v3"));
}

/* Asked for by a clock that was ten days ahead, before this process: it was kept for ten days more. */
static void what_was_asked_for_in_days_to_come_is_asked_for_now(void **state) {
  (void)state;
  struct err err = {0};
  char path[LIMIT_PATH_MAX];
  make_versions(4, "trainer_state.json");
  assert_true(checkpoint_ask(state_dir, "r7", 2));
  const int64_t now_ms = clock_wall_ms();
  const struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, {now_ms / 1000 + 864000, 0}};
  assert_rc(RC_OK, path_format(path, &err, "%s/r7/asked-v2", state_dir), err);
  assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
  struct kept_checkpoints kept = {.asked_since_ms = now_ms - 60000};
  assert_rc(RC_OK, checkpoint_keep(state_dir, "r7", &kept, &err), err);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 4, 1, 0, &err), err);
  assert_true(exists("r7/v2") && !exists("r7/v3"));
  kept.asked_since_ms = now_ms + 60000;
  assert_rc(RC_OK, checkpoint_keep(state_dir, "r7", &kept, &err), err);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 4, 1, 0, &err), err);
  assert_false(exists("r7/v2"));
}

int main(void) {
  clock_ahead_s = 3600;
  clock_wall_ms(); /* from here on it goes on evenly */
  clock_ahead_s = 0;
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(named_versions_stay, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_is_asked_for_stays_until_the_runs_steps_can_name_it, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_is_asked_for_stays_though_the_machines_clock_was_set_back, set_up,
                                      tear_down),
      cmocka_unit_test_setup_teardown(what_was_asked_for_in_days_to_come_is_asked_for_now, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_was_written_is_loaded, set_up, tear_down),
      cmocka_unit_test_setup_teardown(training_goes_on_bit_for_bit, set_up, tear_down),
      cmocka_unit_test_setup_teardown(half_written_checkpoints_are_ignored, set_up, tear_down),
      cmocka_unit_test_setup_teardown(pruning_keeps_the_newest_and_version_zero, set_up, tear_down),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/checkpoint", tests, NULL, NULL);
}
