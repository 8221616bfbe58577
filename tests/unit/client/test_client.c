/* The typed calls against a real server in this process: method, path, query, headers and body arrive, answers come
 * back decoded, refusals keep their code, and an answer that makes no sense is never taken for one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/client/coordinator_client.h"
#include "common/client/generation_client.h"
#include "common/client/trainer_client.h"
#include "common/http/trust/access.h"
#include "common/http/server.h"
#include "common/wire/claim.h"

/* The last request, and the answer to give. */
static struct {
  pthread_mutex_t lock; /* guards all below */
  char path_param[LIMIT_NAME_MAX], run[64], wait_ms[32], version[32], epoch[32], announced[8], digest_header[80],
      content_type[64];
  char claim[3][64]; /* epoch, fence, worker */
  struct buf body;
  const char *answer; /* NULL: the handler's own */
  enum rc refuse;     /* not RC_OK: fail with it; then the answer is its sentence */
} seen = {.lock = PTHREAD_MUTEX_INITIALIZER};

static struct http_server *server;
static struct http_client *http;
static char base_url[64];

static const struct digest digest_a = {{1, 2, 3}};
enum { DEADLINE_MS = 5000 };

static void keep(char *out, size_t size, const char *text) { snprintf(out, size, "%s", text ? text : "(none)"); }

/* Records the request; answers with text unless the test wants something else. */
static void answer(struct http_request *r, const char *param, int status, const char *text) {
  pthread_mutex_lock(&seen.lock);
  keep(seen.path_param, sizeof seen.path_param, param ? http_param(r, param) : "");
  keep(seen.run, sizeof seen.run, http_query(r, "run"));
  keep(seen.wait_ms, sizeof seen.wait_ms, http_query(r, "wait_ms"));
  keep(seen.version, sizeof seen.version, http_query(r, "version"));
  keep(seen.epoch, sizeof seen.epoch, http_query(r, "epoch"));
  keep(seen.announced, sizeof seen.announced, http_query(r, "announced"));
  keep(seen.digest_header, sizeof seen.digest_header, http_header(r, "X-Leasehold-Digest"));
  keep(seen.claim[0], sizeof seen.claim[0], http_header(r, CLAIM_EPOCH_HEADER));
  keep(seen.claim[1], sizeof seen.claim[1], http_header(r, CLAIM_FENCE_HEADER));
  keep(seen.claim[2], sizeof seen.claim[2], http_header(r, CLAIM_WORKER_HEADER));
  keep(seen.content_type, sizeof seen.content_type, http_header(r, "Content-Type"));
  size_t len;
  const char *body = http_body(r, &len);
  buf_clear(&seen.body);
  buf_append(&seen.body, body ? body : "", len);
  const enum rc refuse = seen.refuse;
  const char *sentence = seen.answer ? seen.answer : "expected epoch 4, got 3";
  if (seen.answer) text = seen.answer;
  pthread_mutex_unlock(&seen.lock);
  struct err err = {0};
  struct buf out = BUF_INIT;
  if (refuse) {
    err_set(&err, refuse, "epoch", "%s", sentence);
    http_fail(r, &err);
  } else {
    buf_puts(&out, text);
    http_reply_json(r, status, &out);
  }
}

#define DIGEST_A "\"0102030000000000000000000000000000000000000000000000000000000000\""
#define HANDLER(name, param, status, text)                  \
  static void name(struct http_request *r, void *context) { \
    (void)context;                                          \
    answer(r, param, status, text);                         \
  }
HANDLER(
    on_workers, NULL, 200,
    "{\"worker_id\":\"w3\",\"epoch\":4,\"fence\":\"18446744073709551615\",\"heartbeat_ms\":500,\"worker_ttl_ms\":2000}")
HANDLER(on_heartbeat, "id", 200, "{\"epoch\":4,\"lost\":[\"r1.1.1.0-0\"],\"run_active\":false,\"current\":null}")
HANDLER(on_leases, "id", 200,
        "{\"epoch\":4,\"leases\":[],\"current\":{\"run\":\"r1\",\"version\":2,\"digest\":" DIGEST_A
        ",\"trainer_url\":\"http://t:1\"}}")
HANDLER(on_result, "id", 200, "{\"repeated\":true}")
HANDLER(on_versions, NULL, 200, "{}")
HANDLER(on_runs, NULL, 200, "{\"run\":\"r1\",\"version\":0,\"digest\":" DIGEST_A ",\"state\":\"ready\"}")
HANDLER(on_submit, NULL, 202, "{\"accepted\":true}")
HANDLER(on_batch_json, "id", 200,
        "{\"batch_id\":\"b\",\"state\":\"running\",\"error\":null,\"samples\":[],\"stats\":null,\"intervals\":[]}")

/* As tensors when it is asked for them: one sample. */
static void on_batch(struct http_request *r, void *context) {
  const char *form = http_query(r, "form");
  float logprobs[] = {-0.5f, -2};
  struct sample_logprobs sample = {.id = "r1.0.0.0", .logprobs = {logprobs, 2}};
  const struct batch_status status = {.batch_id = "b",
                                      .state = JOB_DONE,
                                      .samples = &sample,
                                      .sample_count = 1,
                                      .logprobs_sha256 = digest_a};
  struct buf out = BUF_INIT;
  struct err err;
  if (!form || strcmp(form, "tensors") != 0) {
    on_batch_json(r, context);
    return;
  }
  if (batch_status_encode_tensors(&status, &out, &err) != RC_OK) fail_msg("%s", err.message);
  http_reply(r, 200, "application/octet-stream", &out);
}

HANDLER(on_step, "id", 200,
        "{\"step_id\":\"r1.1\",\"state\":\"done\",\"error\":null,\"version\":3,\"digest\":" DIGEST_A
        ",\"grad_norm\":1.5,\"lr\":0.1,\"skipped\":false,\"step_us\":1,\"checkpoint_us\":2,\"push_us\":3,"
        "\"pushes\":[],\"intervals\":[]}")
HANDLER(on_weights, "version", 200, "the weights")
HANDLER(on_file, "name", 200, "{\"a\":1}")
HANDLER(on_push, NULL, 200, "{\"staged\":true,\"digest\":" DIGEST_A "}")

static const struct http_route routes[] = {
    {.method = "POST", .path = "/v1/workers", .handler = on_workers},
    {.method = "POST", .path = "/v1/workers/{id}/heartbeat", .handler = on_heartbeat},
    {.method = "POST", .path = "/v1/workers/{id}/leases", .handler = on_leases},
    {.method = "PUT", .path = "/v1/leases/{id}/result", .handler = on_result},
    {.method = "POST", .path = "/v1/versions", .handler = on_versions},
    {.method = "POST", .path = "/v1/runs", .handler = on_runs},
    {.method = "POST", .path = "/v1/submit-batch", .handler = on_submit},
    {.method = "POST", .path = "/v1/submit-step", .handler = on_submit},
    {.method = "GET", .path = "/v1/batches/{id}", .handler = on_batch},
    {.method = "GET", .path = "/v1/steps/{id}", .handler = on_step},
    {.method = "GET", .path = "/v1/weights/{version}", .handler = on_weights},
    {.method = "GET", .path = "/v1/model/files/{name}", .handler = on_file},
    {.method = "POST", .path = "/v1/push-weights", .handler = on_push},
};

static struct http_access *access;

static int start(void **state) {
  (void)state;
  const struct program_settings settings = {.bind = "127.0.0.1", .token = "secret"};
  struct err err = {0};
  if (http_access_open(&access, &settings, 0, NULL, &err) != RC_OK) {
    print_error("%s\n", err.message);
    return -1;
  }
  const struct http_server_options options = {
      .bind_address = "127.0.0.1", .access = access, .routes = routes, .route_count = sizeof routes / sizeof *routes};
  if (http_server_start(&server, &options, &err) != RC_OK || http_client_create(&http, "secret", NULL, &err) != RC_OK) {
    print_error("%s\n", err.message);
    return -1;
  }
  snprintf(base_url, sizeof base_url, "http://127.0.0.1:%d", http_server_port(server));
  return 0;
}

static int stop(void **state) {
  (void)state;
  http_client_destroy(http);
  http_server_stop(server, 1000);
  http_access_close(access);
  buf_free(&seen.body);
  return 0;
}

static void want(const char *text, enum rc refuse) {
  pthread_mutex_lock(&seen.lock);
  seen.answer = text;
  seen.refuse = refuse;
  pthread_mutex_unlock(&seen.lock);
}

static int reset(void **state) {
  (void)state;
  want(NULL, RC_OK);
  return 0;
}

static struct coordinator_client coordinator(void) { return (struct coordinator_client){http, base_url}; }
static struct trainer_client trainer(void) { return (struct trainer_client){http, base_url}; }

static void check_ok(enum rc rc, const struct err *err) {
  if (rc != RC_OK) fail_msg("%s: %s: %s", rc_name(rc), err->field, err->message);
  pthread_mutex_lock(&seen.lock); /* what the handler recorded happened before what follows */
  pthread_mutex_unlock(&seen.lock);
}

static void body_holds(const char *text) {
  if (!strstr(seen.body.data, text)) fail_msg("expected %s in %s", text, seen.body.data);
}

static void a_worker_registers_and_beats(void **state) {
  (void)state;
  const struct coordinator_client c = coordinator();
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct worker_registered registered;
  const struct worker_register m = {.name = "gen-1", .kind = WORKER_GENERATION, .url = "http://g:1", .slots = 4};
  check_ok(coordinator_register(&c, &m, &registered, &arena, DEADLINE_MS, &err), &err);
  assert_string_equal(registered.worker_id, "w3");
  assert_true(registered.epoch == 4 && registered.fence == UINT64_MAX && registered.heartbeat_ms == 500);
  assert_string_equal(
      seen.body.data,
      "{\"name\":\"gen-1\",\"kind\":\"generation\",\"url\":\"http://g:1\",\"slots\":4,\"exactness\":\"invariant\"}");
  assert_string_equal(seen.content_type, "application/json");

  struct worker_heartbeat_answer beat;
  check_ok(coordinator_heartbeat(&c, "w3", &(struct worker_heartbeat){.epoch = 4}, &beat, &arena, DEADLINE_MS, &err),
           &err);
  assert_string_equal(seen.path_param, "w3");
  assert_true(beat.epoch == 4 && beat.lost_count == 1 && !beat.current.has);
  assert_string_equal(beat.lost[0], "r1.1.1.0-0");
  arena_free(&arena);
}

static void headers_claim(const char *epoch, const char *fence, const char *worker) {
  assert_string_equal(seen.claim[0], epoch);
  assert_string_equal(seen.claim[1], fence);
  assert_string_equal(seen.claim[2], worker);
}

static void a_worker_takes_leases_and_answers(void **state) {
  (void)state;
  const struct coordinator_client c = coordinator();
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct lease_answer leases;
  check_ok(coordinator_leases(&c, "w3", &(struct lease_request){.epoch = 4, .slots_free = 2, .wait_ms = 7}, &leases,
                              &arena, DEADLINE_MS, &err),
           &err);
  body_holds("\"wait_ms\":7");
  assert_true(leases.current.has && leases.current.version == 2 && digest_equal(&leases.current.digest, &digest_a));

  struct sample_result sample = {.finish = FINISH_ABORT};
  struct lease_result_answer result;
  check_ok(coordinator_put_result(&c, "r1.1.1.0-0",
                                  &(struct lease_result){.worker_id = "w3",
                                                         .epoch = UINT64_MAX,
                                                         .fence = 2,
                                                         .samples = &sample,
                                                         .sample_count = 1},
                                  &result, &arena, DEADLINE_MS, &err),
           &err);
  assert_string_equal(seen.path_param, "r1.1.1.0-0");
  headers_claim("18446744073709551615", "2", "w3");
  assert_true(result.repeated);
  const struct version_announce announce = {.run = "r1", .step_id = "r1.1", .worker_id = "w1", .version = 3};
  check_ok(coordinator_announce_version(&c, &announce, DEADLINE_MS, &err), &err);
  body_holds("\"step_id\":\"r1.1\"");
  arena_free(&arena);
}

static void a_trainer_is_told_and_asked(void **state) {
  (void)state;
  const struct trainer_client c = trainer();
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct open_run open = {.run = "r1", .epoch = 4, .fence = 5};
  training_config_defaults(&open.training);
  struct open_run_answer opened;
  check_ok(trainer_open_run(&c, &open, &opened, &arena, DEADLINE_MS, &err), &err);
  headers_claim("4", "5", "(none)");
  assert_true(opened.version == 0 && digest_equal(&opened.digest, &digest_a));
  body_holds("\"objective\":\"grpo\"");

  int32_t tokens[] = {1, 2, 3};
  struct sample_segment segment = {0, 2, true};
  struct batch_sample sample = {
      .id = "r1.0.0.0", .tokens = {tokens, 3}, .prompt_length = 1, .segments = &segment, .segment_count = 1};
  struct batch_group group = {.id = "r1.0.0", .samples = &sample, .sample_count = 1};
  const struct submit_batch submitted = {
      .batch_id = "b", .run = "r1", .epoch = 6, .fence = 7, .groups = &group, .group_count = 1};
  check_ok(trainer_submit_batch(&c, &submitted, DEADLINE_MS, &err), &err);
  headers_claim("6", "7", "(none)");
  assert_string_equal(seen.content_type, "application/octet-stream");
  struct submit_batch sent;
  assert_int_equal(submit_batch_decode_tensors(&sent, seen.body.data, seen.body.len, &arena, &err), RC_OK);
  assert_true(strcmp(sent.batch_id, "b") == 0 && sent.group_count == 1 && sent.groups[0].samples[0].tokens.count == 3);
  struct batch_status batch;
  check_ok(trainer_batch_status(&c, "b", 0, true, &batch, &arena, DEADLINE_MS, &err), &err);
  assert_true(batch.state == JOB_DONE && batch.sample_count == 1 && batch.samples[0].logprobs.count == 2);
  assert_true(batch.samples[0].logprobs.items[0] == -0.5f);
  check_ok(trainer_batch_status(&c, "b", 1234, false, &batch, &arena, DEADLINE_MS, &err), &err);
  assert_int_equal(batch.state, JOB_RUNNING);
  assert_string_equal(seen.path_param, "b");
  assert_string_equal(seen.wait_ms, "1234");

  check_ok(trainer_submit_step(&c, &(struct submit_step){.step_id = "r1.1", .run = "r1", .epoch = 8, .fence = 9},
                               DEADLINE_MS, &err),
           &err);
  headers_claim("8", "9", "(none)");
  body_holds("\"step_id\":\"r1.1\"");
  struct step_status step;
  check_ok(trainer_step_status(&c, "r1.1", 0, &step, &arena, DEADLINE_MS, &err), &err);
  assert_true(step.state == JOB_DONE && step.version == 3 && step.grad_norm == 1.5);
  assert_string_equal(seen.wait_ms, "0");
  arena_free(&arena);
}

static void weights_and_files_come_as_bytes(void **state) {
  (void)state;
  const struct trainer_client c = trainer();
  struct err err = {0};
  struct buf out = BUF_INIT;
  buf_puts(&out, "something older");
  check_ok(trainer_weights(&c, "r1", 3, 1 << 20, &out, DEADLINE_MS, &err), &err);
  assert_string_equal(out.data, "the weights");
  assert_string_equal(seen.path_param, "3");
  assert_string_equal(seen.run, "r1");
  check_ok(trainer_model_file(&c, "config.json", &out, DEADLINE_MS, &err), &err);
  assert_string_equal(out.data, "{\"a\":1}");
  assert_string_equal(seen.path_param, "config.json");
  check_ok(trainer_model_file(&c, "odd/na me?%", &out, DEADLINE_MS, &err), &err); /* one segment, whatever is in it */
  assert_string_equal(seen.path_param, "odd/na me?%");
  assert_int_equal(trainer_weights(&c, "r1", 3, 4, &out, DEADLINE_MS, &err), RC_TOO_LARGE);
  want(NULL, RC_NOT_FOUND);
  assert_int_equal(trainer_model_file(&c, "generation_config.json", &out, DEADLINE_MS, &err), RC_NOT_FOUND);
  buf_free(&out);
}

static void weights_are_pushed_with_their_digest(void **state) {
  (void)state;
  const struct generation_client c = {http, base_url};
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  struct push_answer pushed;
  const char bytes[] = {0, 1, 2, 0, 3};
  struct pushed_version version = {.run = "r1", .version = 3, .epoch = 4, .digest = digest_a};
  check_ok(generation_push_weights(&c, &version, bytes, sizeof bytes, &pushed, &arena, DEADLINE_MS, &err), &err);
  assert_true(pushed.staged && digest_equal(&pushed.digest, &digest_a));
  assert_string_equal(seen.run, "r1");
  assert_string_equal(seen.version, "3");
  assert_string_equal(seen.epoch, "4");
  assert_string_equal(seen.digest_header, "0102030000000000000000000000000000000000000000000000000000000000");
  assert_string_equal(seen.content_type, "application/octet-stream");
  assert_int_equal(seen.body.len, sizeof bytes);
  assert_memory_equal(seen.body.data, bytes, sizeof bytes);
  assert_string_equal(seen.announced, "(none)");
  version.announced = true;
  check_ok(generation_push_weights(&c, &version, bytes, sizeof bytes, &pushed, &arena, DEADLINE_MS, &err), &err);
  assert_string_equal(seen.announced, "true");
  arena_free(&arena);
}

static void a_refusal_keeps_code_sentence_and_field(void **state) {
  (void)state;
  static const enum rc codes[] = {RC_INVALID, RC_NOT_FOUND, RC_FORBIDDEN,   RC_CONFLICT,
                                  RC_GONE,    RC_FULL,      RC_UNAVAILABLE, RC_INTERNAL};
  const struct coordinator_client c = coordinator();
  struct arena arena = ARENA_INIT;
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
    struct err err = {0};
    struct worker_heartbeat_answer beat;
    want(NULL, codes[i]);
    assert_int_equal(coordinator_heartbeat(&c, "w3", &(struct worker_heartbeat){0}, &beat, &arena, DEADLINE_MS, &err),
                     codes[i]);
    assert_int_equal(err.rc, codes[i]);
    assert_string_equal(err.field, "epoch");
    assert_non_null(strstr(err.message, "expected epoch 4, got 3"));
  }
  arena_free(&arena);
}

static void an_answer_that_does_not_decode_is_the_peers_fault(void **state) {
  (void)state;
  static const char *const answers[] = {
      "",
      "{",
      "[]",
      "{}",
      "{\"repeated\":1}",
      "{\"repeated\":true,\"more\":1}",
      "{\"repeated\":true}}",
      "{\"repeated\":true,\"repeated\":true}",
      "<html>",
  };
  const struct coordinator_client c = coordinator();
  struct arena arena = ARENA_INIT;
  struct sample_result sample = {.finish = FINISH_ABORT};
  for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
    struct err err = {0};
    struct lease_result_answer result;
    want(answers[i], RC_OK);
    assert_int_equal(coordinator_put_result(
                         &c, "x", &(struct lease_result){.worker_id = "w3", .samples = &sample, .sample_count = 1},
                         &result, &arena, DEADLINE_MS, &err),
                     RC_INTERNAL);
    assert_non_null(strstr(err.message, "could not be understood"));
  }
  arena_free(&arena);
}

/* The sentence is for whoever upgrades one after another. */
static void what_only_one_of_two_services_knows_is_put_down_to_their_versions(void **state) {
  (void)state;
  static const char different[] = "the two services are of different versions";
  const struct coordinator_client c = coordinator();
  struct arena arena = ARENA_INIT;
  struct worker_heartbeat_answer beat;
  struct err err = {0};
  const struct worker_heartbeat none = {0};
  want("{\"more\":1}", RC_OK);
  assert_int_equal(coordinator_heartbeat(&c, "w3", &none, &beat, &arena, DEADLINE_MS, &err), RC_INTERNAL);
  assert_null(strstr(err.message, different)); /* what is missing is told first */
  want("{\"epoch\":1,\"lost\":[],\"run_active\":false,\"current\":null,\"more\":1}", RC_OK);
  assert_int_equal(coordinator_heartbeat(&c, "w3", &none, &beat, &arena, DEADLINE_MS, &err), RC_INTERNAL);
  assert_non_null(strstr(err.message, different));
  assert_non_null(strstr(err.message, "more"));
  want("unknown field; expected one of a, b", RC_INVALID);
  assert_int_equal(coordinator_heartbeat(&c, "w3", &none, &beat, &arena, DEADLINE_MS, &err), RC_INVALID);
  assert_non_null(strstr(err.message, different));
  want("expected at least 3, got 2", RC_INVALID);
  assert_int_equal(coordinator_heartbeat(&c, "w3", &none, &beat, &arena, DEADLINE_MS, &err), RC_INVALID);
  assert_null(strstr(err.message, different));
  arena_free(&arena);
}

static void without_the_token_every_call_is_forbidden(void **state) {
  (void)state;
  struct err err = {0};
  struct http_client *stranger;
  check_ok(http_client_create(&stranger, NULL, NULL, &err), &err);
  const struct coordinator_client c = {stranger, base_url};
  assert_int_equal(
      coordinator_announce_version(&c, &(struct version_announce){.run = "r1", .step_id = "s", .worker_id = "w"},
                                   DEADLINE_MS, &err),
      RC_FORBIDDEN);
  http_client_destroy(stranger);
}

static void no_peer_and_no_time_are_told_apart(void **state) {
  (void)state;
  struct err err = {0};
  const struct version_announce m = {.run = "r1", .step_id = "s", .worker_id = "w"};
  const struct coordinator_client nobody = {http, "http://127.0.0.1:1"}, c = coordinator();
  assert_int_equal(coordinator_announce_version(&nobody, &m, DEADLINE_MS, &err), RC_UNAVAILABLE);
  assert_int_equal(coordinator_announce_version(&c, &m, 0, &err), RC_TIMEOUT);
  assert_int_equal(coordinator_announce_version(&c, &m, -5, &err), RC_TIMEOUT);
}

static void a_slash_after_the_base_url_does_no_harm(void **state) {
  (void)state;
  char url[80];
  struct err err = {0};
  snprintf(url, sizeof url, "%s/", base_url);
  const struct coordinator_client c = {http, url};
  check_ok(coordinator_announce_version(&c, &(struct version_announce){.run = "r1", .step_id = "s", .worker_id = "w"},
                                        DEADLINE_MS, &err),
           &err);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup(a_worker_registers_and_beats, reset),
      cmocka_unit_test_setup(a_worker_takes_leases_and_answers, reset),
      cmocka_unit_test_setup(a_trainer_is_told_and_asked, reset),
      cmocka_unit_test_setup(weights_and_files_come_as_bytes, reset),
      cmocka_unit_test_setup(weights_are_pushed_with_their_digest, reset),
      cmocka_unit_test_setup(a_refusal_keeps_code_sentence_and_field, reset),
      cmocka_unit_test_setup(an_answer_that_does_not_decode_is_the_peers_fault, reset),
      cmocka_unit_test_setup(what_only_one_of_two_services_knows_is_put_down_to_their_versions, reset),
      cmocka_unit_test_setup(without_the_token_every_call_is_forbidden, reset),
      cmocka_unit_test_setup(no_peer_and_no_time_are_told_apart, reset),
      cmocka_unit_test_setup(a_slash_after_the_base_url_does_no_harm, reset),
  };
  return cmocka_run_group_tests_name("client", tests, start, stop);
}
