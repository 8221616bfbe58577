/* Stages versions: takes pushes, pulls the current version when none came, and activates the one that is current.
 *
 * The mutex guards the state and the current version.  The state says who may touch the spare set of weights: the
 * stager while FILLING, the engine from ACTIVATING on.  Lock order: this mutex, then the engine's inbox.
 *
 * Previous hop of a version: route_push_weights.c, or the trainer (pull).  Next: engine.c (activate). */
#include "services/generation-server/weights/staging.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"
#include "common/client/trainer_client.h"
#include "services/generation-server/fault.h"

enum {
  PUSHES_MAX = 4,
  ORDERS_MAX = 4,
  ACTIVATION_NAP_MS = 10,
  PAUSE_WAIT_MS = 600000,
  ACTIVATION_WAIT_MS = 10000, /* the engine must swap within it, before the spare set can be filled again */
  FILE_DEADLINE_MS = 30000,
  PULL_DEADLINE_MS = 600000, /* and as long as the file takes at PULL_BYTES_PER_MS */
  PULL_BYTES_PER_MS = 10000,
  RETRY_MIN_MS = 200,
  RETRY_MAX_MS = 5000,
  NAP_MS = 500
};

enum stage_state { STAGE_EMPTY, STAGE_FILLING, STAGE_STAGED, STAGE_ACTIVATING };

struct staging {
  struct staging_options options;
  struct http_client *http;
  atomic_bool cancel;
  pthread_t thread;
  bool started;
  struct broadcast_intake intake; /* the thread's */
  atomic_bool end_of_broadcast;   /* ends the wait for it; set under the mutex */
  struct metric *metric_body, *metric_broadcast, *metric_pulled, *metric_changes, *metric_replaced;

  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  struct loaded_model *loaded;
  enum stage_state state;
  struct weights *spare; /* the set that is not the engine's; NULL while ACTIVATING */
  struct policy staged;
  bool staged_announced;
  char announcing[LIMIT_NAME_MAX]; /* the run whose versions are announced before they are pushed; "": none is known */
  int64_t behind_since_ms;         /* since when the engine lacks the current version's weights; 0: it has them */
  int64_t pushed_ms;               /* when the last push began to come */
  struct current_policy current;
  struct staging_push pushes[PUSHES_MAX];
  int push_count;
  struct staging_order orders[ORDERS_MAX];
  int order_count;
  const struct http_request *receiving; /* the push whose broadcast the stager is waiting for; NULL: none */
  int64_t retry_at_ms, retry_ms;
  bool stopping;
};

/* --- the current version --- */

/* Brings the engine to the current version, as far as the staged weights allow. Mutex held. */
static void follow_current(struct staging *s) {
  struct policy active;
  if (!s->loaded || s->state == STAGE_ACTIVATING) return;
  const bool decodes = engine_policy(s->loaded->engine, &active), staged = s->state == STAGE_STAGED;
  const struct policy *next = current_policy_next(&s->current, decodes ? &active : NULL, staged ? &s->staged : NULL,
                                                  s->staged_announced);
  if (!next) return;
  if (decodes && digest_equal(&active.digest, &next->digest)) {
    if (staged && digest_equal(&s->staged.digest, &active.digest)) s->state = STAGE_EMPTY; /* the engine has them */
    engine_relabel(s->loaded->engine, next);
    return;
  }
  if (!engine_settled(s->loaded->engine)) return; /* on_settled tries again */
  if (engine_activate(s->loaded->engine, s->spare, next) != RC_OK)
    return; /* the inbox is full: the next answer of the coordinator tries again */
  s->spare = NULL;
  s->state = STAGE_ACTIVATING;
}

/* Does the engine lack the current version's weights, with none of it staged? Mutex held. */
static bool is_behind(struct staging *s) {
  struct policy active;
  if (!s->current.known || s->current.trainer_url[0] == '\0') return false;
  if (!s->loaded) return true;
  if (s->state == STAGE_ACTIVATING) return false;
  if (s->state == STAGE_STAGED && digest_equal(&s->staged.digest, &s->current.policy.digest)) return false;
  return !engine_policy(s->loaded->engine, &active) || !digest_equal(&active.digest, &s->current.policy.digest);
}

/* Must the current version's weights be fetched? Mutex held. */
static bool must_pull(struct staging *s) {
  struct policy active;
  const int64_t now_ms = clock_monotonic_ms();
  const char *run = s->current.policy.run;
  if (!is_behind(s)) {
    s->behind_since_ms = 0;
    return false;
  }
  if (s->behind_since_ms == 0) s->behind_since_ms = now_ms;
  const bool pushes_come = strcmp(s->announcing, run) == 0 && s->loaded && engine_policy(s->loaded->engine, &active) &&
                           strcmp(active.run, run) == 0;
  return !(pushes_come && current_policy_awaits_push(s->behind_since_ms, s->pushed_ms, now_ms));
}

/* Mutex held. */
static bool ignores_newer_versions(struct staging *s) {
  struct engine_counters n = {0};
  if (s->loaded) engine_read_counters(s->loaded->engine, &n);
  return fault_ignores_newer_versions(n.activations);
}

void staging_follow_current(struct staging *s, const struct current_version *told) {
  if (!told->has) return; /* no run: keep what is loaded */
  pthread_mutex_lock(&s->mutex);
  if (!ignores_newer_versions(s) && current_policy_is_news(&s->current, told)) {
    if (!s->current.known || !digest_equal(&s->current.policy.digest, &told->digest)) {
      s->retry_at_ms = 0;
      s->retry_ms = RETRY_MIN_MS;
    }
    current_policy_set(&s->current, told);
    follow_current(s);
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->mutex);
}

void staging_expect_pushes(struct staging *s, const char *run) {
  pthread_mutex_lock(&s->mutex);
  snprintf(s->announcing, sizeof s->announcing, "%s", run);
  pthread_mutex_unlock(&s->mutex);
}

void staging_forget_current(struct staging *s) {
  pthread_mutex_lock(&s->mutex);
  s->current.known = false;
  pthread_mutex_unlock(&s->mutex);
}

/* The engine has swapped: `previous` is the spare set now, the second set the first time.  On the engine's thread. */
static void on_activated(void *context, struct weights *previous, const struct policy *now) {
  struct staging *s = context;
  pthread_mutex_lock(&s->mutex);
  s->spare = previous ? previous : s->loaded->weights[1];
  s->state = STAGE_EMPTY;
  s->behind_since_ms = 0;
  follow_current(s);
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, &now->digest);
  struct log_context before;
  log_context_save(&before);
  log_context_id(now->run);
  log_context_number(LOG_VERSION, now->version);
  log_info("version %lld of run %s is active, digest %.12s", (long long)now->version, now->run[0] ? now->run : "-",
           hex);
  log_context_restore(&before);
  s->options.activated(s->options.context);
}

/* A version that is staged may be activated now.  On the engine's thread. */
static void on_settled(void *context) {
  struct staging *s = context;
  pthread_mutex_lock(&s->mutex);
  follow_current(s);
  pthread_mutex_unlock(&s->mutex);
}

/* --- which pushes are taken --- */

/* The newest version of the run that is here or waits to be staged; -1: none. Mutex held. */
static int64_t newest_here(const struct staging *s, const char *run) {
  struct policy active;
  int64_t newest = -1;
  if (engine_policy(s->loaded->engine, &active) && strcmp(active.run, run) == 0) newest = active.version;
  if (s->state == STAGE_STAGED && strcmp(s->staged.run, run) == 0 && s->staged.version > newest)
    newest = s->staged.version;
  for (int i = 0; i < s->push_count; i++) {
    const struct staging_push *p = &s->pushes[i];
    if (p->announced && strcmp(p->run, run) == 0 && p->version > newest) newest = p->version;
  }
  return newest;
}

/* RC_CONFLICT when a newer version makes the push worthless: for an announced one a newer one that is here, since the
 * current one may be far ahead of what has come; else the current one. Mutex held. */
static enum rc push_is_wanted(const struct staging *s, const struct staging_push *push, struct err *err) {
  const bool is_current_run = s->current.known && strcmp(s->current.policy.run, push->run) == 0;
  const int64_t newest =
      push->announced ? newest_here(s, push->run) : is_current_run ? s->current.policy.version : -1;
  if (push->version >= newest) return RC_OK;
  return err_set(err, RC_CONFLICT, "version", "version %lld of run %s is superseded by %lld", (long long)push->version,
                 push->run, (long long)newest);
}

/* --- filling --- */

/* Where the weights of this digest are, once the engine has swapped; NULL: not here.  While FILLING the engine keeps
 * its set. Mutex held. */
static const struct weights *find_base(const struct staging *s, const struct digest *base) {
  struct policy active;
  if (s->state == STAGE_STAGED && digest_equal(&s->staged.digest, base)) return s->spare;
  if (!engine_policy(s->loaded->engine, &active) || !digest_equal(&active.digest, base)) return NULL;
  return s->loaded->weights[s->spare == s->loaded->weights[0]];
}

static enum rc base_missing(const struct digest *base, struct err *err) {
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, base);
  return err_set(err, RC_CONFLICT, "base",
                 "expected changes of weights that are active or staged here, got those of %s", hex);
}

/* Takes the spare set for filling, from weights of digest `base`, unless that is NULL. RC_TIMEOUT when the engine does
 * not give the set back. */
static enum rc begin_filling(struct staging *s, const struct digest *base, const struct weights **from,
                             struct weights **out, struct err *err) {
  const struct timespec until = clock_deadline_in(ACTIVATION_WAIT_MS);
  enum rc rc = RC_OK;
  pthread_mutex_lock(&s->mutex);
  while (s->state == STAGE_ACTIVATING && !s->stopping)
    if (pthread_cond_timedwait(&s->changed, &s->mutex, &until) != 0) break;
  if (s->state == STAGE_ACTIVATING) {
    rc = err_set(err, RC_TIMEOUT, NULL, "the engine has not swapped its weights within %d ms", ACTIVATION_WAIT_MS);
  } else if (base && !(*from = find_base(s, base))) {
    rc = base_missing(base, err);
  } else {
    if (s->state == STAGE_STAGED) metric_add(s->metric_replaced, 1);
    s->state = STAGE_FILLING;
    *out = s->spare;
  }
  pthread_mutex_unlock(&s->mutex);
  return rc;
}

/* staged NULL: it failed. */
static void end_filling(struct staging *s, const struct policy *staged, bool announced) {
  pthread_mutex_lock(&s->mutex);
  s->state = staged ? STAGE_STAGED : STAGE_EMPTY;
  if (staged) {
    s->staged = *staged;
    s->staged_announced = announced && !ignores_newer_versions(s);
    if (s->staged_announced) current_policy_announced(&s->current, staged);
    if (s->options.standalone) s->current = (struct current_policy){.known = true, .policy = *staged};
    follow_current(s);
  }
  pthread_mutex_unlock(&s->mutex);
}

static enum rc fill_from_file(struct weights *w, const void *bytes, size_t len, struct digest *computed,
                              struct err *err) {
  struct st_file *file = NULL;
  enum rc rc = st_open_memory(&file, bytes, len, err);
  if (rc == RC_OK) rc = weights_from_safetensors(w, file, err);
  if (rc == RC_OK) rc = weights_digest(computed, w, err);
  st_close(file);
  return rc;
}

/* Bytes into the spare set: a file, or with a base the changes since then; `expected` must come out as their digest. */
static enum rc fill(struct staging *s, const void *bytes, size_t len, const struct digest *base,
                    const struct policy *expected, bool announced, struct digest *computed, struct err *err) {
  struct weights *w;
  const struct weights *from = NULL;
  enum rc rc = begin_filling(s, base, &from, &w, err);
  if (rc != RC_OK) return rc;
  rc = from ? weights_apply_changes(w, from, bytes, len, base, computed, err)
            : fill_from_file(w, bytes, len, computed, err);
  if (rc == RC_OK && !digest_equal(computed, &expected->digest)) {
    char want[DIGEST_HEX_MAX], got[DIGEST_HEX_MAX];
    digest_hex(want, &expected->digest);
    digest_hex(got, computed);
    rc = err_set(err, RC_INVALID, "digest", "version %lld of run %s was announced with digest %s, its weights have %s",
                 (long long)expected->version, expected->run, want, got);
  }
  end_filling(s, rc == RC_OK ? expected : NULL, announced);
  return rc;
}

/* Receives into memory that the caller frees. */
static enum rc receive(struct staging *s, const struct staging_push *push, char **out, struct err *err) {
  *out = malloc(push->offer.bytes);
  const enum rc rc =
      *out ? broadcast_intake_receive(&s->intake, &push->offer, *out, &s->end_of_broadcast, err)
           : err_set(err, RC_NO_MEMORY, NULL, "a broadcast of %zu bytes was refused memory", push->offer.bytes);
  pthread_mutex_lock(&s->mutex);
  s->receiving = NULL;
  pthread_mutex_unlock(&s->mutex);
  if (rc == RC_OK) fault_incoming(*out, push->offer.bytes);
  return rc;
}

static void do_push(struct staging *s, const struct staging_push *push) {
  struct err err;
  struct policy policy = {.version = push->version, .digest = push->digest};
  snprintf(policy.run, sizeof policy.run, "%s", push->run);
  size_t len;
  char *received = NULL;
  const char *bytes = http_body(push->request, &len);
  struct push_answer answer = {.staged = true};
  const int64_t begin_ms = clock_monotonic_ms();
  enum rc rc = push->by_broadcast ? receive(s, push, &received, &err) : RC_OK;
  if (rc == RC_OK && push->by_broadcast) {
    bytes = received;
    len = push->offer.bytes;
  }
  const struct digest *base = push->from_base ? &push->base : NULL;
  if (rc == RC_OK) rc = fill(s, bytes, len, base, &policy, push->announced, &answer.digest, &err);
  free(received);
  if (rc != RC_OK) {
    log_warn("pushed version %lld of run %s is not staged: %s", (long long)push->version, push->run, err.message);
    http_fail(push->request, &err);
    return;
  }
  metric_add(push->by_broadcast ? s->metric_broadcast : s->metric_body, 1);
  if (push->from_base) metric_add(s->metric_changes, 1);
  log_info("version %lld of run %s is staged, %zu bytes%s in %lld ms", (long long)push->version, push->run, len,
           push->by_broadcast ? " by broadcast"
           : push->from_base  ? " of changes"
                              : "",
           (long long)(clock_monotonic_ms() - begin_ms));
  struct buf body = BUF_INIT;
  push_answer_encode(&answer, &body);
  http_reply_json(push->request, 200, &body);
}

/* --- pulling --- */

static enum rc fetch_file(const struct trainer_client *client, const char *name, bool required, struct buf *out,
                          struct err *err) {
  const enum rc rc = trainer_model_file(client, name, out, FILE_DEADLINE_MS, err);
  return rc == RC_NOT_FOUND && !required ? RC_OK : rc;
}

/* The files are the loaded model's then, or freed. */
static enum rc open_model(struct staging *s, struct model_files *files, struct err *err) {
  struct loaded_model *loaded;
  enum rc rc = loaded_model_open(&loaded, &s->options.model, files, on_activated, on_settled, s, err);
  if (rc != RC_OK) {
    model_files_free(files);
    return rc;
  }
  rc = engine_start(loaded->engine, err);
  if (rc != RC_OK) {
    loaded_model_close(loaded);
    return rc;
  }
  pthread_mutex_lock(&s->mutex);
  s->loaded = loaded;
  s->spare = loaded->weights[0];
  s->state = STAGE_EMPTY;
  pthread_mutex_unlock(&s->mutex);
  s->options.opened(s->options.context, loaded);
  return RC_OK;
}

static enum rc fetch_model(struct staging *s, const struct trainer_client *client, struct err *err) {
  struct buf config_json = BUF_INIT, generation = BUF_INIT, tokens = BUF_INIT;
  struct chat_files chat = {.jinja = BUF_INIT, .tool_use = BUF_INIT, .tokenizer_config = BUF_INIT};
  struct model_files files;
  enum rc rc = fetch_file(client, "config.json", true, &config_json, err);
  if (rc == RC_OK) rc = fetch_file(client, "generation_config.json", false, &generation, err);
  if (rc == RC_OK) rc = fetch_file(client, "tokenizer.json", false, &tokens, err);
  if (rc == RC_OK) rc = fetch_file(client, "chat_template.jinja", false, &chat.jinja, err);
  if (rc == RC_OK) rc = fetch_file(client, "tool_use.jinja", false, &chat.tool_use, err);
  if (rc == RC_OK) rc = fetch_file(client, "tokenizer_config.json", false, &chat.tokenizer_config, err);
  if (rc == RC_OK) rc = model_files_parse(&files, &config_json, &generation, &tokens, &chat, err);
  buf_free(&config_json);
  buf_free(&generation);
  buf_free(&tokens);
  buf_free(&chat.jinja);
  buf_free(&chat.tool_use);
  buf_free(&chat.tokenizer_config);
  return rc == RC_OK ? open_model(s, &files, err) : rc;
}

/* Are the run's versions announced before they are pushed?  Then this one was, and may have been overtaken since. */
static bool runs_ahead(struct staging *s, const char *run) {
  pthread_mutex_lock(&s->mutex);
  const bool yes = strcmp(s->announcing, run) == 0;
  pthread_mutex_unlock(&s->mutex);
  return yes;
}

static enum rc pull(struct staging *s, const struct current_policy *wanted, struct err *err) {
  const struct trainer_client client = {s->http, wanted->trainer_url};
  enum rc rc = staging_model(s) ? RC_OK : fetch_model(s, &client, err);
  if (rc != RC_OK) return rc;
  struct buf bytes = BUF_INIT;
  struct digest computed;
  const size_t bytes_max = staging_model(s)->weights_file_max;
  const int64_t deadline_ms = PULL_DEADLINE_MS + (int64_t)(bytes_max / PULL_BYTES_PER_MS);
  rc = trainer_weights(&client, wanted->policy.run, wanted->policy.version, bytes_max, &bytes, deadline_ms, err);
  const bool announced = rc == RC_OK && runs_ahead(s, wanted->policy.run);
  if (rc == RC_OK) rc = fill(s, bytes.data, bytes.len, NULL, &wanted->policy, announced, &computed, err);
  if (rc == RC_OK) {
    metric_add(s->metric_pulled, 1);
    log_info("version %lld of run %s was pulled, %zu bytes", (long long)wanted->policy.version, wanted->policy.run,
             bytes.len);
  }
  buf_free(&bytes);
  return rc;
}

static void do_pull(struct staging *s, const struct current_policy *wanted) {
  struct err err;
  const enum rc rc = pull(s, wanted, &err);
  pthread_mutex_lock(&s->mutex);
  if (rc == RC_OK) {
    s->retry_at_ms = 0;
    s->retry_ms = RETRY_MIN_MS;
  } else if (!s->stopping) {
    log_warn("pulling version %lld of run %s from %s: %s", (long long)wanted->policy.version, wanted->policy.run,
             wanted->trainer_url, err.message);
    if (digest_equal(&wanted->policy.digest, &s->current.policy.digest)) {
      s->retry_at_ms = clock_monotonic_ms() + s->retry_ms;
      s->retry_ms = s->retry_ms * 2 < RETRY_MAX_MS ? s->retry_ms * 2 : RETRY_MAX_MS;
    }
  }
  pthread_mutex_unlock(&s->mutex);
}

/* --- orders --- */

/* Until the engine decodes with these weights under this number. */
static enum rc await_active(struct staging *s, const struct policy *wanted, struct err *err) {
  const int64_t until_ms = clock_monotonic_ms() + ACTIVATION_WAIT_MS;
  struct policy active;
  bool there = false, stopping = false;
  while (!there && !stopping && clock_monotonic_ms() < until_ms) {
    const struct timespec nap = clock_deadline_in(ACTIVATION_NAP_MS);
    pthread_mutex_lock(&s->mutex);
    there = s->state != STAGE_ACTIVATING && engine_policy(s->loaded->engine, &active) &&
            digest_equal(&active.digest, &wanted->digest) && active.version == wanted->version;
    stopping = s->stopping;
    if (!there && !stopping) pthread_cond_timedwait(&s->changed, &s->mutex, &nap);
    pthread_mutex_unlock(&s->mutex);
  }
  if (there) return RC_OK;
  return err_set(err, RC_TIMEOUT, NULL, "the engine has not swapped its weights within %d ms", ACTIVATION_WAIT_MS);
}

static enum rc load_folder(struct staging *s, const struct staging_order *order, struct policy *policy,
                           struct err *err) {
  struct weights *w;
  struct policy active = {0};
  engine_policy(s->loaded->engine, &active);
  *policy = (struct policy){.version = order->version >= 0 ? order->version : active.version + 1};
  const int64_t begin_ms = clock_monotonic_ms();
  enum rc rc = begin_filling(s, NULL, NULL, &w, err);
  if (rc != RC_OK) return rc;
  rc = model_weights_load(w, &policy->digest, order->dir, err);
  end_filling(s, rc == RC_OK ? policy : NULL, false);
  if (rc == RC_OK) rc = await_active(s, policy, err);
  if (rc == RC_OK)
    log_info("version %lld was loaded from %s in %lld ms", (long long)policy->version, order->dir,
             (long long)(clock_monotonic_ms() - begin_ms));
  return rc;
}

/* From the memory that the kernels read, which nothing fills while this thread is here. */
static enum rc digest_active(struct staging *s, struct policy *policy, struct err *err) {
  pthread_mutex_lock(&s->mutex);
  const bool swapping = s->state == STAGE_ACTIVATING || !engine_policy(s->loaded->engine, policy);
  const struct weights *w = s->loaded->weights[s->spare == s->loaded->weights[0]];
  pthread_mutex_unlock(&s->mutex);
  if (swapping) return err_set(err, RC_UNAVAILABLE, NULL, "the weights are being swapped");
  struct digest announced = policy->digest;
  const enum rc rc = weights_digest(&policy->digest, w, err);
  if (rc == RC_OK && !digest_equal(&announced, &policy->digest))
    return err_set(err, RC_CORRUPT, NULL, "the active weights do not have the digest that they were taken with");
  return rc;
}

/* A client that is not answered in time finds the engine as it was. */
static enum rc await_pause(struct staging *s, struct policy *policy, struct err *err) {
  const struct engine *e = s->loaded->engine;
  const int64_t until_ms = clock_monotonic_ms() + PAUSE_WAIT_MS;
  bool stopping = false;
  if (engine_pausing(e)) log_info("the server rests when its open requests have ended");
  while (engine_pausing(e) && !stopping && clock_monotonic_ms() < until_ms) {
    const struct timespec nap = clock_deadline_in(ACTIVATION_NAP_MS);
    pthread_mutex_lock(&s->mutex);
    stopping = s->stopping;
    if (!stopping) pthread_cond_timedwait(&s->changed, &s->mutex, &nap);
    pthread_mutex_unlock(&s->mutex);
  }
  engine_policy(s->loaded->engine, policy);
  if (stopping) return err_set(err, RC_UNAVAILABLE, NULL, "the server is stopping");
  if (engine_paused(e)) return RC_OK;
  if (!engine_pausing(e))
    return err_set(err, RC_CONFLICT, NULL, "the pause was taken back before open requests had ended");
  engine_resume(s->loaded->engine);
  return err_set(err, RC_TIMEOUT, NULL, "open requests have not ended within %d ms", PAUSE_WAIT_MS);
}

static void do_order(struct staging *s, const struct staging_order *order) {
  struct err err = {0};
  struct policy policy = {0};
  const enum rc rc = order->awaits_pause ? await_pause(s, &policy, &err)
                     : order->dir[0]     ? load_folder(s, order, &policy, &err)
                                         : digest_active(s, &policy, &err);
  if (rc != RC_OK) log_warn("a client's order failed: %s", err.message);
  order->answer(order->request, rc, &policy, &err);
}

/* --- the thread --- */

static void *stager_main(void *argument) {
  struct staging *s = argument;
  pool_enter();
  pthread_mutex_lock(&s->mutex);
  while (!s->stopping) {
    if (s->push_count > 0) {
      const struct staging_push push = s->pushes[0];
      memmove(&s->pushes[0], &s->pushes[1], (size_t)--s->push_count * sizeof s->pushes[0]);
      s->receiving = push.by_broadcast ? push.request : NULL;
      atomic_store(&s->end_of_broadcast, s->push_count > 0); /* a later push waits, and replaces this version */
      struct err err;
      const enum rc rc = push.announced ? push_is_wanted(s, &push, &err) : RC_OK; /* a newer one may have come since */
      pthread_mutex_unlock(&s->mutex);
      activity_set(s->options.model.activity, ACTIVITY_LOADING, true);
      log_context_restore(&push.log);
      if (rc == RC_OK)
        do_push(s, &push);
      else
        http_fail(push.request, &err);
      log_context_clear();
      activity_set(s->options.model.activity, ACTIVITY_LOADING, false);
      pthread_mutex_lock(&s->mutex);
    } else if (s->order_count > 0) {
      const struct staging_order order = s->orders[0];
      memmove(&s->orders[0], &s->orders[1], (size_t)--s->order_count * sizeof s->orders[0]);
      pthread_mutex_unlock(&s->mutex);
      do_order(s, &order);
      pthread_mutex_lock(&s->mutex);
    } else if (must_pull(s) && clock_monotonic_ms() >= s->retry_at_ms) {
      const struct current_policy wanted = s->current;
      pthread_mutex_unlock(&s->mutex);
      activity_set(s->options.model.activity, ACTIVITY_LOADING, true);
      log_context_id(wanted.policy.run);
      log_context_number(LOG_VERSION, wanted.policy.version);
      do_pull(s, &wanted);
      log_context_clear();
      activity_set(s->options.model.activity, ACTIVITY_LOADING, false);
      pthread_mutex_lock(&s->mutex);
    } else {
      const struct timespec until = clock_deadline_in(must_pull(s) ? RETRY_MIN_MS : NAP_MS);
      pthread_cond_timedwait(&s->changed, &s->mutex, &until);
    }
  }
  pthread_mutex_unlock(&s->mutex);
  return NULL;
}

static struct metric *count_by(const char *labels) {
  return metrics_register(METRIC_COUNTER, "leasehold_generation_versions_staged_total", labels,
                          "Versions filled into the spare weights, by the way that their bytes came.");
}

enum rc staging_start(struct staging **out, const struct staging_options *options, struct err *err) {
  *out = NULL;
  struct staging *s = calloc(1, sizeof *s);
  if (!s) return err_set(err, RC_NO_MEMORY, NULL, "the stager was refused its memory");
  s->options = *options;
  s->intake.fabric = options->fabric;
  s->metric_body = count_by("way=\"http\"");
  s->metric_broadcast = count_by("way=\"fabric\"");
  s->metric_pulled = count_by("way=\"pull\"");
  s->metric_changes = metrics_register(METRIC_COUNTER, "leasehold_generation_versions_from_changes_total", "",
                                       "Versions pushed as changes of one that the server held.");
  s->metric_replaced =
      metrics_register(METRIC_COUNTER, "leasehold_generation_versions_replaced_total", "",
                       "Versions that were staged, and replaced by another before they were activated.");
  s->retry_ms = RETRY_MIN_MS;
  pthread_mutex_init(&s->mutex, NULL);
  cond_init(&s->changed);
  enum rc rc = http_client_create_for(&s->http, options->access, &s->cancel, err);
  if (rc == RC_OK && pthread_create(&s->thread, NULL, stager_main, s) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the stager's thread could not be made");
  s->started = rc == RC_OK;
  if (rc != RC_OK) {
    staging_free(s);
    return rc;
  }
  *out = s;
  return RC_OK;
}

enum rc staging_load(struct staging *s, const char *dir, struct err *err) {
  struct model_files files;
  struct policy policy = {.version = 0};
  enum rc rc = model_files_load(&files, dir, err);
  if (rc == RC_OK) rc = open_model(s, &files, err);
  if (rc != RC_OK) return rc;
  struct weights *w;
  rc = begin_filling(s, NULL, NULL, &w, err);
  if (rc == RC_OK) rc = model_weights_load(w, &policy.digest, dir, err);
  if (rc != RC_OK) return rc;
  pthread_mutex_lock(&s->mutex);
  s->state = STAGE_ACTIVATING;
  s->spare = NULL;
  pthread_mutex_unlock(&s->mutex);
  rc = engine_activate(s->loaded->engine, w, &policy);
  if (rc != RC_OK) return err_set(err, rc, NULL, "the engine did not take the weights: its inbox is full or closed");
  const int64_t until_ms = clock_monotonic_ms() + ACTIVATION_WAIT_MS;
  while (!engine_policy(s->loaded->engine, &policy) && clock_monotonic_ms() < until_ms) clock_sleep_ms(1);
  return RC_OK;
}

struct loaded_model *staging_model(struct staging *s) {
  pthread_mutex_lock(&s->mutex);
  struct loaded_model *loaded = s->loaded;
  pthread_mutex_unlock(&s->mutex);
  return loaded;
}

/* s->mutex held. */
static enum rc push_acceptable(const struct staging *s, const struct staging_push *push, struct err *err) {
  if (s->stopping || !s->loaded)
    return err_set(err, RC_UNAVAILABLE, NULL,
                   s->stopping ? "the server is stopping" : "the model's files are not known yet");
  if (s->push_count == PUSHES_MAX) return err_set(err, RC_FULL, NULL, "%d pushes wait already", PUSHES_MAX);
  const bool on_the_way = s->state == STAGE_ACTIVATING && digest_equal(&s->staged.digest, &push->base);
  if (push->from_base && !on_the_way && !find_base(s, &push->base)) return base_missing(&push->base, err);
  return push_is_wanted(s, push, err);
}

/* s->mutex held: notes that a push that can be taken has begun to arrive. */
static void note_push(struct staging *s, const struct staging_push *push) {
  s->pushed_ms = clock_monotonic_ms();
  if (push->announced) snprintf(s->announcing, sizeof s->announcing, "%s", push->run);
}

enum rc staging_push_check(struct staging *s, const struct staging_push *push, struct err *err) {
  pthread_mutex_lock(&s->mutex);
  const enum rc rc = push_acceptable(s, push, err);
  if (rc == RC_OK) note_push(s, push);
  pthread_mutex_unlock(&s->mutex);
  return rc;
}

enum rc staging_push(struct staging *s, const struct staging_push *push, struct err *err) {
  pthread_mutex_lock(&s->mutex);
  const enum rc rc = push_acceptable(s, push, err);
  if (rc == RC_OK) {
    note_push(s, push);
    s->pushes[s->push_count] = *push;
    log_context_save(&s->pushes[s->push_count++].log);
    if (s->receiving) atomic_store(&s->end_of_broadcast, true); /* the trainer has given up its broadcast */
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->mutex);
  return rc;
}

void staging_push_abandoned(struct staging *s, const struct http_request *request) {
  pthread_mutex_lock(&s->mutex);
  if (s->receiving == request) atomic_store(&s->end_of_broadcast, true);
  for (int i = 0; i < s->push_count; i++) {
    if (s->pushes[i].request == request) s->pushes[i].offer.wait_ms = 0;
  }
  pthread_mutex_unlock(&s->mutex);
}

/* s->mutex held. */
static enum rc takes_orders(const struct staging *s, struct err *err) {
  if (!s->options.standalone)
    return err_set(err, RC_CONFLICT, NULL,
                   "expected a server without a coordinator: this server's coordinator says which weights decode");
  if (s->stopping || !s->loaded)
    return err_set(err, RC_UNAVAILABLE, NULL,
                   s->stopping ? "the server is stopping" : "the model's files are not known yet");
  return RC_OK;
}

enum rc staging_take_order(struct staging *s, const struct staging_order *order, struct err *err) {
  pthread_mutex_lock(&s->mutex);
  enum rc rc = takes_orders(s, err);
  if (rc == RC_OK && s->order_count == ORDERS_MAX)
    rc = err_set(err, RC_FULL, NULL, "%d orders wait already", ORDERS_MAX);
  if (rc == RC_OK) {
    s->orders[s->order_count++] = *order;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->mutex);
  return rc;
}

void staging_stop(struct staging *s) {
  struct err err;
  pthread_mutex_lock(&s->mutex);
  s->stopping = true;
  atomic_store(&s->end_of_broadcast, true);
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->mutex);
  atomic_store(&s->cancel, true);
  if (s->started) pthread_join(s->thread, NULL);
  s->started = false;
  err_set(&err, RC_UNAVAILABLE, NULL, "the server is stopping");
  for (int i = 0; i < s->push_count; i++) http_fail(s->pushes[i].request, &err);
  s->push_count = 0;
  for (int i = 0; i < s->order_count; i++) s->orders[i].answer(s->orders[i].request, err.rc, NULL, &err);
  s->order_count = 0;
  if (s->loaded) engine_stop(s->loaded->engine);
}

void staging_free(struct staging *s) {
  if (!s) return;
  broadcast_intake_leave(&s->intake);
  loaded_model_close(s->loaded);
  http_client_destroy(s->http);
  pthread_cond_destroy(&s->changed);
  pthread_mutex_destroy(&s->mutex);
  free(s);
}
