/* POST /v1/submit-batch: groups whose log-probabilities and gradients the engine computes next.  Idempotent by batch id; refused under any other version.
 * Previous hop of a rollout: coordinator/driver.c.  Next: trainer.c's job_batch. */
#include <string.h>

#include "services/trainer-server/routes.h"
#include "services/trainer-server/submission.h"

static void fill(struct job *job, const void *request) { job->in.batch = *(const struct submit_batch *)request; }

void handle_submit_batch(struct http_request *r, void *context) {
  struct trainer *t = context;
  struct json *body = NULL;
  struct arena arena = ARENA_INIT;
  struct submit_batch request;
  struct digest digest;
  struct err err = {0};
  char id[LIMIT_NAME_MAX] = "";
  enum rc rc = submission_parse(r, LIMIT_BATCH_BODY_BYTES, &body, &digest, &err);
  if (rc == RC_OK) rc = submit_batch_decode(&request, body, &arena, &err);
  if (rc == RC_OK) rc = trainer_check_authority(t, request.epoch, request.fence, &err);
  if (rc == RC_OK) rc = trainer_check_version(t, request.run, request.version, &err);
  if (rc != RC_OK) {
    json_free(body);
    arena_free(&arena);
    http_fail(r, &err);
    return;
  }
  strncpy(id, request.batch_id, sizeof id - 1);
  rc = submission_queue(t, id, JOB_BATCH, &digest, request.version, body, &arena, fill, &request, &err);
  if (rc == RC_OK) submission_accepted(r, "batch_id", id);
  else http_fail(r, &err);
}
