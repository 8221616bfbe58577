/* Implements the operation table on a CPU: splits every operation's outputs over the pool, for the kernels that
 * levels.c chooses.
 *
 *   ops->gemm(...) -> fills gemm_args -> split(): parts of outputs -> pool_run -> kernel(args, begin, end, scratch)
 *
 * Results do not depend on which thread computes which outputs (NUMERICS.md), so the split is free to follow the cost,
 * which is guessed in nanoseconds of one core.  Calls that take about as long as handing them over stay on the caller's
 * thread; longer ones are cut into several pieces a thread, so that one that has lost its core costs a piece and not
 * its share.  Threading and ownership: one caller at a time, or parts of a job of the pool, each alone; scratch belongs
 * to the table.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/model/cpu/kernels.h"
#include "common/model/cpu/levels.h"
#include "common/model/shard.h"

/* Nanoseconds of one core: what is worth handing over, and what a piece lasts at least. */
#define SHARED_NS    12e3
#define PIECE_NS  25e3
#define BYTES_PER_NS 10.0 /* of one core's stream */

enum {
  PIECES = 8,          /* that a thread's share is cut into, at most */
  ROWS_PER_PIECE = 96, /* of a product: each piece lays out its operands for itself, or reads all of W */
  MANY_ROWS = 192,     /* of a thread: W is read twice or more, and each time for many rows */
  WINDOWS_PER_THREAD = 2, /* of dW, at least */
  WINDOW_LEAST = 32,      /* rows or columns, above which a window is cut for more of them */
  HUGE_PAGE = 2 << 20,
  SQUARES_STEP = 1024 /* blocks of one step of sum_of_squares */
};

struct cpu_ops {
  struct ops ops; /* first: a struct ops * is a struct cpu_ops * */
  const struct cpu_kernels *kernels;
  int threads;
  double flops_per_ns; /* of products on one core */
  char *scratch;       /* [threads][CPU_SCRATCH_BYTES] */
  double *squares;     /* [SQUARES_STEP] */
  struct moment_values moments;
};

static const struct cpu_ops *cpu_of(const struct ops *o) { return (const struct cpu_ops *)(const void *)o; }

struct split_call {
  const struct cpu_ops *cpu;
  cpu_kernel *kernel;
  const void *args;
  size_t n, grain, parts;
};

/* The calling thread's own. */
static void *scratch_here(const struct cpu_ops *cpu) {
  const int thread = cpu->threads > 1 ? pool_thread(cpu->ops.pool) : 0;
  return cpu->scratch + (size_t)thread * CPU_SCRATCH_BYTES;
}

static void split_part(void *context, int part) {
  const struct split_call *c = context;
  size_t units = (c->n + c->grain - 1) / c->grain, p = (size_t)part;
  size_t begin = units * p / c->parts * c->grain, end = units * (p + 1) / c->parts * c->grain;
  if (end > c->n) end = c->n;
  if (begin < end) c->kernel(c->args, begin, end, scratch_here(c->cpu));
}

/* Of work that lasts ns of one core, if it can be cut so often. */
static size_t pieces_of(const struct cpu_ops *cpu, double ns) {
  const size_t threads = (size_t)cpu->threads;
  const double each = ns / PIECE_NS / (double)threads;
  if (threads == 1 || ns < SHARED_NS || pool_in_part(cpu->ops.pool)) return 1;
  return threads * (each < 1 ? 1 : each > PIECES ? PIECES : (size_t)each);
}

/* n outputs in units of grain; ns: about how long one core takes for all of them.  A multiple of the threads, so that
 * threads that keep their cores end together. */
static void split(const struct ops *o, cpu_kernel *kernel, const void *args, size_t n, size_t grain, double ns) {
  const struct cpu_ops *cpu = cpu_of(o);
  const size_t units = (n + grain - 1) / grain, threads = (size_t)cpu->threads;
  if (n == 0) return;
  size_t parts = pieces_of(cpu, ns);
  if (parts == 1 || units == 1) {
    kernel(args, 0, n, scratch_here(cpu));
    return;
  }
  if (parts > units) parts = units < threads ? units : units / threads * threads;
  struct split_call call = {.cpu = cpu, .kernel = kernel, .args = args, .n = n, .grain = grain, .parts = parts};
  pool_run(cpu->ops.pool, split_part, &call, (int)parts);
}

/* Of a product of T rows and N x K: computed, or waiting for W. */
static double product_ns(const struct ops *o, double T, double N, double K) {
  const double computing = 2 * T * N * K / cpu_of(o)->flops_per_ns;
  const double reading = N * K * (double)o->operand_bytes / BYTES_PER_NS;
  return computing > reading ? computing : reading;
}

/* --- memory and layout --- */

static void *ops_alloc(const struct ops *o, size_t bytes) {
  void *memory = NULL;
  bool huge = bytes >= HUGE_PAGE;
  (void)o;
  if (bytes == 0) bytes = 64;
  if (posix_memalign(&memory, huge ? HUGE_PAGE : 64, bytes) != 0) return NULL;
  if (huge) (void)madvise(memory, bytes, MADV_HUGEPAGE); /* advice only: refusal changes nothing */
  memset(memory, 0, bytes);
  return memory;
}

static void ops_release(const struct ops *o, void *memory) {
  (void)o;
  free(memory);
}

static enum rc ops_status(const struct ops *o, struct err *err) {
  (void)o, (void)err;
  return RC_OK;
}

/* Nothing is worth keeping: a call is a call. */
static bool ops_repeat_begin(const struct ops *o, const struct repeat_key *key) {
  (void)o, (void)key;
  return true;
}
static void ops_repeat_end(const struct ops *o) { (void)o; }

static size_t ops_room(const struct ops *o) {
  (void)o;
  return SIZE_MAX;
}

struct copy_args { /* bytes */
  char *to;
  const char *from; /* NULL: zeroes */
};

static void copy_bytes(const void *args, size_t begin, size_t end, void *scratch) {
  const struct copy_args *c = args;
  (void)scratch;
  if (c->from)
    memcpy(c->to + begin, c->from + begin, end - begin);
  else
    memset(c->to + begin, 0, end - begin);
}

/* upload, download and copy are one thing here. */
static void ops_copy(const struct ops *o, void *to, const void *from, size_t bytes) {
  const struct copy_args c = {to, from};
  split(o, copy_bytes, &c, bytes, 1 << 14, (double)bytes / BYTES_PER_NS);
}

static void ops_clear(const struct ops *o, void *memory, size_t bytes) {
  const struct copy_args c = {memory, NULL};
  split(o, copy_bytes, &c, bytes, 1 << 14, (double)bytes / BYTES_PER_NS);
}

struct move_args { /* rows, all of them at once where out is in */
  char *out;
  const char *in;
  const int32_t *from;
  size_t bytes;
};

static void move_row(const struct move_args *c, size_t i) {
  char *to = c->out + i * c->bytes;
  const int32_t from = c->from[i];
  if (from < 0)
    memset(to, 0, c->bytes);
  else if (to != c->in + (size_t)from * c->bytes)
    memcpy(to, c->in + (size_t)from * c->bytes, c->bytes);
}

/* Within one array: rows that come from below are moved from the last on, the others from the first on. */
static void move_within(const void *args, size_t begin, size_t end, void *scratch) {
  const struct move_args *c = args;
  bool up = false;
  (void)scratch;
  for (size_t i = begin; i < end; i++) up |= c->from[i] < (int32_t)i;
  for (size_t i = begin; i < end; i++) {
    const size_t row = up ? begin + end - 1 - i : i;
    assert(c->from[row] < 0 || (up ? c->from[row] <= (int32_t)row : c->from[row] >= (int32_t)row));
    move_row(c, row);
  }
}

static void move_apart(const void *args, size_t begin, size_t end, void *scratch) {
  const struct move_args *c = args;
  (void)scratch;
  for (size_t i = begin; i < end; i++) move_row(c, i);
}

static void ops_move_rows(const struct ops *o, void *out, const void *in, const int32_t *from, int count,
                          size_t bytes) {
  const struct move_args c = {out, in, from, bytes};
  if (out == in)
    move_within(&c, 0, (size_t)count, NULL);
  else
    split(o, move_apart, &c, (size_t)count, 1, (double)count * (double)bytes / BYTES_PER_NS);
}

static bool in_links(const struct ops *o) { return cpu_of(o)->kernels->links && o->format == FORMAT_BF16; }

static size_t ops_matrix_bytes(const struct ops *o, int N, int K) {
  return (size_t)round_up(N, 16) * (size_t)round_up(K, 32) * o->operand_bytes;
}

static void pack(const struct ops *o, const struct pack_args *c) {
  split(o, cpu_matrix_pack, c, (size_t)round_up(c->W->N, 16) / 16, 4, 0.5 * c->W->N * c->W->K);
}

static void ops_matrix_pack(const struct ops *o, struct matrix *W, const void *w) {
  pack(o, &(struct pack_args){.operand_bytes = o->operand_bytes, .links = in_links(o), .W = W, .w = w});
}

static void ops_matrix_pack_transposed(const struct ops *o, struct matrix *W, const void *w, int rows, int cols) {
  assert(W->N == cols && W->K == rows);
  pack(o, &(struct pack_args){
              .operand_bytes = o->operand_bytes, .links = in_links(o), .W = W, .w = w, .transposed = true});
}

static void ops_matrix_transpose(const struct ops *o, struct matrix *T, const struct matrix *W, int first) {
  const struct transpose_args c = {
      .operand_bytes = o->operand_bytes, .links = in_links(o), .T = T, .W = W, .first = first};
  assert(T->K == W->N && first % 16 == 0 && first + T->N <= W->K);
  split(o, cpu_matrix_transpose, &c, (size_t)round_up(T->N, 16) / 16, 1, 0.3 * T->N * T->K);
}

static void ops_matrix_unpack_rows(const struct ops *o, void *w, const struct matrix *W, int first, int count) {
  struct unpack_args c = {.operand_bytes = o->operand_bytes, .links = in_links(o), .W = W, .w = w, .first = first};
  assert(first >= 0 && count >= 0 && first + count <= W->N);
  split(o, cpu_matrix_unpack_rows, &c, (size_t)count, 16, 0.5 * count * W->K);
}

static void ops_to_operand(const struct ops *o, void *out, const float *in, size_t n) {
  struct convert_args c = {.format = o->format, .out = out, .in = in};
  split(o, cpu_of(o)->kernels->to_operand, &c, n, 1024, 0.3 * (double)n);
}

static void ops_from_operand(const struct ops *o, float *out, const void *in, size_t n) {
  struct convert_args c = {.format = o->format, .out = out, .in = in};
  split(o, cpu_of(o)->kernels->from_operand, &c, n, 1024, 0.3 * (double)n);
}

struct largest_job {
  const void *operands;
  size_t count, operand_bytes;
  uint32_t bits; /* of |x| as float32, which order as the numbers do; NaNs come last.  Atomic */
};

enum { LARGEST_PER_PART = 1 << 18, LARGEST_LANES = 32 };

/* In lanes of a constant number, which compile to vectors; one running maximum would not. */
static uint16_t largest_of_halves(const uint16_t *x, size_t n) {
  uint16_t lane[LARGEST_LANES] = {0}, most = 0;
  size_t i = 0;
  for (; i + LARGEST_LANES <= n; i += LARGEST_LANES)
    for (int l = 0; l < LARGEST_LANES; l++) {
      const uint16_t magnitude = x[i + (size_t)l] & 0x7fff;
      lane[l] = magnitude > lane[l] ? magnitude : lane[l];
    }
  for (; i < n; i++) most = (x[i] & 0x7fff) > most ? x[i] & 0x7fff : most;
  for (int l = 0; l < LARGEST_LANES; l++) most = lane[l] > most ? lane[l] : most;
  return most;
}

static void largest_part(void *context, int part) {
  struct largest_job *job = context;
  const size_t first = (size_t)part * LARGEST_PER_PART;
  const size_t end = first + LARGEST_PER_PART < job->count ? first + LARGEST_PER_PART : job->count;
  uint32_t most = 0;
  if (job->operand_bytes == 2) {
    most = (uint32_t)largest_of_halves((const uint16_t *)job->operands + first, end - first) << 16;
  } else {
    const uint32_t *x = job->operands;
    for (size_t i = first; i < end; i++) most = (x[i] & 0x7fffffff) > most ? x[i] & 0x7fffffff : most;
  }
  uint32_t seen = __atomic_load_n(&job->bits, __ATOMIC_RELAXED);
  while (seen < most &&
         !__atomic_compare_exchange_n(&job->bits, &seen, most, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static float ops_largest(const struct ops *o, const void *operands, size_t n) {
  struct largest_job job = {.operands = operands, .count = n, .operand_bytes = o->operand_bytes};
  const int parts = (int)((n + LARGEST_PER_PART - 1) / LARGEST_PER_PART);
  float largest;
  if (o->pool)
    pool_run(o->pool, largest_part, &job, parts);
  else
    for (int part = 0; part < parts; part++) largest_part(&job, part);
  memcpy(&largest, &job.bits, sizeof largest);
  return largest == largest ? largest : HUGE_VALF;
}

/* --- forward --- */

static void ops_embed(const struct ops *o, float *x, const struct matrix *table, const int32_t *token, int T) {
  struct embed_args c = {.format = o->format, .links = in_links(o), .x = x, .table = table, .token = token};
  split(o, cpu_embed, &c, (size_t)T, 1, 0.5 * T * table->K);
}

static void ops_rmsnorm(const struct ops *o, void *y, float *rstd, const float *x, const void *w, bool plus_one,
                        float eps, int T, int D) {
  struct rmsnorm_args c = {
      .format = o->format, .y = y, .rstd = rstd, .x = x, .w = w, .plus_one = plus_one, .eps = eps, .D = D};
  split(o, cpu_of(o)->kernels->rmsnorm, &c, (size_t)T, 1, 0.4 * T * D);
}

/* Outputs are split by panels of 32 columns, so that a thread reads its share of W alone; by rows when there are so
 * many of them that W's passes cost nothing, or too few panels. */
static void ops_gemm(const struct ops *o, float *y, const void *x, const struct matrix *W, int T, bool accumulate) {
  struct gemm_args c = {.format = o->format, .y = y, .x = x, .W = W, .T = T, .accumulate = accumulate};
  int panels = round_up(W->N, 32) / 32, threads = cpu_of(o)->threads;
  const double ns = product_ns(o, T, W->N, W->K);
  if (T <= 0) return;
  c.by_rows = T >= MANY_ROWS * threads || (panels < 4 * threads && T >= 24 * threads);
  if (c.by_rows)
    split(o, cpu_of(o)->kernels->gemm, &c, (size_t)T, T >= MANY_ROWS * threads ? ROWS_PER_PIECE : 12, ns);
  else
    split(o, cpu_of(o)->kernels->gemm, &c, (size_t)panels, T > 16 ? ROWS_PER_PIECE / 32 : 1, ns);
}

static void ops_add_bias(const struct ops *o, float *y, const void *b, int T, int N) {
  struct bias_args c = {.format = o->format, .y = y, .b = b, .N = N};
  split(o, cpu_of(o)->kernels->add_bias, &c, (size_t)T * (size_t)N, 256, 0.2 * T * N);
}

static void ops_head_norm_rope(const struct ops *o, void *out, float *rstd, const float *x, const void *w,
                               bool plus_one, float eps, const float *rope, const int32_t *position, int T, int H,
                               int E) {
  struct rope_args c = {.format = o->format,
                        .out = out,
                        .rstd = rstd,
                        .x = x,
                        .w = w,
                        .plus_one = plus_one,
                        .eps = eps,
                        .rope = rope,
                        .position = position,
                        .H = H,
                        .E = E};
  assert(E % 2 == 0 && E <= CPU_HEAD_DIM_MAX);
  split(o, cpu_of(o)->kernels->head_norm_rope, &c, (size_t)T, 1, 1.0 * T * H * E);
}

static void ops_kv_write(const struct ops *o, const struct kv_layer *kv, const struct rows *rows, const void *k,
                         const void *v, const int32_t *row) {
  struct kv_write_args c = {
      .operand_bytes = o->operand_bytes, .links = in_links(o), .kv = kv, .rows = rows, .k = k, .v = v, .row = row};
  assert(kv->page_tokens % 16 == 0);
  split(o, cpu_kv_write, &c, (size_t)rows->T, 1, 1.0 * rows->T * kv->G * kv->E);
}

static void ops_attention(const struct ops *o, void *out, float *lse, const void *q, const struct kv_layer *kv,
                          const struct rows *rows, int H, float scale) {
  struct attention_args c = {
      .format = o->format, .out = out, .lse = lse, .q = q, .kv = kv, .rows = rows, .H = H, .scale = scale};
  double keys = 0;
  assert(H % kv->G == 0 && kv->E % 2 == 0 && kv->E <= CPU_HEAD_DIM_MAX && kv->page_tokens % 16 == 0);
  for (int t = 0; t < rows->T; t++) {
    const int seen = rows->position[t] + 1;
    keys += rows->window > 0 && rows->window < seen ? rows->window : seen;
  }
  split(o, cpu_of(o)->kernels->attention, &c, (size_t)rows->T, 1, 4.0 * keys * H * kv->E / 20);
}

static void ops_swiglu(const struct ops *o, void *h, const float *gate, const float *up, size_t n) {
  struct swiglu_args c = {.format = o->format, .h = h, .gate = gate, .up = up};
  split(o, cpu_of(o)->kernels->swiglu, &c, n, 256, 1.5 * (double)n);
}

static void ops_geglu(const struct ops *o, void *h, const float *gate, const float *up, size_t n) {
  struct swiglu_args c = {.format = o->format, .h = h, .gate = gate, .up = up};
  split(o, cpu_of(o)->kernels->geglu, &c, n, 256, 1.7 * (double)n);
}

static void ops_soft_cap(const struct ops *o, float *x, float cap, size_t n) {
  struct soft_cap_args c = {.x = x, .cap = cap};
  split(o, cpu_of(o)->kernels->soft_cap, &c, n, 256, 1.5 * (double)n);
}

static void ops_scale(const struct ops *o, float *x, float factor, size_t n) {
  struct scale_args c = {.x = x, .factor = factor};
  split(o, cpu_of(o)->kernels->scale, &c, n, 256, 0.2 * (double)n);
}

static void ops_add_operand(const struct ops *o, float *x, const void *y, size_t n) {
  struct add_operand_args c = {.format = o->format, .x = x, .y = y};
  split(o, cpu_of(o)->kernels->add_operand, &c, n, 256, 0.3 * (double)n);
}

static void ops_route(const struct ops *o, int32_t *expert, float *share, float *prob, bool normalize, int T, int N,
                      int k) {
  struct route_args c = {.expert = expert, .share = share, .prob = prob, .normalize = normalize, .N = N, .k = k};
  split(o, cpu_of(o)->kernels->route, &c, (size_t)T, 1, 1.0 * T * N * (k + 2));
}

static void ops_add_rows(const struct ops *o, float *x, const float *y, const float *share, const int32_t *slot,
                         const int32_t *row, int count, int D) {
  struct add_rows_args c = {.x = x, .y = y, .share = share, .slot = slot, .row = row, .D = D};
  split(o, cpu_of(o)->kernels->add_rows, &c, (size_t)count, 1, 0.4 * count * D);
}

static void ops_share_rows(const struct ops *o, void *out, const float *x, const float *share, const int32_t *slot,
                           const int32_t *row, int count, int D) {
  struct share_rows_args c = {
      .format = o->format, .out = out, .x = x, .share = share, .slot = slot, .row = row, .D = D};
  split(o, cpu_of(o)->kernels->share_rows, &c, (size_t)count, 1, 0.4 * count * D);
}

static void ops_logprob(const struct ops *o, float *logprob, float *lse, float *entropy, const float *logits,
                        const int32_t *target, float temperature, int T, int V) {
  struct logprob_args c = {.logprob = logprob,
                           .lse = lse,
                           .entropy = entropy,
                           .logits = logits,
                           .target = target,
                           .temperature = temperature,
                           .V = V};
  split(o, cpu_of(o)->kernels->logprob, &c, (size_t)T, 1, 1.0 * T * V);
}

static void ops_cut(const struct ops *o, float *logits, const struct sampling_params *cut, int T, int V) {
  struct cut_args c = {.logits = logits, .cut = cut, .V = V};
  split(o, cpu_of(o)->kernels->cut, &c, (size_t)T, 1, 8.0 * T * V);
}

static void ops_sample(const struct ops *o, struct draw *draws, int count, const float *logits, int V) {
  struct sample_args c = {.draws = draws, .logits = logits, .V = V};
  split(o, cpu_of(o)->kernels->sample, &c, (size_t)count, 1, 1.5 * count * V);
}

/* --- backward --- */

static void ops_embed_backward(const struct ops *o, float *dtable, const float *dx, const int32_t *token, int T, int V,
                               int D) {
  struct embed_backward_args c = {.dtable = dtable, .dx = dx, .token = token, .T = T, .D = D};
  for (int t = 0; t < T; t++) assert(token[t] >= 0 && token[t] < V);
  split(o, cpu_of(o)->kernels->embed_backward, &c, (size_t)D, 16, 0.4 * T * D);
}

static void ops_rmsnorm_backward(const struct ops *o, float *dx, float *dw, const float *dy, const float *x,
                                 const void *w, bool plus_one, const float *rstd, const int32_t *row, int T, int D) {
  struct rmsnorm_backward_args c = {.format = o->format,
                                    .dx = dx,
                                    .dw = dw,
                                    .dy = dy,
                                    .x = x,
                                    .w = w,
                                    .plus_one = plus_one,
                                    .rstd = rstd,
                                    .row = row,
                                    .T = T,
                                    .D = D};
  assert((size_t)D * sizeof(float) <= CPU_SCRATCH_BYTES);
  if (dx) split(o, cpu_of(o)->kernels->rmsnorm_backward_x, &c, (size_t)T, 1, 0.8 * T * D);
  if (dw) split(o, cpu_of(o)->kernels->rmsnorm_backward_w, &c, (size_t)D, 16, 0.5 * T * D);
}

/* n in shares of about one size, multiples of unit, of `most` at most, which is one. */
static int share_of(int n, int most, int unit) {
  const int shares = (n + most - 1) / most;
  return round_up((n + shares - 1) / shares, unit);
}

static size_t windows_of(int N, int K, struct window_size w) {
  return (size_t)((N + w.rows - 1) / w.rows) * (size_t)((K + w.columns - 1) / w.columns);
}

/* Windows of dW: as large as the kernel's, for each lays out its operands for itself, but some for each thread. */
static struct window_size weight_windows(const struct cpu_ops *cpu, int N, int K, size_t pieces) {
  const struct window_limit *limit = cpu->kernels->weight_windows[cpu->ops.format];
  const size_t some = WINDOWS_PER_THREAD * (size_t)cpu->threads, least = pieces < some ? pieces : some;
  struct window_size w = {share_of(N, limit->size.rows, limit->row_unit), share_of(K, limit->size.columns, 32)};
  while (windows_of(N, K, w) < least && (w.rows > WINDOW_LEAST || w.columns > WINDOW_LEAST)) {
    if (w.rows >= w.columns)
      w.rows = share_of(N, round_up(w.rows / 2, limit->row_unit), limit->row_unit);
    else
      w.columns = share_of(K, round_up(w.columns / 2, 32), 32);
  }
  return w;
}

static void ops_gemm_weight_backward(const struct ops *o, float *dW, const void *dy, const void *x, const int32_t *row,
                                     const int32_t *place, int T, int N, int K) {
  struct weight_backward_args c = {
      .format = o->format, .dW = dW, .dy = dy, .x = x, .row = row, .place = place, .T = T, .N = N, .K = K};
  const double ns = product_ns(o, T, N, K);
  if (T <= 0) return;
  c.window = weight_windows(cpu_of(o), N, K, pieces_of(cpu_of(o), ns));
  split(o, cpu_of(o)->kernels->gemm_weight_backward, &c, windows_of(N, K, c.window), 1, ns);
}

static void ops_add_bias_backward(const struct ops *o, float *db, const void *dy, int T, int N) {
  struct bias_backward_args c = {.format = o->format, .db = db, .dy = dy, .T = T, .N = N};
  split(o, cpu_of(o)->kernels->add_bias_backward, &c, (size_t)N, 16, 0.3 * T * N);
}

static void ops_head_norm_rope_backward(const struct ops *o, float *dx, float *dw, const float *dy, const float *x,
                                        const void *w, bool plus_one, const float *rstd, const float *rope,
                                        const int32_t *position, const int32_t *row, int T, int H, int E) {
  struct rope_backward_args c = {.format = o->format,
                                 .dx = dx,
                                 .dw = dw,
                                 .dy = dy,
                                 .x = x,
                                 .w = w,
                                 .plus_one = plus_one,
                                 .rstd = rstd,
                                 .rope = rope,
                                 .position = position,
                                 .row = row,
                                 .T = T,
                                 .H = H,
                                 .E = E};
  assert(E % 2 == 0 && E <= CPU_HEAD_DIM_MAX);
  if (dx) split(o, cpu_of(o)->kernels->head_norm_rope_backward_x, &c, (size_t)T, 1, 1.5 * T * H * E);
  if (w && dw) split(o, cpu_of(o)->kernels->head_norm_rope_backward_w, &c, (size_t)E / 2, 8, 1.0 * T * H * E);
}

static void ops_attention_backward(const struct ops *o, float *dq, float *dk, float *dv, const void *dout,
                                   const void *out, const float *lse, const void *q, const void *k, const void *v,
                                   const struct packed *batch, int H, int G, int E, float scale) {
  struct attention_backward_args c = {.format = o->format,
                                      .dq = dq,
                                      .dk = dk,
                                      .dv = dv,
                                      .dout = dout,
                                      .out = out,
                                      .lse = lse,
                                      .q = q,
                                      .k = k,
                                      .v = v,
                                      .batch = batch,
                                      .H = H,
                                      .G = G,
                                      .E = E,
                                      .scale = scale};
  double pairs = 0;
  assert(H % G == 0 && E <= CPU_HEAD_DIM_MAX);
  for (int s = 0; s < batch->sequences; s++) {
    double length = batch->start[s + 1] - batch->start[s];
    const double unseen = batch->window > 0 && batch->window < length ? length - batch->window : 0;
    pairs += length * (length + 1) / 2 - unseen * (unseen + 1) / 2;
  }
  split(o, cpu_of(o)->kernels->attention_backward, &c, (size_t)batch->sequences * (size_t)G, 1,
        10.0 * pairs * H * E / 20);
}

static void ops_swiglu_backward(const struct ops *o, void *dgate, void *dup, const float *dh, const float *gate,
                                const float *up, const int32_t *row, int T, int F) {
  struct swiglu_backward_args c = {
      .format = o->format, .dgate = dgate, .dup = dup, .dh = dh, .gate = gate, .up = up, .row = row, .F = F};
  split(o, cpu_of(o)->kernels->swiglu_backward, &c, (size_t)T, 1, 2.0 * T * F);
}

static void ops_geglu_backward(const struct ops *o, void *dgate, void *dup, const float *dh, const float *gate,
                               const float *up, const int32_t *row, int T, int F) {
  struct swiglu_backward_args c = {
      .format = o->format, .dgate = dgate, .dup = dup, .dh = dh, .gate = gate, .up = up, .row = row, .F = F};
  split(o, cpu_of(o)->kernels->geglu_backward, &c, (size_t)T, 1, 2.2 * T * F);
}

static void ops_soft_cap_backward(const struct ops *o, void *d, const float *capped, float cap, size_t n) {
  struct soft_cap_args c = {.format = o->format, .d = d, .capped = capped, .cap = cap};
  split(o, cpu_of(o)->kernels->soft_cap_backward, &c, n, 256, 0.6 * (double)n);
}

static void ops_share_backward(const struct ops *o, float *dshare, float *dh, const void *h, const float *share,
                               const int32_t *slot, const int32_t *saved, const int32_t *pair, int count, int F) {
  struct share_backward_args c = {.format = o->format,
                                  .dshare = dshare,
                                  .dh = dh,
                                  .h = h,
                                  .share = share,
                                  .slot = slot,
                                  .saved = saved,
                                  .pair = pair,
                                  .F = F};
  split(o, cpu_of(o)->kernels->share_backward, &c, (size_t)count, 1, 0.6 * count * F);
}

static void ops_route_backward(const struct ops *o, void *dlogits, const float *dshare, const float *prob,
                               const int32_t *expert, const float *share, const int32_t *row, bool normalize, int T,
                               int N, int k) {
  struct route_backward_args c = {.format = o->format,
                                  .dlogits = dlogits,
                                  .dshare = dshare,
                                  .prob = prob,
                                  .expert = expert,
                                  .share = share,
                                  .row = row,
                                  .normalize = normalize,
                                  .N = N,
                                  .k = k};
  split(o, cpu_of(o)->kernels->route_backward, &c, (size_t)T, 1, 1.0 * T * (N + k));
}

static void ops_logprob_backward(const struct ops *o, void *dlogits, const float *dlogprob, const float *dentropy,
                                 const float *entropy, const float *logits, const float *lse, const int32_t *target,
                                 float temperature, int T, int V) {
  struct logprob_backward_args c = {.format = o->format,
                                    .dlogits = dlogits,
                                    .dlogprob = dlogprob,
                                    .dentropy = dentropy,
                                    .entropy = entropy,
                                    .logits = logits,
                                    .lse = lse,
                                    .target = target,
                                    .temperature = temperature,
                                    .V = V};
  split(o, cpu_of(o)->kernels->logprob_backward, &c, (size_t)T, 1, 1.0 * T * V);
}

/* --- optimizer --- */

static bool accumulate(const struct ops *o, int64_t *acc, const float *g, float *clear, size_t n, int scale_log2) {
  bool bad = false;
  struct accumulate_args c = {.acc = acc, .g = g, .clear = clear, .scale = ldexp(1.0, scale_log2), .bad = &bad};
  split(o, cpu_of(o)->kernels->accumulate, &c, n, 4096, 2.0 * (double)n);
  return !bad;
}

static bool ops_accumulate(const struct ops *o, int64_t *acc, const float *g, size_t n, int scale_log2) {
  return accumulate(o, acc, g, NULL, n, scale_log2);
}

static bool ops_accumulate_and_clear(const struct ops *o, int64_t *acc, float *g, size_t n, int scale_log2) {
  return accumulate(o, acc, g, g, n, scale_log2);
}

static void ops_grad_from_accumulator(const struct ops *o, float *g, int64_t *acc, size_t n, int scale_log2,
                                      double denominator) {
  struct grad_args c = {.g = g, .acc = acc, .scale = ldexp(1.0, -scale_log2), .denominator = denominator};
  split(o, cpu_of(o)->kernels->grad_from_accumulator, &c, n, 4096, 1.5 * (double)n);
}

_Static_assert((int)CPU_SQUARES_BLOCK == (int)SHARD_BLOCK, "shards hold whole blocks of the norm");

static double ops_sum_of_squares(const struct ops *o, const float *g, size_t n) {
  const struct cpu_ops *cpu = cpu_of(o);
  size_t blocks = (n + CPU_SQUARES_BLOCK - 1) / CPU_SQUARES_BLOCK;
  double sum = 0.0;
  for (size_t first = 0; first < blocks; first += SQUARES_STEP) {
    size_t count = blocks - first < SQUARES_STEP ? blocks - first : SQUARES_STEP;
    struct squares_args c = {.g = g, .n = n, .first = first, .sums = cpu->squares};
    split(o, cpu->kernels->sum_of_squares, &c, count, 1, 0.5 * (double)n);
    for (size_t b = 0; b < count; b++) sum = sum + cpu->squares[b];
  }
  return sum;
}

static void ops_adamw(const struct ops *o, float *master, float *m, float *v, const float *g, const struct adamw *step,
                      size_t n) {
  struct adamw_args c = {.master = master, .m = m, .v = v, .g = g, .step = step};
  split(o, cpu_of(o)->kernels->adamw, &c, n, 4096, 2.0 * (double)n);
}

static void ops_adamw8(const struct ops *o, float *master, const struct moments8 *moments, const float *g,
                       const struct adamw *step, size_t first, size_t n) {
  const size_t blocks = n <= first ? n > 0 : 1 + (n - first + MOMENT_BLOCK - 1) / MOMENT_BLOCK;
  struct adamw8_args c = {.master = master,
                          .moments = *moments,
                          .g = g,
                          .step = step,
                          .first = first,
                          .n = n,
                          .values = &cpu_of(o)->moments};
  assert(first > 0 && first <= MOMENT_BLOCK);
  split(o, cpu_of(o)->kernels->adamw8, &c, blocks, 16, 4.0 * (double)n);
}

/* Decade after decade, from 10^(d - 7) on; m has half as many codes, for its sign, and begins a decade later. */
static void moment_values_make(struct moment_values *out) {
  static const double powers[] = {1e-7, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1};
  for (int d = 0; d < 7; d++) {
    for (int j = 0; j < 2 << d; j++) {
      const int cells = 2 << d;
      out->v[cells - 1 + j] = (float)(powers[d] + 9 * powers[d] * ((j + 0.5) / cells));
    }
    for (int j = 0; d > 0 && j < 1 << d; j++) {
      const int cells = 1 << d;
      out->m[cells - 1 + j] = (float)(powers[d] + 9 * powers[d] * ((j + 0.5) / cells));
    }
  }
  out->m[127] = out->v[255] = 1;
  for (int code = 0; code < 128; code++) out->m[128 + code] = -out->m[code];
}

/* --- creation --- */

static void ops_destroy(struct ops *o) {
  struct cpu_ops *cpu = (struct cpu_ops *)(void *)o;
  ops_release(o, cpu->scratch);
  ops_release(o, cpu->squares);
  free(cpu);
}

static const struct ops operations = {
    .device = "cpu",
    .host_memory = true,
    .head_dim_max = CPU_HEAD_DIM_MAX,
    .caps_scores = true,
    .status = ops_status,
    .repeat_begin = ops_repeat_begin,
    .repeat_end = ops_repeat_end,
    .destroy = ops_destroy,
    .alloc = ops_alloc,
    .release = ops_release,
    .room = ops_room,
    .upload = ops_copy,
    .download = ops_copy,
    .copy = ops_copy,
    .clear = ops_clear,
    .move_rows = ops_move_rows,
    .matrix_bytes = ops_matrix_bytes,
    .matrix_pack = ops_matrix_pack,
    .matrix_pack_transposed = ops_matrix_pack_transposed,
    .matrix_transpose = ops_matrix_transpose,
    .matrix_unpack_rows = ops_matrix_unpack_rows,
    .to_operand = ops_to_operand,
    .from_operand = ops_from_operand,
    .largest = ops_largest,
    .embed = ops_embed,
    .rmsnorm = ops_rmsnorm,
    .gemm = ops_gemm,
    .add_bias = ops_add_bias,
    .head_norm_rope = ops_head_norm_rope,
    .kv_write = ops_kv_write,
    .attention = ops_attention,
    .swiglu = ops_swiglu,
    .geglu = ops_geglu,
    .scale = ops_scale,
    .add_operand = ops_add_operand,
    .soft_cap = ops_soft_cap,
    .route = ops_route,
    .add_rows = ops_add_rows,
    .share_rows = ops_share_rows,
    .logprob = ops_logprob,
    .cut = ops_cut,
    .sample = ops_sample,
    .embed_backward = ops_embed_backward,
    .rmsnorm_backward = ops_rmsnorm_backward,
    .gemm_weight_backward = ops_gemm_weight_backward,
    .add_bias_backward = ops_add_bias_backward,
    .head_norm_rope_backward = ops_head_norm_rope_backward,
    .attention_backward = ops_attention_backward,
    .swiglu_backward = ops_swiglu_backward,
    .geglu_backward = ops_geglu_backward,
    .soft_cap_backward = ops_soft_cap_backward,
    .share_backward = ops_share_backward,
    .route_backward = ops_route_backward,
    .logprob_backward = ops_logprob_backward,
    .accumulate = ops_accumulate,
    .accumulate_and_clear = ops_accumulate_and_clear,
    .grad_from_accumulator = ops_grad_from_accumulator,
    .sum_of_squares = ops_sum_of_squares,
    .adamw = ops_adamw,
    .adamw8 = ops_adamw8,
};

enum rc ops_cpu_check(const char *isa, struct err *err) {
  struct cpu_level level;
  return cpu_level_choose(&level, isa, err);
}

enum rc ops_cpu_create(struct ops **out, enum number_format format, const char *isa, struct pool *pool,
                       struct err *err) {
  struct cpu_level level;
  *out = NULL;
  const enum rc rc = cpu_level_choose(&level, isa, err);
  return rc == RC_OK ? cpu_ops_create(out, format, level.kernels, level.ops_name, pool, err) : rc;
}

/* About what a core of today reaches at the level. */
static double flops_per_ns(const char *level) {
  static const struct {
    const char *level;
    double flops_per_ns;
  } known[] = {{"amx", 400}, {"v4_bf16", 120}, {"v4", 60}, {"v3", 30}};
  for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
    if (strcmp(level, known[i].level) == 0) return known[i].flops_per_ns;
  return 8;
}

enum rc cpu_ops_create(struct ops **out, enum number_format format, const struct cpu_kernels *kernels, const char *name,
                       struct pool *pool, struct err *err) {
  const int threads = pool ? pool_threads(pool) : 1;
  *out = NULL;
  struct cpu_ops *cpu = calloc(1, sizeof *cpu);
  if (!cpu)
    return err_set(err, RC_NO_MEMORY, NULL, "the operation table needs %zu bytes, which were refused", sizeof *cpu);
  cpu->ops = operations;
  cpu->ops.name = name;
  cpu->ops.format = format;
  cpu->ops.operand_bytes = format == FORMAT_BF16 ? 2 : 4;
  cpu->ops.pool = pool;
  cpu->ops.scratch_bytes = (size_t)threads * CPU_SCRATCH_BYTES + SQUARES_STEP * sizeof(double);
  cpu->kernels = kernels;
  cpu->flops_per_ns = flops_per_ns(kernels->level);
  cpu->threads = threads;
  moment_values_make(&cpu->moments);
  cpu->scratch = ops_alloc(&cpu->ops, (size_t)threads * CPU_SCRATCH_BYTES);
  cpu->squares = ops_alloc(&cpu->ops, SQUARES_STEP * sizeof(double));
  if (!cpu->scratch || !cpu->squares) {
    ops_free(&cpu->ops);
    return err_set(err, RC_NO_MEMORY, NULL, "the kernels' scratch needs %zu bytes for %d threads, which were refused",
                   (size_t)threads * CPU_SCRATCH_BYTES, threads);
  }
  *out = &cpu->ops;
  return RC_OK;
}
