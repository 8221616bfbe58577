/* What ends a run's samples and completions, of the model's files: run_context.c.  What would break: a fine-tuned model
 * whose new end of text stands in tokenizer_config.json alone is sampled on and on; a run of before goes on otherwise
 * than it began. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/base/file.h"
#include "services/coordinator/run/dataset.h"
#include "services/coordinator/run/run_context.h"

enum { END_OF_TEXT = 256, END_OF_TURN = 258 };

static char dir[64];
static struct model_files files;

static void fill(struct buf *b, const char *text) {
  buf_clear(b);
  buf_puts(b, text);
}

/* The first four stop ids of a stored run, 0 behind the last; completion: what its first completion ends with. */
static enum rc open_run(int32_t stops[4], int32_t *completion, const char *sampling, const char *objective,
                        struct err *err) {
  char text[512];
  struct run_context *c = NULL;
  *err = (struct err){0};
  snprintf(text, sizeof text,
           "{\"dataset\":{\"path\":\"train.jsonl\"},\"sampling\":%s,\"training\":{\"objective\":\"%s\"}}",
           sampling, objective);
  const enum rc rc = run_context_create(&c, 1, text, &files, dir, err);
  if (rc != RC_OK) return rc;
  for (size_t i = 0; i < 4; i++) stops[i] = i < c->stop_token_ids.count ? c->stop_token_ids.items[i] : 0;
  const struct dataset_item *item = dataset_at(c->dataset, 0);
  *completion = item->completion_length ? item->completion_ids[item->completion_length - 1] : -1;
  run_context_release(c);
  return rc;
}

static void the_tokenizers_end_of_text_counts_in_runs_that_say_so(void **state) {
  (void)state;
  static const struct {
    const char *config, *generation, *tokenizer, *sampling;
    int32_t stops[4], completion;
  } cases[] = {
      {"256", "256", "<|im_end|>", "{\"tokenizer_eos\":true}", {END_OF_TEXT, END_OF_TURN}, END_OF_TURN},
      {"256", "256", "<|im_end|>", "{}", {END_OF_TEXT}, END_OF_TEXT},
      {"null", "null", "<|im_end|>", "{\"tokenizer_eos\":true}", {END_OF_TURN}, END_OF_TURN},
      {"256", "null", "<|im_end|>", "{\"tokenizer_eos\":true}", {END_OF_TEXT, END_OF_TURN}, END_OF_TURN},
      {"256", "[256,258]", "<|im_end|>", "{\"tokenizer_eos\":true}", {END_OF_TEXT, END_OF_TURN}, END_OF_TURN},
      {"256", "[256,258]", "<|im_end|>", "{}", {END_OF_TEXT, END_OF_TURN}, END_OF_TEXT},
      {"256", "256", "</s>", "{\"tokenizer_eos\":true}", {END_OF_TEXT}, END_OF_TEXT},
      {"256", "256", "<|im_end|>", "{\"stop_token_ids\":[7]}", {7}, END_OF_TEXT},
      {"256", "256", "<|im_end|>", "{\"ignore_eos\":true}", {0}, END_OF_TEXT},
      {"256", "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16]", "<|im_end|>", "{\"tokenizer_eos\":true}", {1, 2, 3, 4},
       END_OF_TURN}, /* a lease has room for no more */
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[256];
    struct err err;
    int32_t stops[4], completion;
    snprintf(text, sizeof text, "{\"vocab_size\":272,\"max_position_embeddings\":128,\"eos_token_id\":%s}",
             cases[i].config);
    fill(&files.config, text);
    snprintf(text, sizeof text, "{\"eos_token_id\":%s}", cases[i].generation);
    fill(&files.generation_config, text);
    snprintf(text, sizeof text, "{\"eos_token\":\"%s\"}", cases[i].tokenizer);
    fill(&files.tokenizer_config, text);
    if (open_run(stops, &completion, cases[i].sampling, "cross_entropy", &err) != RC_OK)
      fail_msg("case %zu: %s", i, err.message);
    for (int k = 0; k < 4; k++)
      if (stops[k] != cases[i].stops[k]) fail_msg("case %zu: stop id %d is %d", i, k, stops[k]);
    if (completion != cases[i].completion) fail_msg("case %zu: completions end with %d", i, completion);
  }
}

static void a_model_that_names_no_end_is_refused(void **state) {
  (void)state;
  struct err err;
  int32_t stops[4], completion;
  fill(&files.config, "{\"vocab_size\":272,\"max_position_embeddings\":128}");
  fill(&files.generation_config, "{}");
  fill(&files.tokenizer_config, "{\"eos_token\":\"<|im_end|>\"}");
  assert_int_equal(open_run(stops, &completion, "{\"max_new_tokens\":9}", "grpo", &err), RC_INVALID);
  assert_string_equal(err.field, "sampling.stop_token_ids");
  assert_int_equal(open_run(stops, &completion, "{\"max_new_tokens\":9,\"tokenizer_eos\":true}", "grpo", &err), RC_OK);
  assert_int_equal(stops[0], END_OF_TURN);
  fill(&files.tokenizer_config, "{");
  assert_int_equal(open_run(stops, &completion, "{\"max_new_tokens\":9,\"tokenizer_eos\":true}", "grpo", &err),
                   RC_INVALID);
}

/* A file to evaluate on, and no word of when: somebody would wait for a curve that never comes. */
static void an_evaluation_that_never_happens_is_warned_of(void **state) {
  (void)state;
  static const struct {
    const char *more;
    bool warned;
  } cases[] = {{"", true}, {",\"every_rounds\":2", false}, {",\"before\":true", false}, {",\"after\":true", false}};
  fill(&files.config, "{\"vocab_size\":272,\"max_position_embeddings\":128,\"eos_token_id\":256}");
  fill(&files.generation_config, "{}");
  fill(&files.tokenizer_config, "{}");
  for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
    char text[256];
    struct err err = {0};
    struct run_context *c = NULL;
    struct buf said = BUF_INIT;
    struct json_writer w;
    snprintf(text, sizeof text,
             "{\"dataset\":{\"path\":\"train.jsonl\"},\"sampling\":{\"max_new_tokens\":9},"
             "\"evaluation\":{\"path\":\"train.jsonl\"%s}}",
             cases[i].more);
    if (run_context_create(&c, 1, text, &files, dir, &err) != RC_OK) fail_msg("case %zu: %s", i, err.message);
    json_writer_init(&w, &said);
    run_context_warnings(c, "", &w);
    assert_int_equal(buf_check(&said, NULL), RC_OK);
    assert_int_equal(strstr(said.data, "nothing is evaluated") != NULL, cases[i].warned);
    buf_free(&said);
    run_context_release(c);
  }
}

static int setup(void **state) {
  static const char line[] = "{\"prompt\":\"1+0=\",\"completion\":\"1\",\"answer\":\"1\"}\n";
  struct err err = {0};
  char path[100];
  (void)state;
  snprintf(dir, sizeof dir, "/tmp/coordinator-run-context-XXXXXX");
  if (!mkdtemp(dir)) return 1;
  snprintf(path, sizeof path, "%s/train.jsonl", dir);
  enum rc rc = file_write_atomic(path, line, sizeof line - 1, &err);
  if (rc == RC_OK) rc = file_read(&files.tokenizer, "deploy/demo/model/tokenizer.json", 1 << 24, &err);
  if (rc != RC_OK) print_error("%s\n", err.message);
  return rc == RC_OK ? 0 : 1;
}

static int teardown(void **state) {
  (void)state;
  buf_free(&files.config);
  buf_free(&files.tokenizer);
  buf_free(&files.generation_config);
  buf_free(&files.tokenizer_config);
  return file_remove_tree(dir, NULL) == RC_OK ? 0 : 1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_tokenizers_end_of_text_counts_in_runs_that_say_so),
      cmocka_unit_test(a_model_that_names_no_end_is_refused),
      cmocka_unit_test(an_evaluation_that_never_happens_is_warned_of),
  };
  return cmocka_run_group_tests_name("coordinator/run_context", tests, setup, teardown);
}
