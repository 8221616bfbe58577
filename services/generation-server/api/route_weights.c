/* Weights in vLLM's wire: which version decodes, its digest, and how a client has others taken, from a folder that this
 * server can read.
 *
 *   /pause?mode=keep --> /update_weights {"weight_dir"} --> /resume                                       (at once)
 *   /start_weight_update --> /update_weights {"weight_dir"} --> /finish_weight_update {"weight_version"}  (at its end)
 *
 * The version of an update is told at its end, so the folder that it names is loaded there: no token is drawn under
 * weights without their number.  What needs torch's own communication is refused by name. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "services/generation-server/api/control.h"
#include "services/generation-server/api/handlers.h"

/* --- at once --- */

static void answer_load(struct http_request *r, enum rc rc, const struct policy *policy, const struct err *err) {
  struct buf body = BUF_INIT;
  struct err copy = *err;
  if (rc == RC_OK) buf_printf(&body, "{\"status\":\"ok\",\"weight_version\":\"%lld\"}", (long long)policy->version);
  http_reply_json_or_fail(r, rc, &body, &copy);
}

/* The version that decodes until the update's end. */
static void answer_noted(struct http_request *r, struct loaded_model *loaded) {
  char version[CONTROL_VERSION_MAX];
  struct buf body = BUF_INIT;
  control_version(version, loaded);
  buf_printf(&body, "{\"status\":\"ok\",\"weight_version\":\"%s\",\"message\":\"taken when the update is finished\"}",
             version);
  http_reply_json(r, 200, &body);
}

/* *noted: an update has begun, whose end will load the folder. */
static enum rc note_folder(struct server *s, const char *dir, bool *noted, struct err *err) {
  struct stat st;
  enum rc rc = RC_OK;
  pthread_mutex_lock(&s->update.mutex);
  *noted = s->update.begun;
  if (*noted && s->update.dir[0])
    rc = err_set(err, RC_CONFLICT, "weight_dir", "expected one folder an update, it has %.200s", s->update.dir);
  else if (*noted && (stat(dir, &st) != 0 || !S_ISDIR(st.st_mode)))
    rc = err_set(err, RC_INVALID, "weight_dir", "expected a folder that can be read, got %.200s", dir);
  else if (*noted)
    snprintf(s->update.dir, sizeof s->update.dir, "%s", dir);
  pthread_mutex_unlock(&s->update.mutex);
  return rc;
}

void handle_vllm_update_weights(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  const struct json *body, *version = NULL, *info = NULL;
  const char *dir = NULL;
  bool noted = false;
  struct loaded_model *loaded = NULL;
  struct staging_order order = {.request = r, .version = -1, .answer = answer_load};
  enum rc rc = http_body_json(r, &body, &err);
  const struct json_field fields[] = {
      {.name = "weight_dir", .kind = FIELD_STRING, .target = &dir, .min = 1, .max = LIMIT_PATH_MAX / 4 - 1},
      {.name = "weight_version", .kind = FIELD_VALUE, .target = &version},
      {.name = "update_info", .kind = FIELD_VALUE, .target = &info},
  };
  if (rc == RC_OK) rc = json_fields(body, fields, 3, UNKNOWN_REFUSED, http_arena(r), &err);
  if (rc == RC_OK && info)
    rc = err_set(&err, RC_UNSUPPORTED, "update_info", "expected weight_dir: weights are taken from a folder");
  if (rc == RC_OK && !dir) rc = err_set(&err, RC_INVALID, "weight_dir", "expected a folder, got none");
  if (rc == RC_OK) rc = control_read_version(&order.version, version, "weight_version", &err);
  if (rc == RC_OK && !(loaded = control_model(s, &err))) rc = err.rc;
  if (rc == RC_OK) rc = note_folder(s, dir, &noted, &err);
  if (rc == RC_OK && noted) {
    answer_noted(r, loaded);
    return;
  }
  if (rc == RC_OK) {
    snprintf(order.dir, sizeof order.dir, "%s", dir);
    rc = control_load(r, s, &order, &err);
  }
  if (rc != RC_OK) http_fail(r, &err);
}

/* --- between a beginning and an end --- */

static void reply_message(struct http_request *r, enum rc rc, const char *message, struct err *err) {
  struct buf body = BUF_INIT;
  if (rc == RC_OK) buf_printf(&body, "{\"message\":\"%s\"}", message);
  http_reply_json_or_fail(r, rc, &body, err);
}

/* A body may be left out. */
static enum rc read_optional(struct http_request *r, const struct json_field *fields, size_t count, struct err *err) {
  const struct json *body;
  size_t len;
  http_body(r, &len);
  if (len == 0) return RC_OK;
  const enum rc rc = http_body_json(r, &body, err);
  return rc == RC_OK ? json_fields(body, fields, count, UNKNOWN_REFUSED, http_arena(r), err) : rc;
}

void handle_vllm_init_transfer(struct http_request *r, void *context) {
  struct err err;
  const struct json *body, *info = NULL;
  const struct json_field fields[] = {{.name = "init_info", .kind = FIELD_VALUE, .target = &info, .required = true}};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = json_fields(body, fields, 1, UNKNOWN_REFUSED, http_arena(r), &err);
  if (rc == RC_OK && json_type_of(info) != JSON_OBJECT)
    rc = err_set(&err, RC_INVALID, "init_info", "expected an object, got %s", json_type_name(json_type_of(info)));
  if (rc == RC_OK && json_length(info) > 0)
    rc = err_set(&err, RC_UNSUPPORTED, "init_info",
                 "expected an empty one: no process group is joined, weights are taken from a folder (weight_dir)");
  if (rc == RC_OK && !control_model(context, &err)) rc = err.rc;
  reply_message(r, rc, "Weight transfer initialized", &err);
}

/* Beginning anew forgets an update that was left without an end. */
void handle_vllm_start_update(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  bool checkpoint = true, draft = false;
  const struct json_field fields[] = {{.name = "is_checkpoint_format", .kind = FIELD_BOOL, .target = &checkpoint},
                                      {.name = "include_draft", .kind = FIELD_BOOL, .target = &draft}};
  enum rc rc = read_optional(r, fields, 2, &err);
  if (rc == RC_OK && !checkpoint)
    rc = err_set(&err, RC_UNSUPPORTED, "is_checkpoint_format", "expected true: folders are checkpoints");
  if (rc == RC_OK && draft)
    rc = err_set(&err, RC_UNSUPPORTED, "include_draft", "expected false: there is no such model");
  if (rc == RC_OK && !control_model(s, &err)) rc = err.rc;
  if (rc == RC_OK) {
    pthread_mutex_lock(&s->update.mutex);
    s->update.begun = true;
    s->update.dir[0] = '\0';
    pthread_mutex_unlock(&s->update.mutex);
  }
  reply_message(r, rc, "Weight update started", &err);
}

static void answer_finish(struct http_request *r, enum rc rc, const struct policy *policy, const struct err *err) {
  struct buf body = BUF_INIT;
  struct err copy = *err;
  if (rc == RC_OK)
    buf_printf(&body, "{\"message\":\"Weight update finished\",\"weight_version\":\"%lld\"}",
               (long long)policy->version);
  http_reply_json_or_fail(r, rc, &body, &copy);
}

/* The update is over with it, whatever comes of the folder. */
static enum rc end_update(struct server *s, char dir[LIMIT_PATH_MAX], struct err *err) {
  pthread_mutex_lock(&s->update.mutex);
  const bool begun = s->update.begun;
  snprintf(dir, LIMIT_PATH_MAX, "%s", s->update.dir);
  s->update.begun = false;
  s->update.dir[0] = '\0';
  pthread_mutex_unlock(&s->update.mutex);
  return begun ? RC_OK : err_set(err, RC_CONFLICT, NULL, "expected /start_weight_update before it");
}

void handle_vllm_finish_update(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err = {0};
  struct policy active = {0};
  struct loaded_model *loaded = NULL;
  const struct json *version = NULL;
  struct staging_order order = {.request = r, .version = -1, .answer = answer_finish};
  const struct json_field fields[] = {{.name = "weight_version", .kind = FIELD_VALUE, .target = &version}};
  enum rc rc = read_optional(r, fields, 1, &err);
  if (rc == RC_OK) rc = control_read_version(&order.version, version, "weight_version", &err);
  if (rc == RC_OK && !(loaded = control_model(s, &err))) rc = err.rc;
  if (rc == RC_OK) rc = end_update(s, order.dir, &err);
  if (rc == RC_OK && !order.dir[0] && version)
    rc = err_set(&err, RC_CONFLICT, "weight_version", "expected none: no weights came since /start_weight_update");
  if (rc == RC_OK && !order.dir[0]) {
    engine_policy(loaded->engine, &active);
    answer_finish(r, RC_OK, &active, &err);
    return;
  }
  if (rc == RC_OK) rc = control_load(r, s, &order, &err);
  if (rc != RC_OK) http_fail(r, &err);
}

/* --- which weights decode --- */

void handle_vllm_weight_info(struct http_request *r, void *context) {
  char version[CONTROL_VERSION_MAX];
  struct err err;
  struct buf body = BUF_INIT;
  struct loaded_model *loaded = admission_model(&((struct server *)context)->admission, true, &err);
  if (loaded) {
    control_version(version, loaded);
    buf_printf(&body, "{\"weight_version\":\"%s\"}", version);
  }
  http_reply_json_or_fail(r, loaded ? RC_OK : err.rc, &body, &err);
}

/* Of both wires. */
void handle_update_weight_version(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  const struct json *body, *version = NULL;
  bool aborts = false;
  int64_t number = -1;
  struct buf reply = BUF_INIT;
  const struct json_field fields[] = {
      {.name = "new_version", .kind = FIELD_VALUE, .target = &version, .required = true},
      {.name = "abort_all_requests", .kind = FIELD_BOOL, .target = &aborts}};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = json_fields(body, fields, 2, UNKNOWN_REFUSED, http_arena(r), &err);
  if (rc == RC_OK) rc = control_read_version(&number, version, "new_version", &err);
  if (rc == RC_OK && !control_model(s, &err)) rc = err.rc;
  if (rc == RC_OK && aborts) requests_abort(s->requests, NULL);
  if (rc == RC_OK) rc = control_relabel(s, number, &err);
  if (rc == RC_OK)
    buf_printf(&reply, "{\"success\":true,\"message\":\"the weights are version %lld\",\"new_version\":\"%lld\"}",
               (long long)number, (long long)number);
  http_reply_json_or_fail(r, rc, &reply, &err);
}

/* --- digests --- */

static void answer_checksum(struct http_request *r, enum rc rc, const struct policy *policy, const struct err *err) {
  char hex[DIGEST_HEX_MAX];
  struct buf body = BUF_INIT;
  struct err copy = *err;
  if (rc == RC_OK) {
    digest_hex(hex, &policy->digest);
    buf_printf(&body,
               "{\"success\":true,\"checksum\":\"%s\",\"checksums\":{\"dp0:pp0:tp0:all\":\"%s\"},"
               "\"weight_version\":\"%lld\"}",
               hex, hex, (long long)policy->version);
  }
  http_reply_json_or_fail(r, rc, &body, &copy);
}

static void answer_sglang_checksum(struct http_request *r, enum rc rc, const struct policy *policy,
                                   const struct err *err) {
  char hex[DIGEST_HEX_MAX];
  struct buf body = BUF_INIT;
  struct err copy = *err;
  if (rc == RC_OK) {
    digest_hex(hex, &policy->digest);
    buf_printf(&body,
               "{\"success\":true,\"message\":\"the weights are version %lld\",\"ranks\":[],"
               "\"per_engine_checksum\":\"%s\"}",
               (long long)policy->version, hex);
  }
  http_reply_json_or_fail(r, rc, &body, &copy);
}

/* others: actions that are understood, and refused. */
static void check_weights(struct http_request *r, struct server *s, const struct staging_order *order,
                          const char *const *others) {
  struct err err;
  const struct json *body;
  const char *action = NULL;
  const struct json_field fields[] = {{.name = "action", .kind = FIELD_STRING, .target = &action, .required = true}};
  enum rc rc = http_body_json(r, &body, &err);
  if (rc == RC_OK) rc = json_fields(body, fields, 1, UNKNOWN_REFUSED, http_arena(r), &err);
  for (; rc == RC_OK && *others; others++)
    if (strcmp(action, *others) == 0)
      rc = err_set(&err, RC_UNSUPPORTED, "action", "expected checksum: compare the digests of two answers");
  if (rc == RC_OK && strcmp(action, "checksum") != 0)
    rc = err_set(&err, RC_INVALID, "action", "expected checksum, got \"%.40s\"", action);
  if (rc == RC_OK) rc = control_load(r, s, order, &err);
  if (rc != RC_OK) http_fail(r, &err);
}

void handle_vllm_weight_checker(struct http_request *r, void *context) {
  static const char *const others[] = {"reset", "compare", NULL};
  const struct staging_order order = {.request = r, .answer = answer_checksum};
  check_weights(r, context, &order, others);
}

void handle_sglang_weights_checker(struct http_request *r, void *context) {
  static const char *const others[] = {"snapshot", "reset_tensors", "compare", NULL};
  const struct staging_order order = {.request = r, .answer = answer_sglang_checksum};
  check_weights(r, context, &order, others);
}
