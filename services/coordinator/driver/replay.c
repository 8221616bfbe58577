/* Replays recorded rounds at a trainer that holds an older version, and compares the digests that it reaches. */
#include "services/coordinator/driver/replay.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
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
  int64_t round, version, batches;
  double denominator;
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
      "SELECT r.round, r.denominator, v.digest, (SELECT count(*) FROM batches b WHERE b.run = r.run AND "
      "b.round = r.round), r.logprob_unequal, (SELECT count(*) FROM batches b JOIN workers w ON w.id = "
      "b.worker WHERE b.run = r.run AND b.round = r.round AND w.exactness = ?4), r.rollouts_state <> " SQL_ROLLOUTS_KEPT " FROM rounds r "
      "JOIN versions v ON v.run = r.run AND v.version = r.version + 1 WHERE r.run = ?1 AND r.version = ?2 AND r.state "
      "= ?3",
      BINDS(b_int(run), b_int(version), b_int(ROUND_DONE), b_int(WORKER_FASTEST)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    *out = (struct logged_round){.round = rows_int(&q, 0),
                                 .version = version,
                                 .denominator = rows_real(&q, 1),
                                 .batches = rows_int(&q, 3),
                                 .unequal = rows_int(&q, 4),
                                 .fastest = rows_int(&q, 5) > 0,
                                 .dropped = rows_int(&q, 6) != 0};
    rows_digest(&q, 2, &out->digest);
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
  if (look_run_over(driver_readers(d), run))
    return err_set(err, RC_CONFLICT, "run", "run %s is over", id_run(run).text);
  return RC_OK;
}

/* A difference that was there when the round was first trained is not told again. */
static enum rc await_batch(struct driver *d, const struct logged_round *r, const struct batch *b, struct err *err) {
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

static enum rc replay_batches(struct driver *d, int64_t run, const struct logged_round *r, struct err *err) {
  struct batch *window[AHEAD] = {NULL};
  enum rc rc = RC_OK;
  for (int64_t n = 0; n < r->batches + AHEAD && rc == RC_OK; n++) {
    struct batch **slot = &window[n % AHEAD];
    if (*slot) {
      rc = await_batch(d, r, *slot, err);
      batch_free(*slot);
      *slot = NULL;
    }
    if (rc == RC_OK) rc = interrupted(d, run, err);
    if (rc == RC_OK && n < r->batches) {
      const struct batch_place place = {.round = r->round, .number = n, .version = r->version};
      rc = batch_make(slot, driver_readers(d), d->context, &d->trainer, &place, err);
    }
    if (rc == RC_OK && *slot) rc = batch_submit(*slot, d->http, true, err);
  }
  for (int i = 0; i < AHEAD; i++) batch_free(window[i]);
  return rc;
}

static enum rc replay_step(struct driver *d, int64_t run, const struct logged_round *r, struct digest *digest,
                           struct err *err) {
  const struct trainer_client t = driver_trainer(d);
  struct arena arena = ARENA_INIT;
  struct submit_step m;
  struct step_status status = {0};
  enum rc rc = step_message(d, run, r->round, &m, &arena, err);
  m.push_count = 0; /* servers have the current version already */
  if (rc == RC_OK) rc = trainer_step_status(&t, m.step_id, 0, &status, &arena, CALL_MS, err);
  const bool failed = rc == RC_OK && status.state == JOB_FAILED; /* before its batches were sent again */
  if (rc == RC_NOT_FOUND || failed) rc = trainer_submit_step(&t, &m, SUBMIT_MS, err);
  while (rc == RC_OK && status.state != JOB_DONE) {
    rc = trainer_step_status(&t, m.step_id, POLL_MS, &status, &arena, POLL_MS + CALL_MS, err);
    if (rc == RC_OK && status.state == JOB_FAILED) rc = step_failed(&status, m.step_id, true, err);
    if (rc == RC_OK && status.state != JOB_DONE) rc = interrupted(d, run, err);
  }
  if (rc == RC_OK) *digest = status.digest;
  arena_free(&arena);
  return rc;
}

static enum rc replay_round(struct driver *d, int64_t run, int64_t version, struct err *err) {
  struct logged_round r;
  struct digest digest = {0};
  char recorded[DIGEST_HEX_MAX], reached[DIGEST_HEX_MAX], text[400 + LIMIT_NAME_MAX];
  enum rc rc = round_read(d, run, version, &r, err);
  if (rc == RC_OK) rc = replay_batches(d, run, &r, err);
  if (rc == RC_OK) rc = replay_step(d, run, &r, &digest, err);
  if (rc != RC_OK || digest_equal(&digest, &r.digest)) return rc;
  digest_hex(recorded, &r.digest);
  digest_hex(reached, &digest);
  const char *const by = d->trainer.fastest ? d->trainer.name : r.fastest ? "the trainer of that time" : NULL;
  snprintf(text, sizeof text, "replaying round %s gave digest %.12s, the recorded one is %.12s%s%s%s",
           id_round(run, r.round).text, reached, recorded, by ? ": the kernels of " : "", by ? by : "",
           by ? " are not batch-invariant, and a run cannot go on from weights that were never recorded" : "");
  rc = note(d, &(struct note_message){.run = run, .incident = text}, err);
  return rc == RC_OK ? err_set(err, RC_CORRUPT, NULL, "%s", text) : rc;
}

enum rc replay_run(struct driver *d, const struct active_run *a, int64_t from, struct err *err) {
  log_info("run %s: the trainer holds version %" PRId64 ", replaying up to version %" PRId64, id_run(a->run).text, from,
           a->version);
  enum rc rc = RC_OK;
  for (int64_t v = from; v < a->version && rc == RC_OK; v++) {
    rc = note(d, &(struct note_message){.run = a->run, .from = from, .at = v, .to = a->version}, err);
    if (rc == RC_OK) rc = replay_round(d, a->run, v, err);
  }
  if (rc == RC_OK)
    rc = note(d, &(struct note_message){.run = a->run, .from = from, .at = a->version, .to = a->version}, err);
  return rc;
}
