/* The load of `make bench-coordinator`: emulated workers against a coordinator, or clients of a peer.  Called by
 * tests/bench/bench-coordinator; prints one line of JSON. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "tests/bench/coordinator/connections.h"
#include "tests/bench/coordinator/peers.h"
#include "tests/bench/coordinator/workers.h"

/* name=value among the arguments, or what it is otherwise. */
static const char *text_of(char **args, const char *name, const char *otherwise) {
  const size_t len = strlen(name);
  for (; *args; args++) {
    if (strncmp(*args, name, len) == 0 && (*args)[len] == '=') return *args + len + 1;
  }
  return otherwise;
}
static int number_of(char **args, const char *name, int otherwise) {
  const char *text = text_of(args, name, NULL);
  return text ? atoi(text) : otherwise;
}

static void files_allow(void) {
  struct rlimit limit;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

int main(int argc, char **argv) {
  if (argc < 2) bench_fail("usage: %s workers|close|idle|health|floor|redis|etcd name=value...", argv[0]);
  files_allow();
  const char *kind = argv[1];
  char **args = argv + 2;
  const bool close = strcmp(kind, "close") == 0, idle = strcmp(kind, "idle") == 0;
  if (close || idle || strcmp(kind, "workers") == 0) {
    const struct worker_load load = {.port = number_of(args, "port", 0),
                                     .pid = number_of(args, "pid", 0),
                                     .workers = number_of(args, "workers", 10),
                                     .slots = number_of(args, "slots", 8),
                                     .groups = number_of(args, "groups", 512),
                                     .samples = number_of(args, "samples", 8),
                                     .tokens = number_of(args, "tokens", 1024),
                                     .sampling_us = number_of(args, "sampling_us", 0),
                                     .dataset = text_of(args, "dataset", "train.jsonl"),
                                     .close = close,
                                     .idle = idle};
    workers_measure(&load);
    return 0;
  }
  const struct peer_load load = {.kind = kind,
                                 .port = number_of(args, "port", 0),
                                 .pid = number_of(args, "pid", 0),
                                 .connections = number_of(args, "connections", 10),
                                 .seconds = number_of(args, "milliseconds", 3000) / 1000.0,
                                 .bytes = (size_t)number_of(args, "bytes", 8192),
                                 .asked = (size_t)number_of(args, "asked", 0),
                                 .puts = number_of(args, "puts", 1)};
  peer_measure(&load);
  return 0;
}
