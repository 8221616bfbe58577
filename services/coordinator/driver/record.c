/* Replays a recorded run and those that it starts from, one after the other, at the trainer that registers. */
#include "services/coordinator/driver/record.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "services/coordinator/driver/replay.h"
#include "services/coordinator/driver/start.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core.h"

enum { RUNS_MAX = 64, OPEN_MS = 120000, WAIT_MS = 100, PLACE_MS = 60000 };

/* A run, and the version up to which it is wanted. */
struct part {
  int64_t run, version;
};

/* ---- which runs ---- */

static enum rc part_read(struct driver *d, int64_t run, int64_t version, struct active_run *out, struct err *err) {
  struct store *s;
  struct rows q;
  bool row = false;
  *out = (struct active_run){.found = true, .run = run, .has_version = true};
  enum rc rc = readers_take(driver_readers(d), &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(
      s, &q, err,
      "SELECT config, rounds, coalesce((SELECT max(version) FROM versions WHERE run = id), -1) FROM runs WHERE "
      "id = ?1",
      BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    out->config = strdup(rows_text(&q, 0, NULL));
    out->rounds = rows_int(&q, 1);
    out->version = version >= 0 && version < rows_int(&q, 2) ? version : rows_int(&q, 2);
    if (!out->config) rc = err_set(err, RC_NO_MEMORY, NULL, "a run's configuration was refused memory");
  }
  rows_end(&q);
  readers_give(driver_readers(d), s);
  if (rc == RC_OK && !row) return err_set(err, RC_NOT_FOUND, "replay", "there is no run %s", id_run(run).text);
  if (rc == RC_OK && out->version < 0)
    return err_set(err, RC_NOT_FOUND, "replay", "run %s has not begun: there is nothing to replay", id_run(run).text);
  if (rc == RC_OK && out->version < version)
    return err_set(err, RC_NOT_FOUND, "replay", "run %s has versions up to %" PRId64 ", not %" PRId64, id_run(run).text,
                   out->version, version);
  return rc == RC_OK ? look_digest(driver_readers(d), run, out->version, &out->digest, err) : rc;
}

/* What the trainer held: the version that was noted when the run began; in runs from before that was, the newest of the
 * run that had trained before.  run 0: none had. */
static enum rc held_before(struct driver *d, int64_t run, struct part *out, struct err *err) {
  struct store *s;
  struct rows q;
  bool row = false;
  enum rc rc = readers_take(driver_readers(d), &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT origin_run, origin_version FROM runs WHERE id = ?1 AND origin_run NOT NULL",
                   BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) *out = (struct part){.run = rows_int(&q, 0), .version = rows_int(&q, 1)};
  rows_end(&q);
  if (rc == RC_OK && !row)
    rc = store_int(
        s, &out->run, err,
        "SELECT coalesce(max(id), 0) FROM runs WHERE id < ?1 AND EXISTS (SELECT 1 FROM versions WHERE run = id "
        "AND version > 0)",
        BINDS(b_int(run)));
  readers_give(driver_readers(d), s);
  return rc;
}

/* What the run's version 0 came from; run 0: the model's folder. */
static enum rc part_before(struct driver *d, int64_t run, const struct run_start *start, struct part *out,
                           struct err *err) {
  *out = (struct part){.run = 0, .version = -1};
  switch (start->from) {
    case START_MODEL: return RC_OK;
    case START_UNNAMED:
    case START_CURRENT: return held_before(d, run, out, err);
    case START_CHECKPOINT: break;
  }
  out->version = start->version;
  return id_parse_run(&out->run, start->run, err);
}

/* ---- one run ---- */

static enum rc trainer_await(struct driver *d, struct err *err) {
  d->trainer.found = false;
  while (!atomic_load(&d->stopping)) {
    const enum rc rc = trainer_target_now(driver_readers(d), &d->trainer, err);
    if (rc != RC_OK || d->trainer.found) return rc;
    clock_sleep_ms(WAIT_MS);
  }
  return err_set(err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
}

/* The place may be kept for the trainer of the record, which does not come, and this one does not hold it before that
 * is over and it has heard of it. */
static enum rc open_patiently(struct driver *d, const struct open_run *m, struct open_run_answer *answer,
                              struct arena *arena, struct err *err) {
  const struct trainer_client t = driver_trainer(d);
  const int64_t until_ms = core_monotonic_ms(d->core) + PLACE_MS;
  for (;;) {
    const enum rc rc = trainer_open_run(&t, m, answer, arena, OPEN_MS, err);
    if ((rc != RC_CONFLICT && rc != RC_UNAVAILABLE) || core_monotonic_ms(d->core) > until_ms) return rc;
    if (atomic_load(&d->stopping)) return rc;
    clock_sleep_ms(WAIT_MS);
  }
}

static enum rc part_open(struct driver *d, const struct active_run *a, int64_t *held, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct open_run_answer answer;
  struct digest recorded;
  char theirs[DIGEST_HEX_MAX], ours[DIGEST_HEX_MAX];
  const struct id_text id = id_run(a->run);
  const struct open_run m = {.run = id.text,
                             .epoch = d->trainer.epoch,
                             .fence = d->trainer.fence,
                             .seed = d->context->config.seed,
                             .current_version = a->version,
                             .start = d->context->config.start,
                             .training = d->context->config.training};
  enum rc rc = open_patiently(d, &m, &answer, &arena, err);
  if (rc == RC_OK) {
    *held = answer.version;
    rc = look_digest(driver_readers(d), a->run, answer.version, &recorded, err);
  }
  if (rc == RC_OK && !digest_equal(&recorded, &answer.digest)) {
    digest_hex(theirs, &answer.digest);
    digest_hex(ours, &recorded);
    rc = err_set(err, RC_CONFLICT, "replay",
                 "run %s, version %" PRId64
                 ": the trainer has digest %.12s, the recorded one is %.12s: start it with an "
                 "empty --state-dir and with the model that the run began with",
                 id.text, answer.version, theirs, ours);
  }
  arena_free(&arena);
  return rc;
}

static enum rc part_replay(struct driver *d, struct active_run *a, struct err *err) {
  int64_t held = 0;
  char hex[DIGEST_HEX_MAX];
  enum rc rc = part_open(d, a, &held, err);
  if (rc == RC_OK && held < a->version) rc = replay_run(d, a, held, err);
  if (rc != RC_OK) return rc;
  digest_hex(hex, &a->digest);
  log_info("run %s: replayed to version %" PRId64 ", digest %s, as recorded", id_run(a->run).text, a->version, hex);
  return RC_OK;
}

/* The configuration says what comes before, and the context reads it; so each run's is made on the way back, and again
 * on the way forth. */
static enum rc chain_find(struct driver *d, int64_t run, struct part *parts, int *count, struct err *err) {
  struct part next = {.run = run, .version = -1};
  enum rc rc = RC_OK;
  for (*count = 0; next.run && rc == RC_OK; ++*count) {
    struct active_run a;
    if (*count == RUNS_MAX)
      return err_set(err, RC_TOO_LARGE, "replay", "run %s starts from more than %d others", id_run(run).text, RUNS_MAX);
    parts[*count] = next;
    rc = part_read(d, next.run, next.version, &a, err);
    if (rc == RC_OK) rc = start_context(d, &a, err);
    if (rc == RC_OK) rc = part_before(d, next.run, &d->context->config.start, &next, err);
    look_free(&a);
  }
  return rc;
}

enum rc record_replay(struct driver *d, const char *name, struct err *err) {
  struct part parts[RUNS_MAX];
  int64_t run = 0;
  int count = 0;
  d->replays_record = true;
  struct active_run asked = {0};
  enum rc rc = id_parse_run(&run, name, err);
  if (rc == RC_OK) rc = part_read(d, run, -1, &asked, err); /* that there is none is told without a trainer */
  look_free(&asked);
  if (rc == RC_OK) rc = trainer_await(d, err);
  if (rc == RC_OK) rc = chain_find(d, run, parts, &count, err);
  for (int i = count - 1; i >= 0 && rc == RC_OK; i--) {
    struct active_run a;
    rc = part_read(d, parts[i].run, parts[i].version, &a, err);
    if (rc == RC_OK) rc = start_context(d, &a, err);
    if (rc == RC_OK) rc = part_replay(d, &a, err);
    look_free(&a);
  }
  return rc;
}
