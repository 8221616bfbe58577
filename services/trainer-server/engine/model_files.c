/* Lists, copies and writes the small files of a model's folder. */
#include "services/trainer-server/engine/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/json/json.h"
#include "common/safetensors/safetensors.h"

enum { FILE_BYTES_MAX = 128 << 20, CONFIG_BYTES_MAX = 1 << 20 };

/* As transformers names them. */
static const char *const carried_names[] = {
    "config.json",       "generation_config.json", "special_tokens_map.json", "added_tokens.json",
    "vocab.json",        "vocab.txt",              "merges.txt",              "spiece.model",
    "preprocessor_config.json", "processor_config.json"};
/* tokenizer.json, tokenizer_config.json, tokenizer.model, chat_template.jinja, chat_template.json ... */
static const char *const carried_prefixes[] = {"tokenizer", "chat_template"};
/* Of files that may begin like this and are no data of the model's. */
static const char *const strange_suffixes[] = {".py", ".safetensors", ".bin", ".pt", ".tmp", ".lock"};
/* Where transformers keeps the templates beside the model's own, each NAME.jinja: since version 5, and before. */
static const char *const template_folders[] = {"additional_chat_templates", "chat_templates"};
/* What config.json calls its weights' type: transformers' present and former name of it. */
static const char *const dtype_keys[] = {"dtype", "torch_dtype"};

#define COUNT(array) (sizeof(array) / sizeof(array)[0])

static bool ends_with(const char *name, const char *suffix) {
  const size_t len = strlen(name), suffix_len = strlen(suffix);
  return len >= suffix_len && strcmp(name + len - suffix_len, suffix) == 0;
}

bool model_file_carried(const char *name) {
  if (strchr(name, '/') || strlen(name) >= MODEL_FILE_NAME_MAX) return false;
  for (size_t i = 0; i < COUNT(strange_suffixes); i++)
    if (ends_with(name, strange_suffixes[i])) return false;
  for (size_t i = 0; i < COUNT(carried_names); i++)
    if (strcmp(name, carried_names[i]) == 0) return true;
  for (size_t i = 0; i < COUNT(carried_prefixes); i++)
    if (strncmp(name, carried_prefixes[i], strlen(carried_prefixes[i])) == 0) return true;
  return false;
}

/* The name of a template beside the model's own; one that could be a file beside the weights is none. */
static bool is_template_name(const char *name) {
  return name[0] != '.' && !strchr(name, '/') && strlen(name) < MODEL_FILE_NAME_MAX && ends_with(name, ".jinja") &&
         !model_file_carried(name);
}

static int compare_names(const void *a, const void *b) { return strcmp(a, b); }

/* A folder of that name is none of them: config.json may be one in another program's cache. */
static bool is_file(const char *dir, const char *name) {
  char path[LIMIT_PATH_MAX];
  if (path_format(path, NULL, "%s/%s", dir, name) != RC_OK || !file_exists(path)) return false;
  DIR *folder = opendir(path);
  if (folder) closedir(folder);
  return !folder;
}

/* The folder that holds the template of that name; NULL: none does. */
static const char *template_folder(const char *dir, const char *name) {
  char path[LIMIT_PATH_MAX];
  for (size_t i = 0; i < COUNT(template_folders); i++)
    if (path_format(path, NULL, "%s/%s", template_folders[i], name) == RC_OK && is_file(dir, path))
      return template_folders[i];
  return NULL;
}

enum rc model_file_path(char *path, const char *dir, const char *name, struct err *err) {
  if (model_file_carried(name)) return path_format(path, err, "%s/%s", dir, name);
  const char *folder = is_template_name(name) ? template_folder(dir, name) : NULL;
  if (folder) return path_format(path, err, "%s/%s/%s", dir, folder, name);
  return err_set(err, RC_NOT_FOUND, "name", "no model file '%.80s' is served", name);
}

/* Adds the files of an open folder that go with the weights; a template in both folders is the first one's. */
static enum rc list_folder(struct model_file_names *out, DIR *folder, const char *dir, bool of_templates,
                           struct err *err) {
  for (struct dirent *e; (e = readdir(folder));) {
    const char *name = e->d_name;
    bool wanted = of_templates ? is_template_name(name) && template_folder(dir, name)
                               : model_file_carried(name) && is_file(dir, name);
    for (size_t i = 0; wanted && i < out->count; i++) wanted = strcmp(out->names[i], name) != 0;
    if (!wanted) continue;
    if (out->count == MODEL_FILES_MAX)
      return err_set(err, RC_TOO_LARGE, NULL, "%s: expected at most %d files beside the weights, got more", dir,
                     MODEL_FILES_MAX);
    strcpy(out->names[out->count++], name);
  }
  return RC_OK;
}

enum rc model_files_list(struct model_file_names *out, const char *dir, struct err *err) {
  out->count = 0;
  DIR *folder = opendir(dir);
  if (!folder) return err_set_errno(err, RC_IO, "listing %s", dir);
  enum rc rc = list_folder(out, folder, dir, false, err);
  closedir(folder);
  for (size_t i = 0; rc == RC_OK && i < COUNT(template_folders); i++) {
    char path[LIMIT_PATH_MAX];
    folder = path_format(path, NULL, "%s/%s", dir, template_folders[i]) == RC_OK ? opendir(path) : NULL;
    if (!folder) continue;
    rc = list_folder(out, folder, dir, true, err);
    closedir(folder);
  }
  qsort(out->names, out->count, sizeof out->names[0], compare_names);
  return rc;
}

/* A configuration that names another dtype than bf16 would have its reader convert the weights: every other key
 * stays. */
static enum rc name_dtype(struct buf *config, struct err *err) {
  struct json *root = NULL;
  struct buf text = BUF_INIT;
  struct json_writer w;
  void *cursor = NULL;
  const char *key;
  const struct json *value;
  bool other = false;
  enum rc rc = json_parse(&root, config->data, config->len, CONFIG_BYTES_MAX, err);
  for (size_t i = 0; rc == RC_OK && i < COUNT(dtype_keys); i++) {
    const char *dtype = json_word(json_get(root, dtype_keys[i]));
    other = other || (dtype && strcmp(dtype, "bfloat16") != 0);
  }
  if (rc != RC_OK || !other) goto out;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  while (json_next(root, &cursor, &key, &value)) {
    const bool dtype = strcmp(key, dtype_keys[0]) == 0 || strcmp(key, dtype_keys[1]) == 0;
    json_key(&w, key);
    if (dtype && json_type_of(value) == JSON_STRING)
      json_write_string(&w, "bfloat16");
    else
      json_write_value(&w, value);
  }
  json_object_end(&w);
  rc = buf_check(&text, err);
  if (rc == RC_OK) {
    buf_free(config);
    *config = text;
    text = (struct buf)BUF_INIT;
  }
out:
  json_free(root);
  buf_free(&text);
  return rc;
}

/* A template stays in its folder, which is made durable here: file_sync_folder goes into none. */
static enum rc copy(const char *from_dir, const char *to_dir, const char *name, struct err *err) {
  char from[LIMIT_PATH_MAX], to[LIMIT_PATH_MAX], place[LIMIT_PATH_MAX];
  struct buf bytes = BUF_INIT;
  const char *folder = is_template_name(name) ? template_folder(from_dir, name) : NULL;
  enum rc rc = model_file_path(from, from_dir, name, err);
  if (rc == RC_OK) rc = path_format(place, err, "%s%s%s", to_dir, folder ? "/" : "", folder ? folder : "");
  if (rc == RC_OK) rc = path_format(to, err, "%s/%s", place, name);
  if (rc == RC_OK && folder) rc = file_make_dirs(place, err);
  if (rc == RC_OK) rc = file_read(&bytes, from, FILE_BYTES_MAX, err);
  if (rc == RC_OK && strcmp(name, "config.json") == 0) rc = name_dtype(&bytes, err);
  if (rc == RC_OK) rc = file_write(to, bytes.data, bytes.len, err);
  if (rc == RC_OK && folder) rc = file_sync_folder(place, err);
  buf_free(&bytes);
  return rc;
}

enum rc model_files_copy(const char *from_dir, const char *to_dir, struct err *err) {
  struct model_file_names files;
  enum rc rc = model_files_list(&files, from_dir, err);
  for (size_t i = 0; rc == RC_OK && i < files.count; i++) rc = copy(from_dir, to_dir, files.names[i], err);
  return rc;
}

enum rc model_files_write_index(const char *dir, const struct buf *weights, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct st_file *file;
  struct buf text = BUF_INIT;
  struct json_writer w;
  size_t bytes = 0;
  enum rc rc = st_open_memory(&file, weights->data, weights->len, err);
  if (rc != RC_OK) return rc;
  for (size_t i = 0; i < st_count(file); i++) bytes += st_at(file, i)->bytes;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  json_key(&w, "metadata");
  json_object_begin(&w);
  json_kv_int(&w, "total_size", (int64_t)bytes);
  json_object_end(&w);
  json_key(&w, "weight_map");
  json_object_begin(&w);
  for (size_t i = 0; i < st_count(file); i++) json_kv_string(&w, st_at(file, i)->name, "model.safetensors");
  json_object_end(&w);
  json_object_end(&w);
  rc = buf_check(&text, err);
  if (rc == RC_OK) rc = path_format(path, err, "%s/model.safetensors.index.json", dir);
  if (rc == RC_OK) rc = file_write(path, text.data, text.len, err);
  buf_free(&text);
  st_close(file);
  return rc;
}
