/* Typed calls to a generation-server, for the trainer. */
#ifndef LEASEHOLD_CLIENT_GENERATION_CLIENT_H
#define LEASEHOLD_CLIENT_GENERATION_CLIENT_H

#include "common/http/client.h"
#include "common/wire/training.h"

struct generation_client {
  struct http_client *http;
  const char *base_url;
};

struct pushed_version {
  const char *run;
  int64_t version;
  uint64_t epoch;
  struct digest digest;
  /* The coordinator has accepted the version: the server activates it as soon as it is staged, without being told. */
  bool announced;
};

enum rc generation_push_weights(const struct generation_client *c, const struct pushed_version *v, const void *bytes,
                                size_t len, struct push_answer *out, struct arena *arena, int64_t deadline_ms,
                                struct err *err);
/* The same, with bytes that say what changed since the version of digest `base`: one part after the other.  RC_CONFLICT
 * and the field "base" from a server that does not hold it. */
enum rc generation_push_changes(const struct generation_client *c, const struct pushed_version *v,
                                const struct digest *base, const struct http_part *parts, size_t count,
                                struct push_answer *out, struct arena *arena, int64_t deadline_ms, struct err *err);
/* The same without the bytes, which come by broadcast. */
enum rc generation_push_by_broadcast(const struct generation_client *c, const struct pushed_version *v,
                                     const struct push_broadcast *broadcast, struct push_answer *out,
                                     struct arena *arena, int64_t deadline_ms, struct err *err);

#endif
