/* Verbs of other engines that are understood and not offered: 501, with what there is in their place.  The table of
 * routes.c says which verb gets which answer; their bodies are not looked at. */
#include "services/generation-server/api/handlers.h"

static void refuse(struct http_request *r, const char *why) {
  struct err err;
  err_set(&err, RC_UNSUPPORTED, NULL, "%s", why);
  http_fail(r, &err);
}

void handle_no_process_group(struct http_request *r, void *context) {
  (void)context;
  refuse(r, "this server joins no process group and reads no serialized tensors: load weights from a folder "
            "(/update_weights, /update_weights_from_disk)");
}

void handle_no_memory_release(struct http_request *r, void *context) {
  (void)context;
  refuse(r, "memory is planned at the start and kept: /pause and /pause_generation make the server rest");
}

void handle_no_adapters(struct http_request *r, void *context) {
  (void)context;
  refuse(r, "there are no adapters here: load whole weights from a folder");
}

void handle_no_sessions(struct http_request *r, void *context) {
  (void)context;
  refuse(r, "no request goes on where another one ended: send all token ids");
}

void handle_no_calls_by_name(struct http_request *r, void *context) {
  (void)context;
  refuse(r, "the engine's functions cannot be called by name: use the routes for them");
}

void handle_no_embeddings(struct http_request *r, void *context) {
  (void)context;
  refuse(r, "this model writes text: it makes no embeddings, classes or scores");
}

void handle_no_profiler(struct http_request *r, void *context) {
  (void)context;
  refuse(r, "nothing is profiled on request: /metrics has the counters");
}

void handle_no_weights_by_name(struct http_request *r, void *context) {
  (void)context;
  refuse(r, "weights do not leave the server: their digest does (/weight_checker, /weights_checker)");
}
