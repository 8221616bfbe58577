/* Arithmetic, comparison and membership.  Integers have 64 bits: a result beyond is refused, never wrapped. */
#include "common/template/values/operators.h"

#include <math.h>
#include <string.h>

#include "common/template/values/format.h"
#include "common/template/values/print.h"
#include "common/template/values/text.h"

static const char *const signs[] = {
    "+", "-", "*", "/", "//", "%", "**", "==", "!=", "<", "<=", ">", ">=", "in", "not in"};

static enum rc mismatch(struct workspace *w, enum operation op, struct value left, struct value right) {
  enum rc rc = value_check_defined(w, left);
  if (rc == RC_OK) rc = value_check_defined(w, right);
  if (rc != RC_OK) return rc;
  return work_fail(w, RC_INVALID, "expected values that %s takes, got %s and %s", signs[op], value_type(left),
                   value_type(right));
}

static enum rc too_large(struct workspace *w, enum operation op) {
  return work_fail(w, RC_INVALID, "expected a result of %s within 64 bits", signs[op]);
}

static int64_t floor_divide(int64_t left, int64_t right) {
  const int64_t quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

static bool integer_power(int64_t base, int64_t exponent, int64_t *out) {
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return false;
    exponent >>= 1;
    if (exponent && __builtin_mul_overflow(base, base, &base)) return false;
  }
  *out = result;
  return true;
}

static enum rc integers(struct workspace *w, enum operation op, int64_t left, int64_t right, struct value *out) {
  int64_t result = 0;
  bool over = false;
  switch (op) {
    case OPERATION_ADD: over = __builtin_add_overflow(left, right, &result); break;
    case OPERATION_SUBTRACT: over = __builtin_sub_overflow(left, right, &result); break;
    case OPERATION_MULTIPLY: over = __builtin_mul_overflow(left, right, &result); break;
    case OPERATION_FLOOR_DIVIDE:
    case OPERATION_MODULO:
      if (right == 0) return work_fail(w, RC_INVALID, "division by zero");
      if (right == -1)
        over = op == OPERATION_FLOOR_DIVIDE && __builtin_sub_overflow(0, left, &result);
      else
        result = op == OPERATION_FLOOR_DIVIDE ? floor_divide(left, right) : left - right * floor_divide(left, right);
      break;
    default: over = !integer_power(left, right, &result); break;
  }
  if (over) return too_large(w, op);
  *out = value_int(result);
  return RC_OK;
}

static enum rc reals(struct workspace *w, enum operation op, double left, double right, struct value *out) {
  double result = 0;
  const bool divides = op == OPERATION_DIVIDE || op == OPERATION_FLOOR_DIVIDE || op == OPERATION_MODULO;
  if (divides && right == 0) return work_fail(w, RC_INVALID, "division by zero");
  switch (op) {
    case OPERATION_ADD: result = left + right; break;
    case OPERATION_SUBTRACT: result = left - right; break;
    case OPERATION_MULTIPLY: result = left * right; break;
    case OPERATION_DIVIDE: result = left / right; break;
    case OPERATION_FLOOR_DIVIDE: result = floor(left / right); break;
    case OPERATION_MODULO:
      result = fmod(left, right);
      if (result != 0 && (result < 0) != (right < 0)) result += right;
      break;
    default:
      result = pow(left, right);
      if (isnan(result) && !isnan(left) && !isnan(right)) return mismatch(w, op, value_real(left), value_real(right));
      break;
  }
  *out = value_real(result);
  return RC_OK;
}

static enum rc numbers(struct workspace *w, enum operation op, struct value left, struct value right,
                       struct value *out) {
  int64_t left_integer, right_integer;
  double left_real, right_real;
  const bool whole = value_integer(left, &left_integer) && value_integer(right, &right_integer);
  if (whole && op != OPERATION_DIVIDE && !(op == OPERATION_POWER && right_integer < 0))
    return integers(w, op, left_integer, right_integer, out);
  if (value_number(left, &left_real) && value_number(right, &right_real))
    return reals(w, op, left_real, right_real, out);
  return mismatch(w, op, left, right);
}

/* + on texts: where one side is safe, the other one is escaped. */
static enum rc join_texts(struct workspace *w, struct value left, struct value right, struct value *out) {
  const bool safe = left.text->safe || right.text->safe;
  enum rc rc = safe ? escape_html(w, left, &left) : RC_OK;
  if (rc == RC_OK && safe) rc = escape_html(w, right, &right);
  if (rc != RC_OK) return rc;
  struct text_builder b = builder_begin(w);
  rc = builder_text(&b, left.text);
  if (rc == RC_OK) rc = builder_text(&b, right.text);
  if (rc == RC_OK) {
    rc = builder_finish(&b, out);
  } else {
    builder_free(&b);
  }
  if (rc == RC_OK && safe) ((struct text *)out->text)->safe = true;
  return rc;
}

static enum rc append_items(struct workspace *w, struct list *to, const struct list *from) {
  enum rc rc = work_charge(w, from->count * sizeof(struct value));
  for (size_t i = 0; i < from->count && rc == RC_OK; i++) rc = list_append(w, to, from->items[i]);
  return rc;
}

static enum rc join_lists(struct workspace *w, const struct list *left, const struct list *right, struct value *out) {
  struct list *joined = list_new(w, left->form, left->count + right->count);
  enum rc rc = joined ? append_items(w, joined, left) : w->rc;
  if (rc == RC_OK) rc = append_items(w, joined, right);
  *out = value_list(joined);
  return rc;
}

/* text * n and list * n. */
static enum rc repeat(struct workspace *w, struct value v, int64_t times, struct value *out) {
  enum rc rc = RC_OK;
  if (v.kind == VALUE_TEXT) {
    struct text_builder b = builder_begin(w);
    for (int64_t i = 0; i < times && rc == RC_OK && v.text->len; i++) rc = builder_text(&b, v.text);
    if (rc == RC_OK) return builder_finish(&b, out);
    builder_free(&b);
    return rc;
  }
  struct list *list = list_new(w, v.list->form, 0);
  if (!list) return w->rc;
  for (int64_t i = 0; i < times && rc == RC_OK && v.list->count; i++) rc = append_items(w, list, v.list);
  *out = value_list(list);
  return rc;
}

static bool repeats(struct value v, struct value times) {
  int64_t n;
  return (v.kind == VALUE_TEXT || (v.kind == VALUE_LIST && v.list->form <= FORM_TUPLE)) && value_integer(times, &n);
}

static enum rc multiply(struct workspace *w, struct value left, struct value right, struct value *out) {
  int64_t times;
  if (repeats(left, right) && value_integer(right, &times)) return repeat(w, left, times, out);
  if (repeats(right, left) && value_integer(left, &times)) return repeat(w, right, times, out);
  return numbers(w, OPERATION_MULTIPLY, left, right, out);
}

static enum rc add(struct workspace *w, struct value left, struct value right, struct value *out) {
  if (left.kind == VALUE_TEXT && right.kind == VALUE_TEXT) return join_texts(w, left, right, out);
  if (left.kind == VALUE_LIST && right.kind == VALUE_LIST && left.list->form == right.list->form &&
      left.list->form <= FORM_TUPLE)
    return join_lists(w, left.list, right.list, out);
  return numbers(w, OPERATION_ADD, left, right, out);
}

enum rc contains(struct workspace *w, struct value left, struct value right, bool *out) {
  struct value *found;
  enum rc rc = RC_OK;
  *out = false;
  switch (right.kind) {
    case VALUE_UNDEFINED: return RC_OK;
    case VALUE_TEXT:
      if (left.kind != VALUE_TEXT) return mismatch(w, OPERATION_IN, left, right);
      *out = text_find(right.text, left.text, 0) != SIZE_MAX;
      return work_charge(w, right.text->len);
    case VALUE_DICT:
      rc = dict_find(w, right.dict, left, &found);
      *out = rc == RC_OK && found;
      return rc;
    case VALUE_LIST:
      for (size_t i = 0; i < right.list->count && !*out && rc == RC_OK; i++)
        rc = value_equal(w, left, right.list->items[i], out);
      return rc;
    default: return mismatch(w, OPERATION_IN, left, right);
  }
}

static enum rc compare(struct workspace *w, enum operation op, struct value left, struct value right,
                       struct value *out) {
  bool truth = false;
  int order = 0;
  double left_real, right_real;
  enum rc rc;
  switch (op) {
    case OPERATION_EQUAL:
    case OPERATION_NOT_EQUAL: rc = value_equal(w, left, right, &truth); break;
    case OPERATION_IN:
    case OPERATION_NOT_IN: rc = contains(w, left, right, &truth); break;
    default:
      rc = value_order(w, left, right, &order);
      truth = op == OPERATION_LESS         ? order < 0
              : op == OPERATION_LESS_EQUAL ? order <= 0
              : op == OPERATION_GREATER    ? order > 0
                                           : order >= 0;
      if (value_number(left, &left_real) && value_number(right, &right_real) && (isnan(left_real) || isnan(right_real)))
        truth = false;
      break;
  }
  *out = value_bool(truth != (op == OPERATION_NOT_EQUAL || op == OPERATION_NOT_IN));
  return rc;
}

enum rc operate(struct workspace *w, enum operation op, struct value left, struct value right, struct value *out) {
  const enum rc rc = work_charge(w, 0);
  if (rc != RC_OK) return rc;
  if (op >= OPERATION_EQUAL) return compare(w, op, left, right, out);
  switch (op) {
    case OPERATION_ADD: return add(w, left, right, out);
    case OPERATION_MULTIPLY: return multiply(w, left, right, out);
    case OPERATION_MODULO:
      if (left.kind == VALUE_TEXT) return format_text(w, left.text, right, out);
      return numbers(w, op, left, right, out);
    default: return numbers(w, op, left, right, out);
  }
}

enum rc negate(struct workspace *w, struct value v, struct value *out) {
  if (v.kind == VALUE_REAL) {
    *out = value_real(-v.real);
    return RC_OK;
  }
  return numbers(w, OPERATION_SUBTRACT, value_int(0), v, out);
}

enum rc escape_html(struct workspace *w, struct value v, struct value *out) {
  static const struct {
    char of;
    const char *name;
  } escapes[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'"', "&#34;"}, {'\'', "&#39;"}};
  const struct text *text;
  enum rc rc = value_as_text(w, v, &text);
  if (rc != RC_OK) return rc;
  *out = value_text(text);
  if (v.kind == VALUE_TEXT && text->safe) return RC_OK;
  struct text_builder b = builder_begin(w);
  for (size_t i = 0; i < text->len && rc == RC_OK; i++) {
    const uint8_t mark = text->marks ? text->marks[i] : text->mark;
    const char *name = NULL;
    for (size_t e = 0; e < sizeof escapes / sizeof escapes[0]; e++)
      if (text->bytes[i] == escapes[e].of) name = escapes[e].name;
    rc = name ? builder_bytes(&b, name, strlen(name), mark) : builder_bytes(&b, text->bytes + i, 1, mark);
  }
  if (rc == RC_OK)
    rc = builder_finish(&b, out);
  else
    builder_free(&b);
  if (rc == RC_OK) ((struct text *)out->text)->safe = true;
  return rc;
}
