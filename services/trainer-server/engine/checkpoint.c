/* Writes, reads, checks and prunes checkpoints.
 * The optimizer's file is streamed from the engine's memory: a copy would need as much again as masters and moments. */
#include "services/trainer-server/engine/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/json/json.h"
#include "common/safetensors/progress.h"
#include "common/threads/pool.h"
#include "services/trainer-server/engine/model_files.h"
#include "services/trainer-server/fault.h"

enum { STATE_FILE_MAX = 64 << 20, LATEST_MAX = 512, SEAL_MAX = 96, BYTES_AT_ONCE = 4 << 20, READ_ALONE = 1 << 16 };
static const int64_t VERSION_MAX = 1000000000000000;

static const char *const array_prefixes[] = {"master.", "moment1.", "moment2.", "moment1_max.", "moment2_max."};
static const char partial_prefix[] = ".partial-";
static const char seal_format[] =
    ",\"state_digest\":\"%s\"}"; /* the end of trainer_state.json: over all bytes before it */

void round_history_add(struct round_history *h, const struct round_record *records, size_t count) {
  if (count == 0) return;
  const size_t taken = count < ROUNDS_RECORDED ? count : ROUNDS_RECORDED, room = ROUNDS_RECORDED - taken;
  const size_t stay = h->count < room ? h->count : room;
  memmove(h->items, h->items + (h->count - stay), stay * sizeof *h->items);
  memcpy(h->items + stay, records + (count - taken), taken * sizeof *h->items);
  h->count = stay + taken;
}

/* As text: a JSON integer ends at 2^63. */
static void write_u64(struct json_writer *w, const char *key, uint64_t value) {
  char text[24];
  snprintf(text, sizeof text, "%" PRIu64, value);
  json_kv_string(w, key, text);
}

static void write_state(const struct checkpoint_meta *meta, const struct digest *optimizer, struct buf *out) {
  struct json_writer w;
  char hex[DIGEST_HEX_MAX];
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "run", meta->run);
  json_kv_int(&w, "version", meta->version);
  digest_hex(hex, &meta->digest);
  json_kv_string(&w, "digest", hex);
  digest_hex(hex, optimizer);
  json_kv_string(&w, "optimizer_digest", hex);
  json_kv_string(&w, "step_id", meta->step_id);
  digest_hex(hex, &meta->step_request);
  json_kv_string(&w, "step_request", hex);
  write_u64(&w, "seed", meta->seed);
  write_u64(&w, "epoch", meta->epoch);
  write_u64(&w, "fence", meta->fence);
  json_kv_int(&w, "optimizer_steps", meta->optimizer_steps);
  if (meta->start.from != START_UNNAMED) {
    json_key(&w, "start");
    run_start_write(&meta->start, &w);
  }
  json_key(&w, "training");
  training_config_write(&meta->training, &w);
  json_key(&w, "history");
  json_array_begin(&w);
  for (size_t i = 0; i < meta->history_count; i++) {
    const struct round_record *h = &meta->history[i];
    json_object_begin(&w);
    json_kv_int(&w, "version", h->version);
    digest_hex(hex, &h->digest);
    json_kv_string(&w, "digest", hex);
    json_kv_f64(&w, "loss", h->loss);
    json_kv_f64(&w, "grad_norm", h->grad_norm);
    json_kv_f64(&w, "lr", h->lr);
    if (h->kl_coefficient != 0) json_kv_f64(&w, "kl_coefficient", h->kl_coefficient);
    json_kv_int(&w, "tokens", h->tokens);
    json_kv_bool(&w, "skipped", h->skipped);
    json_object_end(&w);
  }
  json_array_end(&w);
  struct digest seal;
  digest_of(&seal, out->data, out->len);
  digest_hex(hex, &seal);
  buf_printf(out, seal_format, hex);
}

static int array_count(const struct checkpoint_arrays *arrays) {
  return arrays->moments8 ? CHECKPOINT_ARRAYS_8BIT : CHECKPOINT_ARRAYS;
}

/* A parameter's part of an array. */
struct array_part {
  enum st_dtype dtype;
  size_t at, bytes; /* within the array */
  int64_t rows, cols;
};

static struct array_part array_part(const struct checkpoint_arrays *arrays, const struct model *m, int which, int i) {
  const struct param *q = &m->params.items[i];
  const bool codes = arrays->moments8 && (which == CHECKPOINT_MOMENT1 || which == CHECKPOINT_MOMENT2);
  if (codes) return (struct array_part){ST_U8, q->offset, q->count, q->rows, q->cols};
  if (which < CHECKPOINT_ARRAYS)
    return (struct array_part){ST_F32, q->offset * sizeof(float), q->count * sizeof(float), q->rows, q->cols};
  const size_t first = moment_block_first(&m->params, i), blocks = moment_block_end(&m->params, i) - first;
  return (struct array_part){ST_F32, first * sizeof(float), blocks * sizeof(float), 1, (int64_t)blocks};
}

static size_t optimizer_file_bytes(const struct model *m, const struct checkpoint_arrays *arrays) {
  size_t sum = 0;
  for (int a = 0; a < array_count(arrays); a++)
    for (int i = 0; i < m->params.count; i++) sum += array_part(arrays, m, a, i).bytes;
  return sum;
}

/* The index of optimizer.safetensors: masters, first and second moments of every parameter, in table order; of moments
 * in 8 bits the codes, and then what is largest in their blocks. */
static enum rc optimizer_header(struct buf *out, const struct model *m, const struct checkpoint_arrays *arrays,
                                struct err *err) {
  const struct param_table *p = &m->params;
  const size_t n = (size_t)p->count * (size_t)array_count(arrays);
  struct st_entry *entries = calloc(n, sizeof *entries);
  char(*names)[ST_NAME_MAX] = calloc(n, sizeof *names);
  enum rc rc = RC_OK;
  if (!entries || !names)
    rc = err_set(err, RC_NO_MEMORY, NULL, "the optimizer's index of %zu tensors was refused memory", n);
  for (size_t i = 0; rc == RC_OK && i < n; i++) {
    const int which = (int)(i / (size_t)p->count), param = (int)(i % (size_t)p->count);
    const struct array_part part = array_part(arrays, m, which, param);
    snprintf(names[i], sizeof names[i], "%s%s", array_prefixes[which], p->items[param].name);
    entries[i] = (struct st_entry){.name = names[i], .dtype = part.dtype, .dims = 2, .shape = {part.rows, part.cols}};
  }
  if (rc == RC_OK) rc = st_write_header(out, entries, n, NULL, err);
  free(names);
  free(entries);
  return rc;
}

/* A part of one of the optimizer's arrays into the file, and into the digest. */
static bool write_part(FILE *file, struct digest_state *sum, const struct ops *ops,
                       const struct checkpoint_arrays *arrays, const char *values, size_t bytes) {
  enum { AT_ONCE = 1 << 16 };
  char place[AT_ONCE]; /* of a device's values */
  const size_t most = ops->host_memory ? BYTES_AT_ONCE : AT_ONCE;
  bool good = true;
  for (size_t i = 0; good && i < bytes;) {
    const size_t n = bytes - i < most ? bytes - i : most;
    const void *part = ops_fetch(ops, place, values + i, n);
    good = fwrite(part, 1, n, file) == n;
    digest_update(sum, part, n);
    arrays->done(arrays->context, values + i, n);
    i += n;
  }
  return good;
}

void *checkpoint_array(struct optimizer *o, int which) {
  const struct moments8 e = optimizer_moments8(o);
  switch (which) {
    case CHECKPOINT_MASTERS: return optimizer_masters(o);
    case CHECKPOINT_MOMENT1: return e.m ? (void *)e.m : optimizer_moment1(o);
    case CHECKPOINT_MOMENT2: return e.v ? (void *)e.v : optimizer_moment2(o);
    case CHECKPOINT_MAX1: return e.m_max;
    default: return e.v_max;
  }
}

static enum rc whole_collect(void *context, int which, const void **out, struct err *err) {
  (void)err;
  *out = checkpoint_array(context, which);
  return RC_OK;
}

static void *whole_room(void *context, int which) { return checkpoint_array(context, which); }

static enum rc whole_spread(void *context, int which, struct err *err) {
  (void)context, (void)which, (void)err; /* it was read to where it belongs */
  return RC_OK;
}

static void whole_done(void *context, const void *values, size_t bytes) {
  optimizer_done_with(context, values, bytes);
}

struct checkpoint_arrays checkpoint_arrays_of(struct optimizer *o) {
  return (struct checkpoint_arrays){.context = o,
                                    .moments8 = optimizer_moments8(o).m,
                                    .collect = whole_collect,
                                    .room = whole_room,
                                    .spread = whole_spread,
                                    .done = whole_done};
}

/* Neither atomic nor durable by itself: the folder that it lies in is synced, then renamed, once it is whole.  digest:
 * SHA-256 of the tensors' bytes. */
static enum rc write_optimizer(const char *path, const struct model *m, const struct checkpoint_arrays *arrays,
                               struct digest *digest, struct err *err) {
  const struct param_table *p = &m->params;
  struct buf header = BUF_INIT;
  FILE *file = NULL;
  struct digest_state sum;
  struct progress progress;
  char what[LIMIT_PATH_MAX + 16];
  snprintf(what, sizeof what, "writing %s", path);
  progress_begin(&progress, what, optimizer_file_bytes(m, arrays));
  digest_begin(&sum);
  enum rc rc = optimizer_header(&header, m, arrays, err);
  if (rc != RC_OK) goto out;
  if (!(file = fopen(path, "wbe"))) {
    rc = err_set_errno(err, RC_IO, "creating %s", path);
    goto out;
  }
  bool good = fwrite(header.data, 1, header.len, file) == header.len;
  for (int a = 0; good && a < array_count(arrays); a++) {
    const void *array;
    if ((rc = arrays->collect(arrays->context, a, &array, err)) != RC_OK) goto out;
    for (int i = 0; good && i < p->count; i++) {
      const struct array_part part = array_part(arrays, m, a, i);
      good = write_part(file, &sum, m->ops, arrays, (const char *)array + part.at, part.bytes);
      progress_add(&progress, part.bytes);
    }
  }
  if (!good || fflush(file) != 0) rc = err_set_errno(err, RC_IO, "writing %s", path);
  if (rc == RC_OK) rc = m->ops->status(m->ops, err);
out:
  if (file && fclose(file) != 0 && rc == RC_OK) rc = err_set_errno(err, RC_IO, "closing %s", path);
  digest_end(digest, &sum);
  buf_free(&header);
  return rc;
}

static enum rc write_named(const char *dir, const char *name, const void *bytes, size_t len, struct err *err) {
  char path[LIMIT_PATH_MAX];
  enum rc rc = path_format(path, err, "%s/%s", dir, name);
  return rc == RC_OK ? file_write(path, bytes, len, err) : rc;
}

/* Piece by piece, so that the pages of a mapped version need not be in memory together. */
static enum rc write_weights(const char *dir, const struct buf *bytes, const struct checkpoint_arrays *arrays,
                             struct err *err) {
  enum { AT_ONCE = BYTES_AT_ONCE };
  char path[LIMIT_PATH_MAX];
  enum rc rc = path_format(path, err, "%s/model.safetensors", dir);
  if (rc != RC_OK) return rc;
  FILE *file = fopen(path, "wbe");
  if (!file) return err_set_errno(err, RC_IO, "creating %s", path);
  bool good = true;
  for (size_t at = 0, n; good && at < bytes->len; at += n) {
    n = bytes->len - at < AT_ONCE ? bytes->len - at : AT_ONCE;
    good = fwrite(bytes->data + at, 1, n, file) == n;
    if (arrays->weights_done) arrays->weights_done(arrays->weights, bytes->data + at, n);
  }
  if (!good || fflush(file) != 0) rc = err_set_errno(err, RC_IO, "writing %s", path);
  if (fclose(file) != 0 && rc == RC_OK) rc = err_set_errno(err, RC_IO, "closing %s", path);
  return rc;
}

static enum rc write_latest(const char *state_dir, const char *run, int64_t version, struct err *err) {
  char latest[LATEST_MAX], path[LIMIT_PATH_MAX];
  snprintf(latest, sizeof latest, "%s/v%" PRId64 "\n", run, version);
  enum rc rc = path_format(path, err, "%s/latest", state_dir);
  return rc == RC_OK ? file_write_atomic(path, latest, strlen(latest), err) : rc;
}

/* The same version may be there: a step that was replayed, or taken again after a crash before `latest` named it.  It
 * is moved aside first: removing it takes a while, in which there would be neither. */
static enum rc put_in_place(const char *partial, const char *final, struct err *err) {
  char aside[LIMIT_PATH_MAX];
  if (!file_exists(final)) return file_rename_durable(partial, final, err);
  enum rc rc = path_format(aside, err, "%s-replaced", partial);
  if (rc == RC_OK) rc = file_remove_tree(aside, err);
  if (rc == RC_OK) rc = file_rename_durable(final, aside, err);
  if (rc == RC_OK) rc = file_rename_durable(partial, final, err);
  if (rc == RC_OK) rc = file_remove_tree(aside, err);
  return rc;
}

/* Everything that a checkpoint holds, in a folder that has not got its name yet. */
static enum rc write_partial(const char *partial, const char *model_dir, const struct checkpoint_meta *meta,
                             const struct model *m, const struct checkpoint_arrays *arrays,
                             const struct buf *weights_bytes, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct buf state = BUF_INIT;
  struct digest optimizer;
  enum rc rc = file_make_dirs(partial, err);
  if (rc == RC_OK) rc = model_files_copy(model_dir, partial, err);
  if (rc == RC_OK) rc = model_files_write_index(partial, weights_bytes, err);
  if (rc == RC_OK) rc = write_weights(partial, weights_bytes, arrays, err);
  if (rc == RC_OK) rc = path_format(path, err, "%s/optimizer.safetensors", partial);
  fault_die(TRAINER_FAULT_DIE_IN_CHECKPOINT, meta->version - 1);
  if (rc == RC_OK) rc = write_optimizer(path, m, arrays, &optimizer, err);
  if (rc != RC_OK) return rc;
  write_state(meta, &optimizer, &state);
  rc = buf_check(&state, err);
  if (rc == RC_OK) rc = write_named(partial, "trainer_state.json", state.data, state.len, err);
  if (rc == RC_OK) rc = file_sync_folder(partial, err);
  buf_free(&state);
  return rc;
}

enum rc checkpoint_write(const char *state_dir, const char *model_dir, const struct checkpoint_meta *meta,
                         const struct model *m, const struct checkpoint_arrays *arrays, const struct buf *weights_bytes,
                         struct err *err) {
  char final[LIMIT_PATH_MAX], partial[LIMIT_PATH_MAX];
  enum rc rc = path_format(final, err, "%s/%s/v%" PRId64, state_dir, meta->run, meta->version);
  if (rc == RC_OK)
    rc = path_format(partial, err, "%s/%s/%sv%" PRId64, state_dir, meta->run, partial_prefix, meta->version);
  if (rc == RC_OK) rc = file_remove_tree(partial, err);
  if (rc != RC_OK) return rc;
  rc = write_partial(partial, model_dir, meta, m, arrays, weights_bytes, err);
  if (rc != RC_OK) {
    file_remove_tree(partial, NULL); /* on a full disk it would be in its own way */
    return rc;
  }
  rc = put_in_place(partial, final, err);
  return rc == RC_OK ? write_latest(state_dir, meta->run, meta->version, err) : rc;
}

static enum rc read_history(struct checkpoint *c, const struct json *value, struct err *err) {
  size_t n = json_length(value);
  c->history = calloc(n ? n : 1, sizeof *c->history);
  if (!c->history) return err_set(err, RC_NO_MEMORY, NULL, "a history of %zu rounds was refused memory", n);
  for (size_t i = 0; i < n; i++) {
    struct round_record *h = &c->history[i];
    const struct json_field fields[] = {
        {.name = "version", .kind = FIELD_I64, .target = &h->version, .required = true},
        {.name = "digest", .kind = FIELD_DIGEST, .target = &h->digest, .required = true},
        {.name = "loss", .kind = FIELD_F64, .target = &h->loss},
        {.name = "grad_norm", .kind = FIELD_F64, .target = &h->grad_norm},
        {.name = "lr", .kind = FIELD_F64, .target = &h->lr},
        {.name = "kl_coefficient", .kind = FIELD_F64, .target = &h->kl_coefficient},
        {.name = "tokens", .kind = FIELD_I64, .target = &h->tokens},
        {.name = "skipped", .kind = FIELD_BOOL, .target = &h->skipped},
    };
    enum rc rc =
        json_fields(json_at(value, i), fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, &c->arena, err);
    if (rc != RC_OK) return rc;
  }
  c->meta.history = c->history;
  c->meta.history_count = n;
  return RC_OK;
}

/* Every bit of the file counts: a step count that is off by one loads as well as the right one. */
static enum rc check_seal(const struct buf *bytes, const char *path, struct err *err) {
  char hex[DIGEST_HEX_MAX], seal[SEAL_MAX];
  struct digest digest;
  const size_t length = (size_t)snprintf(seal, sizeof seal, seal_format, "") + 2 * sizeof digest.bytes;
  const size_t covered = bytes->len >= length ? bytes->len - length : 0;
  digest_of(&digest, bytes->data, covered);
  digest_hex(hex, &digest);
  snprintf(seal, sizeof seal, seal_format, hex);
  if (bytes->len > length && memcmp(bytes->data + covered, seal, length) == 0) return RC_OK;
  return err_set(err, RC_CORRUPT, NULL, "%s: expected it to end with the digest of its %zu bytes, %s", path, covered,
                 hex);
}

static enum rc read_fields(struct checkpoint *c, const struct json *root, struct digest *optimizer, struct err *err) {
  const char *run = "", *step_id = "";
  const struct json *start = NULL, *training = NULL, *history = NULL, *seal = NULL;
  const struct json_field fields[] = {
      {.name = "run", .kind = FIELD_STRING, .target = &run, .required = true, .min = 1, .max = LIMIT_NAME_MAX - 1},
      {.name = "version", .kind = FIELD_I64, .target = &c->meta.version, .required = true, .min = 0, .max = 1e15},
      {.name = "digest", .kind = FIELD_DIGEST, .target = &c->meta.digest, .required = true},
      {.name = "optimizer_digest", .kind = FIELD_DIGEST, .target = optimizer, .required = true},
      {.name = "step_id", .kind = FIELD_STRING, .target = &step_id, .required = true, .max = LIMIT_NAME_MAX - 1},
      {.name = "step_request", .kind = FIELD_DIGEST, .target = &c->meta.step_request, .required = true},
      {.name = "seed", .kind = FIELD_U64, .target = &c->meta.seed, .required = true},
      {.name = "epoch", .kind = FIELD_U64, .target = &c->meta.epoch, .required = true},
      {.name = "fence", .kind = FIELD_U64, .target = &c->meta.fence, .required = true},
      {.name = "optimizer_steps", .kind = FIELD_I64, .target = &c->meta.optimizer_steps, .required = true, .max = 1e15},
      {.name = "start", .kind = FIELD_VALUE, .target = &start},
      {.name = "training", .kind = FIELD_VALUE, .target = &training, .required = true},
      {.name = "history", .kind = FIELD_VALUE, .target = &history, .required = true},
      {.name = "state_digest", .kind = FIELD_VALUE, .target = &seal, .required = true},
  };
  enum rc rc = json_fields(root, fields, sizeof fields / sizeof fields[0], UNKNOWN_REFUSED, &c->arena, err);
  if (rc != RC_OK) return rc;
  snprintf(c->meta.run, sizeof c->meta.run, "%s", run);
  snprintf(c->meta.step_id, sizeof c->meta.step_id, "%s", step_id);
  if (start && (rc = run_start_read(&c->meta.start, start, &c->arena, err)) != RC_OK) return rc;
  training_config_defaults(&c->meta.training);
  rc = training_config_read(&c->meta.training, training, &c->arena, err);
  return rc == RC_OK ? read_history(c, history, err) : rc;
}

static enum rc read_state(struct checkpoint *c, struct digest *optimizer, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct buf bytes = BUF_INIT;
  struct json *root = NULL;
  enum rc rc = path_format(path, err, "%s/trainer_state.json", c->dir);
  if (rc == RC_OK) rc = file_read(&bytes, path, STATE_FILE_MAX, err);
  if (rc == RC_OK) rc = check_seal(&bytes, path, err);
  if (rc == RC_OK) rc = json_parse(&root, bytes.data, bytes.len, STATE_FILE_MAX, err);
  if (rc == RC_OK) rc = read_fields(c, root, optimizer, err);
  json_free(root);
  buf_free(&bytes);
  if (rc != RC_INVALID) return rc;
  err_in_file(err, "it is whole, and of another version of the trainer-server: start that one, or a newer one");
  return RC_UNSUPPORTED;
}

/* what: the file; have was computed from what was read, want was recorded. */
static enum rc check_digest(const char *what, const struct digest *have, const struct digest *want, struct err *err) {
  char have_hex[DIGEST_HEX_MAX], want_hex[DIGEST_HEX_MAX];
  if (digest_equal(have, want)) return RC_OK;
  digest_hex(have_hex, have);
  digest_hex(want_hex, want);
  return err_set(err, RC_CORRUPT, NULL, "%s: expected digest %s, found %s", what, want_hex, have_hex);
}

/* And from a file, of any alignment: one thread digests the bytes, another copies them to where they belong. */
struct part_read {
  const struct ops *ops;
  struct digest_state *sum;
  const char *from;
  char *to;
  size_t bytes;
};

enum { READ_DIGESTED, READ_COPIED, READ_JOBS };

static void read_job(void *context, int job) {
  const struct part_read *r = context;
  if (job == READ_DIGESTED)
    digest_update(r->sum, r->from, r->bytes);
  else
    r->ops->upload(r->ops, r->to, r->from, r->bytes);
}

static void read_part(char *out, struct digest_state *sum, const struct ops *ops,
                      const struct checkpoint_arrays *arrays, const char *bytes, size_t count) {
  for (size_t i = 0, n; i < count; i += n) {
    n = count - i < BYTES_AT_ONCE ? count - i : BYTES_AT_ONCE;
    struct part_read r = {.ops = ops, .sum = sum, .from = bytes + i, .to = out + i, .bytes = n};
    if (ops->host_memory && n > READ_ALONE) {
      pool_run(ops->pool, read_job, &r, READ_JOBS);
    } else {
      for (int job = 0; job < READ_JOBS; job++) read_job(&r, job);
    }
    arrays->done(arrays->context, out + i, n);
  }
}

/* The next part begins to come while this one is worked on. */
static void prefetch_part(const struct st_file *file, const struct model *m, const struct checkpoint_arrays *arrays,
                          int which, int param) {
  char name[ST_NAME_MAX];
  if (param == m->params.count) which++, param = 0;
  if (which == array_count(arrays)) return;
  snprintf(name, sizeof name, "%s%s", array_prefixes[which], m->params.items[param].name);
  const struct st_tensor *t = st_find(file, name);
  if (t) st_prefetch(file, t);
}

static enum rc read_optimizer(const char *dir, const struct model *m, const struct checkpoint_arrays *arrays,
                              const struct digest *recorded, struct err *err) {
  char path[LIMIT_PATH_MAX], name[ST_NAME_MAX];
  struct st_file *file = NULL;
  struct digest_state sum;
  struct digest digest;
  struct progress progress;
  char what[LIMIT_PATH_MAX + 16];
  digest_begin(&sum);
  enum rc rc = path_format(path, err, "%s/optimizer.safetensors", dir);
  if (rc == RC_OK) rc = st_open_file(&file, path, err);
  snprintf(what, sizeof what, "reading %s", rc == RC_OK ? path : "");
  progress_begin(&progress, what, optimizer_file_bytes(m, arrays));
  for (int a = 0; rc == RC_OK && a < array_count(arrays); a++) {
    char *array = arrays->room(arrays->context, a);
    for (int i = 0; rc == RC_OK && i < m->params.count; i++) {
      const struct array_part part = array_part(arrays, m, a, i);
      snprintf(name, sizeof name, "%s%s", array_prefixes[a], m->params.items[i].name);
      const struct st_tensor *t = st_find(file, name);
      if (!t || t->dtype != part.dtype || t->bytes != part.bytes) {
        rc = err_set(err, RC_CORRUPT, NULL, "%s: expected %zu bytes of %s in %s", path, part.bytes,
                     st_dtype_name(part.dtype), name);
      } else {
        prefetch_part(file, m, arrays, a, i + 1);
        read_part(array + part.at, &sum, m->ops, arrays, st_data(file, t), part.bytes);
        st_drop(file, t);
        progress_add(&progress, t->bytes);
      }
    }
    if (rc == RC_OK) rc = arrays->spread(arrays->context, a, err);
  }
  digest_end(&digest, &sum);
  st_close(file);
  return rc == RC_OK ? check_digest(path, &digest, recorded, err) : rc;
}

static enum rc read_weights(const struct checkpoint *c, struct weights *w, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct st_file *file = NULL;
  struct digest digest;
  enum rc rc = path_format(path, err, "%s/model.safetensors", c->dir);
  if (rc == RC_OK) rc = st_open_file(&file, path, err);
  if (rc == RC_OK) rc = weights_load(w, file, path, err);
  st_close(file);
  if (rc == RC_OK) rc = weights_digest(&digest, w, err);
  return rc == RC_OK ? check_digest(path, &digest, &c->meta.digest, err) : rc;
}

/* "<run>/v<version>\n", and nothing else. */
static bool latest_parse(const char *text, char run[LIMIT_NAME_MAX], int64_t *version) {
  int end = 0;
  _Static_assert(LIMIT_NAME_MAX == 128, "the width in the format below");
  return sscanf(text, "%127[^/\n]/v%" SCNd64 "%n", run, version, &end) == 2 && strcmp(text + end, "\n") == 0 &&
         *version >= 0 && *version <= VERSION_MAX;
}

static enum rc read_latest(const char *state_dir, char run[LIMIT_NAME_MAX], int64_t *version, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct buf text = BUF_INIT;
  enum rc rc = path_format(path, err, "%s/latest", state_dir);
  if (rc == RC_OK) rc = file_read(&text, path, LATEST_MAX, err);
  if (rc == RC_TOO_LARGE || (rc == RC_OK && !latest_parse(text.data, run, version)))
    rc = err_set(err, RC_CORRUPT, NULL, "%s: expected \"<run>/v<version>\", got \"%.80s\"", path,
                 text.data ? text.data : "something longer");
  buf_free(&text);
  return rc;
}

static enum rc check_identity(const struct checkpoint *c, const char *run, int64_t version, struct err *err) {
  if (strcmp(c->meta.run, run) == 0 && c->meta.version == version) return RC_OK;
  return err_set(err, RC_CORRUPT, NULL, "trainer_state.json is of run %s, version %" PRId64, c->meta.run,
                 c->meta.version);
}

/* A fault of a stored checkpoint is never the caller's input, so it becomes RC_CORRUPT: only refused memory, failed
 * reading, lost ranks and what another version wrote keep their codes. */
static enum rc damage_of(enum rc rc, const char *dir, const struct err *cause, struct err *err) {
  if (rc != RC_NO_MEMORY && rc != RC_IO && rc != RC_UNAVAILABLE && rc != RC_UNSUPPORTED) rc = RC_CORRUPT;
  return err_set(err, rc, NULL, "checkpoint %s %s: %.380s", dir, rc == RC_CORRUPT ? "is damaged" : "cannot be read",
                 cause->message);
}

static enum rc load_version(struct checkpoint *c, const char *state_dir, const char *run, int64_t version,
                            const struct model *m, struct weights *w, const struct checkpoint_arrays *arrays,
                            struct err *err) {
  struct digest optimizer;
  struct err cause = {0};
  memset(c, 0, sizeof *c);
  enum rc rc = path_format(c->dir, err, "%s/%s/v%" PRId64, state_dir, run, version);
  if (rc != RC_OK) return rc;
  rc = read_state(c, &optimizer, &cause);
  if (rc == RC_OK) rc = check_identity(c, run, version, &cause);
  if (rc == RC_OK && c->meta.training.moments8 != arrays->moments8) {
    rc = err_set(err, RC_UNSUPPORTED, "optimizer-moments",
                 "checkpoint %s holds %s moments, and this trainer keeps %s ones: start it with --optimizer-moments "
                 "%s, or with a new --state-dir",
                 c->dir, training_moments_name(!arrays->moments8), training_moments_name(arrays->moments8),
                 training_moments_name(!arrays->moments8));
    checkpoint_free(c);
    return rc;
  }
  if (rc == RC_OK) rc = read_weights(c, w, &cause);
  if (rc == RC_OK) rc = read_optimizer(c->dir, m, arrays, &optimizer, &cause);
  if (rc == RC_OK) return RC_OK;
  rc = damage_of(rc, c->dir, &cause, err);
  checkpoint_free(c);
  return rc;
}

/* Is it the name of a version's folder, as we write it? */
static bool version_of(const char *name, int64_t *version) {
  char again[32];
  if (sscanf(name, "v%" SCNd64, version) != 1 || *version < 0) return false;
  snprintf(again, sizeof again, "v%" PRId64, *version);
  return strcmp(again, name) == 0;
}

/* The newest version of the run below `below` that has a folder; -1: none. */
static enum rc version_below(const char *state_dir, const char *run, int64_t below, int64_t *out, struct err *err) {
  char path[LIMIT_PATH_MAX];
  *out = -1;
  enum rc rc = path_format(path, err, "%s/%s", state_dir, run);
  if (rc != RC_OK) return rc;
  DIR *dir = opendir(path);
  if (!dir) return errno == ENOENT ? RC_OK : err_set_errno(err, RC_IO, "listing %s", path);
  for (struct dirent *e; (e = readdir(dir));) {
    int64_t version;
    if (version_of(e->d_name, &version) && version < below && version > *out) *out = version;
  }
  closedir(dir);
  return RC_OK;
}

enum rc checkpoint_load(struct checkpoint *out, const char *state_dir, const struct model *m, struct weights *w,
                        const struct checkpoint_arrays *arrays, struct err *err) {
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct err damage = {0};
  memset(out, 0, sizeof *out);
  enum rc rc = read_latest(state_dir, run, &version, err);
  if (rc != RC_OK) return rc;
  for (const int64_t newest = version;;) {
    struct err cause = {0};
    rc = load_version(out, state_dir, run, version, m, w, arrays, &cause);
    if (version == newest) damage = cause;
    if (rc == RC_OK) break;
    if (rc != RC_CORRUPT) {
      if (err) *err = cause;
      return rc;
    }
    if ((rc = version_below(state_dir, run, version, &version, err)) != RC_OK) return rc;
    if (version < 0)
      return err_set(err, RC_CORRUPT, NULL,
                     "no checkpoint of run %s is whole: %.300s; with a new --state-dir a run that began with the model "
                     "folder's weights is replayed",
                     run, damage.message);
  }
  snprintf(out->damage, sizeof out->damage, "%s", damage.message);
  return RC_OK;
}

enum rc checkpoint_read_meta(struct checkpoint *out, const char *state_dir, struct err *err) {
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest optimizer;
  memset(out, 0, sizeof *out);
  enum rc rc = read_latest(state_dir, run, &version, err);
  if (rc == RC_OK) rc = path_format(out->dir, err, "%s/%s/v%" PRId64, state_dir, run, version);
  if (rc == RC_OK) rc = read_state(out, &optimizer, err);
  if (rc != RC_OK) checkpoint_free(out);
  return rc;
}

enum rc checkpoint_settle(const struct checkpoint *c, const char *state_dir, int64_t keep, struct err *err) {
  enum rc rc = c->damage[0] ? write_latest(state_dir, c->meta.run, c->meta.version, err) : RC_OK;
  return rc == RC_OK
             ? checkpoint_prune(state_dir, c->meta.run, c->meta.version, keep, c->meta.training.reference_every, err)
             : rc;
}

bool checkpoint_exists(const char *state_dir, const char *run, int64_t version) {
  char path[LIMIT_PATH_MAX];
  return path_format(path, NULL, "%s/%s/v%" PRId64 "/trainer_state.json", state_dir, run, version) == RC_OK &&
         file_exists(path);
}

enum rc checkpoint_load_weights(const char *state_dir, const char *run, int64_t version, struct weights *w,
                                struct err *err) {
  struct checkpoint c = {0};
  struct digest optimizer;
  struct err cause = {0};
  enum rc rc = path_format(c.dir, err, "%s/%s/v%" PRId64, state_dir, run, version);
  if (rc != RC_OK) return rc;
  rc = read_state(&c, &optimizer, &cause);
  if (rc == RC_OK) rc = check_identity(&c, run, version, &cause);
  if (rc == RC_OK) rc = read_weights(&c, w, &cause);
  if (rc != RC_OK) rc = damage_of(rc, c.dir, &cause, err);
  checkpoint_free(&c);
  return rc;
}

void checkpoint_free(struct checkpoint *c) {
  arena_free(&c->arena);
  free(c->history);
  memset(c, 0, sizeof *c);
}

/* ---- which of them stay ---- */

static const char kept_file[] = "kept.json", asked_prefix[] = "asked-";
/* Between asking for a checkpoint and removing it: guards the names asked-v<version> and v<version> against each
 * other. */
static pthread_mutex_t asking = PTHREAD_MUTEX_INITIALIZER;

/* No file says that nothing is named. */
static enum rc kept_forget(const char *dir, struct err *err) {
  char path[LIMIT_PATH_MAX];
  const enum rc rc = path_format(path, err, "%s/%s", dir, kept_file);
  if (rc != RC_OK || unlink(path) == 0 || errno == ENOENT) return rc;
  return err_set_errno(err, RC_IO, "removing %s", path);
}

static enum rc asked_path(char path[static LIMIT_PATH_MAX], const char *run_dir, int64_t version, struct err *err) {
  return path_format(path, err, "%s/%sv%" PRId64, run_dir, asked_prefix, version);
}

bool checkpoint_ask(const char *state_dir, const char *run, int64_t version) {
  char dir[LIMIT_PATH_MAX], path[LIMIT_PATH_MAX];
  struct err err = {0};
  const int64_t ms = clock_wall_ms(); /* as asked_since_ms; a file's own time follows steps of the machine's clock */
  const struct timespec times[] = {{.tv_nsec = UTIME_OMIT}, {ms / 1000, ms % 1000 * 1000000}};
  pthread_mutex_lock(&asking);
  const bool there = checkpoint_exists(state_dir, run, version);
  if (there) {
    enum rc rc = path_format(dir, &err, "%s/%s", state_dir, run);
    if (rc == RC_OK) rc = asked_path(path, dir, version, &err);
    const int fd = rc == RC_OK ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0644) : -1;
    if (rc == RC_OK && (fd < 0 || futimens(fd, times) != 0)) err_set_errno(&err, RC_IO, "writing %s", path);
    if (fd >= 0) close(fd);
    if (err.rc != RC_OK)
      log_warn("a step under way may remove version %" PRId64 " of run %s: %s", version, run, err.message);
  }
  pthread_mutex_unlock(&asking);
  return there;
}

/* What was asked for before that time and not since. */
static enum rc asked_forget(const char *run_dir, int64_t since_ms, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct stat st;
  enum rc rc = RC_OK;
  DIR *dir = opendir(run_dir);
  if (!dir) return errno == ENOENT ? RC_OK : err_set_errno(err, RC_IO, "listing %s", run_dir);
  pthread_mutex_lock(&asking);
  for (struct dirent *e; rc == RC_OK && (e = readdir(dir));) {
    if (strncmp(e->d_name, asked_prefix, sizeof asked_prefix - 1) != 0) continue;
    rc = path_format(path, err, "%s/%s", run_dir, e->d_name);
    if (rc != RC_OK || stat(path, &st) != 0) continue;
    const int64_t asked_ms = (int64_t)st.st_mtim.tv_sec * 1000 + st.st_mtim.tv_nsec / 1000000;
    if (asked_ms > clock_wall_ms() && utimensat(AT_FDCWD, path, NULL, 0) == 0) continue; /* by a clock that was ahead */
    if (asked_ms < since_ms && unlink(path) != 0) rc = err_set_errno(err, RC_IO, "removing %s", path);
  }
  pthread_mutex_unlock(&asking);
  closedir(dir);
  return rc;
}

enum rc checkpoint_keep(const char *state_dir, const char *run, const struct kept_checkpoints *kept, struct err *err) {
  char dir[LIMIT_PATH_MAX], path[LIMIT_PATH_MAX];
  struct buf text = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  json_kv_int(&w, "last", kept->last);
  json_kv_i32s(&w, "versions", kept->versions.items, kept->versions.count);
  json_object_end(&w);
  enum rc rc = path_format(dir, err, "%s/%s", state_dir, run);
  if (rc == RC_OK) rc = path_format(path, err, "%s/%s", dir, kept_file);
  if (rc == RC_OK) rc = buf_check(&text, err);
  if (rc == RC_OK && !kept->last && !kept->versions.count)
    rc = kept_forget(dir, err);
  else if (rc == RC_OK)
    rc = file_write_atomic(path, text.data, text.len, err);
  buf_free(&text);
  return rc == RC_OK ? asked_forget(dir, kept->asked_since_ms, err) : rc;
}

/* Takes a checkpoint its name, so that nobody finds it from here on, unless it was asked for. */
static enum rc unname(const char *run_dir, int64_t version, char unnamed[static LIMIT_PATH_MAX], bool *asked,
                      struct err *err) {
  char path[LIMIT_PATH_MAX];
  enum rc rc = asked_path(path, run_dir, version, err);
  pthread_mutex_lock(&asking);
  *asked = rc == RC_OK && file_exists(path);
  if (rc == RC_OK && !*asked) {
    rc = path_format(path, err, "%s/v%" PRId64, run_dir, version);
    if (rc == RC_OK) rc = path_format(unnamed, err, "%s/%sv%" PRId64, run_dir, partial_prefix, version);
    if (rc == RC_OK && rename(path, unnamed) != 0) rc = err_set_errno(err, RC_IO, "renaming %s", path);
  }
  pthread_mutex_unlock(&asking);
  return rc;
}

static enum rc kept_read(struct kept_checkpoints *kept, const char *run_dir, struct arena *arena, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct buf text = BUF_INIT;
  struct json *root = NULL;
  const struct json_field fields[] = {
      {.name = "last", .kind = FIELD_I64, .target = &kept->last, .required = true, .min = 0, .max = KEPT_VERSIONS_MAX},
      {.name = "versions",
       .kind = FIELD_I32_ARRAY,
       .target = &kept->versions,
       .required = true,
       .min = 0,
       .max = INT32_MAX,
       .count_max = KEPT_VERSIONS_MAX}};
  *kept = (struct kept_checkpoints){0};
  enum rc rc = path_format(path, err, "%s/%s", run_dir, kept_file);
  if (rc != RC_OK || !file_exists(path)) return rc;
  rc = file_read(&text, path, STATE_FILE_MAX, err);
  if (rc == RC_OK) rc = json_parse(&root, text.data, text.len, STATE_FILE_MAX, err);
  if (rc == RC_OK) rc = json_fields(root, fields, 2, UNKNOWN_REFUSED, arena, err);
  if (rc != RC_OK) err_in_file(err, path);
  json_free(root);
  buf_free(&text);
  return rc;
}

static int by_version(const void *a, const void *b) {
  const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
  return x < y ? -1 : x > y;
}

struct json_i32s checkpoint_versions(const char *state_dir, const char *run, struct arena *arena) {
  struct json_i32s found = {.items = arena_alloc(arena, KEPT_VERSIONS_MAX, sizeof *found.items)};
  char path[LIMIT_PATH_MAX];
  DIR *dir = found.items && path_format(path, NULL, "%s/%s", state_dir, run) == RC_OK ? opendir(path) : NULL;
  if (!dir) return found;
  for (struct dirent *e; found.count < KEPT_VERSIONS_MAX && (e = readdir(dir));) {
    int64_t version;
    if (version_of(e->d_name, &version) && version <= INT32_MAX) found.items[found.count++] = (int32_t)version;
  }
  closedir(dir);
  qsort(found.items, found.count, sizeof *found.items, by_version);
  return found;
}

/* "v0, v4" */
static void versions_list(struct buf *out, const char *state_dir, const char *run) {
  struct arena arena = ARENA_INIT;
  const struct json_i32s found = checkpoint_versions(state_dir, run, &arena);
  for (size_t i = 0; i < found.count; i++) buf_printf(out, "%sv%" PRId32, i ? ", " : "", found.items[i]);
  arena_free(&arena);
}

enum rc checkpoint_go_back(const char *state_dir, const char *name, struct err *err) {
  char text[LATEST_MAX], run[LIMIT_NAME_MAX];
  struct buf there = BUF_INIT;
  int64_t version;
  if ((size_t)snprintf(text, sizeof text, "%s\n", name) >= sizeof text || !latest_parse(text, run, &version))
    return err_set(err, RC_INVALID, "go-back", "--go-back: expected <run>/v<version>, as r1/v20, got \"%.80s\"", name);
  if (!checkpoint_exists(state_dir, run, version)) {
    versions_list(&there, state_dir, run);
    err_set(err, RC_NOT_FOUND, "go-back", "--go-back: there is no checkpoint %s in %s, of that run there are: %.400s",
            name, state_dir, there.len ? there.data : "none");
    buf_free(&there);
    return RC_NOT_FOUND;
  }
  const enum rc rc = write_latest(state_dir, run, version, err);
  if (rc == RC_OK) log_info("the next start begins from %s, and removes newer checkpoints of that run", name);
  return rc;
}

int64_t checkpoint_oldest(const char *state_dir, const char *run, int64_t keep) {
  struct arena arena = ARENA_INIT;
  struct kept_checkpoints kept = {0};
  char run_dir[LIMIT_PATH_MAX];
  int64_t oldest = 0;
  const struct json_i32s found = checkpoint_versions(state_dir, run, &arena);
  if (path_format(run_dir, NULL, "%s/%s", state_dir, run) == RC_OK) kept_read(&kept, run_dir, &arena, NULL);
  if (kept.last) keep = kept.last;
  for (size_t i = found.count; i-- > 0 && keep-- > 0 && found.items[i] > 0;) oldest = found.items[i];
  arena_free(&arena);
  return oldest;
}

static bool is_named(const struct kept_checkpoints *kept, int64_t version) {
  for (size_t i = 0; i < kept->versions.count; i++)
    if (kept->versions.items[i] == version) return true;
  return false;
}

/* What half-written ones left, and what is newer than `newest`. */
static enum rc sweep(const char *run_dir, int64_t newest, struct err *err) {
  char path[LIMIT_PATH_MAX];
  enum rc rc = RC_OK;
  DIR *dir = opendir(run_dir);
  if (!dir) return err_set_errno(err, RC_IO, "listing %s", run_dir);
  for (struct dirent *e; rc == RC_OK && (e = readdir(dir));) {
    int64_t version;
    const bool partial = strncmp(e->d_name, partial_prefix, sizeof partial_prefix - 1) == 0;
    if (!partial && !(version_of(e->d_name, &version) && version > newest)) continue;
    rc = path_format(path, err, "%s/%s", run_dir, e->d_name);
    if (rc == RC_OK) rc = file_remove_tree(path, err);
  }
  closedir(dir);
  return rc;
}

enum rc checkpoint_prune(const char *state_dir, const char *run, int64_t newest, int64_t keep, int32_t reference_every,
                         struct err *err) {
  char run_dir[LIMIT_PATH_MAX], path[LIMIT_PATH_MAX];
  struct arena arena = ARENA_INIT;
  struct kept_checkpoints kept;
  struct err cause = {0};
  enum rc rc = path_format(run_dir, err, "%s/%s", state_dir, run);
  if (rc == RC_OK) rc = sweep(run_dir, newest, err);
  if (rc == RC_OK && kept_read(&kept, run_dir, &arena, &cause) != RC_OK) {
    log_warn("no checkpoint of run %s is removed, because it is not known which are to stay: %s", run, cause.message);
  } else if (rc == RC_OK) {
    const struct json_i32s found = checkpoint_versions(state_dir, run, &arena);
    int64_t reference = 0;
    if (kept.last) keep = kept.last;
    for (size_t i = found.count; rc == RC_OK && i-- > 0;) {
      const int64_t version = found.items[i];
      bool stays = keep-- > 0 || version == 0 || version == newest || is_named(&kept, version);
      if (!stays && version != reference) {
        rc = unname(run_dir, version, path, &stays, err);
        if (rc == RC_OK && !stays) rc = file_remove_tree(path, err);
      }
      if (stays) reference = checkpoint_reference(version, reference_every); /* of all from it to this one */
    }
  }
  arena_free(&arena);
  return rc;
}
