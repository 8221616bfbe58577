/* Gives the writer a run's context; makes a fresh run's version 0 current and opens its round 0. */
#include "services/coordinator/rounds/run_attach.h"

#include <stdio.h>

#include "services/coordinator/decide/states.h"
#include "services/coordinator/decide/stored.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/records/retention.h"
#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/store/ids.h"

enum { FINDING_MAX = 512 };

/* "current" is what the trainer holds.  Once that has gone back to an older checkpoint it is not what the run before
 * left, and nothing else would say so.  "": it is, or the run begins with something else. */
static enum rc start_finding(struct core *c, const struct run_context *x, char out[FINDING_MAX], struct err *err) {
  struct rows q;
  bool row = false;
  out[0] = '\0';
  if (x->config.start.from == START_MODEL || x->config.start.from == START_CHECKPOINT) return RC_OK;
  enum rc rc = store_query(
      c->store, &q, err,
      "SELECT v.run, v.version, r.origin_run, r.origin_version FROM runs r JOIN versions v ON v.run = (SELECT max(run) "
      "FROM versions WHERE run < ?1) AND v.state = " SQL_VERSION_CURRENT " WHERE r.id = ?1 AND NOT EXISTS (SELECT 1 "
      "FROM versions h JOIN versions o ON h.digest = o.digest WHERE o.run = ?1 AND o.version = 0 AND h.run = v.run AND "
      "h.version >= v.version)",
      BINDS(b_int(x->run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    const struct id_text left = id_run(rows_int(&q, 0)), from = id_run(rows_int(&q, 2));
    char held[FINDING_MAX / 2 + 32] = "weights of no version that is known";
    if (!rows_null(&q, 2)) snprintf(held, sizeof held, "version %lld of %s", (long long)rows_int(&q, 3), from.text);
    snprintf(out, FINDING_MAX,
             "start: run %s left version %lld, and this run began with %s: the trainer has gone back to a checkpoint "
             "since",
             left.text, (long long)rows_int(&q, 1), held);
  }
  rows_end(&q);
  return rc;
}

/* What the reading of the configuration and of the data set found, and what the run begins with, for the run's
 * status. */
static enum rc findings_note(struct core *c, const struct run_context *x, struct err *err) {
  struct buf warnings = BUF_INIT, counts = BUF_INIT;
  struct json_writer w;
  char start[FINDING_MAX];
  enum rc rc = start_finding(c, x, start, err);
  if (rc != RC_OK) return rc;
  json_writer_init(&w, &warnings);
  run_context_warnings(x, start, &w);
  json_writer_init(&w, &counts);
  run_context_counts(x, &w);
  rc = buf_check(&warnings, err);
  if (rc == RC_OK) rc = buf_check(&counts, err);
  if (rc == RC_OK)
    rc = store_exec(
        c->store, err, "UPDATE runs SET warnings = ?2, dataset_counts = ?3 WHERE id = ?1",
        BINDS(b_int(x->run), b_chars(warnings.data, warnings.len), b_chars(counts.data, counts.len)));
  buf_free(&warnings);
  buf_free(&counts);
  return rc;
}

/* Which version of an earlier run its weights are: the one that it names, or of what the trainer held the newest with
 * these bytes.  None: the model's, or of no run that this database knows. */
static enum rc origin_note(struct core *c, const struct run_context *x, const struct digest *digest, struct err *err) {
  const struct run_start *start = &x->config.start;
  int64_t run = 0;
  if (start->from == START_MODEL) return RC_OK;
  if (start->from == START_CHECKPOINT) {
    const enum rc rc = id_parse_run(&run, start->run, err);
    return rc == RC_OK ? store_exec(c->store, err, "UPDATE runs SET origin_run = ?2, origin_version = ?3 WHERE id = ?1",
                                    BINDS(b_int(x->run), b_int(run), b_int(start->version)))
                       : rc;
  }
  return store_exec(
      c->store, err,
      "UPDATE runs SET (origin_run, origin_version) = (SELECT v.run, v.version FROM versions v JOIN runs r "
      "ON r.id = v.run WHERE v.digest = ?2 AND v.run < ?1 AND r.objective <> 'evaluate' ORDER BY v.run DESC, "
      "v.version DESC LIMIT 1) WHERE id = ?1",
      BINDS(b_int(x->run), b_digest(digest)));
}

enum rc run_attach(struct core *c, struct run_context *context, const struct digest *digest, int64_t again,
                   struct err *err) {
  struct run_context *before = c->context;
  int64_t run = context->run, versions = 0;
  enum run_state state = RUN_QUEUED;
  enum rc rc = run_state_of(c->store, run, &state, err);
  if (rc == RC_OK && state != RUN_STARTING && state != RUN_RUNNING && state != RUN_PAUSED && state != RUN_STOPPING) {
    rc = err_set(err, RC_CONFLICT, "state", "run %s is %s", id_run(run).text, state_name(MACHINE_RUN, (int)state));
  }
  if (rc == RC_OK)
    rc = store_int(c->store, &versions, err, "SELECT count(*) FROM versions WHERE run = ?1", BINDS(b_int(run)));
  if (rc != RC_OK) return rc;
  c->context = context; /* round_open reads it */
  if (state == RUN_STARTING) rc = run_move(c, run, RUN_RUNNING, NULL, err);
  if (rc == RC_OK && versions == 0) {
    rc = store_exec(
        c->store, err,
        "INSERT INTO versions (run, version, state, digest, published, created_ms) VALUES (?1, 0, ?2, ?3, ?4, ?5)",
        BINDS(b_int(run), b_int(VERSION_CURRENT), b_digest(digest), b_int(!run_is_supervised(&context->config)),
              b_int(c->wall_ms)));
    if (rc == RC_OK) rc = origin_note(c, context, digest, err);
  }
  if (rc == RC_OK) rc = findings_note(c, context, err); /* a curriculum's first round asks for its counts */
  if (rc == RC_OK && versions == 0) rc = round_open(c, 0, 0, err);
  if (rc == RC_OK && versions == 0) rc = retention_release(c->store, run, err); /* its first round has counted them */
  if (rc == RC_OK && !run_is_supervised(&context->config)) slot_windows_begin(c->rounds->windows, run, c->now_ms);
  if (rc == RC_OK && again >= 0) rc = batches_again(c, run, again, err);
  if (rc == RC_OK && run_plans_rounds(&context->config))
    rc = prompt_lengths_open(&c->pool->prompt_lengths, c->store, run, dataset_count(context->dataset), c->now_ms, err);
  if (rc != RC_OK) {
    c->context = before;
    return rc;
  }
  if (!before || before->run != run) c->pool->rates = (struct dispatch_rates){0};
  run_context_keep(context);
  run_context_release(before);
  rounds_context_changed(c);
  c->dispatch_due = c->kick_due = true;
  return RC_OK;
}
