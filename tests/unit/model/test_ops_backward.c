/* The backward operations and the optimizer's equal the literal text of NUMERICS.md bit for bit, on every level,
 * format and thread count. */
#include <float.h>

#include "tests/unit/model/ops_support.h"

static void weight_on(const struct machine *m) {
  static const int sizes[][3] = {{1, 1, 1},     {33, 17, 40}, {70, 30, 17},   {200, 50, 33},
                                 {31, 13, 300}, {5, 100, 64}, {300, 20, 530}, {40, 280, 20},
                                 {150, 390, 300}};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    int T = sizes[s][0], N = sizes[s][1], K = sizes[s][2];
    float *dy = random_operands(m, (size_t)(T * N), 1.0f), *x = random_operands(m, (size_t)(T * K), 1.0f),
          *dW = random_floats((size_t)(N * K), 1.0f);
    float *want = copy_floats(dW, (size_t)(N * K));
    for (int n = 0; n < N; n++)
      for (int k = 0; k < K; k++) want[n * K + k] = want[n * K + k] + lit_dot(dy + n, (size_t)N, x + k, (size_t)K, T);
    o->gemm_weight_backward(o, dW, as_operands(m, dy, (size_t)(T * N)), as_operands(m, x, (size_t)(T * K)), NULL, NULL,
                            T, N, K);
    same_floats(m, "gemm_weight_backward", dW, want, (size_t)(N * K));
  }
}

/* Rows of x that lie elsewhere, and dy's rows apart along the dot: as if zeros stood between. */
static void weight_places_on(const struct machine *m) {
  static const int sizes[][4] = {{1, 1, 3, 7},       {20, 33, 17, 40}, {70, 500, 30, 17},
                                 {300, 700, 50, 33}, {3, 40, 13, 300}, {9, 900, 4, 64}};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int T = sizes[s][0], places = sizes[s][1], N = sizes[s][2], K = sizes[s][3], rows = T + 5;
    int32_t *row = random_choice(T, rows, false), *place = random_choice(T, places, true);
    float *dy = random_operands(m, (size_t)(T * N), 1.0f), *x = random_operands(m, (size_t)(rows * K), 1.0f),
          *dW = random_floats((size_t)(N * K), 1.0f), *want = copy_floats(dW, (size_t)(N * K));
    float *dy_apart = zeros((size_t)(places * N)), *x_apart = random_operands(m, (size_t)(places * K), 1.0f);
    for (int t = 0; t < T; t++) {
      memcpy(dy_apart + place[t] * N, dy + t * N, (size_t)N * sizeof *dy);
      memcpy(x_apart + place[t] * K, x + row[t] * K, (size_t)K * sizeof *x);
    }
    for (int n = 0; n < N; n++)
      for (int k = 0; k < K; k++)
        want[n * K + k] = want[n * K + k] + lit_dot(dy_apart + n, (size_t)N, x_apart + k, (size_t)K, places);
    o->gemm_weight_backward(o, dW, as_operands(m, dy, (size_t)(T * N)), as_operands(m, x, (size_t)(rows * K)), row,
                            place, T, N, K);
    same_floats(m, "gemm_weight_backward with places", dW, want, (size_t)(N * K));
  }
}

/* As test_ops_forward.c's gemm_edges_on. */
static void weight_edges_on(const struct machine *m) {
  static const int exponents[][2] = {{-60, -63}, {-66, -63}, {-90, -36}, {63, 61}, {62, 63}};
  enum { N = 19, K = 40 };
  const struct ops *o = m->ops;
  if (m->threads > 1) return; /* they share out outputs */
  for (size_t e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
    for (int T = 1; T < 200; T += 1 + T / 2) {
      float *dy = operands_near(m, (size_t)(T * N), exponents[e][0]),
            *x = operands_near(m, (size_t)(T * K), exponents[e][1]), *dW = zeros(N * K);
      o->gemm_weight_backward(o, dW, as_operands(m, dy, (size_t)(T * N)), as_operands(m, x, (size_t)(T * K)), NULL,
                              NULL, T, N, K);
      for (int i = 0; i < N * K; i++) {
        const float want = lit_dot(dy + i / K, N, x + i % K, K, T);
        same_fixed(m, "gemm_weight_backward of numbers that are nearly no floats", (size_t)i, dW[i], want);
      }
    }
    guarded_free_all();
  }
}

static void test_weight(void **state) {
  (void)state;
  every_machine(weight_edges_on);
  every_machine(weight_on);
  every_machine(weight_places_on);
}

static void bias_on(const struct machine *m) {
  static const int sizes[][2] = {{1, 1}, {33, 17}, {200, 72}, {300, 257}, {3, 1500}};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int T = sizes[s][0], N = sizes[s][1];
    float *dy = random_operands(m, (size_t)(T * N), 1.0f), *db = random_floats((size_t)N, 1.0f),
          *want = copy_floats(db, (size_t)N);
    for (int i = 0; i < T * N; i++) want[i % N] = want[i % N] + dy[i];
    o->add_bias_backward(o, db, as_operands(m, dy, (size_t)(T * N)), T, N);
    same_floats(m, "add_bias_backward", db, want, (size_t)N);
  }
}

static void test_bias(void **state) {
  (void)state;
  every_machine(bias_on);
}

static void embed_on(const struct machine *m) {
  enum { T = 900, V = 11, D = 50 };
  const struct ops *o = m->ops;
  float *dx = random_floats(T * D, 1.0f), *got = random_floats(V * D, 1.0f), *want = copy_floats(got, V * D);
  int32_t *token = guarded(T * sizeof *token);
  for (int t = 0; t < T; t++) {
    token[t] = (int32_t)(random_u32() % V);
    for (int d = 0; d < D; d++) want[token[t] * D + d] = want[token[t] * D + d] + dx[t * D + d];
  }
  o->embed_backward(o, got, dx, token, T, V, D);
  same_floats(m, "embed_backward", got, want, V * D);
}

static void test_embed(void **state) {
  (void)state;
  every_machine(embed_on);
}

/* y = norm(x) w: dx of one row, before it is added. */
static void literal_norm_backward(float *dx, const float *dy, const float *x, const float *w, float rstd, int D) {
  float terms[512];
  for (int d = 0; d < D; d++) {
    float g = dy[d] * w[d];
    terms[d] = g * x[d];
  }
  float share = lit_sum(terms, D) * rstd;
  share = share * rstd;
  share = share / (float)D;
  share = share * rstd;
  for (int d = 0; d < D; d++) {
    float g = dy[d] * w[d], a = g * rstd, b = x[d] * share;
    dx[d] = a - b;
  }
}

static void rmsnorm_on(const struct machine *m) {
  static const int widths[] = {1, 15, 64, 100, 300};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof widths / sizeof widths[0]; s++) {
    int D = widths[s], T = 20000 / D + 3;
    size_t n = (size_t)(T * D);
    float *x = random_floats(n, 2.0f), *dy = random_floats(n, 1.0f), *w = random_operands(m, (size_t)D, 2.0f),
          *rstd = zeros((size_t)T);
    float *dx = random_floats(n, 1.0f), *dw = random_floats((size_t)D, 1.0f), *want = copy_floats(dx, n),
          *want_dw = copy_floats(dw, (size_t)D), *before = copy_floats(dx, n), *before_dw = copy_floats(dw, (size_t)D),
          gradient[512];
    for (int t = 0; t < T; t++) {
      rstd[t] = lit_rstd(x + t * D, 1e-6f, D);
      literal_norm_backward(gradient, dy + t * D, x + t * D, w, rstd[t], D);
      for (int d = 0; d < D; d++) {
        float term = dy[t * D + d] * x[t * D + d];
        want[t * D + d] = want[t * D + d] + gradient[d];
        want_dw[d] = want_dw[d] + term * rstd[t];
      }
    }
    o->rmsnorm_backward(o, dx, dw, dy, x, as_operands(m, w, (size_t)D), false, rstd, NULL, T, D);
    same_floats(m, "rmsnorm_backward's dx", dx, want, n);
    same_floats(m, "rmsnorm_backward's dw", dw, want_dw, (size_t)D);
    int32_t *row = random_choice(T, T + 2, false);
    float *there = zeros(n + 2 * (size_t)D), *rstd_there = zeros((size_t)T + 2);
    for (int t = 0; t < T; t++) {
      memcpy(there + row[t] * D, x + t * D, (size_t)D * sizeof *x);
      rstd_there[row[t]] = rstd[t];
    }
    memcpy(dx, before, n * sizeof *dx);
    memcpy(dw, before_dw, (size_t)D * sizeof *dw);
    o->rmsnorm_backward(o, dx, dw, dy, there, as_operands(m, w, (size_t)D), false, rstd_there, row, T, D);
    same_floats(m, "rmsnorm_backward's dx, rows elsewhere", dx, want, n);
    same_floats(m, "rmsnorm_backward's dw, rows elsewhere", dw, want_dw, (size_t)D);
    void *wo = as_operands(m, w, (size_t)D);
    for (int d = 0; d < D; d++) w[d] = 1.0f + w[d];
    memcpy(dx, before, n * sizeof *dx);
    for (int t = 0; t < T; t++) {
      literal_norm_backward(gradient, dy + t * D, x + t * D, w, rstd[t], D);
      for (int d = 0; d < D; d++) want[t * D + d] = before[t * D + d] + gradient[d];
    }
    o->rmsnorm_backward(o, dx, dw, dy, x, wo, true, rstd, NULL, T, D);
    same_floats(m, "rmsnorm_backward's dx by 1 + w", dx, want, n);
  }
}

static void test_rmsnorm(void **state) {
  (void)state;
  every_machine(rmsnorm_on);
}

static void rope_on(const struct machine *m) {
  static const int sizes[][3] = {{200, 3, 16}, {90, 2, 64}, {300, 1, 2}, {100, 5, 18}};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    int T = sizes[s][0], H = sizes[s][1], E = sizes[s][2], half = E / 2, positions = 21;
    size_t n = (size_t)(T * H * E);
    float *x = random_floats(n, 2.0f), *dy = random_floats(n, 1.0f), *w = random_operands(m, (size_t)E, 2.0f),
          *rope = random_floats((size_t)(positions * E), 1.0f);
    float *rstd = zeros((size_t)(T * H)), *dx = random_floats(n, 1.0f), *want = zeros(n), *plain = zeros(n);
    float *dw = random_floats((size_t)E, 1.0f), *want_dw = copy_floats(dw, (size_t)E),
          *before_dw = copy_floats(dw, (size_t)E);
    int32_t *position = guarded((size_t)T * sizeof *position);
    for (int t = 0; t < T; t++) position[t] = (int32_t)(random_u32() % (unsigned)positions);
    for (int r = 0; r < T * H; r++) {
      const float *table = rope + position[r / H] * E;
      float *g = plain + r * E;
      rstd[r] = lit_rstd(x + r * E, 1e-6f, E);
      for (int e = 0; e < half; e++) {
        float y1 = dy[r * E + e], y2 = dy[r * E + half + e], c = table[2 * e], s1 = table[2 * e + 1];
        float y1c = y1 * c, y2s = y2 * s1, y2c = y2 * c, y1s = y1 * s1;
        g[e] = y1c + y2s;
        g[e + half] = y2c - y1s;
      }
      literal_norm_backward(want + r * E, g, x + r * E, w, rstd[r], E);
      for (int e = 0; e < E; e++) {
        float term = g[e] * x[r * E + e];
        want_dw[e] = want_dw[e] + term * rstd[r];
      }
    }
    o->head_norm_rope_backward(o, dx, dw, dy, x, as_operands(m, w, (size_t)E), false, rstd, rope, position, NULL, T, H,
                               E);
    same_floats(m, "head_norm_rope_backward's dx", dx, want, n);
    same_floats(m, "head_norm_rope_backward's dw", dw, want_dw, (size_t)E);
    int32_t *row = random_choice(T, T + 1, false);
    float *there = zeros(n + (size_t)(H * E)), *rstd_there = zeros((size_t)((T + 1) * H));
    for (int t = 0; t < T; t++) {
      memcpy(there + row[t] * H * E, x + t * H * E, (size_t)(H * E) * sizeof *x);
      memcpy(rstd_there + row[t] * H, rstd + t * H, (size_t)H * sizeof *rstd);
    }
    memset(dx, 0, n * sizeof *dx);
    memcpy(dw, before_dw, (size_t)E * sizeof *dw);
    o->head_norm_rope_backward(o, dx, dw, dy, there, as_operands(m, w, (size_t)E), false, rstd_there, rope, position,
                               row, T, H, E);
    same_floats(m, "head_norm_rope_backward's dx, rows elsewhere", dx, want, n);
    same_floats(m, "head_norm_rope_backward's dw, rows elsewhere", dw, want_dw, (size_t)E);
    o->head_norm_rope_backward(o, dx, NULL, dy, x, NULL, false, NULL, rope, position, NULL, T, H, E);
    same_floats(m, "head_norm_rope_backward without norm", dx, plain, n);
    void *wo = as_operands(m, w, (size_t)E);
    for (int e = 0; e < E; e++) w[e] = 1.0f + w[e];
    for (int r = 0; r < T * H; r++) literal_norm_backward(want + r * E, plain + r * E, x + r * E, w, rstd[r], E);
    o->head_norm_rope_backward(o, dx, dw, dy, x, wo, true, rstd, rope, position, NULL, T, H, E);
    same_floats(m, "head_norm_rope_backward's dx by 1 + w", dx, want, n);
  }
}

static void test_rope(void **state) {
  (void)state;
  every_machine(rope_on);
}

/* Rows that lie elsewhere, and queries without a gradient: as if their dout were zero. */
static void attention_rows_on(const struct machine *m, const struct packed *batch, int H, int G, int E, float scale,
                              const float *q, const float *k, const float *v, const float *out, const float *dout,
                              const float *lse) {
  const struct ops *o = m->ops;
  const int T = batch->start[batch->sequences], queries = T * 3 / 5;
  const size_t rows = (size_t)T, HE = (size_t)(H * E), GE = (size_t)(G * E), h = (size_t)H;
  int32_t *active = random_choice(queries, T, true), *row = random_choice(T, T + 2, false),
          *query_row = random_choice(queries, queries + 3, false), *query = guarded(rows * sizeof *query);
  float *k2 = zeros((rows + 2) * GE), *v2 = zeros((rows + 2) * GE), *dout2 = zeros((size_t)queries * HE),
        *q2 = zeros(((size_t)queries + 3) * HE), *out2 = zeros(((size_t)queries + 3) * HE),
        *lse2 = zeros(((size_t)queries + 3) * h), *masked = zeros(rows * HE);
  for (size_t t = 0; t < rows; t++) {
    query[t] = -1;
    memcpy(k2 + (size_t)row[t] * GE, k + t * GE, GE * sizeof *k);
    memcpy(v2 + (size_t)row[t] * GE, v + t * GE, GE * sizeof *v);
  }
  for (size_t i = 0; i < (size_t)queries; i++) {
    const size_t t = (size_t)active[i], there = (size_t)query_row[i];
    query[t] = (int32_t)i;
    memcpy(masked + t * HE, dout + t * HE, HE * sizeof *dout);
    memcpy(dout2 + i * HE, dout + t * HE, HE * sizeof *dout);
    memcpy(q2 + there * HE, q + t * HE, HE * sizeof *q);
    memcpy(out2 + there * HE, out + t * HE, HE * sizeof *out);
    memcpy(lse2 + there * h, lse + t * h, h * sizeof *lse);
  }
  float *want_dq = random_floats(rows * HE, 1.0f), *want_dk = random_floats(rows * GE, 1.0f),
        *want_dv = random_floats(rows * GE, 1.0f);
  float *dq = random_floats((size_t)queries * HE, 1.0f), *dk = random_floats(rows * GE, 1.0f),
        *dv = random_floats(rows * GE, 1.0f);
  o->attention_backward(o, want_dq, want_dk, want_dv, as_operands(m, masked, rows * HE), as_operands(m, out, rows * HE),
                        lse, as_operands(m, q, rows * HE), as_operands(m, k, rows * GE), as_operands(m, v, rows * GE),
                        batch, H, G, E, scale);
  const struct packed apart = {.sequences = batch->sequences,
                               .start = batch->start,
                               .row = row,
                               .query = query,
                               .query_row = query_row,
                               .window = batch->window,
                               .cap = batch->cap};
  const size_t some = ((size_t)queries + 3) * HE;
  o->attention_backward(o, dq, dk, dv, as_operands(m, dout2, (size_t)queries * HE), as_operands(m, out2, some), lse2,
                        as_operands(m, q2, some), as_operands(m, k2, (rows + 2) * GE),
                        as_operands(m, v2, (rows + 2) * GE), &apart, H, G, E, scale);
  for (size_t i = 0; i < (size_t)queries; i++)
    same_floats(m, "attention_backward's dq, some queries", dq + i * HE, want_dq + (size_t)active[i] * HE, HE);
  same_floats(m, "attention_backward's dk, some queries", dk, want_dk, rows * GE);
  same_floats(m, "attention_backward's dv, some queries", dv, want_dv, rows * GE);
}

static void attention_case_on(const struct machine *m, int H, int G, int E, int window, float cap) {
  static const int lengths[] = {1, 33, 70, 32, 17};
  const struct ops *o = m->ops;
  int32_t start[6] = {0};
  for (int s = 0; s < 5; s++) start[s + 1] = start[s] + lengths[s];
  size_t T = (size_t)start[5], HE = (size_t)(H * E), GE = (size_t)(G * E);
  float scale = 0.31f;
  float *q = random_operands(m, T * HE, 2.0f), *k = random_operands(m, T * GE, 2.0f),
        *v = random_operands(m, T * GE, 1.0f), *out = zeros(T * HE);
  float *dout = random_operands(m, T * HE, 1.0f), *lse = zeros(T * (size_t)H);
  float *dq = random_floats(T * HE, 1.0f), *dk = random_floats(T * GE, 1.0f), *dv = random_floats(T * GE, 1.0f);
  float *want_dq = zeros(T * HE), *want_dk = zeros(T * GE), *want_dv = zeros(T * GE);
  for (int s = 0; s < 5; s++) {
    size_t first = (size_t)start[s];
    for (int i = 0; i < lengths[s] * H; i++) {
      size_t at = (first * (size_t)H + (size_t)i) * (size_t)E, group = (size_t)(i % H / (H / G) * E);
      lit_attention(out + at, lse + first * (size_t)H + (size_t)i, q + at, k + first * GE + group,
                    v + first * GE + group, GE, lit_first(i / H, window), i / H, E, scale, cap, m->bf16);
    }
  }
  for (size_t i = 0; i < T * HE; i++) out[i] = lit_operand(out[i], m->bf16);
  for (int s = 0; s < 5; s++) {
    size_t a = (size_t)start[s] * HE, b = (size_t)start[s] * GE;
    lit_attention_backward(want_dq + a, want_dk + b, want_dv + b, dout + a, out + a, lse + start[s] * H, q + a, k + b,
                           v + b, lengths[s], H, G, E, window, scale, cap, m->bf16);
  }
  struct packed batch = {.sequences = 5, .start = start, .window = window, .cap = cap};
  void *dout_o = as_operands(m, dout, T * HE), *out_o = as_operands(m, out, T * HE), *q_o = as_operands(m, q, T * HE);
  void *k_o = as_operands(m, k, T * GE), *v_o = as_operands(m, v, T * GE);
  o->attention_backward(o, dq, dk, dv, dout_o, out_o, lse, q_o, k_o, v_o, &batch, H, G, E, scale);
  same_floats(m, "attention_backward's dq", dq, want_dq, T * HE);
  same_floats(m, "attention_backward's dv", dv, want_dv, T * GE);
  same_floats(m, "attention_backward's dk", dk, want_dk, T * GE);
  attention_rows_on(m, &batch, H, G, E, scale, q, k, v, out, dout, lse);
}

static void attention_on(const struct machine *m) {
  static const int windows[] = {0, 1, 2, 33, 50};
  attention_case_on(m, 3, 1, 10, 0, 0);
  attention_case_on(m, 2, 2, 48, 0, 0);
  attention_case_on(m, 3, 1, 10, 0, 1.5f);
  attention_case_on(m, 2, 2, 48, 20, 4.0f);
  for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) attention_case_on(m, 4, 2, 16, windows[i], 0);
  attention_case_on(m, 2, 2, 48, 20, 0);
}

static void test_attention(void **state) {
  (void)state;
  every_machine(attention_on);
}

static void swiglu_on(const struct machine *m) {
  const struct ops *o = m->ops;
  for (size_t n = 5000; n < 5003; n++) {
    float *gate = random_floats(n, 9.0f), *up = random_floats(n, 2.0f), *dh = random_floats(n, 1.0f),
          *want_gate = zeros(n), *want_up = zeros(n);
    void *dgate = new_operands(m, n), *dup = new_operands(m, n);
    for (size_t i = 0; i < n; i++) {
      float s = lit_sigmoid(gate[i]), silu = gate[i] * s, rest = 1.0f - s, slope = gate[i] * rest;
      slope = s * (1.0f + slope);
      want_up[i] = dh[i] * silu;
      want_gate[i] = (dh[i] * up[i]) * slope;
    }
    o->swiglu_backward(o, dgate, dup, dh, gate, up, NULL, 1, (int)n);
    same_operands(m, "swiglu_backward's dgate", dgate, want_gate, n);
    same_operands(m, "swiglu_backward's dup", dup, want_up, n);
  }
  static const int sizes[][2] = {{1, 1}, {9, 17}, {40, 192}};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int T = sizes[s][0], F = sizes[s][1];
    const size_t n = (size_t)(T * F), width = (size_t)F;
    int32_t *row = random_choice(T, T + 1, false);
    float *gate = random_floats(n + width, 9.0f), *up = random_floats(n + width, 2.0f), *dh = random_floats(n, 1.0f),
          *gate_here = zeros(n), *up_here = zeros(n);
    for (size_t t = 0; t < (size_t)T; t++) {
      memcpy(gate_here + t * width, gate + (size_t)row[t] * width, width * sizeof *gate);
      memcpy(up_here + t * width, up + (size_t)row[t] * width, width * sizeof *up);
    }
    void *dgate = new_operands(m, n), *dup = new_operands(m, n), *want_gate = new_operands(m, n),
         *want_up = new_operands(m, n);
    o->swiglu_backward(o, want_gate, want_up, dh, gate_here, up_here, NULL, T, F);
    o->swiglu_backward(o, dgate, dup, dh, gate, up, row, T, F);
    assert_memory_equal(dgate, want_gate, n * o->operand_bytes);
    assert_memory_equal(dup, want_up, n * o->operand_bytes);
  }
}

static void test_swiglu(void **state) {
  (void)state;
  every_machine(swiglu_on);
}

static void geglu_on(const struct machine *m) {
  static const int sizes[][2] = {{1, 1}, {9, 17}, {40, 192}};
  const struct ops *o = m->ops;
  for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
    const int T = sizes[i][0], F = sizes[i][1];
    const size_t n = (size_t)(T * F);
    int32_t *row = random_choice(T, T + 1, false);
    float *gate = random_floats(n + (size_t)F, 6.0f), *up = random_floats(n + (size_t)F, 2.0f),
          *dh = random_floats(n, 1.0f), *want_gate = zeros(n), *want_up = zeros(n);
    void *dgate = new_operands(m, n), *dup = new_operands(m, n);
    for (size_t k = 0; k < n; k++) {
      const size_t at = (size_t)row[k / (size_t)F] * (size_t)F + k % (size_t)F;
      float x = gate[at], s = lit_gelu_share(x), gelu = x * s, square = x * x, bent = (3.0f * 0.044715f) * square,
            slope = 1.59576912f * (1.0f + bent), rest = gelu * (1.0f - s), tilted = rest * slope;
      want_up[k] = dh[k] * gelu;
      want_gate[k] = (dh[k] * up[at]) * (s + tilted);
    }
    o->geglu_backward(o, dgate, dup, dh, gate, up, row, T, F);
    same_operands(m, "geglu_backward's dgate", dgate, want_gate, n);
    same_operands(m, "geglu_backward's dup", dup, want_up, n);
  }
}

static void soft_cap_on(const struct machine *m) {
  enum { N = 5003 };
  const struct ops *o = m->ops;
  float *d = random_operands(m, N, 2.0f), *capped = random_floats(N, 7.0f), *want = zeros(N);
  for (int i = 0; i < N; i += 7) capped[i] = -INFINITY, d[i] = 0; /* left out of a row that was cut */
  void *operands = as_operands(m, d, N);
  for (int i = 0; i < N; i++) {
    const float t = capped[i] / 7.0f, square = t * t;
    if (i % 7) want[i] = d[i] * (1.0f - square);
  }
  o->soft_cap_backward(o, operands, capped, 7.0f, N);
  same_operands(m, "soft_cap_backward", operands, want, N);
}

static void test_soft_cap(void **state) {
  (void)state;
  every_machine(soft_cap_on);
}

static void test_geglu(void **state) {
  (void)state;
  every_machine(geglu_on);
}

static void logprob_on(const struct machine *m) {
  static const int widths[] = {2, 17, 256, 272, 700};
  const struct ops *o = m->ops;
  for (int s = 0; s < 10; s++) {
    int V = widths[s / 2], T = 4000 / V + 2;
    size_t n = (size_t)(T * V);
    float temperature = s % 2 ? 0.7f : 1.0f, *logits = random_floats(n, 6.0f), *d = random_floats((size_t)T, 1.0f),
          *lse = zeros((size_t)T), *want = zeros(n);
    int32_t *target = guarded((size_t)T * sizeof *target);
    void *got = new_operands(m, n);
    memset(got, 0x77, n * o->operand_bytes);
    for (int t = 0; t < T; t++) {
      target[t] = t == 1 ? -1 : (int32_t)(random_u32() % (unsigned)V);
      lse[t] = 5.0f + random_float(1.0f);
      for (int v = 0; v < V && target[t] >= 0; v++) {
        float z = logits[t * V + v] / temperature, hot = v == target[t] ? 1.0f : 0.0f, p = lit_exp(z - lse[t]);
        want[t * V + v] = (d[t] * (hot - p)) / temperature;
      }
    }
    o->logprob_backward(o, got, d, NULL, NULL, logits, lse, target, temperature, T, V);
    same_operands(m, "logprob_backward", got, want, n);
    float *e = random_floats((size_t)T, 1.0f), *entropy = random_floats((size_t)T, 3.0f);
    for (int t = 0; t < T; t++) {
      if (t % 3 == 2) e[t] = 0.0f;
      for (int v = 0; v < V && target[t] >= 0 && e[t] != 0.0f; v++) {
        const float z = logits[t * V + v] / temperature, hot = v == target[t] ? 1.0f : 0.0f, p = lit_exp(z - lse[t]);
        const float x = d[t] * (hot - p), less = e[t] * (p * ((z - lse[t]) + entropy[t]));
        want[t * V + v] = (x - less) / temperature;
      }
    }
    o->logprob_backward(o, got, d, e, entropy, logits, lse, target, temperature, T, V);
    same_operands(m, "logprob_backward with entropy", got, want, n);
  }
}

static void test_logprob(void **state) {
  (void)state;
  every_machine(logprob_on);
}

static void accumulate_on(const struct machine *m) {
  enum { N = 12345 };
  const struct ops *o = m->ops;
  float *g = random_floats(N, 1.0f), *back = zeros(N);
  int64_t *acc = guarded(N * sizeof *acc), *want = guarded(N * sizeof *want);
  g[0] = 0x1p18f; /* 2^50 after scaling: the largest that fits */
  g[1] = -0x1p18f;
  g[2] = 0x1.8p-32f;  /* 1.5 -> 2 */
  g[3] = -0x1.4p-31f; /* -2.5 -> -2 */
  g[4] = 0x1p-33f;    /* 0.5 -> 0 */
  for (int i = 0; i < N; i++) {
    acc[i] = (int64_t)random_u32() - (1LL << 31);
    want[i] = acc[i] + (int64_t)nearbyint((double)g[i] * 0x1p32);
  }
  int64_t *taken = guarded(N * sizeof *taken);
  float *given = copy_floats(g, N);
  memcpy(taken, acc, N * sizeof *acc);
  assert_true(o->accumulate(o, acc, g, N, 32));
  assert_memory_equal(acc, want, N * sizeof *acc);
  assert_true(o->accumulate_and_clear(o, taken, given, N, 32));
  assert_memory_equal(taken, want, N * sizeof *acc);
  for (int i = 0; i < N; i++) assert_int_equal(lit_bits(given[i]), 0);
  o->grad_from_accumulator(o, back, acc, N, 32, 3.0);
  for (int i = 0; i < N; i++) {
    float expected = (float)(((double)want[i] * 0x1p-32) / 3.0);
    same_floats(m, "grad_from_accumulator", back + i, &expected, 1);
    assert_int_equal(acc[i], 0);
  }
  static const float refused[] = {INFINITY, -INFINITY, NAN, 0x1.000002p18f, -0x1p19f};
  for (int i = 0; i < 5; i++) {
    float keep = g[N - 1];
    int64_t before = acc[N - 1];
    g[N - 1] = refused[i];
    assert_false(o->accumulate(o, acc, g, N, 32));
    assert_true(acc[N - 1] == before);
    given[N - 1] = given[0] = refused[i];
    assert_false(o->accumulate_and_clear(o, taken, given, N, 32));
    assert_int_equal(lit_bits(given[N - 1]) | lit_bits(given[0]), 0);
    g[N - 1] = keep;
  }
}

/* Sums of any size and sign. */
static void gradient_on(const struct machine *m) {
  enum { N = 4099 };
  static const int64_t bounds[] = {0, -1, INT64_MIN, INT64_MAX, 1LL << 32, -(1LL << 32), 0xffffffff, -0xffffffffLL};
  const struct ops *o = m->ops;
  float *g = zeros(N);
  int64_t *acc = guarded(N * sizeof *acc), *sums = guarded(N * sizeof *sums);
  for (int i = 0; i < N; i++) sums[i] = (int64_t)((uint64_t)random_u32() << 32 | random_u32()) >> random_u32() % 63;
  memcpy(sums, bounds, sizeof bounds);
  memcpy(acc, sums, N * sizeof *acc);
  o->grad_from_accumulator(o, g, acc, N, 40, 7.0);
  for (int i = 0; i < N; i++) {
    const float expected = (float)(((double)sums[i] * 0x1p-40) / 7.0);
    same_floats(m, "grad_from_accumulator", g + i, &expected, 1);
    assert_true(acc[i] == 0);
  }
}

static void squares_on(const struct machine *m) {
  const struct ops *o = m->ops;
  static const size_t sizes[] = {1, 15, 16, 40, 65535, 65536, 65537, 140001};
  float *g = random_floats(140001, 1.0f);
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    double sum = 0.0;
    for (size_t at = 0; at < sizes[s]; at += 65536) {
      double lane[16] = {0};
      for (size_t i = at; i < sizes[s] && i < at + 65536; i++) lane[i % 16] += (double)g[i] * (double)g[i];
      for (int width = 8; width >= 1; width /= 2)
        for (int l = 0; l < width; l++) lane[l] += lane[l + width];
      sum += lane[0];
    }
    double got = o->sum_of_squares(o, g, sizes[s]);
    assert_memory_equal(&got, &sum, sizeof sum);
  }
}

static void adamw_on(const struct machine *m) {
  const struct ops *o = m->ops;
  for (size_t n = 9001; n < 9005; n++) {
    struct adamw a = {.lr = 1e-3f,
                      .beta1 = 0.9f,
                      .beta2 = 0.99f,
                      .eps = 1e-8f,
                      .weight_decay = 0.1f,
                      .bias1 = 0.271f,
                      .bias2 = 0.0297f,
                      .grad_scale = 0.73f};
    float *p = random_floats(n, 1.0f), *m1 = random_floats(n, 0.1f), *v = random_floats(n, 0.1f),
          *g = random_floats(n, 1.0f);
    for (size_t i = 0; i < n; i++) v[i] = fabsf(v[i]);
    float *want = copy_floats(p, n), *want_m = copy_floats(m1, n), *want_v = copy_floats(v, n);
    for (size_t i = 0; i < n; i++) {
      float scaled = g[i] * a.grad_scale, shrink = want[i] * (a.lr * a.weight_decay), old = want_m[i] * a.beta1,
            fresh = scaled * (1.0f - a.beta1);
      want[i] = want[i] - shrink;
      want_m[i] = old + fresh;
      old = want_v[i] * a.beta2;
      fresh = (scaled * scaled) * (1.0f - a.beta2);
      want_v[i] = old + fresh;
      float denominator = sqrtf(want_v[i]) / sqrtf(a.bias2) + a.eps,
            step = (a.lr / a.bias1) * (want_m[i] / denominator);
      want[i] = want[i] - step;
    }
    o->adamw(o, p, m1, v, g, &a, n);
    same_floats(m, "adamw's master", p, want, n);
    same_floats(m, "adamw's first moment", m1, want_m, n);
    same_floats(m, "adamw's second moment", v, want_v, n);
  }
}

/* AdamW of one element, as text; the moments in place. */
static float lit_adamw(const struct adamw *a, float master, float *m, float *v, float g) {
  const float scaled = g * a->grad_scale, shrink = master * (a->lr * a->weight_decay);
  float old = *m * a->beta1, fresh = scaled * (1.0f - a->beta1);
  *m = old + fresh;
  old = *v * a->beta2;
  fresh = (scaled * scaled) * (1.0f - a->beta2);
  *v = old + fresh;
  const float denominator = sqrtf(*v) / sqrtf(a->bias2) + a->eps, step = (a->lr / a->bias1) * (*m / denominator);
  master = master - shrink;
  return master - step;
}

static float *largest_of(const float *x, const size_t *begin, size_t blocks) {
  float *out = calloc(blocks, sizeof *out);
  for (size_t b = 0; b < blocks; b++)
    for (size_t i = begin[b]; i < begin[b + 1]; i++)
      out[b] = fminf(fmaxf(out[b], fabsf(x[i])), FLT_MAX);
  return out;
}

/* Gradients of every size, none at all in some blocks, and some that overflow v: codes and largest values after each
 * step. */
static void adamw8_on(const struct machine *m) {
  const struct ops *o = m->ops;
  static const struct adamw a = {.lr = 1e-3f,
                                 .beta1 = 0.9f,
                                 .beta2 = 0.99f,
                                 .eps = 1e-8f,
                                 .weight_decay = 0.1f,
                                 .bias1 = 0.271f,
                                 .bias2 = 0.0297f,
                                 .grad_scale = 0.73f};
  static const size_t sizes[][2] = {{1, 1}, {256, 256}, {16, 5000}, {240, 241}, {256, 9001}};
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const size_t first = sizes[s][0], n = sizes[s][1];
    size_t begin[64] = {0}, blocks = 0;
    while (begin[blocks] < n) {
      const size_t next = blocks == 0 ? first : begin[blocks] + 256;
      begin[++blocks] = next < n ? next : n;
    }
    float *p = random_floats(n, 1.0f), *want = copy_floats(p, n), *m1 = zeros(n), *v = zeros(n), *m_max = zeros(blocks),
          *v_max = zeros(blocks);
    uint8_t *codes = guarded(n), *squares = guarded(n);
    memset(codes, 0, n);
    memset(squares, 0, n);
    for (int step = 0; step < 4; step++) {
      float *g = random_floats(n, 1.0f);
      for (size_t i = 0; i < n; i++) g[i] = i / 300 % 4 == 3 ? 0 : g[i] * powf(10, -(float)(random_u32() % 9));
      if (step == 2) g[n / 2] = 3e19f;
      for (size_t i = 0; i < n; i++) want[i] = lit_adamw(&a, want[i], &m1[i], &v[i], g[i]);
      o->adamw8(o, p, &(struct moments8){codes, squares, m_max, v_max}, g, &a, first, n);
      same_floats(m, "adamw8's master", p, want, n);
      float *want_m = largest_of(m1, begin, blocks), *want_v = largest_of(v, begin, blocks);
      same_floats(m, "adamw8's largest first moment", m_max, want_m, blocks);
      same_floats(m, "adamw8's largest second moment", v_max, want_v, blocks);
      for (size_t b = 0; b < blocks; b++) {
        for (size_t i = begin[b]; i < begin[b + 1]; i++) {
          const int code = lit_moment_code(m1[i], want_m[b], false), square = lit_moment_code(v[i], want_v[b], true);
          if (codes[i] != code || squares[i] != square)
            fail_msg(
                "adamw8 on %s: element %zu has codes %d and %d, expected %d and %d of %.9g of %.9g and %.9g of %.9g",
                m->level, i, codes[i], squares[i], code, square, (double)m1[i], (double)want_m[b], (double)v[i],
                (double)want_v[b]);
          m1[i] = lit_moment_share(code, false) * want_m[b];
          v[i] = lit_moment_share(square, true) * want_v[b];
        }
      }
      free(want_m);
      free(want_v);
    }
  }
}

/* Neighbours of where decades meet, and of 0 and 1: with beta1 0 the first moment is the gradient. */
static void moment_edges_on(const struct machine *m) {
  static const struct adamw a = {.lr = 1e-3f, .eps = 1e-8f, .bias1 = 1, .bias2 = 1, .grad_scale = 1};
  enum { NEIGHBOURS = 8, EDGES = 9, N = 2 * NEIGHBOURS * EDGES };
  float *p = zeros(N), *g = zeros(N), m_max = 0, v_max = 0;
  uint8_t codes[N] = {0}, squares[N] = {0};
  for (int edge = 0; edge < EDGES; edge++) {
    float up = edge == 8 ? 0 : (float)pow(10, -edge), down = up;
    for (int i = 0; i < NEIGHBOURS; i++) {
      g[2 * (edge * NEIGHBOURS + i)] = edge == 0 ? 1 : up, g[2 * (edge * NEIGHBOURS + i) + 1] = -down;
      up = nextafterf(up, 2), down = nextafterf(down, -1);
    }
  }
  m->ops->adamw8(m->ops, p, &(struct moments8){codes, squares, &m_max, &v_max}, g, &a, N, N);
  assert_true(m_max == 1);
  for (int i = 0; i < N; i++) {
    if (codes[i] != lit_moment_code(g[i], 1, false) || squares[i] != lit_moment_code(g[i] * g[i], v_max, true))
      fail_msg("adamw8 on %s: %.9g has codes %d and %d", m->level, (double)g[i], codes[i], squares[i]);
  }
}

/* Every code is reached by its own share and keeps it, shares ascend with codes, and none is off by more than half a
 * cell. */
static void test_moment_codes(void **state) {
  (void)state;
  for (int square = 0; square < 2; square++) {
    for (int code = 0; code < (square ? 256 : 128); code++) {
      const float share = lit_moment_share(code, square);
      if (share != 0) assert_int_equal(lit_moment_code(share, 1, square), code);
      if (code > 0) assert_true(share > lit_moment_share(code - 1, square));
      if (code > 0 && !square) assert_int_equal(lit_moment_code(-share, 1, false), code + 128);
    }
    for (float x = 1e-6f; x < 1; x *= 1.001f) {
      const float share = lit_moment_share(lit_moment_code(x, 1, square), square);
      const int d = 7 + (int)floorf(log10f(x) + 1e-6f);
      assert_true(fabsf(share - x) <= 1.001f * 4.5f * (float)pow(10, d - 7) / (float)lit_moment_cells(d, square));
    }
  }
}

static void test_adamw8(void **state) {
  (void)state;
  every_machine(adamw8_on);
  every_machine(moment_edges_on);
}

static void test_accumulate(void **state) {
  (void)state;
  every_machine(accumulate_on);
  every_machine(gradient_on);
}

static void test_squares(void **state) {
  (void)state;
  every_machine(squares_on);
}

static void test_adamw(void **state) {
  (void)state;
  every_machine(adamw_on);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_weight),     cmocka_unit_test(test_bias),    cmocka_unit_test(test_embed),
      cmocka_unit_test(test_rmsnorm),    cmocka_unit_test(test_rope),    cmocka_unit_test(test_attention),
      cmocka_unit_test(test_soft_cap),
      cmocka_unit_test(test_swiglu),     cmocka_unit_test(test_geglu),   cmocka_unit_test(test_logprob),
      cmocka_unit_test(test_accumulate), cmocka_unit_test(test_squares), cmocka_unit_test(test_adamw),
      cmocka_unit_test(test_adamw8),      cmocka_unit_test(test_moment_codes),
  };
  random_seed(11);
  pool_enter();
  return cmocka_run_group_tests_name("ops backward", tests, NULL, NULL);
}
