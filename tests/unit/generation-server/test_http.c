/* A standalone server over real HTTP: generate, completions, push-weights, health, and everything that they refuse. */
#include "tests/unit/generation-server/server_test.h"

static struct server *server; /* made once: pushes change its version, which no other test looks at */

static int group_setup(void **state) {
  (void)state;
  const struct server_options options = server_options_of(MODEL_DIR, "");
  server = start_server(&options);
  return 0;
}

static int group_teardown(void **state) {
  (void)state;
  server_stop(server);
  return 0;
}

static void generate_answers_in_the_known_shape(void **state) {
  (void)state;
  int status;
  char *one = call_json(server, "POST", "/v1/generate",
                        "{\"input_ids\":[1,2,3],\"sampling_params\":{\"max_new_tokens\":4,\"seed\":5,\"ignore_eos\":"
                        "true},\"return_logprob\":true}",
                        &status);
  assert_int_equal(status, 200);
  assert_int_equal(one[0], '{');
  static const char *const parts[] = {"\"output_ids\":[",
                                      "\"meta_info\":{",
                                      "\"finish_reason\":{\"type\":\"length\"",
                                      "\"prompt_tokens\":3",
                                      "\"completion_tokens\":4",
                                      "\"weight_version\":",
                                      "\"weights_digest\":\"",
                                      "\"output_token_logprobs\":[[-"};
  for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) assert_says(one, parts[i]);
  free(one);
  char *list = call_json(server, "POST", "/v1/generate",
                         "{\"input_ids\":[1,2,3],\"sampling_params\":{\"max_new_tokens\":4,\"n\":3}}", &status);
  assert_int_equal(status, 200);
  assert_int_equal(list[0], '[');
  assert_null(strstr(list, "output_token_logprobs"));
  free(list);
}

/* The ids part of an answer. */
static char *ids_of(const char *body) {
  int status;
  char *text = call_json(server, "POST", "/v1/generate", body, &status);
  assert_int_equal(status, 200);
  char *begin = strstr(text, "\"output_ids\":["), *end = strchr(begin, ']');
  char *ids = strndup(begin, (size_t)(end - begin));
  free(text);
  return ids;
}

static void a_seed_repeats_and_none_does_not(void **state) {
  (void)state;
  const char *seeded =
      "{\"input_ids\":[9,8,7],\"sampling_params\":{\"max_new_tokens\":12,\"seed\":77,\"ignore_eos\":true}}";
  const char *free_one = "{\"input_ids\":[9,8,7],\"sampling_params\":{\"max_new_tokens\":12,\"ignore_eos\":true}}";
  char *a = ids_of(seeded), *b = ids_of(seeded), *c = ids_of(free_one), *d = ids_of(free_one);
  assert_string_equal(a, b);
  assert_string_not_equal(c, d);
  free(a), free(b), free(c), free(d);
}

static void stop_token_ids_end_the_text(void **state) {
  (void)state;
  int status;
  char *ids = ids_of(
      "{\"input_ids\":[9,8,7],\"sampling_params\":{\"max_new_tokens\":3,\"temperature\":0,\"ignore_eos\":true}}");
  char body[256];
  snprintf(
      body, sizeof body,
      "{\"input_ids\":[9,8,7],\"sampling_params\":{\"max_new_tokens\":3,\"temperature\":0,\"stop_token_ids\":[%d]}}",
      atoi(strchr(ids, '[') + 1));
  char *text = call_json(server, "POST", "/v1/generate", body, &status);
  assert_int_equal(status, 200);
  assert_says(text, "\"type\":\"stop\"");
  assert_says(text, "\"completion_tokens\":1");
  free(ids), free(text);
}

static void malformed_requests_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *body;
    int status;
  } cases[] = {
      {"{\"input_ids\":[1", 422},
      {"{}", 422},
      {"{\"input_ids\":[1],\"text\":\"a\"}", 422},
      {"{\"input_ids\":[257]}", 422},
      {"{\"input_ids\":[-1]}", 422},
      {"{\"input_ids\":[1],\"typo\":1}", 422},
      {"{\"input_ids\":[1],\"sampling_params\":{\"temperature\":-1}}", 422},
      {"{\"input_ids\":[1],\"sampling_params\":{\"stop\":\"x\"}}", 422},
      {"{\"input_ids\":[1],\"sampling_params\":{\"max_new_tokens\":128}}", 422},
      {"{\"input_ids\":[1],\"sampling_params\":{\"n\":0}}", 422},
      {"{\"input_ids\":[1],\"sampling_params\":[]}", 422},
      {"{\"input_ids\":\"1\"}", 422},
      {"{\"text\":\"hello\"}", 501},
      {"{\"input_ids\":[1],\"input_ids\":[2]}", 422},
      {"[]", 422},
      {"", 422},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const int status = status_of(server, "POST", "/v1/generate", cases[i].body);
    if (status != cases[i].status) fail_msg("%s: expected %d, got %d", cases[i].body, cases[i].status, status);
  }
}

static void completions_answer_in_their_shape(void **state) {
  (void)state;
  int status;
  char *text = call_json(server, "POST", "/v1/completions",
                         "{\"model\":\"\",\"prompt\":[1,2],\"max_tokens\":3,\"n\":2,\"user\":\"me\"}", &status);
  assert_int_equal(status, 200);
  assert_says(text, "\"object\":\"text_completion\"");
  assert_says(text, "\"index\":1");
  assert_says(text, "\"prompt_tokens\":2");
  free(text);
  assert_int_equal(status_of(server, "POST", "/v1/completions", "{\"prompt\":[1],\"stream\":true}"), 200);
  assert_int_equal(status_of(server, "POST", "/v1/completions", "{\"prompt\":\"x\"}"), 400); /* no tokenizer */
  assert_int_equal(status_of(server, "POST", "/v1/completions", "{\"prompt\":[1],\"stop\":[\"x\"]}"), 400);
  assert_int_equal(status_of(server, "POST", "/v1/completions", "{\"prompt\":[1],\"echo\":true}"), 400);
  assert_int_equal(status_of(server, "POST", "/v1/completions", "{\"prompt\":[1,\"x\"]}"), 400);
  assert_int_equal(status_of(server, "POST", "/v1/completions", "{\"prompt\":[]}"), 400);
  assert_int_equal(status_of(server, "POST", "/v1/completions", "{}"), 400);
}

static void health_and_model_answer(void **state) {
  (void)state;
  int status;
  assert_int_equal(status_of(server, "GET", "/healthz", NULL), 200);
  assert_int_equal(status_of(server, "GET", "/readyz", NULL), 200);
  char *model = call_json(server, "GET", "/v1/model", NULL, &status);
  assert_int_equal(status, 200);
  assert_says(model, "\"vocabulary\":257");
  assert_says(model, "\"kv_pages_total\":");
  assert_says(model, "\"loaded\":{");
  free(model);
  char *metrics = call_json(server, "GET", "/metrics", NULL, &status);
  assert_int_equal(status, 200);
  assert_says(metrics, "leasehold_generation_tokens_sampled_total");
  free(metrics);
}

static int push(const char *path, const char *digest, const void *bytes, size_t len) {
  char header[128];
  const char *const headers[] = {header, NULL};
  int status;
  snprintf(header, sizeof header, "X-Leasehold-Digest: %s", digest);
  free(call_with(server, "POST", path, bytes, len, headers, &status));
  return status;
}

static void a_wrong_push_changes_nothing(void **state) {
  (void)state;
  struct version_bytes v, other;
  struct policy before, after;
  make_version(&v, 21);
  make_version(&other, 22);
  engine_policy(engine_of(server), &before);
  assert_int_equal(push("/v1/push-weights?run=r1&version=5&epoch=1", other.hex, v.bytes.data, v.bytes.len),
                   422); /* another digest than the bytes' */
  assert_int_equal(push("/v1/push-weights?run=r1&version=5&epoch=1", v.hex, v.bytes.data, v.bytes.len - 2),
                   422); /* cut */
  assert_int_equal(push("/v1/push-weights?run=r1&version=5&epoch=1", v.hex, "nonsense", 8), 422);
  assert_int_equal(push("/v1/push-weights?run=r1&version=5&epoch=1", "abc", v.bytes.data, v.bytes.len), 422);
  assert_int_equal(push("/v1/push-weights?run=r1&epoch=1", v.hex, v.bytes.data, v.bytes.len), 422);
  assert_int_equal(push("/v1/push-weights?version=5&epoch=1", v.hex, v.bytes.data, v.bytes.len), 422);
  engine_policy(engine_of(server), &after);
  assert_memory_equal(&before.digest, &after.digest, sizeof before.digest);
  assert_int_equal(before.version, after.version);
  buf_free(&v.bytes);
  buf_free(&other.bytes);
}

/* Without a coordinator a push is its own word. */
static void a_push_is_activated_and_superseded(void **state) {
  (void)state;
  struct version_bytes v5, v6;
  int status;
  make_version(&v5, 31);
  make_version(&v6, 32);
  assert_int_equal(push("/v1/push-weights?run=r2&version=5&epoch=1", v5.hex, v5.bytes.data, v5.bytes.len), 200);
  wait_for_version(server, 5);
  assert_int_equal(push("/v1/push-weights?run=r2&version=6&epoch=1", v6.hex, v6.bytes.data, v6.bytes.len), 200);
  wait_for_version(server, 6);
  assert_int_equal(push("/v1/push-weights?run=r2&version=5&epoch=1", v5.hex, v5.bytes.data, v5.bytes.len), 409);
  char *model = call_json(server, "GET", "/v1/model", NULL, &status);
  assert_says(model, v6.hex);
  free(model);
  buf_free(&v5.bytes);
  buf_free(&v6.bytes);
}

static int push_changes(int64_t version, const char *base, const struct version_bytes *to, const void *bytes,
                        size_t len) {
  char path[256];
  snprintf(path, sizeof path, "/v1/push-weights?run=r3&version=%lld&epoch=1&base=%s", (long long)version, base);
  return push(path, to->hex, bytes, len);
}

/* Of the version that decodes, whose bytes stay what they are; whatever is wrong is refused, and the next push is
 * taken. */
static void changes_of_the_active_version_are_taken(void **state) {
  (void)state;
  struct version_bytes v1, v2, v3;
  struct buf changes = BUF_INIT, next = BUF_INIT;
  int status;
  make_version(&v1, 41);
  make_version_from(&v2, 41, 50, &v1, &changes);
  make_version_from(&v3, 41, 7, &v2, &next);
  assert_true(changes.len > 0 && changes.len < v1.bytes.len / 4 && next.len > 0);
  assert_int_equal(push_changes(1, v1.hex, &v2, changes.data, changes.len), 409); /* it is not here */
  assert_int_equal(push("/v1/push-weights?run=r3&version=1&epoch=1", v1.hex, v1.bytes.data, v1.bytes.len), 200);
  wait_for_version(server, 1);
  assert_int_equal(push_changes(2, "abc", &v2, changes.data, changes.len), 422);
  assert_int_equal(push_changes(2, v2.hex, &v2, changes.data, changes.len), 409);
  assert_int_equal(push_changes(2, v1.hex, &v3, changes.data, changes.len), 422); /* another digest than announced */
  assert_int_equal(push_changes(2, v1.hex, &v2, changes.data, changes.len - 1), 422);
  assert_int_equal(push_changes(2, v1.hex, &v3, next.data, next.len), 422); /* they say themselves what they are of */
  assert_int_equal(push_changes(2, v1.hex, &v2, v2.bytes.data, v2.bytes.len), 422);
  changes.data[changes.len - 1] ^= 1;
  assert_int_equal(push_changes(2, v1.hex, &v2, changes.data, changes.len), 422);
  changes.data[changes.len - 1] ^= 1;
  assert_true(is_active(server, 1));
  assert_int_equal(push_changes(2, v1.hex, &v2, changes.data, changes.len), 200);
  wait_for_version(server, 2);
  buf_append(&changes, next.data, next.len);
  assert_int_equal(push_changes(3, v1.hex, &v3, changes.data, changes.len), 409); /* gone meanwhile */
  assert_int_equal(push_changes(3, v2.hex, &v3, next.data, next.len), 200);
  wait_for_version(server, 3);
  assert_int_equal(push("/v1/push-weights?run=r3&version=4&epoch=1", v1.hex, v1.bytes.data, v1.bytes.len), 200);
  wait_for_version(server, 4);
  assert_int_equal(push_changes(5, v1.hex, &v3, changes.data, changes.len), 200); /* both links */
  wait_for_version(server, 5);
  char *model = call_json(server, "GET", "/v1/model", NULL, &status);
  assert_says(model, v3.hex);
  free(model);
  char *metrics = call_json(server, "GET", "/metrics", NULL, &status);
  assert_says(metrics, "leasehold_generation_versions_from_changes_total 3\n");
  free(metrics);
  buf_free(&v1.bytes);
  buf_free(&v2.bytes);
  buf_free(&v3.bytes);
  buf_free(&changes);
  buf_free(&next);
}

static void words_are_ordered_by_run_and_version(void **state) {
  (void)state;
  assert_true(version_supersedes("r1", 3, "r1", 3));
  assert_true(version_supersedes("r1", 3, "r1", 4));
  assert_false(version_supersedes("r1", 3, "r1", 2));
  assert_true(version_supersedes("r9", 3, "r10", 0));
  assert_false(version_supersedes("r10", 0, "r9", 7));
  assert_true(version_supersedes("mine", 7, "r1", 0));
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(generate_answers_in_the_known_shape),  cmocka_unit_test(a_seed_repeats_and_none_does_not),
      cmocka_unit_test(stop_token_ids_end_the_text),          cmocka_unit_test(malformed_requests_are_refused),
      cmocka_unit_test(completions_answer_in_their_shape),    cmocka_unit_test(health_and_model_answer),
      cmocka_unit_test(a_wrong_push_changes_nothing),         cmocka_unit_test(a_push_is_activated_and_superseded),
      cmocka_unit_test(changes_of_the_active_version_are_taken), cmocka_unit_test(words_are_ordered_by_run_and_version),
  };
  return cmocka_run_group_tests_name("generation http", tests, group_setup, group_teardown);
}
