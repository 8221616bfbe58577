/* Computes a version's digest from the kernels' memory, and on the way writes what it is of, and what differs from an
 * earlier version.
 *
 * A tensor's digest cannot be computed in parts.  So in the host's memory each thread takes a tensor, the largest
 * first, and reads some rows of it out of the kernels' layout, digests them while they are in its caches, and so on.
 * Where memory is a device's, all threads read tensors until staging is full, and then digest a tensor each. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/weights_changes.h"
#include "common/model/network/weights_internal.h"

enum {
  DIGEST_ALIGN = 64,     /* elements: where tensors begin that lie in staging together */
  CHUNK_BYTES = 1 << 17, /* about what is read out before it is digested */
  TILE_ROWS = 16         /* rows are read out this many at once */
};

/* What differs from an earlier version, as far as it is known. */
struct changes_job {
  const char *base;
  char *bytes;                   /* [header, then all tensors]: a tensor's lie where it would lie whole; NULL: not asked
                                  * for */
  size_t header, budget;         /* bytes: budget of all tensors */
  struct change_record *records; /* [params.count] */
  atomic_size_t spent;           /* over the budget: given up */
};

struct digest_job {
  const struct weights *w;
  struct digest *leaves; /* [params.count] */
  atomic_int next;
  /* in the host's memory: */
  int *order;  /* [params.count] the largest first */
  size_t *at;  /* [params.count] bytes: where the tensor begins in file, and in an earlier version's */
  char *file;  /* NULL: the rows go through chunks */
  const struct weights_base *base; /* or NULL */
  char *chunk; /* [threads, chunk_bytes] */
  size_t chunk_bytes;
  struct changes_job changes;
  /* else: */
  const void **bytes; /* [params.count] tensors [first, end), which staging holds together */
  int first, end;
};

/* --- what differs --- */

static bool is_given_up(struct changes_job *c) { return !c->bytes || atomic_load(&c->spent) > c->budget; }

static void compare_begin(struct digest_job *job, int index, struct changes_encoder *e, const void *now) {
  struct changes_job *c = &job->changes;
  changes_encode_begin(e, c->base + job->at[index], now, job->w->model->params.items[index].count,
                       c->bytes + c->header + job->at[index]);
}

static void compare_end(struct digest_job *job, int index, struct changes_encoder *e) {
  struct changes_job *c = &job->changes;
  const struct change_record r = changes_encode_end(e);
  c->records[index] = r;
  const size_t spent = atomic_fetch_add(&c->spent, r.bytes) + r.bytes;
  if (job->base->grown) job->base->grown(job->base->context, spent);
}

/* Whatever is refused memory: then there are no changes, and the version goes whole. */
static void changes_prepare(struct digest_job *job, const struct weights_base *base) {
  struct changes_job *c = &job->changes;
  const size_t tensors = (size_t)job->w->model->params.count;
  c->base = base->operands;
  c->header = changes_header_bytes(tensors);
  c->budget = base->bytes / CHANGES_PART > c->header ? base->bytes / CHANGES_PART - c->header : 0;
  c->records = calloc(tensors, sizeof *c->records);
  c->bytes = c->records ? malloc(c->header + base->bytes + 1) : NULL;
}

/* Moves the pieces together, and hands them over. */
static void changes_finish(struct digest_job *job, const struct weights_base *base, const struct digest *made,
                           struct buf *out) {
  struct changes_job *c = &job->changes;
  const int tensors = job->w->model->params.count;
  if (is_given_up(c)) return;
  size_t len = c->header;
  for (int i = 0; i < tensors; len += c->records[i++].bytes) {
    const char *from = c->records[i].form == CHANGE_WHOLE ? job->file : c->bytes + c->header;
    memmove(c->bytes + len, from + job->at[i], c->records[i].bytes);
  }
  changes_header_write(c->bytes, &base->digest, made, c->records, (size_t)tensors);
  c->bytes[len] = '\0';
  char *less = realloc(c->bytes, len + 1);
  *out = (struct buf){.data = less ? less : c->bytes, .len = len, .cap = len + 1};
  c->bytes = NULL;
}

/* --- the host's memory --- */

int weights_rows_at_once(const struct model *m, const struct param *p) {
  const size_t row_bytes = (size_t)p->cols * m->ops->operand_bytes, tiles = CHUNK_BYTES / (row_bytes * TILE_ROWS);
  return (int)(tiles > 0 ? tiles : 1) * TILE_ROWS;
}

/* Bytes of a tensor from `from` on, in the file and in the earlier version's. */
static void rows_done(const struct digest_job *job, int index, size_t from, size_t bytes, bool compared) {
  const struct weights_base *b = job->base;
  if (!b || !b->done || !job->file) return;
  b->done(b->context, job->file + job->at[index] + from, bytes);
  if (compared) b->done(b->context, job->changes.base + job->at[index] + from, bytes);
}

static void read_and_digest(struct digest_job *job, int index, char *chunk) {
  const struct weights *w = job->w;
  const struct ops *ops = w->model->ops;
  const struct param *p = &w->model->params.items[index];
  const size_t row_bytes = (size_t)p->cols * ops->operand_bytes;
  char *file = job->file ? job->file + job->at[index] : NULL;
  const int step = weights_rows_at_once(w->model, p);
  struct st_entry entry;
  struct digest_state s;
  struct changes_encoder e;
  const bool compares = !is_given_up(&job->changes);
  if (compares) compare_begin(job, index, &e, file);
  weights_entry(&entry, w->model, index);
  st_tensor_digest_begin(&s, &entry);
  if (param_is_vector(p)) {
    digest_update(&s, w->matrices[index].data, p->count * ops->operand_bytes);
    if (file) memcpy(file, w->matrices[index].data, p->count * ops->operand_bytes);
    if (compares) changes_encode(&e, p->count);
  }
  for (int row = 0; !param_is_vector(p) && row < p->rows; row += step) {
    const int rows = p->rows - row < step ? p->rows - row : step;
    char *to = file ? file + (size_t)row * row_bytes : chunk;
    ops->matrix_unpack_rows(ops, to, &w->matrices[index], row, rows);
    digest_update(&s, to, (size_t)rows * row_bytes);
    if (compares) changes_encode(&e, (size_t)(row + rows) * (size_t)p->cols);
    rows_done(job, index, (size_t)row * row_bytes, (size_t)rows * row_bytes, compares);
  }
  digest_end(&job->leaves[index], &s);
  if (compares) compare_end(job, index, &e);
}

static void host_part(void *context, int part) {
  struct digest_job *job = context;
  const struct model *m = job->w->model;
  char *chunk = job->chunk + (size_t)pool_thread(m->ops->pool) * job->chunk_bytes;
  (void)part;
  for (int i; (i = atomic_fetch_add(&job->next, 1)) < m->params.count;) read_and_digest(job, job->order[i], chunk);
}

void weights_sort_by_size(int *order, const struct model *m) {
  for (int i = 0; i < m->params.count; i++) {
    int to = i;
    for (; to > 0 && m->params.items[order[to - 1]].count < m->params.items[i].count; to--) order[to] = order[to - 1];
    order[to] = i;
  }
}

static void digest_in_host(struct digest_job *job) {
  const struct model *m = job->w->model;
  weights_sort_by_size(job->order, m);
  atomic_store(&job->next, 0);
  pool_run(m->ops->pool, host_part, job, pool_threads(m->ops->pool));
}

size_t weights_chunk_bytes(const struct model *m) {
  size_t most = 0;
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    const size_t bytes = (size_t)weights_rows_at_once(m, p) * (size_t)p->cols * m->ops->operand_bytes;
    if (!param_is_vector(p) && bytes > most) most = bytes;
  }
  return (most + 63) / 64 * 64;
}

/* --- a device's memory --- */

static void device_part(void *context, int part) {
  struct digest_job *job = context;
  (void)part;
  for (int i; (i = atomic_fetch_add(&job->next, 1)) < job->end;) {
    struct st_entry entry;
    weights_entry(&entry, job->w->model, i);
    st_tensor_digest(&job->leaves[i], &entry, job->bytes[i]);
    if (is_given_up(&job->changes)) continue;
    struct changes_encoder e;
    compare_begin(job, i, &e, job->bytes[i]);
    changes_encode(&e, job->w->model->params.items[i].count);
    compare_end(job, i, &e);
  }
}

static void digest_together(struct digest_job *job) {
  const struct model *m = job->w->model;
  const size_t room = weights_largest_count(m);
  size_t at = 0;
  for (job->end = job->first; job->end < m->params.count; job->end++) {
    const size_t count = m->params.items[job->end].count;
    if (at > 0 && at + count > room) break;
    job->bytes[job->end] = weights_read_at(job->w, job->end, at);
    if (job->file) memcpy(job->file + job->at[job->end], job->bytes[job->end], count * m->ops->operand_bytes);
    at += (count + DIGEST_ALIGN - 1) / DIGEST_ALIGN * DIGEST_ALIGN;
  }
  atomic_store(&job->next, job->first);
  pool_run(m->ops->pool, device_part, job, pool_threads(m->ops->pool));
}

/* --- both --- */

enum rc weights_digest_and_read(struct digest *out, const struct weights *w, char *file,
                                const struct weights_base *base, struct buf *changes, struct err *err) {
  const struct model *m = w->model;
  const bool host = m->ops->host_memory;
  const size_t count = (size_t)m->params.count, threads = (size_t)pool_threads(m->ops->pool);
  struct digest_job job = {.w = w, .file = file, .base = base, .chunk_bytes = host ? weights_chunk_bytes(m) : 0};
  enum rc rc = RC_OK;
  job.leaves = calloc(count, sizeof *job.leaves);
  job.bytes = calloc(count, sizeof *job.bytes);
  job.order = calloc(count, sizeof *job.order);
  job.at = calloc(count, sizeof *job.at);
  job.chunk = aligned_alloc(64, (job.chunk_bytes + 64) * threads);
  if (!job.leaves || !job.bytes || !job.order || !job.at || !job.chunk)
    rc = err_set(err, RC_NO_MEMORY, NULL, "digests of %zu tensors by %zu threads were refused memory", count, threads);
  if (rc == RC_OK) {
    size_t at = 0;
    for (int i = 0; i < m->params.count; at += m->params.items[i++].count * m->ops->operand_bytes) job.at[i] = at;
    if (base && base->operands && file) changes_prepare(&job, base);
  }
  if (rc == RC_OK && host) digest_in_host(&job);
  for (; rc == RC_OK && !host && job.first < m->params.count; job.first = job.end) digest_together(&job);
  if (rc == RC_OK) st_combine_digests(out, job.leaves, count);
  if (rc == RC_OK && job.changes.bytes) changes_finish(&job, base, out, changes);
  free(job.changes.bytes);
  free(job.changes.records);
  free(job.leaves);
  free(job.bytes);
  free(job.order);
  free(job.at);
  free(job.chunk);
  return rc == RC_OK ? m->ops->status(m->ops, err) : rc;
}

enum rc weights_digest(struct digest *out, const struct weights *w, struct err *err) {
  return weights_digest_and_read(out, w, NULL, NULL, NULL, err);
}
