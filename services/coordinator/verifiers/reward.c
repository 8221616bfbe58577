/* Judges completions by each term of a rule and adds up. */
#include "services/coordinator/verifiers/reward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "services/coordinator/decide/overlong.h"
#include "services/coordinator/verifiers/choice.h"
#include "services/coordinator/verifiers/exact.h"
#include "services/coordinator/verifiers/format.h"
#include "services/coordinator/verifiers/json_schema.h"
#include "services/coordinator/verifiers/math.h"
#include "services/coordinator/verifiers/regex.h"

static const struct {
  const char *name;
  bool needs_answer; /* a dataset's line must have one; of regex: where the rule has no pattern */
  bool votes;        /* fills verdict.vote */
} kinds[] = {
    [VERIFIER_NUMERIC] = {"numeric", true, true},     [VERIFIER_COUNTDOWN] = {"countdown", false, true},
    [VERIFIER_NONE] = {"none", false, false},         [VERIFIER_MATH] = {"math", true, true},
    [VERIFIER_CHOICE] = {"choice", true, true},       [VERIFIER_EXACT] = {"exact", true, true},
    [VERIFIER_REGEX] = {"regex", true, false},        [VERIFIER_JSON_SCHEMA] = {"json_schema", false, false},
    [VERIFIER_FORMAT] = {"format", false, false},     [VERIFIER_LENGTH] = {"length", false, false},
    [VERIFIER_OVERLONG] = {"overlong", false, false}, [VERIFIER_HTTP] = {"http", false, false},
};

const char *verifier_name(enum verifier_kind kind) { return kinds[kind].name; }

static void judge_length(const struct reward_term *t, const struct reward_input *in, struct verdict *out) {
  out->well_formed = true;
  out->reward = in->tokens >= t->min && (t->max == 0 || in->tokens <= t->max) ? 1 : 0;
  snprintf(out->detail, sizeof out->detail, "%lld tokens", (long long)in->tokens);
}

static void judge_overlong(const struct reward_term *t, const struct reward_input *in, struct verdict *out) {
  out->well_formed = true;
  out->reward = overlong_penalty(in->tokens, in->tokens_max, t->buffer);
  snprintf(out->detail, sizeof out->detail, "%lld of %lld tokens", (long long)in->tokens, (long long)in->tokens_max);
}

static void judge_term(const struct reward_term *t, const struct reward_input *in, struct verdict *out) {
  memset(out, 0, sizeof *out);
  switch (t->kind) {
    case VERIFIER_NUMERIC:
    case VERIFIER_COUNTDOWN:
    case VERIFIER_NONE: verify(t->kind, in->text, in->len, in->answer, in->extra, out); break;
    case VERIFIER_MATH: math_verify(in->text, in->len, in->answer, out); break;
    case VERIFIER_CHOICE: choice_verify(in->text, in->len, in->answer, out); break;
    case VERIFIER_EXACT: exact_verify(in->text, in->len, in->answer, t->whole, t->ignore_case, out); break;
    case VERIFIER_REGEX: regex_verify(in->text, in->len, t->pattern ? t->pattern : in->answer, out); break;
    case VERIFIER_JSON_SCHEMA: json_schema_verify(in->text, in->len, t->schema, in->extra, out); break;
    case VERIFIER_FORMAT: format_verify(in->text, in->len, t->tags, t->tag_count, out); break;
    case VERIFIER_LENGTH: judge_length(t, in, out); break;
    case VERIFIER_OVERLONG: judge_overlong(t, in, out); break;
    case VERIFIER_HTTP: out->well_formed = true; break;
  }
}

void reward_judge(const struct reward_rule *rule, const struct reward_input *input, struct reward_verdict *out) {
  struct verdict first = {0};
  size_t used = 0;
  memset(out, 0, sizeof *out);
  for (int i = 0; i < rule->count; i++) {
    const struct reward_term *t = &rule->terms[i];
    struct verdict v;
    judge_term(t, input, &v);
    if (i == 0) first = v;
    out->values[i] = t->kind == VERIFIER_HTTP ? NAN : v.reward;
    if (t->kind == VERIFIER_HTTP) continue; /* remote_rewards.c adds it */
    out->reward += t->weight * v.reward;
    char part[64];
    int n = snprintf(part, sizeof part, t->weight == 1 ? "%s%s %.4g" : "%s%s %.4g x %.4g", used ? ", " : "",
                     verifier_name(t->kind), v.reward, t->weight);
    if (n >= (int)sizeof part) n = (int)sizeof part - 1;
    if (rule->is_sum && used + (size_t)n < sizeof out->detail) {
      memcpy(out->detail + used, part, (size_t)n + 1);
      used += (size_t)n;
    }
  }
  out->well_formed = first.well_formed;
  out->passed = first.reward >= 1;
  out->vote = first.vote;
  snprintf(out->detail + used, sizeof out->detail - used, "%s%s", used && first.detail[0] ? "; " : "", first.detail);
}

static enum rc term_check(const struct reward_term *t, const char *answer, const char *extra, struct err *err) {
  switch (t->kind) {
    case VERIFIER_NUMERIC:
    case VERIFIER_COUNTDOWN:
    case VERIFIER_NONE: return verify_line_check(t->kind, answer, extra, err);
    case VERIFIER_MATH: return math_gold_check(answer, err);
    case VERIFIER_CHOICE: return choice_gold_check(answer, err);
    case VERIFIER_EXACT:
      return answer[0] ? RC_OK : err_set(err, RC_INVALID, "answer", "expected a text to compare with, got none");
    case VERIFIER_REGEX: return t->pattern ? RC_OK : regex_check(answer, "answer", err);
    case VERIFIER_JSON_SCHEMA: return t->schema ? RC_OK : json_schema_line_check(extra, err);
    default: return RC_OK;
  }
}

enum rc reward_line_check(const struct reward_rule *rule, const char *answer, const char *extra, struct err *err) {
  for (int i = 0; i < rule->count; i++) {
    const enum rc rc = term_check(&rule->terms[i], answer, extra, err);
    if (rc != RC_OK) return rc;
  }
  return RC_OK;
}

bool reward_earns(const struct reward_rule *rule) {
  for (int i = 0; i < rule->count; i++)
    if (rule->terms[i].kind != VERIFIER_NONE && rule->terms[i].weight != 0) return true;
  return false;
}

int reward_remote_terms(const struct reward_rule *rule) {
  int count = 0;
  for (int i = 0; i < rule->count; i++) count += rule->terms[i].kind == VERIFIER_HTTP;
  return count;
}

bool reward_needs_answer(const struct reward_rule *rule) {
  for (int i = 0; i < rule->count; i++) {
    const struct reward_term *t = &rule->terms[i];
    if (kinds[t->kind].needs_answer && !t->pattern) return true;
  }
  return false;
}

bool reward_votes(const struct reward_rule *rule) { return kinds[rule->terms[0].kind].votes; }
