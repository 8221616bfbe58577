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
void handle_vllm_generate(struct http_request *r, void *context);   /* POST /inference/v1/generate */
void handle_vllm_pause(struct http_request *r, void *context);      /* POST /pause */
void handle_vllm_resume(struct http_request *r, void *context);     /* POST /resume */
void handle_vllm_is_paused(struct http_request *r, void *context);  /* GET /is_paused */
void handle_vllm_abort(struct http_request *r, void *context);      /* POST /abort_requests */
void handle_vllm_tokenize(struct http_request *r, void *context);   /* POST /tokenize */
void handle_vllm_detokenize(struct http_request *r, void *context); /* POST /detokenize */
/* weights on a client's word (route_weights.c) */
void handle_vllm_init_transfer(struct http_request *r, void *context);     /* POST /init_weight_transfer_engine */
void handle_vllm_start_update(struct http_request *r, void *context);      /* POST /start_weight_update */
void handle_vllm_update_weights(struct http_request *r, void *context);    /* POST /update_weights */
void handle_vllm_finish_update(struct http_request *r, void *context);     /* POST /finish_weight_update */
void handle_vllm_weight_info(struct http_request *r, void *context);       /* GET /weight_info, /get_weight_version */
void handle_update_weight_version(struct http_request *r, void *context);  /* POST /update_weight_version */
void handle_vllm_weight_checker(struct http_request *r, void *context);    /* POST /weight_checker */
void handle_sglang_weights_checker(struct http_request *r, void *context); /* POST /weights_checker */
/* SGLang's wire (route_sglang.c) */
void handle_sglang_generate(struct http_request *r, void *context);         /* POST /generate */
void handle_sglang_pause(struct http_request *r, void *context);            /* POST /pause_generation */
void handle_sglang_continue(struct http_request *r, void *context);         /* POST /continue_generation */
void handle_sglang_abort(struct http_request *r, void *context);            /* POST /abort_request */
void handle_sglang_flush(struct http_request *r, void *context);            /* GET, POST /flush_cache */
void handle_sglang_update_from_disk(struct http_request *r, void *context); /* POST /update_weights_from_disk */
/* what an engine says of itself (route_engine_info.c) */
void handle_health_generate(struct http_request *r, void *context);   /* GET /health_generate */
void handle_sglang_model_info(struct http_request *r, void *context); /* GET /model_info, /get_model_info */
void handle_server_info(struct http_request *r, void *context);       /* GET /server_info, /get_server_info */
void handle_sglang_loads(struct http_request *r, void *context);      /* GET /v1/loads */
void handle_world_size(struct http_request *r, void *context);        /* GET /get_world_size */
void handle_vllm_reset_cache(struct http_request *r, void *context);  /* POST /reset_prefix_cache */
/* what is refused by name (route_not_offered.c) */
void handle_no_process_group(struct http_request *r, void *context);
void handle_no_memory_release(struct http_request *r, void *context);
void handle_no_adapters(struct http_request *r, void *context);
void handle_no_sessions(struct http_request *r, void *context);
void handle_no_calls_by_name(struct http_request *r, void *context);
void handle_no_embeddings(struct http_request *r, void *context);
void handle_no_profiler(struct http_request *r, void *context);
void handle_no_weights_by_name(struct http_request *r, void *context);
void handle_push_weights(struct http_request *r, void *context); /* POST /v1/push-weights */
size_t push_weights_limit(void *context);                        /* its body's limit, by the loaded model */
/* Before the body is read; for http_route.admit. */
enum rc admit_push_weights(struct http_request *r, void *context, struct err *err);
void handle_model(struct http_request *r, void *context);        /* GET /v1/model */
void handle_readyz(struct http_request *r, void *context);       /* GET /readyz */
void handle_metrics(struct http_request *r, void *context);      /* GET /metrics */

#endif
