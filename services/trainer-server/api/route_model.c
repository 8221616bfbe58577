/* GET /v1/model, GET /v1/model/files/{name}, GET /readyz: what this trainer trains. */
#include <inttypes.h>
#include <string.h>

#include "common/base/file.h"
#include "common/model/network/config.h"
#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/engine/model_files.h"
#include "services/trainer-server/engine/trainer.h"

static void write_files(struct json_writer *w, const char *dir) {
  struct model_file_names files;
  if (model_files_list(&files, dir, NULL) != RC_OK) files.count = 0; /* the folder is gone since the start */
  json_array_begin(w);
  for (size_t i = 0; i < files.count; i++) json_write_string(w, files.names[i]);
  json_array_end(w);
}

static void write_sizes(struct json_writer *w, const struct model_config *c) {
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
  json_kv_int(w, "positions_max", c->positions_max);
  json_kv_bool(w, "tied", c->tied);
  json_object_end(w);
}

static void write_replay(struct json_writer *w, const struct board_view *v) {
  if (!board_replaying(v)) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_int(w, "from", v->replay_from);
  json_kv_int(w, "at", v->version);
  json_kv_int(w, "to", v->replay_to);
  json_object_end(w);
}

void handle_get_model(struct http_request *r, void *context) {
  struct trainer *t = context;
  struct board_view v;
  struct buf body = BUF_INIT;
  struct json_writer w;
  char hex[DIGEST_HEX_MAX];
  board_view(trainer_board(t), &v);
  digest_hex(hex, &v.digest);
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_kv_string(&w, "run", v.run[0] ? v.run : NULL);
  json_kv_int(&w, "version", v.version);
  json_kv_string(&w, "digest", hex);
  json_kv_string(&w, "state", board_replaying(&v) ? "replaying" : "ready");
  json_key(&w, "replay");
  write_replay(&w, &v);
  json_kv_bool(&w, "busy", v.busy);
  json_kv_string(&w, "device", trainer_device(t));
  json_kv_string(&w, "kernels", trainer_kernels(t));
  json_kv_int(&w, "threads", trainer_threads(t));
  json_kv_int(&w, "ranks", trainer_ranks(t));
  json_kv_string(&w, "ranks_over", trainer_ranks_over(t));
  json_key(&w, "sizes");
  write_sizes(&w, trainer_model_config(t));
  json_key(&w, "files");
  write_files(&w, trainer_model_dir(t));
  json_object_end(&w);
  http_reply_json(r, 200, &body);
}

static const char *type_of(const char *name) {
  const char *dot = strrchr(name, '.');
  if (dot && strcmp(dot, ".json") == 0) return "application/json";
  return dot && strcmp(dot, ".model") == 0 ? "application/octet-stream" : "text/plain; charset=utf-8";
}

void handle_get_model_file(struct http_request *r, void *context) {
  char path[LIMIT_PATH_MAX];
  const char *name = http_param(r, "name");
  struct err err;
  if (model_file_path(path, trainer_model_dir(context), name, &err) == RC_OK)
    http_reply_file(r, type_of(name), path);
  else
    http_fail(r, &err);
}

/* Weights are loaded before any handler is called; but while a run is replayed they are older than what it has
 * reached. */
void handle_readyz(struct http_request *r, void *context) {
  struct board_view v;
  struct err err;
  struct buf body = BUF_INIT;
  board_view(trainer_board(context), &v);
  if (board_replaying(&v)) {
    err_set(&err, RC_UNAVAILABLE, NULL,
            "run %s is being replayed: version %" PRId64 " is reached, %" PRId64 " is recorded", v.run, v.version,
            v.replay_to);
    http_fail(r, &err);
    return;
  }
  buf_puts(&body, "{\"status\":\"ready\"}");
  http_reply_json(r, 200, &body);
}
