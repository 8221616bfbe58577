/* Answers POST /v1/workers/{id}/leases: grants leases at once, or parks the poll until samples wait.
 *
 *   poll --> a digest other than the current: told `current` at once, loads it, polls again
 *        --> samples wait: leases at once
 *        --> else parked by the writer; looked at again whenever samples or versions change, answered empty when wait_ms is over
 *
 * Previous hop of a rollout: pool/leases.c, which is called here.  Next: generation-server/worker/leases.c. */
#include "services/coordinator/api/route_leases.h"

#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/core_state.h"

enum rc poll_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct lease_request *m = cmd->message;
  struct live_worker *w;
  struct lease leases[LIMIT_LEASES_PER_REQUEST];
  struct lease_answer answer = {.epoch = c->epoch, .leases = leases};
  struct arena arena = ARENA_INIT;
  bool first = cmd->due_ms == 0;
  if (first) cmd->due_ms = c->now_ms + m->wait_ms;
  enum rc rc = worker_of(c, cmd, cmd->id, m->epoch, first, &w, err); /* being parked is no sign of life */
  if (rc != RC_OK) return rc;
  if (w->kind != WORKER_GENERATION)
    return err_set(err, RC_FORBIDDEN, "id", "worker %s is a trainer; leases are for generation-servers", cmd->id);
  if (m->has_loaded) worker_ready(c, w, true);
  if (m->slots_free >= w->slots) cmd->patient = false; /* its slots are idle */
  if (first && m->has_taken && !core_orphaned(c, cmd)) rc = leases_note_taken(c, w, m->leases_taken, err);
  if (rc == RC_OK) rc = current_version_now(c, &answer.current, &arena, err);
  struct current_version held = {0};
  if (rc == RC_OK && m->has_loaded) rc = held_version(c, &m->loaded_digest, &answer.current, &held, err);
  if (rc == RC_OK && held.has && c->context) rc = version_activated(c, c->context->run, held.version, err);
  /* one whose version is old and not too old has work while it loads */
  const bool told = rc == RC_OK && answer.current.has && (!held.has || held.version != answer.current.version);
  if (rc == RC_OK && held.has && !core_orphaned(c, cmd)) { /* a lease of a caller that hung up would only lapse */
    rc = stream_issue(c, m->slots_free, err);
    if (rc == RC_OK)
      rc = leases_grant(c, w, m->slots_free, workers_generating(c), &held, leases, &answer.lease_count, &arena, err);
  }
  if (answer.lease_count) w->used = true;
  if (rc == RC_OK) {
    if (told || answer.lease_count || c->now_ms >= cmd->due_ms)
      lease_answer_encode(&answer, &cmd->body);
    else
      cmd->parked = true;
  }
  arena_free(&arena);
  return rc;
}

void handle_lease_poll(struct http_request *r, void *context) {
  const struct json *body;
  struct err err = {0};
  struct command *cmd = command_for(r, poll_execute, sizeof(struct lease_request));
  struct lease_request *p = cmd ? cmd->message : NULL;
  if (cmd) cmd->patient = cmd->urgent = true; /* servers ask before their slots are free; poll_execute knows the
                                               * exception */
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK && p) rc = lease_request_decode(p, body, &cmd->arena, &err);
  if (rc == RC_OK) {
    core_submit(context, r, cmd, (p ? p->wait_ms : 0) + 8000);
    return;
  }
  command_free(cmd);
  http_fail(r, &err);
}
