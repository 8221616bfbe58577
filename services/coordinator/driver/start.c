/* Opens a run at the trainer, verifies what the trainer holds, and gives the writer the run's context. */
#include "services/coordinator/driver/start.h"

#include <inttypes.h>

#include "common/base/log.h"
#include "services/coordinator/driver/model_files.h"
#include "services/coordinator/driver/replay.h"
#include "services/coordinator/rounds/round.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core_state.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/pool/pool.h"

enum { OPEN_MS = 120000 };

/* ---- commands ---- */

struct move_message {
  int64_t run;
  enum run_state to;
};

static enum rc move_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct move_message *m = cmd->message;
  return run_move(c, m->run, m->to, NULL, err);
}

static enum rc move_run(struct driver *d, int64_t run, enum run_state to, struct err *err) {
  struct command *cmd = command_new(move_execute, sizeof(struct move_message));
  if (cmd) *(struct move_message *)cmd->message = (struct move_message){.run = run, .to = to};
  return core_call(d->core, cmd, err);
}

struct attach_message {
  struct run_context *context;
  struct digest digest;
  int64_t again; /* a round whose batches are to be sent again, or -1 */
};

/* A new incarnation of the trainer has lost what it accumulated: the round's batches are asked for, and sent again
 * where they are unknown. */
static enum rc batches_again(struct core *c, int64_t run, int64_t round, struct err *err) {
  enum rc rc = store_exec(c->store, err, "UPDATE batches SET done = 0 WHERE run = ?1 AND round = ?2",
                          BINDS(b_int(run), b_int(round)));
  if (rc == RC_OK) {
    rc = store_exec(c->store, err,
                    "UPDATE rounds SET trained_tokens = 0, loss_sum = 0, entropy_sum = 0, compute_us = 0, "
                    "logprob_us = 0, logprob_unequal = 0, logprob_nonfinite = 0, logprob_max_abs_diff = 0 WHERE run = "
                    "?1 AND round = ?2",
                    BINDS(b_int(run), b_int(round)));
  }
  return rc;
}

/* A fresh run: version 0 is current, round 0 opens, all in one transaction.  One that was opened before: only the
 * context comes back. */
static enum rc attach_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct attach_message *m = cmd->message;
  struct run_context *before = c->context;
  int64_t run = m->context->run, versions = 0;
  enum run_state state = RUN_QUEUED;
  enum rc rc = run_state_of(c->store, run, &state, err);
  if (rc == RC_OK && state != RUN_STARTING && state != RUN_RUNNING && state != RUN_PAUSED && state != RUN_STOPPING) {
    rc = err_set(err, RC_CONFLICT, "state", "run %s is %s", id_run(run).text, state_name(MACHINE_RUN, (int)state));
  }
  if (rc == RC_OK)
    rc = store_int(c->store, &versions, err, "SELECT count(*) FROM versions WHERE run = ?1", BINDS(b_int(run)));
  if (rc != RC_OK) return rc;
  c->context = m->context; /* round_open reads it */
  if (state == RUN_STARTING) rc = run_move(c, run, RUN_RUNNING, NULL, err);
  if (rc == RC_OK && versions == 0) {
    rc = store_exec(
        c->store, err,
        "INSERT INTO versions (run, version, state, digest, published, created_ms) VALUES (?1, 0, ?2, ?3, ?4, ?5)",
        BINDS(b_int(run), b_int(VERSION_CURRENT), b_digest(&m->digest), b_int(!run_is_supervised(&m->context->config)),
              b_int(c->wall_ms)));
    if (rc == RC_OK) rc = round_open(c, 0, 0, err);
  }
  if (rc == RC_OK && !run_is_supervised(&m->context->config)) slot_windows_begin(c->rounds->windows, run, c->now_ms);
  if (rc == RC_OK && m->again >= 0) rc = batches_again(c, run, m->again, err);
  if (rc != RC_OK) {
    c->context = before;
    return rc;
  }
  if (!before || before->run != run) c->pool->rates = (struct dispatch_rates){0};
  run_context_keep(m->context);
  run_context_release(before);
  c->dispatch_due = c->kick_due = true;
  return RC_OK;
}

/* ---- the trainer ---- */

static enum rc make_context(struct driver *d, const struct active_run *a, struct err *err) {
  const struct trainer_client t = driver_trainer(d);
  struct model_files files = {0};
  struct run_context *context = NULL;
  const bool known = d->context_from == 0 || d->context_from == d->trainer.worker;
  if (d->context && d->context->run == a->run && known) return RC_OK;
  enum rc rc = model_files_fetch(&files, &t, err);
  if (rc == RC_OK) rc = run_context_create(&context, a->run, a->config, &files, core_options(d->core)->data_dir, err);
  model_files_free(&files);
  if (rc != RC_OK) return rc;
  run_context_release(d->context);
  d->context = context;
  d->context_from = d->trainer.worker;
  return RC_OK;
}

/* The trainer must hold the version that we recorded, or the one that the round in step makes, or an older one that was
 * ours: then *behind, and the rounds since are replayed. */
static enum rc check_held(struct driver *d, const struct active_run *a, const struct open_run_answer *answer,
                          bool *behind, struct err *err) {
  char recorded[DIGEST_HEX_MAX], theirs[DIGEST_HEX_MAX];
  struct digest digest = a->digest;
  *behind = false;
  if (!a->has_version) {
    if (answer->version == 0) return RC_OK;
    return err_set(err, RC_CONFLICT, "version",
                   "the trainer holds version %" PRId64 " of run %s, which the coordinator has never opened",
                   answer->version, id_run(a->run).text);
  }
  if (answer->version == a->version + 1 && a->has_round && a->round_state == ROUND_STEPPING) return RC_OK;
  enum rc rc =
      answer->version == a->version ? RC_OK : look_digest(driver_readers(d), a->run, answer->version, &digest, err);
  if (rc == RC_NOT_FOUND)
    return err_set(err, RC_CONFLICT, "version",
                   "the trainer holds version %" PRId64 " of run %s, the coordinator recorded versions up to %" PRId64,
                   answer->version, id_run(a->run).text, a->version);
  if (rc != RC_OK) return rc;
  *behind = answer->version < a->version;
  if (digest_equal(&answer->digest, &digest)) return RC_OK;
  digest_hex(recorded, &digest);
  digest_hex(theirs, &answer->digest);
  return err_set(err, RC_CONFLICT, "version",
                 "the trainer's version %" PRId64
                 " of run %s has digest %.12s, the recorded one is %.12s: it holds other "
                 "weights than the run was made with",
                 answer->version, id_run(a->run).text, theirs, recorded);
}

/* A checkpoint by that name may be another lineage's: the state directory is the trainer's, the digest ours. */
static enum rc check_start(struct driver *d, const struct active_run *a, const struct open_run_answer *answer,
                           struct err *err) {
  const struct run_start *s = &d->context->config.start;
  char recorded[DIGEST_HEX_MAX], theirs[DIGEST_HEX_MAX];
  struct digest digest;
  int64_t run = 0;
  if (s->from != START_CHECKPOINT || a->has_version) return RC_OK;
  enum rc rc = id_parse_run(&run, s->run, err);
  if (rc == RC_OK) rc = look_digest(driver_readers(d), run, s->version, &digest, err);
  if (rc == RC_NOT_FOUND)
    return err_set(err, rc, "start", "there is no version %" PRId64 " of run %s", s->version, s->run);
  if (rc != RC_OK || digest_equal(&answer->digest, &digest)) return rc;
  digest_hex(recorded, &digest);
  digest_hex(theirs, &answer->digest);
  return err_set(err, RC_CONFLICT, "start",
                 "the trainer's checkpoint of run %s, version %" PRId64 " has digest %.12s, the recorded one is %.12s",
                 s->run, s->version, theirs, recorded);
}

/* The writer gets the context, so that samples can be leased and results taken again. */
static enum rc attach(struct driver *d, const struct active_run *a, const struct open_run_answer *answer,
                      struct err *err) {
  struct command *cmd = command_new(attach_execute, sizeof(struct attach_message));
  const bool again = a->has_round && a->round_state <= ROUND_STEPPING && answer->version <= a->version;
  if (cmd)
    *(struct attach_message *)cmd->message =
        (struct attach_message){.context = d->context, .digest = answer->digest, .again = again ? a->round : -1};
  run_context_keep(d->context); /* for the command: it may outlive this call, and then keeps it for good */
  const enum rc rc = core_call(d->core, cmd, err);
  if (rc != RC_TIMEOUT) run_context_release(d->context);
  return rc;
}

enum rc start_run(struct driver *d, const struct active_run *a, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct open_run_answer answer;
  bool behind = false;
  driver_drop_sent(d);
  enum rc rc = a->state == RUN_QUEUED ? move_run(d, a->run, RUN_STARTING, err) : RC_OK;
  if (rc == RC_OK) rc = make_context(d, a, err);
  if (rc != RC_OK) return rc;
  struct trainer_client t = driver_trainer(d);
  struct id_text id = id_run(a->run);
  const struct open_run m = {.run = id.text,
                             .epoch = d->trainer.epoch,
                             .fence = d->trainer.fence,
                             .seed = d->context->config.seed,
                             .current_version = a->has_version ? a->version : 0,
                             .start = d->context->config.start,
                             .training = d->context->config.training};
  rc = trainer_open_run(&t, &m, &answer, &arena, OPEN_MS, err);
  if (rc == RC_OK) rc = check_held(d, a, &answer, &behind, err);
  if (rc == RC_OK) rc = check_start(d, a, &answer, err);
  if (rc == RC_OK) rc = attach(d, a, &answer, err);
  if (rc == RC_OK && behind) rc = replay_run(d, a, answer.version, err);
  if (rc == RC_OK) {
    d->verified_trainer = d->trainer.worker;
    d->context_from = 0;
    log_info("run %s: the trainer holds version %" PRId64, id.text, behind ? a->version : answer.version);
  }
  arena_free(&arena);
  return rc;
}
