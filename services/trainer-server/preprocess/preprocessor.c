/* Asks for passes, has them computed, and answers them. */
#include "services/trainer-server/preprocess/preprocessor.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/queue.h"
#include "common/client/registration.h"
#include "common/threads/pool.h"
#include "services/trainer-server/engine/memory.h"
#include "services/trainer-server/preprocess/held_passes.h"
#include "services/trainer-server/preprocess/pass_intervals.h"
#include "services/trainer-server/preprocess/pass_memory.h"
#include "services/trainer-server/preprocess/pass_weights.h"
#include "services/trainer-server/preprocess/pass_work.h"

enum {
  POLL_WAIT_MS = 10000,
  POLL_SLACK_MS = 5000,
  PUT_DEADLINE_MS = 20000,
  PAUSE_MS = 100, /* after a poll that came back early with nothing, or that was refused */
  NOT_NOW_MS = 1000, /* after a pass that could not be computed now: the trainer was away, its weights were others */
  BACKOFF_MIN_MS = 100,
  BACKOFF_MAX_MS = 3000,
  FAILURES_MAX = 8, /* answers 500 to one result */
  REGISTRATION_RETRY_MS = 2000
};

struct preprocessor {
  struct trainer_options options;
  struct preprocessor_tie tie;
  struct model_config config;
  struct pool *pool;
  struct ops *ops;
  struct model *model;
  struct registration *registration;
  struct held_passes held;
  struct pass_intervals intervals;
  struct metric *metric_computed, *metric_handed_back, *metric_lost, *metric_tokens;
  atomic_bool cancel; /* cuts calls short */

  /* Its own thread's. */
  struct http_client *http;
  struct pass_weights weights;
  struct pass_work work;
  pthread_t thread;
  bool started;

  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  char worker_id[LIMIT_NAME_MAX]; /* "": not registered */
  uint64_t epoch;
  struct digest loaded; /* zero: none */
  struct err failed;    /* of the device; RC_OK: none */
  bool stopping;
};

/* As whom a pass was granted. */
struct standing {
  char worker_id[LIMIT_NAME_MAX];
  uint64_t epoch;
};

static bool stopping(struct preprocessor *p) {
  pthread_mutex_lock(&p->mutex);
  const bool yes = p->stopping;
  pthread_mutex_unlock(&p->mutex);
  return yes;
}

static void pause_for(struct preprocessor *p, int64_t ms) {
  const struct timespec until = clock_deadline_in(ms);
  pthread_mutex_lock(&p->mutex);
  while (!p->stopping)
    if (pthread_cond_timedwait(&p->changed, &p->mutex, &until) != 0) break;
  pthread_mutex_unlock(&p->mutex);
}

static bool still(struct preprocessor *p, const struct standing *s) {
  pthread_mutex_lock(&p->mutex);
  const bool same = p->epoch == s->epoch && strcmp(p->worker_id, s->worker_id) == 0;
  pthread_mutex_unlock(&p->mutex);
  return same;
}

static void turn(struct preprocessor *p, enum interval_cause cause) {
  pass_intervals_turn(&p->intervals, cause, clock_monotonic_us());
}

/* ---- results ---- */

/* A coordinator that cannot be reached is retried until the pass is lost, one that answers with errors of its own
 * FAILURES_MAX times. */
static bool worth_retrying(enum rc rc, int failures) {
  if (rc == RC_UNAVAILABLE || rc == RC_TIMEOUT || rc == RC_FULL) return true;
  return (rc == RC_INTERNAL || rc == RC_IO || rc == RC_NO_MEMORY) && failures < FAILURES_MAX;
}

/* The coordinator has what it needs without this result: the group's batch was due, or the run has ended. */
static bool overtaken(enum rc rc, const struct err *err) {
  return rc == RC_GONE || (rc == RC_CONFLICT && strcmp(err->field, "id") == 0);
}

static void put(struct preprocessor *p, const struct pass *pass, const struct pass_result *result) {
  log_context_id(pass->group.id);
  const struct coordinator_client client = {p->http, p->tie.coordinator_url};
  int64_t wait_ms = BACKOFF_MIN_MS;
  struct metric *end = p->metric_lost;
  for (int failures = 0; !stopping(p) && !held_passes_lost(&p->held, pass->group.id);) {
    struct arena scratch = ARENA_INIT;
    struct lease_result_answer answer;
    struct err err = {0};
    const enum rc rc = coordinator_put_pass(&client, pass->group.id, result, &answer, &scratch, PUT_DEADLINE_MS, &err);
    arena_free(&scratch);
    if (rc == RC_OK) {
      end = result->handed_back ? p->metric_handed_back : p->metric_computed;
      break;
    }
    if (overtaken(rc, &err))
      log_info("the result of pass %s came too late to be used: %s", pass->group.id, err.message);
    else if (!stopping(p))
      log_warn("result of pass %s: %s", pass->group.id, err.message);
    if (!worth_retrying(rc, ++failures)) break;
    pause_for(p, wait_ms);
    wait_ms = wait_ms * 2 < BACKOFF_MAX_MS ? wait_ms * 2 : BACKOFF_MAX_MS;
  }
  metric_add(end, 1);
  held_passes_drop(&p->held, pass->group.id);
  log_context_clear();
}

/* False when it could be computed here at another time. */
static bool hand_back(struct preprocessor *p, const struct standing *s, const struct pass *pass,
                      const struct err *why) {
  char refused[WIRE_REFUSED_BYTES + 1];
  const bool never = why->rc == RC_INVALID || why->rc == RC_TOO_LARGE;
  const struct pass_result result = {.worker_id = s->worker_id,
                                     .epoch = s->epoch,
                                     .fence = pass->fence,
                                     .handed_back = true,
                                     .refused = never ? refused : NULL};
  snprintf(refused, sizeof refused, "%.*s", WIRE_REFUSED_BYTES, why->message);
  log_context_id(pass->group.id);
  log_error("pass %s cannot be computed here%s: %s", pass->group.id, never ? "" : " now", why->message);
  put(p, pass, &result);
  return never;
}

static void answer(struct preprocessor *p, const struct standing *s, const struct pass *pass,
                   const struct pass_outcome *outcome) {
  const struct pass_result result = {.worker_id = s->worker_id,
                                     .epoch = s->epoch,
                                     .fence = pass->fence,
                                     .weights_digest = p->weights.digest,
                                     .samples = outcome->samples,
                                     .sample_count = pass->group.sample_count};
  for (size_t i = 0; i < result.sample_count; i++)
    metric_add(p->metric_tokens, (double)outcome->samples[i].logprobs.count);
  put(p, pass, &result);
}

/* ---- passes ---- */

static void look_at_device(struct preprocessor *p) {
  struct err why = {0};
  if (p->ops->status(p->ops, &why) == RC_OK) return;
  pthread_mutex_lock(&p->mutex);
  p->failed = why;
  p->stopping = true;
  pthread_mutex_unlock(&p->mutex);
}

/* Makes the pass's weights those that are held. */
static enum rc need_weights(struct preprocessor *p, const struct pass *pass, struct err *err) {
  if (pass_weights_are(&p->weights, &pass->weights_digest)) return RC_OK;
  if (p->options.teaches)
    return err_set(err, RC_INVALID, "weights_digest",
                   "this is a teacher, it computes passes under its own weights only");
  turn(p, CAUSE_LOAD);
  const enum rc rc = pass_weights_pull(&p->weights, pass, p->http, err);
  turn(p, CAUSE_IDLE);
  pthread_mutex_lock(&p->mutex);
  p->loaded = rc == RC_OK ? p->weights.digest : (struct digest){{0}};
  pthread_mutex_unlock(&p->mutex);
  return rc;
}

/* Passes that can be computed side by side: of one version and one budget.  False when they could not be now. */
static bool compute(struct preprocessor *p, const struct standing *s, const struct pass *const *passes, int count,
                    struct arena *arena) {
  struct pass_outcome outcomes[LIMIT_PASSES_PER_REQUEST];
  struct err err = {0};
  bool all = true, never = true;
  const enum rc rc = need_weights(p, passes[0], &err);
  if (rc == RC_OK) {
    turn(p, CAUSE_LOGPROB);
    pass_work_compute(&p->work, p->weights.weights, passes, count, outcomes, arena);
    turn(p, CAUSE_IDLE);
  }
  for (int i = 0; i < count; i++) {
    const struct err *why = rc == RC_OK ? &outcomes[i].err : &err;
    const bool good = rc == RC_OK && outcomes[i].rc == RC_OK;
    if (good)
      answer(p, s, passes[i], &outcomes[i]);
    else
      never &= hand_back(p, s, passes[i], why);
    all &= good;
  }
  if (!all) look_at_device(p);
  return never;
}

static bool beside(const struct pass *a, const struct pass *b) {
  return a->chunk_tokens == b->chunk_tokens && digest_equal(&a->weights_digest, &b->weights_digest);
}

/* Every pass that was granted is answered, handed back or lost, and then dropped.  False when some could be computed at
 * another time. */
static bool serve(struct preprocessor *p, const struct standing *s, const struct pass_answer *granted,
                  struct arena *arena) {
  const struct pass *passes[LIMIT_PASSES_PER_REQUEST];
  struct err err = {0};
  int count = 0;
  bool all = true;
  held_passes_hold(&p->held, granted->passes, granted->pass_count);
  for (size_t i = 0; i < granted->pass_count; i++) {
    const struct pass *pass = &granted->passes[i];
    if (pass_work_check(&p->work, pass, &err) == RC_OK) {
      if (count > 0 && (count == p->work.lanes || !beside(passes[0], pass))) {
        all &= compute(p, s, passes, count, arena);
        count = 0;
      }
      passes[count++] = pass;
    } else {
      all &= hand_back(p, s, pass, &err);
    }
  }
  if (count > 0) all &= compute(p, s, passes, count, arena);
  return all;
}

/* One poll and its passes.  Returns how long to pause before the next; 0: not at all. */
static int64_t take_turn(struct preprocessor *p, const struct standing *s) {
  const struct coordinator_client client = {p->http, p->tie.coordinator_url};
  const int most = p->work.lanes < LIMIT_PASSES_PER_REQUEST ? p->work.lanes : LIMIT_PASSES_PER_REQUEST;
  const struct pass_request request = {.epoch = s->epoch, .groups_max = most, .wait_ms = POLL_WAIT_MS};
  struct pass_answer granted;
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  int64_t pause_ms = 0;
  const int64_t begin_ms = clock_monotonic_ms();
  const enum rc rc = coordinator_passes(&client, s->worker_id, &request, &granted, &arena,
                                        POLL_WAIT_MS + POLL_SLACK_MS, &err);
  if (rc == RC_OK && still(p, s)) {
    const bool early = granted.pass_count == 0 && clock_monotonic_ms() - begin_ms < PAUSE_MS;
    if (!serve(p, s, &granted, &arena)) pause_ms = NOT_NOW_MS;
    if (early) pause_ms = PAUSE_MS;
  } else if (rc == RC_NOT_FOUND || rc == RC_CONFLICT || rc == RC_GONE) {
    if (still(p, s)) registration_stale(p->registration);
    pause_ms = PAUSE_MS;
  } else if (rc != RC_OK) {
    if (!stopping(p)) log_warn("asking for passes: %s", err.message);
    pause_ms = rc == RC_TIMEOUT ? PAUSE_MS : 5 * PAUSE_MS;
  }
  arena_free(&arena);
  return pause_ms;
}

static void *preprocessor_main(void *context) {
  struct preprocessor *p = context;
  pool_enter();
  while (!stopping(p)) {
    struct standing s;
    pthread_mutex_lock(&p->mutex);
    memcpy(s.worker_id, p->worker_id, sizeof s.worker_id);
    s.epoch = p->epoch;
    pthread_mutex_unlock(&p->mutex);
    const int64_t pause_ms = s.worker_id[0] ? take_turn(p, &s) : PAUSE_MS;
    if (pause_ms > 0) pause_for(p, pause_ms);
  }
  return NULL;
}

/* ---- heartbeats: the registration's thread ---- */

static void on_registered(void *context, const struct worker_registered *m) {
  struct preprocessor *p = context;
  held_passes_lose_all(&p->held);
  pthread_mutex_lock(&p->mutex);
  snprintf(p->worker_id, sizeof p->worker_id, "%s", m->worker_id);
  p->epoch = m->epoch;
  pthread_mutex_unlock(&p->mutex);
  log_info("registered as %s, epoch %" PRIu64, m->worker_id, m->epoch);
}

static enum rc tell(void *context, struct worker_heartbeat *m, struct arena *arena, struct err *err) {
  static const struct digest none;
  struct preprocessor *p = context;
  pthread_mutex_lock(&p->mutex);
  m->ready = true;
  m->has_loaded = !digest_equal(&p->loaded, &none);
  m->loaded_digest = p->loaded;
  pthread_mutex_unlock(&p->mutex);
  pass_intervals_tell(&p->intervals, &m->intervals, &m->interval_count, clock_monotonic_us(), clock_wall_offset_us(),
                      arena);
  m->sent_us = clock_wall_us();
  return held_passes_list(&p->held, &m->leases, &m->lease_count, arena, err);
}

static void on_answer(void *context, const struct worker_heartbeat *m, const struct worker_heartbeat_answer *a) {
  struct preprocessor *p = context;
  held_passes_lose(&p->held, a->lost, a->lost_count, m->leases, m->lease_count);
  pass_intervals_told(&p->intervals);
  pass_intervals_set_active(&p->intervals, a->run_active, clock_monotonic_us());
}

/* ---- life ---- */

static struct metric *passes_metric(const char *labels) {
  return metrics_register(METRIC_COUNTER, "leasehold_preprocessor_passes_total", labels,
                          "Passes that were granted, by their end");
}

static enum rc make(struct preprocessor *p, struct err *err) {
  struct trainer_options *o = &p->options;
  enum rc rc = model_config_load(&p->config, o->model_dir, err);
  if (rc == RC_OK) rc = pool_create(&p->pool, (int)o->threads, err);
  if (rc == RC_OK) rc = ops_create(&p->ops, FORMAT_BF16, &o->device, p->pool, err);
  if (rc == RC_OK) rc = model_create(&p->model, &p->config, p->ops, (int)o->context_max, err);
  if (rc != RC_OK) return rc;
  if (o->fit) memory_fit(o, p->model, true, pass_memory_plan);
  memory_choose_lanes(o, p->model, pass_memory_plan);
  log_info("on %s, kernels %s, %lld threads, %d passes side by side", p->ops->device, p->ops->name,
           (long long)o->threads, o->lanes);
  rc = pass_memory_check(p->model, o, err);
  if (rc == RC_OK) rc = pass_weights_create(&p->weights, p->model, err);
  if (rc == RC_OK && o->teaches) rc = pass_weights_load(&p->weights, o->model_dir, err);
  if (rc == RC_OK) p->loaded = p->weights.digest; /* no other thread is there yet */
  if (rc == RC_OK) rc = pass_work_create(&p->work, p->model, o->lanes, (int)o->chunk_tokens, err);
  return rc;
}

enum rc preprocessor_create(struct preprocessor **out, const struct trainer_options *options, struct err *err) {
  struct preprocessor *p = calloc(1, sizeof *p);
  *out = NULL;
  if (!p) return err_set(err, RC_NO_MEMORY, NULL, "the preprocessor was refused memory");
  p->options = *options;
  pthread_mutex_init(&p->mutex, NULL);
  cond_init(&p->changed);
  held_passes_init(&p->held);
  pass_intervals_init(&p->intervals, clock_monotonic_us());
  p->metric_computed = passes_metric("end=\"computed\"");
  p->metric_handed_back = passes_metric("end=\"handed_back\"");
  p->metric_lost = passes_metric("end=\"lost\"");
  p->metric_tokens = metrics_register(METRIC_COUNTER, "leasehold_preprocessor_tokens_total", "",
                                      "Trained tokens whose log-probabilities were computed");
  const enum rc rc = make(p, err);
  if (rc != RC_OK) {
    preprocessor_destroy(p);
    return rc;
  }
  *out = p;
  return RC_OK;
}

enum rc preprocessor_start(struct preprocessor *p, const struct preprocessor_tie *tie, struct err *err) {
  const bool fastest = p->options.device.exactness == EXACTNESS_FASTEST;
  p->tie = *tie;
  const struct registration_options registration = {
      .coordinator = tie->coordinator_url,
      .access = tie->access,
      .worker = {.name = tie->name,
                 .kind = WORKER_PREPROCESS,
                 .url = tie->advertise_url,
                 .exactness = fastest ? WORKER_FASTEST : WORKER_INVARIANT,
                 .device = p->options.device.cuda ? WORKER_CUDA : WORKER_CPU},
      .beat_at_once = true,
      .retry_ms_max = REGISTRATION_RETRY_MS,
      .registered = on_registered,
      .tell = tell,
      .answered = on_answer,
      .context = p};
  enum rc rc = http_client_create_for(&p->http, tie->access, &p->cancel, err);
  if (rc == RC_OK) rc = registration_start(&p->registration, &registration, err);
  if (rc != RC_OK) return rc;
  p->started = pthread_create(&p->thread, NULL, preprocessor_main, p) == 0;
  return p->started ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "the preprocessor's thread could not be started");
}

bool preprocessor_failed(struct preprocessor *p, struct err *why) {
  pthread_mutex_lock(&p->mutex);
  *why = p->failed;
  pthread_mutex_unlock(&p->mutex);
  return why->rc != RC_OK;
}

void preprocessor_stop(struct preprocessor *p) {
  pthread_mutex_lock(&p->mutex);
  p->stopping = true;
  pthread_cond_broadcast(&p->changed);
  pthread_mutex_unlock(&p->mutex);
  atomic_store(&p->cancel, true);
  if (p->registration) registration_leave(p->registration); /* first: others wait for what is held */
  if (p->started) pthread_join(p->thread, NULL);
  p->started = false;
  registration_stop(p->registration); /* the thread has asked it for a new registration until now */
  p->registration = NULL;
}

void preprocessor_destroy(struct preprocessor *p) {
  if (!p) return;
  if (p->started || p->registration) preprocessor_stop(p);
  http_client_destroy(p->http);
  pass_work_free(&p->work);
  pass_weights_free(&p->weights);
  model_free(p->model);
  ops_free(p->ops);
  pool_destroy(p->pool);
  free(p);
}

/* ---- what it answers ---- */

static void handle_readyz(struct http_request *r, void *context) {
  struct buf body = BUF_INIT;
  (void)context;
  buf_puts(&body, "{\"status\":\"ready\"}");
  http_reply_json(r, 200, &body);
}

const struct http_route preprocessor_routes[] = {
    {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .roles = HTTP_OPEN, .health = true},
    {.method = "GET", .path = "/readyz", .handler = handle_readyz, .roles = HTTP_OPEN, .health = true},
    {.method = "GET", .path = "/metrics", .handler = http_handle_metrics, .roles = HTTP_VIEWER, .health = true},
};
const size_t preprocessor_route_count = sizeof preprocessor_routes / sizeof preprocessor_routes[0];
