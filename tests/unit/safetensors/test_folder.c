/* A folder's weights: one file or shards read alike, and every lie of an index is refused by name. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/safetensors/safetensors.h"

static struct err err;
static char dir[] = "/tmp/leasehold-test-folder-XXXXXX";

static void put(const char *name, const void *bytes, size_t len) {
  char path[LIMIT_PATH_MAX];
  snprintf(path, sizeof path, "%s/%s", dir, name);
  assert_int_equal(file_write_atomic(path, bytes, len, &err), RC_OK);
}

static void put_text(const char *name, const char *text) { put(name, text, strlen(text)); }

/* A file of one or two tensors of four bytes each; byte k of tensor i is first + 16 i + k. */
static void put_shard(const char *name, const char *a, const char *b, int first) {
  const struct st_entry entries[2] = {{.name = a, .dtype = ST_U8, .dims = 2, .shape = {2, 2}},
                                      {.name = b, .dtype = ST_U8, .dims = 2, .shape = {2, 2}}};
  struct buf bytes = BUF_INIT;
  const int count = b ? 2 : 1;
  assert_int_equal(st_write_header(&bytes, entries, (size_t)count, NULL, &err), RC_OK);
  for (int i = 0; i < count; i++)
    for (int k = 0; k < 4; k++) buf_append(&bytes, &(char){(char)(first + 16 * i + k)}, 1);
  put(name, bytes.data, bytes.len);
  buf_free(&bytes);
}

static int fresh(void **state) {
  (void)state;
  file_remove_tree(dir, NULL);
  return file_make_dirs(dir, &err) == RC_OK ? 0 : -1;
}

static int gone(void **state) {
  (void)state;
  return file_remove_tree(dir, NULL) == RC_OK ? 0 : -1;
}

#define INDEX(map) "{\"metadata\":{\"total_size\":12},\"weight_map\":" map "}"

static void two_shards(const char *index) {
  put_shard("model-00001-of-00002.safetensors", "b", "d", 0);
  put_shard("model-00002-of-00002.safetensors", "a", NULL, 64);
  put_text("model.safetensors.index.json", index);
}

static const char whole_map[] = INDEX(
    "{\"a\":\"model-00002-of-00002.safetensors\",\"b\":\"model-00001-of-00002.safetensors\","
    "\"d\":\"model-00001-of-00002.safetensors\"}");

static int first_byte(const struct st_file *f, const char *name) {
  const struct st_tensor *t = st_find(f, name);
  assert_non_null(t);
  return *(const unsigned char *)st_data(f, t);
}

static void shards_read_as_one_file(void **state) {
  (void)state;
  struct st_file *f;
  two_shards(whole_map);
  assert_true(st_folder_has_weights(dir));
  if (st_open_folder(&f, dir, &err) != RC_OK) fail_msg("%s", err.message);
  assert_int_equal(st_count(f), 3);
  assert_int_equal(first_byte(f, "a"), 64);
  assert_int_equal(first_byte(f, "b"), 0);
  assert_int_equal(first_byte(f, "d"), 16);
  assert_null(st_find(f, "c"));
  assert_null(st_metadata(f, "format"));
  for (size_t i = 0; i < st_count(f); i++) {
    st_prefetch(f, st_at(f, i));
    st_drop(f, st_at(f, i)); /* the pages come back when they are read again */
  }
  assert_int_equal(first_byte(f, "a"), 64);
  st_close(f);
}

static void one_file_wins_over_an_index(void **state) {
  (void)state;
  struct st_file *f;
  put_shard("model.safetensors", "x", NULL, 7);
  put_text("model.safetensors.index.json", "not even JSON");
  assert_int_equal(st_open_folder(&f, dir, &err), RC_OK);
  assert_int_equal(st_count(f), 1);
  assert_int_equal(first_byte(f, "x"), 7);
  st_close(f);
}

static void rows_of_a_tensor_are_a_tensor(void **state) {
  (void)state;
  struct st_file *f;
  two_shards(whole_map);
  assert_int_equal(st_open_folder(&f, dir, &err), RC_OK);
  const struct st_tensor lower = st_rows(st_find(f, "d"), 1, 2), none = st_rows(st_find(f, "d"), 2, 2);
  assert_int_equal(*(const unsigned char *)st_data(f, &lower), 18);
  assert_int_equal(lower.bytes, 2);
  assert_int_equal(lower.shape[0], 1);
  assert_int_equal(lower.shape[1], 2);
  assert_int_equal(none.bytes, 0);
  st_close(f);
}

static void refused(enum rc rc, const char *word) {
  struct st_file *f = (struct st_file *)&err;
  memset(&err, 0, sizeof err);
  const enum rc got = st_open_folder(&f, dir, &err);
  if (got != rc || !strstr(err.message, word))
    fail_msg("expected %s with \"%s\", got %s: %s", rc_name(rc), word, rc_name(got), err.message);
  assert_null(f);
}

static void a_folder_without_weights_says_what_it_lacks(void **state) {
  (void)state;
  assert_false(st_folder_has_weights(dir));
  refused(RC_NOT_FOUND, "holds neither model.safetensors nor model.safetensors.index.json");
  put_text("pytorch_model.bin", "");
  refused(RC_NOT_FOUND, "holds pytorch_model.bin");
}

static void an_index_that_lies_is_refused_by_name(void **state) {
  (void)state;
  static const struct {
    const char *index, *word;
  } cases[] = {
      {"[]", "weight_map"},
      {"{", "model.safetensors.index.json"},
      {INDEX("{}"), "expected an object of tensor names"},
      {INDEX("[]"), "got array"},
      {INDEX("{\"a\":1}"), "tensor a: expected the name of a .safetensors file"},
      {INDEX("{\"a\":\"../a.safetensors\"}"), "../a.safetensors"},
      {INDEX("{\"a\":\"/etc/passwd\"}"), "/etc/passwd"},
      {INDEX("{\"a\":\"sub/a.safetensors\"}"), "got sub/a.safetensors"},
      {INDEX("{\"a\":\".safetensors\"}"), "expected the name"},
      {INDEX("{\"a\":\"model-00001-of-00002.bin\"}"), "model-00001-of-00002.bin"},
      {INDEX("{\"a\":\"gone.safetensors\"}"), "gone.safetensors, which is missing"},
      {INDEX("{\"a\":\"model-00001-of-00002.safetensors\"}"),
       "tensor a: model.safetensors.index.json says that it is in model-00001-of-00002.safetensors, and it is not"},
      {INDEX("{\"b\":\"model-00002-of-00002.safetensors\",\"d\":\"model-00001-of-00002.safetensors\"}"),
       "and it is in model-00001-of-00002.safetensors"},
      {INDEX("{\"a\":\"model-00002-of-00002.safetensors\",\"a\":\"model-00002-of-00002.safetensors\"}"), "JSON"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    two_shards(cases[i].index);
    refused(RC_INVALID, cases[i].word);
  }
}

static void a_tensor_in_two_shards_is_refused(void **state) {
  (void)state;
  two_shards(whole_map);
  put_shard("model-00002-of-00002.safetensors", "a", "b", 64);
  refused(RC_INVALID,
          "tensor b is in two shards, model-00002-of-00002.safetensors and model-00001-of-00002.safetensors");
}

static void a_damaged_shard_is_named(void **state) {
  (void)state;
  two_shards(whole_map);
  put_text("model-00001-of-00002.safetensors", "short");
  refused(RC_INVALID, "model-00001-of-00002.safetensors: expected a safetensors file");
}

static void too_many_shards_are_refused(void **state) {
  (void)state;
  struct buf index = BUF_INIT;
  buf_puts(&index, "{\"weight_map\":{");
  for (int i = 0; i <= LIMIT_SHARDS; i++) buf_printf(&index, "%s\"t%d\":\"s%d.safetensors\"", i ? "," : "", i, i);
  buf_puts(&index, "}}");
  put("model.safetensors.index.json", index.data, index.len);
  refused(RC_INVALID, "at most 1024 files");
  buf_free(&index);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(shards_read_as_one_file, fresh),
      cmocka_unit_test_setup(one_file_wins_over_an_index, fresh),
      cmocka_unit_test_setup(rows_of_a_tensor_are_a_tensor, fresh),
      cmocka_unit_test_setup(a_folder_without_weights_says_what_it_lacks, fresh),
      cmocka_unit_test_setup(an_index_that_lies_is_refused_by_name, fresh),
      cmocka_unit_test_setup(a_tensor_in_two_shards_is_refused, fresh),
      cmocka_unit_test_setup(a_damaged_shard_is_named, fresh),
      cmocka_unit_test_setup(too_many_shards_are_refused, fresh),
  };
  if (!mkdtemp(dir)) return 1;
  return cmocka_run_group_tests_name("folder", tests, NULL, gone);
}
