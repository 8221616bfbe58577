/* The job table: a fixed number of hash chains under one lock; waiters are suspended requests with their
 * id. Answers are encoded without the lock, from jobs that `readers` keeps. */
#include "services/trainer-server/jobs/jobs.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

enum { CHAINS = 1024 };

struct waiter {
  struct http_request *request;
  char id[LIMIT_NAME_MAX];
  enum job_kind kind;
  struct jobs *jobs; /* constant: read before the lock is held */
  bool used;
};

struct jobs {
  pthread_mutex_t lock; /* guards everything below */
  struct job *chains[CHAINS];
  int count;
  struct waiter waiters[JOB_WAITERS_MAX];
};

static unsigned chain_of(const char *id) {
  uint32_t h = 2166136261u;
  for (; *id; id++) h = (h ^ (uint8_t)*id) * 16777619u;
  return h % CHAINS;
}

enum rc jobs_create(struct jobs **out, struct err *err) {
  struct jobs *j = calloc(1, sizeof *j);
  if (!j) return err_set(err, RC_NO_MEMORY, NULL, "the job table needs %zu bytes, which were refused", sizeof *j);
  pthread_mutex_init(&j->lock, NULL);
  for (int i = 0; i < JOB_WAITERS_MAX; i++) j->waiters[i].jobs = j;
  *out = j;
  return RC_OK;
}

static void job_free(struct job *job) {
  arena_free(&job->arena);
  free(job);
}

void jobs_destroy(struct jobs *j) {
  if (!j) return;
  for (int c = 0; c < CHAINS; c++) {
    for (struct job *job = j->chains[c], *next; job; job = next) {
      next = job->next;
      job_free(job);
    }
  }
  pthread_mutex_destroy(&j->lock);
  free(j);
}

static struct job *find(struct jobs *j, const char *id, enum job_kind kind) {
  for (struct job *job = j->chains[chain_of(id)]; job; job = job->next) {
    if (job->kind == kind && strcmp(job->id, id) == 0) return job;
  }
  return NULL;
}

/* With the lock held: takes the job at *at off its chain; its memory goes now, or with its last reader. */
static void drop_at(struct jobs *j, struct job **at) {
  struct job *job = *at;
  *at = job->next;
  j->count--;
  job->dropped = true;
  if (job->readers == 0) job_free(job);
}

static void drop(struct jobs *j, struct job *job) {
  struct job **at = &j->chains[chain_of(job->id)];
  while (*at != job) at = &(*at)->next;
  drop_at(j, at);
}

static void let_go(struct jobs *j, struct job *job) {
  pthread_mutex_lock(&j->lock);
  const bool last = --job->readers == 0 && job->dropped;
  pthread_mutex_unlock(&j->lock);
  if (last) job_free(job);
}

enum rc jobs_begin(struct jobs *j, const char *id, enum job_kind kind, const struct digest *request, int64_t version,
                   struct job **out, bool *fresh, struct err *err) {
  enum rc rc = RC_OK;
  pthread_mutex_lock(&j->lock);
  struct job *job = find(j, id, kind);
  *fresh = false;
  if (job && job->state == JOB_FAILED) { /* a failed job may be submitted anew */
    drop(j, job);
    job = NULL;
  }
  if (job) {
    if (!digest_equal(&job->request, request))
      rc = err_set(err, RC_CONFLICT, NULL, "job %s exists with other content", id);
  } else if (j->count >= JOBS_MAX) {
    rc = err_set(err, RC_FULL, NULL, "%d jobs are kept and none may be dropped yet", JOBS_MAX);
  } else if (!(job = calloc(1, sizeof *job))) {
    rc = err_set(err, RC_NO_MEMORY, NULL, "a job needs %zu bytes, which were refused", sizeof *job);
  } else {
    snprintf(job->id, sizeof job->id, "%s", id);
    job->kind = kind;
    job->state = JOB_QUEUED;
    job->request = *request;
    job->version = version;
    job->begun_ms = clock_wall_ms();
    log_context_save(&job->log);
    unsigned chain = chain_of(id);
    job->next = j->chains[chain];
    j->chains[chain] = job;
    j->count++;
    *fresh = true;
  }
  pthread_mutex_unlock(&j->lock);
  *out = rc == RC_OK ? job : NULL;
  return rc;
}

bool jobs_known(struct jobs *j, const char *id, enum job_kind kind) {
  pthread_mutex_lock(&j->lock);
  bool known = find(j, id, kind) != NULL;
  pthread_mutex_unlock(&j->lock);
  return known;
}

bool jobs_step_under_way(struct jobs *j, int64_t version) {
  bool found = false;
  pthread_mutex_lock(&j->lock);
  for (int c = 0; c < CHAINS && !found; c++)
    for (const struct job *job = j->chains[c]; job && !found; job = job->next)
      found =
          job->kind == JOB_STEP && job->version == version && (job->state == JOB_QUEUED || job->state == JOB_RUNNING);
  pthread_mutex_unlock(&j->lock);
  return found;
}

enum job_state jobs_state(struct jobs *j, const char *id, enum job_kind kind) {
  pthread_mutex_lock(&j->lock);
  const struct job *job = find(j, id, kind);
  const enum job_state state = job ? job->state : JOB_QUEUED;
  pthread_mutex_unlock(&j->lock);
  return state;
}

void jobs_running(struct jobs *j, struct job *job) {
  pthread_mutex_lock(&j->lock);
  job->state = JOB_RUNNING;
  pthread_mutex_unlock(&j->lock);
}

/* state is the job's when it was looked at: one that had not ended may have by now, and its results are not read. */
static struct batch_status batch_status_of(const struct job *job, enum job_state state, int numbers) {
  struct batch_status s = {0};
  if (state == JOB_DONE) {
    s = job->out.batch;
    logprobs_digest(&s.logprobs_sha256, s.samples, s.sample_count);
    if (!numbers) s.sample_count = 0;
  }
  if (state == JOB_FAILED) s.error = job->error;
  s.batch_id = job->id;
  s.state = state;
  s.numbers = numbers;
  return s;
}

static void status_body(const struct job *job, enum job_state state, struct buf *body) {
  if (job->kind == JOB_STEP) {
    struct step_status s = {0};
    if (state == JOB_DONE) s = job->out.step;
    if (state == JOB_FAILED) s.error = job->error;
    s.step_id = job->id;
    s.state = state;
    step_status_encode(&s, body);
  } else {
    open_run_answer_encode(&job->out.open, body);
  }
}

static void reply_batch(struct http_request *r, const struct job *job, enum job_state state) {
  const char *form = http_query(r, "form");
  const bool tensors = form && strcmp(form, "tensors") == 0;
  int64_t with_logprobs = 1, with_entropies = 0;
  struct buf body = BUF_INIT;
  struct err err;
  http_query_i64(r, "logprobs", 1, 0, 1, &with_logprobs, NULL); /* its route has judged all three */
  http_query_i64(r, "entropies", 0, 0, 1, &with_entropies, NULL);
  const int numbers =
      (with_logprobs ? STATUS_LOGPROBS : 0) | (with_entropies && (tensors || with_logprobs) ? STATUS_ENTROPIES : 0);
  const struct batch_status s = batch_status_of(job, state, numbers);
  if (!tensors) {
    batch_status_encode(&s, &body);
    http_reply_json(r, 200, &body);
  } else if (batch_status_encode_tensors(&s, &body, &err) == RC_OK) {
    http_reply(r, 200, "application/octet-stream", &body);
  } else {
    buf_free(&body);
    http_fail(r, &err);
  }
}

/* Without the lock, from a job that is held. */
static void reply_job(struct http_request *r, const struct job *job, enum job_state state) {
  if (job->kind == JOB_OPEN_RUN && state == JOB_FAILED) {
    http_fail(r, &job->error);
    return;
  }
  if (job->kind == JOB_BATCH) {
    reply_batch(r, job, state);
    return;
  }
  struct buf body = BUF_INIT;
  status_body(job, state, &body);
  http_reply_json(r, 200, &body);
}

/* Takes the next request that waits for the job off the list, NULL when there is none; with the lock held. The thread
 * that takes it replies. */
static struct http_request *take_waiter(struct jobs *j, const struct job *job, int *from) {
  for (; *from < JOB_WAITERS_MAX; (*from)++) {
    struct waiter *w = &j->waiters[*from];
    if (!w->used || w->kind != job->kind || strcmp(w->id, job->id) != 0) continue;
    w->used = false;
    return w->request;
  }
  return NULL;
}

static bool ended(const struct job *job) { return job->state == JOB_DONE || job->state == JOB_FAILED; }

void jobs_finish(struct jobs *j, struct job *job, const struct err *error) {
  const enum job_state state = error ? JOB_FAILED : JOB_DONE;
  struct http_request *waiting[JOB_WAITERS_MAX];
  int count = 0, from = 0;
  pthread_mutex_lock(&j->lock);
  if (error) job->error = *error;
  job->state = state;
  for (struct http_request *r; (r = take_waiter(j, job, &from));) waiting[count++] = r;
  job->readers++;
  pthread_mutex_unlock(&j->lock);
  for (int i = 0; i < count; i++) reply_job(waiting[i], job, state);
  let_go(j, job);
}

void jobs_cancel(struct jobs *j, struct job *job) {
  struct err e;
  err_set(&e, RC_UNAVAILABLE, NULL, "job %s could not be queued; submit it again", job->id);
  pthread_mutex_lock(&j->lock);
  int from = 0;
  for (struct http_request *r; (r = take_waiter(j, job, &from));) http_fail(r, &e);
  drop(j, job);
  pthread_mutex_unlock(&j->lock);
}

static void fail_unknown(struct http_request *r, const char *id) {
  struct err e;
  err_set(&e, RC_NOT_FOUND, NULL, "no such job: %s", id);
  http_fail(r, &e);
}

/* The wait is over, the peer hung up, or the server stops: answer with the state as it is, unless jobs_finish was
 * faster. The slot may have been given to another request by then, but not to one at the same address: http keeps r
 * while this runs. */
static void wait_over(struct http_request *r, enum http_cancel why, void *context) {
  struct waiter *w = context;
  struct jobs *j = w->jobs;
  struct job *job = NULL;
  enum job_state state = JOB_QUEUED;
  struct err e;
  pthread_mutex_lock(&j->lock);
  const bool mine = w->used && w->request == r;
  if (mine) {
    w->used = false;
    job = find(j, w->id, w->kind);
    if (job && !ended(job) && job->kind == JOB_OPEN_RUN) job = NULL; /* it has no status but its end */
    if (job) job->readers++, state = job->state;
    if (why == HTTP_CANCEL_SHUTDOWN)
      err_set(&e, RC_UNAVAILABLE, NULL, "the trainer stops before job %s ended", w->id);
    else
      err_set(&e, RC_TIMEOUT, NULL, "job %s did not end within the wait", w->id);
  }
  pthread_mutex_unlock(&j->lock);
  if (!mine) return;
  if (!job) {
    http_fail(r, &e);
    return;
  }
  reply_job(r, job, state);
  let_go(j, job);
}

/* With the lock held: false when there is no room. */
static bool wait_for(struct jobs *j, const struct job *job, struct http_request *r, int64_t wait_ms) {
  struct waiter *w = j->waiters;
  while (w < j->waiters + JOB_WAITERS_MAX && w->used) w++;
  if (w == j->waiters + JOB_WAITERS_MAX) return false;
  w->request = r;
  w->kind = job->kind;
  w->used = true;
  snprintf(w->id, sizeof w->id, "%s", job->id);
  http_suspend(r, wait_ms, wait_over, w);
  return true;
}

void jobs_answer(struct jobs *j, const char *id, enum job_kind kind, struct http_request *r, int64_t wait_ms) {
  enum { UNKNOWN, READ, WAITS, NO_ROOM } what;
  enum job_state state = JOB_QUEUED;
  pthread_mutex_lock(&j->lock);
  struct job *job = find(j, id, kind);
  if (!job) {
    what = UNKNOWN;
  } else if (ended(job) || (wait_ms == 0 && kind != JOB_OPEN_RUN)) {
    what = READ;
    state = job->state;
    job->readers++;
  } else {
    what = wait_for(j, job, r, wait_ms)
               ? WAITS
               : NO_ROOM; /* a waiting request may be answered as soon as the lock is released */
  }
  pthread_mutex_unlock(&j->lock);
  if (what == UNKNOWN) {
    fail_unknown(r, id);
  } else if (what == READ) {
    reply_job(r, job, state);
    let_go(j, job);
  } else if (what == NO_ROOM) {
    struct err e;
    err_set(&e, RC_FULL, NULL, "%d requests wait for jobs already", JOB_WAITERS_MAX);
    http_fail(r, &e);
  }
}

void jobs_forget_before(struct jobs *j, int64_t version) {
  pthread_mutex_lock(&j->lock);
  for (int c = 0; c < CHAINS; c++) {
    for (struct job **at = &j->chains[c]; *at;) {
      if (ended(*at) && (*at)->version < version)
        drop_at(j, at);
      else
        at = &(*at)->next;
    }
  }
  pthread_mutex_unlock(&j->lock);
}
