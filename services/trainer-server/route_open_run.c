/* POST /v1/runs: the run that this trainer works on from now.  Idempotent: a run that is current answers with its version, whatever the trainer lived through. */
#include <string.h>

#include "services/trainer-server/routes.h"
#include "services/trainer-server/submission.h"

enum { OPEN_WAIT_MS = 60000 };

static void fill(struct job *job, const void *request) {
  job->in.open = *(const struct open_run *)request;
}

static void reply_current(struct http_request *r, const struct trainer_view *v) {
  struct buf body = BUF_INIT;
  open_run_answer_encode(&(struct open_run_answer){.run = v->run, .version = v->version, .digest = v->digest}, &body);
  http_reply_json(r, 200, &body);
}

void handle_open_run(struct http_request *r, void *context) {
  struct trainer *t = context;
  struct json *body = NULL;
  struct arena arena = ARENA_INIT;
  struct open_run request;
  struct digest digest;
  struct err err = {0};
  struct trainer_view v;
  char id[LIMIT_NAME_MAX] = "";
  enum rc rc = submission_parse(r, LIMIT_BODY_BYTES, &body, &digest, &err);
  if (rc == RC_OK) rc = open_run_decode(&request, body, &arena, &err);
  if (rc == RC_OK) rc = trainer_check_authority(t, request.epoch, request.fence, &err);
  if (rc == RC_OK) rc = trainer_check_config(t, &request.training, &err);
  if (rc != RC_OK) {
    json_free(body);
    arena_free(&arena);
    http_fail(r, &err);
    return;
  }
  trainer_view(t, &v);
  if (strcmp(v.run, request.run) == 0) {
    json_free(body);
    arena_free(&arena);
    reply_current(r, &v);
    return;
  }
  strncpy(id, request.run, sizeof id - 1);
  jobs_forget_before(trainer_jobs(t), INT64_MAX); /* finished jobs of earlier runs */
  rc = submission_queue(t, id, JOB_OPEN_RUN, &digest, 0, body, &arena, fill, &request, &err);
  if (rc == RC_OK) jobs_answer(trainer_jobs(t), id, JOB_OPEN_RUN, r, OPEN_WAIT_MS);
  else http_fail(r, &err);
}
