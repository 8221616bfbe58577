/* The table of the server's endpoints: which handler answers which method and path. */
#include "services/generation-server/api/routes.h"

#include "common/base/limits.h"
#include "services/generation-server/api/handlers.h"

const struct http_route *routes_all(size_t *count) {
  static const struct http_route routes[] = {
      {.method = "POST",
       .path = "/v1/generate",
       .handler = handle_generate,
       .json_nodes_max = LIMIT_JSON_NODES_TOKENS,
       .offload = true},
      {.method = "POST",
       .path = "/v1/completions",
       .handler = handle_completions,
       .json_nodes_max = LIMIT_JSON_NODES_TOKENS,
       .offload = true},
      {.method = "POST",
       .path = "/v1/chat/completions",
       .handler = handle_chat,
       .json_nodes_max = LIMIT_JSON_NODES_TOKENS,
       .offload = true},
      {.method = "GET", .path = "/v1/models", .handler = handle_models},
      {.method = "GET", .path = "/v1/models/{model}", .handler = handle_one_model},
      {.method = "POST",
       .path = "/inference/v1/generate",
       .handler = handle_vllm_generate,
       .json_nodes_max = LIMIT_JSON_NODES_TOKENS,
       .offload = true},
      {.method = "POST", .path = "/tokenize", .handler = handle_vllm_tokenize, .offload = true},
      {.method = "POST", .path = "/detokenize", .handler = handle_vllm_detokenize, .offload = true},
      {.method = "POST", .path = "/pause", .handler = handle_vllm_pause, .offload = true},
      {.method = "POST", .path = "/resume", .handler = handle_vllm_resume, .offload = true},
      {.method = "GET", .path = "/is_paused", .handler = handle_vllm_is_paused},
      {.method = "POST", .path = "/abort_requests", .handler = handle_vllm_abort},
      {.method = "POST", .path = "/update_weights", .handler = handle_vllm_update_weights},
      {.method = "GET", .path = "/weight_info", .handler = handle_vllm_weight_info},
      {.method = "POST", .path = "/weight_checker", .handler = handle_vllm_weight_checker},
      {.method = "POST",
       .path = "/v1/push-weights",
       .handler = handle_push_weights,
       .body_limit = push_weights_limit,
       .admit = admit_push_weights},
      {.method = "GET", .path = "/v1/model", .handler = handle_model},
      {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .open = true, .health = true},
      {.method = "GET", .path = "/readyz", .handler = handle_readyz, .open = true, .health = true},
      {.method = "GET", .path = "/metrics", .handler = handle_metrics, .health = true},
  };
  *count = sizeof routes / sizeof routes[0];
  return routes;
}
