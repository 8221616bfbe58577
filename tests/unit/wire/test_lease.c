/* Leases and results survive the wire bit for bit; results that do not add up are refused; the digest is of the
 * content, not of its spelling. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/wire/wire_test.h"

MESSAGE_AGAIN(lease_request)
/* An unknown member of a lease is refused by whoever would take the lease. */
static enum rc again_lease_answer(const struct json *body, struct buf *out, struct arena *arena, struct err *err) {
  struct lease_answer m;
  enum rc rc = lease_answer_decode(&m, body, arena, err);
  for (size_t i = 0; rc == RC_OK && i < m.lease_count; i++) rc = lease_known(&m.leases[i], err);
  if (rc == RC_OK) lease_answer_encode(&m, out);
  return rc;
}
MESSAGE_AGAIN(lease_result)
MESSAGE_AGAIN(lease_result_answer)

static const struct message request_message = {
    .name = "lease_request",
    .json = "{\"epoch\":3,\"slots_free\":12,\"wait_ms\":20000,\"loaded_digest\":\"" DIGEST_A "\",\"leases_taken\":7}",
    .again = again_lease_request,
    .optional = {"loaded_digest", "leases_taken"}};
static const struct message answer_message = {
    .name = "lease_answer",
    .json =
        "{\"epoch\":3,\"leases\":[{\"id\":\"r7.12.3.0-3\",\"fence\":2,\"run\":\"r7\",\"group\":\"r7.12.3\",\"purpose\":"
        "\"training\",\"round\":12,\"group_ordinal\":35,"
        "\"sample_first\":1,\"sample_count\":3,\"version_min\":12,\"version_max\":14,\"kv\":\"recompute\","
        "\"weights_digest\":\"" DIGEST_A
        "\",\"temperature\":0.699999988,"
        "\"max_new_tokens\":64,\"stop_token_ids\":[151643,151645],\"seed\":\"12345678901234567890\",\"ttl_ms\":30000,"
        "\"traceparent\":\"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\",\"prompt_ids\":[1,2,3],"
        "\"partials\":[{\"sample\":2,\"token_ids\":[9,8],\"logprobs\":[-1.5,-0.100000001],\"version_spans\":["
        "{\"version\":12,\"start\":0,\"count\":1},{\"version\":14,\"start\":1,\"count\":1,\"fresh\":false}]}]}],"
        "\"current\":{\"run\":\"r7\",\"version\":12,\"digest\":\"" DIGEST_A
        "\",\"trainer_url\":\"http://trainer:8082\"}}",
    .again = again_lease_answer,
    .optional = {"partials", "kv", "version_spans", "fresh", "traceparent"},
    .nullable = {"current"}};
static const struct message endless_message = {
    .name = "lease_answer with ignore_eos",
    .json =
        "{\"epoch\":3,\"leases\":[{\"id\":\"r7.12.3.0-0\",\"fence\":1,\"run\":\"r7\",\"group\":\"r7.12.3\","
        "\"purpose\":\"training\",\"round\":12,\"group_ordinal\":3,\"sample_first\":0,\"sample_count\":1,"
        "\"version_min\":12,\"version_max\":12,\"weights_digest\":\"" DIGEST_A
        "\",\"temperature\":1,\"max_new_tokens\":64,\"stop_token_ids\":[],\"ignore_eos\":true,\"seed\":7,"
        "\"ttl_ms\":30000,\"prompt_ids\":[1],\"partials\":[]}],"
        "\"current\":{\"run\":\"r7\",\"version\":12,\"digest\":\"" DIGEST_A
        "\",\"trainer_url\":\"http://trainer:8082\"}}",
    .again = again_lease_answer,
    .optional = {"partials"},
    .nullable = {"current"}};
static const struct message cut_message = {
    .name = "lease_answer with cuts and stop texts",
    .json =
        "{\"epoch\":3,\"leases\":[{\"id\":\"r7.12.3.0-0\",\"fence\":1,\"run\":\"r7\",\"group\":\"r7.12.3\","
        "\"purpose\":\"training\",\"round\":12,\"group_ordinal\":3,\"sample_first\":0,\"sample_count\":1,"
        "\"version_min\":12,\"version_max\":12,\"weights_digest\":\"" DIGEST_A
        "\",\"temperature\":1,\"top_k\":40,\"top_p\":0.95,\"min_p\":0.02,\"max_new_tokens\":64,"
        "\"stop_token_ids\":[5],\"stop\":[\"</answer>\",\"\\n\\n\"],\"seed\":7,\"ttl_ms\":30000,\"prompt_ids\":[1],"
        "\"partials\":[]}],\"current\":{\"run\":\"r7\",\"version\":12,\"digest\":\"" DIGEST_A
        "\",\"trainer_url\":\"http://trainer:8082\"}}",
    .again = again_lease_answer,
    .optional = {"partials", "top_k", "top_p", "min_p", "stop"},
    .nullable = {"current"}};
static const struct message result_message = {
    .name = "lease_result",
    .json = "{\"worker_id\":\"w3\",\"epoch\":3,\"fence\":2,\"loaded_digest\":\"" DIGEST_A
            "\",\"handed_back\":false,\"samples\":["
            "{\"sample\":0,\"token_ids\":[5,6,7],\"logprobs\":[-0.5,-0.25,-0.125],\"finish_reason\":\"stop\","
            "\"segments\":[{\"start\":0,\"count\":2,\"loss_mask\":true},{\"start\":2,\"count\":1,\"loss_mask\":false}],"
            "\"version_spans\":[{\"version\":4,\"start\":0,\"count\":1},{\"version\":5,\"start\":1,\"count\":2}]},"
            "{\"sample\":1,\"token_ids\":[],\"logprobs\":[],\"finish_reason\":\"abort\",\"segments\":[],\"version_"
            "spans\":[]}]}",
    .again = again_lease_result};
static const struct message stale_message = {
    .name = "lease_result with kept keys and values",
    .json = "{\"worker_id\":\"w3\",\"epoch\":3,\"fence\":2,\"loaded_digest\":\"" DIGEST_A
            "\",\"handed_back\":false,\"samples\":["
            "{\"sample\":0,\"token_ids\":[5,6,7],\"logprobs\":[-0.5,-0.25,-0.125],\"finish_reason\":\"stop\","
            "\"segments\":[{\"start\":0,\"count\":3,\"loss_mask\":true}],"
            "\"version_spans\":[{\"version\":4,\"start\":0,\"count\":1},{\"version\":5,\"start\":1,\"count\":1,"
            "\"fresh\":false},{\"version\":5,\"start\":2,\"count\":1}]}]}",
    .again = again_lease_result,
    .optional = {"fresh"}};
static const struct message result_answer_message = {
    .name = "lease_result_answer", .json = "{\"repeated\":true}", .again = again_lease_result_answer};

static const struct message *const all[] = {&request_message, &answer_message, &endless_message, &cut_message,
                                            &result_message,  &stale_message,  &result_answer_message};

static void every_message_reads_back_as_it_was_written(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) message_check_round_trip(all[i]);
}

static void every_spoilt_member_is_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) message_check_spoilt(all[i]);
}

static void cuts_and_stop_texts_are_bounded(void **state) {
  (void)state;
  const struct message *m = &cut_message;
  message_check_refused(m, "\"top_k\":40", "\"top_k\":-1", "leases[0].top_k");
  message_check_refused(m, "\"top_p\":0.95", "\"top_p\":0", "leases[0].top_p");
  message_check_refused(m, "\"top_p\":0.95", "\"top_p\":1.5", "leases[0].top_p");
  message_check_refused(m, "\"min_p\":0.02", "\"min_p\":1.5", "leases[0].min_p");
  message_check_refused(m, "[\"</answer>\",", "[\"\",", "leases[0].stop");
  message_check_refused(m, "[\"</answer>\",", "[7,", "leases[0].stop");
  message_check_refused(m, "[\"</answer>\",", "[\"a\",\"b\",\"c\",\"d\",", "leases[0].stop");
}

static void a_lease_says_what_can_be_sampled(void **state) {
  (void)state;
  const struct message *m = &answer_message;
  message_check_refused(m, "0.699999988", "0", "leases[0].temperature");
  message_check_refused(m, "0.699999988", "-1", "leases[0].temperature");
  message_check_refused(m, "0.699999988", "1e-60", "leases[0].temperature"); /* 0 as a float32 */
  message_check_accepted(m, "\"purpose\":\"training\"", "\"purpose\":\"evaluation\"");
  message_check_refused(m, "\"training\"", "\"testing\"", "leases[0].purpose");
  message_check_refused(m, "\"version_min\":12", "\"version_min\":15", "leases[0].version_max");
  message_check_refused(m, "\"sample_first\":1", "\"sample_first\":1022", "leases[0].sample_count");
  message_check_refused(m, "\"sample_count\":3", "\"sample_count\":0", "leases[0].sample_count");
  message_check_refused(m, "\"prompt_ids\":[1,2,3]", "\"prompt_ids\":[]", "leases[0].prompt_ids");
  message_check_refused(m, "\"prompt_ids\":[1,2,3]", "\"prompt_ids\":[1,-2]", "leases[0].prompt_ids[1]");
  message_check_refused(m, "\"prompt_ids\":[1,2,3]", "\"prompt_ids\":[1048576]", "leases[0].prompt_ids[0]");
  message_check_refused(m, "[151643,151645]", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]",
                        "leases[0].stop_token_ids");
  message_check_refused(m, "[151643,151645]", "[]", "leases[0].ignore_eos"); /* without a word about it */
  message_check_refused(m, "[151643,151645]", "[151643],\"ignore_eos\":true", "leases[0].ignore_eos");
  message_check_accepted(m, "[151643,151645]", "[],\"ignore_eos\":true");
  message_check_accepted(m, "[151643,151645]", "[151643],\"ignore_eos\":false");
  message_check_refused(m, "\"max_new_tokens\":64", "\"max_new_tokens\":131073", "leases[0].max_new_tokens");
  message_check_refused(m, "\"max_new_tokens\":64", "\"max_new_tokens\":1",
                        "leases[0].partials");                                    /* a partial longer than that */
  message_check_refused(m, "\"sample\":2", "\"sample\":0", "leases[0].partials"); /* outside the lease */
  message_check_refused(m, "\"sample\":2", "\"sample\":4", "leases[0].partials");
  message_check_refused(m, "[-1.5,", "[", "leases[0].partials[0].logprobs");
  message_check_refused(m, "\"ttl_ms\":30000", "\"ttl_ms\":0", "leases[0].ttl_ms");
  message_check_refused(&request_message, "\"slots_free\":12", "\"slots_free\":0", "slots_free");
  message_check_refused(&request_message, "20000", "60001", "wait_ms");
  message_check_refused(&request_message, "\"leases_taken\":7", "\"leases_taken\":-1", "leases_taken");
}

static void a_lease_says_which_versions_drew_the_tokens_that_it_continues(void **state) {
  (void)state;
  const struct message *m = &answer_message;
  message_check_refused(m, "\"recompute\"", "\"forget\"", "leases[0].kv");
  message_check_accepted(m, "\"kv\":\"recompute\",", "\"kv\":\"keep\",");
  message_check_refused(m, "\"version\":12,\"start\":0,\"count\":1", "\"version\":12,\"start\":0,\"count\":2",
                        "leases[0].partials[0].version_spans"); /* the next begins within it */
  message_check_refused(m, "\"start\":1,\"count\":1", "\"start\":1,\"count\":2", "leases[0].partials[0].version_spans");
  message_check_refused(m, ",{\"version\":14,\"start\":1,\"count\":1,\"fresh\":false}", "",
                        "leases[0].partials[0].version_spans"); /* too short */
  message_check_refused(
      m, "{\"version\":12,\"start\":0,\"count\":1},{\"version\":14,\"start\":1,\"count\":1,\"fresh\":false}", "",
      "leases[0].partials[0].version_spans");
  message_check_refused(m, "\"version\":14,\"start\":1", "\"version\":11,\"start\":1",
                        "leases[0].partials[0].version_spans"); /* versions never fall */
  message_check_refused(m, "\"version\":12,\"start\":0", "\"version\":11,\"start\":0",
                        "leases[0].partials"); /* older than the lease is valid for */
  message_check_refused(m, "\"version\":14,\"start\":1", "\"version\":15,\"start\":1", "leases[0].partials");
  message_check_refused(m, "\"fresh\":false", "\"fresh\":0", "leases[0].partials[0].version_spans[1].fresh");
}

/* Of a newer coordinator: the worker must be able to say so, with the lease's id and fence. */
static void an_unknown_member_makes_one_lease_unknown_and_spoils_no_other(void **state) {
  (void)state;
  struct buf text = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct lease_answer m;
  struct json *body = NULL;
  const char *const from = strstr(cut_message.json, "{\"id\""), *const to = strstr(from, "}],\"current\"");
  buf_append(&text, cut_message.json, (size_t)(to - cut_message.json));
  buf_puts(&text, ",\"penalty\":{\"of\":[1]}},");
  buf_puts(&text, from);
  assert_int_equal(json_parse(&body, text.data, text.len, 0, &err), RC_OK);
  assert_int_equal(lease_answer_decode(&m, body, &arena, &err), RC_OK);
  assert_int_equal(m.lease_count, 2);
  assert_string_equal(m.leases[0].unknown, "penalty");
  assert_string_equal(m.leases[0].id, "r7.12.3.0-0");
  assert_int_equal(m.leases[0].fence, 1);
  assert_int_equal(m.leases[0].sample_count, 1);
  assert_int_equal(lease_known(&m.leases[0], &err), RC_INVALID);
  assert_non_null(strstr(err.message, "'penalty'"));
  assert_non_null(strstr(err.message, "an earlier version than the coordinator"));
  assert_null(m.leases[1].unknown);
  assert_int_equal(lease_known(&m.leases[1], &err), RC_OK);
  json_free(body);
  arena_free(&arena);
  buf_free(&text);
  message_check_refused(&cut_message, "\"top_k\":40", "\"top_k\":0.5,\"penalty\":1", "leases[0].top_k");
}

static void an_evaluation_lease_may_be_greedy(void **state) {
  (void)state;
  struct lease l = {.id = "e",
                    .run = "r",
                    .group = "g",
                    .purpose = LEASE_EVALUATION,
                    .sample_count = 1,
                    .max_new_tokens = 1,
                    .ignore_eos = true,
                    .ttl_ms = 1};
  l.prompt_ids = (struct json_i32s){(int32_t[]){1}, 1};
  struct buf out = BUF_INIT;
  struct err err = {0};
  lease_answer_encode(&(struct lease_answer){.leases = &l, .lease_count = 1}, &out);
  assert_int_equal(message_try(&answer_message, out.data, out.len, NULL, &err), RC_OK);
  buf_free(&out);
}

static void a_result_must_add_up(void **state) {
  (void)state;
  const struct message *m = &result_message;
  message_check_refused(m, "[5,6,7]", "[5,6]", "samples[0].logprobs");
  message_check_refused(m, "-0.25", "0.25", "samples[0].logprobs[1]"); /* a log-probability above 0 */
  message_check_refused(m, "-0.25", "-1e999", NULL);
  message_check_refused(m, "-0.25", "-1e39", "samples[0].logprobs[1]"); /* infinite as a float32 */
  message_check_refused(m, "-0.25", "NaN", NULL);
  message_check_accepted(m, "-0.25", "0");
  message_check_refused(m, "[5,6,7]", "[5,6,1048576]", "samples[0].token_ids[2]");
  message_check_refused(m, "\"stop\"", "\"eos\"", "samples[0].finish_reason");
  message_check_refused(m, "\"abort\"", "\"stop\"", "samples[1].token_ids"); /* nothing sampled, yet finished */
  message_check_refused(m, "\"sample\":1", "\"sample\":0", "samples");
  message_check_refused(m, "\"sample\":1", "\"sample\":1024", "samples[1].sample");
}

static void segments_and_spans_cover_the_tokens_exactly(void **state) {
  (void)state;
  const struct message *m = &result_message;
  message_check_refused(m, "\"start\":2,\"count\":1,\"loss", "\"start\":1,\"count\":2,\"loss",
                        "samples[0].segments"); /* overlap */
  message_check_refused(m, "\"start\":2,\"count\":1,\"loss", "\"start\":1,\"count\":1,\"loss",
                        "samples[0].segments"); /* the counts add up, the starts do not */
  message_check_refused(m, "\"version\":5,\"start\":1,\"count\":2", "\"version\":5,\"start\":0,\"count\":2",
                        "samples[0].version_spans");
  message_check_refused(m, "\"start\":0,\"count\":2,\"loss", "\"start\":0,\"count\":1,\"loss",
                        "samples[0].segments"); /* gap */
  message_check_refused(m, "\"start\":2,\"count\":1,\"loss", "\"start\":2,\"count\":2,\"loss",
                        "samples[0].segments");                                                          /* too long */
  message_check_refused(m, ",{\"start\":2,\"count\":1,\"loss_mask\":false}", "", "samples[0].segments"); /* too short */
  message_check_refused(m, "\"start\":2,\"count\":1,\"loss", "\"start\":2,\"count\":0,\"loss",
                        "samples[0].segments[1].count");
  message_check_refused(m, "\"segments\":[]", "\"segments\":[{\"start\":0,\"count\":1,\"loss_mask\":true}]",
                        "samples[1].segments");
  message_check_refused(m, "\"start\":1,\"count\":2}", "\"start\":2,\"count\":1}", "samples[0].version_spans");
  message_check_refused(m, "\"start\":1,\"count\":2}", "\"start\":1,\"count\":1}", "samples[0].version_spans");
  message_check_refused(m, "\"start\":1,\"count\":2}", "\"start\":1,\"count\":3}", "samples[0].version_spans");
  message_check_refused(m, "\"version\":4", "\"version\":6", "samples[0].version_spans"); /* versions never fall */
  message_check_refused(m, "{\"version\":4,\"start\":0,\"count\":1},{\"version\":5,\"start\":1,\"count\":2}", "",
                        "samples[0].version_spans");
}

/* One sample of n tokens with the given log-probabilities. */
static struct sample_result sample_of(int32_t *tokens, float *logprobs, size_t n, struct sample_segment *segment,
                                      struct version_span *span) {
  *segment = (struct sample_segment){0, (int32_t)n, true};
  *span = (struct version_span){7, 0, (int32_t)n, true};
  return (struct sample_result){.token_ids = {tokens, n},
                                .logprobs = {logprobs, n},
                                .finish = FINISH_LENGTH,
                                .segments = segment,
                                .segment_count = 1,
                                .spans = span,
                                .span_count = 1};
}

static enum rc through_the_wire(struct sample_result *s, struct lease_result *m, struct arena *arena, struct err *err) {
  struct lease_result in = {.worker_id = "w1", .samples = s, .sample_count = 1};
  struct buf out = BUF_INIT;
  struct json *root = NULL;
  lease_result_encode(&in, &out);
  enum rc rc = buf_check(&out, err);
  if (rc == RC_OK) rc = json_parse(&root, out.data, out.len, LIMIT_BATCH_BODY_BYTES, err);
  if (rc == RC_OK) rc = lease_result_decode(m, root, arena, err);
  json_free(root);
  buf_free(&out);
  return rc;
}

static void log_probabilities_keep_every_bit(void **state) {
  (void)state;
  enum { N = 100000 };
  int32_t *tokens = calloc(N, sizeof *tokens);
  float *logprobs = calloc(N, sizeof *logprobs);
  const float edges[] = {-0.0f,        0.0f,  -FLT_MIN, -FLT_TRUE_MIN, -FLT_MAX,
                         -FLT_EPSILON, -1.0f, -0.1f,    -16777217.0f,  -8.58993459e9f};
  uint64_t x = 88172645463325252u;
  for (int i = 0; i < N; i++) {
    x ^= x << 13, x ^= x >> 7, x ^= x << 17;
    uint32_t bits = (uint32_t)x | 0x80000000u;
    memcpy(&logprobs[i], &bits, sizeof bits);
    if (i % 2 || !isfinite(logprobs[i])) logprobs[i] = -(float)(x >> 40) * 0x1p-20f; /* the usual range */
    if (i < (int)(sizeof edges / sizeof *edges)) logprobs[i] = edges[i];
    tokens[i] = (int32_t)(x % LIMIT_VOCABULARY);
  }
  struct sample_segment segment;
  struct version_span span;
  struct sample_result s = sample_of(tokens, logprobs, N, &segment, &span);
  struct arena arena = ARENA_INIT;
  struct lease_result m;
  struct err err = {0};
  if (through_the_wire(&s, &m, &arena, &err) != RC_OK) fail_msg("%s: %s", err.field, err.message);
  assert_int_equal(m.samples[0].token_ids.count, N);
  assert_memory_equal(m.samples[0].token_ids.items, tokens, N * sizeof *tokens);
  assert_memory_equal(m.samples[0].logprobs.items, logprobs, N * sizeof *logprobs);
  struct digest a, b;
  sample_result_digest(&a, &s);
  sample_result_digest(&b, &m.samples[0]);
  assert_true(digest_equal(&a, &b));
  arena_free(&arena);
  free(tokens);
  free(logprobs);
}

static void too_many_tokens_or_samples_are_refused(void **state) {
  (void)state;
  const size_t n = LIMIT_NEW_TOKENS + 1;
  int32_t *tokens = calloc(n, sizeof *tokens);
  float *logprobs = calloc(n, sizeof *logprobs);
  struct sample_segment segment;
  struct version_span span;
  struct sample_result s = sample_of(tokens, logprobs, n, &segment, &span);
  struct arena arena = ARENA_INIT;
  struct lease_result m;
  struct err err = {0};
  assert_int_equal(through_the_wire(&s, &m, &arena, &err), RC_INVALID);
  assert_string_equal(err.field, "samples[0].token_ids");
  s = sample_of(tokens, logprobs, n - 1, &segment, &span);
  assert_int_equal(through_the_wire(&s, &m, &arena, &err), RC_OK);
  struct sample_result *many = calloc(LIMIT_SAMPLES_PER_GROUP + 1, sizeof *many);
  for (int i = 0; i <= LIMIT_SAMPLES_PER_GROUP; i++)
    many[i] = (struct sample_result){.sample = i, .finish = FINISH_ABORT};
  struct lease_result in = {.worker_id = "w1", .samples = many, .sample_count = LIMIT_SAMPLES_PER_GROUP + 1};
  struct buf out = BUF_INIT;
  lease_result_encode(&in, &out);
  assert_int_equal(message_try(&result_message, out.data, out.len, NULL, &err), RC_INVALID);
  assert_string_equal(err.field, "samples");
  buf_free(&out);
  free(many);
  free(tokens);
  free(logprobs);
  arena_free(&arena);
}

static void digest_of_first(struct digest *out, const char *text) {
  struct arena arena = ARENA_INIT;
  struct json *root;
  struct lease_result m;
  struct err err = {0};
  if (json_parse(&root, text, strlen(text), 0, &err) != RC_OK || lease_result_decode(&m, root, &arena, &err) != RC_OK)
    fail_msg("%s: %s", err.field, err.message);
  sample_result_digest(out, &m.samples[0]);
  json_free(root);
  arena_free(&arena);
}

static void equal_content_has_the_recorded_digest_however_it_is_spelled(void **state) {
  (void)state;
  struct digest d;
  char hex[DIGEST_HEX_MAX];
  /* recomputed with another implementation of SHA-256 from the canonical bytes */
  static const char recorded[] = "370b4803619f8e3a0d7ace2c85b11057ce7bddd4e78314e3201f103ad01916ae";
  digest_of_first(&d, result_message.json);
  digest_hex(hex, &d);
  assert_string_equal(hex, recorded);
  digest_of_first(&d,
                  "{\"samples\":[{\"version_spans\":[{\"count\":1,\"start\":0,\"version\":4},{\"version\":5,\"start\":"
                  "1,\"count\":1},{\"version\":5,\"start\":2,\"count\":1}],"
                  "\"segments\":[{\"start\":0,\"count\":1,\"loss_mask\":true},{\"start\":1,\"count\":1,\"loss_mask\":"
                  "true},{\"start\":2,\"count\":1,\"loss_mask\":false}],"
                  "\"finish_reason\":\"st\\u006fp\",\"logprobs\":[-5e-1, -0.2500000, -12.5E-2],\"token_ids\":[5 ,6, "
                  "7],\"sample\":0}],\n"
                  "\"handed_back\":false,\"loaded_digest\":\"" DIGEST_A
                  "\",\"fence\":9,\"epoch\":8,\"worker_id\":\"w9\"}");
  digest_hex(hex, &d);
  assert_string_equal(hex, recorded);
}

/* Tokens that attended to an older version's keys and values are other content than fresh ones. */
static void kept_keys_and_values_show_in_the_digest(void **state) {
  (void)state;
  struct digest kept, fresh, split;
  char hex[DIGEST_HEX_MAX];
  digest_of_first(&kept, stale_message.json);
  digest_hex(hex, &kept);
  /* recomputed with another implementation of SHA-256 from the canonical bytes */
  assert_string_equal(hex, "797d6fc0ae064cc30e806086ab26d9abb4122f17e8b8744c06d091fe139aeae5");
  char *all_fresh = message_replaced(stale_message.json, ",\"fresh\":false", "");
  digest_of_first(&fresh, all_fresh);
  free(all_fresh);
  char *joined = message_replaced(
      stale_message.json, "\"count\":1,\"fresh\":false},{\"version\":5,\"start\":2,\"count\":1}", "\"count\":2}");
  digest_of_first(&split, joined);
  free(joined);
  assert_true(digest_equal(&fresh, &split)); /* neighbours of one version that are equally fresh are one span */
  assert_false(digest_equal(&kept, &fresh));
}

static void any_change_of_content_changes_the_digest(void **state) {
  (void)state;
  static const char *const changes[][2] = {
      {"[5,6,7]", "[5,6,8]"},
      {"[5,6,7]", "[6,5,7]"},
      {"-0.25", "-0.25000003"},
      {"\"stop\"", "\"length\""},
      {"\"start\":0,\"count\":2,\"loss_mask\":true", "\"start\":0,\"count\":2,\"loss_mask\":false"},
      {"{\"start\":0,\"count\":2,\"loss_mask\":true},{\"start\":2,\"count\":1",
       "{\"start\":0,\"count\":1,\"loss_mask\":true},{\"start\":1,\"count\":2"},
      {"\"version\":4", "\"version\":5"},
      {"\"version\":5", "\"version\":6"},
      {"{\"version\":4,\"start\":0,\"count\":1},{\"version\":5,\"start\":1,\"count\":2}",
       "{\"version\":4,\"start\":0,\"count\":2},{\"version\":5,\"start\":2,\"count\":1}"},
  };
  enum { N = sizeof changes / sizeof *changes };
  struct digest digests[N + 1];
  digest_of_first(&digests[N], result_message.json);
  for (int i = 0; i < N; i++) {
    char *text = message_replaced(result_message.json, changes[i][0], changes[i][1]);
    digest_of_first(&digests[i], text);
    free(text);
  }
  for (int i = 0; i <= N; i++)
    for (int k = 0; k < i; k++)
      if (digest_equal(&digests[i], &digests[k])) fail_msg("changes %d and %d have one digest", i, k);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(every_message_reads_back_as_it_was_written),
      cmocka_unit_test(every_spoilt_member_is_refused),
      cmocka_unit_test(cuts_and_stop_texts_are_bounded),
      cmocka_unit_test(a_lease_says_what_can_be_sampled),
      cmocka_unit_test(a_lease_says_which_versions_drew_the_tokens_that_it_continues),
      cmocka_unit_test(an_unknown_member_makes_one_lease_unknown_and_spoils_no_other),
      cmocka_unit_test(an_evaluation_lease_may_be_greedy),
      cmocka_unit_test(a_result_must_add_up),
      cmocka_unit_test(segments_and_spans_cover_the_tokens_exactly),
      cmocka_unit_test(log_probabilities_keep_every_bit),
      cmocka_unit_test(too_many_tokens_or_samples_are_refused),
      cmocka_unit_test(equal_content_has_the_recorded_digest_however_it_is_spelled),
      cmocka_unit_test(kept_keys_and_values_show_in_the_digest),
      cmocka_unit_test(any_change_of_content_changes_the_digest),
  };
  return cmocka_run_group_tests_name("wire: lease", tests, NULL, NULL);
}
