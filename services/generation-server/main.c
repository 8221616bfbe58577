/* generation-server: samples from a policy.  Flags are read here; server.c ties the parts together.
 *
 * Compiled with LEASEHOLD_MPI it is generation-server-mpi: the same server, which mpirun has started with the trainer,
 * so that weights may come by broadcast.
 *
 * Exit status: 0 after a drain (SIGTERM, SIGINT); 1 when it cannot start, or after a drain because its device failed: a
 * supervisor that starts it anew gives it a fresh one. */
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/machine.h"
#include "common/base/program.h"
#include "common/base/signals.h"
#include "common/client/registration.h"
#include "common/comm/fabric_open.h"
#include "common/http/trust/access.h"
#include "common/http/trust/tls.h"
#include "services/generation-server/fault.h"
#include "services/generation-server/api/server.h"
#include "services/generation-server/foresee/foresee.h"

#ifdef LEASEHOLD_MPI
#define PROGRAM_NAME    "generation-server-mpi"
#define PROGRAM_SUMMARY "The generation-server as one of the processes of an mpirun that has started its trainer too."
#else
#define PROGRAM_NAME    "generation-server"
#define PROGRAM_SUMMARY "Samples from a policy: continuous batching over leases and plain requests."
#endif

enum { TICK_MS = 50 };

struct settings {
  struct program_settings program;
  const char *coordinator, *advertise_url, *name, *fabric, *model, *device, *exactness, *isa, *fault, *plan;
  int64_t slots, threads, kv_pages, page_tokens, prefill_chunk, context_max, memory_max, prefetch, drain_ms,
      stream_stall_ms;
  bool fit;
};

static enum rc check(const struct settings *s, struct server_options *out, struct err *err) {
  *out = (struct server_options){.bind = s->program.bind,
                                 .port = (int)s->program.port,
                                 .coordinator = s->coordinator,
                                 .advertise_url = s->advertise_url,
                                 .name = s->name,
                                 .model_dir = s->model,
                                 .limits = s->program.limits,
                                 .prefetch = (int)(s->prefetch < 0 ? (s->slots + 1) / 2 : s->prefetch),
                                 .drain_ms = (int)s->drain_ms,
                                 .stream_stall_ms = (int)s->stream_stall_ms,
                                 .model = {.slots = (int)s->slots,
                                           .threads = s->threads > 0 ? (int)s->threads : cores_usable(),
                                           .pages = (int)s->kv_pages,
                                           .page_tokens = (int)s->page_tokens,
                                           .prefill_chunk = (int)s->prefill_chunk,
                                           .context_max = (int)s->context_max,
                                           .memory_max = s->memory_max,
                                           .fit = s->fit}};
#ifdef LEASEHOLD_FAULTS
  const enum rc rc = fault_set(generation_faults, s->fault, err);
  if (rc != RC_OK) return rc;
#endif
  if (s->page_tokens % 16 != 0)
    return err_set(err, RC_INVALID, "page-tokens", "expected a multiple of 16, got %lld", (long long)s->page_tokens);
  if (!*s->model && !*s->coordinator)
    return err_set(
        err, RC_INVALID, "model",
        "expected --model, --coordinator or both: without a coordinator there is no trainer to fetch a model from");
  return device_parse(&out->model.device, s->device, s->exactness, s->isa, err); /* the model may come later */
}

static enum rc serve(const struct settings *s, struct server_options *options, struct err *err) {
  struct server *server;
  const unsigned shows = *s->coordinator ? HTTP_WORKER : 0;
  enum rc rc = http_access_open(&options->access, &s->program, shows, s->coordinator, err);
  if (rc != RC_OK) return rc;
  if ((rc = server_start(&server, options, err)) != RC_OK) goto out;
  signals_stop_in_order();
  rc = program_write_port(&s->program, server_port(server), err);
  if (rc == RC_OK) {
    log_info(*s->model ? "ready" : "serving; ready once a version has been pulled or pushed");
    while (rc == RC_OK && !signals_stop_requested()) {
      clock_sleep_ms(TICK_MS);
      rc = server_failure(server, err);
    }
    log_info("draining");
  }
  server_stop(server);
out:
  http_access_close(options->access);
  return rc;
}

static enum rc serve_in_fabric(const struct settings *s, struct server_options *options, struct err *err) {
  struct fabric *fabric;
  const struct device *device = &options->model.device;
  enum rc rc = fabric_open(&fabric, s->fabric, false, device->cuda ? device->index : -1, err);
  if (rc != RC_OK) return rc;
  options->fabric = s->fabric[0] ? fabric : NULL;
  options->fabric_name = s->fabric;
  rc = serve(s, options, err);
  if (fabric) fabric->free(fabric);
  return rc;
}

int main(int argc, char **argv) {
  struct settings s = {0};
  struct server_options server;
  struct err err = {0};
  bool run;
  const struct option options[] = {
      PROGRAM_OPTIONS(&s.program, "8100"),
      {"coordinator", OPTION_STRING, &s.coordinator, "", 0, 0,
       "the coordinator's URL; without it the server stands alone"},
      {"advertise-url", OPTION_STRING, &s.advertise_url, "", 0, 0,
       "this server's URL as others reach it; default http://BIND:PORT (https with --tls-cert), and for a wildcard "
       "BIND the address that faces the coordinator"},
      {"name", OPTION_STRING, &s.name, "", 0, 0, "this worker's name (default gen-HOST-PORT)"},
      {"fabric", OPTION_STRING, &s.fabric, "", 0, 0,
       "name of a fast network that this process shares with the trainer: weights then come by broadcast"},
      {"model", OPTION_STRING, &s.model, "", 0, 0,
       "Hugging Face folder; without it, files and weights come from the trainer"},
      {"slots", OPTION_INT, &s.slots, "32", 1, LIMIT_SLOTS, "samples decoded at once"},
      {"threads", OPTION_INT, &s.threads, "0", 0, LIMIT_THREADS,
       "computing threads; 0: one for every core that affinity and control groups grant"},
      {"kv-pages", OPTION_INT, &s.kv_pages, "0", 0, 1 << 30, "pages of the KV pool; 0: from slots, context and memory"},
      {"page-tokens", OPTION_INT, &s.page_tokens, "32", 16, 1024, "positions of a page, a multiple of 16"},
      {"prefill-chunk", OPTION_INT, &s.prefill_chunk, "256", 1, 65536, "prompt positions computed in one step"},
      {"context-max", OPTION_INT, &s.context_max, "0", 0, LIMIT_SEQUENCE_TOKENS, "longest sequence; 0: the model's"},
      {"memory-max", OPTION_INT, &s.memory_max, "0", 0, 9e15,
       "bytes of memory that this process may plan for; 0: what the machine and the control group leave free"},
      {"fit", OPTION_BOOL, &s.fit, "false", 0, 0,
       "lower these, the cheapest first, until the process fits into memory: --kv-pages, --prefill-chunk, "
       "--context-max"},
      {"plan", OPTION_STRING, &s.plan, "", 0, 0,
       "print, as JSON, what this process would need here and how fast it would sample for the run that this file "
       "(JSON; - is standard input) describes, and exit; needs --model"},
      {"prefetch", OPTION_INT, &s.prefetch, "-1", -1, LIMIT_SLOTS,
       "leased samples held beyond the slots; -1: half as many as slots"},
      {"device", OPTION_STRING, &s.device, "cpu", 0, 0, "the device that computes: cpu, cuda or cuda:N"},
      {"exactness", OPTION_STRING, &s.exactness, "invariant", 0, 0,
       "a CUDA device's kernels: invariant (a row's bits depend on no other row) or fastest (the vendor's)"},
      {"isa", OPTION_STRING, &s.isa, "", 0, 0,
       "force the kernels of v2, v3, v4, v4-bf16 or amx; default: the best this CPU has"},
      {"drain-ms", OPTION_INT, &s.drain_ms, "2000", 0, 600000,
       "how long plain requests may take to finish after SIGTERM"},
      {"stream-stall-ms", OPTION_INT, &s.stream_stall_ms, "30000", 100, 600000,
       "how long a streaming client that is behind may read nothing before it is cut off"},
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
  if (rc == RC_OK && run) rc = http_tls_start(&s.program.tls, &err);
  if (rc == RC_OK && run) rc = registration_check(s.name, s.advertise_url, &err);
  if (rc == RC_OK && run) rc = check(&s, &server, &err);
  if (rc == RC_OK && run) {
    if (s.plan[0])
      rc = foresee(&server.model, s.model, &program, s.plan, &err);
    else
      rc = serve_in_fabric(&s, &server, &err);
  }
  return program_end(&program, rc, &err);
}
