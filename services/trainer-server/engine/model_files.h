/* The small files of a model's folder: configuration, tokenizer, chat template.  They go with the weights into every
 * checkpoint, so that transformers and other engines load it as they load the model's folder, and the trainer serves
 * them.
 *
 * A file belongs to them by its name alone; weights, programs and other people's notes never do.  Chat templates
 * beside the model's own lie in a folder of theirs, as additional_chat_templates/tool_use.jinja, and go by the name in
 * it.  Any thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_MODEL_FILES_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_MODEL_FILES_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"
#include "common/base/rc.h"

enum { MODEL_FILES_MAX = 64, MODEL_FILE_NAME_MAX = 128 };

struct model_file_names {
  char names[MODEL_FILES_MAX][MODEL_FILE_NAME_MAX]; /* sorted */
  size_t count;
};

/* Does a file of that name, beside the weights, go with them?  Pure; false for anything but a plain name. */
bool model_file_carried(const char *name);
/* Where a file of that name lies into path[LIMIT_PATH_MAX], a template's folder included; RC_NOT_FOUND for a name that
 * does not go with the weights. */
enum rc model_file_path(char *path, const char *dir, const char *name, struct err *err);
/* Lists the model files that the folder holds. */
enum rc model_files_list(struct model_file_names *out, const char *dir, struct err *err);
/* Copies them from the model's folder into a checkpoint's, as they are; but config.json says of which dtype its weights
 * are, which are bf16 here whatever they were before. */
enum rc model_files_copy(const char *from_dir, const char *to_dir, struct err *err);
/* The index beside model.safetensors, whose bytes these are.  Engines that load every .safetensors file of a folder
 * (vLLM, SGLang) load, where an index lies beside them, those alone that it names: not the optimizer's. */
enum rc model_files_write_index(const char *dir, const struct buf *weights, struct err *err);

#endif
