/* Gradients of the row-wise kernels.  dx is split over rows; parameter gradients are split over columns, so that
 * every column adds its tokens in order, from the value that stands there. */
#include "common/model/cpu/isa/elementary.h"

enum { CHUNK = 256 };

void ISA_NAME(embed_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct embed_backward_args *c = args;
  size_t D = (size_t)c->D;
  (void)scratch;
  for (size_t t = 0; t < (size_t)c->T; t++) {
    float *restrict sum = c->dtable + (size_t)c->token[t] * D;
    const float *restrict dx = c->dx + t * D;
    for (size_t d = begin; d < end; d++) sum[d] = sum[d] + dx[d];
  }
}

/* SUM of (dy * w) * x over a row, in 16 lanes. */
static float sum_gradient(const float *dy, const float *w, const float *x, int n) {
  struct f16 lanes = {{{0}}};
  int i = 0;
  for (; i + 16 <= n; i += 16)
    for (int p = 0; p < PARTS; p++) {
      int at = i + p * VL;
      lanes.v[p] = lanes.v[p] + (vload(dy + at) * vload(w + at)) * vload(x + at);
    }
  if (i < n) {
    float a[16] = {0}, b[16] = {0}, e[16] = {0};
    size_t bytes = (size_t)(n - i) * sizeof *dy;
    memcpy(a, dy + i, bytes);
    memcpy(b, w + i, bytes);
    memcpy(e, x + i, bytes);
    for (int p = 0; p < PARTS; p++)
      lanes.v[p] = lanes.v[p] + (vload(a + p * VL) * vload(b + p * VL)) * vload(e + p * VL);
  }
  return tree16(lanes);
}

/* The whole weight row, widened into scratch: [D] floats, or fewer when D exceeds it. */
static const float *weight_row(const void *w, int D, bool f32, float *scratch) {
  if (f32) return w;
  widen_row(scratch, w, 0, D, false);
  return scratch;
}

void ISA_NAME(rmsnorm_backward_x)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rmsnorm_backward_args *c = args;
  size_t D = (size_t)c->D;
  const float *w = weight_row(c->w, c->D, c->format == FORMAT_F32, scratch);
  for (size_t t = begin; t < end; t++) {
    const float *dy = c->dy + t * D, *x = c->x + t * D;
    float *restrict dx = c->dx + t * D;
    float rstd = c->rstd[t], share = (((sum_gradient(dy, w, x, c->D) * rstd) * rstd) / (float)c->D) * rstd;
    for (size_t d = 0; d < D; d++) dx[d] = dx[d] + ((dy[d] * w[d]) * rstd - x[d] * share);
  }
}

void ISA_NAME(rmsnorm_backward_w)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rmsnorm_backward_args *c = args;
  size_t D = (size_t)c->D;
  (void)scratch;
  for (size_t t = 0; t < (size_t)c->T; t++) {
    const float *dy = c->dy + t * D, *x = c->x + t * D;
    float *restrict dw = c->dw, rstd = c->rstd[t];
    for (size_t d = begin; d < end; d++) dw[d] = dw[d] + (dy[d] * x[d]) * rstd;
  }
}

/* The rotation's transpose over the pairs [first, last): a = gradient of element e, b = of e + half. */
INLINE void unrotate(float *restrict a, float *restrict b, const float *restrict dy, const float *restrict rope,
                     int half, int first, int last) {
  for (int e = first; e < last; e++) {
    float y1 = dy[e], y2 = dy[e + half], cosine = rope[2 * e], sine = rope[2 * e + 1];
    a[e - first] = y1 * cosine + y2 * sine;
    b[e - first] = y2 * cosine - y1 * sine;
  }
}

void ISA_NAME(head_norm_rope_backward_x)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rope_backward_args *c = args;
  size_t H = (size_t)c->H, E = (size_t)c->E;
  int half = c->E / 2;
  const float *w = c->w ? weight_row(c->w, c->E, c->format == FORMAT_F32, scratch) : NULL;
  for (size_t t = begin; t < end; t++) {
    const float *rope = c->rope + (size_t)c->position[t] * E;
    for (size_t row = t * H; row < (t + 1) * H; row++) {
      float g[CPU_HEAD_DIM_MAX];
      const float *x = c->x + row * E;
      float *restrict dx = c->dx + row * E;
      unrotate(g, g + half, c->dy + row * E, rope, half, 0, half);
      if (!w) {
        memcpy(dx, g, E * sizeof *dx);
        continue;
      }
      float rstd = c->rstd[row], share = (((sum_gradient(g, w, x, c->E) * rstd) * rstd) / (float)c->E) * rstd;
      for (size_t e = 0; e < E; e++) dx[e] = (g[e] * w[e]) * rstd - x[e] * share;
    }
  }
}

void ISA_NAME(head_norm_rope_backward_w)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rope_backward_args *c = args;
  size_t H = (size_t)c->H, E = (size_t)c->E;
  int half = c->E / 2, first = (int)begin, last = (int)end, n = last - first;
  float *restrict dw1 = c->dw + first, *restrict dw2 = c->dw + half + first;
  (void)scratch;
  for (size_t t = 0; t < (size_t)c->T; t++) {
    const float *rope = c->rope + (size_t)c->position[t] * E;
    for (size_t row = t * H; row < (t + 1) * H; row++) {
      float a[CPU_HEAD_DIM_MAX / 2], b[CPU_HEAD_DIM_MAX / 2], rstd = c->rstd[row];
      const float *x = c->x + row * E;
      unrotate(a, b, c->dy + row * E, rope, half, first, last);
      for (int i = 0; i < n; i++) dw1[i] = dw1[i] + (a[i] * x[first + i]) * rstd;
      for (int i = 0; i < n; i++) dw2[i] = dw2[i] + (b[i] * x[half + first + i]) * rstd;
    }
  }
}

void ISA_NAME(swiglu_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct swiglu_backward_args *c = args;
  (void)scratch;
  for (size_t at = begin; at < end; at += CHUNK) {
    float gate[CHUNK], e[CHUNK], dgate[CHUNK], dup[CHUNK];
    int n = end - at < CHUNK ? (int)(end - at) : CHUNK;
    const float *dh = c->dh + at, *up = c->up + at;
    memset(e, 0, sizeof e);
    memcpy(gate, c->gate + at, (size_t)n * sizeof *gate);
    for (int i = 0; i < n; i++) e[i] = -gate[i];
    exp_buffer(e, e, n);
    for (int i = 0; i < n; i++) {
      float s = 1.0f / (1.0f + e[i]);
      dup[i] = dh[i] * (gate[i] * s);
      dgate[i] = (dh[i] * up[i]) * (s * (1.0f + gate[i] * (1.0f - s)));
    }
    round_row(c->dgate, at, dgate, n, c->format == FORMAT_F32);
    round_row(c->dup, at, dup, n, c->format == FORMAT_F32);
  }
}
