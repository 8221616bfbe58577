/* A run's configuration out of a text, for tests. */
#ifndef LEASEHOLD_TESTS_PARSED_RUN_H
#define LEASEHOLD_TESTS_PARSED_RUN_H

#include <string.h>

#include "common/base/arena.h"
#include "common/json/json.h"
#include "services/coordinator/run/run_config.h"

struct parsed {
  struct run_config config;
  struct arena arena;
  struct json *body;
  struct err err;
  enum rc rc;
};

static inline struct parsed *parse(struct parsed *p, const char *text) {
  memset(p, 0, sizeof *p);
  p->rc = json_parse(&p->body, text, strlen(text), 0, &p->err);
  if (p->rc == RC_OK) p->rc = run_config_parse(&p->config, p->body, &p->arena, &p->err);
  return p;
}

static inline void parsed_free(struct parsed *p) {
  json_free(p->body);
  arena_free(&p->arena);
}

#endif
