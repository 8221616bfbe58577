/* The table of the coordinator's routes. */
#include "services/coordinator/api/routes.h"

#include "common/base/limits.h"
#include "services/coordinator/api/result_head.h"
#include "services/coordinator/api/route_checks.h"
#include "services/coordinator/api/route_evaluations.h"
#include "services/coordinator/api/route_events.h"
#include "services/coordinator/api/route_health.h"
#include "services/coordinator/api/route_leases.h"
#include "services/coordinator/api/route_metrics.h"
#include "services/coordinator/api/route_page.h"
#include "services/coordinator/api/route_passes.h"
#include "services/coordinator/api/route_results.h"
#include "services/coordinator/api/route_rollouts.h"
#include "services/coordinator/api/route_run_control.h"
#include "services/coordinator/api/route_runs.h"
#include "services/coordinator/api/route_timeline.h"
#include "services/coordinator/api/route_verify.h"
#include "services/coordinator/api/route_versions.h"
#include "services/coordinator/api/route_workers.h"

enum { SMALL_BODY = 1 << 20 };

/* Handlers that read the database or a dataset are offloaded.  Those that only hand a command to the writer, as
 * workers' do all the time, are not. */
const struct http_route coordinator_routes[] = {
    {.method = "POST",
     .path = "/v1/runs",
     .handler = handle_post_run,
     .roles = HTTP_ADMIN,
     .body_bytes_max = SMALL_BODY,
     .offload = true},
    {.method = "GET", .path = "/v1/runs", .handler = handle_get_runs, .roles = HTTP_VIEWER, .offload = true},
    {.method = "GET", .path = "/v1/runs/{id}", .handler = handle_get_run, .roles = HTTP_VIEWER, .offload = true},
    {.method = "POST",
     .path = "/v1/runs/{id}/pause",
     .handler = handle_pause_run,
     .roles = HTTP_ADMIN,
     .body_bytes_max = SMALL_BODY},
    {.method = "POST",
     .path = "/v1/runs/{id}/resume",
     .handler = handle_resume_run,
     .roles = HTTP_ADMIN,
     .body_bytes_max = SMALL_BODY},
    {.method = "POST",
     .path = "/v1/runs/{id}/stop",
     .handler = handle_stop_run,
     .roles = HTTP_ADMIN,
     .body_bytes_max = SMALL_BODY},
    {.method = "GET",
     .path = "/v1/runs/{id}/events",
     .handler = handle_get_events,
     .roles = HTTP_VIEWER,
     .offload = true},
    {.method = "GET",
     .path = "/v1/runs/{id}/rounds",
     .handler = handle_get_rounds,
     .roles = HTTP_VIEWER,
     .offload = true},
    {.method = "GET",
     .path = "/v1/runs/{id}/rollouts",
     .handler = handle_get_rollouts,
     .roles = HTTP_VIEWER,
     .offload = true},
    {.method = "GET",
     .path = "/v1/runs/{id}/samples",
     .handler = handle_get_samples,
     .roles = HTTP_VIEWER,
     .offload = true},
    {.method = "GET",
     .path = "/v1/runs/{id}/spread",
     .handler = handle_get_spread,
     .roles = HTTP_VIEWER,
     .offload = true},
    {.method = "GET", .path = "/v1/groups/{id}", .handler = handle_get_group, .roles = HTTP_VIEWER, .offload = true},
    {.method = "GET",
     .path = "/v1/runs/{id}/evaluation",
     .handler = handle_get_evaluation,
     .roles = HTTP_VIEWER,
     .offload = true},
    {.method = "GET", .path = "/v1/compare", .handler = handle_compare, .roles = HTTP_VIEWER, .offload = true},
    {.method = "GET",
     .path = "/v1/runs/{id}/timeline",
     .handler = handle_get_timeline,
     .roles = HTTP_VIEWER,
     .offload = true},
    {.method = "POST",
     .path = "/v1/workers",
     .handler = handle_post_worker,
     .roles = HTTP_WORKER | HTTP_TRAINER,
     .body_bytes_max = SMALL_BODY},
    {.method = "GET", .path = "/v1/workers", .handler = handle_get_workers, .roles = HTTP_VIEWER, .offload = true},
    {.method = "DELETE",
     .path = "/v1/workers/{id}",
     .handler = handle_delete_worker,
     .roles = HTTP_WORKER | HTTP_TRAINER},
    {.method = "POST",
     .path = "/v1/workers/{id}/heartbeat",
     .handler = handle_heartbeat,
     .roles = HTTP_WORKER | HTTP_TRAINER,
     .body_bytes_max = SMALL_BODY,
     .admit = admit_worker},
    {.method = "POST",
     .path = "/v1/workers/{id}/leases",
     .handler = handle_lease_poll,
     .roles = HTTP_WORKER,
     .body_bytes_max = SMALL_BODY,
     .admit = admit_worker},
    {.method = "PUT",
     .path = "/v1/leases/{id}/result",
     .handler = handle_put_result,
     .roles = HTTP_WORKER,
     .body_bytes_max = LIMIT_BATCH_BODY_BYTES,
     .json_nodes_max = LIMIT_JSON_NODES_TOKENS,
     .admit = admit_result},
    {.method = "POST",
     .path = "/v1/workers/{id}/passes",
     .handler = handle_pass_poll,
     .roles = HTTP_WORKER,
     .body_bytes_max = SMALL_BODY,
     .admit = admit_worker},
    {.method = "PUT",
     .path = "/v1/passes/{id}/result",
     .handler = handle_put_pass_result,
     .roles = HTTP_WORKER,
     .body_bytes_max = LIMIT_BATCH_BODY_BYTES,
     .admit = admit_pass_result},
    {.method = "POST",
     .path = "/v1/verify",
     .handler = handle_verify,
     .roles = HTTP_ADMIN,
     .body_bytes_max = SMALL_BODY,
     .offload = true},
    {.method = "POST",
     .path = "/v1/check-run",
     .handler = handle_check_run,
     .roles = HTTP_ADMIN,
     .body_bytes_max = SMALL_BODY,
     .offload = true},
    {.method = "POST", .path = "/v1/check-disk", .handler = handle_check_disk, .roles = HTTP_ADMIN, .offload = true},
    {.method = "POST", .path = "/v1/versions", .handler = handle_post_version, .roles = HTTP_TRAINER},
    {.method = "GET", .path = "/", .handler = handle_get_page, .roles = HTTP_OPEN},
    {.method = "GET", .path = "/page/{file}", .handler = handle_get_page_file, .roles = HTTP_OPEN, .offload = true},
    {.method = "GET", .path = "/healthz", .handler = http_handle_healthz, .roles = HTTP_OPEN, .health = true},
    {.method = "GET", .path = "/readyz", .handler = handle_readyz, .roles = HTTP_OPEN, .health = true},
    {.method = "GET", .path = "/metrics", .handler = handle_get_metrics, .roles = HTTP_VIEWER, .health = true},
};
const size_t coordinator_route_count = sizeof coordinator_routes / sizeof coordinator_routes[0];
