/* SGLang's wire, so that its clients drive this server unchanged: generation, and the verbs by which a trainer has an
 * engine rest, take weights from a folder and go on.
 *
 *   /pause_generation --> /flush_cache until 200 --> /update_weights_from_disk --> /continue_generation      (slime)
 *
 * The verbs are control.h's; what an engine says of itself is route_engine_info.c's. */
#include <stdio.h>
#include <string.h>

#include "services/generation-server/api/control.h"
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/shapes/sglang_answer.h"
#include "services/generation-server/shapes/sglang_request.h"

void handle_sglang_generate(struct http_request *r, void *context) {
  struct generate_params p;
  struct err err;
  generate_params_defaults(&p, &sglang_shape);
  enum rc rc = sglang_request_read(&p, r, &err);
  if (rc == RC_OK) rc = requests_submit(((struct server *)context)->requests, r, &p, &err);
  if (rc == RC_OK) return;
  sglang_request_name_field(&err);
  http_fail(r, &err);
}

static void reply_status(struct http_request *r, enum rc rc, const char *message, struct err *err) {
  struct buf body = BUF_INIT;
  if (rc == RC_OK) buf_printf(&body, "{\"status\":\"ok\",\"message\":\"%s\"}", message);
  http_reply_json_or_fail(r, rc, &body, err);
}

/* --- rest --- */

void handle_sglang_pause(struct http_request *r, void *context) {
  static const struct {
    const char *name;
    enum engine_pause mode;
  } modes[] = {{"abort", ENGINE_PAUSE_ABORT}, {"retract", ENGINE_PAUSE_RETRACT}, {"in_place", ENGINE_PAUSE_KEEP}};
  struct err err;
  const struct json *body;
  const char *name = "abort";
  const struct json_field fields[] = {{.name = "mode", .kind = FIELD_STRING, .target = &name}};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = json_fields(body, fields, 1, UNKNOWN_REFUSED, http_arena(r), &err);
  size_t at = 0;
  while (rc == RC_OK && at < 3 && strcmp(modes[at].name, name) != 0) at++;
  if (rc == RC_OK && at == 3)
    rc = err_set(&err, RC_INVALID, "mode", "expected abort, retract or in_place, got \"%.40s\"", name);
  if (rc == RC_OK) rc = control_pause(context, modes[at].mode, &err);
  reply_status(r, rc, "Generation paused successfully.", &err);
}

void handle_sglang_continue(struct http_request *r, void *context) {
  struct err err;
  const struct json *body;
  bool empties;
  const struct json_field fields[] = {{.name = "torch_empty_cache", .kind = FIELD_BOOL, .target = &empties}};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = json_fields(body, fields, 1, UNKNOWN_REFUSED, http_arena(r), &err);
  if (rc == RC_OK) rc = control_resume(context, &err);
  reply_status(r, rc, "Generation continued successfully.", &err);
}

void handle_sglang_abort(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  const struct json *body;
  const char *rid = NULL;
  bool all = false;
  const struct json_field fields[] = {
      {.name = "rid", .kind = FIELD_STRING, .target = &rid, .min = 0, .max = LIMIT_NAME_MAX - 1},
      {.name = "abort_all", .kind = FIELD_BOOL, .target = &all}};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = json_fields(body, fields, 2, UNKNOWN_REFUSED, http_arena(r), &err);
  if (rc == RC_OK && !all && (!rid || !*rid))
    rc = err_set(&err, RC_INVALID, "rid", "expected a request's, or abort_all: true");
  if (rc == RC_OK) requests_abort(s->requests, all ? NULL : rid);
  reply_status(r, rc, "Requests are ended.", &err);
}

/* Nothing is kept that outlives its request, so the cache is empty once nobody holds keys and values. */
void handle_sglang_flush(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  struct engine_counters n;
  struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  enum rc rc = loaded ? RC_OK : err.rc;
  if (rc == RC_OK) {
    engine_read_counters(loaded->engine, &n);
    if (n.pages_free < n.pages_total)
      rc = err_set(&err, RC_CONFLICT, NULL, "%d samples hold %d pages of keys and values: try again", n.slots_busy,
                   n.pages_total - n.pages_free);
  }
  reply_status(r, rc, "Cache flushed.", &err);
}

/* --- weights --- */

static void answer_load(struct http_request *r, enum rc rc, const struct policy *policy, const struct err *err) {
  struct buf body = BUF_INIT;
  struct err copy = *err;
  if (rc == RC_OK)
    buf_printf(&body,
               "{\"success\":true,\"message\":\"Succeeded to update model weights. Weight version updated to %lld.\","
               "\"num_paused_requests\":0}",
               (long long)policy->version);
  http_reply_json_or_fail(r, rc, &body, &copy);
}

struct disk_update {
  const char *model_path, *load_format;
  const struct json *weight_version, *manifest;
  bool flushes, aborts, is_async, empties, keeps_pause, recaptures;
  int64_t token_step;
};

static enum rc read_disk_update(struct disk_update *u, struct http_request *r, struct err *err) {
  const struct json *body;
  enum rc rc = http_body_json(r, &body, err);
  const struct json_field fields[] = {
      {.name = "model_path",
       .kind = FIELD_STRING,
       .target = &u->model_path,
       .required = true,
       .min = 1,
       .max = LIMIT_PATH_MAX / 4 - 1},
      {.name = "load_format", .kind = FIELD_STRING, .target = &u->load_format},
      {.name = "weight_version", .kind = FIELD_VALUE, .target = &u->weight_version},
      {.name = "flush_cache", .kind = FIELD_BOOL, .target = &u->flushes}, /* nothing outlives its request */
      {.name = "abort_all_requests", .kind = FIELD_BOOL, .target = &u->aborts},
      {.name = "is_async", .kind = FIELD_BOOL, .target = &u->is_async},
      {.name = "torch_empty_cache", .kind = FIELD_BOOL, .target = &u->empties},
      {.name = "keep_pause", .kind = FIELD_BOOL, .target = &u->keeps_pause},
      {.name = "recapture_cuda_graph", .kind = FIELD_BOOL, .target = &u->recaptures},
      {.name = "token_step", .kind = FIELD_I64, .target = &u->token_step, .min = 0, .max = 9007199254740991},
      {.name = "manifest", .kind = FIELD_VALUE, .target = &u->manifest},
  };
  if (rc == RC_OK)
    rc = json_fields(body, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, http_arena(r), err);
  if (rc != RC_OK) return rc;
  if (u->load_format && strcmp(u->load_format, "auto") != 0 && strcmp(u->load_format, "safetensors") != 0)
    return err_set(err, RC_UNSUPPORTED, "load_format", "expected auto or safetensors, got \"%.40s\"", u->load_format);
  if (u->is_async)
    return err_set(err, RC_UNSUPPORTED, "is_async", "expected false: the answer comes when the weights decode");
  if (u->keeps_pause)
    return err_set(err, RC_UNSUPPORTED, "keep_pause", "expected false: other weights neither begin nor end a pause");
  return u->manifest ? err_set(err, RC_UNSUPPORTED, "manifest", "expected none: the folder says what is in it") : RC_OK;
}

void handle_sglang_update_from_disk(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  struct disk_update u = {0};
  struct staging_order order = {.request = r, .version = -1, .answer = answer_load};
  enum rc rc = read_disk_update(&u, r, &err);
  if (rc == RC_OK) rc = control_read_version(&order.version, u.weight_version, "weight_version", &err);
  if (rc == RC_OK && !control_model(s, &err)) rc = err.rc;
  if (rc == RC_OK) {
    if (u.aborts) requests_abort(s->requests, NULL);
    snprintf(order.dir, sizeof order.dir, "%s", u.model_path);
    rc = control_load(r, s, &order, &err);
  }
  if (rc != RC_OK) http_fail(r, &err);
}
