/* Computes a version's digest from the kernels' memory, and on the way writes what it is of.
 *
 * A tensor's digest cannot be computed in parts.  So in the host's memory each thread takes a tensor, the largest first, and
 * reads some rows of it out of the kernels' layout, digests them while they are in its caches, and so on.  Where
 * memory is a device's, all threads read tensors until staging is full, and then digest a tensor each. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/weights_internal.h"

enum {
  DIGEST_ALIGN = 64,     /* elements: where tensors begin that lie in staging together */
  CHUNK_BYTES = 1 << 17, /* about what is read out before it is digested */
  TILE_ROWS = 16         /* rows are read out by so many at once */
};

struct digest_job {
  const struct weights *w;
  struct digest *leaves; /* [params.count] */
  atomic_int next;
  /* in the host's memory: */
  int *order;  /* [params.count] the largest first */
  size_t *at;  /* [params.count] bytes: where the tensor begins in file */
  char *file;  /* NULL: the rows go through chunks */
  char *chunk; /* [threads, chunk_bytes] */
  size_t chunk_bytes;
  /* else: */
  const void **bytes; /* [params.count] tensors [first, end), which staging holds together */
  int first, end;
};

/* --- the host's memory --- */

static int rows_at_once(const struct model *m, const struct param *p) {
  const size_t row_bytes = (size_t)p->cols * m->ops->operand_bytes, tiles = CHUNK_BYTES / (row_bytes * TILE_ROWS);
  return (int)(tiles > 0 ? tiles : 1) * TILE_ROWS;
}

static void read_and_digest(const struct digest_job *job, int index, char *chunk) {
  const struct weights *w = job->w;
  const struct ops *ops = w->model->ops;
  const struct param *p = &w->model->params.items[index];
  const size_t row_bytes = (size_t)p->cols * ops->operand_bytes;
  char *file = job->file ? job->file + job->at[index] : NULL;
  const int step = rows_at_once(w->model, p);
  struct st_entry entry;
  struct digest_state s;
  weights_entry(&entry, w->model, index);
  st_tensor_digest_begin(&s, &entry);
  if (param_is_vector(p)) {
    digest_update(&s, w->matrices[index].data, p->count * ops->operand_bytes);
    if (file) memcpy(file, w->matrices[index].data, p->count * ops->operand_bytes);
  }
  for (int row = 0; !param_is_vector(p) && row < p->rows; row += step) {
    const int rows = p->rows - row < step ? p->rows - row : step;
    char *to = file ? file + (size_t)row * row_bytes : chunk;
    ops->matrix_unpack_rows(ops, to, &w->matrices[index], row, rows);
    digest_update(&s, to, (size_t)rows * row_bytes);
  }
  digest_end(&job->leaves[index], &s);
}

static void host_part(void *context, int part) {
  struct digest_job *job = context;
  const struct model *m = job->w->model;
  char *chunk = job->chunk + (size_t)pool_thread(m->ops->pool) * job->chunk_bytes;
  (void)part;
  for (int i; (i = atomic_fetch_add(&job->next, 1)) < m->params.count;) read_and_digest(job, job->order[i], chunk);
}

/* Tensors of one size stay in their order. */
static void sort_by_size(int *order, const struct model *m) {
  for (int i = 0; i < m->params.count; i++) {
    int to = i;
    for (; to > 0 && m->params.items[order[to - 1]].count < m->params.items[i].count; to--) order[to] = order[to - 1];
    order[to] = i;
  }
}

static void digest_in_host(struct digest_job *job) {
  const struct model *m = job->w->model;
  size_t at = 0;
  for (int i = 0; i < m->params.count; at += m->params.items[i++].count * m->ops->operand_bytes) job->at[i] = at;
  sort_by_size(job->order, m);
  atomic_store(&job->next, 0);
  pool_run(m->ops->pool, host_part, job, pool_threads(m->ops->pool));
}

static size_t chunk_bytes(const struct model *m) {
  size_t most = 0;
  for (int i = 0; i < m->params.count; i++) {
    const struct param *p = &m->params.items[i];
    const size_t bytes = (size_t)rows_at_once(m, p) * (size_t)p->cols * m->ops->operand_bytes;
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
    if (job->file) {
      memcpy(job->file, job->bytes[job->end], count * m->ops->operand_bytes);
      job->file += count * m->ops->operand_bytes;
    }
    at += (count + DIGEST_ALIGN - 1) / DIGEST_ALIGN * DIGEST_ALIGN;
  }
  atomic_store(&job->next, job->first);
  pool_run(m->ops->pool, device_part, job, pool_threads(m->ops->pool));
}

/* --- both --- */

enum rc weights_digest_and_read(struct digest *out, const struct weights *w, char *file, struct err *err) {
  const struct model *m = w->model;
  const bool host = m->ops->host_memory;
  const size_t count = (size_t)m->params.count, threads = (size_t)pool_threads(m->ops->pool);
  struct digest_job job = {.w = w, .file = file, .chunk_bytes = host ? chunk_bytes(m) : 0};
  enum rc rc = RC_OK;
  job.leaves = calloc(count, sizeof *job.leaves);
  job.bytes = calloc(count, sizeof *job.bytes);
  job.order = calloc(count, sizeof *job.order);
  job.at = calloc(count, sizeof *job.at);
  job.chunk = aligned_alloc(64, (job.chunk_bytes + 64) * threads);
  if (!job.leaves || !job.bytes || !job.order || !job.at || !job.chunk)
    rc = err_set(err, RC_NO_MEMORY, NULL, "digests of %zu tensors by %zu threads were refused memory", count, threads);
  if (rc == RC_OK && host) digest_in_host(&job);
  for (; rc == RC_OK && !host && job.first < m->params.count; job.first = job.end) digest_together(&job);
  if (rc == RC_OK) st_combine_digests(out, job.leaves, count);
  free(job.leaves);
  free(job.bytes);
  free(job.order);
  free(job.at);
  free(job.chunk);
  return rc == RC_OK ? m->ops->status(m->ops, err) : rc;
}

enum rc weights_digest(struct digest *out, const struct weights *w, struct err *err) {
  return weights_digest_and_read(out, w, NULL, err);
}
