/* doctor: what the services tell of a set-up, judged line by line before hours are spent on it (findings.h).
 *
 *   the coordinator --> its disk and clock --> workers --> each one's machine and pace --> runs --> a run's configuration
 *
 * Before any service runs, with --model, before.c asks their programs instead.  It judges by answers alone; the exit
 * status is that of the worst line. */
#include "services/cli/commands/doctor.h"

#include <math.h>
#include <string.h>

#include "services/cli/commands/before.h"
#include "services/cli/commands/check_run.h"
#include "services/cli/commands/check_weights.h"
#include "services/cli/commands/show.h"

#define DISK_BYTES_LEAST 5e9

/* ---- the coordinator ---- */

/* Only a coordinator tells an epoch there.  *known: it is one, or may become one, so there is more to ask. */
static enum rc check_ready(struct session *s, struct findings *f, bool *known, struct err *err) {
  struct buf text = BUF_INIT;
  struct json *answer = NULL;
  int code = 0;
  *known = false;
  const enum rc rc = session_get_text(s, "/readyz", &text, &code, err);
  if (rc == RC_OK && code == 200 && text.data) json_parse(&answer, text.data, text.len, 0, NULL);
  if (rc == RC_OK) {
    *known = code == 503 || !isnan(json_find_number(answer, "epoch"));
    if (!*known)
      finding_say(f, FINDING_FAIL,
                  "%s is not a coordinator: another service answers "
                  "there: --coordinator, or LEASEHOLD_COORDINATOR, must "
                  "be the coordinator's address",
                  s->coordinator);
    else if (code == 503)
      finding_say(f, FINDING_FAIL,
                  "the coordinator %s answers but is not ready: it is opening its database, or stopping; its log "
                  "says which",
                  s->coordinator);
    else
      finding_say(f, FINDING_OK, "the coordinator %s is ready", s->coordinator);
  }
  json_free(answer);
  buf_free(&text);
  return rc;
}

static void say_room(struct findings *f, double room) {
  const bool low = room < DISK_BYTES_LEAST;
  if (isnan(room))
    finding_say(f, FINDING_WARN, "how much room the database's disk has left is not known");
  else
    finding_say(f, low ? FINDING_WARN : FINDING_OK, "the database's disk has %s GB left%s",
                show_figure(room / 1e9, 1).text, low ? ": a full disk stops every run; make room, or move --db" : "");
}

/* *let_in: the token may look. */
static enum rc check_room(struct session *s, struct findings *f, bool *let_in, struct err *err) {
  struct buf text = BUF_INIT;
  int code = 0;
  const enum rc rc = session_get_text(s, "/metrics", &text, &code, err);
  *let_in = code != 401 && code != 403;
  if (rc == RC_OK && !*let_in)
    finding_say(f, FINDING_FAIL,
                "the coordinator %s (status %d): --auth-token, or LEASEHOLD_AUTH_TOKEN, must be the admin's, or a "
                "viewer's, who may look",
                s->token[0] ? "refuses this token" : "asks for a token", code);
  else if (rc == RC_OK)
    say_room(f, code == 200 && text.data ? metric_of(text.data, "leasehold_database_disk_free_bytes") : NAN);
  if (rc == RC_OK && code == 200 && text.data) check_version(f, "the coordinator", text.data);
  buf_free(&text);
  return rc;
}

/* ---- workers ---- */

struct pool {
  int trainers, holders, generating, ready, off;
  double slots_all;
};

static void check_worker(struct findings *f, struct pool *p, const struct json *w) {
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
    p->off++;
    finding_say(
        f, FINDING_WARN,
        "%s: its clock is off by %s; its times in the timeline are shifted, those in its log are not: set it by NTP",
        name, show_duration(fabs(skew_ms)).text);
  }
  if (strcmp(exactness, "invariant") != 0)
    finding_say(f, FINDING_WARN,
                "%s: its kernels are %s, so rounds are not exact: the same seed may give other weights", name,
                exactness);
  if (json_find_number(w, "name_shared_ms") > 0)
    finding_say(f, FINDING_WARN,
                "%s is the name of two processes, which end each other's leases; give each a --name of its own", name);
  if (json_find_number(w, "draining") > 0) finding_say(f, FINDING_WARN, "%s is leaving", name);
}

static void say_pool(struct findings *f, const struct pool *p) {
  if (p->trainers == 0)
    finding_say(f, FINDING_FAIL,
                "no trainer-server is registered: runs would wait for one; start one with --coordinator");
  else
    finding_say(f, p->holders == 1 ? FINDING_OK : FINDING_FAIL,
                "%d trainer-server%s, %d of them holds the trainer's place", p->trainers, p->trainers == 1 ? "" : "s",
                p->holders);
  if (p->generating == 0)
    finding_say(f, FINDING_FAIL,
                "no generation-server is registered: nothing would be sampled; start one with --coordinator");
  else
    finding_say(f, FINDING_OK,
                "%d generation-server%s with %s slots, %d ready now (the others take weights when a run begins)",
                p->generating, p->generating == 1 ? "" : "s", show_figure(p->slots_all, 0).text, p->ready);
  if (p->trainers + p->generating > 0 && p->off == 0)
    finding_say(f, FINDING_OK, "every worker's clock is within a second of the coordinator's");
}

static enum rc check_workers(struct session *s, struct findings *f, struct pace_found *pace, struct err *err) {
  struct json *answer = NULL;
  struct pool p = {0};
  enum rc rc = session_get(s, "/v1/workers", NULL, NULL, &answer, err);
  if (rc != RC_OK) return rc;
  const struct json *workers = json_find(answer, "workers");
  for (size_t i = 0; i < json_length(workers); i++) check_worker(f, &p, json_at(workers, i));
  say_pool(f, &p);
  check_services(s, f, workers, pace);
  rc = check_names(s, f, workers, err);
  json_free(answer);
  return rc;
}

/* ---- runs ---- */

/* The servers of its own that an active run asks for rewards. */
static enum rc check_reward_servers(struct session *s, struct findings *f, const char *run, struct err *err) {
  struct json *answer = NULL;
  const enum rc rc = session_get(s, "/v1/runs/", run, "?history=0", &answer, err);
  const struct json *servers = json_find(answer, "reward_servers");
  for (size_t i = 0; i < json_length(servers); i++) {
    struct buf line = BUF_INIT;
    if (show_reward_server(&line, json_at(servers, i)) && line.data)
      finding_say(f, FINDING_WARN, "run %s: %s; start it again, or stop the run", run, line.data);
    buf_free(&line);
  }
  json_free(answer);
  return rc;
}

static enum rc check_runs(struct session *s, struct findings *f, struct err *err) {
  struct json *answer = NULL;
  int queued = 0, active = 0;
  enum rc rc = session_get(s, "/v1/runs", NULL, NULL, &answer, err);
  if (rc != RC_OK) return rc;
  const struct json *runs = json_find(answer, "runs");
  for (size_t i = 0; rc == RC_OK && i < json_length(runs); i++) {
    const struct json *run = json_at(runs, i);
    const char *state = show_word(run, "state", ""),
               *why = show_word(run, "error", show_word(run, "waiting_for", NULL));
    const bool paused = strcmp(state, "paused") == 0,
               works = strcmp(state, "running") == 0 || strcmp(state, "starting") == 0;
    queued += strcmp(state, "queued") == 0;
    active += works;
    if (works) rc = check_reward_servers(s, f, show_word(run, "id", ""), err);
    if (rc == RC_OK && strcmp(state, "running") == 0) rc = check_weights(s, f, run, err);
    if (!paused && (!why || strcmp(state, "failed") == 0)) continue;
    finding_say(f, paused ? FINDING_FAIL : FINDING_WARN, "run %s is %s%s%s%s", show_word(run, "id", ""), state,
                why ? ": " : "", why ? why : "", paused ? "; resume or stop it: others wait behind it" : "");
  }
  json_free(answer);
  if (rc != RC_OK) return rc;
  finding_say(f, FINDING_OK, "%d run%s active, %d queued", active, active == 1 ? " is" : "s are", queued);
  return RC_OK;
}

static enum rc services(struct session *s, struct findings *f, struct err *err) {
  struct pace_found pace;
  bool goes_on;
  enum rc rc = check_ready(s, f, &goes_on, err);
  if (rc == RC_UNAVAILABLE || rc == RC_TIMEOUT) {
    const struct err cause = *err;
    return err_set(err, rc, NULL, "%.600s; before any service runs: leasehold doctor [FILE] --model FOLDER",
                   cause.message);
  }
  if (rc == RC_OK && goes_on) rc = check_room(s, f, &goes_on, err);
  if (!goes_on) return rc;
  if (rc == RC_OK) check_coordinator_machine(s, f);
  if (rc == RC_OK) rc = check_workers(s, f, &pace, err);
  if (rc == RC_OK) rc = check_runs(s, f, err);
  if (rc == RC_OK && s->word_count > 0) rc = check_run(s, f, s->words[0], &pace, err);
  return rc;
}

enum rc doctor_run(struct session *s, int *status, struct err *err) {
  struct findings f = {0};
  s->json = false;
  const enum rc rc = s->model[0] ? before_services(s, &f, err) : services(s, &f, err);
  if (rc != RC_OK) return rc;
  *status = f.count[FINDING_FAIL] ? EXIT_REFUSED : EXIT_DONE;
  printf("%s\n", f.count[FINDING_FAIL]   ? "A run would not do what it should."
                 : f.count[FINDING_WARN] ? "It works; look at the lines above."
                                         : "All is well.");
  return RC_OK;
}
