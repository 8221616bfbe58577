/* What reward servers are sent, and what of their answers is believed.  What would break: a server that was written for
 * OpenRLHF or slime understands nothing; an answer that is no number, or of other samples, is trained on; a key that
 * does not name the samples; a host that nobody allowed is called; a configuration reads back as another one. */
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/rewards/reward_hosts.h"
#include "services/coordinator/rewards/reward_message.h"
#include "services/coordinator/verifiers/reward_config.h"
#include "tests/unit/base/cm.h"

static struct arena arena = ARENA_INIT;

static enum rc rule_of(struct reward_rule *out, const char *text, struct err *err) {
  struct json *v = NULL;
  bool shuffle = false;
  reward_rule_of(out, VERIFIER_NUMERIC);
  enum rc rc = json_parse(&v, text, strlen(text), 0, err);
  if (rc == RC_OK) rc = reward_rule_read(out, v, &shuffle, &arena, err);
  json_free(v);
  return rc;
}

#define HTTP(more) "{\"kind\":\"http\",\"server\":{\"url\":\"http://judge:9000/score\"" more "}}"

static const struct http_term *server_of(const char *text) {
  static struct reward_rule rule;
  struct err err = {0};
  if (rule_of(&rule, text, &err) != RC_OK) fail_msg("%s: %s: %s", text, err.field, err.message);
  return rule.terms[0].http;
}

static void a_rule_reads_back_with_all_that_was_left_out(void **state) {
  (void)state;
  struct buf text = BUF_INIT, again = BUF_INIT;
  struct json_writer w;
  struct reward_rule rule;
  struct err err = {0};
  assert_int_equal(
      rule_of(&rule, "{\"terms\":[{\"kind\":\"math\",\"weight\":0.5}," HTTP(",\"shape\":\"slime\"") "]}", &err), RC_OK);
  assert_int_equal(reward_remote_terms(&rule), 1);
  json_writer_init(&w, &text);
  json_object_begin(&w);
  reward_rule_write(&rule, &w);
  json_object_end(&w);
  assert_string_equal(text.data,
                      "{\"terms\":[{\"kind\":\"math\",\"weight\":0.5},{\"kind\":\"http\",\"server\":{\"url\":\"http://"
                      "judge:9000/score\",\"shape\":\"slime\","
                      "\"key\":\"score\",\"label\":\"answer\",\"batch\":1,\"concurrency\":4,\"timeout_ms\":30000,"
                      "\"deadline_ms\":600000,\"retries\":1000,"
                      "\"breaker_failures\":5,\"breaker_ms\":1000,\"on_deadline\":\"fail\"},\"weight\":1}]}");
  assert_int_equal(rule_of(&rule, text.data, &err), RC_OK);
  json_writer_init(&w, &again);
  json_object_begin(&w);
  reward_rule_write(&rule, &w);
  json_object_end(&w);
  assert_string_equal(again.data, text.data);
  buf_free(&text);
  buf_free(&again);
  assert_int_equal(server_of(HTTP(""))->batch, 64);
  assert_int_equal(server_of(HTTP(",\"on_deadline\":\"drop\""))->on_deadline, DEADLINE_DROP);
  assert_int_equal(server_of(HTTP(",\"on_deadline\":\"zero\""))->on_deadline, DEADLINE_ZERO);
}

static void what_cannot_be_meant_is_refused(void **state) {
  (void)state;
  static const struct {
    const char *rule, *field;
  } cases[] = {
      {"{\"kind\":\"http\"}", "server"},
      {"{\"kind\":\"numeric\",\"server\":{\"url\":\"http://a/\"}}", "server"},
      {"{\"kind\":\"http\",\"server\":{}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"ftp://judge/\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"HTTPS://judge/\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"https:///x\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"https://me:secret@judge/\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"judge:9000\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"http:///x\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"http://me:secret@judge/\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"http://me@judge/\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"http://judge /\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"http://judge:0/\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"http://judge:65536/\"}}", "server.url"},
      {"{\"kind\":\"http\",\"server\":{\"url\":\"http://judge:9a/\"}}", "server.url"},
      {HTTP(",\"shape\":\"trl\""), "server.shape"},
      {HTTP(",\"shape\":\"slime\",\"batch\":2"), "server.batch"},
      {HTTP(",\"on_deadline\":\"guess\""), "server.on_deadline"},
      {HTTP(",\"label\":\"prompt\""), "server.label"},
      {HTTP(",\"deadline_ms\":0"), "server.deadline_ms"},
      {HTTP(",\"attempts\":1"), "server.attempts"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct reward_rule rule;
    struct err err = {0};
    const enum rc rc = rule_of(&rule, cases[i].rule, &err);
    if (rc != RC_INVALID || strcmp(err.field, cases[i].field) != 0)
      fail_msg("%s: %d, %s: %s", cases[i].rule, rc, err.field, err.message);
  }
}

static void only_hosts_that_are_named_are_asked(void **state) {
  (void)state;
  static const struct {
    const char *hosts, *url;
    bool allowed;
  } cases[] = {
      {"judge:9000", "http://judge:9000/x", true},     {"judge:9000", "http://judge:9001/x", false},
      {"judge", "http://judge:9001/x", true},          {"judge", "http://JUDGE", true},
      {"judge:80", "http://judge/x", true},            {"judge", "http://judge.evil.example/", false},
      {"judge", "http://jud/", false},                 {"a, judge:9000", "http://judge:9000", true},
      {"judge:900", "http://judge:9000", false},       {"judge:9000", "http://judge:900", false},
      {"", "http://judge:9000/x", false},              {NULL, "http://judge:9000/x", false},
      {"[::1]:9000", "http://[::1]:9000/x", true},     {"[::1]", "http://[::2]:9000/x", false},
      {"judge:443", "https://judge/x", true},          {"judge:80", "https://judge/x", false},
      {"judge:443", "http://judge/x", false},          {"judge", "https://evil.example/judge", false},
      {"judge", "http://evil.example/?judge", false},  {"judge", "http://evil.example:80/judge", false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
    if ((reward_host_check(cases[i].hosts, cases[i].url, NULL) == RC_OK) != cases[i].allowed)
      fail_msg("'%s': %s", cases[i].hosts ? cases[i].hosts : "", cases[i].url);
  struct reward_rule rule;
  struct err err = {0};
  assert_int_equal(rule_of(&rule, "{\"terms\":[{\"kind\":\"none\"}," HTTP("") "]}", &err), RC_OK);
  assert_int_equal(reward_hosts_check("other", &rule, &err), RC_INVALID);
  assert_string_equal(err.field, "verifier.terms[1].server.url");
  assert_non_null(strstr(err.message, "--reward-hosts judge:9000"));
  assert_int_equal(reward_hosts_check("other,judge:9000", &rule, &err), RC_OK);
}

static const struct reward_item items[] = {
    {.sample = 0, .prompt = "1+1=", .prompt_len = 4, .text = "2\"\n", .text_len = 3, .label = "2"},
    {.sample = 3, .prompt = "1+1=", .prompt_len = 4, .text = "\xff", .text_len = 1, .label = ""},
};

static void requests_are_those_that_servers_expect(void **state) {
  (void)state;
  struct buf out = BUF_INIT;
  reward_request_write(&out, server_of(HTTP("")), items, 2);
  assert_string_equal(
      out.data,
      "{\"query\":[\"1+1=2\\\"\\n\",\"1+1=\xef\xbf\xbd\"],\"prompts\":[\"1+1=\",\"1+1=\"],\"labels\":[\"2\",\"\"]}");
  buf_clear(&out);
  reward_request_write(&out, server_of(HTTP(",\"shape\":\"slime\"")), items, 1);
  assert_string_equal(out.data, "{\"prompt\":\"1+1=\",\"response\":\"2\\\"\\n\",\"label\":\"2\"}");
  buf_free(&out);
}

static void an_answer_is_one_number_for_each_sample(void **state) {
  (void)state;
  static const struct {
    const char *rule, *answer;
    int n;
    bool fine;
    double last;
  } cases[] = {
      {HTTP(""), "{\"rewards\":[1,0.5],\"scores\":[0,0],\"extra_logs\":{\"a\":[1]}}", 2, true, 0.5},
      {HTTP(",\"key\":\"scores\""), "{\"rewards\":[1,0.5],\"scores\":[0,-3e8]}", 2, true, -3e8},
      {HTTP(""), "{\"rewards\":[1]}", 2, false, 0},
      {HTTP(""), "{\"rewards\":[1,2,3]}", 2, false, 0},
      {HTTP(""), "{\"rewards\":1}", 1, false, 0},
      {HTTP(""), "{\"rewards\":[1,null]}", 2, false, 0},
      {HTTP(""), "{\"rewards\":[1,\"1\"]}", 2, false, 0},
      {HTTP(""), "{\"rewards\":[1,true]}", 2, false, 0},
      {HTTP(""), "{\"rewards\":[1,1e400]}", 2, false, 0},
      {HTTP(""), "{\"rewards\":[1,1.1e9]}", 2, false, 0},
      {HTTP(""), "{\"rewards\":[1,NaN]}", 2, false, 0},
      {HTTP(""), "{\"score\":[1,1]}", 2, false, 0},
      {HTTP(""), "[1,1]", 2, false, 0},
      {HTTP(""), "{\"rewards\":[1,1]", 2, false, 0},
      {HTTP(""), "{\"rewards\":[1,1],\"rewards\":[0,0]}", 2, false, 0},
      {HTTP(""), "", 1, false, 0},
      {HTTP(",\"shape\":\"slime\""), "0.25", 1, true, 0.25},
      {HTTP(",\"shape\":\"slime\""), "{\"score\":-1,\"acc\":true}", 1, true, -1},
      {HTTP(",\"shape\":\"slime\",\"key\":\"acc\""), "{\"score\":-1,\"acc\":2}", 1, true, 2},
      {HTTP(",\"shape\":\"slime\""), "{\"score\":[1]}", 1, false, 0},
      {HTTP(",\"shape\":\"slime\""), "[1]", 1, false, 0},
      {HTTP(",\"shape\":\"slime\""), "null", 1, false, 0},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    double values[2] = {0};
    struct err err = {0};
    const enum rc rc = reward_answer_read(values, server_of(cases[i].rule), cases[i].n, cases[i].answer,
                                          strlen(cases[i].answer), &err);
    if (rc != (cases[i].fine ? RC_OK : RC_INVALID)) fail_msg("%s: %d: %s", cases[i].answer, rc, err.message);
    if (cases[i].fine && values[cases[i].n - 1] != cases[i].last)
      fail_msg("%s: %g", cases[i].answer, values[cases[i].n - 1]);
    if (!cases[i].fine && !err.message[0]) fail_msg("%s: no sentence", cases[i].answer);
  }
}

static void a_key_names_the_samples_and_what_was_sampled(void **state) {
  (void)state;
  char one[DIGEST_HEX_MAX], other[DIGEST_HEX_MAX];
  struct reward_item changed[] = {items[0], items[1]};
  reward_key(one, "r1.0.2", 0, items, 2);
  reward_key(other, "r1.0.2", 0, changed, 2);
  assert_string_equal(one, other);
  changed[1].digest.bytes[31] ^= 1;
  reward_key(other, "r1.0.2", 0, changed, 2);
  assert_string_not_equal(one, other);
  reward_key(other, "r1.0.2", 0, items, 1);
  assert_string_not_equal(one, other);
  reward_key(other, "r1.0.3", 0, items, 2);
  assert_string_not_equal(one, other);
  reward_key(other, "r1.0.2", 1, items, 2);
  assert_string_not_equal(one, other);
}

static int free_arena(void **state) {
  (void)state;
  arena_free(&arena);
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(a_rule_reads_back_with_all_that_was_left_out),
      cmocka_unit_test(what_cannot_be_meant_is_refused),
      cmocka_unit_test(only_hosts_that_are_named_are_asked),
      cmocka_unit_test(requests_are_those_that_servers_expect),
      cmocka_unit_test(an_answer_is_one_number_for_each_sample),
      cmocka_unit_test(a_key_names_the_samples_and_what_was_sampled),
  };
  return cmocka_run_group_tests_name("coordinator/reward_messages", tests, NULL, free_arena);
}
