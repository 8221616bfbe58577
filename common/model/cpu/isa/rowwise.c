/* Forward kernels that go row by row or element by element: operand conversion, RMS norm, head norm with rotation,
 * SwiGLU. */
#include "common/model/cpu/isa/elementary.h"

enum { CHUNK = 256 };

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

void ISA_NAME(rmsnorm)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct rmsnorm_args *c = args;
  bool f32 = c->format == FORMAT_F32;
  (void)scratch;
  for (size_t t = begin; t < end; t++) {
    const float *x = c->x + t * (size_t)c->D;
    float rstd = 1.0f / sqrtf(sum_products(x, x, c->D) / (float)c->D + c->eps);
    if (c->rstd) c->rstd[t] = rstd;
    for (int d = 0; d < c->D; d += CHUNK) {
      float w[CHUNK], y[CHUNK];
      int n = c->D - d < CHUNK ? c->D - d : CHUNK;
      widen_row(w, c->w, (size_t)d, n, f32);
      for (int i = 0; i < n; i++) y[i] = (x[d + i] * rstd) * w[i];
      round_row(c->y, t * (size_t)c->D + (size_t)d, y, n, f32);
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
  if (c->w) widen_row(w, c->w, 0, c->E, f32);
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

void ISA_NAME(swiglu)(const void *args, size_t begin, size_t end, void *scratch) {
  const struct swiglu_args *c = args;
  (void)scratch;
  for (size_t at = begin; at < end; at += CHUNK) {
    float gate[CHUNK], y[CHUNK];
    int n = end - at < CHUNK ? (int)(end - at) : CHUNK;
    memset(y, 0, sizeof y);
    memcpy(gate, c->gate + at, (size_t)n * sizeof *gate);
    for (int i = 0; i < n; i++) y[i] = -gate[i];
    exp_buffer(y, y, n);
    for (int i = 0; i < n; i++) y[i] = (gate[i] * (1.0f / (1.0f + y[i]))) * c->up[at + (size_t)i];
    round_row(c->h, at, y, n, c->format == FORMAT_F32);
  }
}
