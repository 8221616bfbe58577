/* generation-server: samples from a policy.  Flags here; the parts are tied together in server.c.
 *
 * Exit status: 0 after a drain (SIGTERM, SIGINT), 1 when it cannot start, 2 for a wrong command line. */
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/options.h"
#include "common/base/signals.h"
#include "services/generation-server/fault.h"
#include "services/generation-server/server.h"

enum { TICK_MS = 50 };

struct settings {
  const char *bind, *port_file, *coordinator, *advertise_url, *name, *model, *isa, *token, *log_level, *fault;
  int64_t port, slots, threads, kv_pages, page_tokens, prefill_chunk, context_max, prefetch, drain_ms;
};

static enum rc check(const struct settings *s, struct server_options *out, enum log_level *level, struct err *err) {
  *out = (struct server_options){.bind = s->bind,
                                 .port = (int)s->port,
                                 .coordinator = s->coordinator,
                                 .advertise_url = s->advertise_url,
                                 .name = s->name,
                                 .model_dir = s->model,
                                 .token = s->token,
                                 .prefetch = (int)(s->prefetch < 0 ? (s->slots + 1) / 2 : s->prefetch),
                                 .drain_ms = (int)s->drain_ms,
                                 .host = {.slots = (int)s->slots,
                                          .threads = (int)s->threads,
                                          .pages = (int)s->kv_pages,
                                          .page_tokens = (int)s->page_tokens,
                                          .prefill_chunk = (int)s->prefill_chunk,
                                          .context_max = (int)s->context_max,
                                          .isa = s->isa}};
#ifdef LEASEHOLD_FAULTS
  if (!fault_parse(&out->host.fault, s->fault))
    return err_set(err, RC_INVALID, "fault", "expected none, flip-weight or flip-kv, got %s", s->fault);
#endif
  if (s->page_tokens % 16 != 0)
    return err_set(err, RC_INVALID, "page-tokens", "expected a multiple of 16, got %lld", (long long)s->page_tokens);
  if (!*s->model && !*s->coordinator)
    return err_set(
        err, RC_INVALID, "model",
        "expected --model, --coordinator or both: without a coordinator there is nobody to fetch a model from");
  return log_level_parse(level, s->log_level, err);
}

static enum rc write_port(const struct settings *s, int port, struct err *err) {
  char text[16];
  if (!*s->port_file) return RC_OK;
  const int len = snprintf(text, sizeof text, "%d\n", port);
  return file_write_atomic(s->port_file, text, (size_t)len, err);
}

static int run(const struct settings *s, const struct server_options *options) {
  struct err err;
  struct server *server;
  enum rc rc = server_start(&server, options, &err);
  if (rc == RC_OK) {
    rc = write_port(s, server_port(server), &err);
    if (rc == RC_OK) {
      log_info("listening on %s:%d", s->bind, server_port(server));
      while (!signals_stop_requested()) clock_sleep_ms(TICK_MS);
      log_info("draining");
    }
    server_stop(server);
  }
  if (rc != RC_OK) log_error("%s", err.message);
  return rc == RC_OK ? 0 : 1;
}

int main(int argc, char **argv) {
  struct settings s = {.fault = "none"};
  const struct option options[] = {
      {"bind", OPTION_STRING, &s.bind, "127.0.0.1", 0, 0, "address to listen on"},
      {"port", OPTION_INT, &s.port, "8100", 0, 65535, "port to listen on; 0 picks a free one"},
      {"port-file", OPTION_STRING, &s.port_file, "", 0, 0, "file that the port is written to once listening"},
      {"coordinator", OPTION_STRING, &s.coordinator, "", 0, 0, "the coordinator's URL; without it a standalone server"},
      {"advertise-url", OPTION_STRING, &s.advertise_url, "", 0, 0,
       "where others reach this server (default http://127.0.0.1:PORT)"},
      {"name", OPTION_STRING, &s.name, "", 0, 0, "this worker's name (default gen-HOST-PORT)"},
      {"model", OPTION_STRING, &s.model, "", 0, 0,
       "Hugging Face folder; without it files and weights come from the trainer"},
      {"slots", OPTION_INT, &s.slots, "32", 1, LIMIT_SLOTS, "samples decoded at once"},
      {"threads", OPTION_INT, &s.threads, "1", 1, LIMIT_THREADS, "computing threads"},
      {"kv-pages", OPTION_INT, &s.kv_pages, "0", 0, 1 << 30, "pages of the KV pool; 0: from slots, context and memory"},
      {"page-tokens", OPTION_INT, &s.page_tokens, "32", 16, 1024, "positions of a page, a multiple of 16"},
      {"prefill-chunk", OPTION_INT, &s.prefill_chunk, "256", 1, 65536, "prompt positions computed in one step"},
      {"context-max", OPTION_INT, &s.context_max, "0", 0, LIMIT_SEQUENCE_TOKENS, "longest sequence; 0: the model's"},
      {"prefetch", OPTION_INT, &s.prefetch, "-1", -1, LIMIT_SLOTS,
       "leased samples held beyond the slots; -1: half as many as slots"},
      {"isa", OPTION_STRING, &s.isa, "", 0, 0, "kernels to use: v2, v3 or v4 (default: by CPU)"},
      {"auth-token", OPTION_STRING, &s.token, "", 0, 0,
       "bearer token that callers must bring, and that is brought to others"},
      {"log-level", OPTION_STRING, &s.log_level, "info", 0, 0, "debug, info, warn or error"},
      {"drain-ms", OPTION_INT, &s.drain_ms, "2000", 0, 600000, "how long plain requests may finish after SIGTERM"},
#ifdef LEASEHOLD_FAULTS
      {"fault", OPTION_STRING, &s.fault, "none", 0, 0, "mutant of the exactness tests: flip-weight or flip-kv"},
#endif
  };
  const size_t count = sizeof options / sizeof options[0];
  enum options_action action;
  enum log_level level = LOG_INFO;
  struct server_options server;
  struct err err;
  enum rc rc = options_parse(&action, options, count, argc, argv, &err);
  if (rc == RC_OK && action == OPTIONS_HELP) {
    options_print_help("generation-server",
                       "Samples from a policy: continuous batching over leases and plain requests.", options, count);
    return 0;
  }
  if (rc == RC_OK && action == OPTIONS_VERSION) {
    printf("generation-server %s\n", leasehold_version);
    return 0;
  }
  if (rc == RC_OK) rc = check(&s, &server, &level, &err);
  if (rc != RC_OK) {
    fprintf(stderr, "generation-server: %s%s%s\n", err.field, err.field[0] ? ": " : "", err.message);
    return 2;
  }
  log_init("generation", level);
  signals_install();
  return run(&s, &server);
}
