/* Datasets: what a line may hold, and in which order lines and files come. What would break: a bad line is accepted, or
 * refused without its number; the order depends on more than the seed; a mixture's weights are not kept. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "services/coordinator/run/dataset.h"
#include "services/coordinator/verifiers/reward_config.h"

enum { EOS = 256 };

struct fixture {
  struct tokenizer *tokenizer;
  char path[64];
};

static int setup(void **state) {
  static struct fixture f;
  struct err err;
  if (tokenizer_load(&f.tokenizer, "deploy/demo/model/tokenizer.json", &err) != RC_OK) return -1;
  strcpy(f.path, "/tmp/leasehold-dataset-XXXXXX");
  int fd = mkstemp(f.path);
  if (fd < 0) return -1;
  close(fd);
  *state = &f;
  return 0;
}

static int teardown(void **state) {
  struct fixture *f = *state;
  unlink(f->path);
  tokenizer_free(f->tokenizer);
  return 0;
}

static enum rc load(struct fixture *f, const char *text, bool completion, bool answer, struct dataset **out,
                    struct err *err) {
  FILE *file = fopen(f->path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
  const struct dataset_options options = {.field = "dataset.path",
                                          .name = "x.jsonl",
                                          .prompt_tokens_max = 20,
                                          .completion_tokens_max = 20,
                                          .need_completion = completion,
                                          .need_answer = answer,
                                          .eos = EOS};
  *out = NULL;
  return dataset_load(out, f->path, f->tokenizer, &options, err);
}

static void lines_become_items(void **state) {
  struct dataset *d;
  struct err err;
  assert_int_equal(load(*state,
                        "{\"prompt\":\"ab\",\"answer\":7,\"level\":[1,2]}\n\n{\"prompt\":\"c\",\"answer\":\"x\"}\r\n{"
                        "\"prompt\":\"d\",\"answer\":0.5}",
                        false, true, &d, &err),
                   RC_OK);
  assert_int_equal(dataset_count(d), 3);
  const struct dataset_item *first = dataset_at(d, 0);
  assert_string_equal(first->answer, "7");
  assert_string_equal(first->extra, "{\"level\":[1,2]}");
  assert_int_equal(first->prompt_length, 2);
  assert_int_equal(first->prompt_ids[0], 'a');
  assert_int_equal(dataset_at(d, 1)->line, 3);
  assert_string_equal(dataset_at(d, 2)->answer, "0.5");
  dataset_free(d);
}

/* By 17 digits 0.1 was 0.10000000000000001, which no completion ever said: its rewards were all 0. */
static void an_answer_that_is_a_number_is_its_shortest_decimal(void **state) {
  static const struct {
    const char *number, *answer, *completion;
  } cases[] = {{"0.1", "0.1", "It is 0.1"},    {"3.14", "3.14", "\\boxed{3.14}"},
               {"1e-7", "1e-07", "0.0000001"}, {"-2.675", "-2.675", "-2.675"},
               {"18.0", "18", "18"},           {"12", "12", "12.0"},
               {"-0.0", "-0.0", "0"},          {"1e22", "1e+22", "10000000000000000000000"}};
  struct reward_rule rule;
  reward_rule_of(&rule, VERIFIER_NUMERIC);
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[128];
    struct dataset *d;
    struct err err;
    struct reward_verdict verdict;
    snprintf(text, sizeof text, "{\"prompt\":\"a\",\"answer\":%s}\n", cases[i].number);
    assert_int_equal(load(*state, text, false, true, &d, &err), RC_OK);
    assert_string_equal(dataset_at(d, 0)->answer, cases[i].answer);
    const struct reward_input input = {.text = cases[i].completion,
                                       .len = strlen(cases[i].completion),
                                       .answer = dataset_at(d, 0)->answer,
                                       .extra = "{}"};
    reward_judge(&rule, &input, &verdict);
    if (verdict.reward != 1) fail_msg("%s is not worth 1 where %s is right", cases[i].completion, cases[i].number);
    dataset_free(d);
  }
}

static void completions_end_with_eos(void **state) {
  struct dataset *d;
  struct err err;
  assert_int_equal(load(*state, "{\"prompt\":\"1+1=\",\"completion\":\"2\"}\n", true, false, &d, &err), RC_OK);
  assert_int_equal(dataset_at(d, 0)->completion_length, 2);
  assert_int_equal(dataset_at(d, 0)->completion_ids[1], EOS);
  dataset_free(d);
}

static void messages_take_the_chat_template(void **state) {
  struct dataset *d;
  struct err err;
  assert_int_equal(load(*state, "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}\n", false, false, &d, &err),
                   RC_OK);
  assert_string_equal(dataset_at(d, 0)->prompt, "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
  assert_int_equal(dataset_at(d, 0)->prompt_ids[0],
                   tokenizer_id_of(((struct fixture *)*state)->tokenizer, "<|im_start|>"));
  dataset_free(d);
  assert_int_equal(load(*state, "{\"messages\":[{\"role\":\"user\"}]}\n", false, false, &d, &err), RC_INVALID);
  assert_int_equal(load(*state, "{\"messages\":[]}\n", false, false, &d, &err), RC_INVALID);
}

/* A tokenizer of bytes has a token for it. */
static void byte_0_is_a_character_of_prompts_and_completions(void **state) {
  struct dataset *d;
  struct err err;
  assert_int_equal(load(*state,
                        "{\"prompt\":\"a\\u0000b\",\"completion\":\"\\u0000c\"}\n"
                        "{\"messages\":[{\"role\":\"user\",\"content\":\"\\u0000\"}],\"completion\":\"\"}\n",
                        true, false, &d, &err),
                   RC_OK);
  const struct dataset_item *item = dataset_at(d, 0);
  assert_int_equal(item->prompt_bytes, 3);
  assert_memory_equal(item->prompt, "a\0b", 4);
  assert_int_equal(item->prompt_length, 3);
  assert_int_equal(item->prompt_ids[1], 0);
  assert_int_equal(item->prompt_ids[2], 'b');
  assert_int_equal(item->completion_length, 3);
  assert_int_equal(item->completion_ids[0], 0);
  item = dataset_at(d, 1);
  static const char chat[] = "<|im_start|>user\n\0<|im_end|>\n<|im_start|>assistant\n";
  assert_int_equal(item->prompt_bytes, sizeof chat - 1);
  assert_memory_equal(item->prompt, chat, sizeof chat);
  dataset_free(d);
  /* verifiers compare answers, and none of theirs has one */
  assert_int_equal(load(*state, "{\"prompt\":\"a\",\"answer\":\"1\"}\n{\"prompt\":\"a\",\"answer\":\"1\\u0000\"}\n",
                        false, true, &d, &err),
                   RC_INVALID);
  assert_non_null(strstr(err.message, "line 2: answer: expected a string without NUL"));
  assert_int_equal(
      load(*state, "{\"messages\":[{\"role\":\"user\\u0000\",\"content\":\"a\"}]}\n", false, false, &d, &err),
      RC_INVALID);
}

static void a_bad_line_is_refused_with_its_number(void **state) {
  const char *bad[] = {"{\"prompt\":\"a\"",
                       "[1]",
                       "{\"prompt\":\"a\",\"prompt\":\"b\",\"answer\":1}",
                       "{\"answer\":1}",
                       "{\"prompt\":\"\",\"answer\":1}",
                       "{\"prompt\":\"a\"}",
                       "{\"prompt\":\"a\",\"answer\":null}",
                       "{\"prompt\":\"a\",\"messages\":[],\"answer\":1}",
                       "{\"prompt\":\"0123456789012345678901234567890\",\"answer\":1}",
                       "\"\\u0000\""};
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
    char text[256];
    struct dataset *d;
    struct err err = {0};
    snprintf(text, sizeof text, "{\"prompt\":\"a\",\"answer\":1}\n{\"prompt\":\"a\",\"answer\":1}\n%s\n", bad[i]);
    if (load(*state, text, false, true, &d, &err) == RC_OK || !strstr(err.message, "line 3") || d)
      fail_msg("%s: %s", bad[i], err.message);
  }
}

/* A verdict against what is no number, or a puzzle without a target, would be the same for every answer. */
static void a_line_that_the_verifier_cannot_judge_by_is_refused(void **state) {
  struct fixture *f = *state;
  struct dataset_options options = {
      .field = "evaluation.path", .name = "x.jsonl", .prompt_tokens_max = 20, .completion_tokens_max = 20, .eos = EOS};
  static const struct {
    enum verifier_kind verifier;
    const char *line;
    bool good;
  } cases[] = {
      {VERIFIER_NUMERIC, "\"answer\":\"1,080\"", true},
      {VERIFIER_NUMERIC, "\"answer\":1e300", true},
      {VERIFIER_NUMERIC, "\"answer\":\"by <<2*3=6>>6\\n#### 6\"", true},
      {VERIFIER_NUMERIC, "\"answer\":\"(3,4)\"", false},
      {VERIFIER_NUMERIC, "\"answer\":\"\"", false},
      {VERIFIER_COUNTDOWN, "\"numbers\":[1,2],\"target\":3", true},
      {VERIFIER_COUNTDOWN, "\"numbers\":[1,2]", false},
      {VERIFIER_COUNTDOWN, "\"numbers\":[1,2.5],\"target\":3", false},
      {VERIFIER_COUNTDOWN, "\"numbers\":[],\"target\":3", false},
      {VERIFIER_COUNTDOWN, "\"numbers\":3,\"target\":3", false},
      {VERIFIER_COUNTDOWN, "\"numbers\":[1,2],\"target\":\"3\"", false},
      {VERIFIER_NONE, "\"answer\":\"(3,4)\"", true},
      {VERIFIER_MATH, "\"answer\":\"(3,4)\"", true},
      {VERIFIER_MATH, "\"answer\":\"\\\\frac{1}\"", false},
      {VERIFIER_MATH, "\"answer\":\"\"", false},
      {VERIFIER_CHOICE, "\"answer\":\"B\"", true},
      {VERIFIER_CHOICE, "\"answer\":\"7\"", false},
      {VERIFIER_REGEX, "\"answer\":\"a+\"", true},
      {VERIFIER_REGEX, "\"answer\":\"a(\"", false},
      {VERIFIER_JSON_SCHEMA, "\"schema\":{\"type\":\"object\"}", true},
      {VERIFIER_JSON_SCHEMA, "\"schema\":{\"oneOf\":[]}", false},
      {VERIFIER_JSON_SCHEMA, "\"answer\":\"x\"", false},
      {VERIFIER_EXACT, "\"answer\":\"\"", false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char text[256];
    struct dataset *d = NULL;
    struct err err = {0};
    snprintf(text, sizeof text, "\n{\"prompt\":\"a\",%s}\n", cases[i].line);
    FILE *file = fopen(f->path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    struct reward_rule rule;
    reward_rule_of(&rule, cases[i].verifier);
    options.verifier = &rule;
    const enum rc rc = cases[i].good ? RC_OK : RC_INVALID;
    if (dataset_load(&d, f->path, f->tokenizer, &options, &err) != rc ||
        dataset_check(f->path, NULL, &options, NULL, &err) != rc ||
        (!cases[i].good && (!strstr(err.message, "x.jsonl line 2") || strcmp(err.field, "evaluation.path") != 0)))
      fail_msg("%s: %s", text, err.message);
    dataset_free(d);
  }
}

/* A line may name how long its samples may be, up to what the run allows; where that is not looked at it is a key like
 * any other. */
static void a_line_may_have_a_limit_of_its_own(void **state) {
  struct fixture *f = *state;
  struct dataset_options options = {.field = "dataset.path",
                                    .name = "x.jsonl",
                                    .prompt_tokens_max = 20,
                                    .completion_tokens_max = 20,
                                    .eos = EOS};
  static const struct {
    const char *value;
    int looked_at; /* what the line's limit is then; -1: refused */
  } cases[] = {{"1", 1},      {"9", 9},      {"9.0", 9},   {"0", -1},   {"10", -1},        {"-1", -1},
               {"1.5", -1},   {"\"4\"", -1}, {"null", -1}, {"[4]", -1}, {"true", -1},      {"4294967297", -1},
               {"1e300", -1}, {"1e2", -1},   {"0.0", -1},  {"{}", -1},  {"2147483648", -1}};
  for (size_t i = 0; i < 2 * sizeof cases / sizeof cases[0]; i++) {
    char text[256];
    struct dataset *d = NULL;
    struct err err = {0};
    const int limit = i % 2 ? 0 : cases[i / 2].looked_at;
    options.new_tokens_max = i % 2 ? 0 : 9;
    snprintf(text, sizeof text, "\n{\"prompt\":\"a\",\"max_new_tokens\":%s,\"level\":1}\n{\"prompt\":\"b\"}\n",
             cases[i / 2].value);
    FILE *file = fopen(f->path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    const enum rc rc = limit < 0 ? RC_INVALID : RC_OK;
    if (dataset_load(&d, f->path, f->tokenizer, &options, &err) != rc ||
        dataset_check(f->path, NULL, &options, NULL, &err) != rc ||
        (limit < 0 && (!strstr(err.message, "x.jsonl line 2: max_new_tokens: expected ") || !strstr(err.message, "9"))))
      fail_msg("%s: %s", text, err.message);
    if (!d) continue;
    const struct dataset_item *item = dataset_at(d, 0);
    assert_int_equal(item->max_new_tokens, limit);
    assert_int_equal(dataset_at(d, 1)->max_new_tokens, 0);
    assert_true((strstr(item->extra, "max_new_tokens") != NULL) == (limit == 0));
    assert_non_null(strstr(item->extra, "\"level\":1"));
    dataset_free(d);
  }
}

static void an_empty_or_absent_file_is_refused(void **state) {
  struct dataset *d;
  struct err err;
  assert_int_equal(load(*state, "\n \n", false, false, &d, &err), RC_INVALID);
  const struct dataset_options options = {.field = "dataset.path",
                                          .name = "x.jsonl",
                                          .prompt_tokens_max = 20,
                                          .completion_tokens_max = 20,
                                          .eos = EOS};
  assert_int_equal(dataset_load(&d, "/nonexistent/x.jsonl", ((struct fixture *)*state)->tokenizer, &options, &err),
                   RC_NOT_FOUND);
}

static struct dataset_order order_of(const struct dataset *d, bool shuffle, uint64_t seed) {
  struct dataset_order order;
  struct err err;
  assert_int_equal(dataset_order_make(&order, d, shuffle, seed, &err), RC_OK);
  return order;
}

/* Each epoch visits every line once; another seed or epoch orders otherwise; who asked before is no matter. */
static void the_order_depends_on_the_seed_alone(void **state) {
  enum { N = 50 };
  char text[N * 32] = "";
  for (int i = 0; i < N; i++) sprintf(text + strlen(text), "{\"prompt\":\"%d\"}\n", i);
  struct dataset *d;
  struct err err;
  assert_int_equal(load(*state, text, false, false, &d, &err), RC_OK);
  struct dataset_order asked = order_of(d, true, 9), fresh = order_of(d, true, 9), other = order_of(d, true, 10);
  struct dataset_order lines = order_of(d, false, 9);
  int first_epoch_differs = 0, seed_differs = 0;
  for (int epoch = 0; epoch < 3; epoch++) {
    int seen[N] = {0};
    for (int i = 0; i < N; i++) {
      int index = dataset_index(d, &asked, epoch * N + i);
      seen[index]++;
      if (epoch == 1) first_epoch_differs += index != dataset_index(d, &fresh, i);
      seed_differs += index != dataset_index(d, &other, epoch * N + i);
    }
    for (int i = 0; i < N; i++) assert_int_equal(seen[i], 1);
  }
  assert_true(first_epoch_differs > N / 2 && seed_differs > N / 2);
  assert_int_equal(dataset_index(d, &lines, N + 3), 3);
  dataset_order_free(&lines);
  dataset_order_free(&asked);
  dataset_order_free(&fresh);
  dataset_order_free(&other);
  dataset_free(d);
}

static void put(const struct fixture *f, const char *text) {
  FILE *file = fopen(f->path, "w");
  assert_non_null(file);
  fputs(text, file);
  fclose(file);
}

static const struct dataset_options plain_options = {.field = "dataset.path",
                                                     .name = "x.jsonl",
                                                     .prompt_tokens_max = 20,
                                                     .completion_tokens_max = 20,
                                                     .eos = EOS};

/* Who mends a file wants more than one fault at a time; a load stops at the first. */
static void messages_take_the_models_own_template(void **state) {
  struct fixture *f = *state;
  struct chat_files files = {0};
  struct dataset_options options = plain_options;
  struct dataset *d;
  struct err err = {0};
  buf_puts(&files.jinja, "{% for m in messages %}[{{ m.role }}]{{ m.content }}<|im_end|>{% endfor %}");
  buf_puts(&files.jinja, "{% if add_generation_prompt %}>{% endif %}");
  struct chat *chat;
  assert_int_equal(chat_parse(&chat, &files, f->tokenizer, &err), RC_OK);
  options.chat = chat;
  put(f, "{\"messages\":[{\"role\":\"user\",\"content\":\"a<|im_end|>\"}]}\n");
  options.prompt_tokens_max = 30;
  assert_int_equal(dataset_load(&d, f->path, f->tokenizer, &options, &err), RC_OK);
  const struct dataset_item *item = dataset_at(d, 0);
  assert_string_equal(item->prompt, "[user]a<|im_end|><|im_end|>>");
  const int32_t end = tokenizer_id_of(f->tokenizer, "<|im_end|>");
  assert_int_equal(item->prompt_length, 6 + 1 + 10 + 1 + 1); /* the message cannot end its own turn */
  for (int i = 0; i < item->prompt_length; i++) assert_int_equal(item->prompt_ids[i] == end, i == 17);
  dataset_free(d);
  options.chat = NULL;
  options.no_chat = "line 3 of it";
  assert_int_equal(dataset_load(&d, f->path, f->tokenizer, &options, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "chat template cannot be used: line 3 of it"));
  chat_free(chat);
  buf_free(&files.jinja);
}

static void a_check_names_the_first_bad_lines(void **state) {
  struct fixture *f = *state;
  struct dataset *d = NULL;
  struct err err = {0};
  put(f, "{\"prompt\":\"a\"}\n{}\n\n[1]\n{\"prompt\":7}\n{\"prompt\":8}\n");
  assert_int_equal(dataset_check(f->path, f->tokenizer, &plain_options, NULL, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "x.jsonl line 2: prompt: expected exactly one of `prompt`, `messages`"));
  assert_non_null(strstr(err.message, "; line 4: expected an object, got array; line 5: prompt: expected a string"));
  assert_null(strstr(err.message, "line 6"));
  assert_int_equal(dataset_load(&d, f->path, f->tokenizer, &plain_options, &err), RC_INVALID);
  assert_null(strstr(err.message, "line 4"));
  put(f, "{}\n{\"prompt\":7}\n{}\n"); /* a fault of all lines is told once */
  assert_int_equal(dataset_check(f->path, f->tokenizer, &plain_options, NULL, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "; line 2: prompt: expected a string"));
  assert_non_null(strstr(err.message, "; line 3: the same"));
}

struct lines_seen {
  int asked, until;
};

static bool until_line(void *context, const char *name, int lines) {
  struct lines_seen *s = context;
  assert_string_equal(name, "x.jsonl");
  assert_int_equal(lines, s->asked++);
  return lines < s->until;
}

/* A watch is asked before every line.  Where it ends a check, a bad line that was met counts, and one behind does
 * not. */
static void a_watch_ends_a_check(void **state) {
  struct fixture *f = *state;
  const struct dataset_options options = {
      .field = "dataset.path", .name = "x.jsonl", .prompt_tokens_max = 20, .eos = EOS};
  static const struct {
    int bad, until; /* lines, from 1 and from 0 */
    enum rc rc;
  } cases[] = {{0, 5, RC_OK},      {0, 4, RC_TIMEOUT}, {0, 0, RC_TIMEOUT},
               {2, 4, RC_INVALID}, {3, 2, RC_TIMEOUT}, {4, 5, RC_INVALID}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct lines_seen seen = {.until = cases[i].until};
    const struct dataset_watch watch = {until_line, &seen};
    struct err err = {0};
    char text[128] = "";
    for (int line = 1; line <= 4; line++) strcat(text, line == cases[i].bad ? "{}\n" : "{\"prompt\":\"a\"}\n");
    put(f, text);
    assert_int_equal(dataset_check(f->path, f->tokenizer, &options, &watch, &err), cases[i].rc);
    assert_int_equal(seen.asked, cases[i].until < 5 ? cases[i].until + 1 : 5);
    if (cases[i].rc == RC_INVALID) assert_non_null(strstr(err.message, "x.jsonl line "));
    if (cases[i].rc == RC_TIMEOUT) assert_string_equal(err.field, "");
  }
}

static void left_out_lines_never_come(void **state) {
  struct fixture *f = *state;
  struct dataset *d = NULL;
  struct err err = {0};
  struct reading skips;
  reading_defaults(&skips);
  skips.prompt_tokens_max = 2;
  skips.skips_long = true;
  struct dataset_options options = plain_options;
  options.reading = &skips;
  put(f, "{\"prompt\":\"abc\"}\n{\"prompt\":\"ab\"}\n{\"prompt\":\"abcd\"}\n{\"prompt\":\"a\"}\n");
  assert_int_equal(dataset_load(&d, f->path, f->tokenizer, &options, &err), RC_OK);
  assert_int_equal(dataset_count(d), 2);
  assert_int_equal(dataset_at(d, 0)->line, 2);
  assert_int_equal(dataset_at(d, 1)->line, 4);
  put(f, "{\"prompt\":\"a\"}\n{\"prompt\":\"abc\"}\n");
  assert_int_equal(dataset_add(d, f->path, f->tokenizer, &options, &err), RC_OK);
  const struct dataset_counts all = dataset_counts(d), second = dataset_file_counts(d, 1);
  assert_int_equal(all.prompts, 3);
  assert_int_equal(all.left_out, 3);
  assert_int_equal(second.prompts, 1);
  assert_int_equal(second.left_out, 1);
  dataset_free(d);
  put(f, "{\"prompt\":\"abc\"}\n");
  assert_int_equal(dataset_check(f->path, f->tokenizer, &options, NULL, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "every one of its 1 prompts is longer"));
}

/* A mixture of parts with 5, 3 and 20 lines. */
static struct dataset *mixture(struct fixture *f, const int32_t *weights) {
  static const int lines[] = {5, 3, 20};
  struct dataset *d = NULL;
  struct err err = {0};
  for (int p = 0; p < 3; p++) {
    char text[1024] = "";
    for (int i = 0; i < lines[p]; i++) sprintf(text + strlen(text), "{\"prompt\":\"%c%d\"}\n", 'a' + p, i);
    put(f, text);
    if (p == 0)
      assert_int_equal(dataset_load(&d, f->path, f->tokenizer, &plain_options, &err), RC_OK);
    else
      assert_int_equal(dataset_add(d, f->path, f->tokenizer, &plain_options, &err), RC_OK);
  }
  if (weights) dataset_weigh(d, weights);
  return d;
}

/* Of every sum-of-weights prompts each part gives its weight, and goes through all its lines before one comes again. */
static void weights_are_kept_in_every_cycle(void **state) {
  static const int32_t weights[] = {3, 1, 6};
  static const int first[] = {0, 5, 8, 28};
  for (int shuffle = 0; shuffle < 2; shuffle++) {
    struct dataset *d = mixture(*state, weights);
    struct dataset_order asked = order_of(d, shuffle, 9), fresh = order_of(d, shuffle, 9);
    int drawn[28] = {0}, of_part[3] = {0};
    for (int ordinal = 0; ordinal < 600; ordinal++) {
      const int index = dataset_index(d, &asked, ordinal);
      int part = 0;
      while (index >= first[part + 1]) part++;
      of_part[part]++;
      drawn[index]++;
      if (ordinal % 10 == 9)
        for (int p = 0; p < 3; p++) assert_int_equal(of_part[p], weights[p] * (ordinal / 10 + 1));
      for (int i = first[part]; i < first[part + 1]; i++) assert_in_range(drawn[i] + 1 - drawn[index], 0, 2);
      if (!shuffle) assert_int_equal(index - first[part], (of_part[part] - 1) % (first[part + 1] - first[part]));
    }
    for (int ordinal = 599; ordinal > 0; ordinal -= 37) { /* the order is no matter of who asked before */
      struct dataset_order other = order_of(d, shuffle, 9);
      assert_int_equal(dataset_index(d, &fresh, ordinal), dataset_index(d, &other, ordinal));
      assert_int_equal(dataset_index(d, &asked, ordinal), dataset_index(d, &fresh, ordinal));
      dataset_order_free(&other);
    }
    dataset_order_free(&asked);
    dataset_order_free(&fresh);
    dataset_free(d);
  }
}

/* In line order the parts take turns as evenly as they can; shuffled, the turns differ from cycle to cycle. */
static void turns_are_even_or_shuffled(void **state) {
  static const int32_t weights[] = {2, 1, 1};
  struct dataset *d = mixture(*state, weights);
  struct dataset_order even = order_of(d, false, 1), shuffled = order_of(d, true, 1);
  char turns[9] = "", cycles[64][5] = {""};
  for (int i = 0; i < 8; i++) turns[i] = dataset_at(d, dataset_index(d, &even, i))->prompt[0];
  assert_string_equal(turns, "abcaabca");
  dataset_order_free(&even);
  int repeats = 0;
  for (int c = 0; c < 64; c++) {
    for (int i = 0; i < 4; i++) cycles[c][i] = dataset_at(d, dataset_index(d, &shuffled, 4 * c + i))->prompt[0];
    repeats += c > 0 && strcmp(cycles[c], cycles[c - 1]) == 0;
  }
  assert_true(repeats < 16); /* there are 12 orders */
  dataset_order_free(&shuffled);
  dataset_free(d);
}

static void without_weights_all_lines_are_one_part(void **state) {
  struct dataset *d = mixture(*state, NULL);
  struct dataset_order order = order_of(d, true, 3);
  int seen[28] = {0};
  assert_int_equal(dataset_count(d), 28);
  for (int i = 0; i < 28; i++) seen[dataset_index(d, &order, i)]++;
  for (int i = 0; i < 28; i++) assert_int_equal(seen[i], 1);
  dataset_order_free(&order);
  dataset_free(d);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(lines_become_items),
      cmocka_unit_test(an_answer_that_is_a_number_is_its_shortest_decimal),
      cmocka_unit_test(completions_end_with_eos),
      cmocka_unit_test(messages_take_the_chat_template),
      cmocka_unit_test(messages_take_the_models_own_template),
      cmocka_unit_test(byte_0_is_a_character_of_prompts_and_completions),
      cmocka_unit_test(a_bad_line_is_refused_with_its_number),
      cmocka_unit_test(a_line_that_the_verifier_cannot_judge_by_is_refused),
      cmocka_unit_test(a_line_may_have_a_limit_of_its_own),
      cmocka_unit_test(an_empty_or_absent_file_is_refused),
      cmocka_unit_test(the_order_depends_on_the_seed_alone),
      cmocka_unit_test(a_check_names_the_first_bad_lines),
      cmocka_unit_test(a_watch_ends_a_check),
      cmocka_unit_test(left_out_lines_never_come),
      cmocka_unit_test(weights_are_kept_in_every_cycle),
      cmocka_unit_test(turns_are_even_or_shuffled),
      cmocka_unit_test(without_weights_all_lines_are_one_part),
  };
  return cmocka_run_group_tests_name("dataset", tests, setup, teardown);
}
