/* Reads safetensors: every claim of the header is checked before the first tensor is handed out.
 *
 * Called by the model (weights), the trainer (checkpoints) and the services that take pushed weights; so the bytes
 * may come from a stranger.  A file is parsed once into an array of tensors in header order and an array sorted by
 * name; afterwards it is immutable, and any thread may read it.  The bytes are borrowed or mapped and never copied:
 * the kernel brings in the pages that are used.  A mapped file must not be shortened while it is open (our writers
 * replace files by rename, they never write into them).
 *
 * Strictness: the tensors, sorted by offset, must cover the data section exactly, from its first byte to its last.
 * The format's own reader demands the same; this one rule excludes overlap, holes and trailing bytes. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/arena.h"
#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/json/json.h"
#include "common/safetensors/safetensors_internal.h"

enum { LENGTH_BYTES = 8 };
#define METADATA "__metadata__"

static uint64_t read_u64(const unsigned char *bytes) {
  uint64_t value = 0;
  for (int i = 0; i < LENGTH_BYTES; i++) value |= (uint64_t)bytes[i] << 8 * i;
  return value;
}

static enum rc read_dtype(struct st_tensor *t, const char *name, struct err *err) {
  for (int d = ST_BF16; d <= ST_BOOL; d++) {
    if (strcmp(st_dtype_name((enum st_dtype)d), name) == 0) {
      t->dtype = (enum st_dtype)d;
      return RC_OK;
    }
  }
  return err_set(err, RC_INVALID, t->name,
                 "tensor %s: expected dtype BF16, F16, F32, F64, I64, I32, I16, I8, U8 or BOOL, got \"%.32s\"", t->name,
                 name);
}

/* A non-negative integer of an array, with a message that names the tensor and the array. */
static enum rc read_size(int64_t *out, const struct json *array, size_t index, const struct st_tensor *t,
                         const char *what, struct err *err) {
  const struct json *item = json_at(array, index);
  if (json_type_of(item) != JSON_INT)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected an integer in %s[%zu], got %s", t->name, what, index,
                   json_type_name(json_type_of(item)));
  if (json_int(item) < 0)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected no negative number in %s[%zu], got %" PRId64, t->name,
                   what, index, json_int(item));
  *out = json_int(item);
  return RC_OK;
}

static enum rc read_shape(struct st_tensor *t, const struct json *shape, struct err *err) {
  if (json_type_of(shape) != JSON_ARRAY)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected an array as shape, got %s", t->name,
                   json_type_name(json_type_of(shape)));
  if (json_length(shape) > ST_DIMS_MAX)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected at most %d dimensions, got %zu", t->name, ST_DIMS_MAX,
                   json_length(shape));
  t->dims = (int)json_length(shape);
  t->bytes = st_dtype_bytes(t->dtype);
  for (int i = 0; i < t->dims; i++) {
    const enum rc rc = read_size(&t->shape[i], shape, (size_t)i, t, "shape", err);
    if (rc != RC_OK) return rc;
    if (__builtin_mul_overflow(t->bytes, (size_t)t->shape[i], &t->bytes))
      return err_set(err, RC_INVALID, t->name, "tensor %s: its shape's size exceeds 64 bits at dimension %d, %" PRId64,
                     t->name, i, t->shape[i]);
  }
  return RC_OK;
}

static enum rc read_offsets(struct st_tensor *t, const struct json *offsets, size_t data_bytes, struct err *err) {
  int64_t begin, end;
  if (json_type_of(offsets) != JSON_ARRAY || json_length(offsets) != 2)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected data_offsets [begin, end], got %s of %zu items",
                   t->name, json_type_name(json_type_of(offsets)), json_length(offsets));
  enum rc rc = read_size(&begin, offsets, 0, t, "data_offsets", err);
  if (rc == RC_OK) rc = read_size(&end, offsets, 1, t, "data_offsets", err);
  if (rc != RC_OK) return rc;
  if (begin > end || (uint64_t)end > data_bytes)
    return err_set(err, RC_INVALID, t->name,
                   "tensor %s: expected data_offsets in order within %zu bytes of data, got [%" PRId64 ", %" PRId64 "]",
                   t->name, data_bytes, begin, end);
  if ((size_t)(end - begin) != t->bytes)
    return err_set(err, RC_INVALID, t->name,
                   "tensor %s: expected %zu bytes for its dtype and shape, data_offsets span %" PRId64, t->name,
                   t->bytes, end - begin);
  t->offset = (size_t)begin;
  return RC_OK;
}

static enum rc read_tensor(struct st_tensor *t, const char *name, const struct json *value, size_t data_bytes,
                           struct arena *arena, struct err *err) {
  if (strlen(name) >= ST_NAME_MAX)
    return err_set(err, RC_INVALID, NULL, "expected tensor names of at most %d bytes, got %zu: %.64s...",
                   ST_NAME_MAX - 1, strlen(name), name);
  strcpy(t->name, name);
  if (json_type_of(value) != JSON_OBJECT)
    return err_set(err, RC_INVALID, t->name, "tensor %s: expected an object, got %s", t->name,
                   json_type_name(json_type_of(value)));
  const char *dtype = NULL;
  const struct json *shape = NULL, *offsets = NULL;
  const struct json_field fields[] = {
      {.name = "dtype", .kind = FIELD_STRING, .target = &dtype, .required = true},
      {.name = "shape", .kind = FIELD_VALUE, .target = &shape, .required = true},
      {.name = "data_offsets", .kind = FIELD_VALUE, .target = &offsets, .required = true},
  };
  enum rc rc = json_fields(value, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, arena, err);
  if (rc != RC_OK) {
    err_in_field(err, t->name);
    return rc;
  }
  rc = read_dtype(t, dtype, err);
  if (rc == RC_OK) rc = read_shape(t, shape, err);
  if (rc == RC_OK) rc = read_offsets(t, offsets, data_bytes, err);
  return rc;
}

static enum rc check_metadata(const struct json *metadata, struct err *err) {
  if (json_type_of(metadata) != JSON_OBJECT)
    return err_set(err, RC_INVALID, METADATA, "expected an object of strings, got %s",
                   json_type_name(json_type_of(metadata)));
  void *cursor = NULL;
  const char *key;
  const struct json *value;
  while (json_next(metadata, &cursor, &key, &value)) {
    if (json_type_of(value) != JSON_STRING)
      return err_set(err, RC_INVALID, METADATA, "expected strings only, \"%.64s\" is %s", key,
                     json_type_name(json_type_of(value)));
  }
  return RC_OK;
}

static int compare_names(const void *a, const void *b) {
  return strcmp((*(const struct st_tensor *const *)a)->name, (*(const struct st_tensor *const *)b)->name);
}

void st_sort_by_name(struct st_file *f) { qsort(f->by_name, f->count, sizeof *f->by_name, compare_names); }

/* By offset; of two at one offset, the empty one first. */
static int compare_offsets(const void *a, const void *b) {
  const struct st_tensor *x = *(const struct st_tensor *const *)a, *y = *(const struct st_tensor *const *)b;
  if (x->offset != y->offset) return x->offset < y->offset ? -1 : 1;
  return (x->bytes > y->bytes) - (x->bytes < y->bytes);
}

/* The tensors follow each other from byte 0 to the last.  Sorts f->by_name by offset on the way. */
static enum rc check_cover(struct st_file *f, struct err *err) {
  qsort(f->by_name, f->count, sizeof *f->by_name, compare_offsets);
  size_t end = 0;
  for (size_t i = 0; i < f->count; i++) {
    const struct st_tensor *t = f->by_name[i];
    if (t->offset != end)
      return err_set(err, RC_INVALID, t->name,
                     "tensor %s: expected to begin at byte %zu, where the one before ends, got %zu: %s", t->name, end,
                     t->offset, t->offset < end ? "they overlap" : "there is a hole");
    end += t->bytes;
  }
  if (end != f->data_bytes)
    return err_set(err, RC_INVALID, NULL, "expected tensors to cover the %zu bytes of data, they cover %zu",
                   f->data_bytes, end);
  return RC_OK;
}

static enum rc read_tensors(struct st_file *f, struct err *err) {
  struct arena arena = ARENA_INIT;
  void *cursor = NULL;
  const char *name;
  const struct json *value;
  enum rc rc = RC_OK;
  while (rc == RC_OK && json_next(f->header, &cursor, &name, &value)) {
    if (strcmp(name, METADATA) == 0) {
      rc = check_metadata(value, err);
      continue;
    }
    struct st_tensor *t = &f->tensors[f->count];
    f->by_name[f->count++] = t;
    rc = read_tensor(t, name, value, f->data_bytes, &arena, err);
  }
  arena_free(&arena);
  if (rc == RC_OK) rc = check_cover(f, err);
  st_sort_by_name(f);
  return rc;
}

/* Fills f from a whole file's bytes. */
static enum rc parse(struct st_file *f, const unsigned char *bytes, size_t len, struct err *err) {
  if (len < LENGTH_BYTES)
    return err_set(err, RC_INVALID, NULL,
                   "expected a safetensors file, which begins with %d bytes of header length, got %zu bytes",
                   LENGTH_BYTES, len);
  const enum rc pointer = file_refuse_pointer(bytes, len, err);
  if (pointer != RC_OK) return pointer;
  const uint64_t header_bytes = read_u64(bytes);
  if (header_bytes > LIMIT_SAFETENSORS_HEADER)
    return err_set(err, RC_INVALID, NULL, "expected a safetensors header of at most %u bytes, the file claims %" PRIu64,
                   LIMIT_SAFETENSORS_HEADER, header_bytes);
  if (header_bytes > len - LENGTH_BYTES)
    return err_set(err, RC_INVALID, NULL,
                   "expected a safetensors header of %" PRIu64
                   " bytes as the file claims, got %zu bytes in all after the length",
                   header_bytes, len - LENGTH_BYTES);
  const char *header = (const char *)bytes + LENGTH_BYTES;
  if (header_bytes == 0 || header[0] != '{')
    return err_set(err, RC_INVALID, NULL, "expected a safetensors header that begins with '{'");
  enum rc rc = json_parse(&f->header, header, (size_t)header_bytes, LIMIT_SAFETENSORS_HEADER, err);
  if (rc != RC_OK) return rc;
  f->data = bytes + LENGTH_BYTES + header_bytes;
  f->data_bytes = len - LENGTH_BYTES - (size_t)header_bytes;
  const size_t members = json_length(f->header);
  if (members > LIMIT_TENSORS)
    return err_set(err, RC_INVALID, NULL, "expected at most %d tensors, got %zu", LIMIT_TENSORS, members);
  f->tensors = calloc(members + 1, sizeof *f->tensors); /* + 1: never of size 0 */
  f->by_name = calloc(members + 1, sizeof *f->by_name);
  if (!f->tensors || !f->by_name)
    return err_set(err, RC_NO_MEMORY, NULL, "an index of %zu tensors was refused memory", members);
  return read_tensors(f, err);
}

/* Takes over the mapping, also on failure. */
static enum rc open_bytes(struct st_file **out, const void *bytes, size_t len, void *map, struct err *err) {
  struct st_file *f = calloc(1, sizeof *f);
  if (!f) {
    if (map) munmap(map, len);
    return err_set(err, RC_NO_MEMORY, NULL, "a safetensors reader of %zu bytes was refused memory", sizeof *f);
  }
  f->map = map;
  f->map_bytes = len;
  const enum rc rc = parse(f, bytes, len, err);
  if (rc != RC_OK) {
    st_close(f);
    return rc;
  }
  *out = f;
  return RC_OK;
}

enum rc st_open_memory(struct st_file **out, const void *bytes, size_t len, struct err *err) {
  *out = NULL;
  return open_bytes(out, bytes, len, NULL, err);
}

/* The size of an open regular file of at least LENGTH_BYTES bytes. */
static enum rc size_of(size_t *out, int fd, const char *path, struct err *err) {
  struct stat st;
  if (fstat(fd, &st) != 0) return err_set_errno(err, RC_IO, "looking at %s", path);
  if (!S_ISREG(st.st_mode)) return err_set(err, RC_INVALID, NULL, "%s: expected a regular file", path);
  if (st.st_size < LENGTH_BYTES)
    return err_set(err, RC_INVALID, NULL,
                   "%s: expected a safetensors file, which begins with %d bytes of header length, got %jd bytes", path,
                   LENGTH_BYTES, (intmax_t)st.st_size);
  *out = (size_t)st.st_size;
  return RC_OK;
}

enum rc st_open_file(struct st_file **out, const char *path, struct err *err) {
  *out = NULL;
  const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a pipe in the file's place must not block */
  if (fd < 0) return err_set_errno(err, errno == ENOENT ? RC_NOT_FOUND : RC_IO, "opening %s", path);
  size_t len = 0;
  enum rc rc = size_of(&len, fd, path, err);
  if (rc == RC_OK) {
    void *map = mmap(NULL, len, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED)
      rc = err_set_errno(err, RC_IO, "mapping %zu bytes of %s", len, path);
    else
      rc = open_bytes(out, map, len, map, err);
  }
  if (rc != RC_OK) err_in_file(err, path);
  close(fd);
  return rc;
}

void st_close(struct st_file *f) {
  if (!f) return;
  for (size_t i = 0; i < f->shard_count; i++) st_close(f->shards[i]);
  free(f->shards);
  json_free(f->header);
  free(f->tensors);
  free(f->by_name);
  if (f->map) munmap(f->map, f->map_bytes);
  free(f);
}

size_t st_count(const struct st_file *f) { return f->count; }

const struct st_tensor *st_at(const struct st_file *f, size_t index) {
  return index < f->count ? &f->tensors[index] : NULL;
}

static int compare_key(const void *key, const void *member) {
  return strcmp(key, (*(const struct st_tensor *const *)member)->name);
}

const struct st_tensor *st_find(const struct st_file *f, const char *name) {
  const struct st_tensor *const *found = bsearch(name, f->by_name, f->count, sizeof *f->by_name, compare_key);
  return found ? *found : NULL;
}

/* The file that holds the tensor. */
static const struct st_file *holder(const struct st_file *f, const struct st_tensor *t) {
  return f->shard_count > 0 ? f->shards[t->shard] : f;
}

const void *st_data(const struct st_file *f, const struct st_tensor *t) { return holder(f, t)->data + t->offset; }

/* Advice only: what the kernel makes of it changes no result. */
static void advise(const struct st_file *f, const struct st_tensor *t, int advice) {
  if (!holder(f, t)->map) return;
  const size_t page = (size_t)sysconf(_SC_PAGESIZE);
  const uintptr_t begin = (uintptr_t)st_data(f, t) / page * page, end = (uintptr_t)st_data(f, t) + t->bytes;
  (void)madvise((void *)begin, end - begin, advice);
}

void st_drop(const struct st_file *f, const struct st_tensor *t) { advise(f, t, MADV_DONTNEED); }
void st_prefetch(const struct st_file *f, const struct st_tensor *t) { advise(f, t, MADV_WILLNEED); }

const char *st_metadata(const struct st_file *f, const char *key) {
  return json_word(json_get(json_get(f->header, METADATA), key));
}
