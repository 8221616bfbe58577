/* Makes an inner step's message, submits it to the trainer, and awaits the answer. */
#include "services/coordinator/driver/inner_step.h"

#include <stdlib.h>

#include "services/coordinator/driver/batch.h"
#include "services/coordinator/store/ids.h"

/* ---- making ---- */

enum rc step_groups(struct store *s, struct submit_step *m, int64_t run, int64_t round, struct arena *arena,
                    struct err *err) {
#define OF_STEP                                                                                                       \
  " FROM groups INDEXED BY groups_batch WHERE run = ?1 AND trained_in = ?2 AND batch IN (SELECT number FROM batches " \
  "WHERE run = ?1 AND round = ?2 AND step = ?3)"
  struct rows q;
  bool row;
  int64_t count = 0;
  enum rc rc =
      store_int(s, &count, err, "SELECT count(*)" OF_STEP, BINDS(b_int(run), b_int(round), b_int(m->after_steps)));
  if (rc != RC_OK) return rc;
  m->groups = arena_alloc(arena, (size_t)count + 1, sizeof *m->groups);
  if (!m->groups) return err_set(err, RC_NO_MEMORY, NULL, "a step's groups were refused memory");
  rc = store_query(s, &q, err, "SELECT round, ordinal" OF_STEP " ORDER BY round, ordinal",
                   BINDS(b_int(run), b_int(round), b_int(m->after_steps)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row && (int64_t)m->group_count < count) {
    const char *id = arena_strdup(arena, id_group(run, rows_int(&q, 0), rows_int(&q, 1)).text);
    if (!id) rc = err_set(err, RC_NO_MEMORY, NULL, "a step's groups were refused memory");
    m->groups[m->group_count++] = id;
  }
  rows_end(&q);
  return rc;
#undef OF_STEP
}

static enum rc denominator_read(struct inner_step *i, struct store *s, struct err *err) {
  struct rows q;
  bool row = false;
  enum rc rc =
      store_query(s, &q, err, "SELECT denominator FROM inner_steps WHERE run = ?1 AND round = ?2 AND step = ?3",
                  BINDS(b_int(i->run), b_int(i->round), b_int(i->step)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) i->message.denominator = rows_real(&q, 0);
  rows_end(&q);
  return rc;
}

static enum rc message_fill(struct inner_step *i, struct readers *readers, struct run_context *context,
                            const struct trainer_target *trainer, const struct inner_step_place *place,
                            struct err *err) {
  struct store *s;
  struct submit_step *m = &i->message;
  *m = (struct submit_step){.step_id = arena_strdup(&i->arena, id_inner_step(i->run, i->round, i->step).text),
                            .run = arena_strdup(&i->arena, id_run(i->run).text),
                            .epoch = trainer->epoch,
                            .fence = trainer->fence,
                            .version = place->version,
                            .inner = true,
                            .after_steps = (int32_t)i->step,
                            .stage_timeout_ms = context->config.stage_timeout_ms};
  if (!m->step_id || !m->run) return err_set(err, RC_NO_MEMORY, NULL, "a step was refused memory");
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = denominator_read(i, s, err);
  if (rc == RC_OK) rc = step_groups(s, m, i->run, i->round, &i->arena, err);
  readers_give(readers, s);
  return rc;
}

enum rc inner_step_make(struct inner_step **out, struct readers *readers, struct run_context *context,
                        const struct trainer_target *trainer, const struct inner_step_place *place, struct err *err) {
  struct inner_step *i = calloc(1, sizeof *i);
  if (!i) return err_set(err, RC_NO_MEMORY, NULL, "a step was refused memory");
  i->run = context->run;
  i->round = place->round;
  i->step = place->step;
  i->trainer_worker = trainer->worker;
  i->by_tokens = run_counts_tokens(&context->config);
  memcpy(i->url, trainer->url, sizeof i->url);
  const enum rc rc = message_fill(i, readers, context, trainer, place, err);
  if (rc != RC_OK) {
    inner_step_free(i);
    return rc;
  }
  *out = i;
  return RC_OK;
}

void inner_step_free(struct inner_step *s) {
  if (!s) return;
  arena_free(&s->arena);
  free(s);
}

/* ---- at the trainer ---- */

enum rc step_submit_once(const struct trainer_client *t, const struct submit_step *m, struct step_status *status,
                         struct arena *arena, struct err *err) {
  const enum rc rc = trainer_step_status(t, m->step_id, 0, status, arena, CALL_MS, err);
  const bool failed = rc == RC_OK && status->state == JOB_FAILED;
  return rc == RC_NOT_FOUND || failed ? trainer_submit_step(t, m, SUBMIT_MS, err) : rc;
}

enum rc step_failed(const struct step_status *status, const char *step_id, bool replayed, struct err *err) {
  return err_set(err, status->error.rc == RC_IO ? RC_IO : RC_CONFLICT, NULL, "the trainer failed step %s%s: %.300s",
                 step_id, replayed ? " when it was replayed" : "", status->error.message);
}

enum rc inner_step_submit(const struct inner_step *s, struct http_client *http, struct err *err) {
  const struct trainer_client t = {.http = http, .base_url = s->url};
  struct arena arena = ARENA_INIT;
  struct step_status status;
  const enum rc rc = step_submit_once(&t, &s->message, &status, &arena, err);
  arena_free(&arena);
  return rc;
}

enum rc inner_step_await(const struct inner_step *s, struct http_client *http, const atomic_bool *cancel,
                         struct step_status *status, struct arena *arena, struct err *err) {
  const struct trainer_client t = {.http = http, .base_url = s->url};
  const char *id = s->message.step_id;
  for (;;) {
    if (atomic_load(cancel)) return err_set(err, RC_UNAVAILABLE, NULL, "waiting for step %s was given up", id);
    arena_free(arena);
    *arena = (struct arena)ARENA_INIT;
    const enum rc rc = trainer_step_status(&t, id, POLL_MS, status, arena, POLL_MS + CALL_MS, err);
    if (rc != RC_OK || status->state == JOB_DONE) return rc;
    if (status->state == JOB_FAILED) return step_failed(status, id, false, err);
  }
}
