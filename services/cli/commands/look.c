/* rollouts, timeline, workers: what an answer holds, as a table. */
#include "services/cli/commands/look.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "services/cli/commands/show.h"

enum { TAIL_MAX = 80, BAR_WIDTH = 24, LOOK_MS = 1000, RETRIES = 20 };

/* ---- rollouts ---- */

static void print_member(const struct json *v, const char *label, const char *key) {
  size_t len;
  const struct json *text = json_find(v, key);
  if (!text || json_type_of(text) != JSON_STRING) return;
  const char *bytes = json_string(text, &len);
  printf("  %-7s ", label);
  show_text(stdout, bytes, len);
  printf("\n");
}

static void print_rollout(const struct json *r) {
  printf("%s  reward %s  advantage %s  %s  %s tokens  %s\n", show_word(r, "id", ""),
         show_figure(json_find_number(r, "reward"), 4).text, show_figure(json_find_number(r, "advantage"), 4).text,
         show_word(r, "finish", ""), show_figure((double)json_length(json_find(r, "token_ids")), 0).text,
         show_word(r, "group_state", ""));
  print_member(r, "prompt", "prompt");
  print_member(r, "text", "text");
  print_member(r, "answer", "answer");
  print_member(r, "verdict", "detail");
}

/* Why nothing is shown, in a sentence. */
static enum rc say_no_rollouts(struct session *s, struct err *err) {
  struct json *run = NULL;
  const enum rc rc = session_get(s, "/v1/runs/", s->words[0], "?history=0", &run, err);
  if (rc == RC_OK && strcmp(show_word(run, "objective", ""), "cross_entropy") == 0)
    fprintf(stderr, "leasehold: run %s is supervised: it samples nothing\n", show_word(run, "id", ""));
  else if (rc == RC_OK && s->round >= 0)
    fprintf(stderr, "leasehold: run %s has no rollouts of round %lld; its newest round is %s\n",
            show_word(run, "id", ""), (long long)s->round, show_figure(json_find_number(run, "round"), 0).text);
  else if (rc == RC_OK)
    fprintf(stderr, "leasehold: run %s has no rollouts yet\n", show_word(run, "id", ""));
  json_free(run);
  return rc;
}

enum rc rollouts_show(struct session *s, int *status, struct err *err) {
  char tail[TAIL_MAX];
  struct json *answer = NULL;
  if (s->round < 0)
    snprintf(tail, sizeof tail, "/rollouts?limit=%lld", (long long)s->limit);
  else
    snprintf(tail, sizeof tail, "/rollouts?limit=%lld&round=%lld", (long long)s->limit, (long long)s->round);
  enum rc rc = session_get(s, "/v1/runs/", s->words[0], tail, &answer, err);
  const struct json *rollouts = json_find(answer, "rollouts");
  for (size_t i = 0; !s->json && i < json_length(rollouts); i++) print_rollout(json_at(rollouts, i));
  if (rc == RC_OK && !s->json && json_length(rollouts) == 0) rc = say_no_rollouts(s, err);
  *status = EXIT_DONE;
  json_free(answer);
  return rc;
}

/* ---- timeline ---- */

static double add(const struct json *v, const char *a, const char *b) {
  const double x = json_find_number(v, a), y = json_find_number(v, b);
  return isnan(x) ? y : isnan(y) ? x : x + y;
}

static void print_times(const struct json *r) {
  const double opened = json_find_number(r, "opened_ms"), published = json_find_number(r, "published_ms");
  const double waits = add(r, "trainer.fill_us", "trainer.starved_us"),
               works = add(r, "trainer.logprob_us", "trainer.compute_us");
  const double samples = json_find_number(r, "generation.compute_us"),
               starves = json_find_number(r, "generation.starved_us");
  printf("round %4s  %-10s trainer ", show_figure(json_find_number(r, "round"), 0).text,
         show_duration(published - opened).text);
  show_bar(stdout, works / (works + waits), BAR_WIDTH);
  printf(" %5s  servers ", show_figure(100 * works / (works + waits), 0).text);
  show_bar(stdout, samples / (samples + starves), BAR_WIDTH);
  printf(" %5s\n", show_figure(100 * samples / (samples + starves), 0).text);
}

enum rc timeline_show(struct session *s, int *status, struct err *err) {
  char tail[TAIL_MAX];
  struct json *answer = NULL, *run = NULL;
  int64_t from = s->round;
  enum rc rc = RC_OK;
  *status = EXIT_DONE;
  if (from < 0) { /* the newest ones */
    const bool shown = s->json;
    s->json = false;
    rc = session_get(s, "/v1/runs/", s->words[0], "?history=0", &run, err);
    s->json = shown;
    const double newest = json_find_number(run, "round");
    from = newest >= (double)s->limit ? (int64_t)newest - s->limit + 1 : 0;
    json_free(run);
  }
  snprintf(tail, sizeof tail, "/timeline?from=%lld&limit=%lld", (long long)from, (long long)s->limit);
  if (rc == RC_OK) rc = session_get(s, "/v1/runs/", s->words[0], tail, &answer, err);
  const struct json *rounds = json_find(answer, "rounds");
  if (rc == RC_OK && !s->json)
    printf("busy, in percent: the trainer computes or waits for groups, servers decode or have nothing to\n");
  for (size_t i = 0; !s->json && i < json_length(rounds); i++) print_times(json_at(rounds, i));
  json_free(answer);
  return rc;
}

/* ---- workers ---- */

static void print_worker(const struct json *w) {
  const char *name = show_word(w, "name", ""), *digest = show_word(w, "loaded_digest", "-"),
             *role = show_word(w, "role", "");
  printf("%-6s %-10s %-8s %-9s %4s of %-4s busy  %4s leases  %.12s  ", show_word(w, "id", ""), show_word(w, "kind", ""),
         role,
         json_find_number(w, "draining") > 0 ? "draining"
         : json_find_number(w, "ready") > 0  ? "ready"
                                        : "not ready",
         show_figure(json_find_number(w, "slots_busy"), 0).text, show_figure(json_find_number(w, "slots"), 0).text,
         show_figure(json_find_number(w, "leases"), 0).text, digest);
  show_text(stdout, name, strlen(name));
  printf("\n");
}

static enum rc workers_print(struct session *s, bool draws, struct err *err) {
  struct json *answer = NULL;
  const enum rc rc = session_get(s, "/v1/workers", NULL, NULL, &answer, err);
  const struct json *workers = json_find(answer, "workers");
  if (draws) printf("\033[H\033[J"); /* over the table before */
  for (size_t i = 0; !s->json && i < json_length(workers); i++) print_worker(json_at(workers, i));
  json_free(answer);
  return rc;
}

static enum rc workers_watch(struct session *s, struct err *err) {
  const bool draws = isatty(STDOUT_FILENO) && !s->json;
  const int64_t begin_ms = clock_monotonic_ms();
  for (int missed = 0;;) {
    const enum rc rc = workers_print(s, draws, err);
    if (rc != RC_OK && (!session_again(s, rc) || ++missed == RETRIES)) return rc;
    if (rc == RC_OK) missed = 0;
    if (s->timeout_s && clock_monotonic_ms() - begin_ms > 1000 * s->timeout_s) return RC_OK;
    if (rc != RC_OK && !s->json) printf("%s\n", s->later ? err->message : "the coordinator does not answer");
    if (!draws && !s->json) printf("\n");
    fflush(stdout);
    clock_sleep_ms(LOOK_MS);
  }
}

enum rc workers_show(struct session *s, int *status, struct err *err) {
  const bool watches = s->watch;
  s->watch = false; /* answers are printed as they come */
  *status = watches ? EXIT_WAITS : EXIT_DONE;
  return watches ? workers_watch(s, err) : workers_print(s, false, err);
}
