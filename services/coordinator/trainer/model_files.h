/* The files of the trainer's model, as the trainer serves them: config.json, tokenizer.json and, where there are such,
 * generation_config.json, tokenizer_config.json and chat_template.jinja.
 *
 * Called by start.c on the driver's thread and by run_check.c on an HTTP worker's thread; each file is one request with
 * a deadline.  The caller owns the files, also after a failure.  Read by run/run_context.c. */
#ifndef LEASEHOLD_COORDINATOR_TRAINER_MODEL_FILES_H
#define LEASEHOLD_COORDINATOR_TRAINER_MODEL_FILES_H

#include "common/client/trainer_client.h"
#include "services/coordinator/run/run_context.h"

/* RC_NOT_FOUND when the model lacks config.json or tokenizer.json. */
enum rc model_files_fetch(struct model_files *out, const struct trainer_client *trainer, struct err *err);
/* The same from a folder on this machine, where there is no trainer yet. */
enum rc model_files_read(struct model_files *out, const char *dir, struct err *err);
void model_files_free(struct model_files *files);
#endif
