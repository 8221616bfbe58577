/* Answers POST /v1/runs/{id}/pause, /resume and /stop.
 *
 * pause: no more leases are granted; what is leased finishes, a round in training is trained and published, then
 * everything waits.  resume undoes it, also when trouble has paused the run: then the driver verifies the trainer
 * anew, and opens the run if it was never opened.  stop ends the run at once, unless the trainer is in the middle of a
 * step: then the run is `stopping` until that version is published, so that coordinator and trainer agree on the
 * weights.  Each is idempotent: a repeat is 200. */
#include "services/coordinator/api/route_run_control.h"

#include "services/coordinator/store/ids.h"
#include "services/coordinator/rounds/remote_rewards.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/core_state.h"

static enum rc answer_state(struct core *c, struct command *cmd, int64_t run, struct err *err) {
  enum run_state state = RUN_QUEUED;
  struct json_writer w;
  enum rc rc = run_state_of(c->store, run, &state, err);
  json_writer_init(&w, &cmd->body);
  json_object_begin(&w);
  json_kv_string(&w, "id", id_run(run).text);
  json_kv_string(&w, "state", state_name(MACHINE_RUN, (int)state));
  json_object_end(&w);
  return rc;
}

static enum rc pause_execute(struct core *c, struct command *cmd, struct err *err) {
  int64_t run;
  enum run_state state = RUN_QUEUED;
  enum rc rc = id_parse_run(&run, cmd->id, err);
  if (rc == RC_OK) rc = run_state_of(c->store, run, &state, err);
  if (rc == RC_OK && state != RUN_PAUSED) rc = run_move(c, run, RUN_PAUSED, NULL, err);
  return rc == RC_OK ? answer_state(c, cmd, run, err) : rc;
}

static enum rc resume_execute(struct core *c, struct command *cmd, struct err *err) {
  int64_t run, versions = 0;
  enum run_state state = RUN_QUEUED;
  enum rc rc = id_parse_run(&run, cmd->id, err);
  if (rc == RC_OK) rc = run_state_of(c->store, run, &state, err);
  if (rc == RC_OK && state != RUN_PAUSED && state != RUN_RUNNING && state != RUN_STARTING)
    rc = err_set(err, RC_CONFLICT, "state", "run %s is %s, only a paused run can be resumed", cmd->id,
                 state_name(MACHINE_RUN, (int)state));
  if (rc == RC_OK && state == RUN_PAUSED) {
    rc = store_int(c->store, &versions, err, "SELECT count(*) FROM versions WHERE run = ?1", BINDS(b_int(run)));
    if (rc == RC_OK) rc = run_move(c, run, versions ? RUN_RUNNING : RUN_STARTING, NULL, err);
    if (rc == RC_OK) rc = remote_rewards_begin_anew(c, run, err);
  }
  return rc == RC_OK ? answer_state(c, cmd, run, err) : rc;
}

static enum rc stop_execute(struct core *c, struct command *cmd, struct err *err) {
  int64_t run, stepping = 0;
  enum run_state state = RUN_QUEUED;
  enum rc rc = id_parse_run(&run, cmd->id, err);
  if (rc == RC_OK) rc = run_state_of(c->store, run, &state, err);
  if (rc == RC_OK && state != RUN_STOPPED && state != RUN_STOPPING) {
    rc =
        store_int(c->store, &stepping, err,
                  "SELECT count(*) FROM rounds WHERE run = ?1 AND (state IN (?2, ?3) OR (state = ?4 AND finished = 0))",
                  BINDS(b_int(run), b_int(ROUND_STEPPING), b_int(ROUND_PUBLISHING), b_int(ROUND_DONE)));
    if (rc == RC_OK) rc = run_move(c, run, RUN_STOPPING, NULL, err);
    if (rc == RC_OK && stepping == 0) rc = run_end(c, run, RUN_STOPPED, NULL, err);
  }
  return rc == RC_OK ? answer_state(c, cmd, run, err) : rc;
}

void handle_pause_run(struct http_request *r, void *context) {
  core_submit(context, r, command_for(r, pause_execute, 0), CORE_ANSWER_MS);
}
void handle_resume_run(struct http_request *r, void *context) {
  core_submit(context, r, command_for(r, resume_execute, 0), CORE_ANSWER_MS);
}
void handle_stop_run(struct http_request *r, void *context) {
  core_submit(context, r, command_for(r, stop_execute, 0), CORE_ANSWER_MS);
}
