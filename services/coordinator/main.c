/* coordinator: flags, start, wait for a signal, stop.  The parts: core.c (the writer), driver.c (the trainer's side),
 * routes.c (the API). */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/signals.h"
#include "services/coordinator/driver.h"
#include "services/coordinator/routes.h"

enum { DRAIN_MS = 2000, TICK_MS = 50 };

struct settings {
  const char *bind, *port_file, *token, *log_level;
  int64_t port;
  struct core_options core;
};

static enum rc serve(const struct settings *s, struct err *err) {
  struct core *core = NULL;
  struct driver *driver = NULL;
  struct http_server *server = NULL;
  char text[16];
  enum rc rc = core_create(&core, &s->core, err);
  if (rc == RC_OK) rc = core_start(core, err);
  if (rc != RC_OK) goto out;
  const struct driver_options driver_options = {.token = s->token};
  if ((rc = driver_start(&driver, core, &driver_options, err)) != RC_OK) goto out;
  const struct http_server_options options = {.bind_address = s->bind,
                                              .port = (int)s->port,
                                              .token = s->token,
                                              .routes = coordinator_routes,
                                              .route_count = coordinator_route_count,
                                              .context = core};
  if ((rc = http_server_start(&server, &options, err)) != RC_OK) goto out;
  log_info("listening on %s:%d, epoch %llu", s->bind, http_server_port(server), (unsigned long long)core_epoch(core));
  if (s->port_file[0]) {
    snprintf(text, sizeof text, "%d\n", http_server_port(server));
    if ((rc = file_write_atomic(s->port_file, text, strlen(text), err)) != RC_OK) goto out;
  }
  while (!signals_stop_requested() && !core_broken(core)) clock_sleep_ms(TICK_MS);
  if (core_broken(core))
    rc = err_set(err, RC_IO, NULL,
                 "the database could not be written; what was acknowledged is safe, start again once it can be");
  log_info("stopping");
out:
  driver_stop(driver);
  if (core) core_stop(core); /* answers what waits */
  http_server_stop(server, DRAIN_MS);
  driver_destroy(driver);
  core_destroy(core);
  return rc;
}

int main(int argc, char **argv) {
  struct settings s = {0};
  struct err err = {0};
  enum options_action action;
  const struct option options[] = {
      {"bind", OPTION_STRING, &s.bind, "127.0.0.1", 0, 0, "address to listen on"},
      {"port", OPTION_INT, &s.port, "8000", 0, 65535, "port to listen on; 0 picks a free one"},
      {"port-file", OPTION_STRING, &s.port_file, "", 0, 0, "write the port here once listening"},
      {"db", OPTION_STRING, &s.core.db_path, "coordinator.sqlite", 0, 0, "the database file; made when it is missing"},
      {"data-dir", OPTION_STRING, &s.core.data_dir, ".", 0, 0,
       "folder that datasets lie in; runs name paths inside it"},
      {"auth-token", OPTION_STRING, &s.token, "", 0, 0,
       "bearer token that callers must show and that is shown to the trainer"},
      {"lease-ttl-ms", OPTION_INT, &s.core.lease_ttl_ms, "30000", 50, 86400000,
       "a lease lapses so long after its last renewal"},
      {"heartbeat-ms", OPTION_INT, &s.core.heartbeat_ms, "1000", 10, 60000, "how often workers are to report"},
      {"worker-ttl-ms", OPTION_INT, &s.core.worker_ttl_ms, "10000", 50, 3600000, "a worker silent for so long is gone"},
      {"batch-tokens", OPTION_INT, &s.core.batch_tokens, "65536", 1, 1e9, "token budget of one submit-batch"},
      {"log-level", OPTION_STRING, &s.log_level, "info", 0, 0, "debug, info, warn or error"},
  };
  enum log_level level;
  enum rc rc = options_parse(&action, options, sizeof options / sizeof options[0], argc, argv, &err);
  if (rc == RC_OK && action == OPTIONS_HELP) {
    options_print_help("coordinator", "Decides: runs, rounds, leases, versions, workers, rewards.", options,
                       sizeof options / sizeof options[0]);
    return 0;
  }
  if (rc == RC_OK && action == OPTIONS_VERSION) {
    printf("coordinator %s\n", leasehold_version);
    return 0;
  }
  if (rc == RC_OK) rc = log_level_parse(&level, s.log_level, &err);
  if (rc == RC_OK && s.core.worker_ttl_ms < 2 * s.core.heartbeat_ms) {
    rc = err_set(&err, RC_INVALID, "worker-ttl-ms",
                 "--worker-ttl-ms must be at least twice --heartbeat-ms, or live workers would be lost");
  }
  if (rc == RC_OK) {
    log_init("coordinator", level);
    signals_install();
    rc = serve(&s, &err);
  }
  if (rc != RC_OK) fprintf(stderr, "coordinator: %s\n", err.message);
  return rc == RC_OK ? 0 : 1;
}
