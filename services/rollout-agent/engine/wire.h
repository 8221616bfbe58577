/* A foreign engine's wire as a table of functions: one for vLLM, one for SGLang.
 *
 *   struct engine_request --write_generate--> JSON --engine--> JSON --read_generate--> struct engine_answer
 *
 * A table holds paths and pure translations: nothing here calls, waits or keeps anything; client.c does the exchanges.
 * Token ids go in and out, never text, so that nothing is tokenized twice.  Every parameter that shapes the
 * distribution is written out, since an engine would take what is left out from the model's generation_config.json.
 * An answer is judged by answer_check, the same for both: an answer that does not fit the request is RC_INVALID. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_ENGINE_WIRE_H
#define LEASEHOLD_ROLLOUT_AGENT_ENGINE_WIRE_H

#include "common/base/digest.h"
#include "common/wire/lease.h"

enum { ENGINE_VERSION_MAX = 192 };

struct engine_request {
  const char *id;
  const char *model; /* the name that the engine serves it under; NULL: the engine has one model */
  struct json_i32s token_ids;
  int32_t max_new_tokens;
  float temperature; /* 0: greedy */
  struct json_i32s stop_token_ids;
};

struct engine_answer {
  struct json_i32s token_ids; /* the stop token included */
  struct json_f32s logprobs;
  enum finish_reason finish;
  char version[ENGINE_VERSION_MAX]; /* as the engine calls its weights; "": the answer does not say */
};

/* One exchange of a load; {path} and {version} of its body are replaced. */
struct engine_call {
  const char *path;
  const char *body; /* JSON with the strings "{path}" and "{version}"; NULL: an empty body */
  bool optional;    /* a server without this route (404, 405) is fine */
  bool or_next;     /* where there is no such route, the next call does the same; else that one is left out */
  bool always;      /* even after a call before it has failed: it ends a pause */
};
enum { ENGINE_CALLS_MAX = 6 };

struct engine_wire {
  const char *name; /* "vllm" */
  const char *generate_path;
  void (*write_generate)(struct buf *out, const struct engine_request *r);
  enum rc (*read_generate)(struct engine_answer *out, const struct json *body, struct arena *arena, struct err *err);
  const char *version_paths[2]; /* GET {"weight_version"}: the second for older servers; NULL ends */
  const char *checksum_path;    /* POST {"action":"checksum"} */
  enum rc (*read_checksum)(struct digest *out, const struct json *body, struct err *err);
  struct engine_call load[ENGINE_CALLS_MAX]; /* in this order; path NULL ends */
  bool logprobs_at_temperature;              /* log-probabilities are those of logits / temperature, by default */
};

/* RC_INVALID: as many log-probabilities as tokens, finite and at most 0; at most max_new_tokens, exactly that many
 * where the sample ended by length; a sample that stopped ends in one of the request's stop ids, and none comes
 * before. */
enum rc engine_answer_check(const struct engine_answer *a, const struct engine_request *r, struct err *err);
/* "stop", "length"; anything else is FINISH_ABORT. */
enum finish_reason engine_finish(const char *name);
/* A version's name, which may be a number; "" for null, NULL and anything else. */
void engine_version_read(char out[ENGINE_VERSION_MAX], const struct json *value);
/* Reads the spans [{"version"}, ...] of an answer's tokens: the version of all of them; "several", which is no load's
 * name; "" where there is no span. */
void engine_versions_read(char out[ENGINE_VERSION_MAX], const struct json *spans);
/* Appends the body of a call, with path and version put in. */
void engine_call_body(struct buf *out, const struct engine_call *call, const char *path, const char *version);

#endif
