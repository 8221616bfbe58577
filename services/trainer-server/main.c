/* trainer-server: flags, start, wait for a signal, stop.  The parts: trainer.c (engine), jobs.c, unit.c,
 * checkpoint.c, publisher.c, registration.c, route_*.c. */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/signals.h"
#include "services/trainer-server/publisher.h"
#include "services/trainer-server/registration.h"
#include "services/trainer-server/routes.h"

enum { DRAIN_MS = 2000, TICK_MS = 100 };

struct settings {
  const char *bind, *port_file, *coordinator, *advertise_url, *name, *token, *log_level;
  int64_t port;
  struct trainer_options trainer;
};

/* Where others reach this server when nobody said so: a wildcard address is no destination. */
static void default_url(char *out, size_t size, const char *bind, int port) {
  const bool any = strcmp(bind, "0.0.0.0") == 0 || strcmp(bind, "::") == 0;
  const bool v6 = !any && strchr(bind, ':');
  snprintf(out, size, "http://%s%s%s:%d", v6 ? "[" : "", any ? "127.0.0.1" : bind, v6 ? "]" : "", port);
}

static enum rc serve(struct settings *s, struct err *err) {
  struct trainer *trainer = NULL;
  struct publisher *publisher = NULL;
  struct registration *registration = NULL;
  struct http_server *server = NULL;
  char url[LIMIT_URL_MAX];
  enum rc rc = trainer_create(&trainer, &s->trainer, err);
  if (rc == RC_OK) rc = publisher_create(&publisher, trainer, s->coordinator, s->token, err);
  if (rc != RC_OK) goto out;
  trainer_set_publisher(trainer, publisher); /* before the first job */
  const struct http_server_options options = {.bind_address = s->bind,
                                              .port = (int)s->port,
                                              .token = s->token,
                                              .routes = trainer_routes,
                                              .route_count = trainer_route_count,
                                              .context = trainer};
  if ((rc = http_server_start(&server, &options, err)) != RC_OK) goto out;
  default_url(url, sizeof url, s->bind, http_server_port(server));
  if (!s->advertise_url[0]) s->advertise_url = url;
  log_info("listening on %s:%d", s->bind, http_server_port(server));
  if (s->port_file[0]) {
    char text[16];
    snprintf(text, sizeof text, "%d\n", http_server_port(server));
    if ((rc = file_write_atomic(s->port_file, text, strlen(text), err)) != RC_OK) goto out;
  }
  if (s->coordinator[0]) {
    const struct registration_options tie = {
        .coordinator_url = s->coordinator, .token = s->token, .name = s->name, .advertise_url = s->advertise_url};
    if ((rc = registration_start(&registration, &tie, trainer, publisher, err)) != RC_OK) goto out;
  }
  while (!signals_stop_requested()) clock_sleep_ms(TICK_MS);
  log_info("stopping");
out:
  registration_stop(registration);
  if (trainer) trainer_stop(trainer); /* the engine first: its last step goes to the publisher */
  publisher_destroy(publisher);
  http_server_stop(server, DRAIN_MS);
  trainer_destroy(trainer);
  return rc;
}

int main(int argc, char **argv) {
  struct settings s = {0};
  struct err err = {0};
  enum options_action action;
  const struct option options[] = {
      {"bind", OPTION_STRING, &s.bind, "127.0.0.1", 0, 0, "address to listen on"},
      {"port", OPTION_INT, &s.port, "8200", 0, 65535, "port to listen on; 0 picks a free one"},
      {"port-file", OPTION_STRING, &s.port_file, "", 0, 0, "write the port here once listening"},
      {"coordinator", OPTION_STRING, &s.coordinator, "", 0, 0, "the coordinator's URL"},
      {"advertise-url", OPTION_STRING, &s.advertise_url, "", 0, 0,
       "how others reach this server; default http://BIND:PORT, with 127.0.0.1 for a wildcard BIND"},
      {"name", OPTION_STRING, &s.name, "trainer", 0, 0, "this worker's name"},
      {"model", OPTION_STRING, &s.trainer.model_dir, "", 0, 0,
       "Hugging Face folder: config.json, tokenizer.json, model.safetensors"},
      {"state-dir", OPTION_STRING, &s.trainer.state_dir, "trainer-state", 0, 0, "folder for checkpoints"},
      {"random-init", OPTION_INT, &s.trainer.random_init_seed, "-1", -1, 9e15,
       "seed of random weights when the folder holds none; -1 refuses"},
      {"threads", OPTION_INT, &s.trainer.threads, "1", 1, LIMIT_THREADS, "computing threads"},
      {"chunk-tokens", OPTION_INT, &s.trainer.chunk_tokens, "4096", 16, LIMIT_SEQUENCE_TOKENS,
       "largest chunk of tokens computed at once; a run's chunk_tokens may not exceed it"},
      {"context-max", OPTION_INT, &s.trainer.context_max, "0", 0, LIMIT_SEQUENCE_TOKENS,
       "longest sample in tokens; 0: the model's"},
      {"keep-checkpoints", OPTION_INT, &s.trainer.keep_checkpoints, "2", 1, 1000,
       "checkpoints kept of a run, besides version 0"},
      {"isa", OPTION_STRING, &s.trainer.isa, "", 0, 0, "force kernels of v2, v3 or v4; default: the best this CPU has"},
#ifdef LEASEHOLD_FAULTS
      {"fault", OPTION_STRING, &s.trainer.fault, "", 0, 0, "mutant of the exactness tests: flip-gradient"},
#endif
      {"auth-token", OPTION_STRING, &s.token, "", 0, 0,
       "bearer token that callers must show and that is shown to the others"},
      {"log-level", OPTION_STRING, &s.log_level, "info", 0, 0, "debug, info, warn or error"},
  };
  enum log_level level;
  enum rc rc = options_parse(&action, options, sizeof options / sizeof options[0], argc, argv, &err);
  if (rc == RC_OK && action == OPTIONS_HELP) {
    options_print_help("trainer-server",
                       "Learns: log-probabilities, gradients, AdamW steps, checkpoints, published weights.", options,
                       sizeof options / sizeof options[0]);
    return 0;
  }
  if (rc == RC_OK && action == OPTIONS_VERSION) {
    printf("trainer-server %s\n", leasehold_version);
    return 0;
  }
  if (rc == RC_OK) rc = log_level_parse(&level, s.log_level, &err);
  if (rc == RC_OK && !s.trainer.model_dir[0])
    rc = err_set(&err, RC_INVALID, "model", "--model must name a Hugging Face folder");
  if (rc == RC_OK) {
    log_init("trainer", level);
    signals_install();
    if (!s.trainer.isa[0]) s.trainer.isa = NULL;
    rc = serve(&s, &err);
  }
  if (rc != RC_OK) fprintf(stderr, "trainer-server: %s\n", err.message);
  return rc == RC_OK ? 0 : 1;
}
