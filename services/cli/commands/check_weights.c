/* Looks twice, as one look proves nothing: a server may just be taking a version, a worker may just have been started
 * again.  A server that holds the same weights for LOOK_MS, which no recent round of the run has made, does not take
 * the run's: a --model of its own may be another model than the trainer's, whose weights then do not fit. */
#include "services/cli/commands/check_weights.h"

#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/cli/commands/show.h"

enum { LOOK_MS = 2000, RECENT_ROUNDS = 64, TAIL_MAX = 64 };

/* One look: who is there, and what the run has made.  The workers are asked first, so that the run knows of all that
 * they hold, but for a version that is on its way. */
struct look {
  struct json *workers, *run, *rounds;
};

static void look_free(struct look *l) {
  json_free(l->workers);
  json_free(l->run);
  json_free(l->rounds);
}

static enum rc look(struct session *s, struct look *l, const char *run, struct err *err) {
  char tail[TAIL_MAX];
  enum rc rc = session_get(s, "/v1/workers", NULL, NULL, &l->workers, err);
  if (rc == RC_OK) rc = session_get(s, "/v1/runs/", run, "?history=0", &l->run, err);
  const double version = json_find_number(l->run, "version");
  const double from = version > RECENT_ROUNDS ? version - RECENT_ROUNDS : 0;
  snprintf(tail, sizeof tail, "/rounds?from=%.0f&limit=%d", from, 2 * RECENT_ROUNDS);
  return rc == RC_OK ? session_get(s, "/v1/runs/", run, tail, &l->rounds, err) : rc;
}

static bool same(const struct json *v, const char *path, const char *word) {
  return strcmp(show_word(v, path, ""), word) == 0;
}

/* Has the run these weights, or had it them lately? */
static bool is_of_run(const struct look *l, const char *digest) {
  const struct json *rounds = json_find(l->rounds, "rounds"), *from = json_find(l->run, "weights_from");
  bool found = same(l->run, "weights_digest", digest) || same(json_at(from, 0), "digest", digest);
  for (size_t i = 0; !found && i < json_length(rounds); i++) found = same(json_at(rounds, i), "digest", digest);
  return found;
}

/* A digest, or NULL: the worker is no generation-server, has none, leaves, or its weights are the run's. */
static const char *foreign_digest(const struct look *l, const struct json *w) {
  const char *digest = show_word(w, "loaded_digest", NULL);
  if (!digest || !same(w, "kind", "generation") || json_find_number(w, "draining") > 0) return NULL;
  return is_of_run(l, digest) ? NULL : digest;
}

static const struct json *worker_of(const struct json *workers, const char *member, const char *word) {
  for (size_t i = 0; i < json_length(workers); i++)
    if (same(json_at(workers, i), member, word)) return json_at(workers, i);
  return NULL;
}

/* The servers that hold what is not the run's, in both looks the same. */
static void say_foreign(struct findings *f, const struct look *first, const struct look *second, const char *run) {
  const struct json *workers = json_find(second->workers, "workers");
  for (size_t i = 0; i < json_length(workers); i++) {
    const struct json *w = json_at(workers, i),
                      *before = worker_of(json_find(first->workers, "workers"), "id", show_word(w, "id", ""));
    const char *digest = foreign_digest(second, w);
    if (!digest || !before || !same(before, "loaded_digest", digest)) continue;
    finding_say(f, FINDING_WARN,
                "%s has other weights than run %s needs (%.12s, not %.12s), and samples nothing for it: if its log "
                "says that they do not fit, it has another --model than the trainer: leave its --model out",
                show_word(w, "name", ""), run, digest, show_word(second->run, "weights_digest", "-"));
  }
}

static bool any_foreign(const struct look *l) {
  const struct json *workers = json_find(l->workers, "workers");
  bool any = false;
  for (size_t i = 0; i < json_length(workers); i++) any = any || foreign_digest(l, json_at(workers, i));
  return any;
}

enum rc check_weights(struct session *s, struct findings *f, const struct json *run, struct err *err) {
  const char *id = show_word(run, "id", "");
  struct look first = {0}, second = {0};
  enum rc rc = look(s, &first, id, err);
  if (rc == RC_OK && any_foreign(&first)) {
    clock_sleep_ms(LOOK_MS);
    rc = look(s, &second, id, err);
    if (rc == RC_OK && same(second.run, "state", "running")) say_foreign(f, &first, &second, id);
  }
  look_free(&first);
  look_free(&second);
  return rc;
}

enum rc check_names(struct session *s, struct findings *f, const struct json *before, struct err *err) {
  struct json *answer = NULL;
  const enum rc rc = session_get(s, "/v1/workers", NULL, NULL, &answer, err);
  const struct json *workers = json_find(answer, "workers");
  for (size_t i = 0; i < json_length(workers); i++) {
    const struct json *w = json_at(workers, i);
    const char *name = show_word(w, "name", "");
    const struct json *was = worker_of(before, "name", name);
    if (worker_of(before, "id", show_word(w, "id", "")) || !was) continue;
    if (json_find_number(was, "name_shared_ms") > 0) continue; /* said: doctor.c */
    finding_say(f, FINDING_WARN,
                "%s has registered again meanwhile: it was started again, or two processes have this name and end "
                "each other's leases: give each its own --name",
                name);
  }
  json_free(answer);
  return rc;
}
