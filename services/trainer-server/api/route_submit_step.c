/* POST /v1/submit-step: one optimizer step over exactly the groups named. Idempotent by step id: a repeat after the
 * step was taken is answered from the job, not by a second step, even when the trainer restarted in between (the
 * checkpoint remembers which step made it). Previous hop: coordinator/driver/step.c, when every batch of the round
 * is done.  Next: engine/step.c. */
#include <stdio.h>
#include <string.h>

#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/api/submission.h"
#include "services/trainer-server/board/authority.h"

static void fill(struct job *job, const void *request) { job->in.step = *(const struct submit_step *)request; }

/* The list of servers to push to is not content: another pool may be ready when the step is sent again.  Nor are the
 * checkpoints to be kept: more evaluations may be in. */
static enum rc content_digest(struct digest *out, const struct submit_step *m, struct err *err) {
  struct submit_step content = *m;
  struct buf canonical = BUF_INIT;
  content.epoch = content.fence = 0;
  content.push_count = 0;
  content.stage_timeout_ms = 0;
  content.checkpoint = false;
  content.keep_last = 0;
  content.keep_versions.count = 0;
  submit_step_encode(&content, &canonical);
  return submission_digest(out, &canonical, err);
}

/* The step's version must be the current one, unless it is the very step that led from it. */
static enum rc check_version(struct trainer *t, const struct submit_step *m, struct err *err) {
  struct board_view v;
  board_view(trainer_board(t), &v);
  const bool taken =
      strcmp(v.run, m->run) == 0 && v.version == m->version + 1 && jobs_known(trainer_jobs(t), m->step_id, JOB_STEP);
  return taken ? RC_OK : board_check_version(trainer_board(t), m->run, m->version, err);
}

void handle_submit_step(struct http_request *r, void *context) {
  struct trainer *t = context;
  const struct json *body = NULL;
  struct arena arena = ARENA_INIT;
  struct submit_step request;
  struct digest digest;
  struct err err = {0};
  char id[LIMIT_NAME_MAX] = "";
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = submit_step_decode(&request, body, &arena, &err);
  if (rc == RC_OK) rc = submission_check(r, t, request.epoch, request.fence, &err);
  if (rc == RC_OK) rc = check_version(t, &request, &err);
  if (rc == RC_OK) rc = content_digest(&digest, &request, &err);
  if (rc == RC_OK) {
    snprintf(id, sizeof id, "%s", request.step_id);
    rc = submission_queue(t, id, JOB_STEP, &digest, request.version, &arena, fill, &request, &err);
  }
  if (rc == RC_OK) {
    authority_accepted(trainer_board(t), request.epoch, request.fence);
    submission_accepted(r, t, JOB_STEP, "step_id", id);
  } else {
    http_fail(r, &err);
  }
  arena_free(&arena);
}
