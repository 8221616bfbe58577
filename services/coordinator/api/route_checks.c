/* Answers POST /v1/check-run and POST /v1/check-disk. */
#include "services/coordinator/api/route_checks.h"

#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/http/check_machine.h"
#include "services/coordinator/api/route_runs.h"
#include "services/coordinator/rewards/reward_hosts.h"
#include "services/coordinator/trainer/run_report.h"
#include "services/coordinator/writer/core.h"

/* Like POST /v1/runs as far as its check goes; then the run is opened as the driver would, and told about. */
void handle_check_run(struct http_request *r, void *context) {
  struct core *c = context;
  struct arena arena = ARENA_INIT;
  struct run_config config;
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  const struct json *given;
  json_writer_init(&w, &body);
  enum rc rc = http_body_json(r, &given, &err);
  if (rc == RC_OK) rc = run_config_parse(&config, given, &arena, &err);
  if (rc == RC_OK) rc = run_start_find(c, &config, &err);
  if (rc == RC_OK) rc = reward_hosts_check(core_options(c)->reward_hosts, &config.verifier, &err);
  if (rc == RC_OK) rc = run_report_write(c, &config, &w, &err);
  http_reply_json_or_fail(r, rc, &body, &err);
  arena_free(&arena);
}

/* The ledger's folder. */
void handle_check_disk(struct http_request *r, void *context) {
  char dir[LIMIT_PATH_MAX];
  const char *path = core_options(context)->db_path, *end = strrchr(path, '/');
  snprintf(dir, sizeof dir, "%.*s", end ? (int)(end - path) : 1, end ? path : ".");
  http_check_disk(r, dir[0] ? dir : "/");
}
