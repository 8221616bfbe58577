/* Computes the router's choice and the weighted sums of layers of experts, forward and backward (NUMERICS.md,
 * "Experts").  The products themselves are gemm's, called for each expert. */
#include "common/base/limits.h"
#include "common/model/cpu/isa/elementary.h"

/* SUM of n numbers. */
static float sum_row(const float *x, int n) {
  struct f16 lanes = {{{0}}};
  for (int i = 0; i < n; i += 16)
    for (int p = 0; p < PARTS; p++)
      if (n - i - p * VL > 0) lanes.v[p] = lanes.v[p] + load_some(x + i + p * VL, n - i - p * VL);
  return tree16(lanes);
}

/* z [N] to its softmax. */
static void soften(float *z, int N) {
  float max = -HUGE_VALF;
  for (int e = 0; e < N; e++) max = z[e] > max ? z[e] : max;
  for (int e = 0; e < N; e += VL) store_some(z + e, vexp(load_some(z + e, N - e) - max), N - e);
  const float sum = sum_row(z, N);
  for (int e = 0; e < N; e++) z[e] = z[e] / sum;
}

/* The k largest of z [N], of equals the lower ones, ascending; k different ones whatever z holds. */
static void choose(int32_t *expert, const float *z, int N, int k) {
  bool taken[LIMIT_EXPERTS] = {false};
  for (int j = 0; j < k; j++) {
    int best = -1;
    for (int e = 0; e < N; e++)
      if (!taken[e] && (best < 0 || z[e] > z[best])) best = e;
    taken[best] = true;
  }
  for (int e = 0; e < N; e++)
    if (taken[e]) *expert++ = e;
}

void ISA_NAME(route)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct route_args *c = args;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    float *prob = c->prob + t * (size_t)c->N, *share = c->share + t * (size_t)c->k;
    int32_t *expert = c->expert + t * (size_t)c->k;
    choose(expert, prob, c->N, c->k);
    soften(prob, c->N);
    for (int j = 0; j < c->k; j++) share[j] = prob[expert[j]];
    if (!c->normalize) continue;
    const float sum = sum_row(share, c->k);
    for (int j = 0; j < c->k; j++) share[j] = share[j] / sum;
  }
}

void ISA_NAME(add_rows)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct add_rows_args *c = args;
  const size_t D = (size_t)c->D;
  (void)scratch;
  for (size_t i = begin; i < end; i++) {
    float *restrict x = c->x + (size_t)c->row[i] * D;
    const float *restrict y = c->y + i * D, share = c->share ? c->share[c->slot[i]] : 1.0f;
    for (size_t d = 0; d < D; d++) x[d] = x[d] + y[d] * share;
  }
}

void ISA_NAME(share_rows)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct share_rows_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  const size_t D = (size_t)c->D;
  (void)scratch;
  for (size_t i = begin; i < end; i++) {
    const float *x = c->x + (size_t)c->row[i] * D, share = c->share[c->slot[i]];
    for (size_t d = 0; d < D; d += VL) {
      const int n = D - d < VL ? (int)(D - d) : VL;
      store_some_operands(c->out, i * D + d, load_some(x + d, n) * share, n, f32);
    }
  }
}

void ISA_NAME(share_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct share_backward_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  const size_t F = (size_t)c->F;
  (void)scratch;
  for (size_t i = begin; i < end; i++) {
    const size_t h = (size_t)c->pair[i] * F;
    const float share = c->share[c->saved[i]];
    float *dh = c->dh + i * F;
    struct f16 lanes = {{{0}}};
    for (size_t f = 0; f < F; f += VL) {
      const int n = F - f < VL ? (int)(F - f) : VL;
      const vf d = load_some(dh + f, n);
      vf *lane = &lanes.v[f / VL % PARTS];
      *lane = *lane + d * load_some_operands(c->h, h + f, n, f32);
      store_some(dh + f, d * share, n);
    }
    c->dshare[c->slot[i]] = tree16(lanes);
  }
}

void ISA_NAME(route_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct route_backward_args *c = args;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    const size_t saved = row_of(c->row, t);
    const float *prob = c->prob + saved * (size_t)c->N, *share = c->share + saved * (size_t)c->k;
    const float *dshare = c->dshare + t * (size_t)c->k;
    const int32_t *expert = c->expert + saved * (size_t)c->k;
    float dz[LIMIT_EXPERTS];
    const float inner = sum_products(share, dshare, c->k);
    for (int e = 0; e < c->N; e++) dz[e] = c->normalize ? 0.0f : prob[e] * (0.0f - inner);
    for (int j = 0; j < c->k; j++) dz[expert[j]] = share[j] * (dshare[j] - inner);
    round_row(c->dlogits, t * (size_t)c->N, dz, c->N, c->format == FORMAT_F32);
  }
}
