/* A run's configuration: defaults are resolved, every bound is kept, the written form reads back to the same hash. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <string.h>

#include "services/coordinator/run/run_config.h"

struct parsed {
  struct run_config config;
  struct arena arena;
  struct json *body;
  struct err err;
  enum rc rc;
};

static struct parsed *parse(struct parsed *p, const char *text) {
  memset(p, 0, sizeof *p);
  p->rc = json_parse(&p->body, text, strlen(text), 0, &p->err);
  if (p->rc == RC_OK) p->rc = run_config_parse(&p->config, p->body, &p->arena, &p->err);
  return p;
}

static void parsed_free(struct parsed *p) {
  json_free(p->body);
  arena_free(&p->arena);
}

static void defaults_are_resolved(void **state) {
  (void)state;
  struct parsed p;
  assert_int_equal(parse(&p, "{\"dataset\":{\"path\":\"a.jsonl\"}}")->rc, RC_OK);
  assert_int_equal(p.config.mode, MODE_PIPELINED);
  assert_int_equal(p.config.frontier, FRONTIER_PRIORITY);
  assert_int_equal(p.config.zero_advantage, FILTER_KEEP);
  assert_int_equal(p.config.refill_max, 64);
  assert_int_equal(p.config.rounds, 100);
  assert_int_equal(p.config.groups_per_round, 64);
  assert_int_equal(p.config.training.total_steps, 100);
  assert_int_equal(p.config.verifier, VERIFIER_NUMERIC);
  assert_true(p.config.training.temperature == 1.0);
  parsed_free(&p);
}

/* The trainer must score at the temperature that sampled, or the ratio would not be 1. */
static void the_trainer_gets_the_sampling_temperature(void **state) {
  (void)state;
  struct parsed p;
  assert_int_equal(
      parse(&p, "{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"temperature\":0.7},\"training\":{\"temperature\":2}}")
          ->rc,
      RC_OK);
  assert_true(p.config.training.temperature == 0.7);
  parsed_free(&p);
}

static void faults_name_their_field(void **state) {
  (void)state;
  const struct {
    const char *text, *field;
    enum rc rc;
  } cases[] = {
      {"{}", "dataset", RC_INVALID},
      {"{\"dataset\":{\"path\":\"\"}}", "dataset.path", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\",\"pth\":1}}", "dataset.pth", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"rounds\":0}", "rounds", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"rounds\":1.5}", "rounds", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"groups_per_round\":0}", "groups_per_round", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"fast\"}", "mode", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\"}", "mode", RC_UNSUPPORTED},
      {"{\"dataset\":{\"path\":\"a\"},\"update\":\"minibatch\"}", "update", RC_UNSUPPORTED},
      {"{\"dataset\":{\"path\":\"a\"},\"update\":\"lazy\"}", "update", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"frontier\":\"wall\"}", "frontier", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"aging_ms\":0}", "aging_ms", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"group_timeout_ms\":0}", "group_timeout_ms", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"filter\":{\"refill_max\":5000}}", "filter.refill_max", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"temperature\":0}}", "sampling.temperature", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"top_k\":5}}", "sampling.top_k", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"verifier\":{\"kind\":\"none\"}}", "verifier.kind", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"filter\":{\"zero_advantage\":\"drop\"}}", "filter.zero_advantage", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"advantage\":{\"kind\":\"best\"}}", "advantage.kind", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"objective\":\"dance\"}}", "training.objective", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"evaluation\":{\"every_rounds\":2}}", "evaluation.path", RC_INVALID},
      {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"objective\":\"cross_entropy\"},\"evaluation\":{\"path\":\"b\","
       "\"every_rounds\":2}}",
       "evaluation", RC_INVALID},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct parsed p;
    parse(&p, cases[i].text);
    if (p.rc != cases[i].rc || !strstr(p.err.field, cases[i].field))
      fail_msg("%s: got %s, field '%s', %s", cases[i].text, rc_name(p.rc), p.err.field, p.err.message);
    parsed_free(&p);
  }
}

static void what_is_written_reads_back_to_the_same_hash(void **state) {
  (void)state;
  const char *text =
      "{\"name\":\"x\",\"seed\":\"18446744073709551615\",\"dataset\":{\"path\":\"a\",\"shuffle\":false},\"rounds\":7,"
      "\"sampling\":{\"temperature\":0.3,\"stop_token_ids\":[5,6]},"
      "\"verifier\":{\"kind\":\"countdown\",\"shuffle_rewards\":true},\"filter\":{\"zero_advantage\":\"refill\","
      "\"refill_max\":3},"
      "\"mode\":\"pipelined\",\"frontier\":\"gate\",\"frontier_groups\":4,\"aging_ms\":77,\"group_timeout_ms\":500,"
      "\"evaluation\":{\"path\":\"v\",\"every_rounds\":2},"
      "\"training\":{\"objective\":\"gspo\",\"lr\":0.1,\"total_steps\":99}}";
  struct parsed first, second;
  struct digest a, b;
  struct buf out = BUF_INIT;
  struct json_writer w;
  assert_int_equal(parse(&first, text)->rc, RC_OK);
  json_writer_init(&w, &out);
  run_config_write(&first.config, &w);
  parse(&second, out.data);
  if (second.rc != RC_OK) fail_msg("%s: %s", second.err.field, second.err.message);
  run_config_hash(&first.config, &a);
  run_config_hash(&second.config, &b);
  assert_true(digest_equal(&a, &b));
  second.config.seed--;
  run_config_hash(&second.config, &b);
  assert_false(digest_equal(&a, &b));
  buf_free(&out);
  parsed_free(&first);
  parsed_free(&second);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults_are_resolved),
      cmocka_unit_test(the_trainer_gets_the_sampling_temperature),
      cmocka_unit_test(faults_name_their_field),
      cmocka_unit_test(what_is_written_reads_back_to_the_same_hash),
  };
  return cmocka_run_group_tests_name("run_config", tests, NULL, NULL);
}
