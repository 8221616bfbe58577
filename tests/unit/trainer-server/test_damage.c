/* A damaged checkpoint is never loaded, whatever happened to it: the newest whole older one of the same run is, with a
 * sentence about the damage, and never another run's, nor one that was half written. */
#include "tests/unit/trainer-server/checkpoints.h"

static const char *const files[] = {"model.safetensors", "optimizer.safetensors", "trainer_state.json"};
enum { FILES = 3, STATE_FILE = 2 };

/* Everything that a loaded checkpoint brings, in one number. */
static struct digest loaded_digest(const struct checkpoint *c) {
  struct err err = {0};
  struct digest out, weights;
  struct digest_state sum;
  digest_begin(&sum);
  assert_rc(RC_OK, weights_digest(&weights, parts.weights, &err), err);
  digest_update(&sum, &weights, sizeof weights);
  const float *const arrays[] = {optimizer_masters(optimizer), optimizer_moment1(optimizer),
                                 optimizer_moment2(optimizer)};
  for (int a = 0; a < 3; a++) {
    for (int i = 0; i < parts.model->params.count; i++) {
      const struct param *p = &parts.model->params.items[i];
      digest_update(&sum, arrays[a] + p->offset, p->count * sizeof(float));
    }
  }
  const struct checkpoint_meta *m = &c->meta;
  struct buf text = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &text);
  training_config_write(&m->training, &w);
  buf_printf(&text, "%s %s %lld %llu %llu %llu %lld %zu", m->run, m->step_id, (long long)m->version,
             (unsigned long long)m->seed, (unsigned long long)m->epoch, (unsigned long long)m->fence,
             (long long)m->optimizer_steps, m->history_count);
  digest_update(&sum, text.data, text.len);
  digest_update(&sum, &m->step_request, sizeof m->step_request);
  for (size_t i = 0; i < m->history_count; i++) {
    const struct round_record *h = &m->history[i];
    const double numbers[] = {h->loss, h->grad_norm, h->lr, (double)h->tokens, h->skipped};
    digest_update(&sum, numbers, sizeof numbers);
    digest_update(&sum, &h->digest, sizeof h->digest);
  }
  buf_free(&text);
  digest_end(&out, &sum);
  return out;
}

/* Versions `first` to `last`, each another step. */
static void write_versions(int first, int last) {
  for (int v = first; v <= last; v++) {
    train_step(optimizer, parts.weights, v);
    write_version(v);
  }
}

static struct digest expect_whole(int64_t version) {
  struct err err = {0};
  struct checkpoint c;
  assert_rc(RC_OK, load(&c, &err), err);
  if (c.meta.version != version || c.damage[0])
    fail_msg("expected version %d without damage, got %d: %s", (int)version, (int)c.meta.version, c.damage);
  const struct digest digest = loaded_digest(&c);
  checkpoint_free(&c);
  return digest;
}

/* It came down to `version`, and says that `newest` is damaged. */
static void expect_fallback(int64_t version, const char *newest, const struct digest *want, const char *what) {
  struct err err = {0};
  struct checkpoint c;
  const enum rc rc = load(&c, &err);
  if (rc != RC_OK) fail_msg("%s: expected version %d, got %s: %s", what, (int)version, rc_name(rc), err.message);
  if (c.meta.version != version || !strstr(c.damage, newest))
    fail_msg("%s: expected version %d and a sentence about %s, got %d: %s", what, (int)version, newest,
             (int)c.meta.version, c.damage);
  const struct digest have = loaded_digest(&c);
  if (!digest_equal(&have, want)) fail_msg("%s: version %d is not what was written", what, (int)version);
  checkpoint_free(&c);
}

static void read_file(struct buf *out, const char *version, const char *file) {
  char path[LIMIT_PATH_MAX], name[64];
  struct err err = {0};
  snprintf(name, sizeof name, "r7/%s/%s", version, file);
  path_of(path, name);
  assert_rc(RC_OK, file_read(out, path, 1 << 20, &err), err);
}

/* In place: durability is not what these tests are about, and there are thousands of them. */
static void put_file(const char *version, const char *file, const void *bytes, size_t len) {
  char path[LIMIT_PATH_MAX], name[64];
  snprintf(name, sizeof name, "r7/%s/%s", version, file);
  path_of(path, name);
  FILE *f = fopen(path, "wb");
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, len, f), len);
  assert_int_equal(fclose(f), 0);
}

/* Any one bit of any file: either the older version is loaded, or everything is as it was written (a bit of a header's
 * metadata, or padding).  In trainer_state.json no bit is without meaning. */
static void every_flipped_bit_is_noticed(void **state) {
  (void)state;
  write_versions(1, 1);
  const struct digest older = expect_whole(1);
  write_versions(2, 2);
  const struct digest newest = expect_whole(2);
  for (int f = 0; f < FILES; f++) {
    struct buf bytes = BUF_INIT;
    int harmless = 0, tried = 0;
    read_file(&bytes, "v2", files[f]);
    const size_t stride = f == STATE_FILE ? 1 : bytes.len / 600 + 1;
    for (size_t at = 0; at < bytes.len; at += stride, tried++) {
      char what[96];
      struct err err = {0};
      struct checkpoint c;
      const char bit = (char)(1 << (at % 8));
      snprintf(what, sizeof what, "%s, byte %zu", files[f], at);
      bytes.data[at] ^= bit;
      put_file("v2", files[f], bytes.data, bytes.len);
      assert_rc(RC_OK, load(&c, &err), err);
      const struct digest have = loaded_digest(&c);
      if (c.meta.version == 2 && !digest_equal(&have, &newest)) fail_msg("%s: a damaged version was loaded", what);
      if (c.meta.version == 1 && !(digest_equal(&have, &older) && strstr(c.damage, "r7/v2")))
        fail_msg("%s: not the version before, or no word of r7/v2: %s", what, c.damage);
      harmless += c.meta.version == 2;
      checkpoint_free(&c);
      bytes.data[at] ^= bit;
    }
    put_file("v2", files[f], bytes.data, bytes.len);
    assert_true(tried > 100 && harmless < tried / 4);
    if (f == STATE_FILE) assert_int_equal(harmless, 0);
    buf_free(&bytes);
  }
  expect_whole(2);
}

static void missing_and_truncated_files_lead_back(void **state) {
  (void)state;
  write_versions(1, 1);
  const struct digest older = expect_whole(1);
  write_versions(2, 2);
  for (int f = 0; f < FILES; f++) {
    struct buf bytes = BUF_INIT;
    read_file(&bytes, "v2", files[f]);
    const size_t lengths[] = {0, 1, 7, 8, 9, bytes.len / 2, bytes.len - 1};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
      char what[96];
      snprintf(what, sizeof what, "%s cut to %zu bytes", files[f], lengths[i]);
      put_file("v2", files[f], bytes.data, lengths[i]);
      expect_fallback(1, "r7/v2", &older, what);
    }
    char path[LIMIT_PATH_MAX], name[64];
    snprintf(name, sizeof name, "r7/v2/%s", files[f]);
    path_of(path, name);
    assert_int_equal(unlink(path), 0);
    expect_fallback(1, "r7/v2", &older, files[f]);
    put_file("v2", files[f], "\0", 1); /* a file of the right name with something else in it */
    expect_fallback(1, "r7/v2", &older, files[f]);
    buf_append(&bytes, "x", 1);
    put_file("v2", files[f], bytes.data, bytes.len);
    expect_fallback(1, "r7/v2", &older, "a byte too many");
    put_file("v2", files[f], bytes.data, bytes.len - 1);
    expect_whole(2);
    buf_free(&bytes);
  }
}

static void swap(const char *a, const char *b) {
  char from[LIMIT_PATH_MAX], to[LIMIT_PATH_MAX], aside[LIMIT_PATH_MAX];
  path_of(from, a);
  path_of(to, b);
  path_of(aside, "aside");
  assert_int_equal(rename(from, aside), 0);
  assert_int_equal(rename(to, from), 0);
  assert_int_equal(rename(aside, to), 0);
}

/* Whole files, but not of this version. */
static void swapped_files_and_folders_lead_back(void **state) {
  (void)state;
  write_versions(1, 1);
  const struct digest first = expect_whole(1);
  write_versions(2, 3);
  for (int f = 0; f < FILES; f++) {
    char a[64], b[64];
    snprintf(a, sizeof a, "r7/v3/%s", files[f]);
    snprintf(b, sizeof b, "r7/v2/%s", files[f]);
    swap(a, b);
    expect_fallback(1, "r7/v3", &first, files[f]); /* both are damaged now */
    swap(a, b);
    expect_whole(3);
  }
  swap("r7/v3", "r7/v2");
  expect_fallback(1, "r7/v3", &first, "swapped folders");
  swap("r7/v3", "r7/v2");
  expect_whole(3);
}

/* As deep as it takes, and no deeper; when none is whole nothing is loaded, and the sentence says what to do. */
static void the_newest_whole_one_is_taken(void **state) {
  (void)state;
  struct err err = {0};
  struct checkpoint c;
  struct digest digests[5];
  for (int v = 1; v <= 4; v++) {
    train_step(optimizer, parts.weights, v);
    write_version(v);
    digests[v] = expect_whole(v);
  }
  flip("r7/v4/optimizer.safetensors", 40);
  expect_fallback(3, "r7/v4", &digests[3], "one");
  flip("r7/v3/model.safetensors", 40);
  expect_fallback(2, "r7/v4", &digests[2], "two");
  flip("r7/v2/trainer_state.json", 40);
  expect_fallback(1, "r7/v4", &digests[1], "three");
  flip("r7/v1/trainer_state.json", 400);
  assert_rc(RC_CORRUPT, load(&c, &err), err);
  assert_non_null(strstr(err.message, "no checkpoint of run r7 is whole"));
  assert_non_null(strstr(err.message, "r7/v4"));
  assert_non_null(strstr(err.message, "--state-dir"));
}

/* A trainer of an earlier version leaves what a later one wrote as it is: going back would lose rounds, and blame the
 * disk. */
static void what_another_version_wrote_is_not_called_damaged(void **state) {
  (void)state;
  static const char mark[] = ",\"state_digest\":\"";
  struct buf bytes = BUF_INIT, text = BUF_INIT;
  struct err err = {0};
  struct checkpoint c;
  struct digest digest;
  char hex[DIGEST_HEX_MAX];
  write_versions(1, 2);
  read_file(&bytes, "v2", "trainer_state.json");
  buf_append(&bytes, "", 1);
  const char *seal = strstr(bytes.data, mark);
  assert_non_null(seal);
  buf_append(&text, bytes.data, (size_t)(seal - bytes.data));
  buf_puts(&text, ",\"schedule_of_tomorrow\":1");
  digest_of(&digest, text.data, text.len);
  digest_hex(hex, &digest);
  buf_printf(&text, "%s%s%s", mark, hex, seal + sizeof mark - 1 + strlen(hex));
  put_file("v2", "trainer_state.json", text.data, text.len);
  assert_rc(RC_UNSUPPORTED, load(&c, &err), err);
  assert_non_null(strstr(err.message, "another version of the trainer-server"));
  assert_non_null(strstr(err.message, "schedule_of_tomorrow"));
  assert_null(strstr(err.message, "damaged"));
  buf_free(&bytes);
  buf_free(&text);
}

/* `latest` that points to nowhere, or at something else, leads to the newest of its run below it; one that names no run
 * leads nowhere, for to choose a run would be a guess. */
static void latest_may_point_to_nowhere(void **state) {
  (void)state;
  static const char *const senseless[] = {"r8/v1\n",
                                          "",
                                          "r7/v1",
                                          "r7\n",
                                          "/v1\n",
                                          "r7/v1/..\n",
                                          "../state/r7/v1\n",
                                          "../v1\n",
                                          ".partial-v1/v1\n",
                                          "r7/v1x\n",
                                          "r7/vx\n",
                                          "r7/v1 \n",
                                          "r7/v-1\n",
                                          "r7/v99999999999999999999\n",
                                          "r7/v1\nr7/v1\n"};
  struct err err = {0};
  struct checkpoint c;
  write_versions(1, 2);
  const struct digest second = expect_whole(2);
  write_text(state_dir, "latest", "r7/v9\n");
  expect_fallback(2, "r7/v9", &second, "nowhere");
  char from[LIMIT_PATH_MAX], to[LIMIT_PATH_MAX]; /* a folder under another version's name */
  path_of(from, "r7/v1");
  path_of(to, "r7/v9");
  assert_int_equal(rename(from, to), 0);
  expect_fallback(2, "r7/v9", &second, "another version");
  for (size_t i = 0; i < sizeof senseless / sizeof senseless[0]; i++) {
    write_text(state_dir, "latest", senseless[i]);
    const enum rc rc = load(&c, &err);
    if (rc != RC_CORRUPT)
      fail_msg("latest \"%s\": expected corrupt, got %s: %s", senseless[i], rc_name(rc), err.message);
  }
  char *large = calloc(1, 4096);
  memset(large, 'r', 4095);
  write_text(state_dir, "latest", large);
  assert_rc(RC_CORRUPT, load(&c, &err), err);
  free(large);
}

/* Never another run's checkpoint, never a newer one, never one that lies under a name of ours by accident. */
static void the_way_back_stays_within_the_run(void **state) {
  (void)state;
  struct err err = {0};
  struct checkpoint c;
  char from[LIMIT_PATH_MAX], to[LIMIT_PATH_MAX];
  write_versions(1, 3);
  path_of(to, "r8");
  assert_rc(RC_OK, file_make_dirs(to, &err), err);
  path_of(from, "r7/v1"); /* of r7, in the folder of r8 */
  path_of(to, "r8/v1");
  assert_int_equal(rename(from, to), 0);
  write_text(state_dir, "latest", "r8/v2\n");
  assert_rc(RC_CORRUPT, load(&c, &err), err);
  write_text(state_dir, "latest", "r7/v2\n");
  flip("r7/v2/model.safetensors", 0);
  assert_rc(RC_CORRUPT, load(&c, &err), err); /* v3 is whole, but newer than what `latest` ever named */
}

/* SIGKILL at every stage of writing version 2: it is the folder's name that makes a checkpoint, and `latest` that makes
 * it the newest; the next attempt goes through whatever was left. */
static void a_crash_at_every_stage_leaves_the_version_before(void **state) {
  (void)state;
  enum { STAGES = 7 };
  struct err err = {0};
  write_versions(1, 1);
  const struct digest first = expect_whole(1);
  train_step(optimizer, parts.weights, 2);
  write_version(2);
  const struct digest second = expect_whole(2);
  for (int stage = 0; stage < STAGES; stage++) {
    static const char *const order[] = {"config.json", "model.safetensors", "optimizer.safetensors",
                                        "trainer_state.json"};
    const char *folder = stage < STAGES - 2 ? "r7/.partial-v2" : "r7/.partial-v2-replaced";
    char named[LIMIT_PATH_MAX], path[LIMIT_PATH_MAX], name[64];
    write_text(state_dir, "latest", "r7/v1\n");
    path_of(named, "r7/v2");
    path_of(path, folder);
    if (stage < STAGES - 1) assert_int_equal(rename(named, path), 0); /* the last stage: named, but not the latest */
    for (int f = 3; f >= stage; f--) {
      snprintf(name, sizeof name, "%s/%s", folder, order[f]);
      path_of(path, name);
      assert_int_equal(unlink(path), 0);
    }
    if (stage == 2) put_file(".partial-v2", "optimizer.safetensors", "12345678{", 9); /* in the middle of a file */
    struct digest have = expect_whole(1);
    if (!digest_equal(&have, &first)) fail_msg("stage %d: not version 1 as it was written", stage);
    optimizer_configure(optimizer, &config);
    optimizer_set_step_count(optimizer, 1);
    train_step(optimizer, parts.weights, 2); /* the same round again */
    write_version(2);
    have = expect_whole(2);
    if (!digest_equal(&have, &second)) fail_msg("stage %d: not version 2 as it would have been", stage);
    assert_rc(RC_OK, checkpoint_prune(state_dir, "r7", 2, 2, 0, &err), err);
    assert_false(exists("r7/.partial-v2") || exists("r7/.partial-v2-replaced"));
  }
}

/* The frozen reference is held against its digest too: with a flipped bit it would train another run. */
static void weights_alone_are_checked_as_well(void **state) {
  (void)state;
  struct err err = {0};
  struct digest want, have;
  write_version(0);
  assert_rc(RC_OK, weights_digest(&want, parts.weights, &err), err);
  write_versions(1, 1);
  assert_rc(RC_OK, checkpoint_load_weights(state_dir, "r7", 0, parts.weights, &err), err);
  assert_rc(RC_OK, weights_digest(&have, parts.weights, &err), err);
  assert_true(digest_equal(&want, &have));
  assert_rc(RC_CORRUPT, checkpoint_load_weights(state_dir, "r7", 5, parts.weights, &err), err);
  flip("r7/v0/model.safetensors", 8);
  assert_rc(RC_CORRUPT, checkpoint_load_weights(state_dir, "r7", 0, parts.weights, &err), err);
  assert_non_null(strstr(err.message, "r7/v0"));
  flip("r7/v0/model.safetensors", 8);
  swap("r7/v0", "r7/v1");
  assert_rc(RC_CORRUPT, checkpoint_load_weights(state_dir, "r7", 0, parts.weights, &err), err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(every_flipped_bit_is_noticed, set_up, tear_down),
      cmocka_unit_test_setup_teardown(missing_and_truncated_files_lead_back, set_up, tear_down),
      cmocka_unit_test_setup_teardown(swapped_files_and_folders_lead_back, set_up, tear_down),
      cmocka_unit_test_setup_teardown(what_another_version_wrote_is_not_called_damaged, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_newest_whole_one_is_taken, set_up, tear_down),
      cmocka_unit_test_setup_teardown(latest_may_point_to_nowhere, set_up, tear_down),
      cmocka_unit_test_setup_teardown(the_way_back_stays_within_the_run, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_crash_at_every_stage_leaves_the_version_before, set_up, tear_down),
      cmocka_unit_test_setup_teardown(weights_alone_are_checked_as_well, set_up, tear_down),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/damage", tests, NULL, NULL);
}
