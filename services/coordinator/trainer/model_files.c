/* Fetches the files of the trainer's model, one request each. */
#include "services/coordinator/trainer/model_files.h"

#include "services/coordinator/trainer/trainer_target.h"

enum { FILE_MS = 30000, SHOW_MS = 5000 };

static enum rc fetch_optional(struct buf *out, const struct trainer_client *trainer, const char *name,
                              struct err *err) {
  const enum rc rc = trainer_model_file(trainer, name, out, FILE_MS, err);
  return rc == RC_NOT_FOUND ? RC_OK : rc;
}

enum rc model_files_fetch(struct model_files *out, const struct trainer_client *trainer, struct err *err) {
  enum rc rc = trainer_model_file(trainer, "config.json", &out->config, FILE_MS, err);
  if (rc == RC_OK) rc = trainer_model_file(trainer, "tokenizer.json", &out->tokenizer, FILE_MS, err);
  if (rc == RC_OK) rc = fetch_optional(&out->generation_config, trainer, "generation_config.json", err);
  if (rc == RC_OK) rc = fetch_optional(&out->tokenizer_config, trainer, "tokenizer_config.json", err);
  if (rc == RC_OK) rc = fetch_optional(&out->chat_template, trainer, "chat_template.jinja", err);
  return rc;
}

void model_files_free(struct model_files *files) {
  buf_free(&files->config);
  buf_free(&files->tokenizer);
  buf_free(&files->generation_config);
  buf_free(&files->tokenizer_config);
  buf_free(&files->chat_template);
}

struct tokenizer *model_tokenizer_fetch(struct core *c) {
  struct trainer_target trainer = {0};
  struct http_client *http = NULL;
  struct tokenizer *tokenizer = NULL;
  struct buf json = BUF_INIT;
  enum rc rc = trainer_target_now(core_readers(c), &trainer, NULL);
  if (rc == RC_OK && trainer.found) rc = http_client_create(&http, core_options(c)->token, NULL, NULL);
  if (rc == RC_OK && http) {
    const struct trainer_client client = {.http = http, .base_url = trainer.url};
    rc = trainer_model_file(&client, "tokenizer.json", &json, SHOW_MS, NULL);
    if (rc == RC_OK && tokenizer_parse(&tokenizer, json.data, json.len, NULL) != RC_OK) tokenizer = NULL;
  }
  http_client_destroy(http);
  buf_free(&json);
  return tokenizer;
}
