/* Tokenizers of model families against the tokenizers library's own answers
 * (tests/golden/tokenizer/families_cases.json; `make tokenizers` compares many more strings with the library itself),
 * their patterns and sections that must be refused, and files with damage.  Runs in the repository's root. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/json/json.h"
#include "common/model/tokenizer/tokenizer.h"

#define GOLDEN "tests/golden/tokenizer/"
enum { TOKENS_MAX = 1 << 22, RUN_BYTES = 100000 };

static const char *const names[] = {
    "qwen",   "llama3",  "gpt2", "neox",  "deepseek3",   "deepseek_coder", "deepseek_llm", "starcoder", "nemo",
    "llama2", "mistral", "phi3", "gemma", "unigram_nmt", "unigram_bytes",  "words",        "odd"};
enum { FAMILIES = sizeof names / sizeof names[0] };
static struct err err;

static struct tokenizer *load(const char *name) {
  char path[128];
  struct tokenizer *t;
  snprintf(path, sizeof path, GOLDEN "families/%s.json", name);
  if (tokenizer_load(&t, path, &err) != RC_OK) fail_msg("%s: %s: %s", path, err.field, err.message);
  return t;
}

static struct json *load_json(const char *path) {
  struct buf bytes = BUF_INIT;
  struct json *root;
  assert_int_equal(file_read(&bytes, path, 1 << 24, &err), RC_OK);
  assert_int_equal(json_parse(&root, bytes.data, bytes.len, 1 << 24, &err), RC_OK);
  buf_free(&bytes);
  return root;
}

static void check_ids(const char *name, const char *text, const struct token_ids *ids, const struct json *expected) {
  for (size_t i = 0; i < json_length(expected) && i < ids->count; i++) {
    if (ids->items[i] != json_int(json_at(expected, i)))
      fail_msg("%s: \"%s\": id %zu is %d, expected %d", name, text, i, ids->items[i],
               (int)json_int(json_at(expected, i)));
  }
  if (ids->count != json_length(expected))
    fail_msg("%s: \"%s\": %zu ids, expected %zu", name, text, ids->count, json_length(expected));
}

static void check_decodings(const struct tokenizer *t, const char *name, const struct json *decoded) {
  assert_true(json_length(decoded) >= 10);
  for (size_t i = 0; i < json_length(decoded); i++) {
    const struct json *list = json_at(json_at(decoded, i), 0);
    int32_t ids[1024];
    assert_true(json_length(list) <= 1024);
    for (size_t k = 0; k < json_length(list); k++) ids[k] = (int32_t)json_int(json_at(list, k));
    for (size_t skip = 0; skip < 2; skip++) {
      struct buf out = BUF_INIT;
      size_t len;
      const char *expected = json_string(json_at(json_at(decoded, i), 1 + skip), &len);
      assert_int_equal(tokenizer_decode(t, ids, json_length(list), skip, &out, &err), RC_OK);
      if (out.len != len || memcmp(out.data ? out.data : "", expected, len) != 0)
        fail_msg("%s: list %zu, skip %zu: \"%s\", expected \"%s\"", name, i, skip, out.data, expected);
      buf_free(&out);
    }
  }
}

static void test_answers_equal_the_librarys(void **state) {
  (void)state;
  struct json *cases = load_json(GOLDEN "families_cases.json");
  const struct json *texts = json_get(cases, "texts");
  assert_true(json_length(texts) >= 40);
  for (size_t n = 0; n < FAMILIES; n++) {
    struct tokenizer *t = load(names[n]);
    const struct json *golden = json_get(json_get(cases, "families"), names[n]), *prompts = json_get(golden, "prompts");
    for (size_t i = 0; i < json_length(texts); i++) {
      struct token_ids ids = {0};
      size_t len;
      const char *text = json_string(json_at(texts, i), &len);
      if (tokenizer_encode(t, text, len, true, TOKENS_MAX, &ids, &err) != RC_OK)
        fail_msg("%s: \"%s\": %s", names[n], text, err.message);
      check_ids(names[n], text, &ids, json_at(json_get(golden, "ids"), i));
      ids.count = 0;
      if (i < json_length(prompts)) {
        assert_int_equal(tokenizer_encode_prompt(t, text, len, TOKENS_MAX, &ids, &err), RC_OK);
        check_ids(names[n], text, &ids, json_at(prompts, i));
      }
      token_ids_free(&ids);
    }
    check_decodings(t, names[n], json_get(golden, "decoded"));
    tokenizer_free(t);
  }
  json_free(cases);
}

static void test_a_prompts_first_token_counts(void **state) {
  (void)state;
  struct tokenizer *t = load("llama2");
  struct token_ids ids = {0};
  assert_int_equal(tokenizer_encode_prompt(t, "a", 1, 1, &ids, &err), RC_TOO_LARGE);
  assert_int_equal(ids.count, 0);
  assert_int_equal(tokenizer_encode_prompt(t, "a", 1, 0, &ids, &err), RC_TOO_LARGE);
  assert_int_equal(tokenizer_encode_prompt(t, "a", 1, 2, &ids, &err), RC_OK);
  assert_int_equal(ids.count, 2);
  assert_int_equal(ids.items[0], tokenizer_id_of(t, "<s>"));
  token_ids_free(&ids);
  tokenizer_free(t);
}

/* Somebody's text must never end a turn: no plain text becomes a special token, though the vocabulary has it. */
static void test_plain_text_becomes_no_special_token(void **state) {
  (void)state;
  static const char text[] =
      "<s></s> <s> x</s><|im_end|><|eot_id|><bos><eos><start_of_turn>[INST]<mask>\xE2\x96\x81</s>\xC2\xA4~ policy "
      "policy.x <unk>";
  for (size_t n = 0; n < FAMILIES; n++) {
    struct tokenizer *t = load(names[n]);
    struct token_ids ids = {0};
    const int32_t unknown = tokenizer_id_of(t, "<unk>");
    assert_int_equal(tokenizer_encode(t, text, sizeof text - 1, false, TOKENS_MAX, &ids, &err), RC_OK);
    for (size_t i = 0; i < ids.count; i++) {
      if (tokenizer_is_special(t, ids.items[i]) && ids.items[i] != unknown)
        fail_msg("%s: id %d at place %zu is special", names[n], ids.items[i], i);
    }
    token_ids_free(&ids);
    tokenizer_free(t);
  }
}

/* A completion goes on where its prompt ended, so its first word keeps its space. */
static void test_text_that_goes_on(void **state) {
  (void)state;
  static const char *const strip[] = {"llama2", "mistral", "phi3", "unigram_nmt"};
  for (size_t n = 0; n < 4; n++) {
    struct tokenizer *t = load(strip[n]);
    struct token_ids ids = {0};
    struct buf whole = BUF_INIT, parts = BUF_INIT;
    assert_int_equal(tokenizer_encode(t, "the lease", 9, true, 100, &ids, &err), RC_OK);
    assert_int_equal(tokenizer_decode(t, ids.items, ids.count, true, &whole, &err), RC_OK);
    assert_string_equal(whole.data, "the lease");
    for (size_t i = 0; i < ids.count; i++)
      assert_int_equal(tokenizer_decode_more(t, &ids.items[i], 1, true, &parts, &err), RC_OK);
    assert_string_equal(parts.data, " the lease");
    buf_clear(&whole);
    buf_puts(&whole, "  before:");
    assert_int_equal(tokenizer_decode(t, ids.items, ids.count, true, &whole, &err), RC_OK);
    assert_string_equal(whole.data, "  before:the lease"); /* what was there stays */
    buf_free(&whole);
    buf_free(&parts);
    token_ids_free(&ids);
    tokenizer_free(t);
  }
}

/* The thread sanitizer makes it thirty times as slow. */
#if defined(__SANITIZE_THREAD__)
enum { LINEAR_SECONDS_MAX = 120 };
#else
enum { LINEAR_SECONDS_MAX = 20 };
#endif

/* Runs through every model kind and splitting rule; quadratic time would be minutes.  (`make tokenizers` demands a
 * second for a megabyte.) */
static void test_long_runs_take_linear_time(void **state) {
  (void)state;
  static const char *const units[] = {"a", " ", "=", "\xE4\xBD\xA0"};
  const clock_t begin = clock();
  for (size_t n = 0; n < FAMILIES; n++) {
    struct tokenizer *t = load(names[n]);
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
      struct buf text = BUF_INIT;
      struct token_ids ids = {0};
      while (text.len < RUN_BYTES) buf_puts(&text, units[u]);
      if (tokenizer_encode(t, text.data, text.len, true, TOKENS_MAX, &ids, &err) != RC_OK)
        fail_msg("%s, unit %zu: %s", names[n], u, err.message);
      buf_free(&text);
      token_ids_free(&ids);
    }
    tokenizer_free(t);
  }
  const double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
  if (seconds > LINEAR_SECONDS_MAX) fail_msg("expected a second or so, it took %.1f", seconds);
}

/* --- files --- */

static enum rc parse(const char *json) {
  struct tokenizer *t = (struct tokenizer *)&err;
  memset(&err, 0, sizeof err);
  const enum rc rc = tokenizer_parse(&t, json, strlen(json), &err);
  if (rc != RC_OK) assert_null(t);
  tokenizer_free(t);
  return rc;
}

#define refused(json, word)                                                                                  \
  do {                                                                                                       \
    const enum rc refused_rc = parse(json);                                                                  \
    if (refused_rc != RC_INVALID) fail_msg("expected RC_INVALID, got %s for %s", rc_name(refused_rc), json); \
    if (!strstr(err.message, word)) fail_msg("expected \"%s\" in: %s: %s", word, err.field, err.message);    \
  } while (0)

#define META(vocab, more)                                                                                             \
  "{\"decoder\":{\"type\":\"Metaspace\",\"replacement\":\"_\"},\"model\":{\"type\":\"Unigram\",\"vocab\":" vocab more \
  "}}"

static void test_unigram_tables_that_lie(void **state) {
  (void)state;
  assert_int_equal(parse(META("[[\"a\",-1.5],[\"b\",0]]", ",\"unk_id\":0")), RC_OK);
  assert_int_equal(parse(META("[[\"a\",-1.5]]", ",\"unk_id\":null")), RC_OK);
  refused(META("[]", ""), "at least one token");
  refused(META("[[\"a\",-1.5],[\"a\",0]]", ""), "comes twice");
  refused(META("[[\"a\",\"b\"]]", ""), "[token, score]");
  refused(META("[[\"a\"]]", ""), "[token, score]");
  refused(META("[\"a\"]", ""), "[token, score]");
  refused(META("[[\"\",0]]", ""), "tokens of 1 to");
  refused(META("[[\"a\",0]]", ",\"unk_id\":1"), "an id of the vocabulary");
  refused(META("[[\"a\",0]]", ",\"unk_id\":-1"), "an id of the vocabulary");
  refused(META("[[\"a\",0]]", ",\"unk_id\":\"a\""), "an id of the vocabulary");
  refused(META("[[\"a\",0]]", ",\"byte_fallback\":1"), "true or false");
}

static void test_text_without_tokens(void **state) {
  (void)state;
  static const char json[] = META("[[\"a\",-1.5],[\"ab\",-2],[\"b\",-9]]", "");
  struct tokenizer *t;
  struct token_ids ids = {0};
  assert_int_equal(tokenizer_parse(&t, json, sizeof json - 1, &err), RC_OK);
  assert_int_equal(tokenizer_encode(t, "aaba", 4, true, 10, &ids, &err), RC_OK);
  assert_int_equal(ids.count, 3);
  assert_int_equal(ids.items[1], 1);
  assert_int_equal(tokenizer_encode(t, "aac", 3, true, 10, &ids, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "\"c\" has no token"));
  assert_int_equal(ids.count, 3);
  token_ids_free(&ids);
  tokenizer_free(t);
}

#define BYTES_OF(pattern)                                                                                          \
  "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\"," \
  "\"pattern\":{\"Regex\":\"" pattern                                                                            \
  "\"}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}]},"                                \
  "\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}"

/* What Oniguruma and PCRE2 read differently. */
static void test_patterns_that_are_not_read_alike(void **state) {
  (void)state;
  assert_int_equal(parse(BYTES_OF("(?i:'s)|[^\\\\s\\\\p{L}]+|\\\\p{^N}|\\\\u00e9|(?<=a)b(?!\\\\S)|a{2,3}?")), RC_OK);
  refused(BYTES_OF("\\\\h"), "an escape other than");
  refused(BYTES_OF("\\\\R"), "an escape other than");
  refused(BYTES_OF("\\\\K"), "an escape other than");
  refused(BYTES_OF("(a)\\\\1"), "an escape other than");
  refused(BYTES_OF("\\\\pL"), "braces");
  refused(BYTES_OF("\\\\u12"), "four digits");
  refused(BYTES_OF("[a&&b]"), "intersection");
  refused(BYTES_OF("[a[b]]"), "brackets in brackets");
  refused(BYTES_OF("[]a]"), "begins with ]");
  refused(BYTES_OF("[^]a]"), "begins with ]");
  refused(BYTES_OF("[\\\\W]"), "\\W in brackets");
  refused(BYTES_OF("a{1,3}+"), "interval that is repeated");
  refused(BYTES_OF("(?m:a)"), "a group other than");
  refused(BYTES_OF("(?<x>a)"), "a group other than");
  refused(BYTES_OF("(*UCP)a"), "a group other than");
  refused(BYTES_OF("\\\\p{Nonsense}"), "a general category or a script");
  refused(BYTES_OF("\\\\p{Alphabetic}"), "a general category or a script");
  refused(BYTES_OF("\\\\p{Cn}"), "a general category or a script");
  refused(BYTES_OF("\\\\p{Unknown}"), "a general category or a script");
  refused(BYTES_OF("\\\\p{Han\\u0000mer}"), "a general category or a script");
  refused(BYTES_OF("\\\\p{White_Space,\\u0000mer}"), "a general category or a script");
  refused(BYTES_OF("\\\\u\\u0000\\u0000\\u0000\\u0000"), "four digits");
  refused(BYTES_OF("a{2}?"), "followed by ?");
  refused(BYTES_OF("a(?i)b|c"), "behind something in its branch");
  assert_int_equal(parse(BYTES_OF("(?i)a|b|(?:(?i)c|d{2,}?|\\\\{2}?)")), RC_OK);
  refused(BYTES_OF("(?i:a|(sS))"), "where case is ignored");
  refused(BYTES_OF("(?i:\u00df)"), "where case is ignored");
  refused(BYTES_OF("(?i:[\\\\p{Lu}])"), "where case is ignored");
  assert_int_equal(parse(BYTES_OF("(?i:a|(?-i:ss)|[ss])ss\u00df[\\\\p{Lu}]")), RC_OK);
  refused(BYTES_OF("a)"), "bracket ) too many");
}

/* The text's ids by the tokenizer.json in json; what is encoded differently is told with the json. */
static void expect_ids(const char *json, const char *text, const int32_t *expected, size_t count) {
  struct tokenizer *t;
  struct token_ids ids = {0};
  if (tokenizer_parse(&t, json, strlen(json), &err) != RC_OK) fail_msg("%s: %s", json, err.message);
  if (tokenizer_encode(t, text, strlen(text), true, 10, &ids, &err) != RC_OK) fail_msg("%s: %s", json, err.message);
  if (ids.count != count) fail_msg("%s: expected %zu ids, got %zu", json, count, ids.count);
  for (size_t i = 0; i < count; i++) assert_int_equal(ids.items[i], expected[i]);
  token_ids_free(&ids);
  tokenizer_free(t);
}

/* What both read, each in its own way: the ids that are left of a text when a pattern's matches are taken out. */
static void test_patterns_that_are_bridged(void **state) {
  (void)state;
  static const struct {
    const char *pattern, *text;
    size_t count;
    int32_t left[4];
  } cases[] = {
      {"\\\\p{Han}", "\u4e2d\u3002a", 2, {2, 0}}, /* other scripts share the full stop */
      {"[\\\\p{han}]", "\u4e2d\u3002a", 2, {2, 0}},
      {"\\\\P{Han}", "\u4e2d\u3002a", 1, {1}},
      {"\\\\p{Han}", "\U0002ebf0a", 1, {0}}, /* newer than PCRE2 */
      {"a{,2}b", "aabab", 0, {0}},
      {"\\\\bb", "a\u0301b", 3, {0, 5, 3}}, /* a mark is part of a word */
      {"\\\\Bb", "a\u0301b", 2, {0, 5}},
      {"\\\\w", "\u00bda", 0, {0}},
      {"[\\\\w]", "\u00bda", 1, {4}}, /* in brackets it is none */
      {"[^\\\\w]", "\u00bda", 1, {0}},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct buf json = BUF_INIT;
    buf_printf(&json,
               "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Removed\",\"pattern\":{\"Regex\":\"%s\"}},"
               "\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":"
               "{\"a\":0,\"\u4e2d\":1,\"\u3002\":2,\"b\":3,\"\u00bd\":4,\"\u0301\":5}}}",
               cases[i].pattern);
    assert_false(json.failed);
    expect_ids(json.data, cases[i].text, cases[i].left, cases[i].count);
    buf_free(&json);
  }
}

/* Of a token that takes white space on both sides, the second of two in a row may have been taken by the first. */
static void test_an_added_token_that_another_took(void **state) {
  (void)state;
  static const char json[] =
      "{\"decoder\":{\"type\":\"Fuse\"},\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{\"a\":0,\" \":1}},"
      "\"added_tokens\":[{\"id\":2,\"content\":\"\\n\",\"lstrip\":true,\"rstrip\":true}]}";
  static const int32_t expected[] = {0, 2, 0, 2};
  expect_ids(json, "a\n a \n\n", expected, 4);
}

/* U+180E is no white space, within brackets neither: it is a word of its own, whose last byte is not merged with the
 * space behind it. */
static void test_no_white_space_within_brackets(void **state) {
  (void)state;
  static const char json[] =
      "{\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Split\",\"behavior\":\"Isolated\","
      "\"pattern\":{\"Regex\":\"[^\\\\S\\\\n]+\"}},{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":"
      "false}]},\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\",\"vocab\":{\"\u00e1\":0,\"\u0142\":1,"
      "\"\u0130\":2,\"\u0120\":3,\"\u0130\u0120\":4},\"merges\":[[\"\u0130\",\"\u0120\"]]}}";
  static const int32_t expected[] = {0, 1, 2, 3};
  expect_ids(json, "\xE1\xA0\x8E ", expected, 4);
}

#define OUT_OF(decoder, post)                                                                                     \
  "{\"decoder\":" decoder ",\"post_processor\":" post                                                             \
  ",\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}"
#define FUSE "{\"type\":\"Fuse\"}"
#define STRIP(stop) "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":" stop "}"
#define LIST(items) "{\"type\":\"Sequence\",\"decoders\":[" items "]}"
#define TEMPLATE(single, ids)                                     \
  "{\"type\":\"TemplateProcessing\",\"single\":[" single "],"     \
  "\"special_tokens\":{\"a\":{\"id\":\"a\",\"ids\":[" ids "],\"tokens\":[\"a\"]}}}"
#define A   "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}"
#define TOK "{\"SpecialToken\":{\"id\":\"a\",\"type_id\":0}}"

static void test_outputs_that_are_not_done_here(void **state) {
  (void)state;
  assert_int_equal(parse(OUT_OF(LIST(STRIP("1") "," FUSE "," STRIP("0")), TEMPLATE(TOK "," A "," TOK, "1"))), RC_OK);
  refused(OUT_OF("null", "null"), "expected a decoder");
  refused(OUT_OF("{\"type\":\"BPEDecoder\"}", "null"), "BPEDecoder");
  refused(OUT_OF("{\"type\":\"ByteLevel\"}", "null"), "does not fit");
  refused(OUT_OF(LIST(FUSE "," STRIP("1")), "null"), "stop 0");
  refused(OUT_OF(LIST(FUSE "," STRIP("0") "," STRIP("0")), "null"), "one Strip");
  refused(OUT_OF(LIST(FUSE ",{\"type\":\"ByteFallback\"}"), "null"), "nothing but Strip");
  refused(OUT_OF(LIST(LIST(FUSE)), "null"), "inside");
  refused(OUT_OF(LIST(STRIP("-1")), "null"), "a number stop");
  refused(OUT_OF(LIST("{\"type\":\"Metaspace\",\"replacement\":\"_\"}," STRIP("0")), "null"), "without Replace");
  refused(OUT_OF(FUSE, TEMPLATE(TOK, "1")), "one Sequence A");
  refused(OUT_OF(FUSE, TEMPLATE(A "," A, "1")), "one Sequence A");
  refused(OUT_OF(FUSE, TEMPLATE(TOK "," A, "2")), "ids of the vocabulary");
  refused(OUT_OF(FUSE, TEMPLATE(TOK "," A, "-1")), "ids of the vocabulary");
  refused(OUT_OF(FUSE, TEMPLATE("{\"SpecialToken\":{\"id\":\"b\"}}," A, "1")), "neither");
  refused(OUT_OF(FUSE, "{\"type\":\"TemplateProcessing\",\"single\":\"$A\"}"), "array");
  refused(OUT_OF(FUSE, TEMPLATE(TOK "," A, "0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0,0")), "at most");
  refused(OUT_OF(FUSE, "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"Other\"}]}"), "Other");
  refused(OUT_OF(FUSE,
                 "{\"type\":\"Sequence\",\"processors\":[" TEMPLATE(TOK "," A, "1") "," TEMPLATE(A "," TOK, "1") "]}"),
          "one processor that adds tokens");
}

/* Steps take turns with two buffers, and one that changed nothing gave the next the buffer that the text lay in: tokens
 * lost their first byte to a NUL, and Replace read what it wrote. */
static void test_decoder_steps_behind_one_that_changes_nothing(void **state) {
  (void)state;
#define INTO(from, to) "{\"type\":\"Replace\",\"pattern\":{\"String\":\"" from "\"},\"content\":\"" to "\"}"
#define BYTES          "{\"type\":\"ByteFallback\"}"
  static const struct {
    const char *json, *text;
  } cases[] = {
      {OUT_OF(LIST(INTO("x", "y") "," STRIP("1") "," BYTES "," FUSE), "null"), "aba"},
      {OUT_OF(LIST(INTO("x", "y") "," BYTES "," STRIP("1")), "null"), "aba"},
      {OUT_OF(LIST(INTO("a", " long") "," BYTES "," INTO("l", "bab") "," STRIP("0") "," INTO("b", "cc")), "null"),
       "ccaccongccccaccong"},
      {OUT_OF(LIST(BYTES "," STRIP("1") "," INTO("a", "") "," BYTES "," INTO("b", "x")), "null"), "x"},
  };
  static const int32_t ids[] = {0, 1, 0};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct tokenizer *t;
    struct buf out = BUF_INIT;
    if (tokenizer_parse(&t, cases[i].json, strlen(cases[i].json), &err) != RC_OK) fail_msg("%zu: %s", i, err.message);
    assert_int_equal(tokenizer_decode(t, ids, 3, false, &out, &err), RC_OK);
    assert_int_equal(out.len, strlen(cases[i].text));
    assert_memory_equal(out.data, cases[i].text, out.len);
    buf_free(&out);
    tokenizer_free(t);
  }
}

static void test_folders_without_a_file_of_ours(void **state) {
  (void)state;
  char dir[] = "build/test_tokenizer_XXXXXX", path[128];
  struct tokenizer *t;
  assert_non_null(mkdtemp(dir));
  assert_int_equal(tokenizer_load_folder(&t, dir, &err), RC_OK);
  assert_null(t);
  snprintf(path, sizeof path, "%s/tokenizer.model", dir);
  assert_int_equal(file_write_atomic(path, "x", 1, &err), RC_OK);
  assert_int_equal(tokenizer_load_folder(&t, dir, &err), RC_UNSUPPORTED);
  assert_null(t);
  assert_non_null(strstr(err.message, "there is only tokenizer.model"));
  snprintf(path, sizeof path, "%s/tokenizer.json", dir);
  static const char pointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a2146\nsize 7031645\n";
  assert_int_equal(file_write_atomic(path, pointer, sizeof pointer - 1, &err), RC_OK);
  assert_int_equal(tokenizer_load_folder(&t, dir, &err), RC_INVALID);
  assert_non_null(strstr(err.message, "/tokenizer.json: this is a pointer"));
  static const char json[] = META("[[\"a\",-1.5]]", "");
  assert_int_equal(file_write_atomic(path, json, sizeof json - 1, &err), RC_OK);
  assert_int_equal(tokenizer_load_folder(&t, dir, &err), RC_OK);
  assert_int_equal(tokenizer_vocabulary(t), 1);
  tokenizer_free(t);
  assert_int_equal(file_remove_tree(dir, &err), RC_OK);
}

static uint64_t next_random(uint64_t *x) {
  *x ^= *x << 13;
  *x ^= *x >> 7;
  *x ^= *x << 17;
  return *x;
}

/* Whatever a file says, it is refused with a message or it encodes and decodes: never anything else.  (The address
 * sanitizer runs this, too.) */
static void test_damaged_files(void **state) {
  (void)state;
  static const char *const scraps[] = {"0",           "-1",   "null",    "\"\"", "[]",     "{}",
                                       "99999999999", "true", "\\u0000", "(",    "Removed"};
  static const char text[] = "<s>  the lease's 12 \xC3\xA9\xE2\x96\x81\xF0\x9F\x98\x80\n<|im_end|> e\xCC\x81 x";
  uint64_t x = 88172645463325252u;
  int loaded = 0;
  for (size_t n = 0; n < FAMILIES; n++) {
    char path[128];
    struct buf whole = BUF_INIT;
    snprintf(path, sizeof path, GOLDEN "families/%s.json", names[n]);
    assert_int_equal(file_read(&whole, path, 1 << 20, &err), RC_OK);
    for (int round = 0; round < 150; round++) {
      struct buf damaged = BUF_INIT, out = BUF_INIT;
      struct tokenizer *t;
      struct token_ids ids = {0};
      /* Most of the file is the vocabulary; the sections before it are what is worth damaging. */
      const size_t at = next_random(&x) % (round % 3 ? 3000 : whole.len), gone = next_random(&x) % 12;
      const char *scrap = scraps[next_random(&x) % (sizeof scraps / sizeof scraps[0])];
      buf_append(&damaged, whole.data, at);
      if (round % 2) buf_puts(&damaged, scrap);
      if (at + gone < whole.len) buf_append(&damaged, whole.data + at + gone, whole.len - at - gone);
      memset(&err, 0, sizeof err);
      const enum rc rc = tokenizer_parse(&t, damaged.data, damaged.len, &err);
      if (rc != RC_OK) {
        assert_null(t);
        assert_true(err.message[0] != '\0');
      } else {
        loaded++;
        if (tokenizer_encode(t, text, sizeof text - 1, round % 4 < 2, 1000, &ids, &err) == RC_OK)
          assert_int_equal(tokenizer_decode(t, ids.items, ids.count, false, &out, &err), RC_OK);
        tokenizer_free(t);
      }
      token_ids_free(&ids);
      buf_free(&damaged);
      buf_free(&out);
    }
    buf_free(&whole);
  }
  assert_true(loaded > 50); /* else the damage is all of the coarsest kind */
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_answers_equal_the_librarys),
      cmocka_unit_test(test_a_prompts_first_token_counts),
      cmocka_unit_test(test_plain_text_becomes_no_special_token),
      cmocka_unit_test(test_text_that_goes_on),
      cmocka_unit_test(test_long_runs_take_linear_time),
      cmocka_unit_test(test_unigram_tables_that_lie),
      cmocka_unit_test(test_text_without_tokens),
      cmocka_unit_test(test_patterns_that_are_not_read_alike),
      cmocka_unit_test(test_patterns_that_are_bridged),
      cmocka_unit_test(test_an_added_token_that_another_took),
      cmocka_unit_test(test_no_white_space_within_brackets),
      cmocka_unit_test(test_outputs_that_are_not_done_here),
      cmocka_unit_test(test_decoder_steps_behind_one_that_changes_nothing),
      cmocka_unit_test(test_folders_without_a_file_of_ours),
      cmocka_unit_test(test_damaged_files),
  };
  return cmocka_run_group_tests_name("tokenizer families", tests, NULL, NULL);
}
