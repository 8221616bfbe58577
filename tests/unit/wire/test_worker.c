/* Registration, heartbeat and the current version survive the wire, and nothing malformed does. */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/wire/wire_test.h"

MESSAGE_AGAIN(worker_register)
MESSAGE_AGAIN(worker_registered)
MESSAGE_AGAIN(worker_heartbeat)
MESSAGE_AGAIN(worker_heartbeat_answer)

static const struct message register_message = {.name = "worker_register",
                                                .json =
                                                    "{\"name\":\"gen-1.a_B\",\"kind\":\"generation\",\"url\":\"http://"
                                                    "10.0.0.7:8081\",\"slots\":8,\"exactness\":\"fastest\"}",
                                                .again = again_worker_register};
static const struct message fabric_message = {.name = "worker_register with a fabric",
                                              .json =
                                                  "{\"name\":\"trainer\",\"kind\":\"trainer\",\"url\":\"http://"
                                                  "10.0.0.7:8082\",\"slots\":0,\"exactness\":\"invariant\","
                                                  "\"fabric\":{\"name\":\"rack-7\",\"kind\":\"mpi\",\"place\":12}}",
                                              .again = again_worker_register,
                                              .optional = {"fabric"}};
static const struct message device_message = {.name = "worker_register of a worker with a GPU",
                                              .json =
                                                  "{\"name\":\"trainer\",\"kind\":\"trainer\",\"url\":\"http://"
                                                  "10.0.0.7:8082\",\"slots\":0,\"exactness\":\"invariant\","
                                                  "\"device\":\"cuda\"}",
                                              .again = again_worker_register,
                                              .optional = {"device"}};
static const struct message trainer_message = {.name = "worker_register of a trainer with an identity",
                                               .json =
                                                   "{\"name\":\"trainer\",\"kind\":\"trainer\",\"url\":\"http://"
                                                   "10.0.0.7:8082\",\"slots\":0,\"exactness\":\"invariant\","
                                                   "\"identity\":\"00112233445566778899aabbccddeeff\"}",
                                               .again = again_worker_register,
                                               .optional = {"identity"}};
static const struct message registered_message = {
    .name = "worker_registered",
    .json =
        "{\"worker_id\":\"w3\",\"epoch\":9007199254740991,\"fence\":\"18446744073709551615\",\"heartbeat_ms\":1000,"
        "\"worker_ttl_ms\":5000,\"role\":\"standby\"}",
    .again = again_worker_registered,
    .optional = {"role"}};
static const struct message heartbeat_message = {
    .name = "worker_heartbeat",
    .json = "{\"epoch\":3,\"ready\":true,\"draining\":false,\"loaded_digest\":\"" DIGEST_A
            "\",\"slots_busy\":5,\"busy_slot_us\":123456789012,"
            "\"tokens_sampled\":99,\"leases\":[{\"id\":\"r7.12.3.0-3\",\"fence\":1},{\"id\":\"r7.12.4.0-3\",\"fence\":"
            "\"9007199254740992\"}],\"sent_us\":1700000000000000,\"intervals\":[[\"compute\",1699999999000000,"
            "1699999999900000],[\"starved\",1699999999900000,1700000000000000]],\"step_costs\":[{\"slot\":0,\"steps\":"
            "7,\"rows\":7,"
            "\"us\":90},{\"slot\":15,\"steps\":2,\"rows\":40000,\"us\":9007199254740991}]}",
    .again = again_worker_heartbeat,
    .optional = {"loaded_digest", "sent_us", "intervals", "step_costs"}};
static const struct message answer_message = {.name = "worker_heartbeat_answer",
                                              .json =
                                                  "{\"epoch\":3,\"lost\":[\"r7.12.3.0-3\",\"r7.12.4.0-0\"],\"run_"
                                                  "active\":true,\"current\":"
                                                  "{\"run\":\"r7\",\"version\":12,\"digest\":\"" DIGEST_A
                                                  "\",\"trainer_url\":\"http://trainer:8082\"}}",
                                              .again = again_worker_heartbeat_answer,
                                              .nullable = {"current"}};
static const struct message role_message = {.name = "worker_heartbeat_answer to a trainer",
                                            .json =
                                                "{\"epoch\":3,\"lost\":[],\"run_active\":false,\"current\":null,"
                                                "\"role\":\"holder\",\"fence\":\"18446744073709551615\"}",
                                            .again = again_worker_heartbeat_answer,
                                            .optional = {"role", "fence"},
                                            .nullable = {"current"}};

static const struct message *const all[] = {&register_message,   &fabric_message,    &device_message, &trainer_message,
                                            &registered_message, &heartbeat_message, &answer_message, &role_message};

static void every_message_reads_back_as_it_was_written(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) message_check_round_trip(all[i]);
}

static void every_spoilt_member_is_refused(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++) message_check_spoilt(all[i]);
}

static void the_fields_arrive_where_they_belong(void **state) {
  (void)state;
  struct arena arena = ARENA_INIT;
  struct json *root;
  struct worker_heartbeat m;
  assert_int_equal(json_parse(&root, heartbeat_message.json, strlen(heartbeat_message.json), 0, NULL), RC_OK);
  assert_int_equal(worker_heartbeat_decode(&m, root, &arena, NULL), RC_OK);
  json_free(root); /* nothing borrowed from the tree */
  assert_true(m.epoch == 3 && m.ready && !m.draining && m.has_loaded && m.slots_busy == 5 &&
              m.busy_slot_us == 123456789012 && m.tokens_sampled == 99);
  assert_int_equal(m.lease_count, 2);
  assert_string_equal(m.leases[1].id, "r7.12.4.0-3");
  assert_true(m.leases[1].fence == (1ull << 53));
  assert_true(m.sent_us == 1700000000000000);
  assert_int_equal(m.interval_count, 2);
  assert_true(m.intervals[1].cause == CAUSE_STARVED && m.intervals[1].begin_us == 1699999999900000 &&
              m.intervals[1].end_us == 1700000000000000);
  arena_free(&arena);
}

static void absent_weights_and_runs_are_null(void **state) {
  (void)state;
  struct buf out = BUF_INIT;
  worker_heartbeat_encode(&(struct worker_heartbeat){.epoch = 1}, &out);
  assert_non_null(strstr(out.data, "\"loaded_digest\":null"));
  buf_clear(&out);
  worker_heartbeat_answer_encode(&(struct worker_heartbeat_answer){.epoch = 1}, &out);
  assert_string_equal(out.data, "{\"epoch\":1,\"lost\":[],\"run_active\":false,\"current\":null}");
  buf_free(&out);
}

static void a_name_is_letters_digits_dot_underscore_dash(void **state) {
  (void)state;
  static const char *const bad[] = {"\"\"",   "\"a b\"", "\"a/b\"", "\"\\u00e9\"", "\"a\\u0000\"",
                                    "\"..\"", "\".\"",   "\"a?\"",  "\"a\\n\""};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    message_check_refused(&register_message, "\"gen-1.a_B\"", bad[i], NULL);
  char longest[LIMIT_NAME_MAX + 3] = "\"";
  memset(longest + 1, 'x', LIMIT_NAME_MAX - 1);
  memcpy(longest + LIMIT_NAME_MAX, "\"", 2);
  message_check_accepted(&register_message, "\"gen-1.a_B\"", longest);
  memcpy(longest + LIMIT_NAME_MAX, "x\"", 3);
  message_check_refused(&register_message, "\"gen-1.a_B\"", longest, "name");
}

static void a_url_is_http_host_port(void **state) {
  (void)state;
  static const char *const bad[] = {"ftp://h:1",    "https://",     "https:///x",  "http://",
                                    "http://:80",   "http:///x",    "h:1",         "http://h:1/",
                                    "http://h:1?x", "http://h:1#x", "http://h :1", "http://u@h:1"};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
    message_check_refused(&register_message, "http://10.0.0.7:8081", bad[i], "url");
  message_check_accepted(&register_message, "http://10.0.0.7:8081", "http://gateway.local:80/gen-1");
  message_check_accepted(&register_message, "http://10.0.0.7:8081", "https://10.0.0.7:8081");
  message_check_refused(&answer_message, "http://trainer:8082", "ftp://trainer", "current.trainer_url");
}

static void slots_belong_to_the_kind_of_worker(void **state) {
  (void)state;
  message_check_refused(&register_message, "\"slots\":8", "\"slots\":0", "slots");
  message_check_refused(&register_message, "\"slots\":8", "\"slots\":4097", "slots");
  message_check_refused(&register_message, "\"slots\":8", "\"slots\":-1", "slots");
  message_check_refused(&register_message, "\"slots\":8", "\"slots\":8.5", "slots");
  message_check_refused(&register_message, "\"generation\"", "\"trainer\"", "slots");
  message_check_refused(&register_message, "\"generation\"", "\"preprocess\"", "slots");
  message_check_refused(&register_message, "\"generation\"", "\"Generation\"", "kind");
  message_check_refused(&register_message, "\"fastest\"", "\"exact\"", "exactness");
  message_check_refused(&device_message, "\"cuda\"", "\"cuda:1\"", "device");
  message_check_accepted(&register_message, "\"generation\",\"url\":\"http://10.0.0.7:8081\",\"slots\":8",
                         "\"trainer\",\"url\":\"http://10.0.0.7:8081\",\"slots\":0");
  message_check_accepted(&register_message, "\"generation\",\"url\":\"http://10.0.0.7:8081\",\"slots\":8",
                         "\"preprocess\",\"url\":\"http://10.0.0.7:8081\",\"slots\":0");
}

static void an_identity_is_written_like_a_name_and_a_role_is_holder_or_standby(void **state) {
  (void)state;
  message_check_refused(&trainer_message, "00112233445566778899aabbccddeeff", "", "identity");
  message_check_refused(&trainer_message, "00112233445566778899aabbccddeeff", "a b", "identity");
  message_check_refused(&registered_message, "standby", "guest", "role");
  message_check_accepted(&registered_message, "standby", "holder");
  message_check_refused(&role_message, "holder", "none", "role");
}

static void a_fabric_has_a_name_a_kind_and_a_place(void **state) {
  (void)state;
  message_check_refused(&fabric_message, "\"rack-7\"", "\"rack 7\"", "fabric.name");
  message_check_refused(&fabric_message, "\"rack-7\"", "\"\"", "fabric.name");
  message_check_refused(&fabric_message, "\"mpi\"", "\"m/i\"", "fabric.kind");
  message_check_refused(&fabric_message, ":12}", ":-1}", "fabric.place");
  message_check_refused(&fabric_message, ":12}", ":9007199254740992}", "fabric.place");
  message_check_accepted(&fabric_message, ":12}", ":0}");
}

static void numbers_and_digests_keep_their_bounds(void **state) {
  (void)state;
  message_check_refused(&registered_message, "\"heartbeat_ms\":1000", "\"heartbeat_ms\":0", "heartbeat_ms");
  message_check_refused(&registered_message, "18446744073709551615", "18446744073709551616", "fence");
  message_check_refused(&registered_message, "9007199254740991", "-1", "epoch");
  message_check_accepted(&registered_message, "9007199254740991", "9223372036854775807");
  message_check_accepted(&registered_message, "9007199254740991", "\"9007199254740991\"");
  message_check_refused(&heartbeat_message, DIGEST_A, "00", "loaded_digest");
  message_check_refused(&heartbeat_message, "\"fence\":1}", "\"fence\":-1}", "leases[0].fence");
  message_check_refused(&heartbeat_message, "\"sent_us\":1700000000000000", "\"sent_us\":-1", "sent_us");
  message_check_refused(&heartbeat_message, "[\"starved\",1699999999900000", "[\"starved\",1700000000000001", NULL);
  message_check_refused(&answer_message, "\"version\":12", "\"version\":-1", "current.version");
  message_check_refused(&answer_message, "\"r7.12.4.0-0\"", "\"r7 12\"", "lost[1]");
  message_check_refused(&answer_message, "\"r7.12.4.0-0\"", "\"\"", "lost[1]");
}

static void too_many_leases_are_refused(void **state) {
  (void)state;
  struct lease_ref *refs = calloc(2 * LIMIT_SLOTS + 1, sizeof *refs);
  for (int i = 0; i <= 2 * LIMIT_SLOTS; i++) refs[i] = (struct lease_ref){"x", 1};
  struct worker_heartbeat m = {.leases = refs, .lease_count = 2 * LIMIT_SLOTS};
  struct buf out = BUF_INIT;
  struct err err = {0};
  worker_heartbeat_encode(&m, &out);
  assert_int_equal(message_try(&heartbeat_message, out.data, out.len, NULL, &err), RC_OK);
  buf_clear(&out);
  m.lease_count++;
  worker_heartbeat_encode(&m, &out);
  assert_int_equal(message_try(&heartbeat_message, out.data, out.len, NULL, &err), RC_INVALID);
  assert_string_equal(err.field, "leases");
  buf_free(&out);
  free(refs);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(an_identity_is_written_like_a_name_and_a_role_is_holder_or_standby),
      cmocka_unit_test(a_fabric_has_a_name_a_kind_and_a_place),
      cmocka_unit_test(every_message_reads_back_as_it_was_written),
      cmocka_unit_test(every_spoilt_member_is_refused),
      cmocka_unit_test(the_fields_arrive_where_they_belong),
      cmocka_unit_test(absent_weights_and_runs_are_null),
      cmocka_unit_test(a_name_is_letters_digits_dot_underscore_dash),
      cmocka_unit_test(a_url_is_http_host_port),
      cmocka_unit_test(slots_belong_to_the_kind_of_worker),
      cmocka_unit_test(numbers_and_digests_keep_their_bounds),
      cmocka_unit_test(too_many_leases_are_refused),
  };
  return cmocka_run_group_tests_name("wire: worker", tests, NULL, NULL);
}
