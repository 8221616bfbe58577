/* A run's configuration. What would break: a default is not resolved, a bound is not kept, the written form reads back
 * to another hash. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <string.h>

#include "services/coordinator/run/run_config.h"
#include "tests/unit/coordinator/parsed_run.h"

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
  assert_int_equal(p.config.keep_rounds, 0);
  assert_int_equal(run_pass_timeout_ms(&p.config), RUN_PASS_TIMEOUT_MS);
  assert_int_equal(p.config.verifier.terms[0].kind, VERIFIER_NUMERIC);
  assert_true(p.config.training.temperature == 1.0);
  parsed_free(&p);
}

/* PipelineRL's, where the configuration says nothing else. */
static void inflight_has_defaults_of_its_own(void **state) {
  (void)state;
  struct parsed p;
  parse(&p, "{\"mode\":\"inflight\",\"dataset\":{\"path\":\"a\"}}");
  assert_string_equal(p.config.training.objective, "reinforce");
  assert_string_equal(p.config.training.normalization, "samples");
  assert_true(p.config.training.clip_high == 4 && p.config.advantage == ADVANTAGE_LEAVE_ONE_OUT);
  parsed_free(&p);
  parse(&p, "{\"mode\":\"inflight\",\"dataset\":{\"path\":\"a\"},\"advantage\":{\"kind\":\"group\"},\"training\":{"
            "\"objective\":\"ppo\",\"clip_high\":0.25,\"normalization\":\"tokens\"}}");
  assert_string_equal(p.config.training.objective, "ppo");
  assert_string_equal(p.config.training.normalization, "tokens");
  assert_true(p.config.training.clip_high == 0.25 && p.config.advantage == ADVANTAGE_GROUP);
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

/* What samplers leave out the trainer leaves out too; where nothing is trained on, or nothing is sampled, it has no
 * say. */
static void the_trainer_gets_what_samplers_leave_out(void **state) {
  (void)state;
  struct parsed p;
  assert_int_equal(parse(&p, "{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"top_k\":40,\"top_p\":0.95,\"min_p\":0.02},"
                             "\"training\":{\"top_p\":0.5}}")
                       ->rc,
                   RC_OK);
  assert_true(p.config.training.cut.top_k == 40 && p.config.training.cut.top_p == 0.95 &&
              p.config.training.cut.min_p == 0.02);
  parsed_free(&p);
  assert_int_equal(parse(&p, "{\"dataset\":{\"path\":\"a\"},\"training\":{\"top_p\":0.5}}")->rc, RC_OK);
  assert_null(sampling_cut_name(&p.config.training.cut));
  parsed_free(&p);
  assert_int_equal(parse(&p, "{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"sampling\":{\"top_p\":0.9}}")->rc,
                   RC_OK);
  assert_true(p.config.training.cut.top_p == 0.9);
  parsed_free(&p);
  assert_int_equal(parse(&p, "{\"dataset\":{\"path\":\"a\"},\"update\":\"minibatch\",\"groups_per_step\":8,"
                             "\"sampling\":{\"min_p\":0.1}}")
                       ->rc,
                   RC_OK);
  assert_true(p.config.training.cut.min_p == 0.1);
  parsed_free(&p);
  assert_int_equal(parse(&p,
                         "{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"temperature\":0.6,\"top_p\":0.95},"
                         "\"training\":{\"objective\":\"evaluate\",\"kl_coefficient\":1}}")
                       ->rc,
                   RC_OK);
  assert_null(sampling_cut_name(&p.config.training.cut));
  assert_true(p.config.sampling.cut.top_p == 0.95);
  parsed_free(&p);
}

static const struct faulty_config {
  const char *text, *field;
  enum rc rc;
} faulty_configs[] = {
    {"{}", "dataset", RC_INVALID},
    {"{\"dataset\":{\"path\":\"\"}}", "dataset.path", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\",\"pth\":1}}", "dataset.pth", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"rounds\":0}", "rounds", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"overlong\":{}}", "overlong.buffer", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"overlong\":{\"buffer\":-1}}", "overlong.buffer", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"overlong\":{\"buffer\":257}}", "overlong.buffer", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"rounds\":1.5}", "rounds", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"groups_per_round\":0}", "groups_per_round", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"fast\"}", "mode", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\",\"curriculum\":{}}}", "dataset.curriculum.rate_max", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\",\"curriculum\":{\"rate_min\":0.6,\"rate_max\":0.5}}}", "dataset.curriculum.rate_max",
     RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\",\"curriculum\":{\"rate_max\":1.5}}}", "dataset.curriculum.rate_max", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\",\"curriculum\":{\"rate_max\":0.5,\"rest_epochs\":0}}}",
     "dataset.curriculum.rest_epochs", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\",\"curriculum\":{\"rate_max\":0.5}},\"mode\":\"inflight\"}", "dataset.curriculum",
     RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\",\"curriculum\":{\"rate_max\":0.5}},\"training\":{\"objective\":\"cross_entropy\"}"
     "}",
     "dataset.curriculum", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\",\"curriculum\":{\"rate_max\":0.5}},\"training\":{\"objective\":\"evaluate\"}}",
     "dataset.curriculum", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"max_lag\":1}", "max_lag", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"samples_ahead\":64}", "samples_ahead", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"kv\":\"keep\"}", "kv", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"order\":\"completion\"}", "order", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"full\":\"block\"}", "full", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"full\":\"drop\"}", "full", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"update\":\"inflight\"}", "update", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"update\":\"strict\"}", "update", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"max_lag\":1001}", "max_lag", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"max_lag\":-1}", "max_lag", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"samples_ahead\":7}", "samples_ahead", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"samples_ahead\":32769}", "samples_ahead", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"kv\":\"drop\"}", "kv", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"order\":\"replay\"}", "order", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"groups_per_round\":8,\"groups_per_step\":4}",
     "groups_per_step", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"groups_per_round\":0}", "groups_per_round", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"eps\":1e-38}}", "training.eps", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"beta1\":0.99999995}}", "training.beta1", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"beta2\":0.99999998}}", "training.beta2", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"samples_per_group\":1}", "samples_per_group", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"samples_per_group\":1,\"filter\":{\"zero_advantage\":\"refill\"},\"training\":"
     "{\"kl_coefficient\":1}}",
     "samples_per_group", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"samples_per_group\":1,\"recipe\":\"rloo\"}", "samples_per_group", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"verifier\":{\"terms\":[{\"kind\":\"none\"},{\"kind\":\"math\",\"weight\":0}]}}",
     "verifier.terms", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"objective\":\"evaluate\"},\"evaluation\":{\"path\":\"b\"}}",
     "evaluation", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"update\":\"minibatch\"}", "groups_per_step", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"update\":\"minibatch\",\"groups_per_step\":65}", "groups_per_step", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"groups_per_step\":8}", "groups_per_step", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"update\":\"minibatch\"}}", "training.update", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"update\":\"minibatch\",\"groups_per_step\":8,\"training\":{\"update\":"
     "\"strict\"}}",
     "training.update", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"update\":\"minibatch\",\"groups_per_step\":8,\"training\":{\"objective\":"
     "\"cross_entropy\"}}",
     "training.update", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"update\":\"minibatch\",\"groups_per_step\":8,\"training\":{\"objective\":"
     "\"evaluate\"}}",
     "training.update", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"update\":\"lazy\"}", "update", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"frontier\":\"wall\"}", "frontier", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"aging_ms\":0}", "aging_ms", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"pass_timeout_ms\":-1}", "pass_timeout_ms", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"keep_rounds\":-1}", "keep_rounds", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"keep_rounds\":1000001}", "keep_rounds", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"group_timeout_ms\":0}", "group_timeout_ms", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"filter\":{\"refill_max\":5000}}", "filter.refill_max", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"temperature\":0}}", "sampling.temperature", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"temperature\":1.2e-38}}", "sampling.temperature", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"top_k\":-1}}", "sampling.top_k", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"top_p\":0}}", "sampling.top_p", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"min_p\":2}}", "sampling.min_p", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"stop\":\"\"}}", "sampling.stop", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"stop\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}}", "sampling.stop",
     RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"stop\":{\"a\":1}}}", "sampling.stop", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"repetition_penalty\":1.1}}", "sampling.repetition_penalty",
     RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"logit_bias\":{\"5\":1}}}", "sampling.logit_bias", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"topk\":5}}", "sampling.topk", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"ignore_eos\":1}}", "sampling.ignore_eos", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"ignore_eos\":true,\"stop_token_ids\":[5]}}", "sampling.ignore_eos",
     RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"verifier\":{\"kind\":\"none\"}}", "verifier.kind", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"filter\":{\"zero_advantage\":\"drop\"}}", "filter.zero_advantage", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"advantage\":{\"kind\":\"best\"}}", "advantage.kind", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"objective\":\"dance\"}}", "training.objective", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"objective\":\"tis\"}}", "training.importance_cap", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"importance_cap\":2}}", "training.importance_cap", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"evaluation\":{\"every_rounds\":2}}", "evaluation.path", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"objective\":\"cross_entropy\"},\"evaluation\":{\"path\":\"b\","
     "\"every_rounds\":2}}",
     "evaluation", RC_INVALID},
#define LONG_NAME                                                                               \
  "a-name-that-is-longer-than-the-sixty-three-bytes-which-a-name-may-have-when-it-is-given-or-" \
  "made-of-a-file's-own-and-then-some-more-of-it"
#define SETS(sets, more) "{\"dataset\":{\"path\":\"a\"},\"evaluation\":{\"every_rounds\":2,\"sets\":" sets "}" more "}"
#define TWO              "[{\"path\":\"x\",\"samples\":6},{\"path\":\"y\"}]"
    {SETS("[]", ""), "evaluation.sets", RC_INVALID},
    {SETS("[{\"path\":\"x\"}],\"path\":\"y\"", ""), "evaluation.sets", RC_INVALID},
    {SETS("[{\"name\":\"x\"}]", ""), "evaluation.sets[0].path", RC_INVALID},
    {SETS("[{\"path\":\"" LONG_NAME ".jsonl\"}]", ""), "evaluation.sets[0].name", RC_INVALID},
    {SETS("[{\"path\":\"d/x.jsonl\"},{\"path\":\"d/x.v2.jsonl.gz\"}]", ""), "evaluation.sets", RC_INVALID},
    {SETS("[{\"path\":\"x\",\"problems\":4000},{\"path\":\"y\",\"problems\":97}]", ""), "evaluation.sets", RC_INVALID},
    {SETS("[{\"path\":\"x\",\"verifier\":{\"kind\":\"numeric\",\"shuffle_rewards\":true}}]", ""),
     "evaluation.sets[0].verifier.shuffle_rewards", RC_INVALID},
    {SETS("[{\"path\":\"x\",\"verifier\":{\"kind\":\"http\",\"url\":\"http://127.0.0.1:1/\"}}]", ""),
     "evaluation.sets[0].verifier", RC_INVALID},
    {SETS(TWO, ",\"keep_best\":{}"), "keep_best.set", RC_INVALID},
    {SETS(TWO, ",\"keep_best\":{\"set\":\"z\"}"), "keep_best.set", RC_INVALID},
    {SETS(TWO, ",\"keep_best\":{\"set\":\"x\",\"figure\":\"pass@3\"}"), "keep_best.figure", RC_INVALID},
    {SETS(TWO, ",\"keep_best\":{\"set\":\"x\",\"figure\":\"pass@08\"}"), "keep_best.figure", RC_INVALID},
    {SETS(TWO, ",\"keep_best\":{\"set\":\"y\",\"figure\":\"majority\"}"), "keep_best.figure", RC_INVALID},
    {SETS(TWO, ",\"keep_best\":{\"set\":\"x\"},\"mode\":\"inflight\""), "keep_best", RC_INVALID},
    {SETS(TWO ",\"after\":true", ",\"mode\":\"inflight\""), "evaluation.after", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"evaluation\":{\"path\":\"x\"},\"keep_best\":{}}", "keep_best", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"keep_best\":{}}", "keep_best", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"keep_last\":1001}", "keep_last", RC_INVALID},
    {"{\"dataset\":{\"path\":\"a\"},\"keep_last\":1,\"training\":{\"objective\":\"evaluate\"}}", "keep_last",
     RC_INVALID},
};

static void faults_name_their_field(void **state) {
  (void)state;
  for (size_t i = 0; i < sizeof faulty_configs / sizeof faulty_configs[0]; i++) {
    const struct faulty_config *f = &faulty_configs[i];
    struct parsed p;
    parse(&p, f->text);
    if (p.rc != f->rc || !strstr(p.err.field, f->field))
      fail_msg("%s: got %s, field '%s', %s", f->text, rc_name(p.rc), p.err.field, p.err.message);
    parsed_free(&p);
  }
}

/* Near what would do nothing: a part of it is left that does something. */
static void what_still_learns_is_taken(void **state) {
  (void)state;
  static const char *const configs[] = {
      "{\"dataset\":{\"path\":\"a\"},\"samples_per_group\":1,\"mode\":\"sync\",\"advantage\":{\"kind\":\"batch\"}}",
      "{\"dataset\":{\"path\":\"a\"},\"samples_per_group\":1,\"training\":{\"kl_coefficient\":1}}",
      "{\"dataset\":{\"path\":\"a\"},\"samples_per_group\":1,\"training\":{\"entropy_coefficient\":1}}",
      "{\"dataset\":{\"path\":\"a\"},\"samples_per_group\":1,\"training\":{\"objective\":\"evaluate\"}}",
      "{\"dataset\":{\"path\":\"a\"},\"samples_per_group\":1,\"recipe\":\"sft\"}",
      "{\"dataset\":{\"path\":\"a\"},\"verifier\":{\"terms\":[{\"kind\":\"none\"},{\"kind\":\"math\",\"weight\":-1}]}}",
      "{\"dataset\":{\"path\":\"a\"},\"recipe\":\"distill\",\"verifier\":{\"terms\":[{\"kind\":\"none\"},{\"kind\":"
      "\"math\"}]},\"filter\":{\"zero_advantage\":\"refill\"},\"training\":{\"teacher\":"
      "\"0123456789012345678901234567890123456789012345678901234567890123\"}}",
      "{\"dataset\":{\"path\":\"a\"},\"training\":{\"eps\":1.1754943508222875e-38,\"beta1\":0.99999994,\"beta2\":"
      "0.99999994}}",
      "{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"groups_per_round\":null,\"groups_per_step\":8}",
      "{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\",\"groups_per_round\":8,\"groups_per_step\":null}"};
  for (size_t i = 0; i < sizeof configs / sizeof *configs; i++) {
    struct parsed p;
    if (parse(&p, configs[i])->rc != RC_OK) fail_msg("%s: field '%s', %s", configs[i], p.err.field, p.err.message);
    if (p.config.mode == MODE_INFLIGHT) assert_true(p.config.groups_per_round == 8 && p.config.groups_per_step == 8);
    parsed_free(&p);
  }
}

/* Somebody who comes from another trainer is told our name, not a list to guess it from; the names that are ours
 * somewhere else in a configuration stay what they are there. */
static void names_of_other_trainers_are_answered_with_ours(void **state) {
  (void)state;
  static const struct {
    const char *text, *field, *words;
  } cases[] = {
      {"{\"learning_rate\":1}", "learning_rate", "other trainers call `learning_rate` is `training.lr` here"},
      {"{\"dataset\":{\"path\":\"a\"},\"training\":{\"beta\":1}}", "training.beta", "`training.kl_coefficient`"},
      {"{\"sampling\":{\"max_completion_length\":1}}", "sampling.max_completion_length", "`sampling.max_new_tokens`"},
      {"{\"temperature\":1}", "temperature", "`sampling.temperature`"},
      {"{\"num_iterations\":2}", "num_iterations", "a group is trained on once"},
      {"{\"nothing_of_anybody\":2,\"dataset\":{\"path\":\"a\"}}", "nothing_of_anybody", "expected one of name, recipe"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    struct parsed p;
    assert_int_equal(parse(&p, cases[i].text)->rc, RC_INVALID);
    assert_string_equal(p.err.field, cases[i].field);
    assert_non_null(strstr(p.err.message, cases[i].words));
    parsed_free(&p);
  }
}

/* Sets inherit from the block, the block from the dataset; names are told by the files. */
static void sets_of_an_evaluation_are_resolved(void **state) {
  (void)state;
  struct parsed first, second;
  struct digest a, b;
  struct buf out = BUF_INIT;
  struct json_writer w;
  parse(&first,
        "{\"dataset\":{\"path\":\"a\",\"preset\":\"gsm8k\"},\"verifier\":{\"kind\":\"math\"},\"keep_last\":3,\"keep_"
        "best\":{\"set\":"
        "\"hard\",\"figure\":\"pass@6\",\"count\":2},\"evaluation\":{\"before\":true,\"after\":true,\"samples\":6,"
        "\"temperature\":0.5,"
        "\"sets\":[{\"path\":\"d/"
        ".x.jsonl.gz\"},{\"name\":\"hard\",\"path\":\"y\",\"temperature\":1,\"problems\":9,\"preset\":\"dapo\","
        "\"verifier\":{\"kind\":\"choice\"}}]}}");
  if (first.rc != RC_OK) fail_msg("%s: %s", first.err.field, first.err.message);
  json_writer_init(&w, &out);
  run_config_write(&first.config, &w);
  parse(&second, out.data);
  if (second.rc != RC_OK) fail_msg("%s: %s in %s", second.err.field, second.err.message, out.data);
  const struct run_config *configs[] = {&first.config, &second.config};
  for (int i = 0; i < 2; i++) {
    const struct evaluation_config *e = &configs[i]->evaluation;
    const struct evaluation_set *x = &e->sets[0], *y = &e->sets[1];
    assert_true(e->count == 2 && e->before && e->after && e->every_rounds == 0);
    assert_string_equal(x->name, "d/.x");
    assert_true(x->samples == 6 && x->temperature == 0.5 && x->problems == 64);
    assert_int_equal(x->verifier.terms[0].kind, VERIFIER_MATH);
    assert_string_equal(x->reading.preset, "gsm8k");
    assert_string_equal(y->name, "hard");
    assert_true(y->samples == 6 && y->temperature == 1 && y->problems == 9);
    assert_int_equal(y->verifier.terms[0].kind, VERIFIER_CHOICE);
    assert_string_equal(y->reading.preset, "dapo");
    const struct keep_best *k = &configs[i]->keep_best;
    assert_true(configs[i]->keep_last == 3 && k->count == 2 && k->figure == FIGURE_PASS && k->k == 6);
    assert_string_equal(k->set, "hard");
  }
  run_config_hash(&first.config, &a);
  run_config_hash(&second.config, &b);
  assert_true(digest_equal(&a, &b));
  buf_free(&out);
  parsed_free(&first);
  parsed_free(&second);
}

static void what_is_written_reads_back_to_the_same_hash(void **state) {
  (void)state;
  const char *text =
      "{\"name\":\"x\",\"seed\":\"18446744073709551615\",\"dataset\":{\"path\":\"a\",\"shuffle\":false,\"curriculum\":"
      "{\"rate_max\":0.5,\"pass_reward\":0.25,\"rest_epochs\":3,\"from\":\"r2\"}},\"rounds\":7,"
      "\"sampling\":{\"temperature\":0.3,\"top_k\":7,\"top_p\":0.9,\"stop_token_ids\":[5,6],\"stop\":\"</s>\"},"
      "\"verifier\":{\"kind\":\"countdown\",\"shuffle_rewards\":true},\"filter\":{\"zero_advantage\":\"refill\","
      "\"refill_max\":3},"
      "\"mode\":\"pipelined\",\"frontier\":\"gate\",\"frontier_groups\":4,\"aging_ms\":77,\"group_timeout_ms\":500,"
      "\"evaluation\":{\"path\":\"v\",\"every_rounds\":2},\"start\":{\"run\":\"r3\",\"version\":600},"
      "\"keep_rounds\":5,\"pass_timeout_ms\":250,\"training\":{\"objective\":\"gspo\",\"lr\":0.1,\"total_steps\":99}}";
  struct parsed first, second;
  struct digest a, b;
  struct buf out = BUF_INIT;
  struct json_writer w;
  assert_int_equal(parse(&first, text)->rc, RC_OK);
  json_writer_init(&w, &out);
  run_config_write(&first.config, &w);
  parse(&second, out.data);
  if (second.rc != RC_OK) fail_msg("%s: %s", second.err.field, second.err.message);
  assert_int_equal(second.config.keep_rounds, 5);
  assert_int_equal(second.config.curriculum.rule.rest_epochs, 3);
  assert_string_equal(second.config.curriculum.from, "r2");
  assert_true(run_config_same_dataset(&first.config, &second.config));
  second.config.curriculum.given = false;
  assert_true(run_config_same_dataset(&first.config, &second.config)); /* the files are the same */
  second.config.curriculum.given = true;
  assert_int_equal(second.config.training.cut.top_k, 7);
  assert_int_equal(second.config.sampling.stop.count, 1);
  assert_string_equal(second.config.sampling.stop.items[0], "</s>");
  assert_int_equal(run_pass_timeout_ms(&second.config), 250);
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

/* A posted run stops at the tokenizer's end of text, too, unless it says what stops it; one that was stored before
 * there was such a key goes on as it began. */
static void a_stored_configuration_alone_says_whether_the_tokenizers_eos_counts(void **state) {
  (void)state;
  static const struct {
    const char *sampling;
    bool counts;
  } cases[] = {{"{}", true},
               {"{\"tokenizer_eos\":true}", true},
               {"{\"tokenizer_eos\":false}", false},
               {"{\"stop_token_ids\":[5]}", false},
               {"{\"stop_token_ids\":[]}", true},
               {"{\"ignore_eos\":true}", false}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[256];
    struct parsed p;
    struct run_config stored;
    struct arena arena = ARENA_INIT;
    struct buf out = BUF_INIT;
    struct json_writer w;
    snprintf(text, sizeof text, "{\"dataset\":{\"path\":\"a\"},\"sampling\":%s}", cases[i].sampling);
    assert_int_equal(parse(&p, text)->rc, RC_OK);
    assert_int_equal(p.config.sampling.tokenizer_eos, cases[i].counts);
    json_writer_init(&w, &out);
    run_config_write(&p.config, &w);
    assert_int_equal(strstr(out.data, "\"tokenizer_eos\":true") != NULL, cases[i].counts);
    assert_int_equal(strstr(out.data, "\"tokenizer_eos\":false") != NULL, i == 2);
    assert_int_equal(run_config_parse_stored(&stored, out.data, out.len, &arena, NULL), RC_OK);
    assert_int_equal(stored.sampling.tokenizer_eos, cases[i].counts);
    assert_int_equal(run_config_parse_stored(&stored, text, strlen(text), &arena, NULL), RC_OK);
    assert_int_equal(stored.sampling.tokenizer_eos, i == 1);
    arena_free(&arena);
    buf_free(&out);
    parsed_free(&p);
  }
}

/* Stored when it is true, and else left out: configurations from before there was such a key keep their hash. */
static void ignoring_eos_is_written_only_when_it_is_asked_for(void **state) {
  (void)state;
  static const char *const plain = "{\"dataset\":{\"path\":\"a\"}}",
                           *const off = "{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"ignore_eos\":false}}",
                           *const on =
                               "{\"dataset\":{\"path\":\"a\"},\"sampling\":{\"ignore_eos\":true,"
                               "\"stop_token_ids\":[]}}";
  struct parsed p, again;
  struct digest of_plain, of_off, of_on, of_again;
  struct buf out = BUF_INIT;
  struct json_writer w;
  assert_int_equal(parse(&p, plain)->rc, RC_OK);
  assert_false(p.config.sampling.ignore_eos);
  run_config_hash(&p.config, &of_plain);
  parsed_free(&p);
  assert_int_equal(parse(&p, off)->rc, RC_OK);
  run_config_hash(&p.config, &of_off);
  parsed_free(&p);
  assert_true(digest_equal(&of_plain, &of_off));
  assert_int_equal(parse(&p, on)->rc, RC_OK);
  assert_true(p.config.sampling.ignore_eos);
  run_config_hash(&p.config, &of_on);
  assert_false(digest_equal(&of_plain, &of_on));
  json_writer_init(&w, &out);
  run_config_write(&p.config, &w);
  assert_int_equal(parse(&again, out.data)->rc, RC_OK);
  assert_true(again.config.sampling.ignore_eos);
  run_config_hash(&again.config, &of_again);
  assert_true(digest_equal(&of_on, &of_again));
  buf_free(&out);
  parsed_free(&again);
  parsed_free(&p);
}

/* Written where there is one, so that older configurations keep their hash. */
static void a_penalty_of_long_samples_is_optional(void **state) {
  (void)state;
  static const struct {
    const char *more;
    int32_t buffer;
    bool written;
  } cases[] = {
      {"", 0, false},
      {",\"overlong\":null", 0, false},
      {",\"overlong\":{\"buffer\":256}", 256, true},
      {",\"overlong\":{\"buffer\":1}", 1, true},
      {",\"overlong\":{\"buffer\":9},\"training\":{\"objective\":\"cross_entropy\"}", 0, false},
      {",\"overlong\":{\"buffer\":9},\"training\":{\"objective\":\"evaluate\"}", 0, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[256];
    struct parsed p, again;
    struct buf out = BUF_INIT;
    struct json_writer w;
    snprintf(text, sizeof text, "{\"dataset\":{\"path\":\"a\"}%s}", cases[i].more);
    if (parse(&p, text)->rc != RC_OK) fail_msg("%s: %s", text, p.err.message);
    assert_int_equal(p.config.overlong_buffer, cases[i].buffer);
    json_writer_init(&w, &out);
    run_config_write(&p.config, &w);
    assert_int_equal(strstr(out.data, "overlong") != NULL, cases[i].written);
    assert_int_equal(parse(&again, out.data)->rc, RC_OK);
    assert_int_equal(again.config.overlong_buffer, cases[i].buffer);
    buf_free(&out);
    parsed_free(&again);
    parsed_free(&p);
  }
}

static void a_run_in_flight_has_its_own_defaults(void **state) {
  (void)state;
  static const struct {
    const char *more;
    int groups, max_lag, samples_ahead;
    bool recompute, drops;
    enum stream_order order;
  } cases[] = {
      {"", 64, 8, 1024, false, false, ORDER_COMPLETION},
      {",\"groups_per_round\":16", 16, 8, 256, false, false, ORDER_COMPLETION},
      {",\"groups_per_step\":16,\"max_lag\":0", 16, 0, 256, false, false, ORDER_COMPLETION},
      {",\"groups_per_step\":4,\"groups_per_round\":4,\"samples_ahead\":8,\"kv\":\"recompute\"", 4, 8, 8, true,
       false, ORDER_COMPLETION},
      {",\"full\":\"block\"", 64, 8, 1024, false, false, ORDER_COMPLETION},
      {",\"groups_per_round\":2049", 2049, 8, 32768, false, false, ORDER_COMPLETION},
      {",\"groups_per_round\":4096", 4096, 8, 32768, false, false, ORDER_COMPLETION},
      {",\"full\":\"drop_oldest\"", 64, 8, 1024, false, true, ORDER_COMPLETION},
      {",\"order\":\"submission\",\"update\":\"inflight\",\"kv\":null", 64, 8, 1024, false, false, ORDER_SUBMISSION},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct parsed p, again;
    struct digest a, b;
    struct buf out = BUF_INIT;
    struct json_writer w;
    char text[256];
    snprintf(text, sizeof text, "{\"dataset\":{\"path\":\"a\"},\"mode\":\"inflight\"%s}", cases[i].more);
    parse(&p, text);
    const struct run_config *c = &p.config;
    if (p.rc != RC_OK) fail_msg("%s: %s: %s", text, p.err.field, p.err.message);
    assert_int_equal(c->training.update, UPDATE_INFLIGHT);
    assert_int_equal(c->training.total_steps, c->rounds);
    if (c->groups_per_round != cases[i].groups || c->groups_per_step != cases[i].groups ||
        c->max_lag != cases[i].max_lag || c->samples_ahead != cases[i].samples_ahead ||
        c->kv_recompute != cases[i].recompute || c->drops_oldest != cases[i].drops || c->order != cases[i].order)
      fail_msg("%s: %d groups, lag %d, %d ahead", text, c->groups_per_round, c->max_lag, c->samples_ahead);
    json_writer_init(&w, &out);
    run_config_write(c, &w);
    assert_int_equal(parse(&again, out.data)->rc, RC_OK);
    assert_int_equal(again.config.drops_oldest, cases[i].drops);
    run_config_hash(c, &a);
    run_config_hash(&again.config, &b);
    assert_true(digest_equal(&a, &b));
    buf_free(&out);
    parsed_free(&again);
    parsed_free(&p);
  }
}

static void a_start_is_resolved_by_the_objective(void **state) {
  (void)state;
  static const struct {
    const char *more;
    enum start_from from;
    enum rc rc;
  } cases[] = {
      {"", START_MODEL, RC_OK},
      {",\"training\":{\"objective\":\"cross_entropy\"}", START_MODEL, RC_OK},
      {",\"training\":{\"objective\":\"evaluate\"}", START_CURRENT, RC_OK},
      {",\"start\":\"model\"", START_MODEL, RC_OK},
      {",\"start\":\"current\"", START_CURRENT, RC_OK},
      {",\"start\":{\"run\":\"r3\",\"version\":600}", START_CHECKPOINT, RC_OK},
      {",\"start\":\"current\",\"training\":{\"objective\":\"evaluate\"}", START_CURRENT, RC_OK},
      {",\"start\":\"model\",\"training\":{\"objective\":\"evaluate\"}", START_MODEL, RC_OK},
      {",\"start\":{\"run\":\"r3\",\"version\":6},\"training\":{\"objective\":\"evaluate\"}", START_CHECKPOINT, RC_OK},
      {",\"start\":{\"run\":\"r3\",\"version\":\"best\"}", START_CHECKPOINT, RC_OK},
      {",\"start\":{\"run\":\"r3\",\"version\":\"latest\"}", START_CHECKPOINT, RC_OK},
      {",\"start\":{\"run\":\"r3\",\"version\":\"first\"}", START_UNNAMED, RC_INVALID},
      {",\"start\":{\"version\":\"best\"}", START_UNNAMED, RC_INVALID},
      {",\"start\":\"r3\"", START_UNNAMED, RC_INVALID},
      {",\"start\":{\"run\":\"../r3\",\"version\":6}", START_UNNAMED, RC_INVALID},
      {",\"start\":{\"run\":\"r3\",\"version\":-1}", START_UNNAMED, RC_INVALID},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct parsed p;
    char text[256];
    snprintf(text, sizeof text, "{\"dataset\":{\"path\":\"a\"}%s}", cases[i].more);
    parse(&p, text);
    if (p.rc != cases[i].rc || (p.rc == RC_OK && p.config.start.from != cases[i].from) ||
        (p.rc != RC_OK && strncmp(p.err.field, "start", 5) != 0))
      fail_msg("%s: %s, start %d, field %s: %s", text, rc_name(p.rc), (int)p.config.start.from, p.err.field,
               p.err.message);
    parsed_free(&p);
  }
}

/* What a coordinator stored before there was `start` means the weights that the trainer holds, and is hashed as it
 * was. */
static void a_stored_configuration_without_a_start_keeps_its_meaning_and_hash(void **state) {
  (void)state;
  static const char stored[] =
      "{\"name\":\"x\",\"mode\":\"pipelined\",\"update\":\"strict\",\"frontier\":\"priority\",\"frontier_groups\":0,"
      "\"aging_ms\":30000,\"group_timeout_ms\":1800000,\"seed\":7,\"rounds\":3,\"dataset\":{\"path\":\"a\",\"shuffle\":"
      "true},\"groups_per_round\":64,\"samples_per_group\":8,\"lease_samples_max\":0,\"sampling\":{\"temperature\":1,"
      "\"max_new_tokens\":256,\"stop_token_ids\":[]},\"verifier\":{\"kind\":\"numeric\",\"shuffle_rewards\":false},"
      "\"advantage\":{\"kind\":\"group\",\"epsilon\":0.0001},\"filter\":{\"zero_advantage\":\"keep\",\"refill_max\":64}"
      ","
      "\"training\":{\"objective\":\"grpo\",\"clip_low\":0.2,\"clip_high\":0.2,\"kl_coefficient\":0,\"normalization\":"
      "\"tokens\",\"lr\":1e-06,\"beta1\":0.9,\"beta2\":0.999,\"eps\":1e-08,\"weight_decay\":0.01,\"clip_norm\":0.3,"
      "\"lr_min_ratio\":0,\"schedule\":\"constant\",\"warmup_steps\":0,\"total_steps\":3,\"temperature\":1,"
      "\"chunk_tokens\":4096,\"checkpoint_every\":1},\"stage_timeout_ms\":10000,\"publish_every\":1}";
  struct parsed p = {0};
  struct buf out = BUF_INIT;
  struct json_writer w;
  struct digest before, after;
  assert_int_equal(run_config_parse_stored(&p.config, stored, strlen(stored), &p.arena, &p.err), RC_OK);
  assert_int_equal(p.config.start.from, START_UNNAMED);
  json_writer_init(&w, &out);
  run_config_write(&p.config, &w);
  assert_string_equal(out.data, stored);
  digest_of(&before, stored, strlen(stored));
  run_config_hash(&p.config, &after);
  assert_true(digest_equal(&before, &after));
  buf_free(&out);
  parsed_free(&p);
}

static int32_t total_steps_of(const char *more) {
  char text[256];
  struct parsed p;
  snprintf(text, sizeof text, "{\"dataset\":{\"path\":\"a\"},\"rounds\":7%s}", more);
  assert_int_equal(parse(&p, text)->rc, RC_OK);
  const int32_t steps = p.config.training.total_steps;
  parsed_free(&p);
  return steps;
}

static void a_schedule_spans_all_steps_of_all_rounds(void **state) {
  (void)state;
  assert_int_equal(total_steps_of(""), 7);
  assert_int_equal(total_steps_of(",\"update\":\"minibatch\",\"groups_per_round\":10,\"groups_per_step\":3"), 28);
  assert_int_equal(total_steps_of(",\"update\":\"minibatch\",\"groups_per_round\":10,\"groups_per_step\":10"), 7);
}

/* People copy what a run shows and post it: what it left out took the default then, and samples were verified that the
 * copied run had not. */
static void what_is_shown_is_the_same_run_when_it_is_posted(void **state) {
  (void)state;
  static const char *const more[] = {"",
                                     ",\"verify_samples\":false",
                                     ",\"sampling\":{\"tokenizer_eos\":false}",
                                     ",\"sampling\":{\"tokenizer_eos\":false,\"stop_token_ids\":[5]}",
                                     ",\"sampling\":{\"ignore_eos\":true}",
                                     ",\"verify_samples\":true,\"on_inexact\":\"drop\"",
                                     ",\"mode\":\"inflight\",\"verify_samples\":false,\"full\":\"drop_oldest\"",
                                     ",\"recipe\":\"dapo\",\"verify_samples\":false,\"mask_truncated\":true",
                                     ",\"recipe\":\"reinforce++\",\"keep_rounds\":2,\"keep_last\":3",
                                     ",\"recipe\":\"sft\",\"verify_samples\":true",
                                     ",\"training\":{\"objective\":\"evaluate\"},\"verify_samples\":false"};
  for (size_t i = 0; i < sizeof more / sizeof more[0]; i++) {
    char text[256];
    struct parsed p, again;
    struct buf out = BUF_INIT;
    struct json_writer w;
    struct digest before, after;
    snprintf(text, sizeof text, "{\"dataset\":{\"path\":\"a\"}%s}", more[i]);
    assert_int_equal(parse(&p, text)->rc, RC_OK);
    run_config_hash(&p.config, &before);
    json_writer_init(&w, &out);
    run_config_write(&p.config, &w);
    if (parse(&again, out.data)->rc != RC_OK) fail_msg("%s: %s", out.data, again.err.message);
    run_config_hash(&again.config, &after);
    assert_int_equal(again.config.verify_samples, p.config.verify_samples);
    assert_true(digest_equal(&before, &after));
    buf_free(&out);
    parsed_free(&again);
    parsed_free(&p);
  }
}

static void a_minibatch_run_reads_back_to_the_same_hash(void **state) {
  (void)state;
  struct parsed p, again;
  struct buf out = BUF_INIT;
  struct json_writer w;
  struct digest before, after;
  parse(&p, "{\"dataset\":{\"path\":\"a\"},\"update\":\"minibatch\",\"groups_per_step\":8,\"training\":{\"lr\":0.1}}");
  assert_int_equal(p.rc, RC_OK);
  assert_int_equal(p.config.training.update, UPDATE_MINIBATCH);
  json_writer_init(&w, &out);
  run_config_write(&p.config, &w);
  parse(&again, out.data);
  assert_int_equal(again.rc, RC_OK);
  assert_int_equal(again.config.groups_per_step, 8);
  assert_int_equal(again.config.training.update, UPDATE_MINIBATCH);
  run_config_hash(&p.config, &before);
  run_config_hash(&again.config, &after);
  assert_true(digest_equal(&before, &after));
  buf_free(&out);
  parsed_free(&again);
  parsed_free(&p);
}

/* Where no reading is named, a configuration is written as before there were any. */
static void an_unnamed_reading_leaves_no_trace(void **state) {
  (void)state;
  struct parsed p;
  struct buf text = BUF_INIT;
  struct json_writer w;
  parse(&p, "{\"dataset\":{\"path\":\"a\"},\"evaluation\":{\"path\":\"b\",\"every_rounds\":1}}");
  assert_int_equal(p.rc, RC_OK);
  json_writer_init(&w, &text);
  run_config_write(&p.config, &w);
  assert_non_null(strstr(text.data, "\"dataset\":{\"path\":\"a\",\"shuffle\":true},"));
  assert_non_null(strstr(text.data, "\"temperature\":1,\"problems\":64},"));
  buf_free(&text);
  parsed_free(&p);
}

/* The dataset's reading is that of its sources and of the evaluation, where they name none. */
static void readings_are_inherited_and_read_back(void **state) {
  (void)state;
  struct parsed p, again;
  struct digest one, two;
  struct buf text = BUF_INIT;
  struct json_writer w;
  parse(&p,
        "{\"dataset\":{\"preset\":\"gsm8k\",\"sources\":[{\"path\":\"a\",\"weight\":3},{\"path\":\"b\",\"weight\":1,"
        "\"preset\":\"verl\"}]},\"evaluation\":{\"path\":\"c\",\"every_rounds\":1}}");
  if (p.rc != RC_OK) fail_msg("%s %s", p.err.field, p.err.message);
  json_writer_init(&w, &text);
  run_config_write(&p.config, &w);
  if (parse(&again, text.data)->rc != RC_OK) fail_msg("%s %s", again.err.field, again.err.message);
  run_config_hash(&p.config, &one);
  run_config_hash(&again.config, &two);
  assert_true(digest_equal(&one, &two));
  for (int i = 0; i < 2; i++) {
    const struct run_config *c = i ? &again.config : &p.config;
    assert_int_equal(c->source_count, 2);
    assert_int_equal(c->sources[0].weight, 3);
    assert_string_equal(c->sources[0].reading.prompt.items[0], "question");
    assert_string_equal(c->sources[1].path, "b");
    assert_string_equal(c->sources[1].reading.answer.items[0], "reward_model.ground_truth");
    assert_string_equal(c->evaluation.sets[0].reading.prompt.items[0], "question");
  }
  buf_free(&text);
  parsed_free(&again);
  parsed_free(&p);
}

static void bad_datasets_are_refused_by_name(void **state) {
  (void)state;
  static const struct {
    const char *dataset, *field;
  } cases[] = {
      {"{}", "dataset.path"},
      {"{\"path\":\"a\",\"sources\":[{\"path\":\"a\"}]}", "dataset.sources"},
      {"{\"sources\":[]}", "dataset.sources"},
      {"{\"sources\":{\"path\":\"a\"}}", "dataset.sources"},
      {"{\"sources\":[{\"path\":\"a\"},{\"weight\":1}]}", "dataset.sources[1].path"},
      {"{\"sources\":[{\"path\":\"a\",\"weight\":0}]}", "dataset.sources[0].weight"},
      {"{\"sources\":[{\"path\":\"a\",\"weight\":1001}]}", "dataset.sources[0].weight"},
      {"{\"sources\":[{\"path\":\"a\",\"weight\":1},{\"path\":\"b\"}]}", "dataset.sources"},
      {"{\"sources\":[{\"path\":\"a\",\"preset\":\"x\"}]}", "dataset.sources[0].preset"},
      {"{\"path\":\"a\",\"keys\":{\"prompt\":\"a.\"}}", "dataset.keys.prompt"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct parsed p;
    char text[256];
    snprintf(text, sizeof text, "{\"dataset\":%s}", cases[i].dataset);
    assert_int_equal(parse(&p, text)->rc, RC_INVALID);
    assert_string_equal(p.err.field, cases[i].field);
    parsed_free(&p);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(defaults_are_resolved),
      cmocka_unit_test(inflight_has_defaults_of_its_own),
      cmocka_unit_test(the_trainer_gets_the_sampling_temperature),
      cmocka_unit_test(the_trainer_gets_what_samplers_leave_out),
      cmocka_unit_test(faults_name_their_field),
      cmocka_unit_test(what_still_learns_is_taken),
      cmocka_unit_test(a_stored_configuration_alone_says_whether_the_tokenizers_eos_counts),
      cmocka_unit_test(ignoring_eos_is_written_only_when_it_is_asked_for),
      cmocka_unit_test(a_penalty_of_long_samples_is_optional),
      cmocka_unit_test(a_run_in_flight_has_its_own_defaults),
      cmocka_unit_test(a_start_is_resolved_by_the_objective),
      cmocka_unit_test(a_stored_configuration_without_a_start_keeps_its_meaning_and_hash),
      cmocka_unit_test(sets_of_an_evaluation_are_resolved),
      cmocka_unit_test(what_is_written_reads_back_to_the_same_hash),
      cmocka_unit_test(a_schedule_spans_all_steps_of_all_rounds),
      cmocka_unit_test(what_is_shown_is_the_same_run_when_it_is_posted),
      cmocka_unit_test(a_minibatch_run_reads_back_to_the_same_hash),
      cmocka_unit_test(an_unnamed_reading_leaves_no_trace),
      cmocka_unit_test(readings_are_inherited_and_read_back),
      cmocka_unit_test(names_of_other_trainers_are_answered_with_ours),
      cmocka_unit_test(bad_datasets_are_refused_by_name),
  };
  return cmocka_run_group_tests_name("run_config", tests, NULL, NULL);
}
