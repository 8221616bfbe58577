/* Opens a run at the trainer, verifies what the trainer holds, and gives the writer the run's context. */
#include "services/coordinator/driver/start.h"

#include <inttypes.h>

#include "common/base/log.h"
#include "services/coordinator/trainer/model_files.h"
#include "services/coordinator/driver/next.h"
#include "services/coordinator/driver/replay.h"
#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/run_attach.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core.h"

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
  int64_t again, taken; /* a round whose batches must be sent again, or whose step is taken; or -1 */
};

static enum rc attach_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct attach_message *m = cmd->message;
  const enum rc rc = run_attach(c, m->context, &m->digest, m->again, err);
  return rc == RC_OK && m->taken >= 0 ? batches_taken(c, m->context->run, m->taken, err) : rc;
}

/* ---- the trainer ---- */

enum rc start_context(struct driver *d, const struct active_run *a, struct err *err) {
  const struct trainer_client t = driver_trainer(d);
  struct model_files files = {0};
  struct run_context *context = NULL;
  const bool known = d->context_from == 0 || d->context_from == d->trainer.worker;
  if (d->context && d->context->run == a->run && known) return RC_OK;
  enum rc rc = model_files_fetch(&files, &t, err);
  if (rc == RC_OK) rc = run_context_create(&context, a->run, a->config, &files, core_options(d->core)->data_dir, err);
  model_files_free(&files);
  if (rc != RC_OK) return rc;
  context->created_ms = a->created_ms;
  if (!a->has_version) run_context_preview(context);
  run_context_release(d->context);
  d->context = context;
  d->context_from = d->trainer.worker;
  return RC_OK;
}

/* The trainer must hold the recorded current version, the version that the round in step makes, or an older recorded
 * one. In the last case *behind is true, and the rounds since are replayed. */
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
  if (next_taken(a, answer->version) >= 0) return RC_OK;
  enum rc rc =
      answer->version == a->version ? RC_OK : look_digest(driver_readers(d), a->run, answer->version, &digest, err);
  if (rc == RC_NOT_FOUND)
    return err_set(
        err, RC_CONFLICT, "version",
        "the trainer holds version %" PRId64 " of run %s, the coordinator recorded versions up to %" PRId64
        "; if its database is a restored copy, set the trainer back by --go-back to a checkpoint up to that one",
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

/* The trainer's checkpoint of that name may be of other weights, since its state directory may have been used with
 * another database: the digest tells. */
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

/* Gives the writer the context, so that samples can be leased and results accepted again. */
static enum rc attach(struct driver *d, const struct active_run *a, const struct open_run_answer *answer,
                      struct err *err) {
  struct command *cmd = command_new(attach_execute, sizeof(struct attach_message));
  if (cmd)
    *(struct attach_message *)cmd->message =
        (struct attach_message){.context = d->context,
                                .digest = answer->digest,
                                .again = next_again(a, answer->version),
                                .taken = next_taken(a, answer->version)};
  run_context_keep(d->context); /* for the command, which may outlive this call; then the reference is never released */
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
  if (rc == RC_OK) rc = start_context(d, a, err);
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
    d->newest_round = a->has_round ? a->round : -1;
    if (a->has_round && d->context->config.mode == MODE_INFLIGHT)
      d->newest_round++; /* its first batch went ahead of it */
    log_info("run %s: the trainer holds version %" PRId64, id.text, behind ? a->version : answer.version);
  }
  arena_free(&arena);
  return rc;
}
