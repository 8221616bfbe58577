/* Computes forward row by row or element by element: operand conversion, biases, RMS norm, head norm with rotation,
 * SwiGLU, GeGLU. */
#include "common/model/cpu/isa/elementary.h"
#include "common/model/cpu/isa/rope.h"

enum { CHUNK = 256, ROWS = 16 /* a multiple of VL: rows whose roots are taken together */ };

void ISA_NAME(to_operand)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct convert_args *c = args;
  (void)scratch;
  for (size_t i = begin; i < end; i += CHUNK)
    round_row(c->out, i, (const float *)c->in + i, end - i < CHUNK ? (int)(end - i) : CHUNK, c->format == FORMAT_F32);
}

void ISA_NAME(from_operand)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct convert_args *c = args;
  (void)scratch;
  for (size_t i = begin; i < end; i += CHUNK)
    widen_row((float *)c->out + i, c->in, i, end - i < CHUNK ? (int)(end - i) : CHUNK, c->format == FORMAT_F32);
}

void ISA_NAME(add_bias)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct bias_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  const size_t N = (size_t)c->N;
  (void)scratch;
  for (size_t at = begin; at < end;) {
    const size_t n0 = at % N, left = N - n0 < end - at ? N - n0 : end - at;
    for (size_t i = 0; i < left; i += VL) {
      const int n = left - i < VL ? (int)(left - i) : VL;
      store_some(c->y + at + i, load_some(c->y + at + i, n) + load_some_operands(c->b, n0 + i, n, f32), n);
    }
    at += left;
  }
}

/* 1 / sqrt(sum / n + eps) for some rows at a time: the division and the root cost as much for one. */
static void reciprocal_roots(float *rstd, const float *sums, int n, float eps) {
  for (int i = 0; i < ROWS; i += VL) vstore(rstd + i, 1.0f / vsqrt(vload(sums + i) / (float)n + eps));
}

void ISA_NAME(rmsnorm)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rmsnorm_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  const int D = c->D;
  void *y = c->y;
  float *w = scratch, sums[ROWS] = {0}, rstd[ROWS];
  const bool kept = (size_t)D * sizeof *w <= CPU_SCRATCH_BYTES;
  if (kept) widen_row(w, c->w, 0, D, f32);
  for (int d = 0; kept && c->plus_one && d < D; d++) w[d] = 1.0f + w[d];
  for (size_t first = begin; first < end; first += ROWS) {
    const size_t rows = end - first < ROWS ? end - first : ROWS;
    const float *x = c->x + first * (size_t)D;
    for (size_t r = 0; r < rows; r++) sums[r] = sum_products(x + r * (size_t)D, x + r * (size_t)D, D);
    reciprocal_roots(rstd, sums, D, c->eps);
    if (c->rstd) memcpy(c->rstd + first, rstd, rows * sizeof *rstd);
    for (size_t r = 0; r < rows; r++, x += D) {
      for (int d = 0; d < D; d += VL) {
        const int n = D - d;
        vf wide = kept ? load_some(w + d, n) : load_some_operands(c->w, (size_t)d, n, f32);
        if (!kept && c->plus_one) wide = 1.0f + wide;
        store_some_operands(y, (first + r) * (size_t)D + (size_t)d, (load_some(x + d, n) * rstd[r]) * wide, n, f32);
      }
    }
  }
}

static void norm_rope_narrow(const struct rope_args *c, size_t begin, size_t end) {
  const bool f32 = c->format == FORMAT_F32;
  const size_t H = (size_t)c->H;
  vf w = c->w ? load_operands(c->w, 0, f32) : (vf){0};
  if (c->plus_one) w = 1.0f + w;
  vf cosines = {0}, sines = {0};
  for (size_t first = begin * H; first < end * H; first += ROWS) {
    const size_t heads = end * H - first < ROWS ? end * H - first : ROWS;
    float sums[ROWS] = {0}, rstd[ROWS];
    if (c->w) {
      for (size_t r = 0; r < heads; r++) {
        const float *x = c->x + (first + r) * VL;
        sums[r] = sum_products(x, x, VL);
      }
      reciprocal_roots(rstd, sums, VL, c->eps);
      if (c->rstd) memcpy(c->rstd + first, rstd, heads * sizeof *rstd);
    }
    for (size_t r = 0; r < heads; r++) {
      const size_t row = first + r;
      vf y = vload(c->x + row * VL);
      if (r == 0 || row % H == 0) rotation(&cosines, &sines, c->rope + (size_t)c->position[row / H] * VL, false);
      if (c->w) y = (y * rstd[r]) * w;
      store_operands(c->out, row * VL, y * cosines + exchange_halves(y) * sines, f32);
    }
  }
}

/* One head: y[E] = norm(x) w, rotated. */
static float norm_rope(const struct rope_args *c, float *restrict out, const float *restrict x, const float *restrict w,
                       const float *restrict rope) {
  int E = c->E, half = E / 2;
  float rstd = 1.0f, y[CPU_HEAD_DIM_MAX];
  if (c->w) {
    rstd = 1.0f / sqrtf(sum_products(x, x, E) / (float)E + c->eps);
    for (int e = 0; e < E; e++) y[e] = (x[e] * rstd) * w[e];
  } else {
    memcpy(y, x, (size_t)E * sizeof *y);
  }
  for (int e = 0; e < half; e++) {
    float a = y[e], b = y[e + half], cosine = rope[2 * e], sine = rope[2 * e + 1];
    out[e] = a * cosine - b * sine;
    out[e + half] = b * cosine + a * sine;
  }
  return rstd;
}

void ISA_NAME(head_norm_rope)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rope_args *c = args;
  bool f32 = c->format == FORMAT_F32;
  size_t H = (size_t)c->H, E = (size_t)c->E;
  float w[CPU_HEAD_DIM_MAX], out[CPU_HEAD_DIM_MAX];
  (void)scratch;
  if (c->E == VL && VL == 16) {
    norm_rope_narrow(c, begin, end);
    return;
  }
  if (c->w) widen_row(w, c->w, 0, c->E, f32);
  for (int e = 0; c->w && c->plus_one && e < c->E; e++) w[e] = 1.0f + w[e];
  for (size_t t = begin; t < end; t++) {
    const float *rope = c->rope + (size_t)c->position[t] * E;
    for (size_t h = 0; h < H; h++) {
      size_t row = t * H + h;
      float rstd = norm_rope(c, out, c->x + row * E, w, rope);
      if (c->rstd) c->rstd[row] = rstd;
      round_row(c->out, row * E, out, c->E, f32);
    }
  }
}

INLINE void swiglu_lanes(void *h, const float *gates, const float *ups, size_t at, int n, bool f32) {
  const vf gate = load_some(gates + at, n), sigmoid = 1.0f / (1.0f + vexp(-gate));
  store_some_operands(h, at, (gate * sigmoid) * load_some(ups + at, n), n, f32);
}

void ISA_NAME(swiglu)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct swiglu_args *c = args;
  const bool f32 = c->format == FORMAT_F32;
  const float *gates = c->gate, *ups = c->up;
  void *h = c->h;
  size_t at = begin;
  (void)scratch;
  for (; at + 32 <= end; at += 32) {
    UNROLL
    for (size_t i = 0; i < 32; i += VL) swiglu_lanes(h, gates, ups, at + i, VL, f32);
  }
  for (; at < end; at += VL) swiglu_lanes(h, gates, ups, at, end - at < VL ? (int)(end - at) : VL, f32);
}

INLINE void geglu_lanes(void *h, const float *gates, const float *ups, size_t at, int n, bool f32) {
  const vf gate = load_some(gates + at, n);
  store_some_operands(h, at, (gate * gelu_share(gate)) * load_some(ups + at, n), n, f32);
}

void ISA_NAME(geglu)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct swiglu_args *c = args;
  (void)scratch;
  for (size_t at = begin; at < end; at += VL)
    geglu_lanes(c->h, c->gate, c->up, at, end - at < VL ? (int)(end - at) : VL, c->format == FORMAT_F32);
}

void ISA_NAME(soft_cap)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct soft_cap_args *c = args;
  (void)scratch;
  for (size_t at = begin; at < end; at += VL) {
    const int n = end - at < VL ? (int)(end - at) : VL;
    store_some(c->x + at, soft_capped(load_some(c->x + at, n), c->cap), n);
  }
}

void ISA_NAME(scale)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct scale_args *c = args;
  (void)scratch;
  for (size_t i = begin; i < end; i++) c->x[i] = c->x[i] * c->factor;
}

void ISA_NAME(add_operand)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct add_operand_args *c = args;
  (void)scratch;
  for (size_t at = begin; at < end; at += VL) {
    const int n = end - at < VL ? (int)(end - at) : VL;
    store_some(c->x + at, load_some(c->x + at, n) + load_some_operands(c->y, at, n, c->format == FORMAT_F32), n);
  }
}
