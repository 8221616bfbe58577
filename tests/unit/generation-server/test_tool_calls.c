/* Tool calls of both forms, what is none, and what a stream may let out before it is known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "services/generation-server/shapes/tool_calls.h"

static const char *const known[] = {"f", "weather"};
static const struct tool_names names = {known, 2};

struct expected {
  const char *text, *content, *calls; /* calls: "name arguments|..." */
};

#define CALL(name, arguments) "<tool_call>\n{\"name\": \"" name "\", \"arguments\": " arguments "}\n</tool_call>"

static const struct expected cases[] = {
    {"", "", ""},
    {"no call", "no call", ""},
    {CALL("f", "{\"a\": 1}"), "", "f {\"a\":1}|"},
    {"text " CALL("f", "{}") "\n" CALL("g", "{\"x\": [1, {\"y\": \"}\"}]}"), "text ",
     "f {}|g {\"x\":[1,{\"y\":\"}\"}]}|"},
    {CALL("f", "{}") "\nand more", "\nand more", "f {}|"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {\"s\": \"a </tool_call> \\\" b\"}}</tool_call>", "",
     "f {\"s\":\"a </tool_call> \\\" b\"}|"},
    {"<tool_call>{\"name\": \"f\", \"arguments\": {}}", "", "f {}|"}, /* the end was cut off, the call was not */
    {"<tool_call>{\"name\": \"f\", \"arg", "<tool_call>{\"name\": \"f\", \"arg", ""},
    {"<tool_call>{\"name\": \"f\"}</tool_call>", "<tool_call>{\"name\": \"f\"}</tool_call>", ""},
    {"<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>",
     "<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>", ""},
    {"<tool_call>nonsense</tool_call>", "<tool_call>nonsense</tool_call>", ""},
    {CALL("f", "{}") " <tool_call>nonsense", CALL("f", "{}") " <tool_call>nonsense", ""},
    {"{\"name\": \"weather\", \"parameters\": {\"city\": \"Oslo\"}}", "", "weather {\"city\":\"Oslo\"}|"},
    {" <|python_tag|>{\"name\": \"f\", \"parameters\": {}}; {\"name\": \"weather\", \"arguments\": {\"a\": 2}}", " ",
     "f {}|weather {\"a\":2}|"},
    {"\n\n{\"name\": \"f\", \"parameters\": {}}", "\n\n", "f {}|"},
    {"{\"name\": \"unknown\", \"parameters\": {}}", "{\"name\": \"unknown\", \"parameters\": {}}", ""},
    {"{\"name\": \"f\", \"parameters\": {}} and so on", "{\"name\": \"f\", \"parameters\": {}} and so on", ""},
    {"{\"a\": 1}", "{\"a\": 1}", ""},
    {"{", "{", ""},
    /* What our parser refuses goes out as it was written. */
    {CALL("f", "{\"id\": 12345678901234567890, \"s\": \"}\"}"), "", "f {\"id\": 12345678901234567890, \"s\": \"}\"}|"},
    {"{\"name\": \"f\", \"n\": [1e999, {\"parameters\": 1}], \"x\": true ,\"parameters\" : {\"a\": 1, \"a\": 2} }", "",
     "f {\"a\": 1, \"a\": 2}|"},
    {"{\"name\": \"f\", \"parameters\": {\"a\": 1, \"a\": 2}, \"parameters\": {}}",
     "{\"name\": \"f\", \"parameters\": {\"a\": 1, \"a\": 2}, \"parameters\": {}}", ""},
    {"{\"name\": \"f\", \"parameters\": {}, \"name\": \"f\"}", "{\"name\": \"f\", \"parameters\": {}, \"name\": \"f\"}",
     ""},
};
enum { CASES = sizeof cases / sizeof cases[0] };

static void calls_are_found_and_everything_else_is_content(void **state) {
  (void)state;
  for (size_t i = 0; i < CASES; i++) {
    struct arena arena = ARENA_INIT;
    struct tool_calls got;
    struct buf shown = BUF_INIT;
    assert_int_equal(tool_calls_parse(&got, cases[i].text, strlen(cases[i].text), &names, &arena, NULL), RC_OK);
    assert_string_equal(got.content, cases[i].content);
    for (size_t k = 0; k < got.count; k++) buf_printf(&shown, "%s %s|", got.items[k].name, got.items[k].arguments);
    assert_string_equal(shown.data ? shown.data : "", cases[i].calls);
    buf_free(&shown);
    arena_free(&arena);
  }
}

/* However the text is cut: what has gone out is a beginning of the content, and counted.  Spaces before a bare call
 * were told in a stream, or not, as the pieces came, and never in a whole answer. */
static void a_stream_lets_out_nothing_that_may_be_a_call(void **state) {
  (void)state;
  size_t early = 0;
  for (size_t i = 0; i < CASES; i++) {
    const char *text = cases[i].text;
    const size_t len = strlen(text);
    for (size_t step = 1; step <= 7; step++) {
      struct tool_filter filter = {0};
      struct buf out = BUF_INIT;
      for (size_t at = 0; at < len; at += step)
        tool_filter_feed(&filter, text + at, at + step < len ? step : len - at, &out);
      assert_int_equal(filter.sent, out.len);
      if (out.len > strlen(cases[i].content) || strncmp(out.data ? out.data : "", cases[i].content, out.len) != 0)
        fail_msg("case %zu by %zu: '%s' went out", i, step, out.data);
      early += out.len;
      buf_free(&out);
    }
  }
  assert_true(early >= 7 * 12); /* content is not kept back for nothing */
}

static void text_without_a_call_goes_out_but_for_what_may_begin_a_tag(void **state) {
  (void)state;
  struct tool_filter filter = {0};
  struct buf out = BUF_INIT;
  tool_filter_feed(&filter, "a <tool", 7, &out);
  assert_string_equal(out.data, "a ");
  tool_filter_feed(&filter, "box> b<", 7, &out);
  assert_string_equal(out.data, "a <toolbox> b");
  tool_filter_feed(&filter, "c", 1, &out);
  assert_string_equal(out.data, "a <toolbox> b<c");
  buf_free(&out);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(calls_are_found_and_everything_else_is_content),
      cmocka_unit_test(a_stream_lets_out_nothing_that_may_be_a_call),
      cmocka_unit_test(text_without_a_call_goes_out_but_for_what_may_begin_a_tag),
  };
  return cmocka_run_group_tests_name("generation tool calls", tests, NULL, NULL);
}
