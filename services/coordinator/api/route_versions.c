/* Answers POST /v1/versions: checks who announces, then publishes.  Previous hop: trainer-server/publish/publisher.c.
 * Next: rounds/publish.c. */
#include "services/coordinator/api/route_versions.h"

#include <string.h>

#include "common/wire/training.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/rounds/publish.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/writer/core.h"

/* The announcement must come from the live trainer that holds the place, under its fence: any other's is a zombie's
 * (I9). */
static enum rc check_announcer(struct core *c, const struct command *cmd, struct err *err) {
  const struct version_announce *m = cmd->message;
  struct live_worker *w;
  enum rc rc = worker_of(c, cmd, m->worker_id, m->epoch, true, &w, err);
  if (rc == RC_NOT_FOUND)
    return err_set(err, RC_CONFLICT, "worker_id", "worker '%.100s' is not registered (any more)", m->worker_id);
  if (rc != RC_OK) return rc;
  if (w->kind != WORKER_TRAINER)
    return err_set(err, RC_FORBIDDEN, "worker_id", "worker %s is not a trainer", m->worker_id);
  if (!w->holder)
    return err_set(err, RC_CONFLICT, "fence", "worker %s stands by: another trainer holds the place", m->worker_id);
  if (m->fence != (uint64_t)w->fence)
    return err_set(err, RC_CONFLICT, "fence", "the trainer's fence is %lld, the message of %s carries %llu",
                   (long long)w->fence, m->worker_id, (unsigned long long)m->fence);
  return RC_OK;
}

enum rc version_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct version_announce *m = cmd->message;
  struct announced_version p = {.version = m->version,
                                .digest = m->digest,
                                .grad_norm = m->grad_norm,
                                .lr = m->lr,
                                .skipped = m->skipped,
                                .pushes = m->pushes,
                                .push_count = m->push_count};
  int64_t run;
  bool refused = false;
  enum rc rc = check_announcer(c, cmd, err);
  if (rc == RC_OK) rc = id_parse_run(&run, m->run, err);
  if (rc == RC_OK) rc = id_parse_round(&p.run, &p.round, m->step_id, err);
  if (rc == RC_OK && run != p.run)
    rc = err_set(err, RC_INVALID, "step_id", "step '%.100s' does not belong to run '%.100s'", m->step_id, m->run);
  if (rc == RC_OK) rc = publish_version(c, &p, &refused, err);
  if (rc == RC_OK && refused) {
    cmd->refused = true;
    cmd->err = *err;
  }
  if (rc == RC_OK) buf_puts(&cmd->body, "{\"accepted\":true}");
  return rc;
}

void handle_post_version(struct http_request *r, void *context) {
  const struct json *body;
  struct err err = {0};
  struct command *cmd = command_new(version_execute, sizeof(struct version_announce));
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK && cmd) rc = version_announce_decode(cmd->message, body, &cmd->arena, &err);
  if (rc == RC_OK) {
    core_submit(context, r, cmd, CORE_ANSWER_MS);
    return;
  }
  command_free(cmd);
  http_fail(r, &err);
}
