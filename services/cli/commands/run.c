/* run start, list, show, pause, resume, stop, compare. */
#include "services/cli/commands/run.h"

#include <math.h>
#include <string.h>

#include "common/base/limits.h"
#include "services/cli/commands/show.h"
#include "services/cli/commands/watch.h"

/* ---- start ---- */

enum rc run_start(struct session *s, int *status, struct err *err) {
  struct buf body = BUF_INIT;
  struct json *answer = NULL;
  enum rc rc = session_file_read(s->words[0], &body, err);
  if (rc == RC_OK) rc = session_post(s, "/v1/runs", NULL, NULL, &body, s->words[0], &answer, err);
  buf_free(&body);
  if (rc != RC_OK) return rc;
  const char *id = show_word(answer, "id", "");
  if (!s->json || s->watch) printf("%s\n", id);
  fflush(stdout);
  if (s->watch) {
    s->words = &id;
    rc = run_watch(s, status, err);
  }
  json_free(answer);
  return rc;
}

/* ---- list and show ---- */

static void print_reward_servers(const struct json *servers) {
  for (size_t i = 0; i < json_length(servers); i++) {
    struct buf line = BUF_INIT;
    if (show_reward_server(&line, json_at(servers, i)) && line.data) {
      printf("  rewards: ");
      show_text(stdout, line.data, line.len);
      printf("\n");
    }
    buf_free(&line);
  }
}

static void print_trouble(const struct json *run) {
  const char *error = show_word(run, "error", NULL), *waiting = show_word(run, "waiting_for", NULL);
  if (error) {
    printf("  error: ");
    show_text(stdout, error, strlen(error));
    printf("\n");
  }
  if (waiting) {
    printf("  waiting for: ");
    show_text(stdout, waiting, strlen(waiting));
    printf("\n");
  }
  print_reward_servers(json_find(run, "reward_servers"));
}

static void print_head(const struct json *run) {
  const char *name = show_word(run, "name", "");
  printf("%-6s %-10s round %4s of %-6s reward %-8s %s  ", show_word(run, "id", ""), show_word(run, "state", ""),
         show_figure(json_find_number(run, "round"), 0).text, show_figure(json_find_number(run, "rounds"), 0).text,
         show_figure(json_find_number(run, "reward_mean"), 4).text, show_word(run, "mode", ""));
  show_text(stdout, name, strlen(name));
  printf("\n");
  print_trouble(run);
}

enum rc run_list(struct session *s, int *status, struct err *err) {
  enum { RUNS_AT_ONCE = 1000 }; /* the most */
  static const char newest[] = "/v1/runs?limit=1000", older[] = "/v1/runs?limit=1000&before=";
  char last[LIMIT_NAME_MAX] = "";
  enum rc rc = RC_OK;
  *status = EXIT_DONE;
  for (bool more = true; rc == RC_OK && more;) {
    struct json *answer = NULL;
    rc = session_get(s, last[0] ? older : newest, last[0] ? last : NULL, NULL, &answer, err);
    const struct json *runs = json_find(answer, "runs");
    const size_t count = json_length(runs);
    if (rc == RC_OK && !s->json && count == 0 && !last[0]) fprintf(stderr, "leasehold: there are no runs yet\n");
    for (size_t i = 0; !s->json && i < count; i++) print_head(json_at(runs, i));
    const char *oldest = count ? show_word(json_at(runs, count - 1), "id", "") : "";
    more = !s->json && count == RUNS_AT_ONCE && strcmp(oldest, last) != 0;
    snprintf(last, sizeof last, "%s", oldest);
    json_free(answer);
  }
  return rc;
}

static void print_evaluation(const struct json *e) {
  printf("  evaluated at version %s: %s (%s problems)\n", show_figure(json_find_number(e, "version"), 0).text,
         show_figure(json_find_number(e, "accuracy"), 4).text, show_figure(json_find_number(e, "problems"), 0).text);
}

enum rc run_show(struct session *s, int *status, struct err *err) {
  struct json *run = NULL;
  const enum rc rc = session_get(s, "/v1/runs/", s->words[0], NULL, &run, err);
  *status = EXIT_DONE;
  if (rc == RC_OK && !s->json) {
    const struct json *evaluations = json_find(run, "evaluations");
    print_head(run);
    printf("  version %s, weights %.12s\n", show_figure(json_find_number(run, "version"), 0).text,
           show_word(run, "weights_digest", "-"));
    printf("  %s tokens sampled, %s trained on, %s tokens a second\n",
           show_figure(json_find_number(run, "totals.sampled_tokens"), 0).text,
           show_figure(json_find_number(run, "totals.trained_tokens"), 0).text,
           show_figure(json_find_number(run, "totals.tokens_per_second"), 0).text);
    printf("  so far %s", show_duration(json_find_number(run, "totals.rl_wall_ms")).text);
    if (json_find_number(run, "eta_ms") > 0)
      printf(", left about %s", show_duration(json_find_number(run, "eta_ms")).text);
    printf("\n");
    printf("  the trainer waited %s of its time, slots were empty %s of theirs\n",
           show_figure(json_find_number(run, "totals.trainer_waiting_ratio"), 3).text,
           show_figure(json_find_number(run, "totals.generation_idle_ratio"), 3).text);
    if (json_length(evaluations)) print_evaluation(json_at(evaluations, json_length(evaluations) - 1));
  }
  json_free(run);
  return rc;
}

/* ---- control ---- */

static enum rc control(struct session *s, const char *tail, int *status, struct err *err) {
  struct json *answer = NULL;
  const enum rc rc = session_post(s, "/v1/runs/", s->words[0], tail, NULL, NULL, &answer, err);
  *status = EXIT_DONE;
  if (rc == RC_OK && !s->json) printf("%s %s\n", s->words[0], show_word(answer, "state", ""));
  json_free(answer);
  return rc;
}

enum rc run_pause(struct session *s, int *status, struct err *err) { return control(s, "/pause", status, err); }
enum rc run_resume(struct session *s, int *status, struct err *err) { return control(s, "/resume", status, err); }
enum rc run_stop(struct session *s, int *status, struct err *err) { return control(s, "/stop", status, err); }

/* ---- compare ---- */

/* Of "r1.10" or "r1": an evaluation that is not found is mostly of no run at all. */
static enum rc run_of_evaluation(struct session *s, const char *word, struct err *err) {
  char id[LIMIT_NAME_MAX];
  struct json *run = NULL;
  const bool shown = s->json;
  snprintf(id, sizeof id, "%.*s", (int)strcspn(word, "."), word);
  s->json = false;
  const enum rc rc = session_get(s, "/v1/runs/", id, "?history=0", &run, err);
  s->json = shown;
  json_free(run);
  return rc;
}

enum rc run_compare(struct session *s, int *status, struct err *err) {
  struct json *answer = NULL;
  struct buf query = BUF_INIT;
  buf_puts(&query, "?a=");
  http_url_escape(&query, s->words[0]);
  buf_puts(&query, "&b=");
  http_url_escape(&query, s->words[1]);
  if (s->set[0]) buf_puts(&query, "&set=");
  http_url_escape(&query, s->set);
  if (s->b_set[0]) buf_puts(&query, "&b_set=");
  http_url_escape(&query, s->b_set);
  enum rc rc = buf_check(&query, err);
  if (rc == RC_OK) rc = session_get(s, "/v1/compare", NULL, query.data, &answer, err);
  buf_free(&query);
  for (int i = 0; rc == RC_NOT_FOUND && i < 2; i++) {
    struct err other = {0};
    if (run_of_evaluation(s, s->words[i], &other) != RC_NOT_FOUND) continue;
    if (err) *err = other;
    break;
  }
  *status = EXIT_DONE;
  if (rc == RC_OK && !s->json) {
    const double low = json_find_number(answer, "low"), high = json_find_number(answer, "high");
    printf("%s: %s at v%s   %s: %s at v%s   over %s problems of both\n", s->words[0],
           show_figure(json_find_number(answer, "a.value"), 4).text,
           show_figure(json_find_number(answer, "a.version"), 0).text, s->words[1],
           show_figure(json_find_number(answer, "b.value"), 4).text,
           show_figure(json_find_number(answer, "b.version"), 0).text,
           show_figure(json_find_number(answer, "problems"), 0).text);
    printf("difference %s, 95 of 100 lie between %s and %s, p = %s: %s\n",
           show_figure(json_find_number(answer, "difference"), 4).text, show_figure(low, 4).text,
           show_figure(high, 4).text, show_figure(json_find_number(answer, "p_value"), 4).text,
           low > 0    ? "the second is better"
           : high < 0 ? "the first is better"
                      : "neither is better");
  }
  json_free(answer);
  return rc;
}
