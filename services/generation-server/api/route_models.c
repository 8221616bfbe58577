/* GET /v1/models and /v1/models/{model}: the one model that is loaded, under each of its names (model_names.h), the one
 * that answers bear first. */
#include <string.h>

#include "common/base/clock.h"
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"
#include "services/generation-server/requests/model_names.h"

static void write_model(const char *name, const struct loaded_model *loaded, struct json_writer *w) {
  json_object_begin(w);
  json_kv_string(w, "id", name);
  json_kv_string(w, "object", "model");
  json_kv_int(w, "created", clock_real_ms() / 1000);
  json_kv_string(w, "owned_by", "leasehold");
  json_kv_int(w, "max_model_len", loaded->model->context_max);
  json_object_end(w);
}

void handle_models(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  struct policy active = {0};
  struct buf body = BUF_INIT;
  struct json_writer w;
  const char *names[MODEL_NAMES_MAX];
  struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  if (!loaded) {
    http_fail(r, &err);
    return;
  }
  engine_policy(loaded->engine, &active);
  const size_t count = model_names(names, active.run, s->admission.folder);
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_kv_string(&w, "object", "list");
  json_key(&w, "data");
  json_array_begin(&w);
  for (size_t i = 0; i < count; i++) write_model(names[i], loaded, &w);
  json_array_end(&w);
  json_object_end(&w);
  http_reply_json(r, 200, &body);
}

void handle_one_model(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  struct buf body = BUF_INIT;
  struct json_writer w;
  const char *wanted = http_param(r, "model");
  struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  if (!loaded || admission_check_name(&s->admission, loaded, wanted, &err) != RC_OK) {
    http_fail(r, &err);
    return;
  }
  json_writer_init(&w, &body);
  write_model(wanted, loaded, &w);
  http_reply_json(r, 200, &body);
}
