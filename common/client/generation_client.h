/* Typed calls to a generation-server, for the trainer. */
#ifndef LEASEHOLD_CLIENT_GENERATION_CLIENT_H
#define LEASEHOLD_CLIENT_GENERATION_CLIENT_H

#include "common/http/client.h"
#include "common/wire/training.h"

struct generation_client {
  struct http_client *http;
  const char *base_url;
};

enum rc generation_push_weights(const struct generation_client *c, const char *run, int64_t version, uint64_t epoch,
                                const struct digest *digest, const void *bytes, size_t len, struct push_answer *out,
                                struct arena *arena, int64_t deadline_ms, struct err *err);

#endif
