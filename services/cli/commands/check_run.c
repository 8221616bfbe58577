/* Has the coordinator open the run that the file describes, without posting it, and judges what it found. */
#include "services/cli/commands/check_run.h"

#include <math.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/cli/commands/show.h"

/* ---- datasets ---- */

static void say_prompts(struct findings *f, const char *path, double prompts, double left_out) {
  finding_say(f, left_out > 0 ? FINDING_WARN : FINDING_OK, "%s: %s prompts, every line was read%s%s%s", path,
              show_figure(prompts, 0).text, left_out > 0 ? "; " : "", left_out > 0 ? show_figure(left_out, 0).text : "",
              left_out > 0 ? " more are too long and left out: a larger prompt_tokens_max takes them, as far as "
                             "chunk_tokens and --context-max do"
                           : "");
}

static void check_datasets(struct findings *f, const struct json *report) {
  const struct json *lists[] = {json_find(report, "dataset.sources"), json_find(report, "evaluation")};
  const struct json *warnings = json_find(report, "warnings");
  for (int l = 0; l < 2; l++) {
    for (size_t i = 0; i < json_length(lists[l]); i++) {
      const struct json *file = json_at(lists[l], i);
      say_prompts(f, show_word(file, "path", "?"), json_find_number(file, "prompts"),
                  json_find_number(file, "left_out"));
    }
  }
  for (size_t i = 0; i < json_length(warnings); i++)
    finding_say(f, FINDING_WARN, "%s", json_word(json_at(warnings, i)));
}

static void check_tokenizer(struct findings *f, const struct json *report) {
  const double texts = json_find_number(report, "tokenizer.texts"),
               changed = json_find_number(report, "tokenizer.changed");
  if (changed > 0)
    finding_say(
        f, FINDING_WARN,
        "the tokenizer gives %s of the first %s prompts back otherwise than they were, line %s first: the model "
        "reads other text than the dataset has, so look whether it matters there",
        show_figure(changed, 0).text, show_figure(texts, 0).text,
        show_figure(json_find_number(report, "tokenizer.first_line"), 0).text);
  else
    finding_say(f, FINDING_OK, "the tokenizer gives the first %s prompts back as they were",
                show_figure(texts, 0).text);
}

/* ---- the verifier ---- */

static const char *form_words(const char *form) {
  static const char *const words[][2] = {{"bare", "written alone"},
                                         {"boxed", "written as \\boxed{...}"},
                                         {"hashes", "written as #### ..."},
                                         {"sentence", "written as \"The answer is ....\""},
                                         {"answer_tag", "written as <answer>...</answer>"},
                                         {"think_answer_tags", "written as <think>...</think> <answer>...</answer>"},
                                         {"code", "written in a fenced block"}};
  for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
    if (strcmp(form, words[i][0]) == 0) return words[i][1];
  return "written in no form that is known here";
}

static void say_failure(struct findings *f, const struct json *failures, const char *kind, double passed,
                        double judged) {
  const struct json *first = json_at(failures, 0);
  finding_say(
      f, FINDING_FAIL,
      "the verifier %s gives full marks to %s of the first %s answers of the dataset: line %s has \"%.80s\", which "
      "earns %s (%.200s); correct the dataset's answers, or name another verifier",
      kind, show_figure(passed, 0).text, show_figure(judged, 0).text,
      show_figure(json_find_number(first, "line"), 0).text, show_word(first, "answer", ""),
      show_figure(json_find_number(first, "reward"), 2).text, show_word(first, "detail", ""));
}

static void check_verifier(struct findings *f, const struct json *report) {
  const struct json *v = json_find(report, "verifier");
  const char *kind = show_word(v, "kind", ""), *form = show_word(v, "form", "");
  const double judged = json_find_number(v, "judged"), passed = json_find_number(v, "passed"),
               wrong_passed = json_find_number(v, "wrong_passed");
  if (!v) {
    finding_say(f, FINDING_OK, "no verifier is tried: completions are not judged, or are judged by your own server");
  } else if (!(judged > 0)) {
    finding_say(
        f, FINDING_WARN,
        "the verifier %s cannot be tried: the first lines of the dataset have no answer; POST /v1/verify tries a "
        "completion",
        kind);
  } else if (passed < judged) {
    say_failure(f, json_find(v, "failures"), kind, passed, judged);
  } else if (wrong_passed > 0) {
    finding_say(
        f, FINDING_WARN,
        "the verifier %s gives full marks to %s wrong answers of %s too, so it tells right from wrong badly or not "
        "at all; name another verifier, or add one as a term",
        kind, show_figure(wrong_passed, 0).text, show_figure(json_find_number(v, "wrong"), 0).text);
  } else {
    finding_say(f, FINDING_OK, "the verifier %s gives full marks to the answers of the first %s lines, %s", kind,
                show_figure(judged, 0).text, form_words(form));
  }
}

/* ---- a round's time ---- */

static void check_pace(struct findings *f, const struct json *report, const struct pace_found *pace) {
  const struct json *r = json_find(report, "round");
  const bool samples = json_find_number(r, "samples") > 0, trains = json_find_number(r, "trains") > 0;
  const double count = json_find_number(r, "groups") * json_find_number(r, "samples_per_group"),
               most = json_find_number(r, "max_new_tokens"), prompt = json_find_number(r, "prompt_tokens_mean"),
               sampling_ms = count * most / pace->sampled * 1000,
               learning_ms = count * (most + prompt) / pace->learned * 1000;
  if ((samples && isnan(sampling_ms)) || (trains && isnan(learning_ms))) {
    finding_say(f, FINDING_WARN, "how long a round takes is not known: %s",
                samples && isnan(sampling_ms) ? "no server could be measured" : "the trainer has taken no step");
    return;
  }
  finding_say(
      f, FINDING_OK,
      "a round of %s samples of at most %s tokens: at the rates above%s%s%s%s%s, an estimate if every sample is as "
      "long as it may be",
      show_figure(count, 0).text, show_figure(most, 0).text, samples ? " sampling takes up to " : "",
      samples ? show_duration(sampling_ms).text : "", samples && trains ? "," : "", trains ? " training up to " : "",
      trains ? show_duration(learning_ms).text : "");
}

void check_report(struct findings *f, const struct json *report) {
  check_datasets(f, report);
  check_tokenizer(f, report);
  check_verifier(f, report);
}

enum rc check_run(struct session *s, struct findings *f, const char *file, const struct pace_found *pace,
                  struct err *err) {
  struct buf body = BUF_INIT;
  struct json *report = NULL;
  enum rc rc = session_file_read(file, &body, err);
  if (rc == RC_OK) {
    rc = session_post(s, "/v1/check-run", NULL, NULL, &body, file, &report, err);
    buf_free(&body);
    if (rc == RC_FORBIDDEN) {
      finding_say(f, FINDING_WARN, "%s is not checked: %s", file, err->message);
      return RC_OK;
    }
    if (rc != RC_OK && rc != RC_UNAVAILABLE && rc != RC_TIMEOUT) {
      const bool named = !err->field[0] || strstr(err->message, err->field);
      finding_say(f, FINDING_FAIL, "%s: a run of it would be refused: %s%s%s", file, named ? "" : err->field,
                  named ? "" : ": ", err->message);
      return RC_OK;
    }
  }
  if (rc != RC_OK) return rc;
  check_report(f, report);
  check_pace(f, report, pace);
  json_free(report);
  return RC_OK;
}
