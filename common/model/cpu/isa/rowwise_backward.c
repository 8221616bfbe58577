/* Computes the gradients of the row-wise kernels.  dx is split over rows; parameter gradients are split over columns,
 * so that every column adds its tokens in order to its present value. */
#include "common/model/cpu/isa/elementary.h"
#include "common/model/cpu/isa/rope.h"

enum { ROWS = 16 /* a multiple of VL: rows whose shares are taken together */ };

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

void ISA_NAME(add_bias_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct bias_backward_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  const size_t N = (size_t)c->N;
  (void)scratch;
  for (size_t t = 0; t < (size_t)c->T; t++)
    for (size_t at = begin; at < end; at += VL) {
      const int n = end - at < VL ? (int)(end - at) : VL;
      store_some(c->db + at, load_some(c->db + at, n) + load_some_operands(c->dy, t * N + at, n, f32), n);
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
static const float *weight_row(const void *w, bool plus_one, int D, bool f32, float *scratch) {
  if (f32 && !plus_one) return w;
  widen_row(scratch, w, 0, D, f32);
  for (int d = 0; plus_one && d < D; d++) scratch[d] = 1.0f + scratch[d];
  return scratch;
}

/* (((sum * rstd) * rstd) / n) * rstd for some rows at a time. */
INLINE void shares_of(float *shares, const float *sums, const float *rstd, int n) {
  for (int i = 0; i < ROWS; i += VL) {
    const vf r = vload(rstd + i);
    vstore(shares + i, (((vload(sums + i) * r) * r) / (float)n) * r);
  }
}

void ISA_NAME(rmsnorm_backward_x)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rmsnorm_backward_args *c = args;
  const size_t D = (size_t)c->D;
  const float *w = weight_row(c->w, c->plus_one, c->D, c->format == FORMAT_F32, scratch);
  for (size_t first = begin; first < end; first += ROWS) {
    const size_t rows = end - first < ROWS ? end - first : ROWS;
    const float *x[ROWS];
    float sums[ROWS] = {0}, rstd[ROWS] = {0}, shares[ROWS];
    for (size_t r = 0; r < rows; r++) {
      x[r] = c->x + row_of(c->row, first + r) * D;
      rstd[r] = c->rstd[row_of(c->row, first + r)];
      sums[r] = sum_gradient(c->dy + (first + r) * D, w, x[r], c->D);
    }
    shares_of(shares, sums, rstd, c->D);
    for (size_t r = 0; r < rows; r++) {
      const float *dy = c->dy + (first + r) * D, *xr = x[r], scale = rstd[r], share = shares[r];
      float *restrict dx = c->dx + (first + r) * D;
      for (size_t d = 0; d < D; d++) dx[d] = dx[d] + ((dy[d] * w[d]) * scale - xr[d] * share);
    }
  }
}

void ISA_NAME(rmsnorm_backward_w)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rmsnorm_backward_args *c = args;
  size_t D = (size_t)c->D;
  (void)scratch;
  for (size_t t = 0; t < (size_t)c->T; t++) {
    const size_t row = row_of(c->row, t);
    const float *dy = c->dy + t * D, *x = c->x + row * D;
    float *restrict dw = c->dw, rstd = c->rstd[row];
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

/* Heads of VL elements, as rope.h has them. */
static void rope_backward_narrow(const struct rope_backward_args *c, size_t begin, size_t end) {
  const size_t H = (size_t)c->H;
  vf w = c->w ? load_operands(c->w, 0, c->format == FORMAT_F32) : (vf){0};
  if (c->plus_one) w = 1.0f + w;
  vf cosines = {0}, sines = {0};
  for (size_t first = begin * H; first < end * H; first += ROWS) {
    const size_t heads = end * H - first < ROWS ? end * H - first : ROWS;
    float sums[ROWS] = {0}, rstd[ROWS] = {0}, shares[ROWS];
    vf gw[ROWS], x[ROWS];
    for (size_t r = 0; r < heads; r++) {
      const size_t t = (first + r) / H, h = (first + r) % H, row = row_of(c->row, t) * H + h;
      const vf dy = vload(c->dy + (first + r) * VL);
      if (r == 0 || h == 0) rotation(&cosines, &sines, c->rope + (size_t)c->position[t] * VL, true);
      const vf g = dy * cosines + exchange_halves(dy) * sines;
      if (!c->w) {
        vstore(c->dx + (first + r) * VL, g);
        continue;
      }
      x[r] = vload(c->x + row * VL);
      gw[r] = g * w;
      rstd[r] = c->rstd[row];
      sums[r] = tree16((struct f16){{(vf){0} + gw[r] * x[r]}});
    }
    if (!c->w) continue;
    shares_of(shares, sums, rstd, VL);
    for (size_t r = 0; r < heads; r++) vstore(c->dx + (first + r) * VL, gw[r] * rstd[r] - x[r] * shares[r]);
  }
}

static void rope_backward_weight_narrow(const struct rope_backward_args *c) {
  const size_t H = (size_t)c->H;
  vf sum = vload(c->dw);
  for (size_t t = 0; t < (size_t)c->T; t++) {
    vf cosines, sines;
    rotation(&cosines, &sines, c->rope + (size_t)c->position[t] * VL, true);
    for (size_t h = 0; h < H; h++) {
      const size_t row = row_of(c->row, t) * H + h;
      const vf dy = vload(c->dy + (t * H + h) * VL);
      sum = sum + ((dy * cosines + exchange_halves(dy) * sines) * vload(c->x + row * VL)) * c->rstd[row];
    }
  }
  vstore(c->dw, sum);
}

void ISA_NAME(head_norm_rope_backward_x)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rope_backward_args *c = args;
  size_t H = (size_t)c->H, E = (size_t)c->E;
  int half = c->E / 2;
  if (c->E == VL && VL == 16) {
    rope_backward_narrow(c, begin, end);
    return;
  }
  const float *w = c->w ? weight_row(c->w, c->plus_one, c->E, c->format == FORMAT_F32, scratch) : NULL;
  for (size_t t = begin; t < end; t++) {
    const float *rope = c->rope + (size_t)c->position[t] * E;
    for (size_t h = 0; h < H; h++) {
      float g[CPU_HEAD_DIM_MAX];
      const size_t row = row_of(c->row, t) * H + h;
      const float *x = c->x + row * E;
      float *restrict dx = c->dx + (t * H + h) * E;
      unrotate(g, g + half, c->dy + (t * H + h) * E, rope, half, 0, half);
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
  if (c->E == VL && VL == 16 && n == half) {
    rope_backward_weight_narrow(c);
    return;
  }
  for (size_t t = 0; t < (size_t)c->T; t++) {
    const float *rope = c->rope + (size_t)c->position[t] * E;
    for (size_t h = 0; h < H; h++) {
      const size_t row = row_of(c->row, t) * H + h;
      float a[CPU_HEAD_DIM_MAX / 2], b[CPU_HEAD_DIM_MAX / 2], rstd = c->rstd[row];
      const float *x = c->x + row * E;
      unrotate(a, b, c->dy + (t * H + h) * E, rope, half, first, last);
      for (int i = 0; i < n; i++) dw1[i] = dw1[i] + (a[i] * x[first + i]) * rstd;
      for (int i = 0; i < n; i++) dw2[i] = dw2[i] + (b[i] * x[half + first + i]) * rstd;
    }
  }
}

void ISA_NAME(soft_cap_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct soft_cap_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  (void)scratch;
  for (size_t at = begin; at < end; at += VL) {
    const int n = end - at < VL ? (int)(end - at) : VL;
    vf t = load_some(c->capped + at, n) / c->cap;
    t = vselect(t < vset(-1.0f), vset(-1.0f), t); /* -infinity, of a row that was cut: its gradient stays 0 */
    store_some_operands(c->d, at, load_some_operands(c->d, at, n, f32) * (1.0f - t * t), n, f32);
  }
}

void ISA_NAME(swiglu_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct swiglu_backward_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  const size_t F = (size_t)c->F;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    const float *dh_row = c->dh + t * F, *gate_row = c->gate + row_of(c->row, t) * F,
                *up_row = c->up + row_of(c->row, t) * F;
    for (size_t at = 0; at < F; at += VL) {
      const int n = F - at < VL ? (int)(F - at) : VL;
      const vf dh = load_some(dh_row + at, n), gate = load_some(gate_row + at, n), up = load_some(up_row + at, n);
      const vf s = 1.0f / (1.0f + vexp(-gate));
      store_some_operands(c->dup, t * F + at, dh * (gate * s), n, f32);
      store_some_operands(c->dgate, t * F + at, (dh * up) * (s * (1.0f + gate * (1.0f - s))), n, f32);
    }
  }
}

void ISA_NAME(geglu_backward)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct swiglu_backward_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  const size_t F = (size_t)c->F;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    const float *dh_row = c->dh + t * F, *gate_row = c->gate + row_of(c->row, t) * F,
                *up_row = c->up + row_of(c->row, t) * F;
    for (size_t at = 0; at < F; at += VL) {
      const int n = F - at < VL ? (int)(F - at) : VL;
      const vf dh = load_some(dh_row + at, n), x = load_some(gate_row + at, n), up = load_some(up_row + at, n);
      const vf s = gelu_share(x), slope = GELU_SCALE * (1.0f + (3.0f * GELU_CUBE) * (x * x));
      store_some_operands(c->dup, t * F + at, dh * (x * s), n, f32);
      store_some_operands(c->dgate, t * F + at, (dh * up) * (s + ((x * s) * (1.0f - s)) * slope), n, f32);
    }
  }
}
