/* Templates as a language: what they render, what is refused and where, and that no template gets more steps, memory or
 * depth than it may.  tests/template/compare.py compares whole chat templates with jinja2. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/template/template.h"
#include "common/template/values/from_json.h"

static struct err err;
static struct buf rendered;

static const char variables_json[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\" hi <b> \"},{\"role\":\"assistant\",\"content\":\"yes\"}],"
    "\"n\":7,\"half\":0.5,\"no\":null,\"word\":\"Straße\",\"d\":{\"b\":1,\"A\":[1,2],\"items\":\"own\"},\"empty\":[]}";

static enum rc render_with(const char *source, size_t len, int64_t steps, uint8_t *marks) {
  struct workspace w = template_workspace(&err);
  struct template *t = NULL;
  struct json *json;
  struct value variables;
  const struct text *text;
  err = (struct err){0};
  buf_clear(&rendered);
  assert_int_equal(json_parse(&json, variables_json, sizeof variables_json - 1, 0, &err), RC_OK);
  if (steps) w.steps_max = steps;
  enum rc rc = template_parse(&t, source, len, &err);
  if (rc == RC_OK) rc = template_reads_parts(t, "content", &(bool){false}, &err);
  if (rc == RC_OK) rc = value_from_json(&w, json, MARK_DATA, &variables);
  if (rc == RC_OK) rc = template_render(t, &w, variables.dict, &text);
  if (rc == RC_OK) buf_append(&rendered, text->bytes, text->len);
  for (size_t i = 0; rc == RC_OK && marks && i < text->len; i++) marks[i] = text->marks ? text->marks[i] : text->mark;
  template_free(t);
  template_workspace_free(&w);
  json_free(json);
  return rc;
}

static enum rc render(const char *source) { return render_with(source, strlen(source), 0, NULL); }

/* The right sides are jinja2's answers. */
static void test_renders_as_jinja2(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"{{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 1e16 }} {{ 0.1 + 0.2 }}",
       "3 -4 2 3.5 1024 0.5 1e+16 0.30000000000000004"},
      {"{{ 1 < 2 < 3 }} {{ 1 == 1.0 == true }} {{ 'a' in 'cat' }} {{ 3 not in [1, 2] }} {{ not 1 == 2 }}",
       "True True True True True"},
      {"{{ 'a' 'b' ~ 1 ~ none }} {{ ['x', \"it's\", 1.0, none, true] }} {{ (1,) }} {{ {'k': ()} }}",
       "ab1None ['x', \"it's\", 1.0, None, True] (1,) {'k': ()}"},
      {"{{ n if n > 5 }}{{ n if n > 9 }}{{ missing }}", "7"},
      {"{% for a, b in d | dictsort %}{{ loop.index }}{{ a }}{{ '' if loop.last else ',' }}{% endfor %}",
       "1A,2b,3items"},
      {"{{ d['items'] }} {{ d.items() | list | length }} {{ d.get('zz') }} {{ d.get('zz', 4) }}", "own 3 None 4"},
      {"{% for x in [1, 2, 3, 4] if x % 2 == 0 %}{{ x }}{{ loop.length }}{% else %}none{% endfor %}", "2242"},
      {"{% for x in empty %}{{ x }}{% else %}none{% endfor %}", "none"},
      {"{% for x in [1, 2] %}{{ x }}{% break %}{% else %}none{% endfor %}", "1none"},
      {"{% for x in [1, 2] %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% else %}none{% endfor %}", "1"},
      {"{% for x in [1, 2] %}{% continue %}{% else %}none{% endfor %}", "none"},
      {"{{ no | map('upper') | list }}{{ 0 | select | list }}{{ '' | selectattr('a') | list }}", "[][][]"},
      {"{{ false | reject('odd') | list }}{{ no | rejectattr('a', 'eq', 1) | list }}{{ no | map('zz') | list }}",
       "[][][]"},
      {"{{ '\x7f\u00e9' | tojson(ensure_ascii=true) }}{{ '\x7f' | tojson }}", "\"\\u007f\\u00e9\"\"\x7f\""},
      {"{{ strftime_now('%f') | length }}[{{ strftime_now('%z%Z') }}]{{ strftime_now('%%f%') }}", "6[]%f%"},
      {"{% for x in range(9) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}{% endif %}{{ x }}{% "
       "endfor %}",
       "013"},
      {"{% set x = 1 %}{% for i in [1] %}{% set x = 2 %}{{ x }}{% endfor %}{{ x }}", "21"},
      {"{% set ns = namespace(a=1) %}{% for i in [1, 2] %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}", "4"},
      {"{% macro m(a, b=a ~ '!') %}{{ a }}{{ b }}{{ varargs }}{% endmacro %}{{ m(1) }}{{ m(1, 2, 3) }}", "11!()12(3,)"},
      {"{% macro w() %}<{{ caller(2) }}>{% endmacro %}{% call(x) w() %}{{ x }}{% endcall %}", "<2>"},
      {"{% set t | upper %}a{{ n }}{% endset %}{{ t }}{% filter trim %}  b {% endfilter %}", "A7b"},
      {"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a is defined }}", "3False"},
      {"{% raw %}{{ x }}{% endraw %}{# c #}{{- ' y' }}", "{{ x }} y"},
      {"a\n  {% if true %}\n  b\n  {%- endif +%}\nc\n", "a\n  b\nc"},
      {"a \n {{- 1 -}} \n b", "a1b"},
      {"  {% if true %}\n  {# c #}\n  x{% endif %}", "  x"},
      {"{{ word | upper }} {{ 'ǅ' | lower }} {{ 'ﬁ' | capitalize }} {{ 'ΑΣ ΣΑ'.lower() }}", "STRASSE ǆ Fi ας σα"},
      {"{{ word[-3:] }} {{ word[::-1] }} {{ word | length }} {{ word[4] }}", "aße eßartS 6 ß"},
      {"{{ ' a,b,,c '.split(',') }} {{ 'a b  c'.rsplit(none, 1) }} {{ 'abab'.replace('b', '-', 1) }}",
       "[' a', 'b', '', 'c '] ['a b', 'c'] a-ab"},
      {"{{ messages | map(attribute='role') | join('+') }} {{ messages | selectattr('role', 'equalto', 'user') | list "
       "| length }}",
       "user+assistant 1"},
      {"{{ d | tojson }} {{ [1, 'é'] | tojson(indent=2) }} {{ 'é\"' | tojson(ensure_ascii=true) }}",
       "{\"b\": 1, \"A\": [1, 2], \"items\": \"own\"} [\n  1,\n  \"é\"\n] \"\\u00e9\\\"\""},
      {"{{ ('<' | safe) + '<' }} {{ '<' + '<' }} {{ '<&' | e }}", "<&lt; << &lt;&amp;"},
      {"{{ '%5.2f|%-3s|%03d' | format(1.005, 'a', 7) }} {{ '%(x)s' % {'x': 1} }}", " 1.00|a  |007 1"},
      {"{{ [3, 1, 2] | sort }} {{ ['b', 'A'] | sort }} {{ [1, 2] | sum }} {{ 2.5 | round }} {{ '4x' | int(9) }}",
       "[1, 2, 3] ['A', 'b'] 3 2.0 9"},
      {"{% for a in [[1, [2]]] recursive %}{{ a if a is number else loop(a) }}{% endfor %}", "12"},
      {"{{ [1, 2] is sequence }} {{ d is mapping }} {{ no is none }} {{ missing is undefined }} {{ n is divisibleby 7 "
       "}}",
       "True True True True True"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    if (render(cases[i][0]) != RC_OK) fail_msg("%s: %s", cases[i][0], err.message);
    assert_string_equal(rendered.data, cases[i][1]);
  }
}

static void test_faults_name_their_line(void **state) {
  (void)state;
  static const char *const cases[][2] = {
      {"a\n{{ missing.x }}", "line 2: 'missing' is undefined"},
      {"{% if x %}", "line 1: expected elif, got the end"},
      {"\n\n{{ 'a }}", "line 3: expected ' at the end"},
      {"{{ 1 + 'a' }}", "line 1: expected values that + takes, got int and str"},
      {"{{ (1 }}", "line 1: "},
      {"{% include 'x' %}", "expected a tag"},
      {"{{ 1 | nosuch }}", "there is no filter nosuch"},
      {"{{ 'a' | urlize }}", "urlize is not supported"},
      {"{{ messages.append(1) }}", "append is not supported"},
      {"{{ 9223372036854775807 + 1 }}", "within 64 bits"},
      {"{% set n.x = 1 %}", "expected a namespace"},
      {"{% break %}", "a loop around"},
      {"{% for a in [1] %}{% generation %}{% break %}{% endgeneration %}{% endfor %}", "a loop around"},
      {"{{ '\\ud800' }}", "expected a character"},
      {"{{ raise_exception('no') }}", "line 1: no"},
      {"\xff", "expected UTF-8"},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    const enum rc rc = render(cases[i][0]);
    if (rc == RC_OK || !strstr(err.message, cases[i][1])) fail_msg("%s: %d %s", cases[i][0], rc, err.message);
  }
}

static void test_a_template_is_bounded(void **state) {
  (void)state;
  static const char *const greedy[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(s='abcdefgh') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{{ 'x' * 9223372036854775807 }}",
      "{{ '%9999d' % 1 }}",
      "{{ 'x'.ljust(9223372036854775807) }}",
      "{% set ns = namespace(l=[]) %}{% for i in range(1000) %}{% set ns.l = [ns.l] %}{% endfor %}{{ ns.l }}",
  };
  for (size_t i = 0; i < sizeof greedy / sizeof greedy[0]; i++)
    if (render(greedy[i]) != RC_TOO_LARGE) fail_msg("%s: %s", greedy[i], err.message);
  struct buf deep = BUF_INIT;
  for (int i = 0; i < 100000; i++) buf_puts(&deep, "{{ (((((((((((((");
  assert_int_not_equal(render_with(deep.data, deep.len, 0, NULL), RC_OK);
  buf_clear(&deep);
  for (int i = 0; i < 1000; i++) buf_puts(&deep, "{% if 1 %}");
  assert_int_equal(render_with(deep.data, deep.len, 0, NULL), RC_TOO_LARGE);
  buf_free(&deep);
}

/* Steps are counted, so that a fault strikes at the same place every time; a small budget is enough for little. */
static void test_steps_are_counted(void **state) {
  (void)state;
  static const char source[] = "{% for i in range(10) %}{{ i }}{% endfor %}";
  int64_t least = 0;
  for (int64_t steps = 1; steps < 1000 && !least; steps++)
    if (render_with(source, sizeof source - 1, steps, NULL) == RC_OK) least = steps;
  assert_in_range(least, 30, 200);
  assert_int_equal(render_with(source, sizeof source - 1, least - 1, NULL), RC_TOO_LARGE);
}

static void test_bytes_know_where_they_come_from(void **state) {
  (void)state;
  uint8_t marks[64];
  static const char source[] =
      "<{{ messages[0].content | trim | replace('b', '_') | upper }}>{% generation %}a{{ messages[1].content[:2] ~ '.' "
      "}}"
      "{% endgeneration %}";
  assert_int_equal(render_with(source, sizeof source - 1, 0, marks), RC_OK);
  assert_string_equal(rendered.data, "<HI <_>>aye.");
  static const uint8_t expected[] = {0, 1, 1, 1, 1, 0, 1, 0, 2, 3, 3, 2};
  assert_memory_equal(marks, expected, sizeof expected);
}

/* Every beginning of a template that uses the whole language, and every template with one byte changed, ends in a
 * result or in a refusal. */
static void test_damaged_templates(void **state) {
  (void)state;
  static const char source[] =
      "{%- macro f(a, b=1, *c) -%}{% endmacro %}{% for k, v in d.items() if k %}{{ loop.index0 }}{{ k[1:2:-1] | "
      "default('x', "
      "true) }}{% elif x is not none %}{% set a.b = {'k': [1, 2.5e3], 'z': (1,)} %}{% endfor %}{# c #}{% raw %}r{% "
      "endraw %}"
      "{% set x | trim %} y{% endset %}{{ 'a\\x41\\u00e9' ~ -n ** 2 // 3 if not (a and b or c) else m(*p, **q) }}"
      "{% generation %}{% if 1 <= 2 != 3 %}{{ messages | map('upper') | join }}{% else %}-{% endif %}{% endgeneration "
      "%}";
  char *copy = malloc(sizeof source);
  assert_non_null(copy);
  for (size_t len = 0; len < sizeof source; len++) {
    memcpy(copy, source, len);
    (void)render_with(copy, len, 10000, NULL);
  }
  uint32_t random = 1;
  for (int i = 0; i < 3000; i++) {
    memcpy(copy, source, sizeof source);
    for (int k = 0; k < 1 + i % 4; k++) {
      random = random * 1664525u + 1013904223u;
      static const char bytes[] = "{}%#-+'\"()[]|.,:=~*/<>!\\ \nax0";
      copy[random % (sizeof source - 1)] = bytes[(random >> 16) % (sizeof bytes - 1)];
    }
    (void)render_with(copy, sizeof source - 1, 10000, NULL);
    if (err.message[0]) assert_int_equal(strncmp(err.message, "line ", 5), 0);
  }
  free(copy);
}

static void test_whether_parts_are_read_is_seen_in_the_source(void **state) {
  (void)state;
#define EACH "{% for m in messages %}"
#define END  "{% endfor %}"
  static const struct {
    const char *source;
    bool reads;
  } cases[] = {
      {EACH "{{ m.content }}" END, false},
      {EACH "{% if m.content is string %}{{ m.content }}{% endif %}" END, false},
      {EACH "{{ m.content.split('x')[0] }}{{ m['content'] | trim }}{{ m.content[0] }}" END, false},
      {EACH "{% for line in m.content.split('x') %}{{ line.text }}{% endfor %}" END, false},
      {EACH "{% for call in m.tool_calls %}{{ m.content ~ call.text }}{% endfor %}" END, false},
      {EACH "{% for p in m.content %}{{ p.text }}{% endfor %}" END, true},
      {EACH "{% if m.x %}{% else %}{% for p in m['content'][1:] | list %}{{ p }}{% endfor %}{% endif %}" END, true},
      {EACH "{% set c = m.content or '' %}{% set d = c %}{% for p in d %}{{ p }}{% endfor %}" END, true},
      {EACH "{% set c = m.content ~ '' %}{% for p in c %}{{ p }}{% endfor %}" END, false},
      {EACH "{% with c = m.content if m.x else [] %}{% for p in c %}{{ p }}{% endfor %}{% endwith %}" END, true},
      {"{% macro f(x, y) %}{% for p in y %}{{ p }}{% endfor %}{% endmacro %}" EACH "{{ f(1, m.content) }}" END, true},
      {"{% macro f(x, y) %}{% for p in y %}{{ p }}{% endfor %}{% endmacro %}" EACH "{{ f(y=m.content) }}" END, true},
      {"{% macro f(x, y) %}{% for p in y %}{{ p }}{% endfor %}{% endmacro %}" EACH "{{ f(m.content, 1) }}" END, false},
      {EACH "{{ m.content | selectattr('type', 'eq', 'text') | map(attribute='text') | join }}" END, true},
      {EACH "{{ m.tool_calls | map(attribute='content') | join }}" END, false},
      {EACH "{{ m['content'][0]['text'] }}" END, true},
      {EACH "{{ m.content.text }}{{ messages[0].text }}" END, false},
      {"{% generation %}{% call f() %}{% filter trim %}{% set x %}{% for p in m.content %}{% endfor %}{% endset %}"
       "{% endfilter %}{% endcall %}{% endgeneration %}",
       true},
  };
#undef EACH
#undef END
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    struct template *t;
    bool reads;
    if (template_parse(&t, cases[i].source, strlen(cases[i].source), &err) != RC_OK) fail_msg("%s", err.message);
    assert_int_equal(template_reads_parts(t, "content", &reads, &err), RC_OK);
    if (reads != cases[i].reads) fail_msg("expected %d of %s", cases[i].reads, cases[i].source);
    template_free(t);
  }
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_renders_as_jinja2),
      cmocka_unit_test(test_faults_name_their_line),
      cmocka_unit_test(test_a_template_is_bounded),
      cmocka_unit_test(test_steps_are_counted),
      cmocka_unit_test(test_bytes_know_where_they_come_from),
      cmocka_unit_test(test_damaged_templates),
      cmocka_unit_test(test_whether_parts_are_read_is_seen_in_the_source),
  };
  const int failed = cmocka_run_group_tests_name("template", tests, NULL, NULL);
  buf_free(&rendered);
  return failed;
}
