/* POST /v1/submit-step: one optimizer step over exactly the groups named.  Idempotent by step id: a repeat after the step was taken is answered from the job, not by a second step. */
#include <string.h>

#include "services/trainer-server/routes.h"
#include "services/trainer-server/submission.h"

static void fill(struct job *job, const void *request) { job->in.step = *(const struct submit_step *)request; }

void handle_submit_step(struct http_request *r, void *context) {
  struct trainer *t = context;
  struct json *body = NULL;
  struct arena arena = ARENA_INIT;
  struct submit_step request;
  struct digest digest;
  struct err err = {0};
  struct trainer_view v;
  char id[LIMIT_NAME_MAX] = "";
  enum rc rc = submission_parse(r, LIMIT_BODY_BYTES, &body, &digest, &err);
  if (rc == RC_OK) rc = submit_step_decode(&request, body, &arena, &err);
  if (rc == RC_OK) rc = trainer_check_authority(t, request.epoch, request.fence, &err);
  trainer_view(t, &v);
  bool taken = rc == RC_OK && strcmp(v.run, request.run) == 0 && v.version == request.version + 1; /* a repeat, unless the job is unknown: then the version is superseded */
  if (rc == RC_OK && !(taken && jobs_known(trainer_jobs(t), request.step_id, JOB_STEP))) rc = trainer_check_version(t, request.run, request.version, &err);
  if (rc != RC_OK) {
    json_free(body);
    arena_free(&arena);
    http_fail(r, &err);
    return;
  }
  strncpy(id, request.step_id, sizeof id - 1);
  rc = submission_queue(t, id, JOB_STEP, &digest, request.version, body, &arena, fill, &request, &err);
  if (rc == RC_OK) submission_accepted(r, "step_id", id);
  else http_fail(r, &err);
}
