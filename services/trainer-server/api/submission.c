/* Registers decoded requests as jobs, and queues them for the engine. */
#include "services/trainer-server/api/submission.h"

#include "common/base/log.h"
#include "common/wire/claim.h"
#include "services/trainer-server/board/authority.h"

static enum rc read_claim(struct claim *out, const struct http_request *r, struct err *err) {
  return claim_read(out, http_header(r, CLAIM_EPOCH_HEADER), http_header(r, CLAIM_FENCE_HEADER), NULL, err);
}

enum rc admit_submission(struct http_request *r, void *context, struct err *err) {
  struct claim claim;
  const enum rc rc = read_claim(&claim, r, err);
  if (rc != RC_OK || !claim.has_epoch || !claim.has_fence) return rc;
  return authority_check(trainer_board(context), claim.epoch, claim.fence, err);
}

enum rc submission_check(const struct http_request *r, struct trainer *t, uint64_t epoch, uint64_t fence,
                         struct err *err) {
  struct claim claim;
  enum rc rc = read_claim(&claim, r, err);
  if (rc == RC_OK) rc = claim_agrees(&claim, epoch, fence, NULL, err);
  return rc == RC_OK ? authority_check(trainer_board(t), epoch, fence, err) : rc;
}

enum rc submission_digest(struct digest *out, struct buf *canonical, struct err *err) {
  enum rc rc = buf_check(canonical, err);
  if (rc == RC_OK) digest_of(out, canonical->data, canonical->len);
  buf_free(canonical);
  return rc;
}

enum rc submission_queue(struct trainer *t, const char *id, enum job_kind kind, const struct digest *digest,
                         int64_t version, struct arena *arena, void (*fill)(struct job *job, const void *request),
                         const void *request, struct err *err) {
  struct job *job;
  bool fresh;
  log_context_id(id);
  log_context_number(LOG_VERSION, version);
  enum rc rc = jobs_begin(trainer_jobs(t), id, kind, digest, version, &job, &fresh, err);
  if (rc != RC_OK || !fresh) return rc;
  job->arena = *arena; /* until it is queued the job is this thread's: others see its id and state only */
  *arena = (struct arena)ARENA_INIT;
  fill(job, request);
  rc = trainer_enqueue(t, job, err);
  if (rc != RC_OK) jobs_cancel(trainer_jobs(t), job);
  return rc;
}

void submission_accepted(struct http_request *r, struct trainer *t, enum job_kind kind, const char *id_key,
                         const char *id) {
  struct buf body = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_kv_string(&w, id_key, id);
  json_kv_string(&w, "state", job_state_name(jobs_state(trainer_jobs(t), id, kind)));
  json_object_end(&w);
  http_reply_json(r, 202, &body);
}
