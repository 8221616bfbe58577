/* Opens a model: plans its memory first, then allocates, then makes the engine.  Reads a model's files, too. */
#include "services/generation-server/engine/loaded_model.h"

#include <stdlib.h>
#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/model/network/forward.h"
#include "services/generation-server/engine/fit.h"

enum {
  INBOX_MAX = LIMIT_QUEUED_REQUESTS + 4 * LIMIT_LEASES_PER_REQUEST,
  SAMPLES_MAX = LIMIT_QUEUED_REQUESTS + 2 * LIMIT_SLOTS, /* of plain requests; leased ones: slots and prefetch */
  WEIGHTS_HEADER_BYTES = 16 << 20
};

static enum rc make_backend(struct pool **pool, struct ops **ops, struct model **model,
                            const struct loaded_model_options *o, const struct model_config *config, struct err *err) {
  enum rc rc = pool_create(pool, o->threads, err);
  if (rc == RC_OK) rc = ops_create(ops, FORMAT_BF16, &o->device, *pool, err);
  if (rc == RC_OK) rc = model_create(model, config, *ops, o->context_max, err);
  return rc;
}

static struct engine_options engine_options_of(const struct loaded_model_options *o, const struct model *m, int pages) {
  return (struct engine_options){.model = m,
                                 .slots = o->slots,
                                 .pages = pages,
                                 .page_tokens = o->page_tokens,
                                 .prefill_chunk = o->prefill_chunk,
                                 .samples_max = SAMPLES_MAX,
                                 .inbox_max = INBOX_MAX,
                                 .activity = o->activity};
}

void loaded_model_memory_plan(struct memory_plan *out, const struct model *m,
                              const struct loaded_model_options *options, int pages) {
  const struct engine_options o = engine_options_of(options, m, pages);
  const struct engine_memory engine = engine_memory(&o);
  const size_t backend = m->ops->scratch_bytes + model_rope_bytes(m); /* the engine's; the stager has as much */
  const bool device = !m->ops->host_memory;
  *out = (struct memory_plan){0};
  memory_plan_add_where(out, "weights", weights_bytes(m, false), device);
  memory_plan_add_where(out, "staged weights", weights_bytes(m, false), device);
  memory_plan_add(out, "incoming weights", model_file_bytes(m)); /* a pushed or pulled file, until it is staged */
  memory_plan_add_where(out, "KV cache", engine.kv, device);
  memory_plan_add_where(out, "scratch", engine.scratch + 2 * backend, device);
  if (device) memory_plan_add(out, "buffers between host and device", 2 * weights_host_bytes(m));
}

static void read_room(struct memory_room *out, const struct loaded_model_options *o, const struct model *m) {
  memory_room_read(out, "", (size_t)o->memory_max);
  out->device = m->ops->room(m->ops);
}

/* --fit: options that fit, and the model again where they shorten its context. */
static enum rc give_up_what_does_not_fit(struct loaded_model_options *o, struct loaded_model *loaded, struct err *err) {
  const struct loaded_model_options asked = *o;
  struct memory_advice advice;
  struct memory_room room;
  if (!o->fit) return RC_OK;
  read_room(&room, o, loaded->model);
  fit_choose(o, &advice, loaded->model, &asked, &room, loaded_model_memory_plan);
  memory_advice_show(&advice);
  if (o->context_max == loaded->model->context_max) return RC_OK;
  model_free(loaded->model);
  return model_create(&loaded->model, &loaded->files.config, loaded->ops, o->context_max, err);
}

/* Sizes the KV pool and checks the whole plan against the memory that is there. */
static enum rc plan_memory(struct model_foresight *out, const struct loaded_model_options *o, const struct model *m,
                           struct err *err) {
  struct memory_advice advice;
  struct loaded_model_options chosen;
  read_room(&out->room, o, m);
  out->pages = fit_pages(o, m, &out->room, loaded_model_memory_plan);
  loaded_model_memory_plan(&out->plan, m, o, out->pages);
  memory_plan_show(&out->plan);
  memory_plan_show_room(&out->plan, &out->room);
  if (memory_plan_check(&out->plan, &out->room, "the generation-server", err) == RC_OK) return RC_OK;
  fit_choose(&chosen, &advice, m, o, &out->room, loaded_model_memory_plan);
  memory_advice_give(&advice, err);
  return RC_NO_MEMORY;
}

enum rc loaded_model_foresee(struct model_foresight *out, const struct loaded_model_options *options,
                             const struct model_files *files, struct err *err) {
  struct loaded_model_options chosen = *options;
  struct loaded_model *loaded = calloc(1, sizeof *loaded);
  *out = (struct model_foresight){0};
  if (!loaded) return err_set(err, RC_NO_MEMORY, NULL, "the loaded model was refused its memory");
  loaded->files.config = files->config;
  enum rc rc = make_backend(&loaded->pool, &loaded->ops, &loaded->model, options, &files->config, err);
  if (rc == RC_OK) rc = give_up_what_does_not_fit(&chosen, loaded, err);
  if (rc == RC_OK) {
    rc = plan_memory(out, &chosen, loaded->model, err);
    out->context_max = loaded->model->context_max;
    out->parameters = loaded->model->params.parameters;
    snprintf(out->kernels, sizeof out->kernels, "%s", loaded->ops->name);
  }
  loaded_model_close(loaded);
  return rc;
}

enum rc loaded_model_open(struct loaded_model **out, const struct loaded_model_options *options,
                          const struct model_files *files,
                          void (*activated)(void *, struct weights *, const struct policy *), void (*settled)(void *),
                          void *context, struct err *err) {
  *out = NULL;
  struct loaded_model *loaded = calloc(1, sizeof *loaded);
  if (!loaded) return err_set(err, RC_NO_MEMORY, NULL, "the loaded model was refused its memory");
  struct loaded_model_options chosen = *options;
  const struct model_config *config = &files->config;
  loaded->files.config = *config;
  enum rc rc = make_backend(&loaded->pool, &loaded->ops, &loaded->model, options, config, err);
  if (rc == RC_OK) rc = give_up_what_does_not_fit(&chosen, loaded, err);
  options = &chosen;
  if (rc == RC_OK)
    rc = make_backend(&loaded->stage_pool, &loaded->stage_ops, &loaded->stage_model, options, config, err);
  struct model_foresight planned = {0};
  if (rc == RC_OK) rc = plan_memory(&planned, options, loaded->model, err);
  const int pages = planned.pages;
  for (int i = 0; i < 2 && rc == RC_OK; i++) rc = weights_create(&loaded->weights[i], loaded->stage_model, false, err);
  if (rc == RC_OK) {
    struct engine_options engine = engine_options_of(options, loaded->model, pages);
    engine.activated = activated;
    engine.settled = settled;
    engine.context = context;
    rc = engine_create(&loaded->engine, &engine, err);
    loaded->weights_file_max = loaded->model->params.elements * sizeof(float) + WEIGHTS_HEADER_BYTES;
    if (config->tied) loaded->weights_file_max += (size_t)config->vocabulary * (size_t)config->hidden * sizeof(float);
    if (rc == RC_OK)
      log_info(
          "model of %zu parameters on %s, %s%s: context %d, %d slots, %d KV pages of %d tokens (%zu MiB), weights 2 x "
          "%zu MiB",
          loaded->model->params.parameters, loaded->ops->device, loaded->ops->name,
          options->device.isa && *options->device.isa ? " (forced)" : "", loaded->model->context_max, options->slots,
          pages, options->page_tokens, (size_t)pages * kv_page_bytes(loaded->model, options->page_tokens) >> 20,
          weights_bytes(loaded->model, false) >> 20);
  }
  if (rc != RC_OK) {
    loaded_model_close(loaded);
    return rc;
  }
  loaded->files = *files;
  *out = loaded;
  return RC_OK;
}

void loaded_model_close(struct loaded_model *loaded) {
  if (!loaded) return;
  engine_free(loaded->engine);
  for (int i = 0; i < 2; i++) weights_free(loaded->weights[i]);
  model_free(loaded->model);
  model_free(loaded->stage_model);
  ops_free(loaded->ops);
  ops_free(loaded->stage_ops);
  pool_destroy(loaded->pool);
  pool_destroy(loaded->stage_pool);
  model_files_free(&loaded->files);
  free(loaded);
}

/* --- files --- */

void model_files_free(struct model_files *files) {
  chat_free(files->chat);
  tokenizer_free(files->tokenizer);
  files->chat = NULL;
  files->tokenizer = NULL;
}

/* The tokenizer's own end of text ends samples too, as it does in other engines: fine-tuned models often have a new one
 * there and the base model's in their configurations. */
static enum rc read_chat(struct model_files *out, const struct chat_files *files) {
  const int32_t eos = chat_eos_id(&files->tokenizer_config, out->tokenizer);
  if (eos >= 0) model_config_add_eos(&out->config, eos);
  return chat_parse(&out->chat, files, out->tokenizer, &out->no_chat);
}

/* Frees what was read of files that do not fit together. */
static enum rc end_reading(struct model_files *out, enum rc rc, enum rc chat) {
  if (rc != RC_OK) {
    model_files_free(out);
  } else if (chat != RC_OK) {
    log_warn("messages will be refused: %s", out->no_chat.message);
  }
  return rc;
}

enum rc model_files_load(struct model_files *out, const char *dir, struct err *err) {
  *out = (struct model_files){0};
  enum rc rc = model_config_load(&out->config, dir, err), chat = RC_OK;
  if (rc == RC_OK) rc = tokenizer_load_folder(&out->tokenizer, dir, err);
  if (rc == RC_OK && out->tokenizer) rc = tokenizer_fit(out->tokenizer, out->config.vocabulary, err);
  if (rc == RC_OK && out->tokenizer) {
    struct chat_files files;
    chat = chat_files_read(&files, dir, &out->no_chat);
    if (chat == RC_OK) chat = read_chat(out, &files);
    chat_files_free(&files);
  }
  return end_reading(out, rc, chat);
}

enum rc model_files_parse(struct model_files *out, const struct buf *config_json, const struct buf *generation_json,
                          const struct buf *tokenizer_json, const struct chat_files *chat_files, struct err *err) {
  *out = (struct model_files){0};
  const char *file = "config.json";
  enum rc chat = RC_OK;
  enum rc rc = model_config_parse(&out->config, config_json->data ? config_json->data : "", config_json->len, err);
  if (rc == RC_OK && generation_json->len > 0) {
    file = "generation_config.json";
    rc = model_config_add_generation(&out->config, generation_json->data, generation_json->len, err);
  }
  if (rc == RC_OK && tokenizer_json->len > 0) {
    file = "tokenizer.json";
    rc = tokenizer_parse(&out->tokenizer, tokenizer_json->data, tokenizer_json->len, err);
  }
  if (rc != RC_OK) err_in_file(err, file);
  if (rc == RC_OK && out->tokenizer) rc = tokenizer_fit(out->tokenizer, out->config.vocabulary, err);
  if (rc == RC_OK && out->tokenizer) chat = read_chat(out, chat_files);
  return end_reading(out, rc, chat);
}

enum rc model_weights_load(struct weights *w, struct digest *digest, const char *dir, struct err *err) {
  char what[LIMIT_PATH_MAX];
  struct st_file *file;
  enum rc rc = st_open_folder(&file, dir, err);
  if (rc != RC_OK) return rc;
  snprintf(what, sizeof what, "loading %s", dir);
  rc = weights_load(w, file, what, err);
  if (rc == RC_OK) rc = weights_digest(digest, w, err);
  if (rc != RC_OK) err_in_file(err, dir);
  st_close(file);
  return rc;
}
