/* Computes log-probabilities, their gradients and draws from rows of logits, and cuts rows; NUMERICS.md, "Vocabulary",
 * "Cuts" and "Sampling", to the bit.
 *
 *   row_max_kernel     (row, slice)     the largest z of a slice of the vocabulary
 *   block_sums_kernel  (row, 32 blocks) SUM of exp(z - max) of each block of 256 entries, by half a warp
 *   logprob_kernel     (row)            the blocks' sums in order, and the log-probability
 *   cut_kernel         (row)            finds the beginning of the row's order that is kept, by the bits of its keys
 *   sample_kernel      (draw)           the same, then the walk through the blocks and through one of them
 *
 * Intermediate results are in the table's scratch; more rows than it holds are taken in turns.  Letters as in ops.h. */
#include <assert.h>

#include "common/model/cuda/cuda_table.h"
#include "common/model/cuda/device.h"

enum {
  BLOCK = 256,       /* entries of the vocabulary */
  SLICES = 32,       /* of the vocabulary, for the maximum */
  SUM_THREADS = 512, /* 32 half warps: 32 blocks */
  WALK_THREADS = 128,
  BLOCKS_MAX = 4096, /* LIMIT: a vocabulary of 1,048,576 */
  DRAWS_MAX = 1024   /* taken at once */
};

/* The rows to sum: logits and temperatures.  draws NULL: row t with `temperature`, unless target[t] < 0. */
struct summed {
  const float *logits;
  const struct draw *draws;
  const int32_t *target;
  float temperature;
  int V;
};

/* For every row: [SLICES] maxima, [blocks] sums, [blocks] sums of p z (NULL: not wanted). */
struct partials {
  float *max, *sums, *weighted;
};

DEVICE bool is_summed(const struct summed *s, size_t t) { return !s->target || s->target[t] >= 0; }
DEVICE const float *row_logits(const struct summed *s, size_t t) {
  return s->logits + (s->draws ? (size_t)s->draws[t].row : t) * (size_t)s->V;
}
DEVICE float row_temperature(const struct summed *s, size_t t) {
  if (!s->draws) return s->temperature;
  return s->draws[t].temperature > 0.0f ? s->draws[t].temperature : 1.0f;
}
DEVICE float z_of(float logit, float temperature) { return temperature == 1.0f ? logit : logit / temperature; }
DEVICE float larger(float a, float b) { return a > b ? a : b; } /* b when one is not a number */

DEVICE float largest_of_warp(float x) {
  for (int width = WARP / 2; width >= 1; width /= 2) x = larger(__shfl_xor_sync(ALL_LANES, x, width), x);
  return x;
}

static __global__ void row_max_kernel(struct partials out, struct summed s) {
  __shared__ float warps[CUDA_THREADS / WARP];
  const size_t t = blockIdx.x;
  const int per_slice = (s.V + SLICES - 1) / SLICES, first = (int)blockIdx.y * per_slice;
  const int end = first + per_slice < s.V ? first + per_slice : s.V;
  if (!is_summed(&s, t)) return;
  const float *logits = row_logits(&s, t), temperature = row_temperature(&s, t);
  float most = -HUGE_VALF;
  for (int v = first + (int)threadIdx.x; v < end; v += CUDA_THREADS) most = larger(z_of(logits[v], temperature), most);
  most = largest_of_warp(most);
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = most;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < CUDA_THREADS / WARP; w++) most = larger(warps[w], most);
  out.max[t * SLICES + blockIdx.y] = most;
}

/* By a whole warp. */
DEVICE float row_max(const struct partials *p, size_t t) {
  return largest_of_warp(p->max[t * SLICES + threadIdx.x % WARP]);
}

static __global__ void block_sums_kernel(struct partials out, struct summed s, int blocks) {
  const size_t t = blockIdx.x;
  const int block = (int)blockIdx.y * (SUM_THREADS / 16) + (int)threadIdx.x / 16, first = block * BLOCK;
  if (!is_summed(&s, t)) return;
  const float *logits = row_logits(&s, t), temperature = row_temperature(&s, t), max = row_max(&out, t);
  float lane = 0.0f, weighted = 0.0f;
  for (int v = first + (int)threadIdx.x % 16; v < first + BLOCK && v < s.V; v += 16) {
    const float z = z_of(logits[v], temperature), p = exact_exp(z - max);
    lane = lane + p;
    weighted = weighted + (p == 0.0f ? 0.0f : p * z); /* z may be -infinity */
  }
  lane = tree_of_lanes(lane);
  weighted = tree_of_lanes(weighted);
  if (threadIdx.x % 16 != 0 || block >= blocks) return;
  out.sums[t * (size_t)blocks + (size_t)block] = lane;
  if (out.weighted) out.weighted[t * (size_t)blocks + (size_t)block] = weighted;
}

/* The sums in order. */
DEVICE float in_order(const float *sums, int blocks) {
  float total = 0.0f;
  for (int b = 0; b < blocks; b++) total = total + sums[b];
  return total;
}

static __global__ void logprob_kernel(float *logprob, float *lses, float *entropy, struct partials in, struct summed s,
                                      int blocks) {
  __shared__ float sums[BLOCKS_MAX];
  const size_t t = blockIdx.x, at = t * (size_t)blocks;
  if (!is_summed(&s, t)) {
    if (threadIdx.x == 0) {
      logprob[t] = lses[t] = 0.0f;
      if (entropy) entropy[t] = 0.0f;
    }
    return;
  }
  for (int b = (int)threadIdx.x; b < blocks; b += WALK_THREADS) sums[b] = in.sums[at + (size_t)b];
  __syncthreads();
  const float max = row_max(&in, t), total = in_order(sums, blocks), lse = max + exact_log(total);
  __syncthreads();
  if (entropy) {
    for (int b = (int)threadIdx.x; b < blocks; b += WALK_THREADS) sums[b] = in.weighted[at + (size_t)b];
    __syncthreads();
  }
  if (threadIdx.x != 0) return;
  lses[t] = lse;
  logprob[t] = z_of(row_logits(&s, t)[s.target[t]], s.temperature) - lse;
  if (entropy) entropy[t] = lse - in_order(sums, blocks) / total;
}

/* --- drawing --- */

/* The lowest of the largest logits of slices; 0 when the first is not a number.  By one thread. */
DEVICE int greedy_token(const float *logits, int V, const float *slice_max, float max) {
  const int per_slice = (V + SLICES - 1) / SLICES;
  int slice = 0;
  if (logits[0] != logits[0]) return 0;
  while (slice < SLICES - 1 && !(slice_max[slice] == max)) slice++;
  for (int v = slice * per_slice; v < V; v++)
    if (logits[v] == max) return v;
  return 0;
}

/* The block that the threshold falls into, and the sum before it. */
DEVICE int choose_block(const float *sums, int blocks, float threshold, float *before) {
  float running = 0.0f;
  int chosen = 0;
  *before = 0.0f;
  for (int b = 0; b < blocks; b++) {
    if (sums[b] > 0.0f) {
      chosen = b;
      *before = running;
    }
    if (running + sums[b] > threshold) break;
    running = running + sums[b];
  }
  return chosen;
}

/* The first entry whose running sum exceeds the threshold, else the last with p > 0. */
DEVICE int walk_block(const float *p, int n, float running, float threshold) {
  int last = 0;
  for (int i = 0; i < n; i++) {
    running = running + p[i];
    if (running > threshold) return i;
    if (p[i] > 0.0f) last = i;
  }
  return last;
}

static __global__ void sample_kernel(struct draw *draws, struct partials in, struct summed s, int blocks) {
  __shared__ float sums[BLOCKS_MAX], p[BLOCK], before;
  __shared__ int chosen;
  const size_t t = blockIdx.x;
  const float *logits = row_logits(&s, t), temperature = row_temperature(&s, t), max = row_max(&in, t);
  for (int b = (int)threadIdx.x; b < blocks; b += WALK_THREADS) sums[b] = in.sums[t * (size_t)blocks + (size_t)b];
  __syncthreads();
  const float total = in_order(sums, blocks), threshold = draws[t].u * total;
  if (threadIdx.x == 0) chosen = choose_block(sums, blocks, threshold, &before);
  __syncthreads();
  const int first = chosen * BLOCK, n = s.V - first < BLOCK ? s.V - first : BLOCK;
  for (int i = (int)threadIdx.x; i < n; i += WALK_THREADS) p[i] = exact_exp(z_of(logits[first + i], temperature) - max);
  __syncthreads();
  if (threadIdx.x != 0) return;
  const bool greedy = !(draws[t].temperature > 0.0f);
  const int token =
      greedy ? greedy_token(logits, s.V, in.max + t * SLICES, max) : first + walk_block(p, n, before, threshold);
  draws[t].token = token;
  draws[t].logprob = z_of(logits[token], temperature) - (max + exact_log(total));
}

/* --- operations --- */

static int blocks_of(int V) { return (V + BLOCK - 1) / BLOCK; }

/* Rows that the scratch holds partial results of, behind `reserved` bytes of it. */
static int rows_at_once(int V, size_t reserved) {
  const size_t each = (SLICES + 2 * (size_t)blocks_of(V)) * sizeof(float);
  return (int)((CUDA_SCRATCH_BYTES - reserved) / each);
}

static void sum_rows(struct cuda_ops *c, struct partials *out, const struct summed *s, int rows, size_t reserved,
                     bool weighted) {
  const int blocks = blocks_of(s->V), per_launch = SUM_THREADS / 16;
  out->max = (float *)(c->scratch + reserved);
  out->sums = out->max + (size_t)rows * SLICES;
  out->weighted = weighted ? out->sums + (size_t)rows * (size_t)blocks : NULL;
  cuda_launch(c, "the logits' maximum", row_max_kernel, dim3((unsigned)rows, SLICES), CUDA_THREADS, 0, *out, *s);
  cuda_launch(c, "softmax", block_sums_kernel, dim3((unsigned)rows, (unsigned)((blocks + per_launch - 1) / per_launch)),
              SUM_THREADS, 0, *out, *s, blocks);
}

void cuda_logprob(const struct ops *o, float *logprob, float *lse, float *entropy, const float *logits,
                  const int32_t *target, float temperature, int T, int V) {
  struct cuda_ops *c = cuda_of(o);
  const int at_once = rows_at_once(V, 0);
  assert(blocks_of(V) <= BLOCKS_MAX);
  for (int first = 0; first < T; first += at_once) {
    const int rows = T - first < at_once ? T - first : at_once;
    const struct summed s = {logits + (size_t)first * (size_t)V, NULL, target + first, temperature, V};
    struct partials partials;
    sum_rows(c, &partials, &s, rows, 0, entropy != NULL);
    cuda_launch(c, "log-probabilities", logprob_kernel, (unsigned)rows, WALK_THREADS, 0, logprob + first, lse + first,
                entropy ? entropy + first : NULL, partials, s, blocks_of(V));
  }
}

void cuda_sample(const struct ops *o, struct draw *draws, int count, const float *logits, int V) {
  struct cuda_ops *c = cuda_of(o);
  const size_t reserved = DRAWS_MAX * sizeof(struct draw);
  struct draw *on_device = (struct draw *)c->scratch;
  const int room = rows_at_once(V, reserved), at_once = room < DRAWS_MAX ? room : DRAWS_MAX;
  assert(blocks_of(V) <= BLOCKS_MAX);
  for (int first = 0; first < count; first += at_once) {
    const int rows = count - first < at_once ? count - first : at_once;
    const struct summed s = {logits, on_device, NULL, 1.0f, V};
    struct partials partials;
    cuda_upload(o, on_device, draws + first, (size_t)rows * sizeof *draws);
    sum_rows(c, &partials, &s, rows, reserved, false);
    cuda_launch(c, "drawing tokens", sample_kernel, (unsigned)rows, WALK_THREADS, 0, on_device, partials, s,
                blocks_of(V));
    cuda_download(o, draws + first, on_device, (size_t)rows * sizeof *draws);
  }
}

/* --- cuts --- */

enum { CUT_BINS = 1 << 11 }; /* 11, 11 and 10 bits of an entry's key */

/* Shared by a block: entries by one level of their keys, and what is kept so far. */
struct cut_state {
  unsigned long long weight[CUT_BINS]; /* sum of p in units of 2^-40 */
  int count[CUT_BINS];
  uint32_t key;             /* every entry of a larger key is kept, */
  unsigned long long sum;   /* entries, or the weight, of these; */
  unsigned long long all;   /* the weight of all that is kept; */
  int equals, last;         /* so many entries of this key, the last of them at this index */
  bool ties;                /* which are not all of them */
};

/* Larger for what comes first; equal for equal z. */
DEVICE uint32_t order_key(float z) {
  const uint32_t bits = bits_of(z + 0.0f); /* -0 is 0 */
  if (z != z) return 0xffffffffu;
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

DEVICE unsigned long long cut_weight(float p) {
  return p > 0.0f ? (unsigned long long)(p * 1099511627776.0f) : 0; /* 2^40 */
}

/* The bins of the entries whose key begins with s->key, by the `bits` bits behind it, of which `shift` follow.  By a
 * whole block, as is all below. */
DEVICE void fill_bins(struct cut_state *s, const float *logits, float temperature, float max, int V, int bits,
                      int shift) {
  for (int b = (int)threadIdx.x; b < CUT_BINS; b += CUDA_THREADS) s->weight[b] = 0, s->count[b] = 0;
  __syncthreads();
  for (int v = (int)threadIdx.x; v < V; v += CUDA_THREADS) {
    const float z = z_of(logits[v], temperature);
    const uint32_t key = order_key(z);
    if (bits + shift < 32 && key >> (bits + shift) != s->key) continue;
    const uint32_t bin = key >> shift & ((1u << bits) - 1);
    atomicAdd(&s->count[bin], 1);
    atomicAdd(&s->weight[bin], cut_weight(exact_exp(z - max)));
  }
  __syncthreads();
}

/* One thread: the bin in which `goal` is reached, from the top. */
DEVICE uint32_t reach(struct cut_state *s, bool by_weight, unsigned long long goal, int bits) {
  uint32_t bin = (1u << bits) - 1;
  for (;; bin--) {
    const unsigned long long more = by_weight ? s->weight[bin] : (unsigned long long)s->count[bin];
    if (s->sum + more >= goal || bin == 0) break;
    s->sum += more;
    s->all += s->weight[bin];
  }
  s->key = s->key << bits | bin;
  return bin;
}

/* The shortest beginning with `goal` entries, or of the weight `goal`; so much there is. */
DEVICE void find_beginning(struct cut_state *s, const float *logits, float temperature, float max, int V,
                           bool by_weight, unsigned long long goal) {
  __syncthreads();
  if (threadIdx.x == 0) s->key = 0, s->sum = s->all = 0;
  __syncthreads();
  for (int level = 0; level < 3; level++) {
    const int bits = level < 2 ? 11 : 10;
    fill_bins(s, logits, temperature, max, V, bits, level == 0 ? 21 : level == 1 ? 10 : 0);
    if (threadIdx.x == 0) {
      const uint32_t bin = reach(s, by_weight, goal, bits);
      if (level == 2) {
        const unsigned long long each = s->weight[bin] / (unsigned long long)s->count[bin]; /* equal z, equal p */
        s->equals = (int)(by_weight ? (goal - s->sum + each - 1) / each : goal - s->sum);
        s->all += (unsigned long long)s->equals * each;
        s->ties = s->equals < s->count[bin];
      }
    }
    __syncthreads();
  }
}

/* One thread: where the last of the kept entries of this key stands.  Ties at the border are rare. */
DEVICE void find_last(struct cut_state *s, const float *logits, float temperature, int V) {
  s->last = V;
  for (int v = 0, found = 0; s->ties && v < V && found < s->equals; v++)
    if (order_key(z_of(logits[v], temperature)) == s->key) s->last = v, found++;
}

static __global__ void cut_kernel(float *all_logits, struct sampling_params cut, int V) {
  __shared__ struct cut_state s;
  __shared__ float warps[CUDA_THREADS / WARP];
  float *logits = all_logits + (size_t)blockIdx.x * (size_t)V, max = -HUGE_VALF;
  const bool by_count = cut.top_k > 0 && cut.top_k < V, by_mass = cut.top_p > 0.0f && cut.top_p < 1.0f;
  for (int v = (int)threadIdx.x; v < V; v += CUDA_THREADS) max = larger(z_of(logits[v], cut.temperature), max);
  max = largest_of_warp(max);
  if (threadIdx.x % WARP == 0) warps[threadIdx.x / WARP] = max;
  __syncthreads();
  max = warps[0];
  for (int w = 1; w < CUDA_THREADS / WARP; w++) max = larger(warps[w], max);
  if (!(max - max == 0.0f)) return; /* no distribution; the same for every thread */
  if (threadIdx.x == 0) s.key = 0, s.ties = false;
  if (by_count || by_mass)
    find_beginning(&s, logits, cut.temperature, max, V, false, (unsigned long long)(by_count ? cut.top_k : V));
  if (by_mass) {
    const unsigned long long need = (unsigned long long)((double)cut.top_p * (double)s.all);
    find_beginning(&s, logits, cut.temperature, max, V, true, need > 0 ? need : 1);
  }
  if (threadIdx.x == 0) find_last(&s, logits, cut.temperature, V);
  __syncthreads();
  for (int v = (int)threadIdx.x; v < V; v += CUDA_THREADS) {
    const float z = z_of(logits[v], cut.temperature);
    const uint32_t key = order_key(z);
    const bool begins = key > s.key || (key == s.key && v <= s.last);
    if (!begins || (cut.min_p > 0.0f && exact_exp(z - max) < cut.min_p)) logits[v] = -HUGE_VALF;
  }
}

void cuda_cut(const struct ops *o, float *logits, const struct sampling_params *cut, int T, int V) {
  cuda_launch(cuda_of(o), "cutting rows", cut_kernel, (unsigned)T, CUDA_THREADS, 0, logits, *cut, V);
}

/* --- the gradient --- */

/* dentropy NULL: no entropy counts. */
static __global__ void logprob_backward_kernel(bf16 *dlogits, const float *dlogprob, const float *dentropy,
                                               const float *entropy, const float *logits, const float *lse,
                                               const int32_t *target, float temperature, int V) {
  const size_t t = blockIdx.y, at = t * (size_t)V;
  const int hot = target[t];
  for (size_t v = grid_thread(); v < (size_t)V; v += grid_threads()) {
    const float log_p = z_of(logits[at + v], temperature) - lse[t], p = exact_exp(log_p);
    float x = dlogprob[t] * ((v == (size_t)hot ? 1.0f : 0.0f) - p);
    if (dentropy && dentropy[t] != 0.0f) x = x - dentropy[t] * (p * (log_p + entropy[t]));
    dlogits[at + v] = hot < 0 ? (bf16)0 : operand(z_of(x, temperature));
  }
}

void cuda_logprob_backward(const struct ops *o, void *dlogits, const float *dlogprob, const float *dentropy,
                           const float *entropy, const float *logits, const float *lse, const int32_t *target,
                           float temperature, int T, int V) {
  enum { ROWS_MAX = 65535, ENTRIES = 4 /* of a thread */ };
  assert(T <= ROWS_MAX);
  cuda_launch(cuda_of(o), "the logits' gradient", logprob_backward_kernel,
              dim3((unsigned)((V + CUDA_THREADS * ENTRIES - 1) / (CUDA_THREADS * ENTRIES)), (unsigned)T), CUDA_THREADS,
              0, (bf16 *)dlogits, dlogprob, dentropy, entropy, logits, lse, target, temperature, V);
}
