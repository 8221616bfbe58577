/* What the tests of checkpoints share: a tiny model, its optimizer after some steps, and versions of a run "r7" written
 * and read back. */
#ifndef LEASEHOLD_TESTS_TRAINER_CHECKPOINTS_H
#define LEASEHOLD_TESTS_TRAINER_CHECKPOINTS_H

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

static inline int set_up(void **state) {
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

static inline int tear_down(void **state) {
  (void)state;
  optimizer_free(optimizer);
  parts_free(&parts);
  folder_remove(dir);
  return 0;
}

/* One AdamW step with made-up gradients that depend on the step. */
static inline void train_step(struct optimizer *o, struct weights *w, int step) {
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

static inline struct checkpoint_meta meta_of(int64_t version, struct round_record *history, size_t count) {
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

static inline void write_version(int64_t version) {
  struct err err = {0};
  struct buf bytes = BUF_INIT;
  struct digest written;
  struct round_record history[] = {
      {.version = version, .digest = {{1}}, .loss = 0.1, .grad_norm = 3.5, .lr = 1e-6, .tokens = 17, .skipped = false},
      {.version = version, .digest = {{2}}, .loss = -0.25, .grad_norm = 0, .lr = 0, .tokens = 0, .skipped = true}};
  const struct checkpoint_meta meta = meta_of(version, history, 2);
  assert_rc(RC_OK, weights_to_safetensors(&bytes, &written, parts.weights, NULL, "weights", &err), err);
  const struct checkpoint_arrays arrays = checkpoint_arrays_of(optimizer);
  assert_rc(RC_OK, checkpoint_write(state_dir, model_dir, &meta, parts.model, &arrays, &bytes, &err), err);
  buf_free(&bytes);
}

static inline enum rc load(struct checkpoint *c, struct err *err) {
  const struct checkpoint_arrays arrays = checkpoint_arrays_of(optimizer);
  return checkpoint_load(c, state_dir, parts.model, parts.weights, &arrays, err);
}

static inline void path_of(char out[LIMIT_PATH_MAX], const char *name) {
  struct err err = {0};
  assert_rc(RC_OK, path_format(out, &err, "%s/%s", state_dir, name), err);
}

static inline bool exists(const char *name) {
  char path[LIMIT_PATH_MAX];
  path_of(path, name);
  return file_exists(path);
}

static inline void flip(const char *name, int64_t from_end) {
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

#endif
