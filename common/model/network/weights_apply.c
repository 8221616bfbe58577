/* Fills weights from an earlier version and what differs from it, in one link or several, and computes the digest on
 * the way.
 *
 * In the host's memory each thread takes a tensor, the largest first, and goes through it by some rows: those without a
 * change are copied in the kernels' layout, others are read out of the base, changed and filled in; and all are read
 * out of the weights that were filled and digested while they are in the thread's caches.  Where memory is a device's,
 * tensor by tensor through staging.
 *
 * The stager of a generation-server calls it, while the engine reads the base. */
#include <assert.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "common/model/network/weights_changes.h"
#include "common/model/network/weights_internal.h"

/* The changes that make one version of another. */
struct link {
  struct change_record *records; /* [params.count] */
  const char **bytes;            /* [params.count] where a tensor's changes begin */
};

struct apply_job {
  struct weights *w;
  const struct weights *base;
  struct link links[CHANGES_LINKS_MAX];
  int link_count;
  struct digest *leaves;         /* [params.count] */
  int *order;                    /* [params.count] the largest first */
  char *chunk;                   /* [threads, chunk_bytes] */
  size_t chunk_bytes;
  atomic_int next, wrong; /* wrong: a tensor whose changes were, or -1 */
};

/* Rows [row, row + rows) of a matrix, from a tile's first on: a matrix as well. */
static struct matrix rows_of(const struct ops *ops, const struct matrix *m, int row, int rows) {
  return (struct matrix){.data = (char *)m->data + ops->matrix_bytes(ops, row, m->K), .N = rows, .K = m->K};
}

/* A tensor's cursors, one a link. */
static void cursors_begin(struct changes_cursor *c, const struct apply_job *job, int index) {
  for (int l = 0; l < job->link_count; l++)
    changes_begin(&c[l], &job->links[l].records[index], job->links[l].bytes[index],
                  job->w->model->params.items[index].count);
}

static bool cursors_before(const struct changes_cursor *c, int count, size_t end) {
  for (int l = 0; l < count; l++)
    if (changes_before(&c[l], end)) return true;
  return false;
}

static void cursors_apply(struct changes_cursor *c, int count, uint16_t *x, size_t first, size_t end) {
  for (int l = 0; l < count; l++) changes_apply(&c[l], x, first, end);
}

static void cursors_end(const struct changes_cursor *c, struct apply_job *job, int index) {
  for (int l = 0; l < job->link_count; l++)
    if (!changes_end(&c[l])) atomic_store(&job->wrong, index);
}

static void fill_rows(const struct apply_job *job, int index, int row, int rows, struct changes_cursor *c,
                      uint16_t *chunk) {
  const struct ops *ops = job->w->model->ops;
  const struct matrix *from = &job->base->matrices[index];
  const size_t first = (size_t)row * (size_t)from->K, end = first + (size_t)rows * (size_t)from->K;
  struct matrix to = rows_of(ops, &job->w->matrices[index], row, rows);
  if (cursors_before(c, job->link_count, end)) {
    ops->matrix_unpack_rows(ops, chunk, from, row, rows);
    cursors_apply(c, job->link_count, chunk, first, end);
    ops->matrix_pack(ops, &to, chunk);
  } else if (job->base != job->w) {
    memcpy(to.data, rows_of(ops, from, row, rows).data, ops->matrix_bytes(ops, rows, from->K));
  }
}

static void apply_and_digest(struct apply_job *job, int index, uint16_t *chunk) {
  const struct model *m = job->w->model;
  const struct ops *ops = m->ops;
  const struct param *p = &m->params.items[index];
  const struct matrix *to = &job->w->matrices[index];
  struct changes_cursor c[CHANGES_LINKS_MAX];
  struct digest_state s;
  struct st_entry entry;
  weights_entry(&entry, m, index);
  st_tensor_digest_begin(&s, &entry);
  cursors_begin(c, job, index);
  if (param_is_vector(p)) {
    const size_t bytes = p->count * ops->operand_bytes;
    if (job->base != job->w) memcpy(to->data, job->base->matrices[index].data, bytes);
    cursors_apply(c, job->link_count, to->data, 0, p->count);
    digest_update(&s, to->data, bytes);
  }
  const int step = weights_rows_at_once(m, p);
  for (int row = 0; !param_is_vector(p) && row < p->rows; row += step) {
    const int rows = p->rows - row < step ? p->rows - row : step;
    fill_rows(job, index, row, rows, c, chunk);
    ops->matrix_unpack_rows(ops, chunk, to, row, rows);
    digest_update(&s, chunk, (size_t)rows * (size_t)p->cols * ops->operand_bytes);
  }
  digest_end(&job->leaves[index], &s);
  cursors_end(c, job, index);
}

static void host_part(void *context, int part) {
  struct apply_job *job = context;
  const struct model *m = job->w->model;
  char *chunk = job->chunk + (size_t)pool_thread(m->ops->pool) * job->chunk_bytes;
  (void)part;
  for (int i; (i = atomic_fetch_add(&job->next, 1)) < m->params.count;)
    apply_and_digest(job, job->order[i], (uint16_t *)(void *)chunk);
}

static enum rc apply_in_host(struct apply_job *job, struct digest *out, struct err *err) {
  const struct model *m = job->w->model;
  const size_t count = (size_t)m->params.count, threads = (size_t)pool_threads(m->ops->pool);
  job->chunk_bytes = weights_chunk_bytes(m);
  job->leaves = calloc(count, sizeof *job->leaves);
  job->order = calloc(count, sizeof *job->order);
  job->chunk = aligned_alloc(64, (job->chunk_bytes + 64) * threads);
  if (!job->leaves || !job->order || !job->chunk)
    return err_set(err, RC_NO_MEMORY, NULL, "digests of %zu tensors by %zu threads were refused memory", count,
                   threads);
  weights_sort_by_size(job->order, m);
  pool_run(m->ops->pool, host_part, job, (int)threads);
  st_combine_digests(out, job->leaves, count);
  return RC_OK;
}

static enum rc apply_on_device(struct apply_job *job, struct digest *out, struct err *err) {
  const struct ops *ops = job->w->model->ops;
  for (int i = 0; i < job->w->model->params.count; i++) {
    const size_t count = job->w->model->params.items[i].count;
    struct changes_cursor c[CHANGES_LINKS_MAX];
    cursors_begin(c, job, i);
    if (job->base == job->w && !cursors_before(c, job->link_count, count)) {
      cursors_end(c, job, i);
      continue;
    }
    memmove(job->w->host, weights_read_at(job->base, i, 0), count * ops->operand_bytes); /* in place: the same bytes */
    cursors_apply(c, job->link_count, job->w->host, 0, count);
    cursors_end(c, job, i);
    ops->upload(ops, job->w->staging, job->w->host, count * ops->operand_bytes);
    weights_fill(job->w, i, job->w->staging);
  }
  return weights_digest(out, job->w, err);
}

/* One link from the beginning of bytes; *held becomes what it makes. */
static enum rc read_link(struct apply_job *job, const size_t *counts, const char *bytes, size_t len, size_t *used,
                         struct digest *held, struct err *err) {
  const size_t tensors = (size_t)job->w->model->params.count;
  struct link *link = &job->links[job->link_count];
  struct digest base, made;
  if (job->link_count == CHANGES_LINKS_MAX)
    return err_set(err, RC_INVALID, NULL, "expected at most %d changes one behind the other, got more",
                   CHANGES_LINKS_MAX);
  job->link_count++;
  link->records = calloc(tensors, sizeof *link->records);
  link->bytes = calloc(tensors, sizeof *link->bytes);
  if (!link->records || !link->bytes)
    return err_set(err, RC_NO_MEMORY, NULL, "the changes of %zu tensors were refused memory", tensors);
  const enum rc rc = changes_header_read(&base, &made, link->records, used, bytes, len, counts, tensors, err);
  if (rc != RC_OK) return rc;
  if (!digest_equal(&base, held))
    return err_set(err, RC_INVALID, "base", "the changes are of another base than %s",
                   job->link_count == 1 ? "the request names" : "those before them make");
  size_t at = changes_header_bytes(tensors);
  for (size_t i = 0; i < tensors; at += link->records[i++].bytes) link->bytes[i] = bytes + at;
  *held = made;
  return RC_OK;
}

static enum rc read_links(struct apply_job *job, const char *bytes, size_t len, const struct digest *base,
                          struct err *err) {
  const struct model *m = job->w->model;
  struct digest held = *base;
  size_t used = 0, *counts = calloc((size_t)m->params.count, sizeof *counts);
  enum rc rc = counts ? RC_OK : err_set(err, RC_NO_MEMORY, NULL, "the tensors' sizes were refused memory");
  for (int i = 0; rc == RC_OK && i < m->params.count; i++) counts[i] = m->params.items[i].count;
  do {
    if (rc == RC_OK) rc = read_link(job, counts, bytes, len, &used, &held, err);
    bytes += used;
    len -= used;
  } while (rc == RC_OK && len > 0);
  free(counts);
  return rc;
}

enum rc weights_apply_changes(struct weights *w, const struct weights *base, const void *changes, size_t len,
                              const struct digest *base_digest, struct digest *out, struct err *err) {
  const struct model *m = w->model;
  struct apply_job job = {.w = w, .base = base};
  assert(!w->transposed && !w->largest); /* those that only training needs */
  atomic_store(&job.wrong, -1);
  if (m->ops->format != FORMAT_BF16)
    return err_set(err, RC_INVALID, "base", "changes are of bf16 weights, and these are of another format");
  enum rc rc = read_links(&job, changes, len, base_digest, err);
  if (rc == RC_OK) rc = m->ops->host_memory ? apply_in_host(&job, out, err) : apply_on_device(&job, out, err);
  const int wrong = atomic_load(&job.wrong);
  if (rc == RC_OK && wrong >= 0)
    rc = err_set(err, RC_INVALID, m->params.items[wrong].name,
                 "tensor %s: expected changes that lead to finite numbers, got others", m->params.items[wrong].name);
  for (int l = 0; l < job.link_count; l++) {
    free(job.links[l].records);
    free(job.links[l].bytes);
  }
  free(job.leaves);
  free(job.order);
  free(job.chunk);
  return rc == RC_OK ? m->ops->status(m->ops, err) : rc;
}
