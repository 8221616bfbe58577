/* The driver's queries: the active run and its newest round, recorded digests. */
#include "services/coordinator/driver/look.h"
#include "services/coordinator/decide/stored.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>


bool look_run_over(struct readers *readers, int64_t run) {
  struct store *s;
  int64_t state = RUN_FAILED;
  if (readers_take(readers, &s, NULL) != RC_OK) return false;
  store_int(s, &state, NULL, "SELECT state FROM runs WHERE id = ?1", BINDS(b_int(run)));
  readers_give(readers, s);
  return state != RUN_STARTING && state != RUN_RUNNING && state != RUN_PAUSED && state != RUN_STOPPING;
}

enum rc look_digest(struct readers *readers, int64_t run, int64_t version, struct digest *out, struct err *err) {
  struct store *s;
  struct rows q;
  bool row = false;
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT digest FROM versions WHERE run = ?1 AND version = ?2",
                   BINDS(b_int(run), b_int(version)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) rows_digest(&q, 0, out);
  rows_end(&q);
  readers_give(readers, s);
  return rc == RC_OK && !row ? RC_NOT_FOUND : rc;
}

/* The run that was begun, or else the oldest queued one; none while the oldest is still checked, since those behind it
 * may start from what it leaves. */
static enum rc read_run(struct store *s, struct active_run *a, struct err *err) {
  struct rows q;
  enum rc rc = store_query(s, &q, err,
                           "SELECT id, state, rounds, config, error IS NOT NULL, waiting_for, created_ms FROM runs "
                           "WHERE state IN (?1, ?2, ?3, ?4, ?5, ?6) ORDER BY state IN (?1, ?6), id LIMIT 1",
                           BINDS(b_int(RUN_QUEUED), b_int(RUN_STARTING), b_int(RUN_RUNNING), b_int(RUN_PAUSED),
                                 b_int(RUN_STOPPING), b_int(RUN_CHECKING)));
  if (rc == RC_OK) rc = rows_next(&q, &a->found, err);
  if (rc == RC_OK && a->found && rows_int(&q, 1) == RUN_CHECKING) a->found = false;
  if (rc == RC_OK && a->found) {
    a->run = rows_int(&q, 0);
    a->state = (enum run_state)rows_int(&q, 1);
    a->rounds = rows_int(&q, 2);
    a->created_ms = rows_int(&q, 6);
    a->held = a->state == RUN_PAUSED && rows_int(&q, 4) != 0;
    snprintf(a->waiting_for, sizeof a->waiting_for, "%s", rows_text(&q, 5, NULL));
    a->config = strdup(rows_text(&q, 3, NULL));
    if (!a->config) rc = err_set(err, RC_NO_MEMORY, NULL, "a run's configuration was refused memory");
  }
  rows_end(&q);
  return rc;
}

static enum rc read_progress(struct store *s, struct active_run *a, struct err *err) {
  struct rows q;
  enum rc rc =
      store_query(s, &q, err, "SELECT version, digest FROM versions WHERE run = ?1 AND state = " SQL_VERSION_CURRENT,
                  BINDS(b_int(a->run)));
  if (rc == RC_OK) rc = rows_next(&q, &a->has_version, err);
  if (rc == RC_OK && a->has_version) {
    a->version = rows_int(&q, 0);
    rows_digest(&q, 1, &a->digest);
  }
  rows_end(&q);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err,
                   "SELECT round, version, state, jobs_undone FROM rounds WHERE run = ?1 ORDER BY round DESC LIMIT 1",
                   BINDS(b_int(a->run)));
  if (rc == RC_OK) rc = rows_next(&q, &a->has_round, err);
  if (rc == RC_OK && a->has_round) {
    a->round = rows_int(&q, 0);
    a->round_version = rows_int(&q, 1);
    a->round_state = (enum round_state)rows_int(&q, 2);
    a->undone = rows_int(&q, 3);
  }
  rows_end(&q);
  a->unfinished = -1;
  if (rc == RC_OK) {
    rc = store_int(
        s, &a->unfinished, err,
        "SELECT round FROM rounds INDEXED BY rounds_unfinished WHERE run = ?1 AND finished = 0 AND state = ?2 ORDER BY "
        "round LIMIT 1",
        BINDS(b_int(a->run), b_int(ROUND_DONE)));
    if (rc == RC_NOT_FOUND) rc = RC_OK;
  }
  return rc;
}

enum rc look_read(struct readers *readers, struct trainer_target *trainer, struct active_run *run, struct err *err) {
  struct store *s;
  *run = (struct active_run){0};
  enum rc rc = readers_take(readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = trainer_target_read(s, trainer, err);
  if (rc == RC_OK) rc = read_run(s, run, err);
  if (rc == RC_OK && run->found) rc = read_progress(s, run, err);
  readers_give(readers, s);
  return rc;
}

void look_free(struct active_run *run) {
  free(run->config);
  run->config = NULL;
}
