/* The job table: one job per id and content, waiters answered exactly once (end, deadline, hang-up, shutdown), and
 * only ended jobs are ever dropped. */
#include "tests/unit/trainer-server/support.h"

#include "common/http/status.h"

static struct jobs *table;
static struct http_server *server;
static char url[64];
static atomic_int asked; /* how often: each is answered, or waits */

static void handle_wait(struct http_request *r, void *context) {
  (void)context;
  struct err err = {0};
  int64_t wait_ms, kind;
  if (http_query_i64(r, "wait_ms", 0, 0, LIMIT_WAIT_MS_MAX, &wait_ms, &err) != RC_OK ||
      http_query_i64(r, "kind", JOB_BATCH, 0, 2, &kind, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  jobs_answer(table, http_param(r, "id"), (enum job_kind)kind, r, wait_ms);
  atomic_fetch_add(&asked, 1);
}

static const struct http_route routes[] = {{.method = "GET", .path = "/jobs/{id}", .handler = handle_wait}};

static int set_up(void **state) {
  (void)state;
  struct err err = {0};
  const struct http_server_options options = {.bind_address = "127.0.0.1", .routes = routes, .route_count = 1};
  atomic_store(&asked, 0);
  assert_rc(RC_OK, jobs_create(&table, &err), err);
  assert_rc(RC_OK, http_server_start(&server, &options, &err), err);
  snprintf(url, sizeof url, "http://127.0.0.1:%d", http_server_port(server));
  return 0;
}

static int tear_down(void **state) {
  (void)state;
  http_server_stop(server, 1000);
  server = NULL;
  jobs_destroy(table);
  return 0;
}

/* A client in a thread of its own. */
struct asker {
  pthread_t thread;
  char target[512];
  atomic_bool cancel;
  enum rc rc;
  int status;
  char body[1024]; /* its beginning */
  size_t length;
  int64_t took_ms;
};

static void *ask_main(void *context) {
  struct asker *a = context;
  struct http_client *http;
  struct http_answer answer;
  struct err err = {0};
  assert_rc(RC_OK, http_client_create(&http, "", &a->cancel, &err), err);
  char full[640];
  snprintf(full, sizeof full, "%s%s", url, a->target);
  const int64_t begun = clock_monotonic_ms();
  a->rc =
      http_client_call(http, &(struct http_call){.method = "GET", .url = full, .deadline_ms = WAIT_MS}, &answer, &err);
  a->took_ms = clock_monotonic_ms() - begun;
  if (a->rc == RC_OK) {
    a->status = answer.status;
    snprintf(a->body, sizeof a->body, "%s", answer.body.data ? answer.body.data : "");
    a->length = answer.body.len;
    http_answer_free(&answer);
  }
  http_client_destroy(http);
  return NULL;
}

static void ask_begin(struct asker *a, const char *target) {
  memset(a, 0, sizeof *a);
  atomic_init(&a->cancel, false);
  snprintf(a->target, sizeof a->target, "%s", target);
  assert_int_equal(pthread_create(&a->thread, NULL, ask_main, a), 0);
}

static void ask_end(struct asker *a, int status, const char *part) {
  pthread_join(a->thread, NULL);
  assert_int_equal(a->rc, RC_OK);
  if (a->status != status || !strstr(a->body, part))
    fail_msg("expected %d with %s, got %d: %s", status, part, a->status, a->body);
}

static void ask(const char *target, int status, const char *part) {
  struct asker a;
  ask_begin(&a, target);
  ask_end(&a, status, part);
}

static void wait_asked(int times) {
  AWAIT(atomic_load(&asked) >= times, "it was asked %d times, not %d", atomic_load(&asked), times) continue;
}

static struct job *begin(const char *id, enum job_kind kind, uint8_t content, int64_t version) {
  struct err err = {0};
  struct job *job;
  bool fresh;
  assert_rc(RC_OK, jobs_begin(table, id, kind, &(struct digest){{content}}, version, &job, &fresh, &err), err);
  assert_true(fresh);
  return job;
}

static void finish(struct job *job) {
  if (job->kind == JOB_STEP) job->out.step = (struct step_status){.version = job->version + 1, .digest = {{9}}};
  if (job->kind == JOB_OPEN_RUN) job->out.open = (struct open_run_answer){.run = job->id, .digest = {{9}}};
  jobs_finish(table, job, NULL);
}

/* One id is one job: the same content finds it, other content is refused, another kind is another job. */
static void repeats_find_the_job_and_other_content_is_a_conflict(void **state) {
  (void)state;
  struct err err = {0};
  struct job *job = begin("r1.0.b0", JOB_BATCH, 1, 0), *again = NULL;
  bool fresh = true;
  assert_rc(RC_OK, jobs_begin(table, "r1.0.b0", JOB_BATCH, &(struct digest){{1}}, 0, &again, &fresh, &err), err);
  assert_ptr_equal(again, job);
  assert_false(fresh);
  assert_rc(RC_CONFLICT, jobs_begin(table, "r1.0.b0", JOB_BATCH, &(struct digest){{2}}, 0, &again, &fresh, &err), err);
  assert_null(again);
  assert_true(jobs_known(table, "r1.0.b0", JOB_BATCH));
  assert_false(jobs_known(table, "r1.0.b0", JOB_STEP));
  finish(begin("r1.0.b0", JOB_STEP, 2, 0));
  assert_int_equal(jobs_state(table, "r1.0.b0", JOB_BATCH), JOB_QUEUED);
  jobs_running(table, job);
  assert_int_equal(jobs_state(table, "r1.0.b0", JOB_BATCH), JOB_RUNNING);
  finish(job);
  assert_int_equal(jobs_state(table, "r1.0.b0", JOB_BATCH), JOB_DONE);
  assert_rc(RC_CONFLICT, jobs_begin(table, "r1.0.b0", JOB_BATCH, &(struct digest){{2}}, 0, &again, &fresh, &err), err);
}

/* A failed job tells why, and may be submitted anew, with corrected content too. */
static void failed_jobs_may_be_submitted_anew(void **state) {
  (void)state;
  struct err why;
  struct job *job = begin("r1.0", JOB_STEP, 1, 0);
  jobs_finish(table, job, (err_set(&why, RC_CONFLICT, "groups", "group r1.0.1 has not been accumulated"), &why));
  ask("/jobs/r1.0?kind=2", 200,
      "\"state\":\"failed\",\"error\":{\"code\":\"conflict\",\"message\":\"group r1.0.1 has not been "
      "accumulated\",\"field\":\"groups\"}");
  job = begin("r1.0", JOB_STEP, 2, 0);
  ask("/jobs/r1.0?kind=2", 200, "\"state\":\"queued\",\"error\":null");
  finish(job);
  ask("/jobs/r1.0?kind=2", 200, "\"state\":\"done\",\"error\":null,\"version\":1");
  job = begin("r2", JOB_OPEN_RUN, 1, 0); /* its failure is the answer to POST /v1/runs itself */
  jobs_finish(table, job, (err_set(&why, RC_IO, NULL, "the disk is full"), &why));
  ask("/jobs/r2?kind=0", 500, "the disk is full");
}

/* Long polls end with the job: all of them, of this job only. */
static void waiters_are_answered_when_the_job_ends(void **state) {
  (void)state;
  struct asker a, b, open, other;
  struct job *job = begin("r1.0.b0", JOB_BATCH, 1, 0), *run = begin("r1", JOB_OPEN_RUN, 1, 0);
  begin("r1.0.b1", JOB_BATCH, 2, 0);
  ask_begin(&a, "/jobs/r1.0.b0?wait_ms=10000");
  ask_begin(&b, "/jobs/r1.0.b0?wait_ms=10000");
  ask_begin(&other, "/jobs/r1.0.b1?wait_ms=60");
  ask_begin(&open, "/jobs/r1?kind=0&wait_ms=10000");
  wait_asked(4);
  finish(run);
  finish(job);
  ask_end(&a, 200, "\"state\":\"done\"");
  ask_end(&b, 200, "\"state\":\"done\"");
  ask_end(&open, 200, "\"run\":\"r1\",\"version\":0");
  assert_true(a.took_ms < 5000 && b.took_ms < 5000 && open.took_ms < 5000);
  ask_end(&other, 200, "\"state\":\"queued\"");
  assert_true(other.took_ms >= 50);
}

/* Unknown jobs are 404 at once; a wait that passes gives the state, or 504 for an opening, which has none to give. */
static void unknown_and_late_jobs(void **state) {
  (void)state;
  begin("r1", JOB_OPEN_RUN, 1, 0);
  ask("/jobs/r9.0.b0?wait_ms=5000", 404, "\"code\":\"not_found\"");
  ask("/jobs/r1?kind=1", 404, "no such job: r1");
  ask("/jobs/r1?kind=0&wait_ms=50", 504, "did not end within the wait");
  char target[512] = "/jobs/";
  memset(target + 6, 'x', 100 + LIMIT_NAME_MAX);
  target[106 + LIMIT_NAME_MAX] = 0; /* longer than any id */
  ask(target, 404, "no such job");
}

/* A peer that hangs up gives its place back: the table never runs out of waiters because of it, and the job's end
 * answers nobody. */
static void a_hang_up_frees_the_waiter(void **state) {
  (void)state;
  struct job *job = begin("r1.0.b0", JOB_BATCH, 1, 0);
  for (int i = 0; i < 3; i++) {
    struct asker a;
    ask_begin(&a, "/jobs/r1.0.b0?wait_ms=10000");
    wait_asked(i + 1);
    atomic_store(&a.cancel, true);
    pthread_join(a.thread, NULL);
    assert_int_equal(a.rc, RC_UNAVAILABLE);
  }
  struct asker last;
  ask_begin(&last, "/jobs/r1.0.b0?wait_ms=10000");
  wait_asked(4);
  finish(job);
  ask_end(&last, 200, "\"state\":\"done\"");
}

/* A job that could not be queued is gone, and who waited for it is told to submit it again. */
static void cancelling_answers_the_waiters(void **state) {
  (void)state;
  struct asker a;
  struct job *job = begin("r1.0.b0", JOB_BATCH, 1, 0);
  ask_begin(&a, "/jobs/r1.0.b0?wait_ms=10000");
  wait_asked(1);
  jobs_cancel(table, job);
  ask_end(&a, 503, "submit it again");
  assert_false(jobs_known(table, "r1.0.b0", JOB_BATCH));
}

/* Stopping the server answers the waiters with the state as it is, or 503. */
static void shutdown_answers_the_waiters(void **state) {
  (void)state;
  struct asker batch, open;
  begin("r1.0.b0", JOB_BATCH, 1, 0);
  begin("r1", JOB_OPEN_RUN, 1, 0);
  ask_begin(&batch, "/jobs/r1.0.b0?wait_ms=10000");
  ask_begin(&open, "/jobs/r1?kind=0&wait_ms=10000");
  wait_asked(2);
  http_server_stop(server, 2000);
  server = NULL;
  ask_end(&batch, 200, "\"state\":\"queued\"");
  ask_end(&open, 503, "the trainer stops");
}

/* Forgetting drops ended jobs of older versions and nothing that somebody still works on. */
static void only_ended_jobs_of_older_versions_are_forgotten(void **state) {
  (void)state;
  struct job *old_running = begin("r1.0", JOB_STEP, 1, 0);
  finish(begin("r1.0.b0", JOB_BATCH, 1, 0));
  finish(begin("r1.1.b0", JOB_BATCH, 1, 1));
  jobs_running(table, old_running);
  jobs_forget_before(table, 1);
  assert_true(jobs_known(table, "r1.0", JOB_STEP));
  assert_false(jobs_known(table, "r1.0.b0", JOB_BATCH));
  assert_true(jobs_known(table, "r1.1.b0", JOB_BATCH));
  finish(old_running);
  jobs_forget_before(table, INT64_MAX);
  assert_false(jobs_known(table, "r1.0", JOB_STEP));
  assert_false(jobs_known(table, "r1.1.b0", JOB_BATCH));
}

/* Answers are encoded from jobs that may be dropped meanwhile: readers get all of one or 404, and its memory goes once
 * (what the address and thread sanitizers watch). */
static void a_job_may_be_dropped_while_it_is_answered(void **state) {
  (void)state;
  enum { TURNS = 40, ASKERS = 4, TOKENS = 20000 };
  size_t whole = 0;
  for (int turn = 0; turn < TURNS; turn++) {
    struct asker askers[ASKERS];
    struct job *job = begin("r1.0.b0", JOB_BATCH, 1, 0);
    struct sample_logprobs *sample = arena_alloc(&job->arena, 1, sizeof *sample);
    sample->id = "r1.0.0.0";
    sample->logprobs.items = arena_alloc(&job->arena, TOKENS, sizeof *sample->logprobs.items);
    sample->logprobs.count = TOKENS;
    job->out.batch.samples = sample;
    job->out.batch.sample_count = 1;
    for (int i = 0; i < ASKERS; i++) ask_begin(&askers[i], i % 2 ? "/jobs/r1.0.b0?wait_ms=10000" : "/jobs/r1.0.b0");
    if (turn % 2) wait_asked(turn * ASKERS + turn / 2 % ASKERS);
    finish(job);
    jobs_forget_before(table, INT64_MAX);
    for (int i = 0; i < ASKERS; i++) {
      pthread_join(askers[i].thread, NULL);
      assert_int_equal(askers[i].rc, RC_OK);
      assert_true(askers[i].status == 200 || askers[i].status == 404);
      if (!strstr(askers[i].body, "\"state\":\"done\"")) continue;
      assert_int_equal(askers[i].status, 200);
      assert_true(askers[i].length > 2 * TOKENS);
      if (whole == 0) whole = askers[i].length;
      assert_int_equal(askers[i].length, whole);
    }
  }
  assert_true(whole > 0);
}

/* The table has a limit; forgetting makes room again. */
static void a_full_table_refuses(void **state) {
  (void)state;
  struct err err = {0};
  struct job *job;
  bool fresh;
  char id[32];
  for (int i = 0; i < JOBS_MAX; i++) {
    snprintf(id, sizeof id, "r1.0.b%d", i);
    finish(begin(id, JOB_BATCH, 1, 0));
  }
  assert_rc(RC_FULL, jobs_begin(table, "r1.1.b0", JOB_BATCH, &(struct digest){{1}}, 1, &job, &fresh, &err), err);
  assert_rc(RC_OK, jobs_begin(table, "r1.0.b0", JOB_BATCH, &(struct digest){{1}}, 0, &job, &fresh, &err), err);
  assert_false(fresh);
  jobs_forget_before(table, 1);
  begin("r1.1.b0", JOB_BATCH, 1, 1);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_setup_teardown(repeats_find_the_job_and_other_content_is_a_conflict, set_up, tear_down),
      cmocka_unit_test_setup_teardown(failed_jobs_may_be_submitted_anew, set_up, tear_down),
      cmocka_unit_test_setup_teardown(waiters_are_answered_when_the_job_ends, set_up, tear_down),
      cmocka_unit_test_setup_teardown(unknown_and_late_jobs, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_hang_up_frees_the_waiter, set_up, tear_down),
      cmocka_unit_test_setup_teardown(cancelling_answers_the_waiters, set_up, tear_down),
      cmocka_unit_test_setup_teardown(shutdown_answers_the_waiters, set_up, tear_down),
      cmocka_unit_test_setup_teardown(only_ended_jobs_of_older_versions_are_forgotten, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_job_may_be_dropped_while_it_is_answered, set_up, tear_down),
      cmocka_unit_test_setup_teardown(a_full_table_refuses, set_up, tear_down),
  };
  log_init("test", LOG_ERROR);
  return cmocka_run_group_tests_name("trainer-server/jobs", tests, NULL, NULL);
}
