/* Judges completions: numeric answers and countdown puzzles, in exact arithmetic.  Work is counted against
 * LIMIT_VERIFIER_STEPS, never timed, so that a verdict is the same on every machine. */
#include "services/coordinator/decide/verify.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/digest.h"
#include "common/base/limits.h"
#include "common/json/json.h"
#include "services/coordinator/decide/rational.h"
#include "services/coordinator/decide/lone_number.h"

enum { NUMBERS_MAX = 64, DEPTH_MAX = 64 };

/* The last \boxed{...} with balanced braces that is in no other, or false. */
static bool boxed_find(const char *text, size_t len, const char **inner, size_t *inner_len) {
  static const char marker[] = "\\boxed{";
  const size_t marker_len = sizeof marker - 1;
  const char *at = text, *const over = text + len;
  bool found = false;
  size_t steps = 0;
  while (steps < LIMIT_VERIFIER_STEPS && (at = memmem(at, (size_t)(over - at), marker, marker_len))) {
    const char *end = at += marker_len;
    for (int depth = 1; end < over && steps < LIMIT_VERIFIER_STEPS; end++, steps++) {
      depth += *end == '{' ? 1 : *end == '}' ? -1 : 0;
      if (depth) continue;
      *inner = at;
      *inner_len = (size_t)(end - at);
      found = true;
      at = end;
      break;
    }
  }
  return found;
}

uint64_t answer_vote(const char *text, size_t len) {
  uint64_t hash = FNV1A_BEGIN;
  bool any = false;
  for (size_t i = 0; i < len; i++) {
    const unsigned char c = (unsigned char)text[i];
    if (isspace(c) || c == '$') continue;
    hash = fnv1a(hash, &c, 1);
    any = true;
  }
  return any ? hash : 0;
}

/* Of a value, however it is written. */
static uint64_t number_vote(const struct number *n) {
  char text[64];
  const int len = n->exact ? snprintf(text, sizeof text, "%lld/%lld", (long long)n->value.num, (long long)n->value.den)
                           : snprintf(text, sizeof text, "%.9g", n->approximate);
  return answer_vote(text, (size_t)len);
}

/* What is too large or too small even for a double is equal to nothing: it has lost its value. */
static bool has_value(const struct number *n) {
  return n->exact || (n->approximate != 0 && isfinite(n->approximate));
}

static bool numbers_equal(const struct number *a, const struct number *b) {
  if (a->exact && b->exact) return rational_equal(a->value, b->value);
  const double apart = fabs(a->approximate - b->approximate);
  return has_value(a) && has_value(b) &&
         (apart <= 1e-9 * fabs(a->approximate) || apart <= 1e-9 * fabs(b->approximate));
}

/* Which number is the answer: false, and what is wrong in out->detail, when there is none. */
static bool answer_read(const char *text, size_t len, struct number *got, struct verdict *out) {
  const char *inner;
  size_t inner_len;
  if (boxed_find(text, len, &inner, &inner_len)) {
    if (number_whole(inner, inner_len, got)) return true;
    snprintf(out->detail, sizeof out->detail, "what stands in \\boxed{} is not one number");
    return false;
  }
  switch (number_last(text, len, got)) {
    case NUMBER_ALONE: return true;
    case NUMBER_IN_LARGER:
      snprintf(out->detail, sizeof out->detail, "the completion's last number, %g, is part of something larger",
               got->approximate);
      return false;
    case NUMBER_NONE: break;
  }
  snprintf(out->detail, sizeof out->detail, "no number in the completion");
  return false;
}

static void verify_numeric(const char *text, size_t len, const char *answer, struct verdict *out) {
  struct number got, expected;
  if (!number_gold(answer, &expected)) {
    snprintf(out->detail, sizeof out->detail, "the dataset's answer is not one number");
    return;
  }
  if (!answer_read(text, len, &got, out)) return;
  out->well_formed = true;
  out->reward = numbers_equal(&got, &expected) ? 1 : 0;
  out->vote = number_vote(&got);
  snprintf(out->detail, sizeof out->detail, "answer %g, expected %g", got.approximate, expected.approximate);
}

/* --- countdown: an arithmetic expression over given numbers --- */

struct expression {
  const char *text;
  size_t len, at;
  int64_t used[NUMBERS_MAX];
  int used_count, depth, steps;
  const char *fault;
};

static void skip_spaces(struct expression *e) {
  while (e->at < e->len && isspace((unsigned char)e->text[e->at])) e->at++;
}

static char peek(struct expression *e) {
  skip_spaces(e);
  return e->at < e->len ? e->text[e->at] : 0;
}

static bool fail(struct expression *e, const char *fault) {
  if (!e->fault) e->fault = fault;
  return false;
}

static bool parse_sum(struct expression *e, struct rational *out);

static bool parse_atom(struct expression *e, struct rational *out) {
  if (++e->steps > LIMIT_VERIFIER_STEPS) return fail(e, "the expression takes too many steps");
  char c = peek(e);
  if (c == '(') {
    if (++e->depth > DEPTH_MAX) return fail(e, "parentheses nest too deep");
    e->at++;
    if (!parse_sum(e, out)) return false;
    if (peek(e) != ')') return fail(e, "a parenthesis is not closed");
    e->at++;
    e->depth--;
    return true;
  }
  if (!isdigit((unsigned char)c)) return fail(e, "expected a number or a parenthesis");
  int64_t value = 0;
  while (e->at < e->len && isdigit((unsigned char)e->text[e->at])) {
    if (__builtin_mul_overflow(value, 10, &value) || __builtin_add_overflow(value, e->text[e->at] - '0', &value))
      return fail(e, "a number is too large");
    e->at++;
  }
  if (e->used_count == NUMBERS_MAX) return fail(e, "too many numbers");
  e->used[e->used_count++] = value;
  return rational_make(out, value, 1);
}

static bool parse_product(struct expression *e, struct rational *out) {
  if (!parse_atom(e, out)) return false;
  for (char c; (c = peek(e)) == '*' || c == '/';) {
    struct rational right;
    e->at++;
    if (!parse_atom(e, &right)) return false;
    if (!(c == '*' ? rational_mul(out, *out, right) : rational_div(out, *out, right)))
      return fail(e, "division by zero or overflow");
  }
  return true;
}

static bool parse_sum(struct expression *e, struct rational *out) {
  if (!parse_product(e, out)) return false;
  for (char c; (c = peek(e)) == '+' || c == '-';) {
    struct rational right;
    e->at++;
    if (!parse_product(e, &right)) return false;
    if (!(c == '+' ? rational_add(out, *out, right) : rational_sub(out, *out, right))) return fail(e, "overflow");
  }
  return true;
}

/* The expression text: inside \boxed{}, else the last line that holds a digit; what follows "=" is cut, what precedes
 * the first digit or "(" too. */
static void expression_find(const char *text, size_t len, struct expression *e) {
  const char *inner;
  size_t inner_len;
  if (!boxed_find(text, len, &inner, &inner_len)) {
    size_t end = len;
    while (end > 0 && !isdigit((unsigned char)text[end - 1])) end--;
    size_t begin = end;
    while (begin > 0 && text[begin - 1] != '\n') begin--;
    while (end < len && text[end] != '\n') end++;
    inner = text + begin;
    inner_len = end - begin;
  }
  const char *equals = memchr(inner, '=', inner_len);
  if (equals) inner_len = (size_t)(equals - inner);
  while (inner_len && !isdigit((unsigned char)*inner) && *inner != '(') {
    inner++;
    inner_len--;
  }
  e->text = inner;
  e->len = inner_len;
}

/* Every used number takes one of the given ones away. */
static bool numbers_allowed(const struct expression *e, const struct json *numbers) {
  bool taken[NUMBERS_MAX] = {false};
  size_t n = json_length(numbers);
  for (int u = 0; u < e->used_count; u++) {
    bool found = false;
    for (size_t i = 0; i < n && i < NUMBERS_MAX && !found; i++) {
      const struct json *v = json_at(numbers, i);
      if (taken[i] || json_type_of(v) != JSON_INT || json_int(v) != e->used[u]) continue;
      taken[i] = found = true;
    }
    if (!found) return false;
  }
  return true;
}

struct puzzle {
  struct json *given; /* to be freed */
  const struct json *numbers, *target;
};

static bool puzzle_read(struct puzzle *p, const char *extra) {
  if (json_parse(&p->given, extra, strlen(extra), 0, NULL) != RC_OK) return false;
  p->numbers = json_get(p->given, "numbers");
  p->target = json_get(p->given, "target");
  return p->numbers && json_type_of(p->numbers) == JSON_ARRAY && p->target && json_type_of(p->target) == JSON_INT;
}

static void verify_countdown(const char *text, size_t len, const char *extra, struct verdict *out) {
  struct puzzle p = {0};
  struct expression e = {0};
  struct rational value;
  const bool whole = puzzle_read(&p, extra);
  expression_find(text, len, &e);
  if (!whole) {
    snprintf(out->detail, sizeof out->detail, "the dataset's line lacks `numbers` (integers) or `target` (an integer)");
  } else if (!parse_sum(&e, &value) || peek(&e) != 0) {
    snprintf(out->detail, sizeof out->detail, "no expression: %s", e.fault ? e.fault : "something follows it");
  } else {
    out->well_formed = true;
    bool allowed = numbers_allowed(&e, p.numbers), equal = value.den == 1 && value.num == json_int(p.target);
    out->reward = allowed && equal ? 1 : 0;
    out->vote = number_vote(&(struct number){.value = value, .exact = true});
    snprintf(out->detail, sizeof out->detail, "%s, value %lld/%lld, target %lld",
             allowed ? "numbers used as given" : "uses a number that was not given", (long long)value.num,
             (long long)value.den, (long long)json_int(p.target));
  }
  json_free(p.given);
}

static enum rc puzzle_check(const char *extra, struct err *err) {
  struct puzzle p = {0};
  bool good = puzzle_read(&p, extra) && json_length(p.numbers) > 0 && json_length(p.numbers) <= NUMBERS_MAX;
  for (size_t i = 0; good && i < json_length(p.numbers); i++) good = json_type_of(json_at(p.numbers, i)) == JSON_INT;
  json_free(p.given);
  if (good) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "expected `numbers`, 1 to %d integers, and `target`, an integer", NUMBERS_MAX);
}

enum rc verify_line_check(enum verifier_kind kind, const char *answer, const char *extra, struct err *err) {
  struct number gold;
  if (kind == VERIFIER_COUNTDOWN) return puzzle_check(extra, err);
  if (kind == VERIFIER_NONE || number_gold(answer, &gold)) return RC_OK;
  return err_set(err, RC_INVALID, "answer", "expected one number, as \"-1,234.5\" or \"3/4\", got \"%.80s\"", answer);
}

void verify(enum verifier_kind kind, const char *completion, size_t len, const char *answer, const char *extra,
            struct verdict *out) {
  memset(out, 0, sizeof *out);
  switch (kind) {
    case VERIFIER_NUMERIC: verify_numeric(completion, len, answer, out); break;
    case VERIFIER_COUNTDOWN: verify_countdown(completion, len, extra, out); break;
    case VERIFIER_NONE: out->well_formed = true; break;
    default: break;
  }
}
