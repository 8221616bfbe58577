/* run watch: asks for done rounds and the run's state until it has ended.
 *
 * On a terminal the last line is a progress bar that is drawn over; elsewhere every round is a line, and nothing
 * else. */
#include "services/cli/commands/watch.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "services/cli/commands/show.h"

enum { LOOK_MS = 500, BAR_WIDTH = 30, TAIL_MAX = 64, RETRIES = 20, PAGE = 500 };

static void print_round(const struct json *r) {
  printf("round %4s  reward %-8s loss %-10s entropy %-7s length %-7s groups %s+%s  %s\n",
         show_figure(json_find_number(r, "round"), 0).text, show_figure(json_find_number(r, "reward_mean"), 4).text,
         show_figure(json_find_number(r, "loss"), 5).text, show_figure(json_find_number(r, "entropy"), 4).text,
         show_figure(json_find_number(r, "completion_tokens_mean"), 1).text,
         show_figure(json_find_number(r, "groups"), 0).text, show_figure(json_find_number(r, "filtered"), 0).text,
         show_duration(json_find_number(r, "window_ms")).text);
  if (json_find_number(r, "exact") == 0) printf("            not exact: %s\n", show_word(r, "inexact_reason", ""));
}

static void print_json(const struct json *r) {
  struct buf line = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &line);
  json_write_value(&w, r);
  printf("%s\n", line.data ? line.data : "");
  buf_free(&line);
}

/* Prints rounds from *next on: as many as an answer holds.  *more: there may be others behind them. */
static enum rc page_print(struct session *s, const char *run, int64_t *next, bool *more, struct err *err) {
  char tail[TAIL_MAX];
  struct json *answer = NULL;
  const int64_t from = *next;
  snprintf(tail, sizeof tail, "/rounds?from=%lld&limit=%d", (long long)from, PAGE);
  const enum rc rc = session_get(s, "/v1/runs/", run, tail, &answer, err);
  const struct json *rounds = json_find(answer, "rounds");
  for (size_t i = 0; rc == RC_OK && i < json_length(rounds); i++) {
    const struct json *r = json_at(rounds, i);
    if (s->json)
      print_json(r);
    else
      print_round(r);
    *next = (int64_t)json_find_number(r, "round") + 1;
  }
  *more = json_length(rounds) == PAGE && *next > from;
  json_free(answer);
  return rc;
}

static enum rc rounds_print(struct session *s, const char *run, int64_t *next, struct err *err) {
  bool more = true;
  enum rc rc = RC_OK;
  while (rc == RC_OK && more) rc = page_print(s, run, next, &more, err);
  return rc;
}

static void print_progress(const struct json *run, int64_t done) {
  const double rounds = json_find_number(run, "rounds");
  printf("[");
  show_bar(stdout, rounds > 0 ? (double)done / rounds : NAN, BAR_WIDTH);
  printf("] %lld of %.0f, %s, left about %s", (long long)done, rounds, show_word(run, "state", ""),
         show_duration(json_find_number(run, "eta_ms")).text);
}

static bool is(const struct json *run, const char *state) { return strcmp(show_word(run, "state", ""), state) == 0; }

/* The status to end with; -1: it goes on. */
static int ended(const struct json *run) {
  if (is(run, "completed")) return EXIT_DONE;
  if (is(run, "stopped") || is(run, "failed")) return EXIT_REFUSED;
  return is(run, "paused") && show_word(run, "error", NULL) ? EXIT_WAITS : -1;
}

static void print_end(const struct session *s, const struct json *run) {
  const char *error = show_word(run, "error", NULL);
  if (s->json) return;
  printf("%s %s", show_word(run, "id", ""), show_word(run, "state", ""));
  if (error) {
    printf(": ");
    show_text(stdout, error, strlen(error));
  }
  printf("\n");
}

enum rc run_watch(struct session *s, int *status, struct err *err) {
  const char *id = s->words[0];
  const bool draws = isatty(STDOUT_FILENO) && !s->json;
  const int64_t begin_ms = clock_monotonic_ms();
  int64_t next = 0;
  int missed = 0;
  s->watch = true; /* rounds are printed here, not answers */
  for (;;) {
    struct json *run = NULL;
    int end = -1;
    enum rc rc = session_get(s, "/v1/runs/", id, "?history=0", &run, err);
    if (draws) printf("\r\033[K");
    if (rc == RC_OK) rc = rounds_print(s, id, &next, err);
    if (rc == RC_OK) {
      missed = 0;
      end = ended(run);
      if (end >= 0) print_end(s, run);
      if (end < 0 && draws) print_progress(run, next);
    }
    fflush(stdout);
    json_free(run);
    if (session_again(s, rc) && ++missed < RETRIES) rc = RC_OK;
    if (rc != RC_OK) return rc;
    if (end >= 0) {
      *status = end;
      return RC_OK;
    }
    if (s->timeout_s && clock_monotonic_ms() - begin_ms > 1000 * s->timeout_s) {
      *status = EXIT_WAITS;
      return RC_OK;
    }
    clock_sleep_ms(LOOK_MS);
  }
}
