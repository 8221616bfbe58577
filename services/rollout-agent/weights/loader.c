/* Loads versions into a foreign engine, and proves that it holds them.
 *
 * The thread alone calls the engine's control routes and the trainer; slots only wait here.  The mutex is never held
 * across a call.
 * Memory: one version's file while it is pulled.
 *
 * Previous hop of a version: the trainer, named by the coordinator's answers.  Next: the engine's load
 * (engine/client.c). */
#include "services/rollout-agent/weights/loader.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/http/trust/tls.h"
#include "services/rollout-agent/weights/version_folder.h"

enum { OLDER_BELIEVED = 3, RETRY_MIN_MS = 200, RETRY_MAX_MS = 10000, NAP_MS = 500, PROVE_SLACK_MS = 5000 };

struct wanted {
  bool known;
  char run[LIMIT_NAME_MAX], trainer_url[LIMIT_URL_MAX], name[ENGINE_VERSION_MAX];
  int64_t version;
  struct digest digest;
};

struct loader {
  struct loader_options options;
  struct http_client *trainer_http, *engine_http, *kept_http; /* kept: not cut by `cancel` */
  atomic_bool cancel;
  pthread_t thread;
  bool started;

  /* The thread's own. */
  bool has_proven;         /* something was held before, in this process */
  struct digest proven_of; /* the weights that were proven last, */
  struct evidence proven;  /* and their evidence */
  char kept[ENGINE_VERSION_MAX];

  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  struct wanted wanted;
  int older_in_a_row;
  char fetched[ENGINE_VERSION_MAX]; /* the version whose folder is whole */
  bool holds, closing, stopping;
  struct held_version held;
  uint64_t generation;
  uint64_t asked, answered; /* proofs: tickets given out, and answered */
  int inside;               /* requests */
  int64_t retry_at_ms, retry_ms;
  char trouble[ERR_MESSAGE_MAX];
  struct loader_counters count;
};

static struct engine_client engine_of(const struct loader *l) {
  return (struct engine_client){.http = l->engine_http,
                                .kept_http = l->kept_http,
                                .base_url = l->options.engine_url,
                                .wire = l->options.wire,
                                .model = l->options.engine_model};
}

/* --- the current version --- */

/* Runs are numbered "r7"; within a run versions rise. */
static bool is_older(const struct wanted *known, const struct current_version *told) {
  if (strcmp(known->run, told->run) == 0) return told->version < known->version;
  return known->run[0] == 'r' && told->run[0] == 'r' &&
         strtoull(told->run + 1, NULL, 10) < strtoull(known->run + 1, NULL, 10);
}

/* The same weights may become another version's, as after a step that changed nothing.  Mutex held. */
static void relabel(struct loader *l) {
  if (!l->holds || !l->wanted.known || !digest_equal(&l->held.digest, &l->wanted.digest)) return;
  memcpy(l->held.run, l->wanted.run, sizeof l->held.run);
  l->held.version = l->wanted.version;
}

void loader_told_current(struct loader *l, const struct current_version *told) {
  if (!told->has) return; /* no run: what is held stays */
  pthread_mutex_lock(&l->mutex);
  const bool older = l->wanted.known && is_older(&l->wanted, told);
  l->older_in_a_row = older ? l->older_in_a_row + 1 : 0;
  const bool same = l->wanted.known && l->wanted.version == told->version && strcmp(l->wanted.run, told->run) == 0 &&
                    digest_equal(&l->wanted.digest, &told->digest);
  if (!same && (!older || l->older_in_a_row >= OLDER_BELIEVED)) {
    char hex[DIGEST_HEX_MAX];
    struct wanted *w = &l->wanted;
    if (!w->known || !digest_equal(&w->digest, &told->digest)) {
      l->retry_at_ms = 0;
      l->retry_ms = RETRY_MIN_MS;
    }
    *w = (struct wanted){.known = true, .version = told->version, .digest = told->digest};
    digest_hex(hex, &told->digest);
    snprintf(w->run, sizeof w->run, "%s", told->run);
    snprintf(w->trainer_url, sizeof w->trainer_url, "%s", told->trainer_url ? told->trainer_url : "");
    snprintf(w->name, sizeof w->name, "%s.v%lld-%.16s", told->run, (long long)told->version, hex);
    l->older_in_a_row = 0;
    relabel(l);
    pthread_cond_broadcast(&l->changed);
  }
  pthread_mutex_unlock(&l->mutex);
}

void loader_forget_current(struct loader *l) {
  pthread_mutex_lock(&l->mutex);
  l->wanted.known = false;
  pthread_mutex_unlock(&l->mutex);
}

/* --- doubt; mutex held --- */

static void doubt(struct loader *l, const struct err *why) {
  if (l->stopping) return;
  if (strcmp(l->trouble, why->message) != 0) log_warn("the engine's weights are in doubt, so it holds no lease: "
                                                      "%s", why->message);
  snprintf(l->trouble, sizeof l->trouble, "%s", why->message);
  l->holds = false;
  l->generation++;
  l->count.doubts++;
  l->retry_at_ms = clock_monotonic_ms() + l->retry_ms;
  l->retry_ms = l->retry_ms * 2 < RETRY_MAX_MS ? l->retry_ms * 2 : RETRY_MAX_MS;
  pthread_cond_broadcast(&l->changed);
}

/* --- the thread's work; the mutex is held at the beginning and the end of each --- */

static void tell_changed(struct loader *l) {
  pthread_mutex_unlock(&l->mutex);
  l->options.changed(l->options.context);
  pthread_mutex_lock(&l->mutex);
}

static void prove(struct loader *l) {
  const uint64_t ticket = l->asked, generation = l->generation;
  const struct engine_client engine = engine_of(l);
  struct evidence seen;
  struct err err = {0};
  if (l->holds) {
    pthread_mutex_unlock(&l->mutex);
    enum rc rc = engine_observe(&engine, l->options.wants_checksum, &seen, l->options.proof_timeout_ms, &err);
    if (rc == RC_OK) rc = evidence_agrees(&l->proven, &seen, l->options.probe_tolerance, &err);
    pthread_mutex_lock(&l->mutex);
    l->count.proofs++;
    const bool was_held = l->holds;
    if (rc != RC_OK && l->holds && l->generation == generation) doubt(l, &err);
    if (rc == RC_OK && was_held) l->retry_ms = RETRY_MIN_MS;
    l->answered = ticket;
    pthread_cond_broadcast(&l->changed);
    if (was_held && !l->holds) tell_changed(l);
    return;
  }
  l->answered = ticket;
  pthread_cond_broadcast(&l->changed);
}

static void works_for(const struct wanted *w) {
  log_context_clear();
  log_context_id(w->run);
  log_context_number(LOG_VERSION, w->version);
}

static void fetch(struct loader *l) {
  const struct wanted w = l->wanted;
  struct err err = {0};
  works_for(&w);
  pthread_mutex_unlock(&l->mutex);
  const struct version_source from = {.trainer = {l->trainer_http, w.trainer_url},
                                      .run = w.run,
                                      .version = w.version,
                                      .digest = &w.digest,
                                      .bytes_max = (size_t)l->options.weights_bytes_max};
  const enum rc rc = version_folder_make(l->options.folder, w.name, &from, &err);
  pthread_mutex_lock(&l->mutex);
  if (rc == RC_OK) {
    snprintf(l->fetched, sizeof l->fetched, "%s", w.name);
    return;
  }
  if (strcmp(w.name, l->wanted.name) != 0 || l->stopping) return; /* a newer one is current meanwhile */
  log_warn("version %lld of run %s: %s", (long long)w.version, w.run, err.message);
  if (!l->holds) snprintf(l->trouble, sizeof l->trouble, "%s", err.message);
  l->retry_at_ms = clock_monotonic_ms() + l->retry_ms;
  l->retry_ms = l->retry_ms * 2 < RETRY_MAX_MS ? l->retry_ms * 2 : RETRY_MAX_MS;
}

/* Does what is seen after the load of `w` show its weights? */
static enum rc judge(const struct loader *l, const struct wanted *w, const struct evidence *seen, struct err *err) {
  const double tolerance = l->options.probe_tolerance;
  if (seen->version[0] && strcmp(seen->version, w->name) != 0)
    return err_set(err, RC_CONFLICT, "version", "the engine was told to load version '%s', but says '%s'", w->name,
                   seen->version);
  if (!l->has_proven) return RC_OK;
  if (!digest_equal(&l->proven_of, &w->digest)) return evidence_moved(&l->proven, seen, tolerance, err);
  struct evidence again = l->proven; /* the same weights, perhaps under another name */
  memcpy(again.version, seen->version, sizeof again.version);
  return evidence_agrees(&again, seen, tolerance, err);
}

static enum rc load_and_prove(struct loader *l, const struct wanted *w, struct evidence *seen, struct err *err) {
  const struct engine_client engine = engine_of(l);
  const int64_t begin_ms = clock_monotonic_ms();
  struct evidence again;
  char path[LIMIT_PATH_MAX];
  const int len = snprintf(path, sizeof path, "%s/%s", l->options.engine_folder, w->name);
  if (len < 0 || (size_t)len >= sizeof path)
    return err_set(err, RC_TOO_LARGE, NULL, "the path of %s is too long", w->name);
  enum rc rc = engine_load(&engine, path, w->name, l->options.load_timeout_ms, err);
  if (rc == RC_OK) rc = engine_observe(&engine, l->options.wants_checksum, seen, l->options.proof_timeout_ms, err);
  if (rc == RC_OK) rc = judge(l, w, seen, err);
  if (rc == RC_OK && seen->probe_count > 0) { /* does it repeat itself at all? */
    rc = engine_observe(&engine, l->options.wants_checksum, &again, l->options.proof_timeout_ms, err);
    if (rc == RC_OK) rc = evidence_agrees(seen, &again, l->options.probe_tolerance, err);
  }
  if (rc == RC_OK)
    log_info("the engine holds version %lld of run %s as '%s' after %lld ms, shown by %s%s", (long long)w->version,
             w->run, w->name, (long long)(clock_monotonic_ms() - begin_ms),
             seen->has_checksum ? "its checksum" : "a probe", seen->version[0] ? " and its word" : "");
  return rc;
}

static void load(struct loader *l) {
  const struct wanted w = l->wanted;
  struct evidence seen;
  struct err err = {0};
  works_for(&w);
  l->holds = false; /* no proof of the version before is worth anything from here on */
  l->generation++;
  snprintf(l->trouble, sizeof l->trouble, "the engine loads version %lld of run %s", (long long)w.version, w.run);
  pthread_mutex_unlock(&l->mutex);
  const enum rc rc = load_and_prove(l, &w, &seen, &err);
  if (rc == RC_OK) {
    l->has_proven = true;
    l->proven_of = w.digest;
    l->proven = seen;
    version_folder_keep(l->options.folder, w.name, l->kept);
    snprintf(l->kept, sizeof l->kept, "%s", w.name);
  }
  pthread_mutex_lock(&l->mutex);
  if (rc == RC_OK) {
    l->held = (struct held_version){.version = w.version, .digest = w.digest, .named = seen.version[0] != '\0'};
    snprintf(l->held.run, sizeof l->held.run, "%s", w.run);
    snprintf(l->held.name, sizeof l->held.name, "%s", w.name);
    l->held.generation = ++l->generation;
    l->holds = true;
    relabel(l); /* other versions may have been told meanwhile */
    l->count.loads++;
    l->trouble[0] = '\0';
    pthread_cond_broadcast(&l->changed);
  } else {
    doubt(l, &err);
  }
  tell_changed(l);
}

static void *loader_main(void *argument) {
  struct loader *l = argument;
  bool proved = false; /* in the turn before: a pool that never rests would keep a new version from being fetched */
  pthread_mutex_lock(&l->mutex);
  while (!l->stopping) {
    const struct wanted *w = &l->wanted;
    const bool same = l->holds && digest_equal(&l->held.digest, &w->digest);
    const bool due = w->known && w->trainer_url[0] && !same && clock_monotonic_ms() >= l->retry_at_ms;
    l->closing = due && strcmp(l->fetched, w->name) == 0;
    const bool fetches = due && !l->closing && proved;
    proved = l->asked != l->answered && !fetches;
    if (proved) {
      prove(l);
    } else if (due && !l->closing) {
      fetch(l);
    } else if (due && l->inside == 0) {
      load(l);
    } else {
      const struct timespec until = clock_deadline_in(w->known && !same ? RETRY_MIN_MS / 2 : NAP_MS);
      pthread_cond_timedwait(&l->changed, &l->mutex, &until);
    }
  }
  l->answered = l->asked;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->mutex);
  return NULL;
}

/* --- for the slots --- */

bool loader_holds(struct loader *l, struct held_version *out) {
  pthread_mutex_lock(&l->mutex);
  const bool holds = l->holds;
  if (holds) *out = l->held;
  pthread_mutex_unlock(&l->mutex);
  return holds;
}

enum rc loader_enter(struct loader *l, struct held_version *out, int64_t wait_ms) {
  const struct timespec until = clock_deadline_in(wait_ms);
  pthread_mutex_lock(&l->mutex);
  while ((!l->holds || l->closing) && !l->stopping)
    if (pthread_cond_timedwait(&l->changed, &l->mutex, &until) != 0) break;
  const bool may = l->holds && !l->closing && !l->stopping;
  if (may) {
    *out = l->held;
    l->inside++;
  }
  pthread_mutex_unlock(&l->mutex);
  return may ? RC_OK : RC_UNAVAILABLE;
}

void loader_leave(struct loader *l) {
  pthread_mutex_lock(&l->mutex);
  if (--l->inside == 0) pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->mutex);
}

enum rc loader_prove(struct loader *l, uint64_t generation, struct err *err) {
  const struct timespec until = clock_deadline_in(2 * l->options.proof_timeout_ms + PROVE_SLACK_MS);
  pthread_mutex_lock(&l->mutex);
  const uint64_t ticket = ++l->asked;
  pthread_cond_broadcast(&l->changed);
  while (l->answered < ticket && !l->stopping)
    if (pthread_cond_timedwait(&l->changed, &l->mutex, &until) != 0) break;
  const bool proven = l->answered >= ticket && l->holds && l->generation == generation && !l->stopping;
  if (!proven) err_set(err, RC_CONFLICT, "version", "%s", l->trouble[0] ? l->trouble : "no proof came in time");
  pthread_mutex_unlock(&l->mutex);
  return proven ? RC_OK : RC_CONFLICT;
}

void loader_doubt(struct loader *l, uint64_t generation, const struct err *why) {
  pthread_mutex_lock(&l->mutex);
  const bool news = l->holds && l->generation == generation && !l->stopping;
  if (news) doubt(l, why);
  pthread_mutex_unlock(&l->mutex);
  if (news) l->options.changed(l->options.context);
}

void loader_trouble(struct loader *l, char out[ERR_MESSAGE_MAX]) {
  pthread_mutex_lock(&l->mutex);
  snprintf(out, ERR_MESSAGE_MAX, "%s", l->holds ? "" : l->trouble[0] ? l->trouble : "no version is current yet");
  pthread_mutex_unlock(&l->mutex);
}

void loader_read_counters(struct loader *l, struct loader_counters *out) {
  pthread_mutex_lock(&l->mutex);
  *out = l->count;
  pthread_mutex_unlock(&l->mutex);
}

/* --- life --- */

enum rc loader_start(struct loader **out, const struct loader_options *options, struct err *err) {
  *out = NULL;
  struct loader *l = calloc(1, sizeof *l);
  if (!l) return err_set(err, RC_NO_MEMORY, NULL, "the loader was refused its memory");
  l->options = *options;
  l->retry_ms = RETRY_MIN_MS;
  pthread_mutex_init(&l->mutex, NULL);
  cond_init(&l->changed);
  enum rc rc = http_client_create_for(&l->trainer_http, options->access, &l->cancel, err);
  if (rc == RC_OK) rc = http_client_create(&l->engine_http, options->engine_token, &l->cancel, err);
  if (rc == RC_OK) http_client_of_strangers(l->engine_http, http_tls_ca());
  if (rc == RC_OK) rc = http_client_create(&l->kept_http, options->engine_token, NULL, err);
  if (rc == RC_OK) http_client_of_strangers(l->kept_http, http_tls_ca());
  if (rc == RC_OK && pthread_create(&l->thread, NULL, loader_main, l) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the loader's thread could not be made");
  l->started = rc == RC_OK;
  if (rc != RC_OK) {
    loader_free(l);
    return rc;
  }
  *out = l;
  return RC_OK;
}

void loader_stop(struct loader *l) {
  pthread_mutex_lock(&l->mutex);
  l->stopping = true;
  pthread_cond_broadcast(&l->changed);
  pthread_mutex_unlock(&l->mutex);
  atomic_store(&l->cancel, true);
  if (l->started) pthread_join(l->thread, NULL);
  l->started = false;
}

void loader_free(struct loader *l) {
  if (!l) return;
  http_client_destroy(l->trainer_http);
  http_client_destroy(l->engine_http);
  http_client_destroy(l->kept_http);
  pthread_cond_destroy(&l->changed);
  pthread_mutex_destroy(&l->mutex);
  free(l);
}
