/* Pulls a version into a folder and computes its digest from the bytes that an engine will read. */
#include "services/rollout-agent/weights/version_folder.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/log.h"
#include "common/safetensors/safetensors.h"

enum { FILE_DEADLINE_MS = 30000, PULL_DEADLINE_MS = 600000 };

static const char weights_file[] = "model.safetensors";

/* The small files, as the trainer names them, and the folder where transformers looks for a template of requests with
 * tools; all but the first may be missing. */
static const struct {
  const char *name, *folder; /* NULL: beside the weights */
} model_files[] = {{"config.json", NULL},
                   {"tokenizer.json", NULL},
                   {"tokenizer_config.json", NULL},
                   {"generation_config.json", NULL},
                   {"special_tokens_map.json", NULL},
                   {"chat_template.jinja", NULL},
                   {"tool_use.jinja", "additional_chat_templates"}};

/* The digest of a weights file: over its tensors in the order of its header, which is the parameter table's. */
static enum rc check_digest(const struct st_file *file, const struct version_source *from, struct err *err) {
  const size_t count = st_count(file);
  struct digest *leaves = calloc(count + 1, sizeof *leaves), got;
  char want_hex[DIGEST_HEX_MAX], got_hex[DIGEST_HEX_MAX];
  if (!leaves) return err_set(err, RC_NO_MEMORY, NULL, "digests of %zu tensors were refused memory", count);
  for (size_t i = 0; i < count; i++) {
    const struct st_tensor *t = st_at(file, i);
    struct st_entry entry = {.name = t->name, .dtype = t->dtype, .dims = t->dims};
    memcpy(entry.shape, t->shape, sizeof entry.shape);
    st_tensor_digest(&leaves[i], &entry, st_data(file, t));
    st_drop(file, t);
  }
  st_combine_digests(&got, leaves, count);
  free(leaves);
  if (digest_equal(&got, from->digest)) return RC_OK;
  digest_hex(want_hex, from->digest);
  digest_hex(got_hex, &got);
  return err_set(err, RC_INVALID, "digest", "version %lld of run %s was announced with digest %s, its weights have %s",
                 (long long)from->version, from->run, want_hex, got_hex);
}

static enum rc is_there(const char *root, const char *name, const struct version_source *from, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct st_file *file;
  enum rc rc = path_format(path, err, "%s/%s/%s", root, name, weights_file);
  if (rc == RC_OK && !file_exists(path)) return RC_NOT_FOUND;
  if (rc == RC_OK) rc = st_open_file(&file, path, err);
  if (rc != RC_OK) return rc;
  rc = check_digest(file, from, err);
  st_close(file);
  return rc;
}

static enum rc write_into(const char *folder, const char *name, const struct buf *bytes, struct err *err) {
  char path[LIMIT_PATH_MAX];
  const enum rc rc = path_format(path, err, "%s/%s", folder, name);
  return rc == RC_OK ? file_write_atomic(path, bytes->data ? bytes->data : "", bytes->len, err) : rc;
}

static enum rc pull_files(const char *folder, const struct version_source *from, struct err *err) {
  enum rc rc = RC_OK;
  for (size_t i = 0; rc == RC_OK && i < sizeof model_files / sizeof model_files[0]; i++) {
    struct buf bytes = BUF_INIT;
    const char *name = model_files[i].name, *inner = model_files[i].folder;
    char place[LIMIT_PATH_MAX];
    rc = trainer_model_file(&from->trainer, name, &bytes, FILE_DEADLINE_MS, err);
    const bool missing = rc == RC_NOT_FOUND && i > 0;
    if (rc == RC_OK) rc = path_format(place, err, "%s%s%s", folder, inner ? "/" : "", inner ? inner : "");
    if (rc == RC_OK && inner) rc = file_make_dirs(place, err);
    if (rc == RC_OK) rc = write_into(place, name, &bytes, err);
    if (missing) rc = RC_OK;
    buf_free(&bytes);
  }
  return rc;
}

static enum rc pull_weights(const char *folder, const struct version_source *from, struct err *err) {
  struct buf bytes = BUF_INIT;
  struct st_file *file = NULL;
  enum rc rc =
      trainer_weights(&from->trainer, from->run, from->version, from->bytes_max, &bytes, PULL_DEADLINE_MS, err);
  if (rc == RC_OK) rc = st_open_memory(&file, bytes.data, bytes.len, err);
  if (rc == RC_OK) rc = check_digest(file, from, err);
  st_close(file);
  if (rc == RC_OK) rc = write_into(folder, weights_file, &bytes, err);
  if (rc == RC_OK)
    log_info("version %lld of run %s was pulled, %zu bytes", (long long)from->version, from->run, bytes.len);
  buf_free(&bytes);
  return rc;
}

enum rc version_folder_make(const char *root, const char *name, const struct version_source *from, struct err *err) {
  char partial[LIMIT_PATH_MAX], whole[LIMIT_PATH_MAX];
  struct err old;
  const enum rc there = is_there(root, name, from, &old);
  if (there == RC_OK) return RC_OK;
  enum rc rc = path_format(whole, err, "%s/%s", root, name);
  if (rc == RC_OK) rc = path_format(partial, err, "%s/%s.partial", root, name);
  if (rc == RC_OK && there != RC_NOT_FOUND) log_warn("%s is pulled anew: %s", whole, old.message);
  if (rc == RC_OK && file_exists(whole)) rc = file_remove_tree(whole, err);
  if (rc == RC_OK && file_exists(partial)) rc = file_remove_tree(partial, err);
  if (rc == RC_OK) rc = file_make_dirs(partial, err);
  if (rc == RC_OK) rc = pull_files(partial, from, err);
  if (rc == RC_OK) rc = pull_weights(partial, from, err);
  return rc == RC_OK ? file_rename_durable(partial, whole, err) : rc;
}

void version_folder_keep(const char *root, const char *one, const char *other) {
  DIR *dir = opendir(root);
  if (!dir) return;
  for (struct dirent *e; (e = readdir(dir)) != NULL;) {
    char path[LIMIT_PATH_MAX];
    struct err err;
    if (e->d_name[0] == '.' || strcmp(e->d_name, one) == 0 || strcmp(e->d_name, other) == 0) continue;
    enum rc rc = path_format(path, &err, "%s/%s", root, e->d_name);
    if (rc == RC_OK) rc = file_remove_tree(path, &err);
    if (rc != RC_OK) log_warn("an old version stays: %s", err.message);
  }
  closedir(dir);
}
