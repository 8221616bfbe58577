/* The handlers of the server's endpoints, one route_*.c each; their context is struct server (server_state.h). */
#ifndef LEASEHOLD_GENERATION_SERVER_API_HANDLERS_H
#define LEASEHOLD_GENERATION_SERVER_API_HANDLERS_H

#include "common/http/server.h"

void handle_generate(struct http_request *r, void *context);     /* POST /v1/generate */
void handle_completions(struct http_request *r, void *context);  /* POST /v1/completions */
void handle_chat(struct http_request *r, void *context);         /* POST /v1/chat/completions */
void handle_models(struct http_request *r, void *context);       /* GET /v1/models */
void handle_one_model(struct http_request *r, void *context);    /* GET /v1/models/{model} */
/* vLLM's wire (route_vllm.c) */
void handle_vllm_generate(struct http_request *r, void *context);       /* POST /inference/v1/generate */
void handle_vllm_pause(struct http_request *r, void *context);          /* POST /pause */
void handle_vllm_resume(struct http_request *r, void *context);         /* POST /resume */
void handle_vllm_is_paused(struct http_request *r, void *context);      /* GET /is_paused */
void handle_vllm_abort(struct http_request *r, void *context);          /* POST /abort_requests */
void handle_vllm_update_weights(struct http_request *r, void *context); /* POST /update_weights */
void handle_vllm_weight_info(struct http_request *r, void *context);    /* GET /weight_info */
void handle_vllm_weight_checker(struct http_request *r, void *context); /* POST /weight_checker */
void handle_vllm_tokenize(struct http_request *r, void *context);       /* POST /tokenize */
void handle_vllm_detokenize(struct http_request *r, void *context);     /* POST /detokenize */
void handle_push_weights(struct http_request *r, void *context); /* POST /v1/push-weights */
size_t push_weights_limit(void *context);                        /* its body's limit, by the loaded model */
/* Before the body is read; for http_route.admit. */
enum rc admit_push_weights(struct http_request *r, void *context, struct err *err);
void handle_model(struct http_request *r, void *context);        /* GET /v1/model */
void handle_readyz(struct http_request *r, void *context);       /* GET /readyz */
void handle_metrics(struct http_request *r, void *context);      /* GET /metrics */

#endif
