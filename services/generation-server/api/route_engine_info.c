/* Answers the questions that other engines' clients ask this one about itself: whether it is well, which model and
 * version it holds, how much it has to do.
 *
 * GET /health and /liveness are those of route_health.c under their names. */
#include <stdio.h>

#include "services/generation-server/api/control.h"
#include "services/generation-server/api/handlers.h"

/* --- a token drawn to see that it can be done --- */

static enum rc write_well(struct generate_call *call, struct choice_scratch *m, struct json_writer *w,
                          struct err *err) {
  (void)m;
  if (choice_finish(&call->choices[0]) == FINISH_ABORT)
    return err_set(err, RC_UNAVAILABLE, NULL, "the engine has ended a request without a token");
  json_object_begin(w);
  json_kv_string(w, "status", "ok");
  json_object_end(w);
  return RC_OK;
}

/* While it rests on a client's word no token can be drawn, and it is well. */
void handle_health_generate(struct http_request *r, void *context) {
  static const struct generate_shape shape = {.id_prefix = "health-", .whole = write_well};
  struct server *s = context;
  struct generate_params p;
  struct err err;
  int32_t first = 0;
  const struct generate_prompt prompt = {.ids = {.items = &first, .count = 1}};
  struct loaded_model *loaded = admission_model(&s->admission, true, &err);
  if (!loaded) {
    http_fail(r, &err);
    return;
  }
  if (engine_paused(loaded->engine)) {
    struct buf body = BUF_INIT;
    buf_puts(&body, "{\"status\":\"ok\"}");
    http_reply_json(r, 200, &body);
    return;
  }
  generate_params_defaults(&p, &shape);
  p.prompts = &prompt;
  p.prompt_count = 1;
  p.max_new_tokens = 1;
  p.temperature = 0;
  if (requests_submit(s->requests, r, &p, &err) != RC_OK) http_fail(r, &err);
}

/* --- what it holds --- */

static const char *folder_of(const struct server *s) { return s->options.model_dir ? s->options.model_dir : ""; }

void handle_sglang_model_info(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  char version[CONTROL_VERSION_MAX];
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct loaded_model *loaded = admission_model(&s->admission, true, &err);
  if (loaded) {
    control_version(version, loaded);
    json_writer_init(&w, &body);
    json_object_begin(&w);
    json_kv_string(&w, "model_path", folder_of(s));
    json_kv_string(&w, "tokenizer_path", loaded->files.tokenizer ? folder_of(s) : NULL);
    json_kv_bool(&w, "is_generation", true);
    json_key(&w, "preferred_sampling_params");
    json_write_null(&w);
    json_kv_string(&w, "weight_version", version);
    json_object_end(&w);
  }
  http_reply_json_or_fail(r, loaded ? RC_OK : err.rc, &body, &err);
}

/* vLLM's clients look for a transfer engine here; there is none. */
static void write_vllm_config(const struct server *s, const struct loaded_model *loaded, struct json_writer *w) {
  json_key(w, "vllm_config");
  json_object_begin(w);
  json_key(w, "model_config");
  json_object_begin(w);
  json_kv_string(w, "model", folder_of(s));
  json_kv_int(w, "max_model_len", loaded->model->context_max);
  json_object_end(w);
  json_key(w, "weight_transfer_config");
  json_write_null(w);
  json_object_end(w);
}

void handle_server_info(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  char version[CONTROL_VERSION_MAX];
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  if (loaded) {
    const struct kv_cache *kv = engine_kv(loaded->engine);
    control_version(version, loaded);
    json_writer_init(&w, &body);
    json_object_begin(&w);
    json_kv_string(&w, "engine", "leasehold");
    json_kv_string(&w, "model_path", folder_of(s));
    json_kv_string(&w, "weight_version", version);
    json_kv_int(&w, "tp_size", 1);
    json_kv_int(&w, "pp_size", 1);
    json_kv_int(&w, "dp_size", 1);
    json_kv_int(&w, "ep_size", 1);
    json_kv_int(&w, "context_length", loaded->model->context_max);
    json_kv_int(&w, "max_running_requests", s->options.model.slots);
    json_kv_int(&w, "max_total_num_tokens", (int64_t)kv_pages_total(kv) * kv_page_tokens(kv));
    write_vllm_config(s, loaded, &w);
    json_object_end(&w);
  }
  http_reply_json_or_fail(r, loaded ? RC_OK : err.rc, &body, &err);
}

void handle_world_size(struct http_request *r, void *context) {
  struct buf body = BUF_INIT;
  (void)context;
  buf_puts(&body, "{\"world_size\":1}");
  http_reply_json(r, 200, &body);
}

/* --- how much it has to do --- */

/* Samples: that is what slots are taken by. */
void handle_sglang_loads(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  struct engine_counters n;
  struct buf body = BUF_INIT;
  struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  if (loaded) {
    engine_read_counters(loaded->engine, &n);
    buf_printf(&body,
               "{\"loads\":[{\"dp_rank\":0,\"num_running_reqs\":%d,\"num_waiting_reqs\":%d,\"num_total_reqs\":%d,"
               "\"max_running_requests\":%d}]}",
               n.slots_busy, n.samples_waiting, n.slots_busy + n.samples_waiting, s->options.model.slots);
  }
  http_reply_json_or_fail(r, loaded ? RC_OK : err.rc, &body, &err);
}

/* Nothing is kept that outlives its request. */
void handle_vllm_reset_cache(struct http_request *r, void *context) {
  struct buf body = BUF_INIT;
  (void)context;
  buf_puts(&body, "{\"success\":true}");
  http_reply_json(r, 200, &body);
}
