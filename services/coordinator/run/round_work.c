/* Sets the log context of a round's work, and derives the round's trace. */
#include "services/coordinator/run/round_work.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/base/digest.h"
#include "common/base/log.h"

void round_trace(struct trace *out, const struct run_context *x, int64_t round) {
  struct digest_state state;
  struct digest digest;
  digest_begin(&state);
  digest_update_text(&state, "leasehold round");
  digest_update_u64(&state, (uint64_t)x->created_ms);
  digest_update_u64(&state, x->config.seed);
  digest_update_u64(&state, (uint64_t)x->run);
  digest_update_u64(&state, (uint64_t)round);
  digest_end(&digest, &state);
  trace_of_bytes(out, digest.bytes);
}

void round_work(const struct run_context *x, int64_t round, int64_t group) {
  char id[LOG_VALUE_MAX];
  struct trace trace;
  const int len = snprintf(id, sizeof id, "r%" PRId64 ".%" PRId64, x->run, round);
  if (group >= 0) snprintf(id + len, sizeof id - (size_t)len, ".%" PRId64, group);
  round_trace(&trace, x, round);
  log_context_clear();
  log_context_id(id);
  trace_set(&trace);
}
