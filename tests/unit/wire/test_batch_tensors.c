/* A batch and its status as safetensors: the same message as in JSON, with the same digest, and the same refusals.
 * Held against: a sample that takes another's tokens, wrong counts, dtypes and shapes, numbers that JSON cannot write,
 * and bodies cut or changed at every byte. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/safetensors/safetensors.h"
#include "tests/unit/wire/wire_test.h"

/* Two groups: one sample with two segments, one whose advantage is a negative zero; then one more. */
struct example {
  int32_t tokens[9];
  float reference[3]; /* of the first and the second sample's trained tokens */
  float logprobs[3];  /* of the first and the second sample's trained tokens */
  struct sample_segment segments[4];
  struct batch_sample samples[3];
  struct batch_group groups[2];
  struct submit_batch batch;
};

static void make_example(struct example *x) {
  *x = (struct example){.tokens = {5, 6, 7, 8, LIMIT_VOCABULARY - 1, 0, 1, 2, 3},
                        .segments = {{0, 2, true}, {2, 1, false}, {0, 1, true}, {0, 1, false}}};
  x->samples[0] = (struct batch_sample){.id = "r7.12.3.0",
                                        .tokens = {x->tokens, 4},
                                        .prompt_length = 1,
                                        .segments = x->segments,
                                        .segment_count = 2,
                                        .advantage = 0x1.fffffep-3f};
  x->samples[1] = (struct batch_sample){.id = "r7.12.3.1",
                                        .tokens = {x->tokens + 4, 2},
                                        .prompt_length = 1,
                                        .segments = x->segments + 2,
                                        .segment_count = 1,
                                        .advantage = -0.0f};
  x->samples[2] = (struct batch_sample){.id = "r7.12.9.0",
                                        .tokens = {x->tokens + 6, 3},
                                        .prompt_length = 2,
                                        .segments = x->segments + 3,
                                        .segment_count = 1,
                                        .advantage = -0x1p-149f};
  x->groups[0] = (struct batch_group){.id = "r7.12.3", .samples = x->samples, .sample_count = 2};
  x->groups[1] = (struct batch_group){.id = "r7.12.9", .samples = x->samples + 2, .sample_count = 1};
  x->batch = (struct submit_batch){.batch_id = "r7.12.b0",
                                   .run = "r7",
                                   .epoch = UINT64_MAX,
                                   .fence = 3,
                                   .version = 12,
                                   .after_steps = 2,
                                   .groups = x->groups,
                                   .group_count = 2};
}

/* The same as a run with update "inflight" has it. */
static void make_behaviour(struct example *x) {
  make_example(x);
  x->logprobs[0] = -0x1p-149f;
  x->logprobs[1] = -0x1.fffffep127f;
  x->logprobs[2] = -0.0f;
  x->samples[0].behaviour = (struct json_f32s){x->logprobs, 2};
  x->samples[1].behaviour = (struct json_f32s){x->logprobs + 2, 1};
}

/* The same where the first group's reference was computed elsewhere; the second group trains on no token. */
static void make_reference(struct example *x) {
  make_example(x);
  x->reference[0] = -0x1.fffffep127f;
  x->reference[1] = -0.0f;
  x->reference[2] = -0x1p-149f;
  x->samples[0].reference = (struct json_f32s){x->reference, 2};
  x->samples[1].reference = (struct json_f32s){x->reference + 2, 1};
  x->groups[0].has_reference = true;
}

static void make_both(struct example *x) {
  make_reference(x);
  x->logprobs[0] = x->logprobs[1] = x->logprobs[2] = -1;
  x->samples[0].behaviour = (struct json_f32s){x->logprobs, 2};
  x->samples[1].behaviour = (struct json_f32s){x->logprobs + 2, 1};
}

/* One that is verified: of the second sample no bits are promised, the third has no trained tokens. */
static void make_verified(struct example *x) {
  make_behaviour(x);
  x->batch.verify = (struct batch_verify){.wanted = true,
                                          .inexact_too = true,
                                          .seed = UINT64_MAX,
                                          .mismatch_most = 1.1,
                                          .draws_near = 0.1,
                                          .draws_most = 0.3};
  x->groups[0].round = 11;
  x->groups[0].ordinal = 3;
  x->groups[1].ordinal = 9;
  x->samples[0].exact_from = 1;
  x->samples[1].exact_from = -1;
}

static void encode(const struct submit_batch *m, struct buf *out) {
  struct err err = {0};
  buf_clear(out);
  if (submit_batch_encode_tensors(m, out, &err) != RC_OK) fail_msg("%s", err.message);
}

/* json NULL: only the verdict matters.  The body is copied to memory of exactly its size, so that a sanitizer sees a
 * byte too many. */
static enum rc decode(const void *bytes, size_t len, struct buf *json, struct digest *digest, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct submit_batch m;
  char *exact = malloc(len ? len : 1);
  memcpy(exact, bytes, len);
  const enum rc rc = submit_batch_decode_tensors(&m, exact, len, &arena, err);
  free(exact);
  if (rc == RC_OK && json) submit_batch_encode(&m, json);
  if (rc == RC_OK && digest) submit_batch_digest(digest, &m);
  arena_free(&arena);
  return rc;
}

static void check_both_forms(struct example *x) {
  struct buf bytes = BUF_INIT, before = BUF_INIT, after = BUF_INIT;
  struct digest sent, from_tensors, from_json;
  struct err err = {0};
  encode(&x->batch, &bytes);
  submit_batch_encode(&x->batch, &before);
  submit_batch_digest(&sent, &x->batch);
  if (decode(bytes.data, bytes.len, &after, &from_tensors, &err) != RC_OK) fail_msg("%s: %s", err.field, err.message);
  assert_string_equal(before.data, after.data);
  assert_true(digest_equal(&sent, &from_tensors));
  struct json *root = NULL;
  struct arena arena = ARENA_INIT;
  struct submit_batch m;
  assert_int_equal(json_parse(&root, before.data, before.len, 0, &err), RC_OK);
  assert_int_equal(submit_batch_decode(&m, root, &arena, &err), RC_OK);
  submit_batch_digest(&from_json, &m);
  assert_true(digest_equal(&sent, &from_json));
  assert_true(signbit(m.groups[0].samples[1].advantage));
  json_free(root);
  arena_free(&arena);
  buf_free(&bytes);
  buf_free(&before);
  buf_free(&after);
}

static void the_message_is_the_same_in_both_forms(void **state) {
  (void)state;
  struct example x;
  make_example(&x);
  check_both_forms(&x);
  make_behaviour(&x);
  check_both_forms(&x);
  make_reference(&x);
  check_both_forms(&x);
  make_both(&x);
  check_both_forms(&x);
  make_verified(&x);
  check_both_forms(&x);
  make_both(&x);
  x.groups[1].has_reference = true; /* of no token */
  check_both_forms(&x);
}

static void the_reference_arrives_bit_for_bit(void **state) {
  (void)state;
  struct example x;
  struct buf bytes = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct submit_batch m;
  struct err err = {0};
  make_both(&x);
  encode(&x.batch, &bytes);
  assert_int_equal(submit_batch_decode_tensors(&m, bytes.data, bytes.len, &arena, &err), RC_OK);
  assert_true(m.groups[0].has_reference && !m.groups[1].has_reference);
  for (size_t i = 0; i < 3; i++) {
    const struct json_f32s got = m.groups[i / 2].samples[i % 2].reference, sent = x.samples[i].reference;
    assert_int_equal(got.count, sent.count);
    if (sent.count > 0) assert_memory_equal(got.items, sent.items, sent.count * sizeof(float));
  }
  arena_free(&arena);
  buf_free(&bytes);
}

static void behaviour_arrives_bit_for_bit(void **state) {
  (void)state;
  struct example x;
  struct buf bytes = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct submit_batch m;
  struct err err = {0};
  make_behaviour(&x);
  encode(&x.batch, &bytes);
  assert_int_equal(submit_batch_decode_tensors(&m, bytes.data, bytes.len, &arena, &err), RC_OK);
  for (size_t i = 0; i < 3; i++) {
    const struct json_f32s got = m.groups[i / 2].samples[i % 2].behaviour, sent = x.samples[i].behaviour;
    assert_int_equal(got.count, sent.count);
    if (sent.count > 0) assert_memory_equal(got.items, sent.items, sent.count * sizeof(float));
  }
  arena_free(&arena);
  buf_free(&bytes);
}

static void the_digest_is_of_the_content_alone(void **state) {
  (void)state;
  struct example x;
  struct digest before, after;
  make_example(&x);
  submit_batch_digest(&before, &x.batch);
  x.batch.epoch = x.batch.fence = 0;
  submit_batch_digest(&after, &x.batch);
  assert_true(digest_equal(&before, &after));
#define CHANGES(what)                          \
  do {                                         \
    make_example(&x);                          \
    what;                                      \
    submit_batch_digest(&after, &x.batch);     \
    assert_false(digest_equal(&before, &after)); \
  } while (0)
  CHANGES(x.batch.batch_id = "r7.12.b1");
  CHANGES(x.batch.run = "r8");
  CHANGES(x.batch.version++);
  CHANGES(x.batch.after_steps++);
  CHANGES(x.batch.group_count--);
  CHANGES(x.groups[1].id = "r7.12.8");
  CHANGES(x.groups[0].sample_count--);
  CHANGES(x.samples[1].id = "r7.12.3.2");
  CHANGES(x.tokens[8]++);
  CHANGES(x.samples[2].tokens.count--);
  CHANGES(x.samples[2].prompt_length--);
  CHANGES(x.segments[3].loss_mask = true);
  CHANGES(x.segments[0].count--);
  CHANGES(x.segments[1].start--);
  CHANGES(x.samples[0].segment_count--);
  CHANGES(x.samples[0].advantage = 0.25f);
  CHANGES(make_behaviour(&x));
  make_example(&x); /* a batch that was sent without the reference comes again with it */
  submit_batch_digest(&before, &x.batch);
  make_reference(&x);
  submit_batch_digest(&after, &x.batch);
  assert_true(digest_equal(&before, &after));
  make_behaviour(&x);
  submit_batch_digest(&before, &x.batch);
  x.logprobs[1] = -1;
  submit_batch_digest(&after, &x.batch);
  assert_false(digest_equal(&before, &after));
#undef CHANGES
}

static void how_a_batch_is_verified_is_in_its_digest(void **state) {
  (void)state;
  struct example x;
  struct digest before, after;
  make_verified(&x);
  submit_batch_digest(&before, &x.batch);
#define CHANGES(what)                            \
  do {                                           \
    make_verified(&x);                           \
    what;                                        \
    submit_batch_digest(&after, &x.batch);       \
    assert_false(digest_equal(&before, &after)); \
  } while (0)
  CHANGES(x.batch.verify.wanted = false);
  CHANGES(x.batch.verify.inexact_too = false);
  CHANGES(x.batch.verify.seed--);
  CHANGES(x.batch.verify.mismatch_most = 1.2);
  CHANGES(x.batch.verify.draws_near = 0.2);
  CHANGES(x.batch.verify.draws_most = 0.31);
  CHANGES(x.groups[0].round++);
  CHANGES(x.groups[1].ordinal++);
  CHANGES(x.samples[0].exact_from--);
#undef CHANGES
}

/* The body of the example, changed in the message, must be refused with this field. */
#define REFUSED(expected, what)                                                      \
  do {                                                                               \
    struct example x;                                                                \
    struct buf bytes = BUF_INIT;                                                     \
    struct err err = {0};                                                            \
    make_example(&x);                                                                \
    what;                                                                            \
    encode(&x.batch, &bytes);                                                        \
    assert_int_equal(decode(bytes.data, bytes.len, NULL, NULL, &err), RC_INVALID);   \
    if (strcmp(err.field, expected) != 0 || strlen(err.message) < 10)                \
      fail_msg("expected %s, got %s: %s", expected, err.field, err.message);         \
    buf_free(&bytes);                                                                \
  } while (0)

static void what_json_would_refuse_is_refused_by_the_same_name(void **state) {
  (void)state;
  REFUSED("groups[0].samples[1].tokens", x.tokens[4] = LIMIT_VOCABULARY);
  REFUSED("groups[1].samples[0].tokens", x.tokens[8] = -1);
  REFUSED("groups[0].samples[0].prompt_length", x.samples[0].prompt_length = 4);
  REFUSED("groups[0].samples[0].prompt_length", x.samples[0].prompt_length = 0);
  REFUSED("groups[0].samples[0].prompt_length", x.samples[0].prompt_length = INT32_MIN);
  REFUSED("groups[0].samples[0].segments", x.segments[1].start = 1);
  REFUSED("groups[0].samples[0].segments", x.segments[1].count = 0);
  REFUSED("groups[0].samples[0].segments", x.segments[1].count = INT32_MAX);
  REFUSED("groups[1].samples[0].segments", x.samples[2].segment_count = 0);
  REFUSED("groups[0].samples[1].advantage", x.samples[1].advantage = NAN);
  REFUSED("groups[1].samples[0].advantage", x.samples[2].advantage = -INFINITY);
  REFUSED("groups[1].samples[0].tokens", (x.samples[2].tokens.count = 1, x.samples[2].segment_count = 0));
  REFUSED("groups[0].samples[1].segments", x.segments[2].count = 3);
  REFUSED("samples", (x.samples[2].segments = x.segments + 2, x.samples[2].segment_count = 2)); /* one row is left */
  REFUSED("groups", x.batch.group_count = 0);
  REFUSED("groups", x.groups[1].id = x.groups[0].id);
  REFUSED("groups[0].samples", x.groups[0].sample_count = 0);
  REFUSED("groups[0].samples", x.samples[1].id = x.samples[0].id);
  REFUSED("run", x.batch.run = "r 7");
  REFUSED("after_steps", x.batch.after_steps = -1);
  REFUSED("groups[0].samples[0].behaviour", (make_behaviour(&x), x.logprobs[1] = 0x1p-149f));
  REFUSED("groups[0].samples[0].behaviour", (make_behaviour(&x), x.logprobs[0] = NAN));
  REFUSED("groups[0].samples[1].behaviour", (make_behaviour(&x), x.logprobs[2] = -INFINITY));
  REFUSED("groups[0].samples[1].behaviour", (make_behaviour(&x), x.samples[1].behaviour.count = 0)); /* some, not all */
  REFUSED("groups[0].samples[1].behaviour", (make_behaviour(&x), x.samples[0].behaviour.count = 1));
  REFUSED("behaviour", (make_behaviour(&x), x.samples[2].behaviour = x.samples[1].behaviour));
  REFUSED("groups[0].samples[0].reference", (make_reference(&x), x.reference[1] = NAN));
  REFUSED("groups[0].samples[0].reference", (make_reference(&x), x.reference[0] = -INFINITY));
  REFUSED("groups[0].samples[1].reference", (make_reference(&x), x.reference[2] = 0x1p-149f));
  REFUSED("groups[0].samples[1].reference", (make_reference(&x), x.samples[1].reference.count = 0));
  REFUSED("groups[0].samples[0].reference", (make_example(&x), x.groups[0].has_reference = true));
  REFUSED("reference", (make_reference(&x), x.samples[2].reference = x.samples[1].reference));
  REFUSED("reference", (make_reference(&x), x.groups[0].has_reference = false));
  REFUSED("groups[0].samples[0].exact_from", (make_verified(&x), x.samples[0].exact_from = 3)); /* two are trained on */
  REFUSED("groups[1].samples[0].exact_from", (make_verified(&x), x.samples[2].exact_from = 1));
  REFUSED("groups[0].samples[1].exact_from", (make_verified(&x), x.samples[1].exact_from = -2));
  REFUSED("verify.draws_near", (make_verified(&x), x.batch.verify.draws_near = 2));
  REFUSED("verify.draws_most", (make_verified(&x), x.batch.verify.draws_most = 1.5));
  REFUSED("verify.mismatch_most", (make_verified(&x), x.batch.verify.mismatch_most = -1));
  REFUSED("groups[0].round", (make_verified(&x), x.groups[0].round = -1));
  REFUSED("verify", (make_verified(&x), x.batch.check.wanted = true));
}

/* Replaces the first `from` by a text of the same length. */
static void replace(struct buf *b, const char *from, const char *to) {
  const size_t n = strlen(from);
  assert_int_equal(n, strlen(to));
  char *at = memmem(b->data, b->len, from, n);
  if (!at) fail_msg("there is no %s", from);
  memcpy(at, to, n);
}

static void wrong_tensors_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *from, *to;
  } changes[] = {
      {"\"token_ids\":{\"dtype\":\"I32\"", "\"token_ids\":{\"dtype\":\"F32\""}, /* another dtype */
      {"\"advantages\":{\"dtype\":\"F32\"", "\"advantages\":{\"dtype\":\"I32\""},
      {"\"token_ids\"", "\"token_idz\""},
      {"[3,2]", "[2,3]"},               /* samples: the same bytes */
      {"\"shape\":[9]", "\"shape\":[8]"}, /* other bytes than the offsets' */
      {"[24,60]", "[20,60]"},           /* overlaps the tensor before */
      {"[24,60]", "[28,60]"},           /* a hole */
      {"[24,60]", "[24,64]"},           /* runs into the next */
      {"[24,60]", "[60,24]"},           /* backwards */
      {"\"batch\"", "\"bitch\""},
      {"r7.12.3.1", "r7.12.3.0"},
  };
  struct example x;
  make_example(&x);
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    struct buf bytes = BUF_INIT;
    struct err err = {0};
    encode(&x.batch, &bytes);
    replace(&bytes, changes[i].from, changes[i].to);
    const enum rc rc = decode(bytes.data, bytes.len, NULL, NULL, &err);
    if (rc != RC_INVALID || strlen(err.message) < 10)
      fail_msg("%s: %s %s", changes[i].to, rc_name(rc), err.message);
    buf_free(&bytes);
  }
}

/* The n-th I32 of the tensor of samples. */
static void set_sample_row(struct buf *b, size_t n, int32_t value) {
  uint64_t header;
  memcpy(&header, b->data, sizeof header);
  memcpy(b->data + sizeof header + header + n * sizeof value, &value, sizeof value);
}

static void counts_that_do_not_add_up_are_refused(void **state) {
  (void)state;
  static const struct {
    size_t at;
    int32_t value;
    const char *field;
  } changes[] = {
      {0, 3, "groups[0].samples[1].segments"}, {0, 5, "groups[0].samples[0].segments"},
      {0, -1, "groups[0].samples[0].tokens"},  {0, INT32_MIN, "groups[0].samples[0].tokens"},
      {0, 10, "groups[0].samples[0].tokens"},  {0, INT32_MAX, "groups[0].samples[0].tokens"},
      {0, 1, "groups[0].samples[0].tokens"},   {4, 4, "groups[1].samples[0].tokens"},
  };
  struct example x;
  make_example(&x);
  for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
    struct buf bytes = BUF_INIT;
    struct err err = {0};
    encode(&x.batch, &bytes);
    set_sample_row(&bytes, changes[i].at, changes[i].value);
    assert_int_equal(decode(bytes.data, bytes.len, NULL, NULL, &err), RC_INVALID);
    if (strcmp(err.field, changes[i].field) != 0)
      fail_msg("%zu = %d: expected %s, got %s: %s", changes[i].at, changes[i].value, changes[i].field, err.field,
               err.message);
    buf_free(&bytes);
  }
}

/* One sample of two tokens, one of them the prompt's; each tensor with so many rows of numbers that are right. */
static void make_rows(struct buf *out, int64_t samples, int64_t tokens, int64_t segments, int64_t advantages) {
  static const int32_t sample[] = {2, 1, 2, 1}, token[] = {5, 6, 7}, segment[] = {0, 1, 1, 0, 1, 1};
  static const float advantage[] = {1, 1};
  const struct st_entry entries[] = {{"samples", ST_I32, 2, {samples, 2}},
                                     {"token_ids", ST_I32, 1, {tokens}},
                                     {"segments", ST_I32, 2, {segments, 3}},
                                     {"advantages", ST_F32, 1, {advantages}}};
  const char *const metadata[] = {"batch",
                                  "{\"batch_id\":\"b\",\"run\":\"r1\",\"epoch\":1,\"fence\":1,\"version\":0,"
                                  "\"groups\":[{\"id\":\"g\",\"samples\":[\"s\"]}]}",
                                  NULL};
  struct err err;
  buf_clear(out);
  assert_int_equal(st_write_header(out, entries, 4, metadata, &err), RC_OK);
  buf_append(out, sample, (size_t)samples * 2 * sizeof *sample);
  buf_append(out, token, (size_t)tokens * sizeof *token);
  buf_append(out, segment, (size_t)segments * 3 * sizeof *segment);
  buf_append(out, advantage, (size_t)advantages * sizeof *advantage);
}

static void every_tensor_has_the_rows_that_the_ids_need(void **state) {
  (void)state;
  static const struct {
    int64_t rows[4];
    const char *field; /* NULL: taken */
  } cases[] = {
      {{1, 2, 1, 1}, NULL},      {{0, 2, 1, 1}, "samples"},    {{2, 2, 1, 1}, "samples"},
      {{1, 3, 1, 1}, "samples"}, {{1, 1, 1, 1}, "groups[0].samples[0].tokens"},
      {{1, 2, 2, 1}, "samples"}, {{1, 2, 0, 1}, "groups[0].samples[0].segments"},
      {{1, 2, 1, 0}, "advantages"}, {{1, 2, 1, 2}, "advantages"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct buf bytes = BUF_INIT;
    struct err err = {0};
    make_rows(&bytes, cases[i].rows[0], cases[i].rows[1], cases[i].rows[2], cases[i].rows[3]);
    const enum rc rc = decode(bytes.data, bytes.len, NULL, NULL, &err);
    if (rc != (cases[i].field ? RC_INVALID : RC_OK) || (cases[i].field && strcmp(err.field, cases[i].field) != 0))
      fail_msg("case %zu: expected %s, got %s: %s", i, cases[i].field ? cases[i].field : "ok", err.field, err.message);
    buf_free(&bytes);
  }
}

/* Whatever comes, it is refused or decoded to a message that encodes again: nothing is read beyond the body. */
static void bodies_cut_or_changed_anywhere_do_no_harm(void **state) {
  (void)state;
  struct example x;
  struct buf bytes = BUF_INIT;
  make_both(&x);
  encode(&x.batch, &bytes);
  for (size_t len = 0; len < bytes.len; len++) {
    struct err err = {0};
    assert_int_equal(decode(bytes.data, len, NULL, NULL, &err), RC_INVALID);
    assert_true(strlen(err.message) >= 10);
  }
  size_t taken = 0;
  for (size_t at = 0; at < bytes.len; at++) {
    for (int bit = 0; bit < 8; bit++) {
      struct buf again = BUF_INIT;
      struct err err = {0};
      bytes.data[at] = (char)(bytes.data[at] ^ 1 << bit);
      const enum rc rc = decode(bytes.data, bytes.len, &again, NULL, &err);
      bytes.data[at] = (char)(bytes.data[at] ^ 1 << bit);
      taken += rc == RC_OK;
      if (rc != RC_OK && (rc == RC_INTERNAL || strlen(err.message) < 10))
        fail_msg("byte %zu, bit %d: %s %s", at, bit, rc_name(rc), err.message);
      buf_free(&again);
    }
  }
  assert_true(taken > 0); /* another token or advantage is as good */
  buf_free(&bytes);
}

/* ---- the status ---- */

static struct batch_status example_status(struct sample_logprobs *samples, float *numbers) {
  samples[0] = (struct sample_logprobs){.id = "r7.12.3.0", .logprobs = {numbers, 2}};
  samples[1] = (struct sample_logprobs){.id = "r7.12.3.1", .logprobs = {numbers + 2, 0}};
  samples[2] = (struct sample_logprobs){.id = "r7.12.9.0", .logprobs = {numbers + 2, 2}};
  struct batch_status s = {.batch_id = "r7.12.b0",
                           .state = JOB_DONE,
                           .samples = samples,
                           .sample_count = 3,
                           .stats = {.loss = 0.5, .tokens = 4, .samples = 3}};
  logprobs_digest(&s.logprobs_sha256, samples, 3);
  return s;
}

static enum rc decode_status(const void *bytes, size_t len, struct batch_status *out, struct arena *arena,
                             struct err *err) {
  char *exact = malloc(len ? len : 1);
  memcpy(exact, bytes, len);
  const enum rc rc = batch_status_decode_tensors(out, exact, len, arena, err);
  free(exact);
  return rc;
}

static void a_status_arrives_bit_for_bit(void **state) {
  (void)state;
  float numbers[4] = {-0.0f, -0x1p-149f, NAN, -0x1.fffffep127f};
  struct sample_logprobs samples[3];
  const struct batch_status sent = example_status(samples, numbers);
  struct batch_status got;
  struct buf bytes = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct digest digest;
  assert_int_equal(batch_status_encode_tensors(&sent, &bytes, &err), RC_OK);
  if (decode_status(bytes.data, bytes.len, &got, &arena, &err) != RC_OK) fail_msg("%s: %s", err.field, err.message);
  assert_int_equal(got.sample_count, 3);
  assert_string_equal(got.samples[2].id, "r7.12.9.0");
  logprobs_digest(&digest, got.samples, got.sample_count);
  assert_true(digest_equal(&digest, &sent.logprobs_sha256)); /* ids, counts and every bit */
  assert_true(digest_equal(&got.logprobs_sha256, &sent.logprobs_sha256));
  assert_true(got.state == JOB_DONE && got.stats.loss == 0.5 && got.stats.tokens == 4);
  buf_clear(&bytes);
  const struct batch_status queued = {.batch_id = "b", .state = JOB_QUEUED};
  assert_int_equal(batch_status_encode_tensors(&queued, &bytes, &err), RC_OK);
  assert_int_equal(decode_status(bytes.data, bytes.len, &got, &arena, &err), RC_OK);
  assert_true(got.state == JOB_QUEUED && got.sample_count == 0);
  arena_free(&arena);
  buf_free(&bytes);
}

static void entropies_come_beside_log_probabilities_or_alone(void **state) {
  (void)state;
  float numbers[4] = {-1, -2, -3, -4}, nats[4] = {0, 0.25F, NAN, 5.5F};
  for (int kinds = STATUS_LOGPROBS; kinds <= (STATUS_LOGPROBS | STATUS_ENTROPIES); kinds++) {
    struct sample_logprobs samples[3];
    struct batch_status sent = example_status(samples, numbers), got;
    struct buf bytes = BUF_INIT;
    struct arena arena = ARENA_INIT;
    struct err err = {0};
    sent.numbers = kinds;
    for (int i = 0, at = 0; i < 3; at += (int)samples[i++].logprobs.count)
      samples[i].entropies = (struct json_f32s){nats + at, samples[i].logprobs.count};
    assert_int_equal(batch_status_encode_tensors(&sent, &bytes, &err), RC_OK);
    if (decode_status(bytes.data, bytes.len, &got, &arena, &err) != RC_OK) fail_msg("%s: %s", err.field, err.message);
    for (int i = 0; i < 3; i++) {
      const struct sample_logprobs *s = &got.samples[i];
      const size_t count = samples[i].logprobs.count;
      assert_int_equal(s->logprobs.count, kinds & STATUS_LOGPROBS ? count : 0);
      assert_int_equal(s->entropies.count, kinds & STATUS_ENTROPIES ? count : 0);
      assert_memory_equal(s->logprobs.items, samples[i].logprobs.items, s->logprobs.count * sizeof(float));
      assert_memory_equal(s->entropies.items, samples[i].entropies.items, s->entropies.count * sizeof(float));
    }
    bytes.len -= sizeof(float); /* one number fewer than tokens */
    assert_int_equal(decode_status(bytes.data, bytes.len, &got, &arena, &err), RC_INVALID);
    arena_free(&arena);
    buf_free(&bytes);
  }
}

static void counts_of_a_status_that_do_not_add_up_are_refused(void **state) {
  (void)state;
  static const struct {
    int64_t trained, logprobs;
    int32_t counts[4];
    const char *field;
  } cases[] = {
      {3, 4, {2, 0, 2, 0}, NULL},       {2, 4, {2, 2, 0, 0}, "trained"},  {4, 4, {2, 0, 2, 0}, "trained"},
      {3, 4, {2, 0, 3, 0}, "trained"},  {3, 4, {2, 0, 1, 0}, "logprobs"}, {3, 4, {-1, 3, 2, 0}, "trained"},
      {3, 4, {5, -1, 0, 0}, "trained"}, {3, 0, {0, 0, 0, 0}, NULL},
  };
  static const float numbers[4] = {-1, -2, -3, -4};
  struct sample_logprobs samples[3];
  const struct batch_status sent = example_status(samples, (float[4]){-1, -2, -3, -4});
  struct buf example = BUF_INIT;
  struct err err = {0};
  struct st_file *f;
  assert_int_equal(batch_status_encode_tensors(&sent, &example, &err), RC_OK);
  assert_int_equal(st_open_memory(&f, example.data, example.len, &err), RC_OK);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct st_entry entries[] = {{"trained", ST_I32, 1, {cases[i].trained}},
                                       {"logprobs", ST_F32, 1, {cases[i].logprobs}}};
    const char *const metadata[] = {"status", st_metadata(f, "status"), NULL};
    struct buf bytes = BUF_INIT;
    struct arena arena = ARENA_INIT;
    struct batch_status got;
    assert_int_equal(st_write_header(&bytes, entries, 2, metadata, &err), RC_OK);
    buf_append(&bytes, cases[i].counts, (size_t)cases[i].trained * sizeof(int32_t));
    buf_append(&bytes, numbers, (size_t)cases[i].logprobs * sizeof(float));
    const enum rc rc = decode_status(bytes.data, bytes.len, &got, &arena, &err);
    if (rc != (cases[i].field ? RC_INVALID : RC_OK) || (cases[i].field && strcmp(err.field, cases[i].field) != 0))
      fail_msg("case %zu: expected %s, got %s: %s", i, cases[i].field ? cases[i].field : "ok", err.field, err.message);
    arena_free(&arena);
    buf_free(&bytes);
  }
  st_close(f);
  buf_free(&example);
}

static void a_status_cut_or_changed_anywhere_does_no_harm(void **state) {
  (void)state;
  float numbers[4] = {-1, -2, -3, -4};
  struct sample_logprobs samples[3];
  const struct batch_status sent = example_status(samples, numbers);
  struct buf bytes = BUF_INIT;
  struct err err = {0};
  assert_int_equal(batch_status_encode_tensors(&sent, &bytes, &err), RC_OK);
  for (size_t at = 0; at < bytes.len; at++) {
    struct arena arena = ARENA_INIT;
    struct batch_status got;
    assert_int_equal(decode_status(bytes.data, at, &got, &arena, &err), RC_INVALID);
    for (int bit = 0; bit < 8; bit++) {
      bytes.data[at] = (char)(bytes.data[at] ^ 1 << bit);
      size_t counted = 0;
      if (decode_status(bytes.data, bytes.len, &got, &arena, &err) == RC_OK) {
        for (size_t i = 0; i < got.sample_count; i++) counted += got.samples[i].logprobs.count;
        assert_int_equal(counted, 4);
      }
      bytes.data[at] = (char)(bytes.data[at] ^ 1 << bit);
    }
    arena_free(&arena);
  }
  buf_free(&bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_message_is_the_same_in_both_forms),
      cmocka_unit_test(behaviour_arrives_bit_for_bit),
      cmocka_unit_test(the_reference_arrives_bit_for_bit),
      cmocka_unit_test(the_digest_is_of_the_content_alone),
      cmocka_unit_test(how_a_batch_is_verified_is_in_its_digest),
      cmocka_unit_test(what_json_would_refuse_is_refused_by_the_same_name),
      cmocka_unit_test(wrong_tensors_are_refused),
      cmocka_unit_test(counts_that_do_not_add_up_are_refused),
      cmocka_unit_test(every_tensor_has_the_rows_that_the_ids_need),
      cmocka_unit_test(bodies_cut_or_changed_anywhere_do_no_harm),
      cmocka_unit_test(a_status_arrives_bit_for_bit),
      cmocka_unit_test(entropies_come_beside_log_probabilities_or_alone),
      cmocka_unit_test(counts_of_a_status_that_do_not_add_up_are_refused),
      cmocka_unit_test(a_status_cut_or_changed_anywhere_does_no_harm),
  };
  return cmocka_run_group_tests_name("wire: a batch as tensors", tests, NULL, NULL);
}
