/* Leases and their results: the coordinator grants samples of one group to a generation-server, which answers once
 * per lease.
 *
 * Ids: run r7, round r7.12, group r7.12.3, sample r7.12.3.0; a lease is named after its group and samples,
 * "r7.12.3.0-3" (first and last sample). A re-issued sample carries a higher fence; a result under an older fence is
 * refused. */
#ifndef LEASEHOLD_WIRE_LEASE_H
#define LEASEHOLD_WIRE_LEASE_H

#include "common/wire/sampling.h"
#include "common/wire/segments.h"
#include "common/wire/spans.h"
#include "common/wire/worker.h"

/* POST /v1/workers/{id}/leases: a long poll. */
struct lease_request {
  uint64_t epoch;
  int32_t slots_free; /* samples wanted, prefetch included; > 0 */
  int32_t wait_ms;
  bool has_loaded;
  struct digest loaded_digest;
  bool has_taken;
  int64_t leases_taken; /* in answers since it registered, held or not: an answer that was lost shows by it */
};

struct partial_sample {
  int32_t sample; /* index within the group */
  struct json_i32s token_ids;
  struct json_f32s logprobs;
  /* Cover the tokens; none: all of them are version_min's, and fresh. */
  struct version_span *spans;
  size_t span_count;
};

/* What becomes of the keys and values of running samples when a newer version, for which the lease is valid too, is
 * activated: "keep" (left out) goes on with them, "recompute" computes them again under the newer version. */
enum lease_kv { LEASE_KV_KEEP, LEASE_KV_RECOMPUTE };

enum lease_purpose { LEASE_TRAINING, LEASE_EVALUATION };

struct lease {
  const char *id; /* "r7.12.3.0-3" */
  uint64_t fence;
  const char *run;
  const char *group;          /* "r7.12.3" */
  enum lease_purpose purpose; /* "training" | "evaluation" */
  int64_t round;
  int32_t group_ordinal; /* counts refills; the key of its randomness */
  int32_t sample_first, sample_count;
  int64_t version_min, version_max; /* valid while the policy version lies between */
  enum lease_kv kv;
  struct digest weights_digest;
  float temperature;      /* > 0 for training; 0 is greedy, evaluation only */
  struct sampling_cut cut; /* what is left out before a draw; nothing where it is greedy */
  int32_t max_new_tokens; /* the group's own */
  struct json_i32s stop_token_ids;
  bool ignore_eos; /* no token ends a sample: exactly when there are no stop ids; false is left out */
  struct stop_strings stop; /* none is left out */
  uint64_t seed;   /* the run's */
  int32_t ttl_ms;
  struct json_i32s prompt_ids;
  const char *traceparent; /* the round's trace (common/http/trace.h); NULL: none, left out.  For logs alone */
  struct partial_sample *partials; /* tokens that an earlier holder handed back */
  size_t partial_count;
  /* Set by decoding: a member that this program does not know, as a newer coordinator's lease may have; NULL: none.
   * It could change what is sampled, so the lease is handed back, refused (lease_known). */
  const char *unknown;
};

struct lease_answer {
  uint64_t epoch;
  struct lease *leases;
  size_t lease_count;
  struct current_version current;
};

enum finish_reason { FINISH_STOP, FINISH_LENGTH, FINISH_ABORT }; /* "stop" | "length" | "abort" */

struct sample_result {
  int32_t sample;
  struct json_i32s token_ids; /* the stop token, or what completes a stop text, included */
  struct json_f32s logprobs;  /* behaviour log-probabilities, one per token; in JSON 9 significant digits */
  enum finish_reason finish;
  struct sample_segment *segments;
  size_t segment_count; /* cover the tokens exactly */
  struct version_span *spans;
  size_t span_count;           /* cover the tokens exactly */
  const struct digest *digest; /* sample_result_digest of all this, where somebody has computed it; not sent */
};

enum { WIRE_REFUSED_BYTES = 400 };

/* PUT /v1/leases/{id}/result */
struct lease_result {
  const char *worker_id;
  uint64_t epoch, fence;
  struct digest loaded_digest;
  bool handed_back; /* draining: the samples are partial (finish "abort") and will be continued elsewhere */
  /* With handed_back: this server can never run the lease, and why (up to WIRE_REFUSED_BYTES characters); NULL: it
   * could. */
  const char *refused;
  /* With handed_back: under this version's weights the server draws log-probabilities that are not finite; its samples
   * are left as they were. */
  bool nonfinite;
  int64_t nonfinite_version;
  struct sample_result *samples;
  size_t sample_count;
};

struct lease_result_answer {
  bool repeated; /* the same content had been accepted before */
};

void lease_request_encode(const struct lease_request *m, struct buf *out);
enum rc lease_request_decode(struct lease_request *m, const struct json *body, struct arena *arena, struct err *err);
void lease_answer_encode(const struct lease_answer *m, struct buf *out);
/* One lease's unknown members do not keep the others from being read: struct lease says which it has. */
enum rc lease_answer_decode(struct lease_answer *m, const struct json *body, struct arena *arena, struct err *err);
/* RC_INVALID, in words for the pool's operator, where it has a member that is unknown here. */
enum rc lease_known(const struct lease *m, struct err *err);
void lease_result_encode(const struct lease_result *m, struct buf *out);
/* Checks bounds, equal lengths, finite log-probabilities <= 0 (a NaN cannot be written in JSON; 1e999 is refused),
 * segments and spans that cover. */
enum rc lease_result_decode(struct lease_result *m, const struct json *body, struct arena *arena, struct err *err);
/* The same message as safetensors (lease_result_tensors.c), and the same checks.  What *m points to lives in the arena,
 * but token ids and log-probabilities stay in the bytes, which must last as long and are not to be changed. */
enum rc lease_result_encode_tensors(const struct lease_result *m, struct buf *out, struct err *err);
enum rc lease_result_decode_tensors(struct lease_result *m, const void *bytes, size_t len, struct arena *arena,
                                    struct err *err);
void lease_result_answer_encode(const struct lease_result_answer *m, struct buf *out);
enum rc lease_result_answer_decode(struct lease_result_answer *m, const struct json *body, struct arena *arena,
                                   struct err *err);

/* Digest over canonical bytes of one sample's content (tokens, log-probability bits, finish, segments, spans): equal
 * content, equal digest, however the JSON was spelled.  Spans that are fresh add what they did before `fresh` was
 * recorded. */
void sample_result_digest(struct digest *out, const struct sample_result *s);
const char *finish_reason_name(enum finish_reason f);
const char *lease_purpose_name(enum lease_purpose p);
const char *lease_kv_name(enum lease_kv kv);

#endif
