/* Files line by line, packed or not. What would break: a line is lost or joined to the next at the edge of a buffer, a
 * member or a frame; a file that was cut off counts as a whole one; a small packed file takes all memory. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "common/base/buf.h"
#include "services/coordinator/run/line_file.h"

enum { LINE_MAX_BYTES = 1 << 20 };

static char path[] = "/tmp/leasehold-lines-XXXXXX";

static int setup(void **state) {
  (void)state;
  const int fd = mkstemp(path);
  return fd < 0 ? -1 : close(fd);
}

static int teardown(void **state) {
  (void)state;
  return unlink(path);
}

static void put(const void *bytes, size_t len, const char *mode) {
  FILE *f = fopen(path, mode);
  assert_non_null(f);
  assert_int_equal(fwrite(bytes, 1, len, f), len);
  fclose(f);
}

static void put_gzip(const char *text, size_t len, const char *mode) {
  gzFile f = gzopen(path, mode);
  assert_int_equal(gzwrite(f, text, (unsigned)len), len);
  assert_int_equal(gzclose(f), Z_OK);
}

static void put_zstd(const char *text, size_t len, const char *mode) {
  const size_t bound = ZSTD_compressBound(len);
  void *packed = malloc(bound);
  const size_t n = ZSTD_compress(packed, bound, text, len, 3);
  assert_false(ZSTD_isError(n));
  put(packed, n, mode);
  free(packed);
}

/* The lines, each followed by "|". */
static enum rc lines_of(struct buf *out, size_t line_max, size_t unpacked_max, struct err *err) {
  struct line_file *f = NULL;
  const char *text;
  size_t len;
  enum rc rc = line_file_open(&f, path, line_max, unpacked_max, err);
  while (rc == RC_OK && (rc = line_file_next(f, &text, &len, err)) == RC_OK && text) {
    if (len > line_max)
      buf_printf(out, "<%zu>", len);
    else
      buf_append(out, text, len);
    buf_puts(out, "|");
  }
  line_file_close(f);
  return rc;
}

static void expect(const char *expected) {
  struct buf got = BUF_INIT;
  struct err err = {0};
  buf_puts(&got, "");
  if (lines_of(&got, LINE_MAX_BYTES, 1 << 30, &err) != RC_OK) fail_msg("%s", err.message);
  assert_string_equal(got.data, expected);
  buf_free(&got);
}

static void expect_fault(enum rc rc, const char *words) {
  struct buf got = BUF_INIT;
  struct err err = {0};
  assert_int_equal(lines_of(&got, LINE_MAX_BYTES, 1 << 22, &err), rc);
  if (!strstr(err.message, words)) fail_msg("%s", err.message);
  buf_free(&got);
}

static void lines_end_with_a_newline_or_the_file(void **state) {
  (void)state;
  put("", 0, "w");
  expect("");
  put("a", 1, "w");
  expect("a|");
  put("a\n\nb\r\nc\n", 8, "w");
  expect("a||b\r|c|");
}

/* It was refused as no JSON, "near" a character that nobody sees. */
static void a_byte_order_mark_is_no_part_of_the_first_line(void **state) {
  (void)state;
  put("\xef\xbb\xbf" "a\n\xef\xbb\xbf" "b", 9, "w");
  expect("a|\xef\xbb\xbf" "b|");
  put("\xef\xbb\xbf\n", 4, "w");
  expect("|");
  put("\xef\xbb", 2, "w");
  expect("\xef\xbb|");
  put_gzip("\xef", 1, "wb");
  put_gzip("\xbb\xbf" "a", 3, "ab");
  expect("a|");
  struct buf got = BUF_INIT;
  struct err err = {0};
  put("\xef\xbb\xbf" "abcd\ne\n", 10, "w");
  assert_int_equal(lines_of(&got, 4, 1 << 20, &err), RC_OK);
  assert_string_equal(got.data, "<7>|e|");
  buf_free(&got);
}

/* pzstd puts a frame that is passed over before each of the others; such a file counted as plain text. */
static void files_of_zstd_may_begin_with_a_frame_that_is_passed_over(void **state) {
  (void)state;
  static const char passed_over[] = "\x50\x2a\x4d\x18\x04\0\0\0size", other[] = "\x5f\x2a\x4d\x18\0\0\0\0";
  put(passed_over, sizeof passed_over - 1, "w");
  put_zstd("a\nb", 3, "a");
  put(passed_over, sizeof passed_over - 1, "a");
  put_zstd("c\n", 2, "a");
  expect("a|bc|");
  put(other, sizeof other - 1, "w");
  expect("");
  put_zstd("a", 1, "a");
  expect("a|");
  put("\x60\x2a\x4d\x18\n", 5, "w");
  expect("\x60\x2a\x4d\x18|");
}

/* Members and frames that follow each other are one file, as for gzip and zstd themselves; a line may lie across
 * them. */
static void packed_files_are_their_content(void **state) {
  (void)state;
  put_gzip("a\nb", 3, "wb");
  expect("a|b|");
  put_gzip("c\nd\n", 4, "ab");
  expect("a|bc|d|");
  put("\0\0\0\0", 4, "ab");
  expect("a|bc|d|");
  put_zstd("a\nb", 3, "w");
  expect("a|b|");
  put_zstd("c\nd\n", 4, "a");
  expect("a|bc|d|");
  put_gzip("", 0, "wb");
  expect("");
}

/* Lines of changing length, together larger than every buffer on the way. */
static void no_line_is_lost_at_an_edge(void **state) {
  (void)state;
  enum { N = 60000 };
  struct buf text = BUF_INIT;
  for (int i = 0; i < N; i++) buf_printf(&text, "%d:%.*s\n", i, i % 37, "abcdefghijklmnopqrstuvwxyzabcdefghijklm");
  for (int kind = 0; kind < 3; kind++) {
    if (kind == 0) put(text.data, text.len, "w");
    if (kind == 1) put_gzip(text.data, text.len, "wb");
    if (kind == 2) put_zstd(text.data, text.len, "w");
    struct buf got = BUF_INIT;
    struct err err = {0};
    assert_int_equal(lines_of(&got, LINE_MAX_BYTES, 1 << 30, &err), RC_OK);
    assert_int_equal(got.len, text.len);
    for (size_t i = 0; i < got.len; i++)
      if (got.data[i] == '|') got.data[i] = '\n';
    assert_memory_equal(got.data, text.data, text.len);
    buf_free(&got);
  }
  buf_free(&text);
}

static void a_long_line_is_passed_over_with_its_length(void **state) {
  (void)state;
  struct buf text = BUF_INIT;
  buf_puts(&text, "a\n");
  buf_reserve(&text, 3 << 20);
  memset(text.data + 2, 'x', 3 << 20);
  text.len = 2 + (3 << 20);
  buf_puts(&text, "\nb\n");
  put_gzip(text.data, text.len, "wb");
  expect("a|<3145728>|b|");
  put(text.data, text.len - 3, "w");
  expect("a|<3145728>|");
  buf_free(&text);
}

static void damage_and_excess_are_refused(void **state) {
  (void)state;
  char packed[256];
  put_gzip("some text that packs\nbadly\n", 27, "wb");
  FILE *f = fopen(path, "rb");
  const size_t len = fread(packed, 1, sizeof packed, f);
  fclose(f);
  put(packed, len - 9, "w");
  expect_fault(RC_INVALID, "cut off");
  packed[len - 6] ^= 1; /* of the check sum */
  put(packed, len, "w");
  expect_fault(RC_INVALID, "the gzip data is damaged");
  packed[len - 6] ^= 1;
  put(packed, len, "w");
  put("garbage", 7, "a");
  expect_fault(RC_INVALID, "the gzip data is damaged");
  put_zstd("some text\n", 10, "w");
  put("garbage", 7, "a");
  expect_fault(RC_INVALID, "the zstd data is damaged");
  put_zstd("some text\n", 10, "w");
  assert_int_equal(truncate(path, 12), 0);
  expect_fault(RC_INVALID, "cut off");
  put("PAR1 and so on", 14, "w");
  expect_fault(RC_INVALID, "parquet-to-jsonl");
  char *zeros = calloc(1, 16 << 20); /* packs to a few hundred bytes */
  put_zstd(zeros, 16 << 20, "w");
  expect_fault(RC_TOO_LARGE, "expected at most 4194304 bytes");
  free(zeros);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_end_with_a_newline_or_the_file),       cmocka_unit_test(packed_files_are_their_content),
      cmocka_unit_test(a_byte_order_mark_is_no_part_of_the_first_line),
      cmocka_unit_test(files_of_zstd_may_begin_with_a_frame_that_is_passed_over),
      cmocka_unit_test(no_line_is_lost_at_an_edge),                 cmocka_unit_test(damage_and_excess_are_refused),
      cmocka_unit_test(a_long_line_is_passed_over_with_its_length),
  };
  return cmocka_run_group_tests_name("line_file", tests, setup, teardown);
}
