/* Starts the coordinator from its flags, waits for a signal and stops it.  The parts: writer/core.c (the writer),
 * driver/driver.c (the trainer's side), api/routes.c (the API).
 *
 * Producers stop before their consumers: the driver and the threads that ask for rewards and checks, then the writer,
 * which still answers what waits, then the trackers, which write what it has done last, then the HTTP server.  What a
 * handler or the writer may still touch is freed after that. */
#include <malloc.h>
#include <sys/stat.h>

#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/program.h"
#include "common/base/signals.h"
#include "common/http/trust/access.h"
#include "common/http/trust/tls.h"
#include "services/coordinator/checks/sample_checks.h"
#include "services/coordinator/driver/driver.h"
#include "services/coordinator/fault.h"
#include "services/coordinator/foresee/foresee.h"
#include "services/coordinator/api/routes.h"
#include "services/coordinator/rewards/rewards.h"
#include "services/coordinator/rounds/tick.h"
#include "services/coordinator/store/backup.h"
#include "services/coordinator/trackers/trackers.h"

enum { DRAIN_MS = 2000, TICK_MS = 50 };

struct settings {
  struct program_settings program;
  struct core_options core;
  const char *replay, *backup, *plan;
  struct rewards_options rewards;
  int64_t reward_threads;
  struct trackers_options trackers;
#ifdef LEASEHOLD_FAULTS
  const char *fault;
#endif
};

static enum rc serve(const struct settings *s, struct err *err) {
  struct core *core = NULL;
  struct driver *driver = NULL;
  struct rewards *rewards = NULL;
  struct sample_checks *checks = NULL;
  struct trackers *trackers = NULL;
  struct http_server *server = NULL;
  struct http_access *access = NULL;
  struct core_options core_options = s->core;
  core_options.callbacks = &tick_callbacks;
  core_options.reward_hosts = s->rewards.hosts;
  struct rewards_options rewards_options = s->rewards;
  rewards_options.threads = (int)s->reward_threads;
  struct http_server_options options = {.bind_address = s->program.bind,
                                              .port = (int)s->program.port,
                                              .limits = s->program.limits,
                                              .routes = coordinator_routes,
                                              .route_count = coordinator_route_count,
                                              .closed = "the database is being opened"};
  struct stat folder;
  if (stat(s->core.data_dir, &folder) != 0 || !S_ISDIR(folder.st_mode))
    return err_set(err, RC_INVALID, "data-dir", "expected a folder that datasets are read from, there is none at %s",
                   s->core.data_dir);
  enum rc rc = http_access_open(&access, &s->program, HTTP_TRAINER, NULL, err);
  core_options.access = options.access = access;
  if (rc == RC_OK) rc = http_server_start(&server, &options, err);
  if (rc != RC_OK) goto out;
  log_info("listening on %s:%d", s->program.bind, http_server_port(server));
  rc = core_create(&core, &core_options, err);
  if (rc == RC_OK) rc = core_start(core, err);
  if (rc != RC_OK) goto out;
  signals_stop_in_order();
  const struct driver_options driver_options = {.replay = s->replay};
  if ((rc = driver_start(&driver, core, &driver_options, err)) != RC_OK) goto out;
  if ((rc = rewards_start(&rewards, core, &rewards_options, err)) != RC_OK) goto out;
  if (!s->replay[0] && (rc = sample_checks_start(&checks, core, err)) != RC_OK) goto out;
  if ((rc = trackers_start(&trackers, core_readers(core), &s->trackers, err)) != RC_OK) goto out;
  http_server_open(server, core);
  log_info("ready, epoch %llu", (unsigned long long)core_epoch(core));
  if ((rc = program_write_port(&s->program, http_server_port(server), err)) != RC_OK) goto out;
  while (!signals_stop_requested() && !core_broken(core) && !driver_replay_over(driver, &rc, err))
    clock_sleep_ms(TICK_MS);
  if (core_broken(core))
    rc = err_set(err, RC_IO, NULL,
                 "the database could not be written; everything acknowledged is safe; start again once writing works");
  log_info("stopping");
out:
  driver_stop(driver);
  rewards_stop(rewards);
  sample_checks_stop(checks);
  if (core) core_stop(core);
  trackers_stop(trackers);
  http_server_stop(server, DRAIN_MS);
  driver_destroy(driver);
  sample_checks_destroy(checks);
  core_destroy(core);
  http_access_close(access);
  return rc;
}

/* Results take tens of kilobytes each, for milliseconds.  What they free is kept for those that follow: the kernel
 * would take every page back, and zero it again. */
enum { KEPT_BYTES = 64 << 20, MAPPED_BYTES = 4 << 20 };
static void keep_memory(void) {
  mallopt(M_TRIM_THRESHOLD, KEPT_BYTES);
  mallopt(M_MMAP_THRESHOLD, MAPPED_BYTES);
}

int main(int argc, char **argv) {
  struct settings s = {0};
  struct err err = {0};
  bool run;
  const struct option options[] = {
      PROGRAM_OPTIONS(&s.program, "8000"),
      {"db", OPTION_STRING, &s.core.db_path, "coordinator.sqlite", 0, 0, "the database file; made when it is missing"},
      {"data-dir", OPTION_STRING, &s.core.data_dir, ".", 0, 0,
       "folder that datasets lie in; runs name paths inside it"},
      {"lease-ttl-ms", OPTION_INT, &s.core.lease_ttl_ms, "30000", 50, 86400000,
       "how long a lease lasts after its last renewal"},
      {"heartbeat-ms", OPTION_INT, &s.core.heartbeat_ms, "1000", 10, 60000, "how often workers report"},
      {"worker-ttl-ms", OPTION_INT, &s.core.worker_ttl_ms, "10000", 50, 3600000,
       "how long a worker may be silent before it counts as gone"},
      {"workers-max", OPTION_INT, &s.core.workers_max, "1024", 1, LIMIT_WORKERS,
       "workers registered at once; see --connections-max too: each has a connection or two"},
      {"registrations-per-s", OPTION_INT, &s.core.registrations_per_s, "32", 1, 1e6,
       "new names per second that one address may register with one token; bursts may have four times as many"},
      {"check-ms", OPTION_INT, &s.core.check_ms, "10000", 0, 600000,
       "how long POST /v1/runs may check datasets before it answers; a longer check goes on afterwards, and the run "
       "is `checking`"},
      {"replay", OPTION_STRING, &s.replay, "", 0, 0,
       "replay this run from the database on the trainer that registers, compare every version's digest, and exit"},
      {"backup", OPTION_STRING, &s.backup, "", 0, 0,
       "copy the database, which another coordinator may be using, to this new file, and exit"},
      {"plan", OPTION_STRING, &s.plan, "", 0, 0,
       "print, as JSON, what the run that this file (JSON; - is standard input) describes would find here and how "
       "long its rounds would take, and exit"},
      {"reward-hosts", OPTION_STRING, &s.rewards.hosts, "", 0, 0,
       "hosts that may be asked for rewards, such as judge:9000,10.0.0.7; empty: none"},
      {"reward-token", OPTION_STRING, &s.rewards.token, "", 0, 0, "bearer token that is shown to reward servers"},
      {"reward-ca", OPTION_STRING, &s.rewards.ca_file, "", 0, 0,
       "CA certificates (PEM) that https reward servers' certificates are checked against; empty: those that the "
       "system trusts"},
      {"reward-threads", OPTION_INT, &s.reward_threads, "8", 1, LIMIT_THREADS,
       "requests to reward servers at once, over all terms"},
      {"track-dir", OPTION_STRING, &s.trackers.folder, "", 0, 0,
       "folder for curves of every run: JSON lines and TensorBoard's event files; empty: none"},
      {"track-names", OPTION_STRING, &s.trackers.names, "trl", 0, 0,
       "whose names the figures have there: trl or verl"},
      {"trackio-dir", OPTION_STRING, &s.trackers.trackio, "", 0, 0,
       "Trackio's folder: the curves go to its inbox too; empty: none"},
      {"chart-js", OPTION_STRING, &s.core.chart_js, "/usr/share/javascript/chart.js/chart.min.js", 0, 0,
       "Chart.js 3, with which the page at / draws; Debian's libjs-chart.js installs it there"},
      {"batch-tokens", OPTION_INT, &s.core.batch_tokens, "65536", 1, 1e9, "token budget of one submit-batch"},
#ifdef LEASEHOLD_FAULTS
      {"fault", OPTION_STRING, &s.fault, "", 0, 0, "a fault on purpose, for the tests: see fault.h"},
#endif
  };
  const struct program program = {.name = "coordinator",
                                  .summary = "Decides: runs, rounds, leases, versions, workers, rewards.",
                                  .options = options,
                                  .option_count = sizeof options / sizeof options[0],
                                  .settings = &s.program};
  keep_memory();
  enum rc rc = program_start(&run, &program, argc, argv, &err);
  if (rc == RC_OK && run && s.core.worker_ttl_ms < 2 * s.core.heartbeat_ms) {
    rc = err_set(&err, RC_INVALID, "worker-ttl-ms",
                 "--worker-ttl-ms must be at least twice --heartbeat-ms, or live workers would be lost");
  }
  if (rc == RC_OK && run) rc = http_tls_start(&s.program.tls, &err);
#ifdef LEASEHOLD_FAULTS
  if (rc == RC_OK && run) rc = fault_set(coordinator_faults, s.fault, &err);
#endif
  if (rc == RC_OK && run && s.plan[0]) {
    s.core.reward_hosts = s.rewards.hosts;
    rc = foresee(&s.core, &program, s.plan, &err);
  } else if (rc == RC_OK && run) {
    rc = s.backup[0] ? store_backup(s.core.db_path, s.backup, &err) : serve(&s, &err);
  }
  return program_end(&program, rc, &err);
}
