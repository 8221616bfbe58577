/* POST /v1/submit-batch: groups whose log-probabilities and gradients the engine computes next.  Idempotent by batch
 * id; refused under any other version. A batch that the engine could not compute is refused here, with the field's path,
 * before any of its groups is accumulated. Previous hop of a rollout: coordinator/driver/batch.c.  Next:
 * jobs/jobs.c, then engine/batch.c. */
#include <stdio.h>

#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/api/submission.h"
#include "services/trainer-server/board/authority.h"

static void fill(struct job *job, const void *request) { job->in.batch = *(const struct submit_batch *)request; }

static enum rc content_digest(struct digest *out, const struct submit_batch *m, struct err *err) {
  struct submit_batch content = *m;
  struct buf canonical = BUF_INIT;
  content.epoch = content.fence = 0;
  submit_batch_encode(&content, &canonical);
  return submission_digest(out, &canonical, err);
}

void handle_submit_batch(struct http_request *r, void *context) {
  struct trainer *t = context;
  const struct json *body = NULL;
  struct arena arena = ARENA_INIT;
  struct submit_batch request;
  struct digest digest;
  struct err err = {0};
  char id[LIMIT_NAME_MAX] = "";
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = submit_batch_decode(&request, body, &arena, &err);
  if (rc == RC_OK) rc = submission_check(r, t, request.epoch, request.fence, &err);
  if (rc == RC_OK) rc = board_check_version(trainer_board(t), request.run, request.version, &err);
  if (rc == RC_OK) rc = trainer_check_batch(t, &request, &err);
  if (rc == RC_OK) rc = content_digest(&digest, &request, &err);
  if (rc == RC_OK) {
    snprintf(id, sizeof id, "%s", request.batch_id);
    rc = submission_queue(t, id, JOB_BATCH, &digest, request.version, &arena, fill, &request, &err);
  }
  if (rc == RC_OK) {
    authority_accepted(trainer_board(t), request.epoch, request.fence);
    submission_accepted(r, t, JOB_BATCH, "batch_id", id);
  } else {
    http_fail(r, &err);
  }
  arena_free(&arena);
}
