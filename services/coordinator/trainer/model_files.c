/* Fetches the files of the trainer's model, one request each. */
#include "services/coordinator/trainer/model_files.h"

enum { FILE_MS = 30000 };

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
