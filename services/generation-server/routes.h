/* The server's endpoints, one file each; context is struct server *. */
#ifndef LEASEHOLD_GENERATION_ROUTES_H
#define LEASEHOLD_GENERATION_ROUTES_H

#include "services/generation-server/server.h"

void handle_generate(struct http_request *r, void *context);     /* POST /v1/generate */
void handle_completions(struct http_request *r, void *context);  /* POST /v1/completions */
void handle_push_weights(struct http_request *r, void *context); /* POST /v1/push-weights */
size_t push_weights_limit(void *context);                        /* its body's limit, by the loaded model */
void handle_model(struct http_request *r, void *context);        /* GET /v1/model */
void handle_readyz(struct http_request *r, void *context);       /* GET /readyz */
void handle_metrics(struct http_request *r, void *context);      /* GET /metrics */

/* A plain request on its way through the engine; lives in the request's arena. */
struct generate_call {
  struct server *server;
  struct host *host;
  struct http_request *request;
  char id[LIMIT_NAME_MAX];
  bool return_logprob;
  atomic_bool abandoned; /* set by the HTTP watcher, read by the engine: no message that a full inbox could refuse */
  int samples;           /* what it takes of the server's budget, given back with the reply */
  int64_t positions;
  /* On the replier's thread: the answer to a finished job. */
  void (*encode)(const struct generate_call *call, const struct job *job, struct json_writer *w);
};

/* What a client may ask for, over both shapes of the API. */
struct generate_params {
  const char *text; /* or NULL */
  size_t text_len;
  struct json_i32s input_ids;
  int32_t max_new_tokens, top_k, n;
  double temperature, top_p, min_p;
  struct json_i32s stop_token_ids;
  uint64_t seed;
  bool has_seed, ignore_eos, return_logprob;
};
void generate_params_defaults(struct generate_params *p);
/* Tokenizes, makes the job, suspends the request and hands it to the engine; on an error the request has been
 * answered. */
void generate_submit(struct server *s, struct http_request *r, const struct generate_params *p,
                     void (*encode)(const struct generate_call *, const struct job *, struct json_writer *));
/* The text of ids as a JSON string, or null when there is no tokenizer. */
void generate_write_text(const struct generate_call *call, const int32_t *ids, size_t count, struct json_writer *w);
/* The replier's thread. */
void *replier_main(void *server);

#endif
