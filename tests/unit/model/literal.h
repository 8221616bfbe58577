/* NUMERICS.md written down as slow scalar C, one function per rule, on plain row-major floats; the kernels must equal
 * it bit for bit.  Operands are floats that hold operand values.  Written from the text, not from the kernels: no
 * blocking, no vectors, no shared code. The caller's thread has FTZ and DAZ set (pool_enter).
 */
#ifndef LEASEHOLD_TESTS_MODEL_LITERAL_H
#define LEASEHOLD_TESTS_MODEL_LITERAL_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/model/fma_clones.h"

#define LITERAL static inline

LITERAL uint32_t lit_bits(float x) {
  uint32_t u;
  memcpy(&u, &x, sizeof u);
  return u;
}

LITERAL float lit_float(uint32_t u) {
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

LITERAL uint16_t lit_bf16(float x) {
  uint32_t u = lit_bits(x), kept = u >> 16, rest = u & 0xffffu;
  if ((u & 0x7f800000u) == 0x7f800000u && (u & 0x007fffffu)) return (uint16_t)(kept | 0x40u);
  if (rest > 0x8000u || (rest == 0x8000u && (kept & 1u))) kept++;
  return (uint16_t)kept;
}

LITERAL float lit_operand(float x, bool bf16) { return bf16 ? lit_float((uint32_t)lit_bf16(x) << 16) : x; }

#define LITERAL_FMA FMA_CLONES static

/* DOT over n pairs (a[i * sa], w[i * sw]). */
LITERAL_FMA float lit_dot(const float *a, size_t sa, const float *w, size_t sw, int n) {
  float acc = 0.0f;
  for (int b = 0; b < n; b += 32) {
    float even = 0.0f, odd = 0.0f;
    for (int i = b; i < b + 32; i++) {
      float x = i < n ? a[(size_t)i * sa] : 0.0f, y = i < n ? w[(size_t)i * sw] : 0.0f;
      if (i % 2 == 0)
        even = fmaf(x, y, even);
      else
        odd = fmaf(x, y, odd);
    }
    acc = acc + (even + odd);
  }
  return acc;
}

LITERAL float lit_sum(const float *x, int n) {
  float lane[16] = {0};
  for (int i = 0; i < n; i++) lane[i % 16] += x[i];
  for (int width = 8; width >= 1; width /= 2)
    for (int l = 0; l < width; l++) lane[l] += lane[l + width];
  return lane[0];
}

LITERAL float lit_exp(float x) {
  static const float c[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                             4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
  if (isnan(x)) return x;
  if (x < -87.33f) return 0.0f;
  if (x > 88.72f) x = 88.72f;
  float t = x * 1.44269504f, shifted = t + 12582912.0f, n = shifted - 12582912.0f;
  float high = n * 0.693359375f, low = n * -2.12194440e-4f;
  float r = x - high;
  r = r - low;
  float y = c[0];
  for (int i = 1; i < 6; i++) {
    y = y * r;
    y = y + c[i];
  }
  float rr = r * r;
  y = y * rr;
  y = y + r;
  y = y + 1.0f;
  int32_t exponent = (int32_t)n;
  return lit_float(lit_bits(y) + ((uint32_t)exponent << 23));
}

LITERAL float lit_log(float x) {
  static const float c[9] = {7.0376836292e-2f,  -1.1514610310e-1f, 1.1676998740e-1f,
                             -1.2420140846e-1f, 1.4249322787e-1f,  -1.6668057665e-1f,
                             2.0000714765e-1f,  -2.4999993993e-1f, 3.3333331174e-1f};
  int e = (int)(lit_bits(x) >> 23) - 126;
  float m = lit_float((lit_bits(x) & 0x7fffffu) | 0x3f000000u);
  if (m < 0.707106781f) {
    e--;
    m = m * 2.0f;
  }
  float f = m - 1.0f, z = f * f, y = c[0];
  for (int i = 1; i < 9; i++) {
    y = y * f;
    y = y + c[i];
  }
  y = y * f;
  y = y * z;
  y = y + (float)e * -2.12194440e-4f;
  y = y - 0.5f * z;
  y = f + y;
  return y + (float)e * 0.693359375f;
}

LITERAL float lit_sigmoid(float x) { return 1.0f / (1.0f + lit_exp(-x)); }

/* s with gelu(x) = x s. */
LITERAL float lit_gelu_share(float x) {
  float square = x * x, cube = square * x, bent = 0.044715f * cube, sum = x + bent, u = 1.59576912f * sum;
  return lit_sigmoid(u);
}

LITERAL float lit_tanh(float x) {
  static const float c[5] = {-5.70498872745e-3f, 2.06390887954e-2f, -5.37397155531e-2f, 1.33314422036e-1f,
                             -3.33332819422e-1f};
  float size = fabsf(x), z = x * x, p = c[0];
  if (size < 0.625f) {
    for (int i = 1; i < 5; i++) {
      p = p * z;
      p = p + c[i];
    }
    p = p * z;
    p = p * x;
    return p + x;
  }
  p = lit_exp(size + size) + 1.0f;
  p = 1.0f - 2.0f / p;
  return x < 0.0f ? -p : p;
}

/* A score of attention, from the scaled dot product. */
LITERAL float lit_capped(float x, float cap) { return cap > 0 ? lit_tanh(x / cap) * cap : x; }

LITERAL float lit_rstd(const float *x, float eps, int n) {
  float *squares = malloc((size_t)n * sizeof *squares);
  for (int i = 0; i < n; i++) squares[i] = x[i] * x[i];
  float mean = lit_sum(squares, n) / (float)n;
  free(squares);
  return 1.0f / sqrtf(mean + eps);
}

/* y unrounded. */
LITERAL float lit_rmsnorm(float *y, const float *x, const float *w, float eps, int n) {
  float rstd = lit_rstd(x, eps, n);
  for (int i = 0; i < n; i++) {
    y[i] = x[i] * rstd;
    y[i] = y[i] * w[i];
  }
  return rstd;
}

LITERAL void lit_rotate(float *y, const float *rope, int E) {
  for (int e = 0; e < E / 2; e++) {
    float a = y[e], b = y[e + E / 2], ac = a * rope[2 * e], bs = b * rope[2 * e + 1], bc = b * rope[2 * e],
          as = a * rope[2 * e + 1];
    y[e] = ac - bs;
    y[e + E / 2] = bc + as;
  }
}

/* One query against keys [first, position]; key j's e-th element at k[j * stride + e]. out is not yet rounded. */
LITERAL void lit_attention(float *out, float *lse, const float *q, const float *k, const float *v, size_t stride,
                           int first, int position, int E, float scale, float cap, bool bf16) {
  float m = -INFINITY, l = 0.0f;
  const int start = first / 32 * 32;
  for (int e = 0; e < E; e++) out[e] = 0.0f;
  for (int b = start; b <= position; b += 32) {
    float s[32], p[32], lanes[16], operand[32], block_max = -INFINITY;
    for (int j = 0; j < 32; j++) {
      if (b + j < first || b + j > position) continue;
      s[j] = lit_capped(lit_dot(q, 1, k + (size_t)(b + j) * stride, 1, E) * scale, cap);
      if (s[j] > block_max) block_max = s[j];
    }
    float m2 = m > block_max ? m : block_max, corr = b == start ? 0.0f : lit_exp(m - m2);
    for (int j = 0; j < 32; j++) p[j] = b + j >= first && b + j <= position ? lit_exp(s[j] - m2) : 0.0f;
    for (int j = 0; j < 16; j++) lanes[j] = p[j] + p[j + 16];
    for (int j = 0; j < 32; j++) operand[j] = lit_operand(p[j], bf16);
    l = l * corr + lit_sum(lanes, 16);
    for (int e = 0; e < E; e++) {
      float column[32];
      for (int j = 0; j < 32; j++)
        column[j] = b + j >= first && b + j <= position ? v[(size_t)(b + j) * stride + (size_t)e] : 0.0f;
      float scaled = out[e] * corr;
      out[e] = scaled + lit_dot(operand, 1, column, 1, 32);
    }
    m = m2;
  }
  for (int e = 0; e < E; e++) out[e] = out[e] / l;
  if (lse) *lse = m + lit_log(l);
}

/* The first position that a row attends to. */
LITERAL int lit_first(int position, int window) { return window > 0 && position >= window ? position - window + 1 : 0; }

/* One sample of n rows: everything [n, heads, E]. */
LITERAL void lit_attention_backward(float *dq, float *dk, float *dv, const float *dout, const float *out,
                                    const float *lse, const float *q, const float *k, const float *v, int n, int H,
                                    int G, int E, int window, float scale, float cap, bool bf16) {
  size_t cells = (size_t)n * (size_t)n, HE = (size_t)(H * E), GE = (size_t)(G * E);
  float *p = malloc(cells * sizeof *p), *ds = malloc(cells * sizeof *ds), *column = malloc((size_t)n * sizeof *column),
        *terms = malloc((size_t)E * sizeof *terms);
  for (int h = 0; h < H; h++) {
    int g = h / (H / G);
    for (int i = 0; i < n; i++) {
      const float *qi = q + (size_t)i * HE + (size_t)(h * E), *doi = dout + (size_t)i * HE + (size_t)(h * E);
      for (int e = 0; e < E; e++) terms[e] = doi[e] * out[(size_t)i * HE + (size_t)(h * E + e)];
      float D = lit_sum(terms, E);
      for (int j = 0; j < n; j++) {
        float *pij = p + (size_t)i * (size_t)n + j, *dsij = ds + (size_t)i * (size_t)n + j;
        *pij = *dsij = 0.0f;
        if (j > i || j < lit_first(i, window)) continue;
        float s = lit_dot(qi, 1, k + (size_t)j * GE + (size_t)(g * E), 1, E) * scale;
        float t = cap > 0 ? lit_tanh(s / cap) : 0.0f, square = t * t;
        float x = lit_exp(lit_capped(s, cap) - lse[(size_t)i * (size_t)H + (size_t)h]);
        float dp = lit_dot(doi, 1, v + (size_t)j * GE + (size_t)(g * E), 1, E);
        float y = x * (dp - D);
        y = y * (1.0f - square);
        *pij = lit_operand(x, bf16);
        *dsij = lit_operand(y * scale, bf16);
      }
      for (int e = 0; e < E; e++)
        dq[(size_t)i * HE + (size_t)(h * E + e)] =
            lit_dot(ds + (size_t)i * (size_t)n, 1, k + (size_t)(g * E + e), GE, i + 1);
    }
    for (int j = 0; j < n; j++)
      for (int e = 0; e < E; e++) {
        float *dvj = dv + (size_t)j * GE + (size_t)(g * E + e), *dkj = dk + (size_t)j * GE + (size_t)(g * E + e);
        float a = lit_dot(p + j, (size_t)n, dout + (size_t)(h * E + e), HE, n),
              b = lit_dot(ds + j, (size_t)n, q + (size_t)(h * E + e), HE, n);
        *dvj = h % (H / G) == 0 ? a : *dvj + a;
        *dkj = h % (H / G) == 0 ? b : *dkj + b;
      }
  }
  free(p);
  free(ds);
  free(column);
  free(terms);
}

/* z, max and S of a row; block sums into sums[]. */
LITERAL float lit_softmax(float *z, float *max, float *sums, float *weighted, const float *logits, float temperature,
                          int V) {
  float total = 0.0f, m = -INFINITY, w = 0.0f;
  for (int v = 0; v < V; v++) {
    z[v] = logits[v] / temperature;
    if (z[v] > m) m = z[v];
  }
  for (int b = 0; b < V; b += 256) {
    float p[256], pz[256];
    int n = V - b < 256 ? V - b : 256;
    for (int i = 0; i < n; i++) {
      p[i] = lit_exp(z[b + i] - m);
      pz[i] = p[i] == 0.0f ? 0.0f : p[i] * z[b + i];
    }
    sums[b / 256] = lit_sum(p, n);
    total = total + sums[b / 256];
    w = w + lit_sum(pz, n);
  }
  *max = m;
  if (weighted) *weighted = w;
  return total;
}

/* The order of NUMERICS.md, "Cuts": does entry a come before b? */
LITERAL bool lit_before(const float *z, int a, int b) {
  if (isnan(z[a]) != isnan(z[b])) return isnan(z[a]);
  return z[a] == z[b] || isnan(z[a]) ? a < b : z[a] > z[b];
}

/* logits with -infinity where the cut leaves an entry out.  By definition: the order by insertion, sums in integers. */
LITERAL void lit_cut(float *out, const float *logits, float temperature, int top_k, float top_p, float min_p, int V) {
  float *z = malloc((size_t)V * sizeof *z), *p = malloc((size_t)V * sizeof *p), max = -INFINITY;
  int *order = malloc((size_t)V * sizeof *order), kept = top_k > 0 && top_k < V ? top_k : V;
  int64_t all = 0, sum = 0;
  for (int v = 0; v < V; v++) {
    z[v] = logits[v] / temperature;
    if (z[v] > max) max = z[v];
    int at = v;
    for (; at > 0 && lit_before(z, v, order[at - 1]); at--) order[at] = order[at - 1];
    order[at] = v;
  }
  for (int v = 0; v < V; v++) {
    p[v] = lit_exp(z[v] - max);
    out[v] = isinf(max) ? logits[v] : -INFINITY;
  }
  for (int i = 0; i < kept; i++) all += p[order[i]] > 0 ? (int64_t)((double)p[order[i]] * 0x1p40) : 0;
  int64_t need = (int64_t)((double)top_p * (double)all);
  if (need < 1) need = 1;
  for (int i = 0; i < kept && !isinf(max) && (top_p >= 1.0f || sum < need); i++) {
    const int v = order[i];
    sum += p[v] > 0 ? (int64_t)((double)p[v] * 0x1p40) : 0;
    if (!(p[v] < min_p)) out[v] = logits[v];
  }
  free(z);
  free(p);
  free(order);
}

LITERAL int lit_sample(const float *logits, float temperature, float u, int V) {
  if (temperature == 0.0f) {
    int best = 0;
    for (int v = 0; v < V; v++)
      if (logits[v] > logits[best]) best = v;
    return best;
  }
  float *z = malloc((size_t)V * sizeof *z), *sums = malloc(((size_t)V / 256 + 1) * sizeof *sums), max, running = 0.0f;
  float threshold = u * lit_softmax(z, &max, sums, NULL, logits, temperature, V);
  int blocks = (V + 255) / 256, block = -1, answer = -1;
  for (int b = 0; b < blocks && block < 0; b++) {
    if (running + sums[b] > threshold)
      block = b;
    else
      running = running + sums[b];
  }
  if (block < 0) { /* the last block that is not zero, from the sum before it */
    for (int b = 0; b < blocks; b++)
      if (sums[b] > 0.0f) block = b;
    running = 0.0f;
    for (int b = 0; b < block; b++) running = running + sums[b];
  }
  for (int v = block * 256; v < V && v < block * 256 + 256; v++) {
    float p = lit_exp(z[v] - max);
    running = running + p;
    if (p > 0.0f) answer = v;
    if (running > threshold) {
      answer = v;
      break;
    }
  }
  free(z);
  free(sums);
  return answer;
}

/* --- moments in 8 bits: square: those of v --- */

LITERAL int lit_moment_cells(int d, bool square) { return 1 << (d + (square ? 1 : 0)); }

/* 10^(d - 7) */
LITERAL double lit_decade(int d) {
  return strtod((const char *[]){"1e-7", "1e-6", "1e-5", "1e-4", "1e-3", "1e-2", "1e-1"}[d], NULL);
}

LITERAL float lit_moment_share(int code, bool square) {
  if (!square && code >= 128) return -lit_moment_share(code - 128, false);
  if (code == 0) return 0;
  if (code == (square ? 255 : 127)) return 1;
  for (int d = square ? 0 : 1;; d++) {
    const int n = lit_moment_cells(d, square), j = code - (n - 1);
    if (j < n) return (float)(lit_decade(d) + 9 * lit_decade(d) * ((j + 0.5) / n));
  }
}

LITERAL int lit_moment_code(float value, float largest, bool square) {
  const float x = fabsf(value) / (largest == 0 ? 1 : largest);
  int code = square && value != 0;
  for (int d = square ? 0 : 1; d < 7 && x >= (float)lit_decade(d); d++) {
    const int n = lit_moment_cells(d, square);
    const float scaled = x * (float)(n / (9 * lit_decade(d))), place = scaled + (float)(n - 1 - n / 9.0);
    code = place >= (float)(2 * n - 2) ? 2 * n - 2 : (int)place;
  }
  if (!(x < 1)) code = square ? 255 : 127;
  return !square && value < 0 && code > 0 ? code + 128 : code;
}

#endif
