/* Passes and their results survive the wire bit for bit, and nothing malformed does. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/wire/passes.h"
#include "tests/unit/wire/wire_test.h"

MESSAGE_AGAIN(pass_request)
MESSAGE_AGAIN(pass_answer)

static const struct message request_message = {.name = "pass_request",
                                               .json = "{\"epoch\":3,\"groups_max\":2,\"wait_ms\":10000}",
                                               .again = again_pass_request};
static const struct message answer_message = {
    .name = "pass_answer",
    .json =
        "{\"epoch\":3,\"passes\":[{\"pass_id\":\"r7.12.3\",\"run\":\"r7\",\"fence\":\"9007199254740992\",\"version\":0,"
        "\"weights_digest\":\"" DIGEST_A
        "\",\"weights_from\":\"http://trainer:8200\",\"chunk_tokens\":256,\"temperature\":0.699999988,\"samples\":[{"
        "\"id\":\"r7.12.3.0\",\"tokens\":[1,2,3,4],\"prompt_length\":1,\"segments\":[{\"start\":0,\"count\":2,\"loss_"
        "mask\":true},{\"start\":2,\"count\":1,\"loss_mask\":false}]},{\"id\":\"r7.12.3.1\",\"tokens\":[1,2],\"prompt_"
        "length\":1,\"segments\":[{\"start\":0,\"count\":1,\"loss_mask\":true}]}]}]}",
    .again = again_pass_answer};
static const struct message empty_message = {
    .name = "pass_answer, empty", .json = "{\"epoch\":3,\"passes\":[]}", .again = again_pass_answer};

static void every_message_reads_back_as_it_was_written(void **state) {
  (void)state;
  message_check_round_trip(&request_message);
  message_check_round_trip(&answer_message);
  message_check_round_trip(&empty_message);
}

static void every_spoilt_member_is_refused(void **state) {
  (void)state;
  message_check_spoilt(&request_message);
  message_check_spoilt(&answer_message);
}

static void what_a_pass_says_is_bounded(void **state) {
  (void)state;
  const struct message *m = &answer_message;
  message_check_refused(&request_message, "\"groups_max\":2", "\"groups_max\":0", "groups_max");
  message_check_refused(&request_message, "\"groups_max\":2", "\"groups_max\":17", "groups_max");
  message_check_refused(&request_message, "\"wait_ms\":10000", "\"wait_ms\":60001", "wait_ms");
  message_check_refused(m, "0.699999988", "0", "passes[0].temperature");
  message_check_refused(m, "0.699999988", "1e-60", "passes[0].temperature"); /* 0 as a float32 */
  message_check_refused(m, "\"chunk_tokens\":256", "\"chunk_tokens\":0", "passes[0].chunk_tokens");
  message_check_refused(m, "http://trainer:8200", "trainer:8200", "passes[0].weights_from");
  message_check_refused(m, "\"version\":0", "\"version\":-1", "passes[0].version");
  message_check_refused(m, "r7.12.3.1", "r7.12.3.0", "passes[0].samples");
  message_check_refused(m, "\"tokens\":[1,2],", "\"tokens\":[1],", "passes[0].samples[1].tokens");
  message_check_refused(m, "\"start\":2,\"count\":1", "\"start\":2,\"count\":2", "passes[0].samples[0].segments");
  message_check_refused(m, "\"prompt_length\":1,\"segments\"", "\"advantage\":1,\"prompt_length\":1,\"segments\"",
                        NULL);
}

/* ---- results ---- */

struct example {
  float numbers[3];
  struct sample_logprobs samples[3];
  struct pass_result result;
};

/* Three samples: two trained tokens, none, one. */
static void make_example(struct example *x) {
  *x = (struct example){.numbers = {-0x1p-149f, -0x1.fffffep127f, -0.0f}};
  x->samples[0] = (struct sample_logprobs){.id = "r7.12.3.0", .logprobs = {x->numbers, 2}};
  x->samples[1] = (struct sample_logprobs){.id = "r7.12.3.1"};
  x->samples[2] = (struct sample_logprobs){.id = "r7.12.3.2", .logprobs = {x->numbers + 2, 1}};
  x->result = (struct pass_result){
      .worker_id = "w3", .epoch = UINT64_MAX, .fence = 2, .samples = x->samples, .sample_count = 3};
  memset(x->result.weights_digest.bytes, 0xa5, DIGEST_BYTES);
}

static void make_handed_back(struct example *x) {
  make_example(x);
  x->result = (struct pass_result){
      .worker_id = "w3", .epoch = 1, .fence = 2, .handed_back = true, .refused = "it says \"why\""};
}

static void encode(const struct pass_result *m, struct buf *out) {
  struct err err = {0};
  buf_clear(out);
  if (pass_result_encode(m, out, &err) != RC_OK) fail_msg("%s", err.message);
}

/* The body is copied to memory of exactly its size, unaligned, and gone before *out is looked at. */
static enum rc decode(struct pass_result *out, const void *bytes, size_t len, struct arena *arena, struct err *err) {
  char *exact = malloc(len + 1);
  memcpy(exact + 1, bytes, len);
  const enum rc rc = pass_result_decode(out, exact + 1, len, arena, err);
  memset(exact, 0xff, len + 1);
  free(exact);
  return rc;
}

static void a_result_arrives_bit_for_bit(void **state) {
  (void)state;
  for (int back = 0; back <= 1; back++) {
    struct example x;
    struct pass_result got;
    struct buf bytes = BUF_INIT;
    struct arena arena = ARENA_INIT;
    struct err err = {0};
    struct digest before, after;
    (back ? make_handed_back : make_example)(&x);
    encode(&x.result, &bytes);
    if (decode(&got, bytes.data, bytes.len, &arena, &err) != RC_OK) fail_msg("%s: %s", err.field, err.message);
    pass_result_digest(&before, &x.result);
    pass_result_digest(&after, &got);
    assert_true(digest_equal(&before, &after));
    assert_string_equal(got.worker_id, "w3");
    assert_true(got.epoch == x.result.epoch && got.fence == 2 && got.handed_back == back);
    assert_true(digest_equal(&got.weights_digest, &x.result.weights_digest));
    assert_int_equal(got.sample_count, x.result.sample_count);
    if (back) assert_string_equal(got.refused, "it says \"why\"");
    if (!back) {
      assert_memory_equal(got.samples[0].logprobs.items, x.numbers, 2 * sizeof(float));
      assert_int_equal(got.samples[1].logprobs.count, 0);
      assert_true(signbit(got.samples[2].logprobs.items[0]));
      assert_string_equal(got.samples[2].id, "r7.12.3.2");
    }
    arena_free(&arena);
    buf_free(&bytes);
  }
}

static void its_digest_covers_what_it_says_and_not_who_says_it(void **state) {
  (void)state;
  struct example x;
  struct digest before, after;
  make_example(&x);
  pass_result_digest(&before, &x.result);
  x.result.worker_id = "w4";
  x.result.epoch = x.result.fence = 0;
  pass_result_digest(&after, &x.result);
  assert_true(digest_equal(&before, &after));
#define CHANGES(what)                            \
  do {                                           \
    make_example(&x);                            \
    what;                                        \
    pass_result_digest(&after, &x.result);       \
    assert_false(digest_equal(&before, &after)); \
  } while (0)
  CHANGES(x.numbers[2] = 0.0f);
  CHANGES(x.samples[1].id = "r7.12.3.7");
  CHANGES((x.samples[0].logprobs.count = 1, x.samples[1].logprobs = (struct json_f32s){x.numbers + 1, 1}));
  CHANGES(x.result.weights_digest.bytes[31] ^= 1);
  CHANGES(make_handed_back(&x));
#undef CHANGES
}

#define REFUSED(expected, what)                                                 \
  do {                                                                          \
    struct example x;                                                           \
    struct pass_result got;                                                     \
    struct buf bytes = BUF_INIT;                                                \
    struct arena arena = ARENA_INIT;                                            \
    struct err err = {0};                                                       \
    make_example(&x);                                                           \
    what;                                                                       \
    encode(&x.result, &bytes);                                                  \
    const enum rc rc = decode(&got, bytes.data, bytes.len, &arena, &err);       \
    if (rc != RC_INVALID || strcmp(err.field, expected) != 0)                   \
      fail_msg("expected %s, got %s, %s: %s", expected, rc_name(rc), err.field, err.message); \
    arena_free(&arena);                                                         \
    buf_free(&bytes);                                                           \
  } while (0)

static void a_result_must_add_up(void **state) {
  (void)state;
  REFUSED("samples[0].logprobs", x.numbers[1] = NAN);
  REFUSED("samples[0].logprobs", x.numbers[0] = 0x1p-149f);
  REFUSED("samples[2].logprobs", x.numbers[2] = -INFINITY);
  REFUSED("samples", x.samples[1].id = x.samples[0].id);
  REFUSED("samples", x.result.sample_count = 0);
  REFUSED("samples[1]", x.samples[1].id = "r 7");
  REFUSED("worker_id", x.result.worker_id = "");
  REFUSED("weights_digest", x.result.weights_digest = (struct digest){{0}});
  REFUSED("refused", x.result.refused = "why");
  REFUSED("samples", (make_handed_back(&x), x.result.samples = x.samples, x.result.sample_count = 1));
  REFUSED("weights_digest", (make_handed_back(&x), x.result.weights_digest.bytes[0] = 1));
}

/* Whatever comes, it is refused or a message that encodes again. */
static void bodies_cut_or_changed_anywhere_do_no_harm(void **state) {
  (void)state;
  struct example x;
  struct buf bytes = BUF_INIT;
  size_t taken = 0;
  make_example(&x);
  encode(&x.result, &bytes);
  for (size_t len = 0; len < bytes.len; len++) {
    struct pass_result got;
    struct arena arena = ARENA_INIT;
    struct err err = {0};
    assert_int_equal(decode(&got, bytes.data, len, &arena, &err), RC_INVALID);
    assert_true(strlen(err.message) >= 10);
    arena_free(&arena);
  }
  for (size_t bit = 0; bit < 8 * bytes.len; bit++) {
    struct pass_result got;
    struct arena arena = ARENA_INIT;
    struct buf again = BUF_INIT;
    struct err err = {0};
    bytes.data[bit / 8] ^= (char)(1 << bit % 8);
    const enum rc rc = decode(&got, bytes.data, bytes.len, &arena, &err);
    bytes.data[bit / 8] ^= (char)(1 << bit % 8);
    if (rc == RC_OK) assert_int_equal(pass_result_encode(&got, &again, &err), RC_OK);
    if (rc != RC_OK && (rc == RC_INTERNAL || strlen(err.message) < 10))
      fail_msg("bit %zu: %s %s", bit, rc_name(rc), err.message);
    taken += rc == RC_OK;
    buf_free(&again);
    arena_free(&arena);
  }
  assert_true(taken > 0); /* another log-probability is as good */
  buf_free(&bytes);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_message_reads_back_as_it_was_written),
      cmocka_unit_test(every_spoilt_member_is_refused),
      cmocka_unit_test(what_a_pass_says_is_bounded),
      cmocka_unit_test(a_result_arrives_bit_for_bit),
      cmocka_unit_test(its_digest_covers_what_it_says_and_not_who_says_it),
      cmocka_unit_test(a_result_must_add_up),
      cmocka_unit_test(bodies_cut_or_changed_anywhere_do_no_harm),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
