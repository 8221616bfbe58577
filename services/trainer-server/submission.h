/* What the three submitting endpoints share: a body becomes a job, once. */
#ifndef LEASEHOLD_TRAINER_SUBMISSION_H
#define LEASEHOLD_TRAINER_SUBMISSION_H

#include "services/trainer-server/trainer.h"

/* Parses the body into a JSON tree that the job will own. */
enum rc submission_parse(struct http_request *r, size_t bytes_max, struct json **body, struct digest *digest, struct err *err);
/* Registers, and queues when fresh.  The job takes over body and arena (both freed here when it is a repeat or refused). fill copies the decoded request into the job. */
enum rc submission_queue(struct trainer *t, const char *id, enum job_kind kind, const struct digest *digest, int64_t version, struct json *body, struct arena *arena,
                         void (*fill)(struct job *job, const void *request), const void *request, struct err *err);
/* 202 {"id","state"}. */
void submission_accepted(struct http_request *r, const char *id_key, const char *id);

#endif
