/* A lease's result as safetensors: the same message as in JSON, and the same refusals.  Held against: a sample that
 * takes another's tokens, a body with wrong counts of rows, numbers that JSON cannot write. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/safetensors/safetensors.h"
#include "tests/unit/wire/wire_test.h"

/* Three samples: two segments and two versions; nothing sampled yet; the plain case. */
struct example {
  int32_t tokens[5];
  float logprobs[5];
  struct sample_segment segments[3];
  struct version_span spans[3];
  struct sample_result samples[3];
  struct lease_result result;
};

static void make_example(struct example *x) {
  *x = (struct example){.tokens = {5, 6, 7, 8, 9},
                        .logprobs = {-0.5f, -0.0f, -FLT_MAX, -FLT_TRUE_MIN, 0},
                        .segments = {{0, 2, true}, {2, 1, false}, {0, 2, true}},
                        .spans = {{4, 0, 1, true}, {(int64_t)1 << 40, 1, 2, false}, {7, 0, 2, true}}};
  x->samples[0] = (struct sample_result){.sample = 3,
                                         .token_ids = {x->tokens, 3},
                                         .logprobs = {x->logprobs, 3},
                                         .finish = FINISH_STOP,
                                         .segments = x->segments,
                                         .segment_count = 2,
                                         .spans = x->spans,
                                         .span_count = 2};
  x->samples[1] = (struct sample_result){.sample = 0, .finish = FINISH_ABORT};
  x->samples[2] = (struct sample_result){.sample = 1023,
                                         .token_ids = {x->tokens + 3, 2},
                                         .logprobs = {x->logprobs + 3, 2},
                                         .finish = FINISH_LENGTH,
                                         .segments = x->segments + 2,
                                         .segment_count = 1,
                                         .spans = x->spans + 2,
                                         .span_count = 1};
  x->result = (struct lease_result){.worker_id = "w3",
                                    .epoch = UINT64_MAX,
                                    .fence = 2,
                                    .handed_back = true,
                                    .refused = "it says \"why\"",
                                    .nonfinite = true,
                                    .nonfinite_version = 7,
                                    .samples = x->samples,
                                    .sample_count = 3};
  memset(x->result.loaded_digest.bytes, 0xa5, DIGEST_BYTES);
}

static enum rc decode(const struct buf *bytes, struct buf *json, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct lease_result m;
  const enum rc rc = lease_result_decode_tensors(&m, bytes->data, bytes->len, &arena, err);
  if (rc == RC_OK && json) lease_result_encode(&m, json);
  arena_free(&arena);
  return rc;
}

static void encode(const struct lease_result *m, struct buf *out) {
  struct err err = {0};
  if (lease_result_encode_tensors(m, out, &err) != RC_OK) fail_msg("%s", err.message);
}

static void it_is_the_message_that_json_says(void **state) {
  (void)state;
  struct example x;
  struct buf tensors = BUF_INIT, from_tensors = BUF_INIT, json = BUF_INIT;
  struct err err = {0};
  make_example(&x);
  encode(&x.result, &tensors);
  lease_result_encode(&x.result, &json);
  if (decode(&tensors, &from_tensors, &err) != RC_OK) fail_msg("%s: %s", err.field, err.message);
  assert_string_equal(from_tensors.data, json.data);
  buf_free(&tensors);
  buf_free(&from_tensors);
  buf_free(&json);
}

/* Results of strict leases are the bytes that they were before `fresh` was recorded, and those are read. */
static void spans_take_a_fourth_column_only_where_one_is_not_fresh(void **state) {
  (void)state;
  for (int fresh = 0; fresh <= 1; fresh++) {
    struct example x;
    struct buf tensors = BUF_INIT, json = BUF_INIT, expected = BUF_INIT;
    struct err err = {0};
    struct st_file *f;
    make_example(&x);
    x.spans[1].fresh = fresh;
    encode(&x.result, &tensors);
    assert_int_equal(st_open_memory(&f, tensors.data, tensors.len, &err), RC_OK);
    assert_int_equal(st_find(f, "version_spans")->shape[1], fresh ? 3 : 4);
    st_close(f);
    assert_int_equal(decode(&tensors, &json, &err), RC_OK);
    lease_result_encode(&x.result, &expected);
    assert_string_equal(json.data, expected.data);
    assert_int_equal(strstr(json.data, "\"fresh\"") != NULL, !fresh);
    buf_free(&expected);
    buf_free(&tensors);
    buf_free(&json);
  }
}

static void freshness_is_a_bit(void **state) {
  (void)state;
  struct example x;
  struct buf tensors = BUF_INIT;
  struct err err = {0};
  make_example(&x);
  encode(&x.result, &tensors);
  struct st_file *f;
  assert_int_equal(st_open_memory(&f, tensors.data, tensors.len, &err), RC_OK);
  const char *spans = st_data(f, st_find(f, "version_spans"));
  const size_t at = (size_t)(spans - tensors.data) + 3 * sizeof(int64_t); /* the first row's fourth column */
  st_close(f);
  assert_int_equal(tensors.data[at], 1);
  tensors.data[at] = 2;
  assert_int_equal(decode(&tensors, NULL, &err), RC_INVALID);
  assert_string_equal(err.field, "samples[0].version_spans");
  buf_free(&tensors);
}

/* Long arrays stay where they came, unless they lie askew there. */
static void long_arrays_stay_in_the_bytes(void **state) {
  (void)state;
  struct example x;
  struct buf tensors = BUF_INIT;
  struct digest before, after;
  struct err err = {0};
  make_example(&x);
  encode(&x.result, &tensors);
  for (size_t askew = 0; askew < 4; askew++) {
    struct arena arena = ARENA_INIT;
    struct lease_result m;
    char *bytes = malloc(tensors.len + askew);
    memcpy(bytes + askew, tensors.data, tensors.len);
    if (lease_result_decode_tensors(&m, bytes + askew, tensors.len, &arena, &err) != RC_OK) fail_msg("%s", err.message);
    const uintptr_t ids = (uintptr_t)m.samples[0].token_ids.items, logprobs = (uintptr_t)m.samples[0].logprobs.items;
    assert_true((ids - (uintptr_t)bytes < tensors.len) == (askew == 0));
    assert_true((logprobs - (uintptr_t)bytes < tensors.len) == (askew == 0));
    assert_int_equal(ids % sizeof(int32_t), 0);
    for (size_t i = 0; i < x.result.sample_count; i++) {
      sample_result_digest(&before, &x.samples[i]);
      sample_result_digest(&after, &m.samples[i]);
      assert_true(digest_equal(&before, &after));
    }
    memset(bytes, 0xff, tensors.len + askew); /* what is short does not depend on them */
    assert_string_equal(m.worker_id, "w3");
    assert_string_equal(m.refused, "it says \"why\"");
    assert_true(m.nonfinite && m.nonfinite_version == 7);
    arena_free(&arena);
    free(bytes);
  }
  buf_free(&tensors);
}

static void expect_refused(const struct example *x, const char *field) {
  struct buf tensors = BUF_INIT;
  struct err err = {0};
  encode(&x->result, &tensors);
  const enum rc rc = decode(&tensors, NULL, &err);
  if (rc != RC_INVALID || strcmp(err.field, field) != 0)
    fail_msg("expected %s refused, got %s, %s: %s", field, rc_name(rc), err.field, err.message);
  buf_free(&tensors);
}

#define REFUSED(change, field) \
  do {                         \
    struct example x;          \
    make_example(&x);          \
    change;                    \
    expect_refused(&x, field); \
  } while (0)

static void a_result_must_add_up(void **state) {
  (void)state;
  REFUSED(x.tokens[1] = -1, "samples[0].token_ids");
  REFUSED(x.tokens[4] = LIMIT_VOCABULARY, "samples[2].token_ids");
  REFUSED(x.logprobs[0] = 0.25f, "samples[0].logprobs");
  REFUSED(x.logprobs[1] = NAN, "samples[0].logprobs");
  REFUSED(x.logprobs[3] = -INFINITY, "samples[2].logprobs");
  REFUSED(x.samples[0].logprobs.count = 2, "logprobs");
  REFUSED(x.samples[1].finish = FINISH_STOP, "samples[1].token_ids");
  REFUSED(x.samples[1].finish = (enum finish_reason)3, "samples[1].finish_reason");
  REFUSED(x.samples[1].sample = 3, "samples");
  REFUSED(x.samples[1].sample = -1, "samples[1].sample");
  REFUSED(x.samples[1].sample = LIMIT_SAMPLES_PER_GROUP, "samples[1].sample");
  REFUSED(x.result.sample_count = 0, "samples");
  REFUSED(x.result.handed_back = false, "refused");
  REFUSED(x.result.handed_back = false; x.result.refused = NULL, "nonfinite_version");
  REFUSED(x.result.nonfinite_version = -1, "nonfinite_version");
  REFUSED(x.result.worker_id = "", "worker_id");
}

static void segments_and_spans_cover_the_tokens_exactly(void **state) {
  (void)state;
  REFUSED(x.segments[1].start = 1, "samples[0].segments");
  REFUSED(x.segments[0].count = 1, "samples[0].segments");
  REFUSED(x.segments[1].count = 2, "samples[0].segments");
  REFUSED(x.segments[1].count = 0, "samples[0].segments");
  REFUSED(x.segments[0].count = INT32_MAX, "samples[0].segments");
  REFUSED(x.samples[2].segment_count = 0, "samples[2].segments");
  REFUSED(x.samples[1].segments = x.segments; x.samples[1].segment_count = 1, "samples");
  REFUSED(x.spans[1].start = 0, "samples[0].version_spans");
  REFUSED(x.spans[1].count = 1, "samples[0].version_spans");
  REFUSED(x.spans[1].count = 3, "samples[0].version_spans");
  REFUSED(x.spans[1].version = 3, "samples[0].version_spans");
  REFUSED(x.spans[0].version = -1, "samples[0].version_spans");
  REFUSED(x.samples[2].span_count = 0, "samples[2].version_spans");
  struct example x; /* a surplus at the end is nobody's */
  make_example(&x);
  x.samples[2].segments = x.segments + 1;
  x.segments[1] = (struct sample_segment){0, 2, true};
  x.samples[2].segment_count = 2;
  x.samples[0].segments = (struct sample_segment[]){{0, 3, true}};
  x.samples[0].segment_count = 1;
  expect_refused(&x, "samples");
}

/* A body that is cut or has a flipped bit is refused, or is a complete message again. */
static void cut_and_flipped_bytes_do_no_harm(void **state) {
  (void)state;
  struct example x;
  struct buf tensors = BUF_INIT;
  struct err err = {0};
  make_example(&x);
  encode(&x.result, &tensors);
  for (size_t len = 0; len < tensors.len; len++) {
    char *cut = malloc(len + 1);
    memcpy(cut, tensors.data, len);
    const struct buf part = {.data = cut, .len = len};
    assert_int_equal(decode(&part, NULL, &err), RC_INVALID);
    free(cut);
  }
  for (size_t bit = 0; bit < 8 * tensors.len; bit++) {
    tensors.data[bit / 8] ^= (char)(1 << bit % 8);
    struct buf json = BUF_INIT;
    if (decode(&tensors, &json, &err) == RC_OK) {
      struct json *root = NULL;
      struct arena arena = ARENA_INIT;
      struct lease_result again;
      if (json_parse(&root, json.data, json.len, 0, &err) != RC_OK ||
          lease_result_decode(&again, root, &arena, &err) != RC_OK)
        fail_msg("bit %zu made a message that JSON refuses: %s: %s", bit, err.field, err.message);
      json_free(root);
      arena_free(&arena);
    }
    buf_free(&json);
    tensors.data[bit / 8] ^= (char)(1 << bit % 8);
  }
  buf_free(&tensors);
}

static void other_tensors_are_refused(void **state) {
  (void)state;
  static const struct {
    struct st_entry first; /* in place of samples */
    size_t count;
    const char *field;
  } wrong[] = {
      {{"samples", ST_F32, 2, {1, 3}}, 5, "samples"}, {{"samples", ST_I32, 1, {3}}, 5, "samples"},
      {{"samples", ST_I32, 2, {3, 1}}, 5, "samples"}, {{"sample", ST_I32, 2, {1, 3}}, 5, "samples"},
      {{"samples", ST_I32, 2, {1, 3}}, 6, ""},        {{"samples", ST_I32, 2, {1, 3}}, 4, ""},
  };
  static const char *const metadata[] = {
      "result", "{\"worker_id\":\"w\",\"epoch\":1,\"fence\":1,\"loaded_digest\":\"" ZEROS "\",\"handed_back\":false}",
      NULL};
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
    const struct st_entry entries[6] = {wrong[i].first,
                                        {"version_spans", ST_I64, 2, {0, 3}},
                                        {"token_ids", ST_I32, 1, {0}},
                                        {"logprobs", ST_F32, 1, {0}},
                                        {"segments", ST_I32, 2, {0, 3}},
                                        {"rewards", ST_F32, 1, {0}}};
    struct buf bytes = BUF_INIT;
    struct err err = {0};
    assert_int_equal(st_write_header(&bytes, entries, wrong[i].count, metadata, &err), RC_OK);
    buf_append(&bytes, (const int32_t[3]){0, FINISH_ABORT, 0}, 3 * sizeof(int32_t));
    const enum rc rc = decode(&bytes, NULL, &err);
    if (rc != RC_INVALID || strcmp(err.field, wrong[i].field) != 0)
      fail_msg("case %zu: %s, %s: %s", i, rc_name(rc), err.field, err.message);
    buf_free(&bytes);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(it_is_the_message_that_json_says),
      cmocka_unit_test(spans_take_a_fourth_column_only_where_one_is_not_fresh),
      cmocka_unit_test(freshness_is_a_bit),
      cmocka_unit_test(long_arrays_stay_in_the_bytes),
      cmocka_unit_test(a_result_must_add_up),
      cmocka_unit_test(segments_and_spans_cover_the_tokens_exactly),
      cmocka_unit_test(cut_and_flipped_bytes_do_no_harm),
      cmocka_unit_test(other_tensors_are_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
