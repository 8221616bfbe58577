/* Measuring: nodes are counted exactly, and no shape of document takes more memory than measured before parsing. */
#include "tests/unit/base/cm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/json/json.h"

static struct err err;

static struct json_size measure(const char *text) {
  struct json_size size;
  if (json_measure(&size, text, strlen(text), LIMIT_BODY_BYTES, LIMIT_JSON_NODES, &err) != RC_OK)
    fail_msg("%s: %s", text, err.message);
  return size;
}

/* Values and members of a parsed tree. */
static size_t nodes_of(const struct json *v) {
  size_t nodes = 1;
  const struct json *member;
  if (json_type_of(v) == JSON_ARRAY)
    for (size_t i = 0; i < json_length(v); i++) nodes += nodes_of(json_at(v, i));
  for (void *cursor = NULL; json_next(v, &cursor, NULL, &member);) nodes += 1 + nodes_of(member);
  return nodes;
}

static void test_nodes_are_what_the_tree_has(void **state) {
  (void)state;
  static const char *const texts[] = {"0",
                                      "\"a,b:[{\"",
                                      "[]",
                                      " [ \n\t ] ",
                                      "{}",
                                      "[[]]",
                                      "[[],[]]",
                                      "[1]",
                                      "[ 1 ]",
                                      "[\"\"]",
                                      "[null,true]",
                                      "{\"a\":1}",
                                      "{\"a\" : [ ] , \"b\":{\"c\":[{}, {\"d\":\"e\"}]}}",
                                      "[\"\\\"\",\"\\\\\",\"[,]\"]",
                                      "{\"\\\"\":\"\\\\\"}"};
  for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
    struct json *root;
    if (json_parse(&root, texts[i], strlen(texts[i]), 0, &err) != RC_OK) fail_msg("%s: %s", texts[i], err.message);
    if (measure(texts[i]).nodes != nodes_of(root))
      fail_msg("%s: counted %zu nodes, the tree has %zu", texts[i], measure(texts[i]).nodes, nodes_of(root));
    json_free(root);
  }
}

/* --- memory --- */

/* `open`, then count times `item` with a comma between, then `close`; "%zu" in the item is its number. */
struct shape {
  const char *open, *item, *close;
};

static const struct shape shapes[] = {
    {"[", "0", "]"},
    {"[", "-1.5", "]"},
    {"[", "[]", "]"},
    {"[", "{}", "]"},
    {"[", "\"\"", "]"},
    {"[", "\"0123456789012345\"", "]"},
    {"[", "\"01234567890123\"", "]"}, /* with its quotes and its NUL it begins one more cell of eight */
    {"[", "\"012345678901234\"", "]"},
    {"[", "[[[0]]]", "]"},
    {"[", "{\"\":0}", "]"},
    {"[", "{\"a\":{\"a\":{\"a\":{}}}}", "]"},
    {"[", "[0,1,2,3,4,5,6,7,8]", "]"},
    {"[", "{\"a\":0,\"b\":0,\"c\":0,\"d\":0,\"e\":0,\"f\":0,\"g\":0,\"h\":0,\"i\":0}", "]"},
    {"{", "\"%zu\":0", "}"},
    {"{", "\"%zu\":{}", "}"},
    {"{", "\"a key that is as long as the keys of a heartbeat are, and longer: %zu\":\"\"", "}"},
    {"[\"", "", "\"]"},
    {"{\"", "", "\":0}"},
    {"0.", "", ""}, /* commas: no number */
};

static char *make(const struct shape *s, size_t count, size_t *len) {
  struct buf out = BUF_INIT;
  buf_puts(&out, s->open);
  for (size_t i = 0; i < count; i++) {
    if (i) buf_append(&out, ",", 1);
    const char *number = strstr(s->item, "%zu");
    if (!number) {
      buf_puts(&out, s->item);
      continue;
    }
    buf_append(&out, s->item, (size_t)(number - s->item));
    buf_printf(&out, "%zu", i);
    buf_puts(&out, number + 3);
  }
  buf_puts(&out, s->close);
  assert_false(out.failed);
  return buf_take(&out, len);
}

/* A shape that took more would end this test by an assertion. */
static void test_no_shape_takes_more_than_was_measured(void **state) {
  (void)state;
  for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
    for (size_t count = 0; count < 40000; count = count < 40     ? count + 1
                                                  : count < 3000 ? count * 17 / 16
                                                                 : 2 * count + 1) {
      size_t len;
      char *text = make(&shapes[s], count, &len);
      struct json_size size;
      struct json *root;
      if (json_measure(&size, text, len, SIZE_MAX, SIZE_MAX, &err) != RC_OK) fail_msg("%s", err.message);
      const enum rc rc = json_parse_measured(&root, text, len, &size, &err);
      if (rc != (shapes[s].close[0] ? RC_OK : RC_INVALID) && count > 1)
        fail_msg("%zu times %s: %s", count, shapes[s].item, err.message);
      json_free(root);
      free(text);
    }
  }
}

/* Garbage behind the fault must not make the measure of the text before it smaller. */
static void test_malformed_text_takes_no_more_either(void **state) {
  (void)state;
  static const char letters[] = "[]{}\",:0-e \n\\ua\"\"[{,,";
  static const char *const heads[] = {"",          "[0,0,0,0,0,0,0,0,0", "[\"\",\"\",\"\",\"\"",
                                      "[[],[],[]", "[{},{},{}",          "{\"a\":0,\"b\":0,\"c\":{}"};
  unsigned seed = 1;
  for (int i = 0; i < 300000; i++) {
    char text[128];
    size_t len = (size_t)snprintf(text, sizeof text, "%s", heads[i % 6]);
    for (const size_t end = len + (size_t)rand_r(&seed) % 90; len < end;)
      text[len++] = letters[(size_t)rand_r(&seed) % (sizeof letters - 1)];
    struct json *root;
    json_parse(&root, text, len, 0, NULL);
    json_free(root);
  }
}

static void test_refused_memory_is_no_fault_of_the_text(void **state) {
  (void)state;
  struct json *root;
  const struct json_size size = {.nodes = 1, .memory = SIZE_MAX};
  assert_int_equal(json_parse_measured(&root, "[]", 2, &size, &err), RC_NO_MEMORY);
  assert_null(root);
}

/* --- limits --- */

static enum rc parse_items(const char *item, size_t count, size_t bytes_max) {
  size_t len;
  char *text = make(&(struct shape){"[", item, "]"}, count, &len);
  struct json *root;
  const enum rc rc = json_parse(&root, text, len, bytes_max, &err);
  json_free(root);
  free(text);
  return rc;
}

static void test_nodes_are_bounded(void **state) {
  (void)state;
  assert_int_equal(parse_items("0", LIMIT_JSON_NODES - 1, 0), RC_OK);
  assert_int_equal(parse_items("0", LIMIT_JSON_NODES, 0), RC_TOO_LARGE);
  assert_non_null(strstr(err.message, "at most 1048576 values and members, got 1048577"));
  assert_int_equal(parse_items("0", LIMIT_JSON_NODES, LIMIT_BATCH_BODY_BYTES), RC_OK);
}

static void test_memory_is_bounded(void **state) {
  (void)state;
  assert_int_equal(parse_items("{}", 5 << 20, LIMIT_BATCH_BODY_BYTES), RC_TOO_LARGE);
  assert_non_null(strstr(err.message, "at most 1073741824 bytes of memory, got 5242881 values"));
}

/* 151,643 tokens and 151,387 merges, as Qwen's has: no limit of requests may be in its way. */
static void test_a_large_vocabulary_loads(void **state) {
  (void)state;
  struct buf text = BUF_INIT;
  buf_puts(&text, "{\"model\":{\"vocab\":{");
  for (int i = 0; i < 151643; i++) buf_printf(&text, "%s\"token%d\":%d", i ? "," : "", i, i);
  buf_puts(&text, "},\"merges\":[");
  for (int i = 0; i < 151387; i++) buf_printf(&text, "%s[\"tok%d\",\"en%d\"]", i ? "," : "", i, i);
  buf_puts(&text, "]}}");
  struct json *root;
  if (json_parse(&root, text.data, text.len, 128u << 20, &err) != RC_OK) fail_msg("%s", err.message);
  json_free(root);
  buf_free(&text);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_nodes_are_what_the_tree_has),
      cmocka_unit_test(test_no_shape_takes_more_than_was_measured),
      cmocka_unit_test(test_malformed_text_takes_no_more_either),
      cmocka_unit_test(test_refused_memory_is_no_fault_of_the_text),
      cmocka_unit_test(test_nodes_are_bounded),
      cmocka_unit_test(test_memory_is_bounded),
      cmocka_unit_test(test_a_large_vocabulary_loads),
  };
  return cmocka_run_group_tests_name("json/measure", tests, NULL, NULL);
}
