/* Replays recorded rounds at a trainer that holds an older version, and compares the digests that it reaches. */
#include "services/coordinator/driver/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/driver/inner_step.h"
#include "services/coordinator/driver/step.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/journal.h"
#include "services/coordinator/decide/stored.h"

enum { AHEAD = 2 };

/* ---- events and incidents ---- */

struct note_message {
  int64_t run, from, at, to;
  const char *incident; /* NULL: an event only */
};

static enum rc note_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct note_message *m = cmd->message;
  struct buf text = BUF_INIT;
  struct json_writer w;
  if (m->incident) return journal_incident(c, m->run, "nondeterminism", id_run(m->run).text, m->incident, err);
  json_writer_init(&w, &text);
  json_object_begin(&w);
  json_kv_int(&w, "from", m->from);
  json_kv_int(&w, "at", m->at);
  json_kv_int(&w, "to", m->to);
  json_object_end(&w);
  return journal_event(c, m->run, "replay", &text, false, err);
}

static enum rc note(struct driver *d, const struct note_message *m, struct err *err) {
  if (d->replays_record) {
    if (m->incident)
      log_warn("%s", m->incident);
    else
      log_info("run %s: version %" PRId64 " of %" PRId64, id_run(m->run).text, m->at, m->to);
    return RC_OK;
  }
  struct command *cmd = command_new(note_execute, sizeof *m);
  if (cmd) {
    struct note_message *copy = cmd->message;
    *copy = *m;
    copy->incident = m->incident ? arena_strdup(&cmd->arena, m->incident) : NULL;
  }
  return core_call(d->core, cmd, err);
}

/* ---- a recorded round ---- */

struct logged_round {
  int64_t round, version;
  struct digest digest; /* of the version that it made */
  int64_t unequal;      /* log-probabilities that differed when the round was first trained */
  bool fastest;         /* it was trained by kernels that are not batch-invariant */
  bool dropped;         /* its rollouts are */
};

static enum rc round_read(struct driver *d, int64_t run, int64_t version, struct logged_round *out, struct err *err) {
  struct store *s;
  struct rows q;
  bool row = false;
  enum rc rc = readers_take(driver_readers(d), &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(
      s, &q, err,
      "SELECT r.round, v.digest, r.logprob_unequal, (SELECT count(*) FROM batches b JOIN workers w ON w.id = "
      "b.worker WHERE b.run = r.run AND b.round = r.round AND w.exactness = ?4), r.rollouts_state <> " SQL_ROLLOUTS_KEPT
      " FROM rounds r JOIN versions v ON v.run = r.run AND v.version = r.version + 1 WHERE r.run = ?1 AND r.version = "
      "?2 AND r.state = ?3",
      BINDS(b_int(run), b_int(version), b_int(ROUND_DONE), b_int(WORKER_FASTEST)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    *out = (struct logged_round){.round = rows_int(&q, 0),
                                 .version = version,
                                 .unequal = rows_int(&q, 2),
                                 .fastest = rows_int(&q, 3) > 0,
                                 .dropped = rows_int(&q, 4) != 0};
    rows_digest(&q, 1, &out->digest);
  }
  rows_end(&q);
  readers_give(driver_readers(d), s);
  if (rc == RC_OK && !row)
    return err_set(err, RC_CORRUPT, NULL, "run %s has no finished round that was sampled at version %" PRId64,
                   id_run(run).text, version);
  if (rc == RC_OK && out->dropped)
    return err_set(err, RC_GONE, "keep_rounds",
                   "the trainer holds version %" PRId64
                   ", but the rollouts of round %s, which it must be fed next, were dropped (keep_rounds): start it "
                   "with the newer "
                   "checkpoints that it had",
                   version, id_round(run, out->round).text);
  return rc;
}

/* ---- replaying it ---- */

static enum rc interrupted(struct driver *d, int64_t run, struct err *err) {
  if (atomic_load(&d->stopping)) return err_set(err, RC_UNAVAILABLE, NULL, "the coordinator is stopping");
  if (!d->replays_record && look_run_over(driver_readers(d), run))
    return err_set(err, RC_CONFLICT, "run", "run %s is over", id_run(run).text);
  return RC_OK;
}

/* A difference that was there when the round was first trained is not told again. */
static enum rc await_batch(struct driver *d, const struct logged_round *r, struct batch *b, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct batch_status status = {0};
  struct mismatch difference = {0};
  enum rc rc = batch_await(b, d->http, &d->stopping, &status, &difference, &arena, err);
  arena_free(&arena);
  if (rc != RC_OK || difference.unequal == 0 || r->unequal > 0) return rc;
  char text[200];
  snprintf(text, sizeof text, "replaying batch %s: %" PRId64 " log-probabilities differ from the recorded ones",
           id_batch(b->run, b->round, b->number).text, difference.unequal);
  return note(d, &(struct note_message){.run = b->run, .incident = text}, err);
}

/* Other weights than recorded: an incident, and RC_CORRUPT. */
static enum rc digest_check(struct driver *d, int64_t run, const struct logged_round *r, const char *what,
                            const struct digest *recorded, const struct digest *reached, struct err *err) {
  char before[DIGEST_HEX_MAX], now[DIGEST_HEX_MAX], text[400 + LIMIT_NAME_MAX];
  if (digest_equal(reached, recorded)) return RC_OK;
  digest_hex(before, recorded);
  digest_hex(now, reached);
  const char *const by = d->trainer.fastest ? d->trainer.name : r->fastest ? "the trainer of that time" : NULL;
  snprintf(text, sizeof text, "replaying %s gave digest %.12s, the recorded one is %.12s%s%s%s", what, now, before,
           by ? ": the kernels of " : "", by ? by : "",
           by ? " are not batch-invariant, and a run cannot go on from weights that were never recorded" : "");
  const enum rc rc = note(d, &(struct note_message){.run = run, .incident = text}, err);
  return rc == RC_OK ? err_set(err, RC_CORRUPT, NULL, "%s", text) : rc;
}

static enum rc recorded_digest(struct driver *d, const struct inner_step *i, struct digest *out, struct err *err) {
  struct store *s;
  struct rows q;
  bool row = false;
  enum rc rc = readers_take(driver_readers(d), &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT digest FROM inner_steps WHERE run = ?1 AND round = ?2 AND step = ?3",
                   BINDS(b_int(i->run), b_int(i->round), b_int(i->step)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) rows_digest(&q, 0, out);
  rows_end(&q);
  readers_give(driver_readers(d), s);
  return rc;
}

/* The first step that ends in other weights is named, rather than the round that it is of. */
static enum rc await_inner(struct driver *d, const struct logged_round *r, const struct inner_step *i,
                           struct err *err) {
  struct arena arena = ARENA_INIT;
  struct step_status status = {0};
  struct digest recorded = {0};
  char what[20 + LIMIT_NAME_MAX];
  enum rc rc = inner_step_await(i, d->http, &d->stopping, &status, &arena, err);
  if (rc == RC_OK) rc = recorded_digest(d, i, &recorded, err);
  snprintf(what, sizeof what, "step %s", i->message.step_id);
  if (rc == RC_OK) rc = digest_check(d, i->run, r, what, &recorded, &status.digest, err);
  arena_free(&arena);
  return rc;
}

static enum rc await_job(struct driver *d, const struct logged_round *r, const struct trainer_job *job,
                         struct err *err) {
  if (job->batch) return await_batch(d, r, job->batch, err);
  return job->inner ? await_inner(d, r, job->inner, err) : RC_OK;
}

/* Batches and inner steps in the recorded order, AHEAD of them at the trainer. */
static enum rc replay_jobs(struct driver *d, int64_t run, const struct logged_round *r, struct err *err) {
  const struct round_place place = {.round = r->round, .version = r->version, .recorded = true};
  struct trainer_job window[AHEAD] = {{0}};
  struct round_job at = round_job_none();
  bool found = true;
  int left = 0; /* at the trainer */
  enum rc rc = RC_OK;
  for (int n = 0; rc == RC_OK && (found || left > 0); n++) {
    struct trainer_job *const slot = &window[n % AHEAD];
    left -= slot->batch || slot->inner;
    rc = await_job(d, r, slot, err);
    trainer_job_free(slot);
    if (rc == RC_OK) rc = interrupted(d, run, err);
    if (rc == RC_OK && found) rc = round_job_next(driver_readers(d), run, r->round, &at, false, &at, &found, err);
    if (rc == RC_OK && found)
      rc = trainer_job_send(slot, driver_readers(d), d->context, &d->trainer, &place, &at, true, d->http, err);
    left += slot->batch || slot->inner;
  }
  for (int i = 0; i < AHEAD; i++) trainer_job_free(&window[i]);
  return rc;
}

/* last: a checkpoint is written, which a run that is replayed next may start from. */
static enum rc replay_step(struct driver *d, int64_t run, const struct logged_round *r, bool last,
                           struct digest *digest, struct err *err) {
  const struct trainer_client t = driver_trainer(d);
  struct arena arena = ARENA_INIT;
  struct submit_step m;
  struct step_status status = {0};
  enum rc rc = step_message(d->core, d->context, &d->trainer, r->round, &m, &arena, err);
  m.push_count = 0; /* servers have the current version already */
  m.last |= last;
  if (rc == RC_OK) rc = step_submit_once(&t, &m, &status, &arena, err);
  while (rc == RC_OK && status.state != JOB_DONE) {
    rc = trainer_step_status(&t, m.step_id, POLL_MS, &status, &arena, POLL_MS + CALL_MS, err);
    if (rc == RC_OK && status.state == JOB_FAILED) rc = step_failed(&status, m.step_id, true, err);
    if (rc == RC_OK && status.state != JOB_DONE) rc = interrupted(d, run, err);
  }
  if (rc == RC_OK) *digest = status.digest;
  arena_free(&arena);
  return rc;
}

static enum rc replay_round(struct driver *d, int64_t run, int64_t version, bool last, struct err *err) {
  struct logged_round r;
  struct digest digest = {0};
  char what[20 + LIMIT_NAME_MAX];
  enum rc rc = round_read(d, run, version, &r, err);
  if (rc == RC_OK) rc = replay_jobs(d, run, &r, err);
  if (rc == RC_OK) rc = replay_step(d, run, &r, last, &digest, err);
  if (rc != RC_OK) return rc;
  snprintf(what, sizeof what, "round %s", id_round(run, r.round).text);
  return digest_check(d, run, &r, what, &r.digest, &digest, err);
}

enum rc replay_run(struct driver *d, const struct active_run *a, int64_t from, struct err *err) {
  log_info("run %s: the trainer holds version %" PRId64 ", replaying up to version %" PRId64, id_run(a->run).text, from,
           a->version);
  enum rc rc = RC_OK;
  for (int64_t v = from; v < a->version && rc == RC_OK; v++) {
    rc = note(d, &(struct note_message){.run = a->run, .from = from, .at = v, .to = a->version}, err);
    if (rc == RC_OK) rc = replay_round(d, a->run, v, d->replays_record && v + 1 == a->version, err);
  }
  if (rc == RC_OK)
    rc = note(d, &(struct note_message){.run = a->run, .from = from, .at = a->version, .to = a->version}, err);
  return rc;
}
