/* trainer-server: reads the flags, starts the engine, the publisher, the HTTP server and the heartbeats, waits for a
 * signal, and stops them so that producers stop before their consumers.  With --role preprocess it starts a
 * preprocessor instead of the engine and all that belongs to it.
 *
 * Compiled with LEASEHOLD_MPI it is trainer-server-mpi: rank 0 of those that mpirun starts is the server, the others
 * follow it.  When one rank ends, all end, and the supervisor of mpirun starts them again. */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "common/base/program.h"
#include "common/base/signals.h"
#include "common/client/registration.h"
#include "common/comm/fabric_open.h"
#include "common/http/trust/access.h"
#include "common/http/trust/tls.h"
#include "services/trainer-server/fault.h"
#include "services/trainer-server/api/routes.h"
#include "services/trainer-server/engine/checkpoint.h"
#include "services/trainer-server/engine/trainer.h"
#include "services/trainer-server/foresee/foresee.h"
#include "services/trainer-server/publish/identity.h"
#include "services/trainer-server/publish/publisher.h"
#include "services/trainer-server/publish/heartbeat.h"
#include "services/trainer-server/publish/state_lock.h"
#include "services/trainer-server/preprocess/preprocessor.h"

#ifdef LEASEHOLD_MPI
#define PROGRAM_NAME "trainer-server-mpi"
#define PROGRAM_SUMMARY \
  "The trainer-server as several processes under mpirun: rank 0 serves, the others compute with it."
#else
#define PROGRAM_NAME    "trainer-server"
#define PROGRAM_SUMMARY "Learns: log-probabilities, gradients, AdamW steps, checkpoints, published weights."
#endif

enum { DRAIN_MS = 2000, TICK_MS = 100, LED_TICK_MS = 5, START_MS = 60000, STATE_WAIT_MS = 10000 };

struct settings {
  struct program_settings program;
  struct http_access *access; /* of the process that serves; it lives until main ends */
  const char *role; /* "train", "preprocess", "teach" */
  const char *coordinator, *advertise_url, *name, *fabric, *device, *exactness, *isa, *fault, *go_back, *plan;
  const char *optimizer_state;   /* "resident", "mapped" */
  const char *optimizer_moments; /* "32bit", "8bit" */
  int64_t rank_silence_ms;
  struct trainer_options trainer;
};

/* Until a signal, or until the ranks end by themselves: then RC_OK when one of them got the signal, else why. */
static enum rc wait_for_end(struct trainer *t, struct err *err) {
  struct err why = {0};
  while (!signals_stop_requested() && !trainer_ended(t, &why)) clock_sleep_ms(TICK_MS);
  if (why.rc != RC_OK) *err = why;
  log_info("stopping");
  return why.rc;
}

/* The engine first: its last step goes to the publisher.  Then the ranks part: by now no other thread uses the comm. */
static void stop(struct settings *s, struct trainer *t) {
  if (t) trainer_stop(t);
  if (s->trainer.ranks.comm) s->trainer.ranks.comm->free(s->trainer.ranks.comm);
}

static void advertise(struct settings *s, struct http_server *server, char url[LIMIT_URL_MAX]) {
  if (s->advertise_url[0]) return;
  program_default_url(url, LIMIT_URL_MAX, s->program.bind, http_server_port(server), http_tls_serves(), s->coordinator);
  s->advertise_url = url;
}

/* TLS is HTTP's: what ranks exchange, and what a broadcast carries, goes past it. */
static void warn_of_plain_networks(const struct settings *s, const struct fabric *fabric) {
  static const char advice[] =
      "which TLS does not cover: let it cross a network that encrypts (WireGuard, an encrypting CNI) or none that "
      "others share, see deploy/security/tls.md";
  const int machines = s->trainer.ranks.comm ? s->trainer.ranks.comm->machines : 1;
  if (!s->program.tls.cert[0] && !s->program.tls.ca[0]) return;
  if (machines > 1)
    log_warn("the ranks run on %d machines and exchange weights, gradients and samples unencrypted, %s", machines,
             advice);
  if (fabric && fabric->machines != 1)
    log_warn("the weights of --fabric %s are broadcast unencrypted between machines, %s", s->fabric, advice);
}

static enum rc serve(struct settings *s, struct err *err) {
  struct trainer *trainer = NULL;
  struct publisher *publisher = NULL;
  struct heartbeat *heartbeat = NULL;
  struct http_server *server = NULL;
  struct fabric *fabric = NULL;
  char url[LIMIT_URL_MAX], identity[IDENTITY_MAX];
  const struct device *device = &s->trainer.device;
  const struct http_server_options options = {.bind_address = s->program.bind,
                                              .port = (int)s->program.port,
                                              .access = s->access,
                                              .limits = s->program.limits,
                                              .routes = trainer_routes,
                                              .route_count = trainer_route_count,
                                              .closed = "the model and its state are being loaded"};
  enum rc rc = http_server_start(&server, &options, err);
  if (rc != RC_OK) goto out;
  log_info("listening on %s:%d", s->program.bind, http_server_port(server));
  s->trainer.coordinator_url = s->coordinator;
  s->trainer.state_wait_ms = STATE_WAIT_MS;
  rc = fabric_open(&fabric, s->fabric, true, device->cuda ? device->index : -1, err);
  if (rc == RC_OK) warn_of_plain_networks(s, fabric);
  if (rc == RC_OK) rc = trainer_create(&trainer, &s->trainer, err);
  if (rc == RC_OK)
    rc = publisher_create(&publisher, trainer_board(trainer), trainer_jobs(trainer), s->coordinator, s->access,
                          fabric, err);
  if (rc != RC_OK) goto out;
  signals_stop_in_order();
  trainer_set_publisher(trainer, publisher); /* before the first job */
  http_server_open(server, trainer);
  advertise(s, server, url);
  log_info("ready");
  if ((rc = program_write_port(&s->program, http_server_port(server), err)) != RC_OK) goto out;
  if (s->coordinator[0]) {
    if ((rc = identity_read(identity, s->trainer.state_dir, err)) != RC_OK) goto out;
    const bool fastest = s->trainer.device.exactness == EXACTNESS_FASTEST;
    const struct heartbeat_options tie = {.coordinator_url = s->coordinator,
                                          .exactness = fastest ? WORKER_FASTEST : WORKER_INVARIANT,
                                          .device = s->trainer.device.cuda ? WORKER_CUDA : WORKER_CPU,
                                          .access = s->access,
                                          .name = s->name[0] ? s->name : "trainer",
                                          .identity = identity,
                                          .advertise_url = s->advertise_url,
                                          .fabric = {.name = fabric ? s->fabric : NULL,
                                                     .kind = fabric ? fabric->kind : NULL,
                                                     .place = fabric ? fabric->place : 0}};
    if ((rc = heartbeat_start(&heartbeat, &tie, trainer_board(trainer), publisher, err)) != RC_OK) goto out;
  }
  rc = wait_for_end(trainer, err);
out:
  heartbeat_stop(heartbeat);
  if (rc != RC_OK && s->trainer.ranks.comm) s->trainer.ranks.comm->give_up(s->trainer.ranks.comm);
  stop(s, trainer);
  publisher_destroy(publisher);
  if (fabric) fabric->free(fabric);
  http_server_stop(server, DRAIN_MS);
  trainer_destroy(trainer);
  return rc;
}

#ifdef LEASEHOLD_MPI
static enum rc follow(struct settings *s, struct err *err) {
  struct trainer *trainer = NULL;
  struct err why;
  enum rc rc = trainer_create(&trainer, &s->trainer, err);
  while (rc == RC_OK && !trainer_led(trainer) && !trainer_ended(trainer, &why)) clock_sleep_ms(LED_TICK_MS);
  signals_stop_in_order();
  if (rc == RC_OK) rc = wait_for_end(trainer, err);
  if (rc != RC_OK) s->trainer.ranks.comm->give_up(s->trainer.ranks.comm);
  stop(s, trainer);
  trainer_destroy(trainer);
  return rc;
}

static enum rc run_rank(struct settings *s, struct err *err) {
  const struct comm_mpi_options options = {
      .start_ms = START_MS, .silence_ms = s->rank_silence_ms, .several_threads = s->fabric[0] != 0};
#ifdef LEASEHOLD_NCCL
  s->trainer.ranks.link_devices = comm_nccl_create;
#endif
  const enum rc rc = comm_mpi_create(&s->trainer.ranks.comm, &options, err);
  if (rc != RC_OK) return rc;
  return s->trainer.ranks.comm->rank == 0 ? serve(s, err) : follow(s, err);
}
#else
/* The worker leaves before the server stops: until then its URL answers. */
static enum rc serve_passes(struct settings *s, struct err *err) {
  struct preprocessor *preprocessor = NULL;
  struct http_server *server = NULL;
  char url[LIMIT_URL_MAX], name[LIMIT_NAME_MAX];
  const struct http_server_options options = {.bind_address = s->program.bind,
                                              .port = (int)s->program.port,
                                              .access = s->access,
                                              .limits = s->program.limits,
                                              .routes = preprocessor_routes,
                                              .route_count = preprocessor_route_count,
                                              .closed = "the model is being made"};
  enum rc rc = http_server_start(&server, &options, err);
  if (rc == RC_OK) rc = preprocessor_create(&preprocessor, &s->trainer, err);
  if (rc != RC_OK) goto out;
  signals_stop_in_order();
  http_server_open(server, preprocessor);
  advertise(s, server, url);
  if (!s->name[0]) program_default_name(name, sizeof name, "preprocess", http_server_port(server));
  const struct preprocessor_tie tie = {.coordinator_url = s->coordinator,
                                       .access = s->access,
                                       .name = s->name[0] ? s->name : name,
                                       .advertise_url = s->advertise_url};
  log_info("ready");
  rc = program_write_port(&s->program, http_server_port(server), err);
  if (rc == RC_OK) rc = preprocessor_start(preprocessor, &tie, err);
  while (rc == RC_OK && !signals_stop_requested()) {
    if (preprocessor_failed(preprocessor, err)) rc = err->rc;
    clock_sleep_ms(TICK_MS);
  }
  log_info("stopping");
out:
  preprocessor_destroy(preprocessor);
  http_server_stop(server, DRAIN_MS);
  return rc;
}

static enum rc run_rank(struct settings *s, struct err *err) {
  if (strcmp(s->role, "train") == 0) return serve(s, err);
  s->trainer.teaches = strcmp(s->role, "teach") == 0;
  if (strcmp(s->role, "preprocess") != 0 && !s->trainer.teaches)
    return err_set(err, RC_INVALID, "role", "--role: expected train, preprocess or teach, got \"%.80s\"", s->role);
  if (!s->coordinator[0])
    return err_set(err, RC_INVALID, "coordinator",
                   "--coordinator must name the coordinator that a preprocessor works for");
  return serve_passes(s, err);
}
#endif

static enum rc open_access(struct settings *s, struct err *err) {
  const bool trains = !s->role || strcmp(s->role, "train") == 0;
  const unsigned shows = !s->coordinator[0] ? 0 : trains ? HTTP_TRAINER : HTTP_WORKER;
  return http_access_open(&s->access, &s->program, shows, s->coordinator, err);
}

/* A trainer that runs in the folder would write over it with its next checkpoint. */
static enum rc go_back(const struct settings *s, struct err *err) {
  int lock;
  enum rc rc = state_lock_take(&lock, s->trainer.state_dir, 0, err);
  if (rc == RC_OK) rc = checkpoint_go_back(s->trainer.state_dir, s->go_back, err);
  state_lock_release(lock);
  return rc;
}

/* --optimizer-state and --optimizer-moments. */
static enum rc optimizer_parse(struct settings *s, struct err *err) {
  s->trainer.optimizer_mapped = strcmp(s->optimizer_state, "mapped") == 0;
  if (!s->trainer.optimizer_mapped && strcmp(s->optimizer_state, "resident") != 0)
    return err_set(err, RC_INVALID, "optimizer-state", "--optimizer-state: expected resident or mapped, got \"%.80s\"",
                   s->optimizer_state);
  s->trainer.moments8 = strcmp(s->optimizer_moments, "8bit") == 0;
  if (!s->trainer.moments8 && strcmp(s->optimizer_moments, "32bit") != 0)
    return err_set(err, RC_INVALID, "optimizer-moments", "--optimizer-moments: expected 32bit or 8bit, got \"%.80s\"",
                   s->optimizer_moments);
  return RC_OK;
}

int main(int argc, char **argv) {
  struct settings s = {0};
  struct err err = {0};
  bool run;
  const struct option options[] = {
      PROGRAM_OPTIONS(&s.program, "8200"),
#ifndef LEASEHOLD_MPI
      {"plan", OPTION_STRING, &s.plan, "", 0, 0,
       "print, as JSON, what this process would need here and how fast it would learn for the run that this file "
       "(JSON; - is standard input) describes, and exit"},
      {"role", OPTION_STRING, &s.role, "train", 0, 0,
       "train; preprocess: compute passes without a gradient (a reference's log-probabilities) for a coordinator's "
       "runs; or teach: the same with the folder's weights, for the runs that name them in training.teacher"},
#endif
      {"coordinator", OPTION_STRING, &s.coordinator, "", 0, 0, "the coordinator's URL"},
      {"advertise-url", OPTION_STRING, &s.advertise_url, "", 0, 0,
       "this server's URL as others reach it; default http://BIND:PORT (https with --tls-cert), and for a wildcard "
       "BIND the address that faces the coordinator"},
      {"name", OPTION_STRING, &s.name, "", 0, 0,
       "this worker's name (default trainer; for a preprocessor preprocess-HOST-PORT)"},
      {"fabric", OPTION_STRING, &s.fabric, "", 0, 0,
       "name of a fast network that this process shares with generation-servers: weights then go by broadcast"},
      {"model", OPTION_STRING, &s.trainer.model_dir, "", 0, 0,
       "Hugging Face folder: config.json, tokenizer.json, weights in one safetensors file or in shards"},
      {"state-dir", OPTION_STRING, &s.trainer.state_dir, "trainer-state", 0, 0,
       "folder for checkpoints, which no other trainer may use"},
      {"go-back", OPTION_STRING, &s.go_back, "", 0, 0,
       "make the next start begin from this kept checkpoint, such as r1/v20, and exit: for use after the coordinator "
       "was restored from a backup"},
      {"random-init", OPTION_INT, &s.trainer.random_init_seed, "-1", -1, 9e15,
       "seed of random weights when the folder holds none; -1: refuse such a folder"},
      {"threads", OPTION_INT, &s.trainer.threads, "0", 0, LIMIT_THREADS,
       "computing threads; 0: one for every core that affinity and control groups grant"},
      {"chunk-tokens", OPTION_INT, &s.trainer.chunk_tokens, "4096", 16, LIMIT_SEQUENCE_TOKENS,
       "largest chunk of tokens computed at once; a run's chunk_tokens may not exceed it"},
      {"recompute-activations", OPTION_BOOL, &s.trainer.recompute_activations, "false", 0, 0,
       "keep only each layer's input and compute the rest again in the backward pass: less memory, the same weights"},
      {"push-changes", OPTION_BOOL, &s.trainer.push_changes, "true", 0, 0,
       "send servers only what differs between versions where that is smaller: it costs memory and some time in each "
       "step"},
      {"lean", OPTION_BOOL, &s.trainer.lean, "false", 0, 0,
       "keep nothing twice: 10 bytes less memory per parameter, some more computing, versions on disk, the same "
       "weights"},
      {"optimizer-state", OPTION_STRING, &s.optimizer_state, "resident", 0, 0,
       "resident, or mapped: masters and moments are in a file, 12 bytes less memory per parameter, the same "
       "weights"},
      {"optimizer-moments", OPTION_STRING, &s.optimizer_moments, "32bit", 0, 0,
       "32bit, or 8bit for runs with training.optimizer_moments 8bit: 6 bytes less memory per parameter, different "
       "weights"},
      {"scratch-dir", OPTION_STRING, &s.trainer.scratch_dir, "", 0, 0,
       "folder on a fast disk for the files of --lean and --optimizer-state mapped, which have no name and vanish "
       "with the process; default --state-dir"},
      {"context-max", OPTION_INT, &s.trainer.context_max, "0", 0, LIMIT_SEQUENCE_TOKENS,
       "longest sample in tokens; 0: the model's"},
      {"memory-max", OPTION_INT, &s.trainer.memory_max, "0", 0, 9e15,
       "bytes of memory that this process may plan for; 0: what the machine and the control group leave free"},
      {"fit", OPTION_BOOL, &s.trainer.fit, "false", 0, 0,
       "change these, the cheapest first, until the process fits into memory: --push-changes, --lean, kept "
       "activations, --optimizer-state, --chunk-tokens; a later run that keeps more frozen weights than the current "
       "one may not fit, and is then refused when it is posted"},
      {"keep-checkpoints", OPTION_INT, &s.trainer.keep_checkpoints, "2", 1, 1000,
       "checkpoints kept per run, besides version 0"},
      {"device", OPTION_STRING, &s.device, "cpu", 0, 0, "the device that computes: cpu, cuda or cuda:N"},
      {"exactness", OPTION_STRING, &s.exactness, "invariant", 0, 0,
       "a CUDA device's kernels: invariant (a row's bits depend on no other row) or fastest (the vendor's)"},
      {"isa", OPTION_STRING, &s.isa, "", 0, 0,
       "force the kernels of v2, v3, v4, v4-bf16 or amx; default: the best this CPU has"},
#ifdef LEASEHOLD_MPI
      {"rank-silence-ms", OPTION_INT, &s.rank_silence_ms, "5000", 500, 600000,
       "how long a rank may be silent before it counts as dead, and the job ends"},
      {"rank-wait-ms", OPTION_INT, &s.trainer.ranks.wait_ms, "600000", 1000, 86400000,
       "the longest that ranks wait for each other's work: the slowest group of a batch, a checkpoint"},
#endif
#ifdef LEASEHOLD_FAULTS
      {"fault", OPTION_STRING, &s.fault, "", 0, 0, "a fault on purpose, for the tests: see fault.h"},
#endif
  };
  const struct program program = {.name = PROGRAM_NAME,
                                  .summary = PROGRAM_SUMMARY,
                                  .options = options,
                                  .option_count = sizeof options / sizeof options[0],
                                  .settings = &s.program};
  enum rc rc = program_start(&run, &program, argc, argv, &err);
  if (rc == RC_OK && run && s.go_back[0]) {
    rc = go_back(&s, &err);
    run = false;
  }
  if (rc == RC_OK && run) rc = http_tls_start(&s.program.tls, &err);
  if (rc == RC_OK && run) rc = registration_check(s.name, s.advertise_url, &err);
  if (rc == RC_OK && run && !s.trainer.model_dir[0])
    rc = err_set(&err, RC_INVALID, "model", "--model must name a Hugging Face folder");
  if (rc == RC_OK && run) rc = optimizer_parse(&s, &err);
  if (s.trainer.threads == 0) s.trainer.threads = cores_usable();
  if (rc == RC_OK && run) rc = device_parse(&s.trainer.device, s.device, s.exactness, s.isa, &err);
#ifdef LEASEHOLD_FAULTS
  if (rc == RC_OK && run) rc = fault_set(trainer_faults, s.fault, &err);
#endif
  if (rc == RC_OK && run) rc = open_access(&s, &err);
#ifndef LEASEHOLD_MPI
  if (rc == RC_OK && run && s.plan[0]) {
    rc = foresee(&s.trainer, &program, s.plan, &err);
    run = false;
  }
#endif
  if (rc == RC_OK && run) rc = run_rank(&s, &err);
  http_access_close(s.access);
  return program_end(&program, rc, &err);
}
