/* Over a row of logits: log-probability, its gradient, and the sampler's walk.  All three see the same z = logits /
 * temperature, the same maximum and the same sums in blocks of 256 vocabulary entries (NUMERICS.md, "Vocabulary"),
 * which is why the sampled token's log-probability is the trainer's, bit for bit. */
#include <assert.h>

#include "common/model/cpu/isa/elementary.h"

enum { BLOCK = 256, BLOCKS_MAX = 1 << 16 };

/* z of entries [v, v + n), zero padded to 16. */
INLINE void load_z(float *restrict z, const float *restrict logits, int n, float temperature) {
  for (int i = n; i < round_up(n, 16); i++) z[i] = 0.0f;
  if (temperature == 1.0f)
    memcpy(z, logits, (size_t)n * sizeof *z);
  else
    for (int i = 0; i < n; i++) z[i] = logits[i] / temperature;
}

static float max_row(const float *logits, float temperature, int V) {
  float z[BLOCK];
  struct f16 top;
  for (int p = 0; p < PARTS; p++) top.v[p] = vset(-HUGE_VALF);
  for (int v = 0; v < V; v += BLOCK) {
    int n = V - v < BLOCK ? V - v : BLOCK;
    load_z(z, logits + v, n, temperature);
    for (int i = n; i < round_up(n, 16); i++) z[i] = -HUGE_VALF;
    for (int i = 0; i < n; i += 16)
      for (int p = 0; p < PARTS; p++) top.v[p] = vmax(vload(z + i + p * VL), top.v[p]);
  }
  return max16(top);
}

/* p = exp(z - max) of a block, zero padded to 16; z too. */
INLINE void block_exp(float *p, float *z, const float *logits, int n, float temperature, float max) {
  load_z(z, logits, n, temperature);
  for (int i = 0; i < round_up(n, 16); i++) p[i] = z[i] - max;
  exp_buffer(p, p, n);
  for (int i = n; i < round_up(n, 16); i++) p[i] = 0.0f;
}

void ISA_NAME(logprob)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct logprob_args *c = args;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    const float *logits = c->logits + t * (size_t)c->V;
    if (c->target[t] < 0) {
      c->logprob[t] = c->lse[t] = 0.0f;
      if (c->entropy) c->entropy[t] = 0.0f;
      continue;
    }
    float max = max_row(logits, c->temperature, c->V), sum = 0.0f, weighted = 0.0f, p[BLOCK], z[BLOCK];
    for (int v = 0; v < c->V; v += BLOCK) {
      int n = c->V - v < BLOCK ? c->V - v : BLOCK;
      block_exp(p, z, logits + v, n, c->temperature, max);
      sum = sum + sum_buffer(p, n);
      if (c->entropy) weighted = weighted + sum_products(p, z, round_up(n, 16));
    }
    float lse = max + log_one(sum), target = logits[c->target[t]];
    if (c->temperature != 1.0f) target = target / c->temperature;
    c->lse[t] = lse;
    c->logprob[t] = target - lse;
    if (c->entropy) c->entropy[t] = lse - weighted / sum;
  }
}

void ISA_NAME(logprob_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct logprob_backward_args *c = args;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    const float *logits = c->logits + t * (size_t)c->V;
    for (int v = 0; v < c->V; v += BLOCK) {
      float p[BLOCK], z[BLOCK], d = c->dlogprob[t];
      int n = c->V - v < BLOCK ? c->V - v : BLOCK;
      if (c->target[t] < 0) {
        memset(p, 0, sizeof p);
      } else {
        int hot = c->target[t] - v;
        block_exp(p, z, logits + v, n, c->temperature, c->lse[t]);
        if (hot >= 0 && hot < n) z[hot] = p[hot];
        for (int i = 0; i < n; i++) p[i] = d * (0.0f - p[i]);
        if (hot >= 0 && hot < n) p[hot] = d * (1.0f - z[hot]);
        if (c->temperature != 1.0f)
          for (int i = 0; i < n; i++) p[i] = p[i] / c->temperature;
      }
      round_row(c->dlogits, t * (size_t)c->V + (size_t)v, p, n, c->format == FORMAT_F32);
    }
  }
}

static int32_t argmax(const float *logits, int V) {
  int best = 0;
  for (int v = 1; v < V; v++)
    if (logits[v] > logits[best]) best = v;
  return best;
}

/* The first entry of the block whose running sum exceeds the threshold, else the block's last with p > 0. */
static int32_t walk_block(const float *p, int n, float running, float threshold) {
  int last = 0;
  for (int i = 0; i < n; i++) {
    running = running + p[i];
    if (running > threshold) return i;
    if (p[i] > 0.0f) last = i;
  }
  return last;
}

void ISA_NAME(sample)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct sample_args *c = args;
  float *sums = scratch, p[BLOCK], z[BLOCK];
  int blocks = (c->V + BLOCK - 1) / BLOCK;
  (void)begin;
  (void)end;
  assert(blocks <= BLOCKS_MAX);
  if (!(c->temperature > 0.0f)) {
    *c->token = argmax(c->logits, c->V);
    return;
  }
  float max = max_row(c->logits, c->temperature, c->V), total = 0.0f;
  for (int b = 0; b < blocks; b++) {
    int n = c->V - b * BLOCK < BLOCK ? c->V - b * BLOCK : BLOCK;
    block_exp(p, z, c->logits + b * BLOCK, n, c->temperature, max);
    sums[b] = sum_buffer(p, n);
    total = total + sums[b];
  }
  float threshold = c->u * total, running = 0.0f, before = 0.0f;
  int chosen = 0;
  for (int b = 0; b < blocks; b++) {
    if (sums[b] > 0.0f) {
      chosen = b;
      before = running;
    }
    if (running + sums[b] > threshold) break;
    running = running + sums[b];
  }
  int n = c->V - chosen * BLOCK < BLOCK ? c->V - chosen * BLOCK : BLOCK;
  block_exp(p, z, c->logits + chosen * BLOCK, n, c->temperature, max);
  *c->token = chosen * BLOCK + walk_block(p, n, before, threshold);
}

_Static_assert(BLOCKS_MAX * sizeof(float) <= CPU_SCRATCH_BYTES, "the sampler's scratch");
