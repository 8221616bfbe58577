/* POST /v1/check-run: checks whether such a run could be opened here.  It promises nothing, and
 * changes nothing but that the checkpoint to start from stays for a quarter of an hour.  The coordinator asks before it
 * takes a run, so that the client who posts the run learns what this trainer would refuse. */
#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/engine/trainer.h"

void handle_check_run(struct http_request *r, void *context) {
  struct trainer *t = context;
  const struct json *body = NULL;
  struct check_run request;
  struct err err = {0};
  struct buf out = BUF_INIT;
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = check_run_decode(&request, body, http_arena(r), &err);
  if (rc == RC_OK) {
    const struct open_run run = {.run = "", .start = request.start, .training = request.training};
    rc = trainer_foresee_run(t, &run, &err);
  }
  if (rc != RC_OK) {
    http_fail(r, &err);
    return;
  }
  check_run_answer_encode(&(struct check_run_answer){.context_max = trainer_context_max(t)}, &out);
  http_reply_json(r, 200, &out);
}
