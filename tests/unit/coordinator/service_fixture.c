/* Starts and stops a whole coordinator in the test's process, calls it over HTTP and reads what it says. */
#include "tests/unit/coordinator/service_fixture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "services/coordinator/api/routes.h"
#include "services/coordinator/checks/sample_checks.h"
#include "services/coordinator/driver/driver.h"
#include "services/coordinator/driver/driver_state.h"
#include "services/coordinator/rounds/tick.h"
#include "tests/unit/base/scratch.h"

enum {
  STOP_MS = 500,
  TRAINER_LOST_MS = 1500,
  MS = 1000,
  MOMENT_MS = 20 /* passes between two looks of a wait */
};

static const int64_t WALL_AT_START_US = INT64_C(1700000000000000), MONOTONIC_AT_START_US = INT64_C(3600000000);

/* ---- time ---- */

static int64_t monotonic_us(void *context) { return MONOTONIC_AT_START_US + ((struct fixture *)context)->now_us; }
static int64_t wall_us(void *context) { return WALL_AT_START_US + ((struct fixture *)context)->now_us; }

void time_leaps(struct fixture *f, int64_t ms) { f->now_us += ms * MS; }

void time_passes(struct fixture *f, int64_t ms) {
  struct err err = {0};
  do {
    const int64_t step_ms = ms < CORE_LOOK_MS ? ms : CORE_LOOK_MS;
    time_leaps(f, step_ms);
    if (core_wake(f->core, &err) != RC_OK) fail_msg("%s", err.message);
    ms -= step_ms;
  } while (ms > 0);
}

void a_moment_passes(struct fixture *f) {
  if (!f->clock_stands) time_passes(f, MOMENT_MS);
}

static void kick(struct driver *d) {
  pthread_mutex_lock(&d->lock);
  d->kicked = true;
  pthread_cond_signal(&d->wake);
  pthread_mutex_unlock(&d->lock);
}

static bool kick_was_taken(struct driver *d) {
  pthread_mutex_lock(&d->lock);
  const bool taken = !d->kicked;
  pthread_mutex_unlock(&d->lock);
  return taken;
}

/* The driver takes a kick when it begins to look: when it takes the second, the look that followed the first is
 * over. */
void driver_has_looked(struct fixture *f) {
  for (int i = 0; i < 2; i++) {
    kick(f->driver);
    AWAIT(kick_was_taken(f->driver), "the driver does not look") {
      if (!f->clock_stands) time_leaps(f, MOMENT_MS); /* it may pause before it tries something again */
    }
  }
}

/* ---- setup ---- */

void coordinator_up(struct fixture *f) {
  struct err err = {0};
  const struct driver_options driver = {.trainer_lost_ms = TRAINER_LOST_MS};
  f->options.callbacks = &tick_callbacks;
  f->options.db_path = f->db;
  f->options.data_dir = f->data;
  f->options.clock = (struct clock){.monotonic_us = monotonic_us, .wall_us = wall_us, .context = f};
  if (core_create(&f->core, &f->options, &err) != RC_OK || core_start(f->core, &err) != RC_OK ||
      driver_start(&f->driver, f->core, &driver, &err) != RC_OK ||
      (f->checks_samples && sample_checks_start(&f->checks, f->core, &err) != RC_OK))
    fail_msg("%s", err.message);
  const struct http_server_options options = {.bind_address = "127.0.0.1",
                                              .threads = 2,
                                              .routes = coordinator_routes,
                                              .route_count = coordinator_route_count,
                                              .context = f->core};
  if (http_server_start(&f->server, &options, &err) != RC_OK) fail_msg("%s", err.message);
  snprintf(f->url, sizeof f->url, "http://127.0.0.1:%d", http_server_port(f->server));
  f->client = (struct coordinator_client){.http = f->http, .base_url = f->url};
}

void coordinator_down(struct fixture *f) {
  driver_stop(f->driver);
  sample_checks_stop(f->checks);
  core_stop(f->core);
  http_server_stop(f->server, STOP_MS);
  driver_destroy(f->driver);
  sample_checks_destroy(f->checks);
  core_destroy(f->core);
  f->core = NULL;
  f->checks = NULL;
}

void register_trainer_as(struct fixture *f, enum worker_exactness exactness) {
  struct err err = {0};
  const struct worker_register m = {
      .name = "trainer", .kind = WORKER_TRAINER, .url = f->trainer.url, .exactness = exactness};
  if (coordinator_register(&f->client, &m, &f->trainer_is, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
}

void register_trainer(struct fixture *f) { register_trainer_as(f, WORKER_INVARIANT); }

void coordinator_restart(struct fixture *f) {
  coordinator_down(f);
  coordinator_up(f);
  register_trainer(f);
}

void write_data(struct fixture *f, const char *name, const char *text) {
  char path[160];
  struct err err;
  snprintf(path, sizeof path, "%s/%s", f->data, name);
  if (file_write_atomic(path, text, strlen(text), &err) != RC_OK) fail_msg("%s", err.message);
}

static void write_lines(struct fixture *f, const char *name, const char *answer_is) {
  struct buf text = BUF_INIT;
  for (int i = 0; i < 10; i++) buf_printf(&text, "{\"prompt\":\"%d+0=\",\"%s\":\"%d\"}\n", i, answer_is, i);
  write_data(f, name, text.data);
  buf_free(&text);
}

int fixture_setup(void **state) {
  struct fixture *f = calloc(1, sizeof *f);
  struct err err = {0};
  if (!f) return 1;
  log_init("test", LOG_ERROR);
  scratch_folder(f->dir, sizeof f->dir, "coordinator");
  snprintf(f->db, sizeof f->db, "%s/db.sqlite", f->dir);
  snprintf(f->data, sizeof f->data, "%s/data", f->dir);
  if (file_make_dirs(f->data, &err) != RC_OK || fake_trainer_start(&f->trainer, &err) != RC_OK ||
      http_client_create(&f->http, NULL, NULL, &err) != RC_OK)
    fail_msg("%s", err.message);
  write_lines(f, "train.jsonl", "answer");
  write_lines(f, "warm.jsonl", "completion");
  f->options = (struct core_options){
      .lease_ttl_ms = HOUR_MS, .heartbeat_ms = 1000, .worker_ttl_ms = HOUR_MS, .batch_tokens = 64, .check_ms = HOUR_MS};
  coordinator_up(f);
  register_trainer(f);
  *state = f;
  return 0;
}

int fixture_teardown(void **state) {
  struct fixture *f = *state;
  if (f->core) coordinator_down(f);
  fake_trainer_free(&f->trainer);
  http_client_destroy(f->http);
  arena_free(&f->arena);
  const int rc = file_remove_tree(f->dir, NULL) == RC_OK ? 0 : 1;
  free(f);
  return rc;
}

/* ---- calls ---- */

int call(struct fixture *f, const char *method, const char *path, const char *body, struct json **out) {
  char url[256];
  struct http_answer answer = {0};
  struct err err = {0};
  snprintf(url, sizeof url, "%s%s", f->url, path);
  const struct http_call c = {
      .method = method, .url = url, .body = body, .body_len = body ? strlen(body) : 0, .deadline_ms = DEADLINE_MS};
  if (http_client_call(f->http, &c, &answer, &err) != RC_OK) fail_msg("%s %s: %s", method, path, err.message);
  int status = answer.status;
  if (out && json_parse(out, answer.body.data, answer.body.len, 0, &err) != RC_OK)
    fail_msg("%s %s: %s", method, path, err.message);
  http_answer_free(&answer);
  return status;
}

void post_run(struct fixture *f, const char *config) {
  struct json *answer = NULL;
  int status = call(f, "POST", "/v1/runs", config, &answer);
  if (status != 201)
    fail_msg("the run was answered %d: %s", status, json_string(json_get(json_get(answer, "error"), "message"), NULL));
  json_free(answer);
}

struct json *get_run(struct fixture *f, const char *run) {
  char path[64];
  struct json *answer = NULL;
  snprintf(path, sizeof path, "/v1/runs/%s", run);
  assert_int_equal(call(f, "GET", path, NULL, &answer), 200);
  return answer;
}

int64_t get_int(const struct json *object, const char *a, const char *b) {
  const struct json *v = json_get(object, a);
  if (b) v = json_get(v, b);
  return json_type_of(v) == JSON_INT ? json_int(v) : (int64_t)json_number(v);
}

int64_t read_int_of(struct fixture *f, const char *sql, int64_t n) {
  struct store *store;
  struct err err = {0};
  int64_t value = -1;
  const struct bind binds[] = {b_int(n)};
  if (readers_take(core_readers(f->core), &store, &err) != RC_OK ||
      store_int(store, &value, &err, sql, binds, strstr(sql, "?1") ? 1 : 0) != RC_OK)
    fail_msg("%s: %s", sql, err.message);
  readers_give(core_readers(f->core), store);
  return value;
}

int64_t read_int(struct fixture *f, const char *sql) { return read_int_of(f, sql, 0); }

double read_metric(struct fixture *f, const char *name) {
  char url[160], line[128];
  struct http_answer answer = {0};
  struct err err = {0};
  snprintf(url, sizeof url, "%s/metrics", f->url);
  const struct http_call c = {.method = "GET", .url = url, .deadline_ms = DEADLINE_MS};
  if (http_client_call(f->http, &c, &answer, &err) != RC_OK) fail_msg("%s: %s", url, err.message);
  snprintf(line, sizeof line, "\n%s ", name);
  const char *at = strstr(answer.body.data, line);
  if (!at) fail_msg("there is no metric %s", name);
  const double value = strtod(at + strlen(line), NULL);
  http_answer_free(&answer);
  return value;
}

/* ---- waiting ---- */

/* What a run says in a member that is a text or null; "": null. */
static const char *text_of(const struct json *run, const char *member) {
  const struct json *v = json_get(run, member);
  return json_type_of(v) == JSON_STRING ? json_string(v, NULL) : "";
}

struct json *wait_state(struct fixture *f, const char *run, const char *wanted) {
  struct json *r = get_run(f, run);
  AWAIT(strcmp(text_of(r, "state"), wanted) == 0, "run %s is %s, not %s: %s", run, text_of(r, "state"), wanted,
        text_of(r, "error")) {
    if (strcmp(text_of(r, "state"), "paused") == 0 && text_of(r, "error")[0])
      fail_msg("run %s is paused, not %s: %s", run, wanted, text_of(r, "error"));
    json_free(r);
    a_moment_passes(f);
    r = get_run(f, run);
  }
  return r;
}

struct json *wait_held(struct fixture *f, const char *run, const char *why) {
  struct json *r = wait_state(f, run, "paused");
  if (!strstr(text_of(r, "error"), why)) fail_msg("run %s is paused for '%s', not '%s'", run, text_of(r, "error"), why);
  return r;
}

static bool error_says(struct fixture *f, const char *run, const char *part) {
  struct json *r = get_run(f, run);
  const bool says = strstr(text_of(r, "error"), part) != NULL;
  json_free(r);
  return says;
}

void wait_error(struct fixture *f, const char *run, const char *part) {
  AWAIT(error_says(f, run, part), "run %s does not say: %s", run, part) a_moment_passes(f);
}

static bool waits_for(struct fixture *f, const char *run, const char *part) {
  struct json *r = get_run(f, run);
  const char *what = text_of(r, "waiting_for");
  const bool found = part ? strstr(what, part) != NULL : what[0] == '\0';
  if (strcmp(text_of(r, "state"), "running") != 0) fail_msg("run %s is %s, not running", run, text_of(r, "state"));
  json_free(r);
  return found;
}

void wait_waiting(struct fixture *f, const char *run, const char *part) {
  AWAIT(waits_for(f, run, part), "run %s does not wait for %s", run, part ? part : "nothing") a_moment_passes(f);
}

static bool metric_is(double found, double wanted) { return isnan(wanted) ? isnan(found) : found == wanted; }

void wait_metric(struct fixture *f, const char *name, double wanted) {
  AWAIT(metric_is(read_metric(f, name), wanted), "%s is %g, not %g", name, read_metric(f, name), wanted) continue;
}
