/* The thread that checks large datasets: takes the oldest run in state `checking`, and moves it to `queued` or
 * `failed`. */
#include "services/coordinator/driver/late_check.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/queue.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/trainer/run_check.h"
#include "services/coordinator/writer/core_state.h"

/* LOOK_MS: between two looks for a run.  SHOWN_MS: between two looks at the run that is checked, where its progress is
 * stored. */
enum { LOOK_MS = 250, SHOWN_MS = 1000 };

struct late_check {
  struct core *core;
  pthread_t thread;
  bool started;
  atomic_bool stopping;
  pthread_mutex_t lock; /* for `wake` alone */
  pthread_cond_t wake;
  /* of the check in hand, on the thread */
  int64_t run;
  int64_t shown_ms;
  bool gone; /* the run was stopped */
};

/* ---- commands ---- */

struct verdict_message {
  int64_t run;
  enum { FOUND_GOOD, FOUND_BAD, STILL_CHECKED } verdict;
  const char *text; /* why it is bad; how far the check is */
};

/* A run that was stopped meanwhile stays stopped. */
static enum rc verdict_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct verdict_message *m = cmd->message;
  enum run_state state = RUN_QUEUED;
  enum rc rc = run_state_of(c->store, m->run, &state, err);
  if (rc != RC_OK || state != RUN_CHECKING) return rc;
  if (m->verdict == FOUND_GOOD) return run_move(c, m->run, RUN_QUEUED, NULL, err);
  if (m->verdict == FOUND_BAD) return run_end(c, m->run, RUN_FAILED, m->text, err);
  return run_waits(c, m->run, m->text, err);
}

static enum rc tell(struct late_check *l, struct verdict_message m, struct err *err) {
  struct command *cmd = command_new(verdict_execute, sizeof m);
  if (cmd) {
    if (m.text) m.text = arena_strdup(&cmd->arena, m.text);
    *(struct verdict_message *)cmd->message = m;
  }
  return core_call(l->core, cmd, err);
}

/* ---- one run ---- */

static void wait_ms(struct late_check *l, int64_t ms) {
  const struct timespec deadline = clock_deadline_in(ms);
  pthread_mutex_lock(&l->lock);
  while (!atomic_load(&l->stopping) && pthread_cond_timedwait(&l->wake, &l->lock, &deadline) == 0) continue;
  pthread_mutex_unlock(&l->lock);
}

static void show(struct late_check *l, const char *text) {
  struct err err = {0};
  if (tell(l, (struct verdict_message){.run = l->run, .verdict = STILL_CHECKED, .text = text}, &err) != RC_OK)
    log_warn("the progress of run %s's check could not be stored: %s", id_run(l->run).text, err.message);
}

static bool is_checking(struct late_check *l) {
  struct store *s;
  enum run_state state = RUN_CHECKING;
  if (readers_take(core_readers(l->core), &s, NULL) != RC_OK) return true;
  run_state_of(s, l->run, &state, NULL);
  readers_give(core_readers(l->core), s);
  return state == RUN_CHECKING;
}

/* Shows how far the check is; false when nobody wants it any more. */
static bool go_on(void *context, const char *name, int lines) {
  struct late_check *l = context;
  const int64_t now_ms = core_monotonic_ms(l->core);
  char text[ERR_MESSAGE_MAX];
  if (atomic_load(&l->stopping)) return false;
  if (now_ms - l->shown_ms < SHOWN_MS) return true;
  l->shown_ms = now_ms;
  l->gone = !is_checking(l);
  if (l->gone) return false;
  snprintf(text, sizeof text, "the check of %s: %d lines were read", name, lines);
  show(l, text);
  return true;
}

/* What is wrong with the run itself, and not with this moment. */
static bool is_refusal(enum rc rc) {
  return rc == RC_INVALID || rc == RC_TOO_LARGE || rc == RC_UNSUPPORTED || rc == RC_NOT_FOUND;
}

static enum rc check(struct late_check *l, const char *text, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct run_config config;
  const struct dataset_watch watch = {go_on, l};
  enum rc rc = run_config_parse_stored(&config, text, strlen(text), &arena, err);
  if (rc == RC_OK)
    rc = run_check(l->core, &config, &(struct run_check_bounds){.watch = &watch, .stopping = &l->stopping}, err);
  arena_free(&arena);
  return rc;
}

/* Returns whether the run has its verdict, or needs none any more. */
static bool judge(struct late_check *l, const char *config) {
  char why[ERR_FIELD_MAX + ERR_MESSAGE_MAX + 2];
  struct err err = {0};
  const enum rc found = check(l, config, &err);
  if (l->gone || atomic_load(&l->stopping)) return true;
  snprintf(why, sizeof why, "%s%s%s", err.field, err.field[0] ? ": " : "", err.message);
  enum rc rc = RC_OK;
  if (found == RC_OK)
    rc = tell(l, (struct verdict_message){.run = l->run, .verdict = FOUND_GOOD}, &err);
  else if (is_refusal(found))
    rc = tell(l, (struct verdict_message){.run = l->run, .verdict = FOUND_BAD, .text = why}, &err);
  else
    show(l, why);
  if (rc != RC_OK)
    log_warn("the result of run %s's check could not be stored: %s", id_run(l->run).text, err.message);
  return rc == RC_OK && (found == RC_OK || is_refusal(found));
}

/* The oldest run to check, and its configuration, which the caller frees; run 0: there is none. */
static enum rc find(struct late_check *l, char **config, struct err *err) {
  struct store *s;
  struct rows q;
  bool row = false;
  l->run = 0;
  enum rc rc = readers_take(core_readers(l->core), &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT id, config FROM runs WHERE state = ?1 ORDER BY id LIMIT 1",
                   BINDS(b_int(RUN_CHECKING)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    l->run = rows_int(&q, 0);
    *config = strdup(rows_text(&q, 1, NULL));
    if (!*config) rc = err_set(err, RC_NO_MEMORY, NULL, "a run's configuration was refused memory");
  }
  rows_end(&q);
  readers_give(core_readers(l->core), s);
  return rc;
}

static void *late_check_main(void *context) {
  struct late_check *l = context;
  while (!atomic_load(&l->stopping)) {
    char *config = NULL;
    struct err err = {0};
    bool more = false;
    l->gone = false;
    l->shown_ms = core_monotonic_ms(l->core);
    const enum rc rc = find(l, &config, &err);
    log_context_clear();
    if (l->run) log_context_id(id_run(l->run).text);
    if (rc == RC_OK && l->run) more = judge(l, config);
    free(config);
    if (!more) wait_ms(l, l->run ? SHOWN_MS : LOOK_MS);
  }
  return NULL;
}

enum rc late_check_start(struct late_check **out, struct core *core, struct err *err) {
  struct late_check *l = calloc(1, sizeof *l);
  if (!l) return err_set(err, RC_NO_MEMORY, NULL, "the state of the datasets' checks was refused memory");
  l->core = core;
  pthread_mutex_init(&l->lock, NULL);
  cond_init(&l->wake);
  l->started = pthread_create(&l->thread, NULL, late_check_main, l) == 0;
  if (!l->started) {
    late_check_stop(l);
    return err_set(err, RC_NO_MEMORY, NULL, "the thread for the datasets' checks could not be started");
  }
  *out = l;
  return RC_OK;
}

void late_check_stop(struct late_check *l) {
  if (!l) return;
  pthread_mutex_lock(&l->lock);
  atomic_store(&l->stopping, true);
  pthread_cond_broadcast(&l->wake);
  pthread_mutex_unlock(&l->lock);
  if (l->started) pthread_join(l->thread, NULL);
  pthread_cond_destroy(&l->wake);
  pthread_mutex_destroy(&l->lock);
  free(l);
}
