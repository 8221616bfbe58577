/* Opens the weights of a Hugging Face folder: one model.safetensors, or the shards of a large model.
 *
 *   model.safetensors.index.json   {"metadata": {...}, "weight_map": {"<tensor>": "<file>", ...}}
 *   <file>                         a safetensors file beside it, each mapped
 *
 * The shards' tensors become one list, so that code that fills weights need not know how many files they came in.  As
 * in transformers, model.safetensors wins over an index beside it, and a tensor that a shard holds without the index
 * naming it counts like any other.  A file's name must be a plain name: an index cannot lead out of its folder.
 *
 * Called by the services that load a model's folder; the result is immutable, and any thread may read it. */
#include <stdlib.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/json/json.h"
#include "common/safetensors/safetensors_internal.h"

static const char one_file[] = "model.safetensors";
static const char index_file[] = "model.safetensors.index.json";
/* Files of other formats that a folder may hold instead, for the message. */
static const char *const other_formats[] = {"pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth",
                                            "model.gguf", "tf_model.h5", "flax_model.msgpack"};

/* The names of the shards, in the order of their first mention; borrowed from the index. */
struct shard_names {
  const char *names[LIMIT_SHARDS];
  size_t count;
};

/* The number of the shard of that name, or -1.  The tensors of one follow each other mostly, so the last is asked
 * first. */
static int find_shard(const struct shard_names *s, const char *name) {
  for (size_t i = s->count; i-- > 0;)
    if (strcmp(s->names[i], name) == 0) return (int)i;
  return -1;
}

static bool is_plain_name(const char *name) {
  static const char suffix[] = ".safetensors";
  const size_t len = strlen(name), suffix_len = sizeof suffix - 1;
  return name[0] != '.' && !strchr(name, '/') && len < ST_NAME_MAX && len > suffix_len &&
         strcmp(name + len - suffix_len, suffix) == 0;
}

static enum rc collect_names(struct shard_names *out, const struct json *map, struct err *err) {
  void *cursor = NULL;
  const char *tensor;
  const struct json *value;
  if (!map || json_type_of(map) != JSON_OBJECT || json_length(map) == 0)
    return err_set(err, RC_INVALID, "weight_map", "expected an object of tensor names and file names, got %s",
                   map ? json_type_name(json_type_of(map)) : "nothing");
  while (json_next(map, &cursor, &tensor, &value)) {
    const char *name = json_word(value);
    if (!name || !is_plain_name(name))
      return err_set(err, RC_INVALID, "weight_map",
                     "tensor %.200s: expected the name of a .safetensors file in the same folder, got %.200s", tensor,
                     name ? name : json_type_name(json_type_of(value)));
    if (find_shard(out, name) >= 0) continue;
    if (out->count == LIMIT_SHARDS)
      return err_set(err, RC_INVALID, "weight_map", "expected at most %d files, got more", LIMIT_SHARDS);
    out->names[out->count++] = name;
  }
  return RC_OK;
}

static enum rc open_shards(struct st_file *f, const struct shard_names *s, const char *dir, struct err *err) {
  char path[LIMIT_PATH_MAX];
  if (!(f->shards = calloc(s->count, sizeof *f->shards)))
    return err_set(err, RC_NO_MEMORY, NULL, "a list of %zu shards was refused memory", s->count);
  for (size_t i = 0; i < s->count; i++) {
    enum rc rc = path_format(path, err, "%s/%s", dir, s->names[i]);
    if (rc == RC_OK) rc = st_open_file(&f->shards[i], path, err);
    if (rc == RC_NOT_FOUND) rc = err_set(err, RC_INVALID, NULL, "%s names %s, which is missing", index_file, path);
    if (rc != RC_OK) return rc;
    f->shard_count++;
    f->count += f->shards[i]->count;
  }
  if (f->count > LIMIT_TENSORS)
    return err_set(err, RC_INVALID, NULL, "expected at most %d tensors in %zu shards, got %zu", LIMIT_TENSORS, s->count,
                   f->count);
  return RC_OK;
}

/* All shards' tensors in one list. */
static enum rc join_tensors(struct st_file *f, const struct shard_names *s, struct err *err) {
  size_t at = 0;
  f->tensors = calloc(f->count + 1, sizeof *f->tensors);
  f->by_name = calloc(f->count + 1, sizeof *f->by_name);
  if (!f->tensors || !f->by_name)
    return err_set(err, RC_NO_MEMORY, NULL, "an index of %zu tensors was refused memory", f->count);
  for (size_t i = 0; i < f->shard_count; i++) {
    for (size_t k = 0; k < f->shards[i]->count; k++, at++) {
      f->tensors[at] = f->shards[i]->tensors[k];
      f->tensors[at].shard = (int)i;
      f->by_name[at] = &f->tensors[at];
    }
  }
  st_sort_by_name(f);
  for (size_t i = 1; i < f->count; i++) {
    const struct st_tensor *a = f->by_name[i - 1], *b = f->by_name[i];
    if (strcmp(a->name, b->name) == 0)
      return err_set(err, RC_INVALID, a->name, "tensor %s is in two shards, %s and %s", a->name, s->names[a->shard],
                     s->names[b->shard]);
  }
  return RC_OK;
}

static enum rc check_places(const struct st_file *f, const struct shard_names *s, const struct json *map,
                            struct err *err) {
  void *cursor = NULL;
  const char *tensor;
  const struct json *value;
  while (json_next(map, &cursor, &tensor, &value)) {
    const struct st_tensor *t = st_find(f, tensor);
    if (t && t->shard == find_shard(s, json_word(value))) continue;
    return err_set(err, RC_INVALID, tensor, "tensor %.200s: %s says that it is in %s, and it is %s%s", tensor,
                   index_file, json_word(value), t ? "in " : "not", t ? s->names[t->shard] : "");
  }
  return RC_OK;
}

static enum rc open_index(struct st_file *f, const char *path, const char *dir, struct err *err) {
  struct buf bytes = BUF_INIT;
  struct json *root = NULL;
  struct shard_names names = {.count = 0};
  enum rc rc = file_read(&bytes, path, LIMIT_SAFETENSORS_HEADER, err);
  if (rc == RC_OK) rc = json_parse(&root, bytes.data, bytes.len, LIMIT_SAFETENSORS_HEADER, err);
  const struct json *map = json_get(root, "weight_map");
  if (rc == RC_OK) rc = collect_names(&names, map, err);
  if (rc != RC_OK) err_in_file(err, path); /* the shards name themselves */
  if (rc == RC_OK) rc = open_shards(f, &names, dir, err);
  if (rc == RC_OK) rc = join_tensors(f, &names, err);
  if (rc == RC_OK) rc = check_places(f, &names, map, err);
  json_free(root);
  buf_free(&bytes);
  return rc;
}

static bool holds(const char *dir, const char *name) {
  char path[LIMIT_PATH_MAX];
  return path_format(path, NULL, "%s/%s", dir, name) == RC_OK && file_exists(path);
}

bool st_folder_has_weights(const char *dir) { return holds(dir, one_file) || holds(dir, index_file); }

static enum rc nothing_found(const char *dir, struct err *err) {
  for (size_t i = 0; i < sizeof other_formats / sizeof other_formats[0]; i++)
    if (holds(dir, other_formats[i]))
      return err_set(err, RC_NOT_FOUND, NULL,
                     "%s holds %s, and neither %s nor %s: only safetensors are read; save_pretrained of transformers "
                     "writes them",
                     dir, other_formats[i], one_file, index_file);
  return err_set(err, RC_NOT_FOUND, NULL, "%s holds neither %s nor %s", dir, one_file, index_file);
}

enum rc st_open_folder(struct st_file **out, const char *dir, struct err *err) {
  char path[LIMIT_PATH_MAX];
  *out = NULL;
  if (!st_folder_has_weights(dir)) return nothing_found(dir, err);
  const bool whole = holds(dir, one_file);
  enum rc rc = path_format(path, err, "%s/%s", dir, whole ? one_file : index_file);
  if (rc != RC_OK) return rc;
  if (whole) return st_open_file(out, path, err);
  struct st_file *f = calloc(1, sizeof *f);
  if (!f) return err_set(err, RC_NO_MEMORY, NULL, "a safetensors reader of %zu bytes was refused memory", sizeof *f);
  rc = open_index(f, path, dir, err);
  if (rc != RC_OK) {
    st_close(f);
    return rc;
  }
  *out = f;
  return RC_OK;
}
