/* Has samples checked by the trainer: see sample_checks.h. */
#include "services/coordinator/checks/sample_checks.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/client/trainer_client.h"
#include "services/coordinator/checks/settle.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/trainer/trainer_target.h"

/* LOOK_MS: between two looks while a group is known to wait, or to be about to; SOON_MS: for so long.  IDLE_MS: between two
 * otherwise.  TROUBLE_MS: after a check that came to nothing. */
enum { LOOK_MS = 2, SOON_MS = 100, IDLE_MS = 200, TROUBLE_MS = 100, TOLD_MS = 5000, POLL_MS = 2000, CALL_MS = 10000, SUBMIT_MS = 120000 };

struct sample_checks {
  struct core *core;
  struct http_client *http;
  pthread_t thread;
  bool runs;
  atomic_bool stopping; /* cuts the call in hand short, too */
  int64_t number;       /* of the next check: ids are of this start and used once */
  struct found_sample *doubted; /* [doubted_count] that differed in the last check */
  size_t doubted_count;
  unsigned seen; /* rounds_unchecked, at the last look */
  int64_t soon_until_ms, looked_ms;
  int64_t told_ms;
};

/* ---- one check ---- */

/* Whole log-probabilities travel only where something differs. */
static enum rc ask(struct sample_checks *t, const struct trainer_target *trainer, struct check *c, struct arena *arena,
                   struct err *err) {
  const struct trainer_client client = {.http = t->http, .base_url = trainer->url};
  char id[LIMIT_NAME_MAX];
  snprintf(id, sizeof id, "r%" PRId64 ".%" PRId64 ".c%" PRIu64 ".%" PRId64, c->run, c->round, core_epoch(t->core),
           t->number++);
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

/* What differed in the last check in the same way is confirmed; what differs now is remembered. */
static enum rc confirm(struct sample_checks *t, struct check *c, struct err *err) {
  size_t n = 0;
  for (size_t i = 0; i < c->count; i++) n += c->found[i].shown >= 0;
  struct found_sample *now = n ? malloc(n * sizeof *now) : NULL;
  if (n && !now) return err_set(err, RC_NO_MEMORY, NULL, "what %zu samples differ in was refused memory", n);
  n = 0;
  for (size_t i = 0; i < c->count; i++) {
    struct found_sample *f = &c->found[i];
    if (f->shown < 0) continue;
    for (size_t k = 0; k < t->doubted_count; k++) f->confirmed |= check_same(f, &t->doubted[k]);
    now[n++] = *f;
  }
  free(t->doubted);
  t->doubted = now;
  t->doubted_count = n;
  return RC_OK;
}

static enum rc settle(struct sample_checks *t, const struct check *c, struct err *err) {
  struct command *cmd = command_new(settle_execute, sizeof(struct settle_message));
  if (!cmd) return err_set(err, RC_NO_MEMORY, NULL, "a command was refused memory");
  struct found_sample *found = arena_alloc(&cmd->arena, c->count + 1, sizeof *found);
  if (!found) {
    command_free(cmd);
    return err_set(err, RC_NO_MEMORY, NULL, "a check's findings were refused memory");
  }
  memcpy(found, c->found, c->count * sizeof *found);
  *(struct settle_message *)cmd->message = (struct settle_message){
      .run = c->run, .round = c->round, .version = c->version, .found = found, .count = c->count};
  return core_call(t->core, cmd, err);
}

/* *found: there was something to check. */
static enum rc check_once(struct sample_checks *t, const struct run_context *x, bool *found, struct arena *arena,
                          struct err *err) {
  struct store *s;
  struct check c = {0};
  struct trainer_target trainer = {0};
  int64_t running = 0;
  enum rc rc = readers_take(core_readers(t->core), &s, err);
  if (rc != RC_OK) return rc;
  rc = store_int(s, &running, err, "SELECT state = ?2 FROM runs WHERE id = ?1", BINDS(b_int(x->run), b_int(RUN_RUNNING)));
  if (rc == RC_OK && running) rc = trainer_target_read(s, &trainer, err);
  if (rc == RC_OK && trainer.found) rc = check_read(&c, s, x, core_options(t->core)->batch_tokens, arena, err);
  readers_give(core_readers(t->core), s);
  *found = c.message.group_count > 0;
  for (size_t g = 0; g < c.message.group_count && trainer.fastest; g++) c.message.groups[g].ahead = false;
  if (rc != RC_OK || !*found) return rc;
  rc = ask(t, &trainer, &c, arena, err);
  if (rc == RC_OK) rc = confirm(t, &c, err);
  return rc == RC_OK ? settle(t, &c, err) : rc;
}

/* ---- the thread ---- */

static void tell(struct sample_checks *t, const struct err *err) {
  const int64_t now_ms = core_monotonic_ms(t->core);
  if (now_ms - t->told_ms < TOLD_MS) return;
  t->told_ms = now_ms;
  log_info("samples could not be checked, trying again: %s", err->message);
}

/* The database is asked when something may be there; and now and then, in case it was slow. */
static bool is_due(struct sample_checks *t, int64_t now_ms) {
  const unsigned unchecked = rounds_unchecked(t->core);
  if (unchecked != t->seen) t->soon_until_ms = now_ms + SOON_MS;
  t->seen = unchecked;
  if (now_ms >= t->soon_until_ms && now_ms - t->looked_ms < IDLE_MS) return false;
  t->looked_ms = now_ms;
  return true;
}

/* Returns how long to rest. */
static int64_t turn(struct sample_checks *t) {
  const int64_t now_ms = core_monotonic_ms(t->core);
  struct run_context *x = rounds_context_keep(t->core);
  struct arena arena = ARENA_INIT;
  struct err err = {0};
  bool found = false;
  if (!x || !run_checks_samples(&x->config)) {
    run_context_release(x);
    return IDLE_MS;
  }
  const enum rc rc = is_due(t, now_ms) ? check_once(t, x, &found, &arena, &err) : RC_OK;
  if (found) t->soon_until_ms = core_monotonic_ms(t->core) + SOON_MS; /* what differs must be found again; others may have come */
  if (rc != RC_OK && !atomic_load(&t->stopping)) tell(t, &err);
  arena_free(&arena);
  run_context_release(x);
  return rc != RC_OK ? TROUBLE_MS : found ? 0 : LOOK_MS;
}

static void *thread_main(void *context) {
  struct sample_checks *t = context;
  while (!atomic_load(&t->stopping)) {
    const int64_t rest_ms = turn(t);
    if (rest_ms > 0) clock_sleep_ms(rest_ms);
  }
  return NULL;
}

enum rc sample_checks_start(struct sample_checks **out, struct core *core, struct err *err) {
  struct sample_checks *t = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "the state for checks was refused memory");
  t->core = core;
  t->told_ms = -TOLD_MS;
  enum rc rc = http_client_create_for(&t->http, core_options(core)->access, &t->stopping, err);
  if (rc == RC_OK) {
    t->runs = pthread_create(&t->thread, NULL, thread_main, t) == 0;
    if (!t->runs) rc = err_set(err, RC_NO_MEMORY, NULL, "the thread for checks could not be started");
  }
  if (rc != RC_OK) {
    sample_checks_stop(t);
    return rc;
  }
  *out = t;
  return RC_OK;
}

void sample_checks_stop(struct sample_checks *t) {
  if (!t) return;
  atomic_store(&t->stopping, true);
  if (t->runs) pthread_join(t->thread, NULL);
  http_client_destroy(t->http);
  free(t->doubted);
  free(t);
}
