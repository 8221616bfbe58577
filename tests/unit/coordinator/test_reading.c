/* How lines of other people's datasets are read. What would break: a preset takes the wrong member of a line, a
 * template or a system message is left out or doubled, the wrong part of a worked answer becomes the gold, a reading
 * that was written out is another one when it is read again. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <string.h>

#include "services/coordinator/run/answer_extract.h"
#include "services/coordinator/run/dataset_line.h"
#include "services/coordinator/run/key_path.h"

static struct tokenizer *tokenizer;

static int setup(void **state) {
  struct err err;
  (void)state;
  return tokenizer_load(&tokenizer, "deploy/demo/model/tokenizer.json", &err) == RC_OK ? 0 : -1;
}

static int teardown(void **state) {
  (void)state;
  tokenizer_free(tokenizer);
  return 0;
}

/* A reading from the members of a configuration's object. */
static enum rc reading_of(struct reading *r, const char *config, struct arena *arena, struct err *err) {
  struct reading_given given;
  struct json *object = NULL;
  const struct json_field fields[] = {READING_FIELDS(&given)};
  reading_given_init(&given);
  reading_defaults(r);
  enum rc rc = json_parse(&object, config, strlen(config), 0, err);
  if (rc == RC_OK) rc = json_fields(object, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, arena, err);
  if (rc == RC_OK) rc = reading_resolve(r, &given, arena, err);
  json_free(object);
  return rc;
}

static enum rc read_line(const char *config, const char *line, bool supervised, struct dataset_item *item,
                         bool *left_out, struct arena *arena, struct err *err) {
  struct reading r;
  struct json *object = NULL;
  const struct dataset_options options = {.prompt_tokens_max = 200,
                                          .completion_tokens_max = 200,
                                          .need_completion = supervised,
                                          .need_answer = !supervised,
                                          .eos = -1};
  struct line_context l = {.tokenizer = tokenizer, .options = &options, .reading = &r, .arena = arena};
  *item = (struct dataset_item){.answer = "", .extra = "{}"};
  enum rc rc = reading_of(&r, config, arena, err);
  if (rc == RC_OK) rc = json_parse(&object, line, strlen(line), 0, err);
  if (rc == RC_OK) rc = dataset_line_read(&l, object, item, left_out, err);
  json_free(object);
  token_ids_free(&l.scratch);
  return rc;
}

#define USER(text) "<|im_start|>user\n" text "<|im_end|>\n<|im_start|>assistant\n"
#define SYSTEM(text) "<|im_start|>system\n" text "<|im_end|>\n"

/* Lines as the published files have them, cut short. */
static void presets_read_the_files_that_people_have(void **state) {
  static const struct {
    const char *config, *line, *prompt, *answer, *extra;
  } cases[] = {
      {"{}", "{\"prompt\":\"1+1=\",\"answer\":2,\"a\":1}", "1+1=", "2", "{\"a\":1}"},
      {"{\"preset\":\"gsm8k\"}",
       "{\"question\":\"Natalia sold clips. How many?\",\"answer\":\"She sold 48\\/2 = <<48\\/2=24>>24 "
       "clips.\\nIn all 72.\\n#### 72\"}",
       "Natalia sold clips. How many?", "72", "{}"},
      {"{\"preset\":\"verl\"}",
       "{\"data_source\":\"openai/gsm8k\",\"prompt\":[{\"content\":\"How "
       "many?\",\"role\":\"user\"}],\"ability\":\"math\","
       "\"reward_model\":{\"ground_truth\":\"72\",\"style\":\"rule\"},\"extra_info\":{\"index\":0,\"split\":\"train\"}"
       "}",
       USER("How many?"), "72",
       "{\"data_source\":\"openai/gsm8k\",\"ability\":\"math\",\"reward_model\":{\"ground_truth\":\"72\",\"style\":"
       "\"rule\"},\"extra_info\":{\"index\":0,\"split\":\"train\"}}"},
      {"{\"preset\":\"dapo\"}",
       "{\"prompt\":[{\"content\":\"Solve. Answer: "
       "$Answer\",\"role\":\"user\"}],\"reward_model\":{\"ground_truth\":\"34\"}}",
       USER("Solve. Answer: $Answer"), "34", "{\"reward_model\":{\"ground_truth\":\"34\"}}"},
      {"{\"preset\":\"dapo\"}", "{\"prompt\":\"Solve.\",\"solution\":\"34\",\"reward_model\":{}}", USER("Solve."), "34",
       "{\"reward_model\":{}}"},
      {"{\"preset\":\"trl\"}", "{\"prompt\":[{\"role\":\"user\",\"content\":\"Q\"}],\"solution\":\"$\\\\frac12$\"}",
       USER("Q"), "$\\frac12$", "{}"},
      {"{\"preset\":\"trl\"}", "{\"prompt\":\"Q\",\"solution\":null,\"ground_truth\":7}", "Q", "7", "{}"},
      {"{\"preset\":\"slime\"}", "{\"prompt\":\"Q\",\"label\":\"8\",\"metadata\":{\"k\":1}}", USER("Q"), "8",
       "{\"metadata\":{\"k\":1}}"},
      {"{\"preset\":\"slime\",\"chat\":false}", "{\"input\":\"Q\",\"label\":8}", "Q", "8", "{}"},
      {"{\"preset\":\"verl\",\"extract\":\"boxed\",\"keys\":{\"answer\":\"extra_info.answer\"}}",
       "{\"prompt\":\"Q\",\"extra_info\":{\"answer\":\"So \\\\boxed{\\\\frac{1}{2}}.\"}}", USER("Q"), "\\frac{1}{2}",
       "{\"extra_info\":{\"answer\":\"So \\\\boxed{\\\\frac{1}{2}}.\"}}"},
      {"{\"keys\":{\"prompt\":\"turns[-1].text\",\"answer\":[\"gold\",\"golds[0]\"]}}",
       "{\"turns\":[{\"text\":\"a\"},{\"text\":\"b\"}],\"golds\":[\"5\",\"6\"]}", "b", "5",
       "{\"turns\":[{\"text\":\"a\"},{\"text\":\"b\"}],\"golds\":[\"5\",\"6\"]}"},
      {"{\"keys\":{\"extra\":{\"numbers\":\"nums\",\"target\":\"task.goal\"}}}",
       "{\"prompt\":\"p\",\"answer\":\"\",\"nums\":[1,2],\"task\":{\"goal\":3},\"target\":9}", "p", "",
       "{\"numbers\":[1,2],\"target\":3,\"nums\":[1,2],\"task\":{\"goal\":3}}"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct dataset_item item;
    struct arena arena = ARENA_INIT;
    struct err err = {0};
    bool left_out;
    if (read_line(cases[i].config, cases[i].line, false, &item, &left_out, &arena, &err) != RC_OK)
      fail_msg("case %zu: %s %s", i, err.field, err.message);
    assert_string_equal(item.prompt, cases[i].prompt);
    assert_string_equal(item.answer, cases[i].answer);
    assert_string_equal(item.extra, cases[i].extra);
    assert_int_equal(item.prompt_bytes, strlen(item.prompt));
    assert_true(item.prompt_length > 0);
    arena_free(&arena);
  }
}

static void templates_and_system_messages_go_around_prompts(void **state) {
  static const struct {
    const char *config, *line, *prompt;
  } cases[] = {
      {"{\"template\":\"Q: {prompt}\\nA in \\\\boxed{}:\"}", "{\"prompt\":\"1+1\"}", "Q: 1+1\nA in \\boxed{}:"},
      {"{\"chat\":true,\"template\":\"Q: {prompt}\"}", "{\"prompt\":\"1+1\"}", USER("Q: 1+1")},
      {"{\"system\":\"Think.\"}", "{\"prompt\":\"1+1\"}", SYSTEM("Think.") USER("1+1")},
      {"{\"system\":\"Think.\",\"template\":\"<{prompt}>\"}",
       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"b\"},{\"role\":"
       "\"user\",\"content\":\"c\"}]}",
       SYSTEM("Think.") "<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\nb<|im_end|>\n" USER("<c>")},
      {"{\"system\":\"Think.\"}",
       "{\"prompt\":[{\"role\":\"system\",\"content\":\"Mine.\"},{\"role\":\"user\",\"content\":\"a\"}]}",
       SYSTEM("Mine.") USER("a")},
      {"{}",
       "{\"prompt\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},{\"type\":\"text\",\"text\":"
       "\"b\"}]}]}",
       USER("ab")},
      {"{\"template\":\"({prompt})\"}",
       "{\"prompt\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u0000\"},{\"type\":\"text\","
       "\"text\":\"b\"}]}]}",
       "<|im_start|>user\n(a"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct dataset_item item;
    struct arena arena = ARENA_INIT;
    struct err err = {0};
    bool left_out;
    char line[512];
    snprintf(line, sizeof line, "%.*s,\"answer\":1}", (int)strlen(cases[i].line) - 1, cases[i].line);
    if (read_line(cases[i].config, line, false, &item, &left_out, &arena, &err) != RC_OK)
      fail_msg("case %zu: %s %s", i, err.field, err.message);
    assert_string_equal(item.prompt, cases[i].prompt);
    arena_free(&arena);
  }
}

/* Supervised data: TRL's prompt and completion, conversations whose last word is the assistant's, GSM8K's worked
 * answers. */
static void completions_come_as_text_as_a_message_and_as_the_last_word(void **state) {
  static const struct {
    const char *config, *line, *prompt, *completion;
  } cases[] = {
      {"{}", "{\"prompt\":\"a\",\"completion\":\"bc\"}", "a", "bc"},
      {"{\"preset\":\"trl\"}",
       "{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"completion\":[{\"role\":\"assistant\",\"content\":\"bc\"}"
       "]}",
       USER("a"), "bc"},
      {"{}", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"bc\"}]}",
       USER("a"), "bc"},
      {"{\"system\":\"S\"}",
       "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
       "\"text\":\"bc\"}]}]}",
       SYSTEM("S") USER("a"), "bc"},
      {"{\"preset\":\"gsm8k\"}", "{\"question\":\"a\",\"answer\":\"b\\n#### 1\"}", "a", "b\n#### 1"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct dataset_item item;
    struct arena arena = ARENA_INIT;
    struct err err = {0};
    bool left_out;
    if (read_line(cases[i].config, cases[i].line, true, &item, &left_out, &arena, &err) != RC_OK)
      fail_msg("case %zu: %s %s", i, err.field, err.message);
    assert_string_equal(item.prompt, cases[i].prompt);
    struct buf text = BUF_INIT;
    assert_int_equal(
        tokenizer_decode(tokenizer, item.completion_ids, (size_t)item.completion_length, false, &text, &err), RC_OK);
    assert_string_equal(text.data, cases[i].completion);
    buf_free(&text);
    arena_free(&arena);
  }
}

static void bad_lines_say_what_they_would_have_needed(void **state) {
  static const struct {
    const char *config, *line, *field, *words;
  } cases[] = {
      {"{}", "{\"question\":\"a\",\"answer\":\"#### 1\"}", "prompt",
       "expected exactly one of `prompt`, `messages`, the key is missing; the line has `question`, `answer`: say in "
       "`keys` which of them it is, or preset 'gsm8k' reads such lines"},
      {"{}", "{\"task\":\"a\",\"gold\":1}", "prompt", "the line has `task`, `gold`: say in `keys` which of them it is"},
      {"{}", "{\"prompt\":\"a\",\"reward_model\":{\"ground_truth\":1}}", "answer", "preset 'dapo' reads such lines"},
      {"{\"preset\":\"gsm8k\"}", "{\"prompt\":\"a\"}", "question",
       "expected `question`, the key is missing; the line has `prompt`"},
      {"{\"preset\":\"gsm8k\"}", "{\"question\":\"a\",\"answer\":\"72\"}", "answer",
       "expected an answer after ####, got '72'"},
      {"{\"extract\":\"boxed\"}", "{\"prompt\":\"a\",\"answer\":\"\\\\boxed{72\"}", "answer",
       "expected an answer in \\boxed{}"},
      {"{}", "{\"prompt\":[],\"answer\":1}", "prompt", "expected 1 to 256 messages, got 0"},
      {"{}", "{\"prompt\":{},\"answer\":1}", "prompt", "expected a string or messages, got object"},
      {"{}", "{\"prompt\":\"a\",\"messages\":[],\"answer\":1}", "prompt", "got 2 of them"},
      {"{}", "{\"prompt\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}],\"answer\":1}", "prompt",
       "message 0: part 0 of `content`: expected {\"type\":\"text\",\"text\":...}, got type 'image_url'"},
      {"{}", "{\"prompt\":[{\"role\":\"user\",\"content\":7}],\"answer\":1}", "prompt", "got integer"},
      {"{\"template\":\"{prompt}!\"}", "{\"prompt\":[{\"role\":\"system\",\"content\":\"a\"}],\"answer\":1}", "prompt",
       "expected a message of role user"},
      {"{\"prompt_tokens_max\":3}", "{\"prompt\":\"abcd\",\"answer\":1}", "prompt", "3"},
      {"{}", "{\"prompt\":\"a\",\"answer\":[1]}", "answer", "expected a string or a number, got array"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct dataset_item item;
    struct arena arena = ARENA_INIT;
    struct err err = {0};
    bool left_out;
    assert_int_not_equal(read_line(cases[i].config, cases[i].line, false, &item, &left_out, &arena, &err), RC_OK);
    if (!strstr(err.message, cases[i].words) || strcmp(err.field, cases[i].field) != 0)
      fail_msg("case %zu: %s: %s", i, err.field, err.message);
    arena_free(&arena);
  }
}

static void long_prompts_are_refused_or_left_out(void **state) {
  struct dataset_item item;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  bool left_out = false;
  (void)state;
  const char *config = "{\"prompt_tokens_max\":3,\"long_prompts\":\"skip\"}";
  assert_int_equal(read_line(config, "{\"prompt\":\"abc\",\"answer\":1}", false, &item, &left_out, &arena, &err),
                   RC_OK);
  assert_false(left_out);
  assert_int_equal(item.prompt_length, 3);
  assert_int_equal(read_line(config, "{\"prompt\":\"abcd\",\"answer\":1}", false, &item, &left_out, &arena, &err),
                   RC_OK);
  assert_true(left_out);
  arena_free(&arena);
}

static void readings_are_written_whole_and_read_back(void **state) {
  static const char *const configs[] = {
      "{\"preset\":\"gsm8k\"}",
      "{\"preset\":\"verl\",\"keys\":{\"prompt\":[\"a.b\",\"c[0]\"],\"extra\":{\"n\":\"x.y\"}},\"extract\":\"####\"}",
      "{\"system\":\"S\",\"template\":\"T {prompt}\",\"prompt_tokens_max\":5,\"long_prompts\":\"skip\"}",
      "{\"chat\":false}",
  };
  (void)state;
  for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
    struct arena arena = ARENA_INIT;
    struct buf text[2] = {BUF_INIT, BUF_INIT};
    const char *from = configs[i];
    for (int pass = 0; pass < 2; pass++) {
      struct reading r;
      struct json_writer w;
      struct err err = {0};
      if (reading_of(&r, from, &arena, &err) != RC_OK) fail_msg("%s: %s %s", from, err.field, err.message);
      json_writer_init(&w, &text[pass]);
      json_object_begin(&w);
      reading_write(&r, &w);
      json_object_end(&w);
      from = text[0].data;
    }
    assert_string_equal(text[0].data, text[1].data);
    if (i == 0)
      assert_string_equal(
          text[0].data,
          "{\"preset\":\"gsm8k\",\"keys\":{\"prompt\":\"question\",\"answer\":\"answer\",\"completion\":"
          "\"answer\"},\"extract\":\"####\",\"chat\":false,\"system\":\"\",\"template\":\"\","
          "\"prompt_tokens_max\":0,\"long_prompts\":\"refuse\"}");
    for (int pass = 0; pass < 2; pass++) buf_free(&text[pass]);
    arena_free(&arena);
  }
}

static void bad_readings_are_refused_by_name(void **state) {
  static const struct {
    const char *config, *field;
  } cases[] = {
      {"{\"preset\":\"gsm9k\"}", "preset"},
      {"{\"extract\":\"last\"}", "extract"},
      {"{\"long_prompts\":\"cut\"}", "long_prompts"},
      {"{\"template\":\"no place\"}", "template"},
      {"{\"template\":\"{prompt} {prompt}\"}", "template"},
      {"{\"system\":\"S\",\"chat\":false}", "chat"},
      {"{\"keys\":{\"question\":\"a\"}}", "keys.question"},
      {"{\"keys\":{\"prompt\":\"a..b\"}}", "keys.prompt"},
      {"{\"keys\":{\"prompt\":\"\"}}", "keys.prompt"},
      {"{\"keys\":{\"prompt\":[]}}", "keys.prompt"},
      {"{\"keys\":{\"prompt\":[\"a\",\"b\",\"c\",\"d\",\"e\"]}}", "keys.prompt"},
      {"{\"keys\":{\"answer\":7}}", "keys.answer"},
      {"{\"keys\":{\"extra\":{\"a\":\"b[\"}}}", "keys.extra"},
      {"{\"keys\":{\"extra\":[]}}", "keys.extra"},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct reading r;
    struct arena arena = ARENA_INIT;
    struct err err = {0};
    assert_int_equal(reading_of(&r, cases[i].config, &arena, &err), RC_INVALID);
    assert_string_equal(err.field, cases[i].field);
    arena_free(&arena);
  }
}

static void paths_are_keys_and_indices(void **state) {
  static const char *const good[] = {"a", "a.b", "a[0]", "a[-1].b[2][3]", "reward_model.ground_truth", "a b"};
  static const char *const bad[] = {"",   ".",   "a.",   ".a", "a..b",  "[0]",
                                    "a[", "a[]", "a[x]", "a]", "a[0]b", "a[1234567]"};
  static const char text[] = "{\"a\":{\"b\":[1,[2,3]],\"n\":null},\"s\":\"x\"}";
  static const struct {
    const char *path;
    int value; /* 0: nothing */
  } cases[] = {{"a.b[0]", 1},    {"a.b[1][1]", 3}, {"a.b[-1][-2]", 2}, {"a.b[2]", 0}, {"a.b[-3]", 0},
               {"a.b[0].c", 0}, {"a.n", 0},       {"s[0]", 0},        {"b", 0},      {"a.b[0][0]", 0}};
  struct json *object = NULL;
  struct err err;
  (void)state;
  for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) assert_int_equal(key_path_check(good[i], &err), RC_OK);
  for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
    if (key_path_check(bad[i], &err) != RC_INVALID) fail_msg("%s", bad[i]);
  char longest[KEY_PATH_CHARS_MAX + 2];
  memset(longest, 'a', sizeof longest);
  longest[KEY_PATH_CHARS_MAX + 1] = 0;
  assert_int_equal(key_path_check(longest, &err), RC_INVALID);
  assert_int_equal(key_path_check(longest + 1, &err), RC_OK);
  assert_int_equal(json_parse(&object, text, sizeof text - 1, 0, &err), RC_OK);
  assert_null(key_path_find(object, longest + 1));
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const struct json *v = key_path_find(object, cases[i].path);
    if (cases[i].value ? !v || json_int(v) != cases[i].value : v != NULL) fail_msg("%s", cases[i].path);
  }
  json_free(object);
}

static void answers_are_found_in_worked_solutions(void **state) {
  static const struct {
    enum answer_extract how;
    const char *text, *answer; /* NULL: none */
  } cases[] = {
      {EXTRACT_NONE, " 72 ", "72"},
      {EXTRACT_HASHES, "a\n#### 72", "72"},
      {EXTRACT_HASHES, "#### 1\n####  1,080 \nbye", "1,080"},
      {EXTRACT_HASHES, "72", NULL},
      {EXTRACT_HASHES, "a ####\n72", NULL},
      {EXTRACT_BOXED, "\\boxed{1} and \\boxed{ \\frac{1}{2} }.", "\\frac{1}{2}"},
      {EXTRACT_BOXED, "\\boxed{a \\boxed{b}}", "a \\boxed{b}"},
      {EXTRACT_BOXED, "\\boxed{\\{1,2\\}}", "\\{1,2\\}"},
      {EXTRACT_BOXED, "\\boxed{1} \\boxed{2", "1"},
      {EXTRACT_BOXED, "\\boxed{}", NULL},
      {EXTRACT_BOXED, "\\boxed 3", NULL},
  };
  (void)state;
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const char *out = NULL;
    size_t len = 0;
    const bool found = answer_extract(cases[i].how, cases[i].text, &out, &len);
    const char *expected = cases[i].answer;
    if (found != (expected != NULL) || (found && (len != strlen(expected) || memcmp(out, expected, len) != 0)))
      fail_msg("%s: %.*s", cases[i].text, (int)len, out ? out : "");
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(presets_read_the_files_that_people_have),
      cmocka_unit_test(templates_and_system_messages_go_around_prompts),
      cmocka_unit_test(completions_come_as_text_as_a_message_and_as_the_last_word),
      cmocka_unit_test(bad_lines_say_what_they_would_have_needed),
      cmocka_unit_test(long_prompts_are_refused_or_left_out),
      cmocka_unit_test(readings_are_written_whole_and_read_back),
      cmocka_unit_test(bad_readings_are_refused_by_name),
      cmocka_unit_test(paths_are_keys_and_indices),
      cmocka_unit_test(answers_are_found_in_worked_solutions),
  };
  return cmocka_run_group_tests_name("reading", tests, setup, teardown);
}
