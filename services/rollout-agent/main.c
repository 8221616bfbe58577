/* rollout-agent: has a foreign engine sample for a run.  Flags are read here; api/agent.c ties the parts together.
 *
 * Exit status: 0 after a drain (SIGTERM, SIGINT); 1 when it cannot start. */
#include <string.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/program.h"
#include "common/base/signals.h"
#include "common/client/registration.h"
#include "common/http/trust/access.h"
#include "common/http/trust/hosts.h"
#include "common/http/trust/tls.h"
#include "services/rollout-agent/api/agent.h"
#include "services/rollout-agent/engine/wires.h"

enum { TICK_MS = 50 };

struct settings {
  struct program_settings program;
  const char *coordinator, *advertise_url, *name, *engine, *engine_url, *engine_token, *engine_model, *engine_logprobs,
      *check, *weights_dir, *engine_weights_dir;
  int64_t slots, prefetch, request_timeout_ms, load_timeout_ms, check_timeout_ms, weights_bytes_max;
  double probe_tolerance;
};

static enum rc choose(bool *first, const char *flag, const char *value, const char *one, const char *other,
                      struct err *err) {
  *first = strcmp(value, one) == 0;
  if (*first || strcmp(value, other) == 0) return RC_OK;
  return err_set(err, RC_INVALID, flag, "--%s: expected %s or %s, got '%.40s'", flag, one, other, value);
}

static enum rc demand(const char *flag, const char *value, const char *what, struct err *err) {
  return *value ? RC_OK : err_set(err, RC_INVALID, flag, "--%s: expected %s, got none", flag, what);
}

static enum rc check(const struct settings *s, struct agent_options *out, struct err *err) {
  const struct engine_wire *wire = engine_wire_named(s->engine);
  bool checksum = false, at_temperature = wire && wire->logprobs_at_temperature;
  enum rc rc = demand("coordinator", s->coordinator, "the coordinator's URL", err);
  if (rc == RC_OK)
    rc = demand("engine-url", s->engine_url, "the engine's URL; of https it is trusted by --tls-ca", err);
  char host[HOST_BYTES_MAX];
  if (rc == RC_OK && hosts_of_url(host, s->engine_url, NULL) != RC_OK)
    rc = err_set(err, RC_INVALID, "engine-url",
                 "--engine-url: expected http://host:port or https://host:port, got '%.100s'", s->engine_url);
  if (rc == RC_OK) rc = registration_check(s->name, s->advertise_url, err);
  if (rc == RC_OK) rc = demand("weights-dir", s->weights_dir, "a folder that the engine can read", err);
  if (rc == RC_OK && !wire)
    rc = err_set(err, RC_INVALID, "engine", "--engine: expected vllm or sglang, got '%.40s'", s->engine);
  if (rc == RC_OK) rc = choose(&checksum, "check", s->check, "checksum", "probe", err);
  if (rc == RC_OK && *s->engine_logprobs)
    rc = choose(&at_temperature, "engine-logprobs", s->engine_logprobs, "processed", "raw", err);
  const char *model = *s->engine_model ? s->engine_model : NULL;
  *out = (struct agent_options){.bind = s->program.bind,
                                .port = (int)s->program.port,
                                .coordinator = s->coordinator,
                                .advertise_url = s->advertise_url,
                                .name = s->name,
                                .weights_dir = s->weights_dir,
                                .engine_weights_dir = s->engine_weights_dir,
                                .limits = s->program.limits,
                                .leases = {.coordinator = s->coordinator,
                                           .wire = wire,
                                           .engine_url = s->engine_url,
                                           .engine_token = s->engine_token,
                                           .engine_model = model,
                                           .logprobs_at_temperature = at_temperature,
                                           .request_timeout_ms = s->request_timeout_ms,
                                           .version_timeout_ms = s->check_timeout_ms,
                                           .slots = (int)s->slots,
                                           .prefetch = (int)(s->prefetch < 0 ? (s->slots + 1) / 2 : s->prefetch)},
                                .loader = {.wire = wire,
                                           .engine_url = s->engine_url,
                                           .engine_token = s->engine_token,
                                           .engine_model = model,
                                           .weights_bytes_max = s->weights_bytes_max,
                                           .load_timeout_ms = s->load_timeout_ms,
                                           .proof_timeout_ms = s->check_timeout_ms,
                                           .wants_checksum = checksum,
                                           .probe_tolerance = s->probe_tolerance}};
  return rc;
}

static enum rc serve(const struct settings *s, struct agent_options *options, struct err *err) {
  struct agent *agent;
  struct http_access *access;
  enum rc rc = http_access_open(&access, &s->program, HTTP_WORKER, s->coordinator, err);
  if (rc != RC_OK) return rc;
  options->access = access;
  options->leases.access = options->loader.access = access;
  if ((rc = agent_start(&agent, options, err)) != RC_OK) goto out;
  signals_stop_in_order();
  rc = program_write_port(&s->program, agent_port(agent), err);
  if (rc == RC_OK) {
    log_info("serving; ready once the engine is proven to hold a version");
    while (!signals_stop_requested()) clock_sleep_ms(TICK_MS);
    log_info("draining");
  }
  agent_stop(agent);
out:
  http_access_close(access);
  return rc;
}

int main(int argc, char **argv) {
  struct settings s = {0};
  struct agent_options agent;
  struct err err = {0};
  bool run;
  const struct option options[] = {
      PROGRAM_OPTIONS(&s.program, "8300"),
      {"coordinator", OPTION_STRING, &s.coordinator, "", 0, 0, "the coordinator's URL"},
      {"advertise-url", OPTION_STRING, &s.advertise_url, "", 0, 0,
       "this agent's URL as others reach it; default http://BIND:PORT (https with --tls-cert), and for a wildcard "
       "BIND the address that faces the coordinator"},
      {"name", OPTION_STRING, &s.name, "", 0, 0, "this worker's name (default agent-HOST-PORT)"},
      {"engine", OPTION_STRING, &s.engine, "vllm", 0, 0, "the wire that the engine speaks: vllm or sglang"},
      {"engine-url", OPTION_STRING, &s.engine_url, "", 0, 0, "the engine's URL"},
      {"engine-token", OPTION_STRING, &s.engine_token, "", 0, 0, "bearer token that is shown to the engine"},
      {"engine-model", OPTION_STRING, &s.engine_model, "", 0, 0,
       "the name that the engine serves the model under, where requests must name it"},
      {"engine-logprobs", OPTION_STRING, &s.engine_logprobs, "", 0, 0,
       "what the engine's log-probabilities are of: raw (the logits) or processed (the logits / temperature); default: "
       "raw for vllm, processed for sglang"},
      {"check", OPTION_STRING, &s.check, "checksum", 0, 0,
       "how the engine shows which weights it has: checksum (or a probe, where it offers no checksum) or probe"},
      {"probe-tolerance", OPTION_FLOAT, &s.probe_tolerance, "0.00001", 0, 1,
       "the largest difference between a probe's log-probabilities that counts as none"},
      {"weights-dir", OPTION_STRING, &s.weights_dir, "", 0, 0,
       "folder that this agent writes versions to and that the engine reads"},
      {"engine-weights-dir", OPTION_STRING, &s.engine_weights_dir, "", 0, 0,
       "the same folder's path as the engine sees it, if it differs there"},
      {"weights-bytes-max", OPTION_INT, &s.weights_bytes_max, "17179869184", 1, 9e15,
       "the largest weights file that may be pulled: the whole file is in this process's memory while it arrives"},
      {"slots", OPTION_INT, &s.slots, "32", 1, LIMIT_THREADS, "requests sent to the engine at once"},
      {"prefetch", OPTION_INT, &s.prefetch, "-1", -1, LIMIT_SLOTS,
       "leased samples held beyond the slots; -1: half as many as slots"},
      {"request-timeout-ms", OPTION_INT, &s.request_timeout_ms, "600000", 100, 86400000,
       "the longest that a request may take before its lease is handed back"},
      {"load-timeout-ms", OPTION_INT, &s.load_timeout_ms, "600000", 100, 86400000,
       "the longest that the engine may take to load a version"},
      {"check-timeout-ms", OPTION_INT, &s.check_timeout_ms, "60000", 100, 86400000,
       "the longest that the engine may take to show which weights it has"},
  };
  const struct program program = {
      .name = "rollout-agent",
      .summary =
          "Lets another engine (vLLM, SGLang) sample for a run: holds its leases, loads its versions, checks both.",
      .options = options,
      .option_count = sizeof options / sizeof options[0],
      .settings = &s.program};
  enum rc rc = program_start(&run, &program, argc, argv, &err);
  if (rc == RC_OK && run) rc = http_tls_start(&s.program.tls, &err);
  if (rc == RC_OK && run) rc = check(&s, &agent, &err);
  if (rc == RC_OK && run) rc = serve(&s, &agent, &err);
  return program_end(&program, rc, &err);
}
