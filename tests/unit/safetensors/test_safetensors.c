/* safetensors: a written file is read back, and a file with any wrong claim is refused with a sentence. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/safetensors/safetensors.h"

static struct err err;

/* The 8 bytes of length, the header, and data_bytes of data that count upwards. */
static void make_file(struct buf *out, const char *header, size_t data_bytes) {
  const uint64_t len = strlen(header);
  for (int i = 0; i < 8; i++) {
    const char byte = (char)(len >> 8 * i);
    buf_append(out, &byte, 1);
  }
  buf_puts(out, header);
  for (size_t i = 0; i < data_bytes; i++) {
    const char byte = (char)i;
    buf_append(out, &byte, 1);
  }
}

/* Opens exactly len bytes on the heap, so that the address sanitizer sees every read beyond them. */
static enum rc open_copy(const void *bytes, size_t len) {
  void *copy = malloc(len ? len : 1);
  assert_non_null(copy);
  if (len) memcpy(copy, bytes, len);
  memset(&err, 0, sizeof err);
  struct st_file *f = (struct st_file *)&err;
  const enum rc rc = st_open_memory(&f, copy, len, &err);
  if (rc != RC_OK) {
    assert_null(f);
    assert_int_equal(err.rc, rc);
    assert_true(strlen(err.message) > 10);
  }
  st_close(f);
  free(copy);
  return rc;
}

static enum rc open_header(const char *header, size_t data_bytes) {
  struct buf file = BUF_INIT;
  make_file(&file, header, data_bytes);
  const enum rc rc = open_copy(file.data, file.len);
  buf_free(&file);
  return rc;
}

static const char POINTER[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 988097824\n";

/* A clone without Git LFS: the first eight bytes were told as an absurd length of a header. */
static void test_a_pointer_in_the_place_of_a_file_is_called_one(void **state) {
  (void)state;
  assert_int_equal(open_copy(POINTER, sizeof POINTER - 1), RC_INVALID);
  assert_non_null(strstr(err.message, "git lfs pull"));
  assert_int_equal(open_copy(POINTER, 20), RC_INVALID);
  assert_null(strstr(err.message, "git lfs pull"));
}

#define refused(header, data_bytes, word)                                                                      \
  do {                                                                                                         \
    const enum rc refused_rc = open_header(header, data_bytes);                                                \
    if (refused_rc != RC_INVALID) fail_msg("expected RC_INVALID, got %s for %s", rc_name(refused_rc), header); \
    if (!strstr(err.message, word)) fail_msg("expected \"%s\" in: %s", word, err.message);                     \
  } while (0)

static const struct st_entry three[] = {
    {.name = "b.weight", .dtype = ST_BF16, .dims = 2, .shape = {3, 5}},
    {.name = "a.norm", .dtype = ST_F32, .dims = 1, .shape = {4}},
    {.name = "scalar", .dtype = ST_I64, .dims = 0},
    {.name = "empty", .dtype = ST_U8, .dims = 3, .shape = {2, 0, 7}},
};
enum { THREE = 4, THREE_BYTES = 30 + 16 + 8 };

static void make_three(struct buf *out) {
  static const char *const metadata[] = {"format", "pt", "note", "caf\xC3\xA9 \"x\"", NULL};
  assert_int_equal(st_write_header(out, three, THREE, metadata, &err), RC_OK);
  assert_int_equal(out->len % 8, 0);
  for (int i = 0; i < THREE_BYTES; i++) buf_append(out, &(char){(char)(i + 1)}, 1);
}

static void check_three(const struct st_file *f) {
  assert_int_equal(st_count(f), THREE);
  size_t offset = 0;
  for (size_t i = 0; i < THREE; i++) {
    const struct st_tensor *t = st_at(f, i);
    assert_string_equal(t->name, three[i].name);
    assert_int_equal(t->dtype, three[i].dtype);
    assert_int_equal(t->dims, three[i].dims);
    assert_memory_equal(t->shape, three[i].shape, sizeof t->shape);
    assert_int_equal(t->offset, offset);
    if (t->bytes) assert_int_equal(*(const char *)st_data(f, t), (char)(offset + 1));
    assert_ptr_equal(st_find(f, three[i].name), t);
    offset += t->bytes;
  }
  assert_null(st_at(f, THREE));
  assert_null(st_find(f, "missing"));
  assert_null(st_find(f, "__metadata__"));
  assert_string_equal(st_metadata(f, "format"), "pt");
  assert_string_equal(st_metadata(f, "note"), "caf\xC3\xA9 \"x\"");
  assert_null(st_metadata(f, "absent"));
}

static void test_written_is_read_back(void **state) {
  (void)state;
  struct buf file = BUF_INIT;
  struct st_file *f;
  make_three(&file);
  assert_int_equal(st_open_memory(&f, file.data, file.len, &err), RC_OK);
  check_three(f);
  st_close(f);
  buf_free(&file);
}

static void test_a_mapped_file_reads_the_same(void **state) {
  (void)state;
  struct buf file = BUF_INIT;
  struct st_file *f;
  char path[] = "/tmp/leasehold-test-st-XXXXXX";
  const int fd = mkstemp(path);
  assert_true(fd >= 0);
  close(fd);
  assert_int_equal(st_open_file(&f, path, &err), RC_INVALID); /* empty */
  make_three(&file);
  assert_int_equal(file_write_atomic(path, file.data, file.len, &err), RC_OK);
  assert_int_equal(st_open_file(&f, path, &err), RC_OK);
  check_three(f);
  st_close(f);
  assert_int_equal(file_write_atomic(path, file.data, file.len - 1, &err), RC_OK);
  assert_int_equal(st_open_file(&f, path, &err), RC_INVALID);
  assert_non_null(strstr(err.message, path)); /* the message names the file */
  assert_null(f);
  unlink(path);
  assert_int_equal(st_open_file(&f, path, &err), RC_NOT_FOUND);
  assert_int_equal(st_open_file(&f, "/tmp", &err), RC_INVALID);
  buf_free(&file);
}

static void test_no_tensors_and_no_metadata(void **state) {
  (void)state;
  struct buf file = BUF_INIT;
  struct st_file *f;
  assert_int_equal(st_write_header(&file, NULL, 0, NULL, &err), RC_OK);
  assert_int_equal(st_open_memory(&f, file.data, file.len, &err), RC_OK);
  assert_int_equal(st_count(f), 0);
  assert_null(st_metadata(f, "format"));
  st_close(f);
  buf_append(&file, "x", 1);
  assert_int_equal(open_copy(file.data, file.len), RC_INVALID);
  buf_free(&file);
}

/* The header order need not be the offsets' order; files written elsewhere sort by alignment. */
static void test_offsets_in_any_order(void **state) {
  (void)state;
  struct buf file = BUF_INIT;
  struct st_file *f;
  make_file(&file,
            "{\"z\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[4,6]},\"e\":{\"dtype\":\"U8\",\"shape\":[0],"
            "\"data_offsets\":[4,4]},"
            "\"a\":{\"dtype\":\"I16\",\"shape\":[2,1],\"data_offsets\":[0,4]}}   ",
            6);
  assert_int_equal(st_open_memory(&f, file.data, file.len, &err), RC_OK);
  assert_string_equal(st_at(f, 0)->name, "z");
  assert_int_equal(*(const unsigned char *)st_data(f, st_find(f, "z")), 4);
  assert_int_equal(st_find(f, "a")->bytes, 4);
  st_close(f);
  buf_free(&file);
}

static void test_truncated_at_every_byte(void **state) {
  (void)state;
  struct buf file = BUF_INIT;
  make_three(&file);
  for (size_t len = 0; len < file.len; len++)
    if (open_copy(file.data, len) != RC_INVALID) fail_msg("accepted %zu of %zu bytes", len, file.len);
  assert_int_equal(open_copy(file.data, file.len), RC_OK);
  buf_append(&file, "x", 1);
  assert_int_equal(open_copy(file.data, file.len), RC_INVALID);
  buf_free(&file);
}

/* Cuts inside the JSON with a length that matches the cut: the JSON itself is incomplete. */
static void test_header_cut_at_every_byte_with_matching_length(void **state) {
  (void)state;
  static const char header[] =
      "{\"__metadata__\":{\"k\":\"v\"},\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}";
  char cut[sizeof header];
  for (size_t len = 0; len < sizeof header - 1; len++) {
    memcpy(cut, header, len);
    cut[len] = '\0';
    if (open_header(cut, 2) != RC_INVALID) fail_msg("accepted: %s", cut);
  }
  assert_int_equal(open_header(header, 2), RC_OK);
}

/* With any one byte flipped, opening ends with a file or a refusal, and every tensor of a file lies within the data. */
static void test_every_byte_changed(void **state) {
  (void)state;
  struct buf file = BUF_INIT;
  make_three(&file);
  static const unsigned char flips[] = {0x01, 0x02, 0x04, 0x10, 0x20, 0x80, 0xFF};
  for (size_t i = 0; i < file.len - THREE_BYTES; i++) {
    for (size_t k = 0; k < sizeof flips; k++) {
      struct st_file *f;
      file.data[i] = (char)(file.data[i] ^ (char)flips[k]);
      if (st_open_memory(&f, file.data, file.len, &err) == RC_OK) {
        for (size_t n = 0; n < st_count(f); n++) assert_true(st_at(f, n)->offset + st_at(f, n)->bytes <= THREE_BYTES);
        st_close(f);
      }
      file.data[i] = (char)(file.data[i] ^ (char)flips[k]);
    }
  }
  buf_free(&file);
}

static void test_header_lengths_that_lie(void **state) {
  (void)state;
  static const uint64_t lengths[] = {0,
                                     1,
                                     63,
                                     1000,
                                     LIMIT_SAFETENSORS_HEADER,
                                     LIMIT_SAFETENSORS_HEADER + 1ull,
                                     1ull << 32,
                                     INT64_MAX,
                                     UINT64_MAX - 8,
                                     UINT64_MAX};
  struct buf file = BUF_INIT;
  make_three(&file);
  for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
    memcpy(file.data, &lengths[i], 8);
    if (open_copy(file.data, file.len) != RC_INVALID)
      fail_msg("accepted a header length of %llu", (unsigned long long)lengths[i]);
  }
  buf_free(&file);
}

#define U8(offsets) "{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":" offsets "}"

static void test_offsets_that_lie(void **state) {
  (void)state;
  assert_int_equal(open_header("{\"a\":" U8("[0,2]") ",\"b\":" U8("[2,4]") "}", 4), RC_OK);
  refused("{\"a\":" U8("[0,2]") ",\"b\":" U8("[1,3]") "}", 4, "overlap");
  refused("{\"a\":" U8("[0,2]") ",\"b\":" U8("[0,2]") "}", 4, "overlap");
  refused("{\"a\":" U8("[0,2]") ",\"b\":" U8("[3,5]") "}", 5, "hole");
  refused("{\"a\":" U8("[1,3]") "}", 3, "hole");
  refused("{\"a\":" U8("[0,2]") "}", 3, "cover the 3 bytes");
  refused("{\"a\":" U8("[0,2]") "}", 1, "within 1 bytes");
  refused("{\"a\":" U8("[2,0]") "}", 2, "in order");
  refused("{\"a\":" U8("[-2,0]") "}", 2, "negative");
  refused("{\"a\":" U8("[0,9223372036854775807]") "}", 2, "within 2 bytes");
  refused("{\"a\":" U8("[9223372036854775806,9223372036854775807]") "}", 2, "within 2 bytes");
  refused("{\"a\":" U8("[0,9223372036854775808]") "}", 2, "");
  refused("{\"a\":" U8("[0,1]") "}", 1, "expected 2 bytes");
  refused("{\"a\":" U8("[0]") "}", 2, "[begin, end]");
  refused("{\"a\":" U8("[0,2,2]") "}", 2, "[begin, end]");
  refused("{\"a\":" U8("[0,2.0]") "}", 2, "integer");
  refused("{\"a\":" U8("\"0,2\"") "}", 2, "[begin, end]");
}

#define SHAPED(dtype, shape, end) "{\"a\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[0," end "]}}"

static void test_shapes_and_types_that_lie(void **state) {
  (void)state;
  assert_int_equal(open_header(SHAPED("BF16", "[]", "2"), 2), RC_OK);
  assert_int_equal(open_header(SHAPED("F64", "[1,1,1,1,1,1,1,2]", "16"), 16), RC_OK);
  refused(SHAPED("F32", "[4294967296,4294967296]", "0"), 0, "64 bits");
  refused(SHAPED("F32", "[4611686018427387904]", "0"), 0, "64 bits"); /* 2^62 elements: times 4 wraps to 0 */
  refused(SHAPED("U8", "[4294967296,4294967296,0]", "0"), 0, "64 bits");
  refused(SHAPED("U8", "[9223372036854775807,2]", "2"), 2, "expected");
  refused(SHAPED("U8", "[-1]", "1"), 1, "negative");
  refused(SHAPED("U8", "[-1,-1]", "1"), 1, "negative");
  refused(SHAPED("U8", "[1.0]", "1"), 1, "integer");
  refused(SHAPED("U8", "[[1]]", "1"), 1, "integer");
  refused(SHAPED("U8", "1", "1"), 1, "array");
  refused(SHAPED("U8", "{}", "1"), 1, "array");
  refused(SHAPED("U8", "[1,1,1,1,1,1,1,1,1]", "1"), 1, "at most 8");
  refused(SHAPED("F8_E4M3", "[1]", "1"), 1, "F8_E4M3");
  refused(SHAPED("bf16", "[1]", "2"), 2, "dtype");
  refused(SHAPED("", "[1]", "1"), 1, "dtype");
  refused(SHAPED("F32", "[1]", "2"), 2, "expected 4 bytes");
}

static void test_headers_of_the_wrong_form(void **state) {
  (void)state;
  refused("", 0, "'{'");
  refused("[]", 0, "'{'");
  refused(" {}", 0, "'{'");
  refused("{} x", 0, "JSON");
  refused("{\"a\":1}", 0, "object");
  refused("{\"a\":null}", 0, "object");
  refused("{\"a\":{}}", 0, "");
  refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "");
  refused("{\"a\":{\"dtype\":8,\"shape\":[0],\"data_offsets\":[0,0]}}", 0, "");
  refused("{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0],\"extra\":1}}", 0, "");
  refused("{\"a\":" U8("[0,2]") ",\"a\":" U8("[2,4]") "}", 4, "JSON");
  refused("{\"__metadata__\":1}", 0, "object of strings");
  refused("{\"__metadata__\":{\"k\":1}}", 0, "strings only");
  char header[ST_NAME_MAX + 128];
  char long_name[ST_NAME_MAX + 1] = "";
  memset(long_name, 'n', ST_NAME_MAX);
  snprintf(header, sizeof header, "{\"%s\":" U8("[0,2]") "}", long_name);
  refused(header, 2, "at most 255 bytes");
  snprintf(header, sizeof header, "{\"%s\":" U8("[0,2]") "}", long_name + 1);
  assert_int_equal(open_header(header, 2), RC_OK);
}

static void test_too_many_tensors(void **state) {
  (void)state;
  struct buf header = BUF_INIT;
  buf_puts(&header, "{");
  for (int i = 0; i <= LIMIT_TENSORS; i++)
    buf_printf(&header, "%s\"t%d\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0,0]}", i ? "," : "", i);
  buf_puts(&header, "}");
  refused(header.data, 0, "at most 65536 tensors");
  buf_free(&header);
}

static void test_entries_that_cannot_be_written(void **state) {
  (void)state;
  static const struct {
    struct st_entry entries[2];
    size_t count;
  } bad[] = {
      {{{.name = "a", .dims = 9}}, 1},
      {{{.name = "a", .dims = -1}}, 1},
      {{{.name = "a", .dtype = (enum st_dtype)10}}, 1},
      {{{.name = "a", .dims = 1, .shape = {-1}}}, 1},
      {{{.name = "a", .dims = 2, .shape = {INT64_MAX, INT64_MAX}}}, 1},
      {{{.name = "__metadata__"}}, 1},
      {{{.name = "a"}, {.name = "a"}}, 2},
      {{{.name = "a", .dtype = ST_U8, .dims = 1, .shape = {INT64_MAX}},
        {.name = "b", .dtype = ST_U8, .dims = 1, .shape = {INT64_MAX}}},
       2},
  };
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    struct buf out = BUF_INIT;
    if (st_write_header(&out, bad[i].entries, bad[i].count, NULL, &err) != RC_INVALID)
      fail_msg("wrote bad entry %zu", i);
    assert_int_equal(out.len, 0);
    buf_free(&out);
  }
}

static void test_dtypes(void **state) {
  (void)state;
  static const struct {
    enum st_dtype d;
    const char *name;
    size_t bytes;
  } all[] = {{ST_BF16, "BF16", 2}, {ST_F16, "F16", 2}, {ST_F32, "F32", 4}, {ST_F64, "F64", 8}, {ST_I64, "I64", 8},
             {ST_I32, "I32", 4},   {ST_I16, "I16", 2}, {ST_I8, "I8", 1},   {ST_U8, "U8", 1},   {ST_BOOL, "BOOL", 1}};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
    assert_string_equal(st_dtype_name(all[i].d), all[i].name);
    assert_int_equal(st_dtype_bytes(all[i].d), all[i].bytes);
  }
}

/* The canonical bytes, spelled out: a change of the form would orphan every recorded digest. */
static void test_the_canonical_form_of_a_digest(void **state) {
  (void)state;
  static const unsigned char canonical[] = {
      2,    0,    0,    0,    0,    0,   0, 0, 'w', '1',                       /* name */
      4,    0,    0,    0,    0,    0,   0, 0, 'B', 'F', '1', '6',             /* dtype */
      2,    0,    0,    0,                                                     /* dims */
      1,    0,    0,    0,    0,    0,   0, 0, 3,   0,   0,   0,   0, 0, 0, 0, /* shape */
      0x80, 0x3F, 0x00, 0x40, 0x40, 0x40                                       /* 1, 2, 3 */
  };
  const struct st_entry entry = {.name = "w1", .dtype = ST_BF16, .dims = 2, .shape = {1, 3}};
  struct digest expected, got, other;
  digest_of(&expected, canonical, sizeof canonical);
  st_tensor_digest(&got, &entry, canonical + sizeof canonical - 6);
  assert_true(digest_equal(&expected, &got));
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, &got);
  assert_string_equal(hex, "31af0ce6ac32dadf62b7263ccb858fe0e0a91254006c469908a3ee275d8cad0f");

  struct st_entry changed = entry;
  changed.shape[0] = 3, changed.shape[1] = 1;
  st_tensor_digest(&other, &changed, canonical + sizeof canonical - 6);
  assert_false(digest_equal(&other, &got));

  const struct digest leaves[2] = {got, other}, swapped[2] = {other, got};
  unsigned char both[64];
  memcpy(both, got.bytes, 32);
  memcpy(both + 32, other.bytes, 32);
  digest_of(&expected, both, sizeof both);
  struct digest root;
  st_combine_digests(&root, leaves, 2);
  assert_true(digest_equal(&root, &expected));
  st_combine_digests(&root, swapped, 2);
  assert_false(digest_equal(&root, &expected));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_written_is_read_back),
      cmocka_unit_test(test_a_mapped_file_reads_the_same),
      cmocka_unit_test(test_no_tensors_and_no_metadata),
      cmocka_unit_test(test_offsets_in_any_order),
      cmocka_unit_test(test_truncated_at_every_byte),
      cmocka_unit_test(test_header_cut_at_every_byte_with_matching_length),
      cmocka_unit_test(test_every_byte_changed),
      cmocka_unit_test(test_header_lengths_that_lie),
      cmocka_unit_test(test_a_pointer_in_the_place_of_a_file_is_called_one),
      cmocka_unit_test(test_offsets_that_lie),
      cmocka_unit_test(test_shapes_and_types_that_lie),
      cmocka_unit_test(test_headers_of_the_wrong_form),
      cmocka_unit_test(test_too_many_tensors),
      cmocka_unit_test(test_entries_that_cannot_be_written),
      cmocka_unit_test(test_dtypes),
      cmocka_unit_test(test_the_canonical_form_of_a_digest),
  };
  return cmocka_run_group_tests_name("safetensors", tests, NULL, NULL);
}
