/* POST /v1/runs: the run that this trainer works on from now. Idempotent: a run that is current answers with its
 * version, whatever the trainer lived through; under another configuration it is a conflict. The answer waits for the
 * engine, which freezes the reference and writes the checkpoint of version 0. */
#include <stdio.h>
#include <string.h>

#include "services/trainer-server/routes.h"
#include "services/trainer-server/submission.h"

enum { OPEN_WAIT_MS = 60000 };

static void fill(struct job *job, const void *request) { job->in.open = *(const struct open_run *)request; }

static void answer_current(struct http_request *r, const struct trainer_view *v, const struct digest *digest) {
  struct buf body = BUF_INIT;
  struct err err;
  if (digest_equal(&v->run_digest, digest)) {
    open_run_answer_encode(&(struct open_run_answer){.run = v->run, .version = v->version, .digest = v->digest}, &body);
    http_reply_json(r, 200, &body);
    return;
  }
  err_set(&err, RC_CONFLICT, "training", "run %s is this trainer's, with another seed or training configuration",
          v->run);
  http_fail(r, &err);
}

void handle_open_run(struct http_request *r, void *context) {
  struct trainer *t = context;
  const struct json *body = NULL;
  struct arena arena = ARENA_INIT;
  struct open_run request;
  struct digest digest;
  struct err err = {0};
  struct trainer_view v;
  char id[LIMIT_NAME_MAX] = "";
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = open_run_decode(&request, body, &arena, &err);
  if (rc == RC_OK) rc = trainer_check_authority(t, request.epoch, request.fence, &err);
  if (rc == RC_OK) rc = trainer_check_config(t, &request.training, &err);
  if (rc == RC_OK) rc = trainer_run_digest(&digest, &request, &err);
  trainer_view(t, &v);
  if (rc == RC_OK && strcmp(v.run, request.run) == 0) {
    answer_current(r, &v, &digest);
    goto out;
  }
  if (rc == RC_OK) {
    snprintf(id, sizeof id, "%s", request.run);
    jobs_forget_before(trainer_jobs(t), INT64_MAX); /* ended jobs of earlier runs */
    rc = submission_queue(t, id, JOB_OPEN_RUN, &digest, 0, &arena, fill, &request, &err);
  }
  if (rc == RC_OK)
    jobs_answer(trainer_jobs(t), id, JOB_OPEN_RUN, r, OPEN_WAIT_MS);
  else
    http_fail(r, &err);
out:
  arena_free(&arena);
}
