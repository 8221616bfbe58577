/* The trainer's jobs by id: batches, steps and run openings; idempotency and long polls.
 *
 *   (unknown) --jobs_begin--> QUEUED --engine--> RUNNING --> DONE | FAILED
 *
 * A repeated id returns the job that exists when its request digest is the same, RC_CONFLICT when not; a failed job may
 * be submitted anew. Ended jobs are kept until jobs_forget_before drops those of old versions; a job that has not ended
 * belongs to the thread that works on it (submitter, engine, publisher in turn) and is never dropped.  Waiting requests
 * are suspended connections, answered when the job ends or their wait is over.  `lock` guards the table, every job's
 * state, and the waiters; a job's request and result memory (its arena) is written by its owner only before the state
 * becomes DONE or FAILED, and only read after.  Answers may be megabytes of log-probabilities, so they are encoded
 * without the lock: `readers` counts the threads that do, and the last of them frees a job that was dropped meanwhile.
 * Order of locks: jobs before the http server's, which never calls back with its own held.
 *
 * Previous hop of a rollout: api/route_submit_batch.c.  Next: engine/batch.c. */
#ifndef LEASEHOLD_TRAINER_SERVER_JOBS_JOBS_H
#define LEASEHOLD_TRAINER_SERVER_JOBS_JOBS_H

#include "common/base/arena.h"
#include "common/base/log.h"
#include "common/http/server.h"
#include "common/wire/training.h"

enum job_kind { JOB_OPEN_RUN, JOB_BATCH, JOB_STEP };
/* Two full rounds of one-group batches with a check and an inner step each, the step's answer and repeats included: see
 * jobs_forget_before. */
enum { JOBS_MAX = 7 * LIMIT_GROUPS_PER_ROUND, JOB_WAITERS_MAX = 1024 };

struct job {
  char id[LIMIT_NAME_MAX];
  enum job_kind kind;
  enum job_state state;
  struct digest request; /* of its content: tells a repeat from a conflict */
  int64_t version;       /* the version that the job was submitted under */
  int64_t begun_ms;      /* when it was submitted, by the wall clock */
  struct arena arena;    /* request and result */
  struct log_context log; /* of the request that brought it */
  union {
    struct open_run open;
    struct submit_batch batch;
    struct submit_step step;
  } in;
  union {
    struct open_run_answer open;
    struct batch_status batch;
    struct step_status step;
  } out;
  struct err error;
  int readers;      /* threads that encode an answer from it, outside the lock */
  bool dropped;     /* out of the table, and freed by its last reader */
  struct job *next; /* hash chain */
};

struct jobs;
enum rc jobs_create(struct jobs **out, struct err *err);
void jobs_destroy(struct jobs *j);

/* Looks up or registers a job; *fresh tells which. A fresh job has only the fields above `arena` set, and is not queued
 * yet. */
enum rc jobs_begin(struct jobs *j, const char *id, enum job_kind kind, const struct digest *request, int64_t version,
                   struct job **out, bool *fresh, struct err *err);
bool jobs_known(struct jobs *j, const char *id, enum job_kind kind);
/* Has a step from `version` been submitted, and neither ended nor failed? */
bool jobs_step_under_way(struct jobs *j, int64_t version);
/* JOB_QUEUED when it is not known (any more). */
enum job_state jobs_state(struct jobs *j, const char *id, enum job_kind kind);
/* Undoes a fresh job that could not be queued; requests that began to wait for it in between get 503. */
void jobs_cancel(struct jobs *j, struct job *job);
void jobs_running(struct jobs *j, struct job *job);
/* error NULL: done. Answers the waiters.  The job is the table's again: it may be dropped before this returns to the
 * caller. */
void jobs_finish(struct jobs *j, struct job *job, const struct err *error);
/* Replies with the job's status now or, if it has not ended, when it ends or wait_ms are over; replies 404 when there
 * is none of this kind.  Consumes the request. */
void jobs_answer(struct jobs *j, const char *id, enum job_kind kind, struct http_request *r, int64_t wait_ms);
/* Drops finished jobs of versions before `version` (all of them when another run begins: version INT64_MAX). */
void jobs_forget_before(struct jobs *j, int64_t version);

#endif
