/* Fetches the files of the trainer's model, one request each. */
#include "services/coordinator/driver/model_files.h"

enum { FILE_MS = 30000 };

enum rc model_files_fetch(struct model_files *out, const struct trainer_client *trainer, struct err *err) {
  enum rc rc = trainer_model_file(trainer, "config.json", &out->config, FILE_MS, err);
  if (rc == RC_OK) rc = trainer_model_file(trainer, "tokenizer.json", &out->tokenizer, FILE_MS, err);
  if (rc == RC_OK) {
    rc = trainer_model_file(trainer, "generation_config.json", &out->generation_config, FILE_MS, err);
    if (rc == RC_NOT_FOUND) rc = RC_OK; /* optional */
  }
  return rc;
}

void model_files_free(struct model_files *files) {
  buf_free(&files->config);
  buf_free(&files->tokenizer);
  buf_free(&files->generation_config);
}
