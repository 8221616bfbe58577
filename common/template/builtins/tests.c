/* Tests: `x is name`. */
#include <string.h>

#include "common/template/builtins/builtin.h"
#include "common/template/values/letter_case.h"
#include "common/template/values/operators.h"
#include "common/template/values/print.h"

#define TEST(name) \
  static enum rc run_##name(struct workspace *w, struct value self, const struct arguments *a, struct value *out)
#define UNUSED() \
  do {           \
    (void)w;     \
    (void)a;     \
  } while (0)

static enum rc answer(struct value *out, bool truth) {
  *out = value_bool(truth);
  return RC_OK;
}

TEST(defined) {
  UNUSED();
  return answer(out, self.kind != VALUE_UNDEFINED);
}
TEST(undefined) {
  UNUSED();
  return answer(out, self.kind == VALUE_UNDEFINED);
}
TEST(none) {
  UNUSED();
  return answer(out, self.kind == VALUE_NONE);
}
TEST(boolean) {
  UNUSED();
  return answer(out, self.kind == VALUE_BOOL);
}
TEST(true) {
  UNUSED();
  return answer(out, self.kind == VALUE_BOOL && self.truth);
}
TEST(false) {
  UNUSED();
  return answer(out, self.kind == VALUE_BOOL && !self.truth);
}
TEST(integer) {
  UNUSED();
  return answer(out, self.kind == VALUE_INT);
}
TEST(float) {
  UNUSED();
  return answer(out, self.kind == VALUE_REAL);
}
TEST(number) {
  UNUSED();
  double real;
  return answer(out, value_number(self, &real));
}
TEST(string) {
  UNUSED();
  return answer(out, self.kind == VALUE_TEXT);
}
TEST(mapping) {
  UNUSED();
  return answer(out, self.kind == VALUE_DICT);
}
/* What has a length and items: texts and dicts too, and undefined. */
TEST(sequence) {
  UNUSED();
  return answer(out, self.kind == VALUE_TEXT || self.kind == VALUE_DICT || self.kind == VALUE_UNDEFINED ||
                         (self.kind == VALUE_LIST && self.list->form <= FORM_RANGE));
}
TEST(iterable) {
  UNUSED();
  return answer(out, self.kind == VALUE_TEXT || self.kind == VALUE_DICT || self.kind == VALUE_UNDEFINED ||
                         self.kind == VALUE_LIST || self.kind == VALUE_LOOP);
}
TEST(callable) {
  UNUSED();
  return answer(out, self.kind == VALUE_UNDEFINED || self.kind == VALUE_BUILTIN || self.kind == VALUE_METHOD ||
                         self.kind == VALUE_MACRO || self.kind == VALUE_LOOP);
}
TEST(escaped) {
  UNUSED();
  return answer(out, self.kind == VALUE_TEXT && self.text->safe);
}

static enum rc remainder_is(struct workspace *w, struct value self, struct value divisor, int64_t rest,
                            struct value *out) {
  struct value left;
  bool equal = false;
  enum rc rc = operate(w, OPERATION_MODULO, self, divisor, &left);
  if (rc == RC_OK) rc = value_equal(w, left, value_int(rest), &equal);
  *out = value_bool(equal);
  return rc;
}
TEST(even) {
  (void)a;
  return remainder_is(w, self, value_int(2), 0, out);
}
TEST(odd) {
  (void)a;
  return remainder_is(w, self, value_int(2), 1, out);
}
TEST(divisibleby) { return remainder_is(w, self, a->values[0], 0, out); }

static enum rc case_is(struct workspace *w, struct value self, enum letter_case to, struct value *out) {
  const struct text *text;
  bool cased = false;
  enum rc rc = value_as_text(w, self, &text);
  if (rc == RC_OK) rc = text_case(w, text, to, out);
  for (size_t at = 0; rc == RC_OK && at < text->len; at += text_step(text, at))
    cased = cased || code_is_cased(text_code_at(text, at));
  return rc == RC_OK ? answer(out, cased && text_order(out->text, text) == 0) : rc;
}
TEST(lower) {
  (void)a;
  return case_is(w, self, CASE_LOWER, out);
}
TEST(upper) {
  (void)a;
  return case_is(w, self, CASE_UPPER, out);
}

TEST(eq) { return operate(w, OPERATION_EQUAL, self, a->values[0], out); }
TEST(ne) { return operate(w, OPERATION_NOT_EQUAL, self, a->values[0], out); }
TEST(lt) { return operate(w, OPERATION_LESS, self, a->values[0], out); }
TEST(le) { return operate(w, OPERATION_LESS_EQUAL, self, a->values[0], out); }
TEST(gt) { return operate(w, OPERATION_GREATER, self, a->values[0], out); }
TEST(ge) { return operate(w, OPERATION_GREATER_EQUAL, self, a->values[0], out); }
TEST(in) { return operate(w, OPERATION_IN, self, a->values[0], out); }

/* Python's `is`: the same object; for what has no identity here, an equal one of its kind. */
TEST(sameas) {
  if (self.kind != a->values[0].kind) return answer(out, false);
  if (self.kind == VALUE_LIST || self.kind == VALUE_DICT || self.kind == VALUE_NAMESPACE)
    return answer(out, self.list == a->values[0].list);
  return operate(w, OPERATION_EQUAL, self, a->values[0], out);
}

static bool names_one(const struct builtin *(*find)(const char *), struct value name) {
  char bytes[64];
  if (name.kind != VALUE_TEXT || name.text->len >= sizeof bytes) return false;
  memcpy(bytes, name.text->bytes, name.text->len);
  bytes[name.text->len] = '\0';
  const struct builtin *found = find(bytes);
  return found && found->run;
}
TEST(filter) {
  UNUSED();
  return answer(out, names_one(w->builtins->filter, self));
}
TEST(test) {
  UNUSED();
  return answer(out, names_one(w->builtins->test, self));
}

#define COMPARED(name_, run_) \
  { .name = name_, .run = run_, .parameters = {"other"}, .required = 1 }
static const struct builtin rows[] = {
    {.name = "defined", .run = run_defined},
    {.name = "undefined", .run = run_undefined},
    {.name = "none", .run = run_none},
    {.name = "string", .run = run_string},
    {.name = "mapping", .run = run_mapping},
    {.name = "sequence", .run = run_sequence},
    {.name = "iterable", .run = run_iterable},
    {.name = "boolean", .run = run_boolean},
    {.name = "true", .run = run_true},
    {.name = "false", .run = run_false},
    {.name = "integer", .run = run_integer},
    {.name = "float", .run = run_float},
    {.name = "number", .run = run_number},
    {.name = "callable", .run = run_callable},
    {.name = "escaped", .run = run_escaped},
    {.name = "even", .run = run_even},
    {.name = "odd", .run = run_odd},
    {.name = "divisibleby", .run = run_divisibleby, .parameters = {"num"}, .required = 1},
    {.name = "lower", .run = run_lower},
    {.name = "upper", .run = run_upper},
    COMPARED("eq", run_eq),
    COMPARED("==", run_eq),
    COMPARED("equalto", run_eq),
    COMPARED("ne", run_ne),
    COMPARED("!=", run_ne),
    COMPARED("lt", run_lt),
    COMPARED("<", run_lt),
    COMPARED("lessthan", run_lt),
    COMPARED("le", run_le),
    COMPARED("<=", run_le),
    COMPARED("gt", run_gt),
    COMPARED(">", run_gt),
    COMPARED("greaterthan", run_gt),
    COMPARED("ge", run_ge),
    COMPARED(">=", run_ge),
    {.name = "in", .run = run_in, .parameters = {"seq"}, .required = 1},
    COMPARED("sameas", run_sameas),
    {.name = "filter", .run = run_filter},
    {.name = "test", .run = run_test},
};

const struct builtin_table all_tests = {rows, sizeof rows / sizeof rows[0]};
