/* Has samples checked by the trainer: see sample_checks.h. */
#include "services/coordinator/checks/sample_checks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "common/client/trainer_client.h"
#include "services/coordinator/checks/settle.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/run/round_work.h"
#include "services/coordinator/trainer/trainer_target.h"

/* IDLE_MS: between two looks when no commit says that a group waits, as after a pause.  TROUBLE_MS: after a check that
 * came to nothing. */
enum {
  CHECKERS = 2,
  IDLE_MS = 200,
  TROUBLE_MS = 100,
  TOLD_MS = 5000,
  POLL_MS = 2000,
  CALL_MS = 10000,
  SUBMIT_MS = 120000
};

struct checker {
  struct sample_checks *all;
  struct http_client *http;
  pthread_t thread;
  bool runs;
  struct taken_groups taken; /* [all->lock] of the check in hand */
};

struct sample_checks {
  struct core *core;
  struct checker checkers[CHECKERS];
  atomic_bool stopping; /* cuts the calls in hand short, too */
  atomic_llong number;  /* of the next check: ids are of this start and used once */
  pthread_mutex_t lock; /* guards all below */
  pthread_cond_t wake;
  bool due;    /* more groups wait than when the last checker looked */
  int resting; /* checkers */
  struct found_sample *doubted; /* [doubted_count] that differed when they were checked last; of one round */
  size_t doubted_count;
  int64_t doubted_run, doubted_round, told_ms;
};

/* ---- one check ---- */

/* Whole log-probabilities travel only where something differs. */
static enum rc ask(struct checker *k, const struct trainer_target *trainer, struct check *c, struct arena *arena,
                   struct err *err) {
  struct sample_checks *t = k->all;
  const struct trainer_client client = {.http = k->http, .base_url = trainer->url};
  char id[LIMIT_NAME_MAX];
  snprintf(id, sizeof id, "r%" PRId64 ".%" PRId64 ".c%" PRIu64 ".%lld", c->run, c->round, core_epoch(t->core),
           (long long)atomic_fetch_add(&t->number, 1));
  c->message.batch_id = id;
  c->message.epoch = trainer->epoch;
  c->message.fence = trainer->fence;
  enum rc rc = trainer_submit_batch(&client, &c->message, SUBMIT_MS, err);
  struct batch_status status = {.state = JOB_QUEUED};
  while (rc == RC_OK && status.state != JOB_DONE) {
    if (atomic_load(&t->stopping)) return err_set(err, RC_UNAVAILABLE, NULL, "check %s was given up", id);
    rc = trainer_batch_status(&client, id, POLL_MS, false, &status, arena, POLL_MS + CALL_MS, err);
    if (rc == RC_OK && status.state == JOB_FAILED)
      rc = err_set(err, RC_UNAVAILABLE, NULL, "the trainer failed check %s: %.300s", id, status.error.message);
  }
  if (rc == RC_OK && !check_agrees(c, &status, arena)) {
    rc = trainer_batch_status(&client, id, 0, true, &status, arena, CALL_MS, err);
    if (rc == RC_OK) rc = check_compare(c, &status, err);
  }
  c->message.batch_id = NULL;
  return rc;
}

static bool has_group(const struct check *c, int64_t group) {
  for (size_t g = 0; g < c->message.group_count; g++)
    if (c->message.groups[g].ordinal == group) return true;
  return false;
}

/* What differed in the same way when it was checked last is confirmed; what differs now is remembered.  lock held */
static enum rc confirm(struct sample_checks *t, struct check *c, struct err *err) {
  const bool same_round = t->doubted_run == c->run && t->doubted_round == c->round;
  const size_t kept = same_round ? t->doubted_count : 0;
  size_t n = 0;
  for (size_t i = 0; i < c->count; i++) n += c->found[i].shown >= 0;
  if (n == 0 && kept == 0) return RC_OK;
  struct found_sample *now = malloc((n + kept) * sizeof *now);
  if (!now) return err_set(err, RC_NO_MEMORY, NULL, "what %zu samples differ in was refused memory", n);
  n = 0;
  for (size_t k = 0; k < kept; k++)
    if (!has_group(c, t->doubted[k].group)) now[n++] = t->doubted[k];
  for (size_t i = 0; i < c->count; i++) {
    struct found_sample *f = &c->found[i];
    if (f->shown < 0) continue;
    for (size_t k = 0; k < kept; k++) f->confirmed |= check_same(f, &t->doubted[k]);
    now[n++] = *f;
  }
  free(t->doubted);
  t->doubted = now;
  t->doubted_count = n;
  t->doubted_run = c->run;
  t->doubted_round = c->round;
  return RC_OK;
}

static enum rc settle(struct sample_checks *t, const struct check *c, int64_t trainer, struct err *err) {
  struct command *cmd = command_new(settle_execute, sizeof(struct settle_message));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct found_sample *found = arena_alloc(&cmd->arena, c->count + 1, sizeof *found);
  if (!found) {
    command_free(cmd);
    return err_set(err, RC_NO_MEMORY, NULL, "a check's findings were refused memory");
  }
  memcpy(found, c->found, c->count * sizeof *found);
  *(struct settle_message *)cmd->message = (struct settle_message){
      .run = c->run, .round = c->round, .version = c->version, .trainer = trainer, .found = found, .count = c->count};
  return core_call(t->core, cmd, err);
}

static const struct taken_groups *others(const struct checker *k) {
  return &k->all->checkers[k == &k->all->checkers[0]].taken;
}

/* Reads a check of groups that the other checker does not have in hand, and takes them.  What it has settled is
 * committed before it lets go of the lock, so that no snapshot shows that as waiting. */
static enum rc take(struct checker *k, const struct run_context *x, struct check *c, struct trainer_target *trainer,
                    struct arena *arena, struct err *err) {
  struct sample_checks *t = k->all;
  struct store *s;
  int64_t running = 0;
  enum rc rc = readers_take(core_readers(t->core), &s, err);
  if (rc != RC_OK) return rc;
  pthread_mutex_lock(&t->lock);
  rc = store_int(s, &running, err, "SELECT state = ?2 FROM runs WHERE id = ?1",
                 BINDS(b_int(x->run), b_int(RUN_RUNNING)));
  if (rc == RC_OK && running) rc = trainer_target_read(s, trainer, err);
  if (rc == RC_OK && trainer->found)
    rc = check_read(c, s, x, core_options(t->core)->batch_tokens, others(k), arena, err);
  k->taken.count = 0;
  for (size_t g = 0; g < c->message.group_count && rc == RC_OK; g++) {
    k->taken.ordinals[k->taken.count++] = c->message.groups[g].ordinal;
    if (trainer->fastest) c->message.groups[g].ahead = false;
  }
  k->taken.run = c->run;
  k->taken.round = c->round;
  pthread_mutex_unlock(&t->lock);
  readers_give(core_readers(t->core), s);
  return rc;
}

static void let_go(struct checker *k) {
  pthread_mutex_lock(&k->all->lock);
  k->taken.count = 0;
  pthread_mutex_unlock(&k->all->lock);
}

/* *found: there was something to check. */
static enum rc check_once(struct checker *k, const struct run_context *x, bool *found, struct arena *arena,
                          struct err *err) {
  struct sample_checks *t = k->all;
  struct check c = {0};
  struct trainer_target trainer = {0};
  enum rc rc = take(k, x, &c, &trainer, arena, err);
  *found = c.message.group_count > 0;
  if (rc != RC_OK || !*found) return rc;
  round_work(x, c.round, -1);
  rc = ask(k, &trainer, &c, arena, err);
  if (rc == RC_OK) {
    pthread_mutex_lock(&t->lock);
    rc = confirm(t, &c, err);
    pthread_mutex_unlock(&t->lock);
  }
  if (rc == RC_OK) rc = settle(t, &c, trainer.worker, err);
  let_go(k);
  return rc;
}

/* ---- the threads ---- */

/* Nothing of the run is trained on before it is checked, so the driver tells what lasts (driver/trouble.c). */
static void tell(struct sample_checks *t, int64_t run, const struct err *err) {
  const int64_t now_ms = core_monotonic_ms(t->core);
  rounds_checks_note(t->core, run, err->message);
  pthread_mutex_lock(&t->lock);
  const bool tells = now_ms - t->told_ms >= TOLD_MS;
  if (tells) t->told_ms = now_ms;
  pthread_mutex_unlock(&t->lock);
  if (tells) log_info("samples could not be checked, trying again: %s", err->message);
}

/* Whether there may be more at once. */
static bool turn(struct checker *k) {
  struct sample_checks *t = k->all;
  struct run_context *x = rounds_context_keep(t->core);
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  bool found = false;
  const int64_t run = x ? x->run : 0;
  enum rc rc = RC_OK;
  if (x && run_checks_groups(&x->config)) rc = check_once(k, x, &found, &arena, &err);
  arena_free(&arena);
  run_context_release(x);
  if (rc == RC_OK && found) rounds_checks_note(t->core, run, NULL);
  if (rc == RC_OK || atomic_load(&t->stopping)) return found;
  tell(t, run, &err);
  clock_sleep_ms(TROUBLE_MS);
  return true;
}

static void rest(struct sample_checks *t) {
  struct timespec until = clock_deadline_in(IDLE_MS);
  pthread_mutex_lock(&t->lock);
  core_await_checks(t->core, ++t->resting == CHECKERS);
  while (!t->due && !atomic_load(&t->stopping) && pthread_cond_timedwait(&t->wake, &t->lock, &until) == 0) continue;
  core_await_checks(t->core, --t->resting == CHECKERS);
  t->due = false;
  pthread_mutex_unlock(&t->lock);
}

/* For the writer, behind a commit. */
static void wake(void *context) {
  struct sample_checks *t = context;
  pthread_mutex_lock(&t->lock);
  t->due = true;
  pthread_cond_signal(&t->wake);
  pthread_mutex_unlock(&t->lock);
}

static void *thread_main(void *context) {
  struct checker *k = context;
  while (!atomic_load(&k->all->stopping))
    if (!turn(k)) rest(k->all);
  return NULL;
}

enum rc sample_checks_start(struct sample_checks **out, struct core *core, struct err *err) {
  struct sample_checks *t = calloc(1, sizeof *t);
  enum rc rc = RC_OK;
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "the state for checks was refused memory");
  t->core = core;
  t->told_ms = -TOLD_MS;
  pthread_mutex_init(&t->lock, NULL);
  cond_init(&t->wake);
  for (int i = 0; i < CHECKERS && rc == RC_OK; i++) {
    struct checker *k = &t->checkers[i];
    k->all = t;
    rc = http_client_create_for(&k->http, core_options(core)->access, &t->stopping, err);
    if (rc != RC_OK) break;
    k->runs = pthread_create(&k->thread, NULL, thread_main, k) == 0;
    if (!k->runs) rc = err_set(err, RC_NO_MEMORY, NULL, "a thread for checks could not be started");
  }
  if (rc != RC_OK) {
    sample_checks_stop(t);
    sample_checks_destroy(t);
    return rc;
  }
  core_set_check(core, wake, t);
  *out = t;
  return RC_OK;
}

void sample_checks_stop(struct sample_checks *t) {
  if (!t) return;
  atomic_store(&t->stopping, true);
  pthread_mutex_lock(&t->lock);
  pthread_cond_broadcast(&t->wake);
  pthread_mutex_unlock(&t->lock);
  for (int i = 0; i < CHECKERS; i++)
    if (t->checkers[i].runs) pthread_join(t->checkers[i].thread, NULL);
}

void sample_checks_destroy(struct sample_checks *t) {
  if (!t) return;
  for (int i = 0; i < CHECKERS; i++) http_client_destroy(t->checkers[i].http);
  pthread_cond_destroy(&t->wake);
  pthread_mutex_destroy(&t->lock);
  free(t->doubted);
  free(t);
}
