/* Judges why a run cannot go on: waits when the trouble passes by itself, and pauses the run when it does not. */
#include "services/coordinator/driver/trouble.h"

#include <string.h>

#include "common/base/log.h"
#include "services/coordinator/driver/standstill.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/journal.h"

/* SHOWN_MS: shorter trouble is not shown.  RENEWED_MS: how often a reason that keeps changing is stored. */
enum { RETRY_MS = 200, STORAGE_RETRY_MS = 1000, SHOWN_MS = 1000, RENEWED_MS = 1000 };
/* Whether a run stands still is looked at so often, and shown when it has stood so long: versions are being loaded. */
enum { STANDS_LOOK_MS = 500, STANDS_MS = 3000 };

/* ---- commands ---- */

struct trouble_message {
  int64_t run;
  bool storage;    /* of the trainer's disk: an incident too, when it begins */
  const char *why; /* NULL: it is over */
};

static enum rc hold_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct trouble_message *m = cmd->message;
  return run_hold(c, m->run, m->why, err);
}

static enum rc wait_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct trouble_message *m = cmd->message;
  enum rc rc = RC_OK;
  if (m->storage) rc = journal_incident(c, m->run, "storage", id_run(m->run).text, m->why, err);
  return rc == RC_OK ? run_waits(c, m->run, m->why, err) : rc;
}

static enum rc tell(struct driver *d, command_execute execute, const struct trouble_message *m, struct err *err) {
  struct command *cmd = command_new(execute, sizeof *m);
  if (cmd) {
    struct trouble_message *copy = cmd->message;
    *copy = *m;
    copy->why = m->why ? arena_strdup(&cmd->arena, m->why) : NULL;
    if (m->why && !copy->why) {
      command_free(cmd);
      cmd = NULL;
    }
  }
  return core_call(d->core, cmd, err);
}

/* ---- judging ---- */

/* A trainer that refuses our epoch or fence has not heard of us yet, or has heard of another coordinator since: its
 * next heartbeat tells which. */
static bool passes(enum rc rc, const struct err *err) {
  if (rc == RC_CONFLICT) return strcmp(err->field, "epoch") == 0 || strcmp(err->field, "fence") == 0;
  return rc == RC_UNAVAILABLE || rc == RC_TIMEOUT || rc == RC_FULL || rc == RC_NO_MEMORY || rc == RC_IO;
}

/* If the trainer has re-registered since, the error is the old process's and must not pause the run. */
static bool trainer_changed(struct driver *d) {
  struct trainer_target now;
  if (trainer_target_now(driver_readers(d), &now, NULL) != RC_OK) return true;
  return !now.found || now.worker != d->trainer.worker;
}

/* A trainer that was started again under the same address refuses what its predecessor had taken, before its
 * registration is seen.  So a refusal leads, once a round, to verifying what the trainer holds; the next one is
 * believed. */
static bool doubt(struct driver *d, const struct active_run *a) {
  if (d->verified_trainer == 0 || (d->doubted_run == a->run && d->doubted_round == a->round)) return false;
  d->doubted_run = a->run;
  d->doubted_round = a->round;
  d->verified_trainer = 0;
  return true;
}

static void show_waiting(struct driver *d, const struct active_run *a, bool storage, const char *what) {
  const int64_t now_ms = core_monotonic_ms(d->core);
  struct err err = {0};
  const bool begins = !a->waiting_for[0];
  if (strcmp(a->waiting_for, what) == 0 || (!begins && now_ms - d->shown_ms < RENEWED_MS)) return;
  const struct trouble_message m = {.run = a->run, .storage = storage && begins, .why = what};
  if (tell(d, wait_execute, &m, &err) != RC_OK)
    log_warn("the reason why run %s waits could not be stored: %s", id_run(a->run).text, err.message);
  d->shown_ms = now_ms;
}

static void hold(struct driver *d, const struct active_run *a, const char *why) {
  struct err err = {0};
  if (tell(d, hold_execute, &(struct trouble_message){.run = a->run, .why = why}, &err) != RC_OK)
    log_error("run %s could not be paused: %s", id_run(a->run).text, err.message);
  d->trouble_since_ms = 0;
  d->doubted_run = 0;
  driver_forget_run(d); /* until it is resumed, the trainer, its model or the data may be changed */
}

int64_t trouble_meet(struct driver *d, const struct active_run *a, int64_t begun_ms, enum rc rc,
                     const struct err *err) {
  const int64_t now_ms = core_monotonic_ms(d->core);
  const bool waits = passes(rc, err) || trainer_changed(d) || doubt(d, a);
  if (d->trouble_since_ms == 0) {
    d->trouble_since_ms = begun_ms;
    log_warn("run %s: %s%s", id_run(a->run).text, err->message, waits ? " (trying again)" : "");
  }
  const int64_t lasts_ms = now_ms - d->trouble_since_ms;
  const bool stopping = a->state == RUN_STOPPING;
  const bool enough = (stopping && rc == RC_IO) || (lasts_ms >= d->trainer_lost_ms && (stopping || rc == RC_NO_MEMORY));
  if (!waits || enough) {
    hold(d, a, err->message);
    return 0;
  }
  if (lasts_ms >= SHOWN_MS) show_waiting(d, a, rc == RC_IO, err->message);
  return rc == RC_IO ? STORAGE_RETRY_MS : RETRY_MS;
}

/* Has nobody done anything for the run for a while? */
static bool stands_still(struct driver *d, const struct active_run *a) {
  const int64_t now_ms = core_monotonic_ms(d->core);
  if (now_ms - d->stands_looked_ms >= STANDS_LOOK_MS) {
    d->stands_looked_ms = now_ms;
    if (standstill_look(driver_readers(d), a, d->stands_for, NULL) != RC_OK || !d->stands_for[0])
      d->stands_since_ms = 0;
    else if (d->stands_since_ms == 0)
      d->stands_since_ms = now_ms;
  }
  return d->stands_since_ms != 0 && now_ms - d->stands_since_ms >= STANDS_MS;
}

void trouble_over(struct driver *d, const struct active_run *a) {
  struct err err = {0};
  d->trouble_since_ms = 0;
  char failing[ERR_MESSAGE_MAX];
  const bool unchecked = a->state == RUN_RUNNING && rounds_checks_failing(d->core, a->run, failing);
  if (unchecked || stands_still(d, a)) {
    show_waiting(d, a, false, unchecked ? failing : d->stands_for);
    return;
  }
  if (!a->waiting_for[0]) return;
  log_info("run %s goes on", id_run(a->run).text);
  if (tell(d, wait_execute, &(struct trouble_message){.run = a->run}, &err) != RC_OK)
    log_warn("run %s goes on, but that could not be stored: %s", id_run(a->run).text, err.message);
}
