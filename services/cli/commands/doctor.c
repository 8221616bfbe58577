/* doctor: what the coordinator tells of a set-up, judged line by line before hours are spent on it.
 *
 *   good   as it should be       look   works, and costs something       bad   a run would not begin, or not be exact
 *
 * It judges by answers alone; the exit status is that of the worst line. */
#include "services/cli/commands/doctor.h"

#include <math.h>
#include <string.h>

#include "services/cli/commands/show.h"

#define DISK_BYTES_LEAST 5e9

struct findings {
  int look, bad;
};

static void say(struct findings *f, const char *how, const char *what) {
  f->look += how[0] == 'l';
  f->bad += how[0] == 'b';
  printf("%-5s ", how);
  show_text(stdout, what, strlen(what));
  printf("\n");
}

/* ---- the coordinator ---- */

static enum rc check_ready(struct session *s, struct findings *f, struct err *err) {
  struct buf text = BUF_INIT;
  char line[256];
  int code = 0;
  const enum rc rc = session_get_text(s, "/readyz", &text, &code, err);
  if (rc == RC_OK) {
    snprintf(line, sizeof line, "the coordinator %s %s", s->coordinator,
             code == 200 ? "is ready" : "answers, and is not ready");
    say(f, code == 200 ? "good" : "bad", line);
  }
  buf_free(&text);
  return rc;
}

/* The value of a metric without labels; NaN: there is none. */
static double metric(const char *text, const char *name) {
  const size_t len = strlen(name);
  double value = NAN;
  for (const char *at = text; at && *at; at = strchr(at, '\n'), at += at != NULL) {
    if (strncmp(at, name, len) == 0 && at[len] == ' ' && sscanf(at + len, "%lf", &value) == 1) return value;
  }
  return NAN;
}

static enum rc check_disk(struct session *s, struct findings *f, struct err *err) {
  struct buf text = BUF_INIT;
  char line[256];
  int code = 0;
  const enum rc rc = session_get_text(s, "/metrics", &text, &code, err);
  const double room =
      rc == RC_OK && code == 200 && text.data ? metric(text.data, "leasehold_database_disk_free_bytes") : NAN;
  if (rc == RC_OK) {
    snprintf(line, sizeof line, "the database's disk has %s GB left", show_figure(room / 1e9, 1).text);
    say(f, room >= DISK_BYTES_LEAST ? "good" : "look", line);
  }
  buf_free(&text);
  return rc;
}

/* ---- workers ---- */

struct pool {
  int trainers, holders, generating, ready;
  double slots_all;
};

static void check_worker(struct findings *f, struct pool *p, const struct json *w) {
  char line[512];
  const char *name = show_word(w, "name", ""), *kind = show_word(w, "kind", ""),
             *exactness = show_word(w, "exactness", "");
  const double skew_ms = json_find_number(w, "clock_skew_ms");
  p->trainers += strcmp(kind, "trainer") == 0;
  p->holders += strcmp(show_word(w, "role", ""), "holder") == 0;
  if (strcmp(kind, "generation") == 0) {
    p->generating++;
    p->ready += json_find_number(w, "ready") > 0;
    p->slots_all += json_find_number(w, "slots");
  }
  if (!isnan(skew_ms)) {
    snprintf(line, sizeof line, "%s: its clock is off by %s; its times in the timeline are shifted", name,
             show_duration(fabs(skew_ms)).text);
    say(f, "look", line);
  }
  if (strcmp(exactness, "invariant") != 0) {
    snprintf(line, sizeof line, "%s: its kernels are %s, so rounds are not exact: the same seed may give other weights",
             name, exactness);
    say(f, "look", line);
  }
  if (json_find_number(w, "draining") > 0) {
    snprintf(line, sizeof line, "%s is leaving", name);
    say(f, "look", line);
  }
}

static enum rc check_workers(struct session *s, struct findings *f, struct err *err) {
  struct json *answer = NULL;
  struct pool p = {0};
  char line[256];
  const enum rc rc = session_get(s, "/v1/workers", NULL, NULL, &answer, err);
  if (rc != RC_OK) return rc;
  const struct json *workers = json_find(answer, "workers");
  for (size_t i = 0; i < json_length(workers); i++) check_worker(f, &p, json_at(workers, i));
  json_free(answer);
  snprintf(line, sizeof line, "%d trainer-server%s, %d of them holds the trainer's place", p.trainers,
           p.trainers == 1 ? "" : "s", p.holders);
  say(f, p.holders == 1 ? "good" : "bad",
      p.trainers ? line : "no trainer-server is registered: runs would wait for one");
  snprintf(line, sizeof line,
           "%d generation-server%s with %s slots, %d ready now (the others take weights when a run begins)",
           p.generating, p.generating == 1 ? "" : "s", show_figure(p.slots_all, 0).text, p.ready);
  say(f, p.generating ? "good" : "bad",
      p.generating ? line : "no generation-server is registered: nothing would be sampled");
  return RC_OK;
}

/* ---- runs ---- */

static enum rc check_runs(struct session *s, struct findings *f, struct err *err) {
  struct json *answer = NULL;
  char line[512];
  int queued = 0, active = 0;
  const enum rc rc = session_get(s, "/v1/runs", NULL, NULL, &answer, err);
  if (rc != RC_OK) return rc;
  const struct json *runs = json_find(answer, "runs");
  for (size_t i = 0; i < json_length(runs); i++) {
    const struct json *run = json_at(runs, i);
    const char *state = show_word(run, "state", ""),
               *why = show_word(run, "error", show_word(run, "waiting_for", NULL));
    queued += strcmp(state, "queued") == 0;
    active += strcmp(state, "running") == 0 || strcmp(state, "starting") == 0;
    if (strcmp(state, "paused") != 0 && (!why || strcmp(state, "failed") == 0)) continue;
    snprintf(line, sizeof line, "run %s is %s%s%s", show_word(run, "id", ""), state, why ? ": " : "", why ? why : "");
    say(f, strcmp(state, "paused") == 0 ? "bad" : "look", line);
  }
  json_free(answer);
  snprintf(line, sizeof line, "%d run%s active, %d queued", active, active == 1 ? " is" : "s are", queued);
  say(f, "good", line);
  return RC_OK;
}

enum rc doctor_run(struct session *s, int *status, struct err *err) {
  struct findings f = {0};
  s->json = false;
  enum rc rc = check_ready(s, &f, err);
  if (rc == RC_OK) rc = check_disk(s, &f, err);
  if (rc == RC_OK) rc = check_workers(s, &f, err);
  if (rc == RC_OK) rc = check_runs(s, &f, err);
  if (rc != RC_OK) return rc;
  *status = f.bad ? EXIT_REFUSED : EXIT_DONE;
  printf("%s\n", f.bad    ? "A run would not do what it should."
                 : f.look ? "It works; look at the lines above."
                          : "All is well.");
  return RC_OK;
}
