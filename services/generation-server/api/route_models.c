/* GET /v1/models and /v1/models/{model}: the one model that is loaded, under the name that answers bear: the run whose
 * weights are active, or leasehold. */
#include <string.h>

#include "common/base/clock.h"
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"

static void write_model(const char *name, const struct loaded_model *loaded, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", name);
  json_kv_string(w, "object", "model");
  json_kv_int(w, "created", clock_real_ms() / 1000);
  json_kv_string(w, "owned_by", "leasehold");
  json_kv_int(w, "max_model_len", loaded->model->context_max);
  json_object_end(w);
}

static void reply(struct http_request *r, struct server *s, const char *wanted) {
  struct err err;
  struct policy active = {0};
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  if (!loaded) {
    http_fail(r, &err);
    return;
  }
  engine_policy(loaded->engine, &active);
  const char *name = active.run[0] ? active.run : "leasehold";
  if (wanted && strcmp(wanted, name) != 0) {
    err_set(&err, RC_NOT_FOUND, "model", "expected %s, which is loaded, got \"%.100s\"", name, wanted);
    http_fail(r, &err);
    return;
  }
  json_writer_init(&w, &body);
  if (!wanted) {
    json_object_begin(&w);
    json_kv_string(&w, "object", "list");
    json_key(&w, "data");
    json_array_begin(&w);
  }
  write_model(name, loaded, &w);
  if (!wanted) {
    json_array_end(&w);
    json_object_end(&w);
  }
  http_reply_json(r, 200, &body);
}

void handle_models(struct http_request *r, void *context) { reply(r, context, NULL); }

void handle_one_model(struct http_request *r, void *context) { reply(r, context, http_param(r, "model")); }
