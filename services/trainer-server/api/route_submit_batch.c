/* POST /v1/submit-batch: groups whose log-probabilities and gradients the engine computes next.  Idempotent by batch
 * id; refused under any other version than the current one or the one that a submitted step is about to make: such a
 * batch waits behind the step, and fails if that does. A batch that the engine could not compute is refused here, with
 * the field's path, before any of its groups is accumulated. Previous hop of a rollout: coordinator/driver/batch.c.
 * Next: jobs/jobs.c, then engine/batch.c. */
#include <stdio.h>

#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/api/submission.h"
#include "services/trainer-server/board/authority.h"

static void fill(struct job *job, const void *request) { job->in.batch = *(const struct submit_batch *)request; }

/* The coordinator sends safetensors; JSON is for people, who can read it. */
static enum rc decode(struct http_request *r, struct submit_batch *m, struct arena *arena, struct err *err) {
  const struct json *json;
  size_t len;
  const char *bytes = http_body(r, &len);
  if (http_body_is_bytes(r)) return submit_batch_decode_tensors(m, bytes, len, arena, err);
  const enum rc rc = http_body_json(r, &json, err);
  return rc == RC_OK ? submit_batch_decode(m, json, arena, err) : rc;
}

/* The step may end between two looks: then the last one finds the version current. */
static enum rc check_version(struct trainer *t, const struct submit_batch *m, struct err *err) {
  struct board *b = trainer_board(t);
  if (board_check_version(b, m->run, m->version, NULL) == RC_OK) return RC_OK;
  const bool next = jobs_step_under_way(trainer_jobs(t), m->version - 1) &&
                    board_check_version(b, m->run, m->version - 1, NULL) == RC_OK;
  return next ? RC_OK : board_check_version(b, m->run, m->version, err);
}

void handle_submit_batch(struct http_request *r, void *context) {
  struct trainer *t = context;
  struct arena arena = ARENA_INIT;
  struct submit_batch request;
  struct digest digest;
  struct err err = {0};
  char id[LIMIT_NAME_MAX] = "";
  enum rc rc = decode(r, &request, &arena, &err);
  if (rc == RC_OK) rc = submission_check(r, t, request.epoch, request.fence, &err);
  if (rc == RC_OK) rc = check_version(t, &request, &err);
  if (rc == RC_OK) rc = trainer_check_batch(t, &request, &err);
  if (rc == RC_OK) {
    submit_batch_digest(&digest, &request);
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
