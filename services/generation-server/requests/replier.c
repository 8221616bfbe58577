/* Answers calls that are told whole: scans their texts, writes them in their shape, releases them, replies.
 *
 * Previous hop: requests.c (the last job has ended) or streamer.c (the same, of a call with stop texts).  Next: the
 * HTTP layer. */
#include "services/generation-server/requests/replier.h"

#include <pthread.h>
#include <stdlib.h>

#include "common/base/log.h"
#include "common/base/queue.h"

enum { REPLIER_NAP_MS = 500 };

struct replier {
  struct queue *finished; /* of struct generate_call */
  pthread_t thread;
  bool started;
};

void replier_take(struct replier *r, struct generate_call *call) {
  if (queue_push(r->finished, call) != RC_OK)
    log_error("a request gets no answer: the replier's queue is full or closed");
}

static void reply(struct generate_call *call) {
  struct http_request *request = call->request;
  struct admission *admission = call->admission;
  struct choice_scratch scratch = {0};
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = call->refusal;
  if (atomic_load(&call->hung_up)) err_set(&err, RC_GONE, NULL, "the client has hung up");
  enum rc rc = err.rc;
  json_writer_init(&w, &body);
  for (int i = 0; i < call->choice_count && rc == RC_OK; i++) rc = choice_scan(&call->choices[i], &scratch, &err);
  if (rc == RC_OK) rc = call->shape->whole(call, &scratch, &w, &err);
  choice_scratch_free(&scratch);
  generate_call_release(call);
  http_reply_json_or_fail(request, rc, &body, &err);
  admission_leave(admission);
}

static void *replier_main(void *argument) {
  struct replier *r = argument;
  for (;;) {
    void *item;
    const enum rc rc = queue_pop(r->finished, &item, REPLIER_NAP_MS);
    if (rc == RC_OK)
      reply(item);
    else if (rc != RC_TIMEOUT)
      return NULL; /* closed and empty */
  }
}

enum rc replier_start(struct replier **out, struct err *err) {
  *out = NULL;
  struct replier *r = calloc(1, sizeof *r);
  if (!r) return err_set(err, RC_NO_MEMORY, NULL, "the replier was refused its memory");
  enum rc rc = queue_create(&r->finished, LIMIT_QUEUED_REQUESTS + 1, err);
  if (rc == RC_OK && pthread_create(&r->thread, NULL, replier_main, r) != 0)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the replier's thread could not be made");
  r->started = rc == RC_OK;
  if (rc != RC_OK) {
    replier_stop(r);
    return rc;
  }
  *out = r;
  return RC_OK;
}

void replier_stop(struct replier *r) {
  if (!r) return;
  if (r->finished) queue_close(r->finished);
  if (r->started) pthread_join(r->thread, NULL);
  queue_destroy(r->finished);
  free(r);
}
