/* Submits the jobs of a call to the engine and hands the call on when the last of them has ended.
 *
 * A call has one share for each job that the engine has, and one for the thread that submits them: the last share to go
 * hands it to the streamer or the replier.
 *
 * Previous hop of a plain request: a route of api/, through generate_call.c.  Next: engine.c,
 * then streamer.c or replier.c. */
#include "services/generation-server/requests/requests.h"

#include <stdlib.h>

#include "services/generation-server/requests/replier.h"
#include "services/generation-server/requests/streamer.h"

enum { WHOLE_DEADLINE_MS = 600000, STREAM_DEADLINE_MS = 3600000 };

struct requests {
  struct admission *admission;
  struct streamer *streamer;
  struct replier *replier;
  struct open_calls open;
};

/* The thread that gives up the last share hands the call on and must not touch it afterwards. */
static void give_up_shares(struct generate_call *call, int count) {
  struct requests *q = call->requests;
  const bool followed = call->followed;
  if (count == 0 || atomic_fetch_sub(&call->shares, count) != count) return;
  if (followed)
    streamer_over(q->streamer, call);
  else
    replier_take(q->replier, call);
}

/* On the engine's thread. */
static void on_done(struct decode_job *job, void *context) {
  (void)job;
  give_up_shares(context, 1);
}

static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct generate_call *call = context;
  (void)r;
  atomic_store(&call->hung_up, why == HTTP_CANCEL_HANGUP);
  atomic_store(&call->abandoned, true); /* the engine then ends the jobs, and the owner of the call replies */
}

static void tie_jobs(struct requests *q, struct generate_call *call) {
  call->requests = q;
  call->link = (struct open_link){.name = call->id, .abandoned = &call->abandoned};
  open_calls_add(call->open = &q->open, &call->link);
  for (int i = 0; i < call->job_count; i++) {
    struct decode_job *job = call->jobs[i];
    job->context = call;
    job->done = on_done;
    job->abandoned = &call->abandoned;
    if (call->parts && call->parts[i].link.name) {
      job->abandoned_alone = &call->parts[i].abandoned;
      open_calls_add(&q->open, &call->parts[i].link);
    }
    if (call->followed) job->follower = streamer_follower(q->streamer);
  }
}

/* From here on the next owner of the call replies, even when not all jobs found a place in the engine's inbox. */
static void submit_jobs(struct generate_call *call, struct engine *engine) {
  int submitted = 0;
  struct err refusal = {0};
  while (submitted < call->job_count && engine_submit(engine, call->jobs[submitted], &refusal) == RC_OK) submitted++;
  if (submitted < call->job_count) {
    call->refusal = refusal;
    atomic_store(&call->abandoned, true);
  }
  give_up_shares(call, 1 + call->job_count - submitted);
}

enum rc requests_submit(struct requests *q, struct http_request *r, const struct generate_params *p, struct err *err) {
  struct generate_call *call;
  struct loaded_model *loaded = admission_model(q->admission, true, err);
  if (!loaded) return err->rc;
  enum rc rc = admission_check_name(q->admission, loaded, p->model, err);
  if (rc == RC_OK) rc = generate_call_make(&call, q->admission, loaded, r, p, err);
  if (rc != RC_OK) return rc;
  tie_jobs(q, call);
  atomic_store(&call->shares, call->job_count + 1);
  admission_enter(q->admission);
  http_release_body(r); /* the jobs have their own copies, and may wait long */
  http_suspend(r, call->stream ? STREAM_DEADLINE_MS : WHOLE_DEADLINE_MS, on_cancelled, call);
  if (call->followed) streamer_follow(q->streamer, call);
  submit_jobs(call, loaded->engine);
  return RC_OK;
}

int requests_abort(struct requests *q, const char *id) { return open_calls_abort(&q->open, id); }

/* --- life --- */

enum rc requests_start(struct requests **out, struct admission *admission, int stream_stall_ms, struct err *err) {
  *out = NULL;
  struct requests *q = calloc(1, sizeof *q);
  if (!q) return err_set(err, RC_NO_MEMORY, NULL, "plain requests were refused their memory");
  q->admission = admission;
  open_calls_init(&q->open);
  enum rc rc = replier_start(&q->replier, err);
  if (rc == RC_OK) rc = streamer_start(&q->streamer, q->replier, stream_stall_ms, err);
  if (rc != RC_OK) {
    requests_stop(q);
    return rc;
  }
  *out = q;
  return RC_OK;
}

void requests_stop(struct requests *q) {
  if (!q) return;
  streamer_stop(q->streamer);
  replier_stop(q->replier);
  open_calls_destroy(&q->open);
  free(q);
}
