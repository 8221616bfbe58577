/* GET /v1/model: what is loaded and how much room there is. */
#include "services/generation-server/api/handlers.h"
#include "services/generation-server/api/server_state.h"

static void write_config(const struct loaded_model *loaded, struct json_writer *w) {
  const struct model_config *c = &loaded->files.config;
  json_key(w, "config");
  json_object_begin(w);
  json_kv_int(w, "layers", c->layers);
  json_kv_int(w, "hidden", c->hidden);
  json_kv_int(w, "heads", c->heads);
  json_kv_int(w, "kv_heads", c->kv_heads);
  json_kv_int(w, "head_dim", c->head_dim);
  json_kv_int(w, "ffn", c->ffn);
  json_kv_int(w, "experts", c->experts);
  json_kv_int(w, "experts_per_token", c->chosen);
  json_kv_int(w, "expert_ffn", c->expert_ffn);
  json_kv_int(w, "vocabulary", c->vocabulary);
  json_kv_int(w, "context_max", loaded->model->context_max);
  json_kv_bool(w, "tied", c->tied);
  json_kv_i32s(w, "eos_token_ids", c->eos, (size_t)c->eos_count);
  json_kv_int(w, "parameters", (int64_t)loaded->model->params.parameters);
  json_object_end(w);
}

static void write_loaded(const struct loaded_model *loaded, struct json_writer *w) {
  struct policy active;
  json_key(w, "loaded");
  if (!engine_policy(loaded->engine, &active)) {
    json_write_null(w);
    return;
  }
  char hex[DIGEST_HEX_MAX];
  digest_hex(hex, &active.digest);
  json_object_begin(w);
  json_kv_string(w, "run", active.run[0] ? active.run : NULL);
  json_kv_int(w, "version", active.version);
  json_kv_string(w, "digest", hex);
  json_object_end(w);
}

void handle_model(struct http_request *r, void *context) {
  struct server *s = context;
  struct err err;
  const struct loaded_model *loaded = admission_model(&s->admission, false, &err);
  if (!loaded) {
    http_fail(r, &err);
    return;
  }
  struct engine_counters n;
  engine_read_counters(loaded->engine, &n);
  struct buf body = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &body);
  json_object_begin(&w);
  write_config(loaded, &w);
  write_loaded(loaded, &w);
  json_kv_string(&w, "device", loaded->ops->device);
  json_kv_string(&w, "kernels", loaded->ops->name);
  json_kv_int(&w, "slots", s->options.model.slots);
  json_kv_int(&w, "slots_busy", n.slots_busy);
  json_kv_int(&w, "samples_waiting", n.samples_waiting);
  json_kv_int(&w, "page_tokens", kv_page_tokens(engine_kv(loaded->engine)));
  json_kv_int(&w, "kv_pages_total", n.pages_total);
  json_kv_int(&w, "kv_pages_free", n.pages_free);
  json_object_end(&w);
  http_reply_json(r, 200, &body);
}
