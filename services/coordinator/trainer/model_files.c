/* Fetches the files of the trainer's model, one request each, or reads those of a folder. */
#include "services/coordinator/trainer/model_files.h"

#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"

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

enum rc model_files_read(struct model_files *out, const char *dir, struct err *err) {
  const struct {
    const char *name;
    struct buf *to;
    bool needed;
  } files[] = {{"config.json", &out->config, true},
               {"tokenizer.json", &out->tokenizer, true},
               {"generation_config.json", &out->generation_config, false},
               {"tokenizer_config.json", &out->tokenizer_config, false},
               {"chat_template.jinja", &out->chat_template, false}};
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    char path[LIMIT_PATH_MAX];
    struct err cause = {0};
    enum rc rc = path_format(path, &cause, "%s/%s", dir, files[i].name);
    if (rc == RC_OK) rc = file_read(files[i].to, path, LIMIT_BATCH_BODY_BYTES, &cause);
    if (rc == RC_OK || (rc == RC_NOT_FOUND && !files[i].needed)) continue;
    return err_set(err, rc, NULL, "the model's folder: %s", cause.message);
  }
  return RC_OK;
}

void model_files_free(struct model_files *files) {
  buf_free(&files->config);
  buf_free(&files->tokenizer);
  buf_free(&files->generation_config);
  buf_free(&files->tokenizer_config);
  buf_free(&files->chat_template);
}
