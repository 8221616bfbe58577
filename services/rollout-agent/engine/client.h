/* Typed calls to a foreign engine, over the wire that it speaks.  One client per thread; every call has a deadline.
 *
 * A refusal keeps the status' code: RC_INVALID (400, 422) is about what was asked, RC_NOT_FOUND a route that is not
 * there.  An answer that cannot be understood is RC_INTERNAL.  Nothing is retried here. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_ENGINE_CLIENT_H
#define LEASEHOLD_ROLLOUT_AGENT_ENGINE_CLIENT_H

#include "common/http/client.h"
#include "services/rollout-agent/engine/evidence.h"

struct engine_client {
  struct http_client *http;
  struct http_client *kept_http; /* not cut when the agent stops: of calls that a load makes in any case; else NULL */
  const char *base_url;
  const struct engine_wire *wire;
  const char *model; /* NULL: none is named */
};

/* The answer lives in the arena and fits the request (engine_answer_check). */
enum rc engine_generate(const struct engine_client *c, const struct engine_request *r, struct engine_answer *out,
                        struct arena *arena, int64_t deadline_ms, struct err *err);
/* The engine's word for its weights; "" when it has none. */
enum rc engine_version(const struct engine_client *c, char out[ENGINE_VERSION_MAX], int64_t deadline_ms,
                       struct err *err);
/* Version and checksum; the probe where there is no checksum, or none is wanted. */
enum rc engine_observe(const struct engine_client *c, bool wants_checksum, struct evidence *out, int64_t deadline_ms,
                       struct err *err);
/* Has the engine load the folder at `path` (as the engine sees it), call it `version`, and sample a token: one whose
 * generate route is closed (vLLM without --enable-scale-out) must hold no lease.  Needs kept_http. */
enum rc engine_load(const struct engine_client *c, const char *path, const char *version, int64_t deadline_ms,
                    struct err *err);

#endif
