/* Checkpoints: what is loaded is what was written, bit for bit, or it is refused; and training goes on from one as if
 * nothing had happened. */
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/trainer-server/support.h"

static char dir[PATH], model_dir[PATH + 16], state_dir[PATH + 16];
static struct parts parts;
static struct optimizer *optimizer;
static const struct optimizer_config config = {.lr = 0.01,
                                               .beta1 = 0.9,
                                               .beta2 = 0.99,
                                               .eps = 1e-8,
                                               .weight_decay = 0.05,
                                               .clip_norm = 0.3,
                                               .schedule = SCHEDULE_COSINE,
                                               .warmup_steps = 2,
                                               .total_steps = 9,
                                               .lr_min_ratio = 0.1,
                                               .grad_scale_log2 = 32};

static int set_up(void **state) {
  (void)state;
  struct err err = {0};
  folder_make(dir);
  snprintf(model_dir, sizeof model_dir, "%s/model", dir);
  snprintf(state_dir, sizeof state_dir, "%s/state", dir);
  assert_rc(RC_OK, file_make_dirs(state_dir, &err), err);
  parts_make(&parts, model_dir);
  assert_rc(RC_OK, optimizer_create(&optimizer, parts.model, &config, &err), err);
  weights_to_masters(parts.weights, optimizer_masters(optimizer));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  optimizer_free(optimizer);
  parts_free(&parts);
  folder_remove(dir);
  return 0;
}

/* One AdamW step with made-up gradients that depend on the step. */
static void train_step(struct optimizer *o, struct weights *w, int step) {
  const size_t n = parts.model->params.elements;
  float *grads = calloc(n, sizeof *grads);
  uint32_t random = (uint32_t)step * 77u + 5u;
  struct step_result result;
  for (size_t i = 0; i < n; i++) grads[i] = ((float)(mix(&random) % 2001) - 1000.0f) * 1e-4f;
  assert_true(optimizer_add_unit(o, grads));
  optimizer_step(o, 3, &result);
  assert_false(result.skipped);
  weights_from_masters(w, optimizer_masters(o));
  free(grads);
}

static struct checkpoint_meta meta_of(int64_t version, struct round_record *history, size_t count) {
  struct err err = {0};
  struct checkpoint_meta meta = {.run = "r7",
                                 .version = version,
                                 .seed = UINT64_MAX - 1,
                                 .epoch = 3,
                                 .fence = 4,
                                 .optimizer_steps = optimizer_step_count(optimizer),
                                 .history = history,
                                 .history_count = count,
                                 .step_request = {{6}}};
  snprintf(meta.step_id, sizeof meta.step_id, "r7.%d", (int)version - 1);
  training_config_defaults(&meta.training);
  meta.training.lr = 0.1 + 0.2; /* a number that needs all its digits */
  assert_rc(RC_OK, weights_digest(&meta.digest, parts.weights, &err), err);
  return meta;
}

static void write_version(int64_t version) {
  struct err err = {0};
  struct buf bytes = BUF_INIT;
  struct round_record history[] = {
      {.version = version, .digest = {{1}}, .loss = 0.1, .grad_norm = 3.5, .lr = 1e-6, .tokens = 17, .skipped = false},
      {.version = version, .digest = {{2}}, .loss = -0.25, .grad_norm = 0, .lr = 0, .tokens = 0, .skipped = true}};
  const struct checkpoint_meta meta = meta_of(version, history, 2);
  assert_rc(RC_OK, weights_to_safetensors(&bytes, parts.weights, NULL, &err), err);
  assert_rc(RC_OK, checkpoint_write(state_dir, model_dir, &meta, parts.model, optimizer, &bytes, &err), err);
  buf_free(&bytes);
}

static enum rc load(struct checkpoint *c, struct err *err) {
  return checkpoint_load(c, state_dir, parts.model, parts.weights, optimizer, err);
}

static void path_of(char out[LIMIT_PATH_MAX], const char *name) {
  struct err err = {0};
  assert_rc(RC_OK, path_format(out, &err, "%s/%s", state_dir, name), err);
}

static bool exists(const char *name) {
  char path[LIMIT_PATH_MAX];
  path_of(path, name);
  return file_exists(path);
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
  assert_rc(RC_OK, checkpoint_load(&c, state_dir, other.model, other.weights, fresh, &err), err);
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
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 2, 2, &err), err);
  assert_false(exists("r7/.partial-v9"));
  assert_true(exists("r7/v1") && exists("r7/v2"));
}

static void flip(const char *name, int64_t from_end) {
  char path[LIMIT_PATH_MAX];
  uint8_t byte;
  path_of(path, name);
  const int fd = open(path, O_RDWR);
  struct stat st;
  assert_true(fd >= 0 && fstat(fd, &st) == 0);
  const off_t at = from_end >= 0 ? st.st_size - 1 - from_end : -from_end;
  assert_int_equal(pread(fd, &byte, 1, at), 1);
  byte ^= 4;
  assert_int_equal(pwrite(fd, &byte, 1, at), 1);
  close(fd);
}

/* Whatever is wrong with a stored checkpoint is RC_CORRUPT with the file's name, never input's fault and never a
 * silent start. */
static void damaged_checkpoints_are_corrupt(void **state) {
  (void)state;
  static const struct {
    const char *file;
    int64_t from_end;
  } flips[] = {
      {"r7/v1/model.safetensors", 0},  {"r7/v1/model.safetensors", 777},   {"r7/v1/model.safetensors", -12},
      {"r7/v1/model.safetensors", -2}, {"r7/v1/optimizer.safetensors", 5}, {"r7/v1/optimizer.safetensors", -9},
      {"r7/v1/trainer_state.json", 0},
  };
  struct checkpoint c;
  for (size_t i = 0; i < sizeof flips / sizeof flips[0]; i++) {
    struct err err = {0};
    write_version(1);
    assert_rc(RC_OK, load(&c, &err), err);
    checkpoint_free(&c);
    flip(flips[i].file, flips[i].from_end);
    const enum rc rc = load(&c, &err);
    if (rc != RC_CORRUPT)
      fail_msg("a flipped bit in %s at %d: expected corrupt, got %s: %s", flips[i].file, (int)flips[i].from_end,
               rc_name(rc), err.message);
    assert_non_null(strstr(err.message, "r7/v1"));
  }
}

static void missing_and_truncated_files_are_corrupt(void **state) {
  (void)state;
  static const char *const files[] = {"r7/v1/model.safetensors", "r7/v1/optimizer.safetensors",
                                      "r7/v1/trainer_state.json"};
  struct checkpoint c;
  for (int how = 0; how < 3; how++) {
    for (size_t i = 0; i < 3; i++) {
      struct err err = {0};
      char path[LIMIT_PATH_MAX];
      struct stat st;
      write_version(1);
      path_of(path, files[i]);
      assert_int_equal(stat(path, &st), 0);
      if (how == 0)
        assert_int_equal(unlink(path), 0);
      else
        assert_int_equal(truncate(path, how == 1 ? st.st_size / 2 : 0), 0);
      const enum rc rc = load(&c, &err);
      if (rc != RC_CORRUPT)
        fail_msg("%s, way %d: expected corrupt, got %s: %s", files[i], how, rc_name(rc), err.message);
    }
  }
}

/* `latest` must name a whole checkpoint of that very name. */
static void latest_must_name_what_is_there(void **state) {
  (void)state;
  static const char *const contents[] = {"r7/v4\n",
                                         "r8/v1\n",
                                         "",
                                         "r7/v1",
                                         "r7\n",
                                         "/v1\n",
                                         "r7/v1/..\n",
                                         "../state/r7/v1\n",
                                         "r7/vx\n",
                                         "r7/v1 \n",
                                         "r7/v99999999999999999999\n"};
  struct err err = {0};
  struct checkpoint c;
  write_version(1);
  for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++) {
    write_text(state_dir, "latest", contents[i]);
    const enum rc rc = load(&c, &err);
    if (rc != RC_CORRUPT)
      fail_msg("latest \"%s\": expected corrupt, got %s: %s", contents[i], rc_name(rc), err.message);
  }
  char from[LIMIT_PATH_MAX], to[LIMIT_PATH_MAX]; /* a folder under another version's name */
  path_of(from, "r7/v1");
  path_of(to, "r7/v2");
  assert_int_equal(rename(from, to), 0);
  write_text(state_dir, "latest", "r7/v2\n");
  assert_rc(RC_CORRUPT, load(&c, &err), err);
  assert_int_equal(rename(to, from), 0);
  write_text(state_dir, "latest", "r7/v1\n");
  assert_rc(RC_OK, load(&c, &err), err);
  checkpoint_free(&c);
}

/* Pruning keeps version 0 (the KL term's reference) and the newest `keep`; it never touches another run, nor newer
 * versions. */
static void pruning_keeps_the_newest_and_version_zero(void **state) {
  (void)state;
  struct err err = {0};
  char path[LIMIT_PATH_MAX];
  for (int v = 0; v <= 12; v++) {
    snprintf(path, sizeof path, "%s/r7/v%d", state_dir, v);
    assert_rc(RC_OK, file_make_dirs(path, &err), err);
    write_text(path, "x", "x");
  }
  path_of(path, "r7/vault");
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  path_of(path, "r8/v1");
  assert_rc(RC_OK, file_make_dirs(path, &err), err);
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 11, 3, &err), err);
  assert_true(exists("r7/v0") && exists("r7/v9") && exists("r7/v10") && exists("r7/v11") && exists("r7/v12") &&
              exists("r7/vault") && exists("r8/v1"));
  for (int v = 1; v <= 8; v++) {
    snprintf(path, sizeof path, "r7/v%d", v);
    assert_false(exists(path));
  }
  assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 11, 1, &err), err);
  assert_true(exists("r7/v0") && exists("r7/v11") && !exists("r7/v10"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(what_was_written_is_loaded, set_up, tear_down),
      cmocka_unit_test_setup_teardown(training_goes_on_bit_for_bit, set_up, tear_down),
      cmocka_unit_test_setup_teardown(half_written_checkpoints_are_ignored, set_up, tear_down),
      cmocka_unit_test_setup_teardown(damaged_checkpoints_are_corrupt, set_up, tear_down),
      cmocka_unit_test_setup_teardown(missing_and_truncated_files_are_corrupt, set_up, tear_down),
      cmocka_unit_test_setup_teardown(latest_must_name_what_is_there, set_up, tear_down),
      cmocka_unit_test_setup_teardown(pruning_keeps_the_newest_and_version_zero, set_up, tear_down),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/checkpoint", tests, NULL, NULL);
}
