/* The route table of the trainer-server: `openapi/trainer-server.yaml` says what each takes and gives. */
#include "services/trainer-server/api/routes.h"

#include "common/base/limits.h"
#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/api/submission.h"

const struct http_route trainer_routes[] = {
    {.method = "POST", .path = "/v1/runs", .handler = handle_open_run, .admit = admit_submission},
    {.method = "POST", .path = "/v1/check-run", .handler = handle_check_run, .offload = true},
    {.method = "POST", .path = "/v1/check-disk", .handler = handle_check_disk, .offload = true},
    {.method = "POST",
     .path = "/v1/submit-batch",
     .handler = handle_submit_batch,
     .body_bytes_max = LIMIT_BATCH_BODY_BYTES,
     .json_nodes_max = LIMIT_JSON_NODES_TOKENS,
     .admit = admit_submission},
    {.method = "GET", .path = "/v1/batches/{id}", .handler = handle_get_batch, .offload = true},
    {.method = "POST", .path = "/v1/submit-step", .handler = handle_submit_step, .admit = admit_submission},
    {.method = "GET", .path = "/v1/steps/{id}", .handler = handle_get_step},
    {.method = "GET", .path = "/v1/weights/{version}", .handler = handle_get_weights},
    {.method = "GET", .path = "/v1/model", .handler = handle_get_model},
    {.method = "GET", .path = "/v1/model/files/{name}", .handler = handle_get_model_file, .offload = true},
    {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .open = true, .health = true},
    {.method = "GET", .path = "/readyz", .handler = handle_readyz, .open = true, .health = true},
    {.method = "GET", .path = "/metrics", .handler = handle_metrics, .health = true, .early = true},
};
const size_t trainer_route_count = sizeof trainer_routes / sizeof trainer_routes[0];
