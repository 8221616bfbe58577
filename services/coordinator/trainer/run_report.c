/* Opens a run that nobody has posted, and tells what was found. */
#include "services/coordinator/trainer/run_report.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/utf8.h"
#include "services/coordinator/trainer/model_files.h"
#include "services/coordinator/trainer/run_check.h"
#include "services/coordinator/trainer/trainer_target.h"

/* ---- the tokenizer ---- */

static bool comes_back(const struct tokenizer *t, const char *text, size_t len) {
  struct token_ids ids = {0};
  struct buf back = BUF_INIT;
  enum rc rc = tokenizer_encode(t, text, len, true, LIMIT_PROMPT_TOKENS, &ids, NULL);
  if (rc == RC_OK) rc = tokenizer_decode(t, ids.items, ids.count, false, &back, NULL);
  const bool same = rc == RC_OK && back.len == len && (len == 0 || memcmp(back.data, text, len) == 0);
  buf_free(&back);
  token_ids_free(&ids);
  return same;
}

static int lines_of(const struct run_context *x) {
  const int count = dataset_count(x->dataset);
  return count < REPORT_LINES ? count : REPORT_LINES;
}

static void tokenizer_write(const struct run_context *x, struct json_writer *w) {
  int changed = 0, line = 0;
  for (int i = 0; i < lines_of(x); i++) {
    const struct dataset_item *item = dataset_at(x->dataset, i);
    if (comes_back(x->tokenizer, item->prompt, item->prompt_bytes)) continue;
    if (changed++ == 0) line = item->line;
  }
  json_object_begin(w);
  json_kv_int(w, "texts", lines_of(x));
  json_kv_int(w, "changed", changed);
  if (changed)
    json_kv_int(w, "first_line", line);
  else
    json_kv_string(w, "first_line", NULL);
  json_object_end(w);
}

/* ---- the verifier ---- */

/* How an expected answer may be written as a completion.  The first form under which the most of them pass is
 * reported. */
static const struct {
  const char *name, *before, *after;
} FORMS[] = {{"bare", "", ""},
             {"boxed", "The answer is $\\boxed{", "}$."},
             {"hashes", "#### ", ""},
             {"sentence", "The answer is ", "."},
             {"answer_tag", "<answer>", "</answer>"},
             {"think_answer_tags", "<think>\nIt is so.\n</think>\n<answer>", "</answer>"},
             {"code", "```\n", "\n```"}};
enum { FORM_COUNT = sizeof FORMS / sizeof FORMS[0] };

static bool passes(const struct run_context *x, int line, const char *written, int form, struct reward_verdict *v) {
  const struct dataset_item *item = dataset_at(x->dataset, line);
  struct buf text = BUF_INIT;
  bool passed = false;
  buf_puts(&text, FORMS[form].before);
  buf_puts(&text, written);
  buf_puts(&text, FORMS[form].after);
  const struct reward_input input = {text.data,   text.len, item->answer,
                                     item->extra, 0,        x->config.sampling.max_new_tokens};
  *v = (struct reward_verdict){0};
  if (!text.failed) {
    reward_judge(&x->config.verifier, &input, v);
    passed = v->passed;
  }
  buf_free(&text);
  return passed;
}

/* The answer of another line, which is wrong for this one; NULL: all are alike. */
static const char *wrong_answer(const struct run_context *x, int line) {
  const char *right = dataset_at(x->dataset, line)->answer;
  for (int i = 0; i < lines_of(x); i++) {
    const char *other = dataset_at(x->dataset, i)->answer;
    if (other[0] && strcmp(other, right) != 0) return other;
  }
  return NULL;
}

struct trial {
  int judged, passed, form, wrong, wrong_passed;
};

static struct trial verifier_try(const struct run_context *x) {
  struct trial best = {0};
  struct reward_verdict v;
  for (int form = 0; form < FORM_COUNT; form++) {
    struct trial t = {.form = form};
    for (int i = 0; i < lines_of(x); i++) {
      const char *answer = dataset_at(x->dataset, i)->answer, *wrong = wrong_answer(x, i);
      if (!answer[0]) continue;
      t.judged++;
      t.passed += passes(x, i, answer, form, &v);
      t.wrong += wrong != NULL;
      t.wrong_passed += wrong && passes(x, i, wrong, form, &v);
    }
    if (form == 0 || t.passed > best.passed) best = t;
  }
  return best;
}

/* A line may be as long as LIMIT_DATASET_LINE_BYTES. */
static void excerpt_write(struct json_writer *w, const char *answer) {
  const size_t whole = strlen(answer), most = whole < LIMIT_SHOWN_ANSWER_BYTES ? whole : LIMIT_SHOWN_ANSWER_BYTES;
  json_key(w, "answer");
  json_write_string_len(w, answer, most < whole ? utf8_cut(answer, most) : whole);
  json_kv_bool(w, "answer_cut", most < whole);
}

static void failures_write(const struct run_context *x, const struct trial *t, struct json_writer *w) {
  struct reward_verdict v;
  json_array_begin(w);
  for (int i = 0; i < lines_of(x); i++) {
    const struct dataset_item *item = dataset_at(x->dataset, i);
    if (!item->answer[0] || passes(x, i, item->answer, t->form, &v)) continue;
    json_object_begin(w);
    json_kv_int(w, "line", item->line);
    excerpt_write(w, item->answer);
    json_kv_f64(w, "reward", v.reward);
    json_kv_string(w, "detail", v.detail);
    json_object_end(w);
  }
  json_array_end(w);
}

/* null where completions are not judged, or by a server that was not asked. */
static void verifier_write(const struct run_context *x, struct json_writer *w) {
  const struct reward_rule *rule = &x->config.verifier;
  if (run_is_supervised(&x->config) || reward_remote_terms(rule) > 0) {
    json_write_null(w);
    return;
  }
  const struct trial t = verifier_try(x);
  json_object_begin(w);
  json_kv_string(w, "kind", verifier_name(rule->terms[0].kind));
  json_kv_int(w, "judged", t.judged);
  json_kv_int(w, "passed", t.passed);
  json_kv_string(w, "form", FORMS[t.form].name);
  json_kv_int(w, "wrong", t.wrong);
  json_kv_int(w, "wrong_passed", t.wrong_passed);
  json_key(w, "failures");
  failures_write(x, &t, w);
  json_object_end(w);
}

/* ---- the whole ---- */

static void evaluation_write(const struct run_context *x, struct json_writer *w) {
  json_array_begin(w);
  for (int i = 0; i < EVALUATION_SETS_MAX; i++) {
    if (!x->evaluation[i]) continue;
    const struct dataset_counts counts = dataset_counts(x->evaluation[i]);
    json_object_begin(w);
    json_kv_string(w, "path", x->config.evaluation.sets[i].path);
    json_kv_int(w, "prompts", counts.prompts);
    json_kv_int(w, "left_out", counts.left_out);
    json_object_end(w);
  }
  json_array_end(w);
}

static double prompt_tokens_mean(const struct run_context *x) {
  const int count = dataset_count(x->dataset), most = count < REPORT_PROMPTS ? count : REPORT_PROMPTS;
  double sum = 0;
  for (int i = 0; i < most; i++) sum += dataset_at(x->dataset, i)->prompt_length;
  return most ? sum / most : NAN;
}

/* A round as the configuration has it. */
static void round_write(const struct run_context *x, struct json_writer *w) {
  const struct run_config *c = &x->config;
  json_object_begin(w);
  json_kv_int(w, "groups", c->groups_per_round);
  json_kv_int(w, "samples_per_group", c->samples_per_group);
  json_kv_int(w, "max_new_tokens", c->sampling.max_new_tokens);
  json_kv_f64(w, "prompt_tokens_mean", prompt_tokens_mean(x));
  json_kv_bool(w, "samples", !run_is_supervised(c));
  json_kv_bool(w, "trains", !run_evaluates(c));
  json_object_end(w);
}

void run_report_of(const struct run_context *x, struct json_writer *w) {
  json_object_begin(w);
  json_key(w, "dataset");
  run_context_counts(x, w);
  json_key(w, "evaluation");
  evaluation_write(x, w);
  json_key(w, "warnings");
  run_context_warnings(x, "", w);
  json_key(w, "tokenizer");
  tokenizer_write(x, w);
  json_key(w, "verifier");
  verifier_write(x, w);
  json_key(w, "round");
  round_write(x, w);
  json_object_end(w);
}

static enum rc open_as_posted(struct core *c, const struct run_config *config, struct run_context **out,
                              struct err *err) {
  struct trainer_target trainer;
  struct http_client *http = NULL;
  struct model_files files = {0};
  struct buf text = BUF_INIT;
  struct json_writer w;
  enum rc rc = trainer_target_now(core_readers(c), &trainer, err);
  if (rc == RC_OK && !trainer.found)
    rc = err_set(err, RC_UNAVAILABLE, NULL, "no trainer is registered: its tokenizer is needed to read the datasets");
  if (rc == RC_OK) rc = http_client_create_for(&http, core_options(c)->access, NULL, err);
  const struct trainer_client t = {.http = http, .base_url = trainer.url};
  if (rc == RC_OK) rc = model_files_fetch(&files, &t, err);
  http_client_destroy(http);
  json_writer_init(&w, &text);
  run_config_write(config, &w);
  if (rc == RC_OK) rc = buf_check(&text, err);
  if (rc == RC_OK) rc = run_context_create(out, 0, text.data, &files, core_options(c)->data_dir, err);
  buf_free(&text);
  model_files_free(&files);
  return rc;
}

struct deadline {
  const struct core *core;
  int64_t until_ms;
};

static bool before_deadline(void *context, const char *name, int lines) {
  const struct deadline *d = context;
  (void)name;
  (void)lines;
  return core_monotonic_ms(d->core) < d->until_ms;
}

enum rc run_report_write(struct core *c, const struct run_config *config, struct json_writer *w, struct err *err) {
  struct deadline d = {.core = c, .until_ms = core_monotonic_ms(c) + core_options(c)->check_ms};
  const struct dataset_watch watch = {before_deadline, &d};
  struct run_context *x = NULL;
  enum rc rc = run_check(c, config, &(struct run_check_bounds){.watch = &watch}, err);
  if (rc == RC_OK) rc = open_as_posted(c, config, &x, err);
  if (rc != RC_OK) return rc;
  run_report_of(x, w);
  run_context_release(x);
  return RC_OK;
}
