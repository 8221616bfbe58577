/* The wires of vLLM and SGLang: what is asked for leaves nothing to the engine's defaults, answers are read, and none
 * that makes no sense is taken for a sample. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "services/rollout-agent/engine/wires.h"

static int32_t prompt[] = {5, 6, 7}, stops[] = {3, 4};
static const struct engine_request request = {.id = "r1.0.0-2-1",
                                              .token_ids = {prompt, 3},
                                              .max_new_tokens = 4,
                                              .temperature = 0.7f,
                                              .stop_token_ids = {stops, 2}};

static void asks(const struct engine_wire *wire, const struct engine_request *r, const char *expected) {
  struct buf out = BUF_INIT;
  wire->write_generate(&out, r);
  assert_string_equal(out.data, expected);
  buf_free(&out);
}

#define PLAIN                                                                                                         \
  "\"temperature\":0.699999988,\"top_p\":1,\"top_k\":-1,\"min_p\":0,\"repetition_penalty\":1,\"presence_penalty\":0," \
  "\"frequency_penalty\":0,"

static void requests_say_everything_that_shapes_the_distribution(void **state) {
  (void)state;
  struct engine_request r = request;
  asks(&engine_sglang, &r,
       "{\"rid\":\"r1.0.0-2-1\",\"input_ids\":[5,6,7],\"return_logprob\":true,\"stream\":false,\"sampling_params\":{"
       "\"n\":1,"
       "\"max_new_tokens\":4," PLAIN "\"stop_token_ids\":[3,4],\"ignore_eos\":false}}");
  r.stop_token_ids.count = 0;
  r.model = "m";
  asks(&engine_vllm, &r,
       "{\"request_id\":\"r1.0.0-2-1\",\"model\":\"m\",\"token_ids\":[5,6,7],\"stream\":false,\"sampling_params\":{"
       "\"n\":1,"
       "\"max_tokens\":4," PLAIN "\"stop_token_ids\":[],\"ignore_eos\":true,\"logprobs\":1,\"detokenize\":false}}");
  struct buf out = BUF_INIT;
  asks(&engine_sglang, &r,
       "{\"rid\":\"r1.0.0-2-1\",\"input_ids\":[5,6,7],\"return_logprob\":true,\"stream\":false,\"sampling_params\":{"
       "\"n\":1,"
       "\"max_new_tokens\":4," PLAIN "\"stop_token_ids\":[],\"ignore_eos\":true}}");
  engine_call_body(&out, &engine_sglang.load[0], "/v/a \"b\"", "r1.v2");
  assert_string_equal(out.data,
                      "{\"model_path\":\"/v/a \\\"b\\\"\",\"weight_version\":\"r1.v2\",\"flush_cache\":true,"
                      "\"abort_all_requests\":false}");
  buf_free(&out);
}

/* The answer, checked; its memory is the arena's. */
static enum rc reads(const struct engine_wire *wire, const char *text, struct engine_answer *a, struct arena *arena,
                     struct err *err) {
  struct json *root;
  if (json_parse(&root, text, strlen(text), 0, err) != RC_OK) fail_msg("%s", err->message);
  enum rc rc = wire->read_generate(a, root, arena, err);
  if (rc == RC_OK) rc = engine_answer_check(a, &request, err);
  json_free(root);
  return rc;
}

#define VLLM(ids, content, finish, more)                                                                               \
  "{\"request_id\":\"x\",\"choices\":[{\"index\":0,\"token_ids\":" ids ",\"logprobs\":{\"content\":" content "}," more \
  "\"finish_reason\":\"" finish "\"}]}"
#define SGLANG(ids, pairs, finish, more)                                                               \
  "{\"text\":\"\",\"output_ids\":" ids ",\"meta_info\":{" more "\"finish_reason\":{\"type\":\"" finish \
  "\"},\"output_token_logprobs\":" pairs "}}"

static void answers_are_read(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct engine_answer a;
  struct err err = {0};
  assert_int_equal(reads(&engine_vllm,
                         VLLM("[9,3]", "[{\"token\":\"t\",\"logprob\":-0.25},{\"logprob\":0}]", "stop",
                              "\"weight_versions\":[{\"version\":\"v7\",\"start\":0,\"end\":1},{\"version\":\"v7\","
                              "\"start\":1,\"end\":2}],"),
                         &a, &arena, &err),
                   RC_OK);
  assert_true(a.token_ids.count == 2 && a.token_ids.items[1] == 3 && a.logprobs.items[0] == -0.25f);
  assert_true(a.finish == FINISH_STOP && strcmp(a.version, "v7") == 0);
  assert_int_equal(reads(&engine_sglang,
                         SGLANG("[9,8,9,8]", "[[-0.25,9,null],[-1,8,\"x\"],[-0.5,9,null],[-2,8,null]]", "length",
                                "\"weight_version\":12,"),
                         &a, &arena, &err),
                   RC_OK);
  assert_true(a.token_ids.count == 4 && a.logprobs.items[3] == -2 && a.finish == FINISH_LENGTH);
  assert_string_equal(a.version, "12");
  assert_int_equal(reads(&engine_sglang,
                         SGLANG("[3]", "[[-0.5,3,null]]", "stop",
                                "\"weight_version\":\"v8\",\"weight_versions\":[{\"version\":\"v7\",\"start\":0,"
                                "\"end\":1}],"),
                         &a, &arena, &err),
                   RC_OK);
  assert_string_equal(a.version, "v7"); /* of its token; the other is what the engine has when it answers */
  arena_free(&arena);
}

static void several_versions_are_none_that_was_asked_for(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct engine_answer a;
  struct err err = {0};
  reads(&engine_vllm,
        VLLM("[9,3]", "[{\"logprob\":-1},{\"logprob\":-1}]", "stop",
             "\"weight_versions\":[{\"version\":\"v7\"},{\"version\":\"v8\"}],"),
        &a, &arena, &err);
  assert_string_equal(a.version, "several");
  reads(&engine_sglang,
        SGLANG("[9,3]", "[[-1,9,null],[-1,3,null]]", "stop",
               "\"weight_version\":\"v8\",\"weight_versions\":[{\"version\":\"v7\"},{\"version\":\"v8\"}],"),
        &a, &arena, &err);
  assert_string_equal(a.version, "several");
  arena_free(&arena);
}

static void answers_that_make_no_sense_are_no_samples(void **state) {
  (void)state;
  static const struct {
    const char *text, *field;
    enum rc rc;
  } wrong[] = {
      {SGLANG("[9]", "[[-1,9,null]]", "stop", ""), "finish_reason", RC_INVALID}, /* no stop token */
      {SGLANG("[9,3]", "[[-1,9,null],[-1,3,null]]", "length", ""), "finish_reason", RC_INVALID},
      {SGLANG("[9,8]", "[[-1,9,null],[-1,8,null]]", "length", ""), "finish_reason", RC_INVALID}, /* too early */
      {SGLANG("[9,8,9,8,9]", "[[-1,9,null],[-1,8,null],[-1,9,null],[-1,8,null],[-1,9,null]]", "length", ""),
       "token_ids", RC_INVALID},
      {SGLANG("[3,3]", "[[-1,3,null],[-1,3,null]]", "stop", ""), "token_ids",
       RC_INVALID}, /* it went on behind a stop */
      {SGLANG("[9,3]", "[[-1,9,null]]", "stop", ""), "token_ids", RC_INVALID},
      {SGLANG("[9,3]", "[[-1,9,null],[-1,4,null]]", "stop", ""), "meta_info.output_token_logprobs",
       RC_INVALID}, /* of another token */
      {SGLANG("[9,3]", "[[-1,9,null],[null,3,null]]", "stop", ""), "meta_info.output_token_logprobs", RC_INVALID},
      {SGLANG("[9,3]", "[[-1,9,null],[0.1,3,null]]", "stop", ""), "logprobs", RC_INVALID},
      {SGLANG("[9,3]", "null", "stop", ""), "meta_info.output_token_logprobs", RC_INVALID},
      {SGLANG("[9]", "{\"0\":[-1,9]}", "stop", ""), "meta_info.output_token_logprobs", RC_INVALID},
      {SGLANG("[9]", "[{\"logprob\":-1,\"token_id\":9}]", "stop", ""), "meta_info.output_token_logprobs", RC_INVALID},
      {SGLANG("[9]", "[7]", "stop", ""), "meta_info.output_token_logprobs", RC_INVALID},
      {SGLANG("[]", "[]", "stop", ""), "token_ids", RC_INVALID},
      {SGLANG("[9]", "[[-1,9,null]]", "abort", ""), "finish_reason", RC_UNAVAILABLE},
      {SGLANG("[-9]", "[[-1,-9,null]]", "abort", ""), "output_ids[0]", RC_INVALID},
      {"[]", "", RC_INVALID},
      {"{\"output_ids\":[9]}", "meta_info", RC_INVALID},
  };
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct arena arena = ARENA_INIT;
    struct engine_answer a;
    struct err err = {0};
    const enum rc rc = reads(&engine_sglang, wrong[i].text, &a, &arena, &err);
    if (rc != wrong[i].rc || strcmp(err.field, wrong[i].field) != 0)
      fail_msg("%s: %d, '%s': %s", wrong[i].text, rc, err.field, err.message);
    arena_free(&arena);
  }
  static const char *const vllm[] = {"{}",
                                     "{\"choices\":[]}",
                                     "{\"choices\":[1]}",
                                     "{\"choices\":{\"0\":{\"token_ids\":[3]}}}",
                                     "{\"choices\":\"one\"}",
                                     "{\"choices\":[{\"token_ids\":[3]}]}",
                                     VLLM("[3]", "[]", "stop", ""),
                                     VLLM("[3]", "[{}]", "stop", ""),
                                     VLLM("[3]", "[7]", "stop", ""),
                                     VLLM("[3]", "{\"0\":{\"logprob\":-1}}", "stop", ""),
                                     VLLM("[3]", "[{\"logprob\":null}]", "stop", ""),
                                     VLLM("[3]", "[{\"logprob\":-1},{\"logprob\":-1}]", "stop", ""),
                                     VLLM("null", "[]", "stop", "")};
  for (size_t i = 0; i < sizeof vllm / sizeof vllm[0]; i++) {
    struct arena arena = ARENA_INIT;
    struct engine_answer a;
    struct err err = {0};
    if (reads(&engine_vllm, vllm[i], &a, &arena, &err) != RC_INVALID) fail_msg("%s", vllm[i]);
    arena_free(&arena);
  }
}

static enum rc sums(const struct engine_wire *wire, const char *text, struct digest *out) {
  struct json *root;
  struct err err = {0};
  assert_int_equal(json_parse(&root, text, strlen(text), 0, &err), RC_OK);
  const enum rc rc = wire->read_checksum(out, root, &err);
  json_free(root);
  return rc;
}

static void checksums_do_not_depend_on_the_order_of_tensors(void **state) {
  (void)state;
  struct digest a, b;
  assert_int_equal(sums(&engine_vllm, "{\"checksums\":{\"x\":\"01\",\"y\":\"02\"}}", &a), RC_OK);
  assert_int_equal(sums(&engine_vllm, "{\"checksums\":{\"y\":\"02\",\"x\":\"01\"},\"engines\":[]}", &b), RC_OK);
  assert_true(digest_equal(&a, &b));
  assert_int_equal(sums(&engine_vllm, "{\"checksums\":{\"y\":\"01\",\"x\":\"02\"}}", &b), RC_OK);
  assert_false(digest_equal(&a, &b));
  assert_int_equal(sums(&engine_vllm, "{\"checksums\":{}}", &b), RC_INVALID);
  assert_int_equal(sums(&engine_vllm, "{\"checksums\":{\"x\":1}}", &b), RC_INVALID);
  assert_int_equal(sums(&engine_sglang, "{\"success\":true,\"per_engine_checksum\":\"aa\"}", &a), RC_OK);
  assert_int_equal(sums(&engine_sglang, "{\"success\":true,\"per_engine_checksum\":\"ab\"}", &b), RC_OK);
  assert_false(digest_equal(&a, &b));
  assert_int_equal(sums(&engine_sglang, "{\"success\":true}", &b), RC_INVALID);
}

static void a_wire_is_found_by_its_name(void **state) {
  (void)state;
  assert_ptr_equal(engine_wire_named("vllm"), &engine_vllm);
  assert_ptr_equal(engine_wire_named("sglang"), &engine_sglang);
  assert_null(engine_wire_named("tgi"));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(requests_say_everything_that_shapes_the_distribution),
      cmocka_unit_test(answers_are_read),
      cmocka_unit_test(several_versions_are_none_that_was_asked_for),
      cmocka_unit_test(answers_that_make_no_sense_are_no_samples),
      cmocka_unit_test(checksums_do_not_depend_on_the_order_of_tensors),
      cmocka_unit_test(a_wire_is_found_by_its_name),
  };
  return cmocka_run_group_tests_name("rollout-agent/wires", tests, NULL, NULL);
}
