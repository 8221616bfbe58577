/* Shared by the three submitting endpoints: a decoded request becomes a job, once.  Any handler thread.
 *
 * Idempotency is by id and by content.  Content is the canonical encoding of what the request asks for, without the
 * parts that change when it is rightly repeated: epoch and fence (a coordinator that restarted has newer ones) and,
 * of a step, where to push. */
#ifndef LEASEHOLD_TRAINER_SERVER_API_SUBMISSION_H
#define LEASEHOLD_TRAINER_SERVER_API_SUBMISSION_H

#include "services/trainer-server/engine/trainer.h"

/* 409 for a stale epoch or fence in the headers, before the body is read.  For http_route.admit. */
enum rc admit_submission(struct http_request *r, void *context, struct err *err);
/* The same of the body's epoch and fence; RC_INVALID when the headers say otherwise. */
enum rc submission_check(const struct http_request *r, struct trainer *t, uint64_t epoch, uint64_t fence,
                         struct err *err);
/* The digest of the canonical bytes, which are freed. */
enum rc submission_digest(struct digest *out, struct buf *canonical, struct err *err);
/* Registers, and queues when fresh: then the job takes over the arena's memory, and *arena is empty afterwards.  The
 * caller frees *arena in every case, and may not look at the request any more after RC_OK.  fill copies the decoded
 * request into the job. */
enum rc submission_queue(struct trainer *t, const char *id, enum job_kind kind, const struct digest *digest,
                         int64_t version, struct arena *arena, void (*fill)(struct job *job, const void *request),
                         const void *request, struct err *err);
/* 202 with the id and the job's state: "queued", or where a repeated one stands. */
void submission_accepted(struct http_request *r, struct trainer *t, enum job_kind kind, const char *id_key,
                         const char *id);

#endif
