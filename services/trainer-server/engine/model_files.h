/* The small files of a model's folder: configuration, tokenizer, chat template.  They go with the weights into every
 * checkpoint, so that transformers and other engines load it as they load the model's folder, and the trainer serves
 * them.
 *
 * A file belongs to them by its name alone; weights, programs and other people's notes never do.  Any thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_MODEL_FILES_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_MODEL_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/rc.h"

enum { MODEL_FILES_MAX = 64, MODEL_FILE_NAME_MAX = 128 };

struct model_file_names {
  char names[MODEL_FILES_MAX][MODEL_FILE_NAME_MAX]; /* sorted */
  size_t count;
};

/* Does a file of that name go with the weights?  Pure; false for anything but a plain name. */
bool model_file_carried(const char *name);
/* Those that the folder holds. */
enum rc model_files_list(struct model_file_names *out, const char *dir, struct err *err);
/* Copies them from the model's folder into a checkpoint's, as they are; but config.json says of which dtype its weights
 * are, which are bf16 here whatever they were before. */
enum rc model_files_copy(const char *from_dir, const char *to_dir, struct err *err);

#endif
