/* See submission.h. */
#include "services/trainer-server/submission.h"

enum rc submission_parse(struct http_request *r, size_t bytes_max, struct json **body, struct digest *digest, struct err *err) {
  size_t len;
  const char *bytes = http_body(r, &len);
  digest_of(digest, bytes, len);
  return json_parse(body, bytes, len, bytes_max, err);
}

enum rc submission_queue(struct trainer *t, const char *id, enum job_kind kind, const struct digest *digest, int64_t version, struct json *body, struct arena *arena,
                         void (*fill)(struct job *job, const void *request), const void *request, struct err *err) {
  struct job *job;
  bool fresh;
  enum rc rc = jobs_begin(trainer_jobs(t), id, kind, digest, version, &job, &fresh, err);
  if (rc != RC_OK || !fresh) {
    json_free(body);
    arena_free(arena);
    return rc;
  }
  job->body = body;
  job->arena = *arena;
  fill(job, request);
  rc = trainer_enqueue(t, job, err);
  if (rc != RC_OK) jobs_cancel(trainer_jobs(t), job);
  return rc;
}

void submission_accepted(struct http_request *r, const char *id_key, const char *id) {
  struct buf body = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_kv_string(&w, id_key, id);
  json_kv_string(&w, "state", job_state_name(JOB_QUEUED));
  json_object_end(&w);
  http_reply_json(r, 202, &body);
}
