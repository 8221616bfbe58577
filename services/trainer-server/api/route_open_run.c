/* POST /v1/runs: the run that this trainer works on from now. Idempotent: a run that is current answers with its
 * version, also after restarts; under another configuration it is a conflict. A version older than the
 * one that the coordinator has recorded makes the trainer replay.  The answer waits for the engine, which freezes the
 * reference and writes the checkpoint of version 0. */
#include <stdio.h>
#include <string.h>

#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/api/submission.h"
#include "services/trainer-server/board/authority.h"

enum { OPEN_WAIT_MS = 60000 };

static void fill(struct job *job, const void *request) { job->in.open = *(const struct open_run *)request; }

/* The run was current when the view was taken. */
static void answer_current(struct http_request *r, struct trainer *t, const struct board_view *seen,
                           const struct open_run *request, const struct digest *digest) {
  struct board_view v;
  struct buf body = BUF_INIT;
  struct err err;
  if (!digest_equal(&seen->run_digest, digest)) {
    err_set(&err, RC_CONFLICT, "training", "run %s is this trainer's, with another seed or training configuration",
            request->run);
    http_fail(r, &err);
    return;
  }
  board_attach(trainer_board(t), request->run, request->current_version, &v);
  if (strcmp(v.run, request->run) != 0) {
    err_set(&err, RC_UNAVAILABLE, "run", "another run is being opened; ask again");
    http_fail(r, &err);
    return;
  }
  authority_accepted(trainer_board(t), request->epoch, request->fence);
  const struct open_run_answer answer = {
      .run = v.run, .version = v.version, .digest = v.digest, .replaying = board_replaying(&v)};
  open_run_answer_encode(&answer, &body);
  http_reply_json(r, 200, &body);
}

void handle_open_run(struct http_request *r, void *context) {
  struct trainer *t = context;
  const struct json *body = NULL;
  struct arena arena = ARENA_INIT;
  struct open_run request;
  struct digest digest;
  struct err err = {0};
  struct board_view v;
  char id[LIMIT_NAME_MAX] = "";
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = open_run_decode(&request, body, &arena, &err);
  if (rc == RC_OK) rc = submission_check(r, t, request.epoch, request.fence, &err);
  if (rc == RC_OK) rc = trainer_check_run(t, &request, &err);
  if (rc == RC_OK) rc = trainer_run_digest(&digest, &request, &err);
  board_view(trainer_board(t), &v);
  if (rc == RC_OK && strcmp(v.run, request.run) == 0) {
    answer_current(r, t, &v, &request, &digest);
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
