/* Starts and stops a whole coordinator in the test's process, calls it over HTTP and reads what it says. */
#include "tests/unit/coordinator/service_fixture.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "services/coordinator/api/routes.h"
#include "services/coordinator/driver/driver.h"

enum { STOP_MS = 500, TRAINER_LOST_MS = 1500 };

/* ---- setup ---- */

void coordinator_up(struct fixture *f) {
  struct err err = {0};
  const struct driver_options driver = {.trainer_lost_ms = TRAINER_LOST_MS};
  f->options.db_path = f->db;
  f->options.data_dir = f->data;
  if (core_create(&f->core, &f->options, &err) != RC_OK || core_start(f->core, &err) != RC_OK ||
      driver_start(&f->driver, f->core, &driver, &err) != RC_OK)
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
  core_stop(f->core);
  http_server_stop(f->server, STOP_MS);
  driver_destroy(f->driver);
  core_destroy(f->core);
  f->core = NULL;
}

void register_trainer_as(struct fixture *f, enum worker_exactness exactness) {
  struct err err = {0};
  const struct worker_register m = {
      .name = "trainer", .kind = WORKER_TRAINER, .url = f->trainer.url, .exactness = exactness};
  if (coordinator_register(&f->client, &m, &f->trainer_is, &f->arena, DEADLINE_MS, &err) != RC_OK)
    fail_msg("%s", err.message);
}

void register_trainer(struct fixture *f) { register_trainer_as(f, WORKER_INVARIANT); }

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
  snprintf(f->dir, sizeof f->dir, "/tmp/coordinator-test-XXXXXX");
  if (!mkdtemp(f->dir)) return 1;
  snprintf(f->db, sizeof f->db, "%s/db.sqlite", f->dir);
  snprintf(f->data, sizeof f->data, "%s/data", f->dir);
  if (file_make_dirs(f->data, &err) != RC_OK || fake_trainer_start(&f->trainer, &err) != RC_OK ||
      http_client_create(&f->http, NULL, NULL, &err) != RC_OK)
    fail_msg("%s", err.message);
  write_lines(f, "train.jsonl", "answer");
  write_lines(f, "warm.jsonl", "completion");
  f->options =
      (struct core_options){.lease_ttl_ms = 60000, .heartbeat_ms = 1000, .worker_ttl_ms = 60000, .batch_tokens = 64};
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
    r = get_run(f, run);
  }
  return r;
}

struct json *wait_held(struct fixture *f, const char *run, const char *why) {
  struct json *r = wait_state(f, run, "paused");
  if (!strstr(text_of(r, "error"), why)) fail_msg("run %s is paused for '%s', not '%s'", run, text_of(r, "error"), why);
  return r;
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
  AWAIT(waits_for(f, run, part), "run %s does not wait for %s", run, part ? part : "nothing") continue;
}
