/* The forward operations equal the literal text of NUMERICS.md bit for bit, on every level, format and thread count,
 * over odd sizes; every array ends at a guard page.  A row alone gives the bits it gives in a batch. */
#include "tests/unit/model/ops_support.h"

static void convert_on(const struct machine *m) {
  const struct ops *o = m->ops;
  for (int extra = 0; extra < 3; extra++) {
    size_t n = 60000 + (size_t)extra * 7;
    float *x = zeros(n), *back = zeros(n);
    for (size_t i = 0; i < n; i++) { /* any bit pattern but the subnormal ones, infinities and NaNs included */
      uint32_t u = random_u32();
      if ((u & 0x7f800000u) == 0) u = 0;
      x[i] = lit_float(u);
    }
    x[0] = INFINITY;
    x[1] = -NAN;
    x[2] = lit_float(0x3f808000u);
    x[3] = lit_float(0x3f818000u);
    x[4] = lit_float(0x7f7fffffu);
    x[5] = lit_float(0x7f800001u);
    void *operand = new_operands(m, n);
    o->to_operand(o, operand, x, n);
    same_operands(m, "to_operand", operand, x, n);
    o->from_operand(o, back, operand, n);
    for (size_t i = 0; i < n; i++) assert_int_equal(lit_bits(back[i]), lit_bits(lit_operand(x[i], m->bf16)));
  }
}

static void test_convert(void **state) {
  (void)state;
  every_machine(convert_on);
}

static void matrix_on(const struct machine *m) {
  static const int sizes[][2] = {{1, 1}, {16, 32}, {17, 33}, {272, 64}, {90, 130}, {5, 7}};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    int N = sizes[s][0], K = sizes[s][1], K32 = round_up(K, 32);
    size_t n = (size_t)N * (size_t)K;
    float *w = random_operands(m, n, 1.0f);
    struct matrix W = packed_matrix(m, w, N, K);
    for (int i = 0; i < round_up(N, 16); i++)
      for (int k = 0; k < K32; k++) {
        size_t at = in_links(m) ? (size_t)((i / 16 * K32 / 2 + k / 4 * 2 + k % 2) * 16 + i % 16) * 2 + (k % 4 < 2)
                                : (size_t)((i / 16 * K32 / 2 + k / 2) * 16 + i % 16) * 2 + (size_t)(k % 2);
        float want = i < N && k < K ? w[i * K + k] : 0.0f;
        if (lit_bits(operand_at(m, W.data, at)) != lit_bits(want))
          FAIL_AT("matrix_pack", m, at, operand_at(m, W.data, at), want);
      }
    void *rows = new_operands(m, n);
    o->matrix_unpack_rows(o, rows, &W, 0, N);
    same_operands(m, "matrix_unpack_rows", rows, w, n);
    void *one = new_operands(m, (size_t)K);
    o->matrix_unpack_rows(o, one, &W, N / 2, 1);
    same_operands(m, "matrix_unpack_rows of one", one, w + (size_t)(N / 2) * (size_t)K, (size_t)K);
    struct matrix X = {.N = K, .K = N};
    X.data = guarded(o->matrix_bytes(o, K, N));
    o->matrix_pack_transposed(o, &X, as_operands(m, w, n), N, K);
    void *columns = new_operands(m, n);
    o->matrix_unpack_rows(o, columns, &X, 0, K);
    for (int i = 0; i < N; i++)
      for (int k = 0; k < K; k++)
        assert_int_equal(lit_bits(operand_at(m, columns, (size_t)(k * N + i))), lit_bits(w[i * K + k]));
    for (int first = 0; first < K; first += 32) { /* the same by pieces, padding included */
      struct matrix piece = {.N = K - first < 32 ? K - first : 32, .K = N};
      const size_t bytes = o->matrix_bytes(o, piece.N, N), row_bytes = bytes / (size_t)round_up(piece.N, 16);
      piece.data = guarded(bytes);
      memset(piece.data, 0x55, bytes);
      o->matrix_transpose(o, &piece, &W, first);
      assert_memory_equal(piece.data, (char *)X.data + (size_t)first * row_bytes, bytes);
    }
    float *x = zeros((size_t)(2 * K));
    o->embed(o, x, &W, (int32_t[]){N - 1, 0}, 2);
    same_floats(m, "embed", x, w + (size_t)(N - 1) * (size_t)K, (size_t)K);
    same_floats(m, "embed", x + K, w, (size_t)K);
  }
}

static void test_matrix(void **state) {
  (void)state;
  every_machine(matrix_on);
}

static void gemm_on(const struct machine *m) {
  static const int sizes[][3] = {{1, 1, 1},    {3, 17, 33},   {1, 100, 70},   {13, 48, 64},
                                 {61, 70, 31}, {100, 33, 65}, {150, 16, 30},  {5, 40, 1100},
                                 {2, 300, 96}, {600, 3, 40},  {70, 34, 3000}, {3, 18, 52000},
                                 {9, 33, 70},  {11, 49, 100}, {16, 64, 64},   {20, 130, 2100}};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    int T = sizes[s][0], N = sizes[s][1], K = sizes[s][2];
    float *x = random_operands(m, (size_t)(T * K), 2.0f), *w = random_operands(m, (size_t)(N * K), 1.0f),
          *want = zeros((size_t)(T * N));
    float *start = random_floats((size_t)(T * N), 3.0f), *y = random_floats((size_t)(T * N), 1.0f),
          *sum = copy_floats(start, (size_t)(T * N));
    struct matrix W = packed_matrix(m, w, N, K);
    void *xo = as_operands(m, x, (size_t)(T * K));
    for (int t = 0; t < T; t++)
      for (int n = 0; n < N; n++) want[t * N + n] = lit_dot(x + t * K, 1, w + n * K, 1, K);
    o->gemm(o, y, xo, &W, T, false);
    same_floats(m, "gemm", y, want, (size_t)(T * N));
    for (int i = 0; i < T * N; i++) want[i] = start[i] + want[i];
    o->gemm(o, sum, xo, &W, T, true);
    same_floats(m, "gemm, accumulating", sum, want, (size_t)(T * N));
    for (int t = 0; t < T; t += 7) { /* alone */
      float *one = zeros((size_t)N);
      o->gemm(o, one, as_operands(m, x + t * K, (size_t)K), &W, 1, false);
      same_floats(m, "gemm of one row", one, y + t * N, (size_t)N);
    }
  }
}

static void test_gemm(void **state) {
  (void)state;
  every_machine(gemm_on);
}

/* Zeros, subnormals, the largest numbers, infinities and NaNs at random places: results are the literal ones, NaNs for
 * NaNs. */
static void gemm_special_on(const struct machine *m) {
  static const uint32_t special[] = {0,           0x80000000u, 0x00010000u, 0x807f0000u, 0x00800000u, 0x7f7f0000u,
                                     0xff7f0000u, 0x1f800000u, 0x9f810000u, 0x7f800000u, 0xff800000u, 0x7fc00000u};
  enum { N = 35, K = 75 };
  const struct ops *o = m->ops;
  for (int round = 0; round < 8; round++) {
    const int T = round < 4 ? 24 : 8;
    const unsigned kinds = round % 4 < 2 ? 9 : 12, often = round % 2 ? 3 : 60; /* finite; and the others */
    float *x = random_operands(m, (size_t)(T * K), 2.0f), *w = random_operands(m, N * K, 1.0f),
          *y = random_floats((size_t)(T * N), 1.0f);
    for (int i = 0; i < T * K; i++)
      if (random_u32() % often == 0) x[i] = lit_float(special[random_u32() % kinds]);
    for (int i = 0; i < N * K; i++)
      if (random_u32() % often == 0) w[i] = lit_float(special[random_u32() % kinds]);
    struct matrix W = packed_matrix(m, w, N, K);
    o->gemm(o, y, as_operands(m, x, (size_t)(T * K)), &W, T, false);
    for (int i = 0; i < T * N; i++) {
      const float want = lit_dot(x + i / N * K, 1, w + i % N * K, 1, K);
      same_fixed(m, "gemm of special numbers", (size_t)i, y[i], want);
    }
  }
}

/* Products that are no floats: too small, or so large that only the sum with the next one is one again. */
static void gemm_edges_on(const struct machine *m) {
  static const int exponents[][2] = {{-60, -63}, {-66, -63}, {-90, -36}, {63, 61}, {62, 63}};
  enum { N = 35, K = 75 };
  const struct ops *o = m->ops;
  if (m->threads > 1) return; /* they share out outputs */
  for (size_t e = 0; e < sizeof exponents / sizeof exponents[0]; e++) {
    for (int T = 1; T < 40; T += 1 + T / 3) {
      float *x = operands_near(m, (size_t)(T * K), exponents[e][0]), *w = operands_near(m, N * K, exponents[e][1]),
            *y = random_floats((size_t)(T * N), 1.0f);
      struct matrix W = packed_matrix(m, w, N, K);
      o->gemm(o, y, as_operands(m, x, (size_t)(T * K)), &W, T, false);
      for (int i = 0; i < T * N; i++) {
        const float want = lit_dot(x + i / N * K, 1, w + i % N * K, 1, K);
        same_fixed(m, "gemm of numbers that are nearly no floats", (size_t)i, y[i], want);
      }
    }
    guarded_free_all();
  }
}

static void test_gemm_special(void **state) {
  (void)state;
  every_machine(gemm_special_on);
  every_machine(gemm_edges_on);
}

static void bias_on(const struct machine *m) {
  static const int sizes[][2] = {{1, 1}, {3, 5}, {40, 72}, {300, 257}, {7, 1500}};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    const int T = sizes[s][0], N = sizes[s][1];
    float *y = random_floats((size_t)(T * N), 3.0f), *b = random_operands(m, (size_t)N, 2.0f),
          *want = copy_floats(y, (size_t)(T * N));
    for (int i = 0; i < T * N; i++) want[i] = want[i] + b[i % N];
    o->add_bias(o, y, as_operands(m, b, (size_t)N), T, N);
    same_floats(m, "add_bias", y, want, (size_t)(T * N));
  }
}

static void test_bias(void **state) {
  (void)state;
  every_machine(bias_on);
}

static void rmsnorm_on(const struct machine *m) {
  static const int widths[] = {1, 15, 16, 64, 100, 300};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof widths / sizeof widths[0]; s++) {
    int D = widths[s], T = 12000 / D + 3;
    float *x = random_floats((size_t)(T * D), 3.0f), *w = random_operands(m, (size_t)D, 2.0f), *rstd = zeros((size_t)T);
    float *want = zeros((size_t)(T * D)), *want_rstd = zeros((size_t)T);
    void *y = new_operands(m, (size_t)(T * D)), *wo = as_operands(m, w, (size_t)D);
    for (int t = 0; t < T; t++) want_rstd[t] = lit_rmsnorm(want + t * D, x + t * D, w, 1e-6f, D);
    o->rmsnorm(o, y, rstd, x, wo, false, 1e-6f, T, D);
    same_operands(m, "rmsnorm", y, want, (size_t)(T * D));
    same_floats(m, "rmsnorm's rstd", rstd, want_rstd, (size_t)T);
    o->rmsnorm(o, y, NULL, x + D, wo, false, 1e-6f, 1, D);
    same_operands(m, "rmsnorm of one row", y, want + D, (size_t)D);
    for (int d = 0; d < D; d++) w[d] = 1.0f + w[d];
    for (int t = 0; t < T; t++) lit_rmsnorm(want + t * D, x + t * D, w, 1e-6f, D);
    o->rmsnorm(o, y, NULL, x, wo, true, 1e-6f, T, D);
    same_operands(m, "rmsnorm by 1 + w", y, want, (size_t)(T * D));
  }
}

static void test_rmsnorm(void **state) {
  (void)state;
  every_machine(rmsnorm_on);
}

static void rope_on(const struct machine *m) {
  static const int sizes[][3] = {{200, 3, 16}, {90, 2, 64}, {30, 1, 2}, {100, 5, 18}, {40, 2, 128}};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
    int T = sizes[s][0], H = sizes[s][1], E = sizes[s][2], positions = 37;
    size_t n = (size_t)(T * H * E);
    float *x = random_floats(n, 3.0f), *w = random_operands(m, (size_t)E, 2.0f),
          *rope = random_floats((size_t)(positions * E), 1.0f);
    float *want = zeros(n), *rstd = zeros((size_t)(T * H)), *want_rstd = zeros((size_t)(T * H));
    int32_t *position = guarded((size_t)T * sizeof *position);
    void *out = new_operands(m, n), *wo = as_operands(m, w, (size_t)E);
    for (int t = 0; t < T; t++) position[t] = (int32_t)(random_u32() % (unsigned)positions);
    for (int norm = 1; norm >= 0; norm--) {
      for (int r = 0; r < T * H; r++) {
        if (norm)
          want_rstd[r] = lit_rmsnorm(want + r * E, x + r * E, w, 1e-5f, E);
        else
          memcpy(want + r * E, x + r * E, (size_t)E * sizeof *want);
        lit_rotate(want + r * E, rope + position[r / H] * E, E);
      }
      o->head_norm_rope(o, out, norm ? rstd : NULL, x, norm ? wo : NULL, false, 1e-5f, rope, position, T, H, E);
      same_operands(m, "head_norm_rope", out, want, n);
      if (norm) same_floats(m, "head_norm_rope's rstd", rstd, want_rstd, (size_t)(T * H));
      o->head_norm_rope(o, out, NULL, x + H * E, norm ? wo : NULL, false, 1e-5f, rope, position + 1, 1, H, E);
      same_operands(m, "head_norm_rope of one row", out, want + H * E, (size_t)(H * E));
    }
    for (int e = 0; e < E; e++) w[e] = 1.0f + w[e];
    for (int r = 0; r < T * H; r++) {
      lit_rmsnorm(want + r * E, x + r * E, w, 1e-5f, E);
      lit_rotate(want + r * E, rope + position[r / H] * E, E);
    }
    o->head_norm_rope(o, out, rstd, x, wo, true, 1e-5f, rope, position, T, H, E);
    same_operands(m, "head_norm_rope by 1 + w", out, want, n);
  }
}

static void test_rope(void **state) {
  (void)state;
  every_machine(rope_on);
}

/* Three sequences, their pages shuffled through the pool; unreferenced pages hold garbage, as recycled pages do. */
static float cap;               /* of scores; 0: none */
static float value_size = 1.0f; /* of the largest value */
struct attention_case {
  int H, G, E, page_tokens, window;
};
enum { SEQUENCES = 3, LENGTH_MAX = 75 };
static const int lengths[SEQUENCES] = {75, 33, 16};

struct attention_data {
  float *q, *k, *v, *want, *want_lse; /* rows in order of sequence, position */
  int32_t *sequence, *position, *pages;
  int T, pages_per_sequence;
  struct kv_layer kv;
};

static void fill_pool(const struct machine *m, void *pool, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float x = lit_operand(random_float(2.0f), m->bf16);
    if (m->bf16)
      ((uint16_t *)pool)[i] = (uint16_t)(lit_bits(x) >> 16);
    else
      ((float *)pool)[i] = x;
  }
}

static struct attention_data make_attention(const struct machine *m, const struct attention_case *c, float scale) {
  struct attention_data d = {.T = lengths[0] + lengths[1] + lengths[2]};
  size_t T = (size_t)d.T, GE = (size_t)(c->G * c->E), HE = (size_t)(c->H * c->E);
  d.pages_per_sequence = (LENGTH_MAX + c->page_tokens - 1) / c->page_tokens;
  int pages = SEQUENCES * d.pages_per_sequence + 1, next = 0, row = 0;
  d.q = random_operands(m, T * HE, 2.0f);
  d.k = random_operands(m, T * GE, 2.0f);
  d.v = random_operands(m, T * GE, value_size);
  d.want = zeros(T * HE);
  d.want_lse = zeros(T * (size_t)c->H);
  d.sequence = guarded(T * sizeof(int32_t));
  d.position = guarded(T * sizeof(int32_t));
  d.pages = guarded((size_t)(SEQUENCES * d.pages_per_sequence) * sizeof(int32_t));
  size_t keys = (size_t)(pages * c->G * c->page_tokens * round_up(c->E, 32)),
         values = (size_t)(pages * c->G * c->page_tokens * round_up(c->E, 16));
  d.kv = (struct kv_layer){.keys = new_operands(m, keys),
                           .values = new_operands(m, values),
                           .page_tokens = c->page_tokens,
                           .G = c->G,
                           .E = c->E};
  fill_pool(m, d.kv.values, values);
  for (int i = 0; i < SEQUENCES * d.pages_per_sequence; i++)
    d.pages[i] = 1 << 28; /* touching an unreserved page would fault */
  for (int s = 0; s < SEQUENCES; s++) {
    for (int i = 0; i < (lengths[s] + c->page_tokens - 1) / c->page_tokens; i++)
      d.pages[s * d.pages_per_sequence + i] = (next++ * 11 + 3) % pages; /* 11 is prime to every count here */
    for (int p = 0; p < lengths[s]; p++, row++) {
      d.sequence[row] = s;
      d.position[row] = p;
      for (int h = 0; h < c->H; h++)
        lit_attention(d.want + (size_t)row * HE + (size_t)(h * c->E), d.want_lse + row * c->H + h,
                      d.q + (size_t)row * HE + (size_t)(h * c->E),
                      d.k + (size_t)(row - p) * GE + (size_t)(h / (c->H / c->G) * c->E),
                      d.v + (size_t)(row - p) * GE + (size_t)(h / (c->H / c->G) * c->E), GE, lit_first(p, c->window), p,
                      c->E, scale, cap, m->bf16);
    }
  }
  return d;
}

/* Every context length, each row alone in its sequence among the call's neighbours, as in a decode step. */
static void attention_alone_on(const struct machine *m, const struct attention_case *c, const struct attention_data *d,
                               float scale) {
  enum { STEP = 2 * LENGTH_MAX };
  static const int first[SEQUENCES] = {0, LENGTH_MAX, LENGTH_MAX + 33};
  const size_t HE = (size_t)(c->H * c->E), H = (size_t)c->H;
  int32_t sequence[STEP], position[STEP];
  float *q = zeros(STEP * HE), *want = zeros(STEP * HE), *want_lse = zeros(STEP * H), *lse = zeros(STEP * H);
  for (int i = 0; i < STEP; i++) {
    sequence[i] = i % 2 == 0 ? 0 : 1 + i / 2 % 2;
    position[i] = i / 2 % lengths[sequence[i]];
    const size_t row = (size_t)(first[sequence[i]] + position[i]);
    memcpy(q + (size_t)i * HE, d->q + row * HE, HE * sizeof *q);
    memcpy(want + (size_t)i * HE, d->want + row * HE, HE * sizeof *want);
    memcpy(want_lse + (size_t)i * H, d->want_lse + row * H, H * sizeof *want_lse);
  }
  const struct rows rows = {.T = STEP,
                            .sequence = sequence,
                            .position = position,
                            .pages = d->pages,
                            .pages_per_sequence = d->pages_per_sequence,
                            .sequences = SEQUENCES,
                            .window = c->window,
                      .cap = cap};
  void *out = new_operands(m, STEP * HE);
  m->ops->attention(m->ops, out, lse, as_operands(m, q, STEP * HE), &d->kv, &rows, c->H, scale);
  same_operands(m, "attention of lone rows", out, want, STEP * HE);
  same_floats(m, "attention's lse of lone rows", lse, want_lse, STEP * H);
}

/* Rows that are written together, but for `apart` at either end, lie as those that are written one by one, the last one
 * first. */
static void kv_write_on(const struct machine *m, const struct attention_data *d, const struct rows *all, int apart) {
  const struct ops *o = m->ops;
  const struct kv_layer *kv = &d->kv;
  const size_t places = (size_t)(SEQUENCES * d->pages_per_sequence + 1) * (size_t)(kv->G * kv->page_tokens);
  const size_t keys = places * (size_t)round_up(kv->E, 32), values = places * (size_t)round_up(kv->E, 16);
  const size_t GE = (size_t)(kv->G * kv->E), row = GE * o->operand_bytes;
  const char *k = as_operands(m, d->k, (size_t)d->T * GE), *v = as_operands(m, d->v, (size_t)d->T * GE);
  struct kv_layer pool[2] = {*kv, *kv};
  for (int i = 0; i < 2; i++) {
    pool[i].keys = new_operands(m, keys);
    pool[i].values = new_operands(m, values);
    memcpy(pool[i].values, kv->values, values * o->operand_bytes);
    for (int t = d->T - 1, end = d->T; t >= 0; t--) {
      if (i == 0 && t > apart && t < d->T - apart) continue; /* they go with the row at `apart` */
      struct rows some = *all;
      some.T = end - t;
      some.sequence = all->sequence + t;
      some.position = all->position + t;
      o->kv_write(o, &pool[i], &some, k + (size_t)t * row, v + (size_t)t * row, NULL);
      end = t;
    }
  }
  assert_memory_equal(pool[0].keys, pool[1].keys, keys * o->operand_bytes);
  assert_memory_equal(pool[0].values, pool[1].values, values * o->operand_bytes);
}

static void attention_case_on(const struct machine *m, const struct attention_case *c) {
  const struct ops *o = m->ops;
  float scale = 0.37f;
  struct attention_data d = make_attention(m, c, scale);
  size_t T = (size_t)d.T, HE = (size_t)(c->H * c->E), GE = (size_t)(c->G * c->E);
  struct rows rows = {.T = d.T,
                      .sequence = d.sequence,
                      .position = d.position,
                      .pages = d.pages,
                      .pages_per_sequence = d.pages_per_sequence,
                      .sequences = SEQUENCES,
                      .window = c->window,
                      .cap = cap};
  void *out = new_operands(m, T * HE), *q = as_operands(m, d.q, T * HE);
  float *lse = zeros(T * (size_t)c->H);
  kv_write_on(m, &d, &rows, c->H % 6);
  o->kv_write(o, &d.kv, &rows, as_operands(m, d.k, T * GE), as_operands(m, d.v, T * GE), NULL);
  o->attention(o, out, lse, q, &d.kv, &rows, c->H, scale);
  same_operands(m, "attention", out, d.want, T * HE);
  same_floats(m, "attention's lse", lse, d.want_lse, T * (size_t)c->H);

  /* Keys and values that lie in another order. */
  int32_t *row = random_choice(d.T, d.T + 3, false);
  float *k = random_operands(m, (T + 3) * GE, 2.0f), *v = random_operands(m, (T + 3) * GE, 1.0f);
  for (size_t t = 0; t < T; t++) {
    memcpy(k + (size_t)row[t] * GE, d.k + t * GE, GE * sizeof *k);
    memcpy(v + (size_t)row[t] * GE, d.v + t * GE, GE * sizeof *v);
  }
  memset(out, 0, T * HE * o->operand_bytes);
  fill_pool(m, d.kv.values, (size_t)c->page_tokens * GE);
  o->kv_write(o, &d.kv, &rows, as_operands(m, k, (T + 3) * GE), as_operands(m, v, (T + 3) * GE), row);
  o->attention(o, out, NULL, q, &d.kv, &rows, c->H, scale);
  same_operands(m, "attention, rows elsewhere", out, d.want, T * HE);
  attention_alone_on(m, c, &d, scale);

  /* A decode step: one row of each sequence, in another order; and each of these rows alone. */
  int pick[SEQUENCES] = {lengths[0] + 20, 40, lengths[0] + lengths[1] + 15};
  int32_t sequence[SEQUENCES], position[SEQUENCES];
  float *some = zeros(SEQUENCES * HE), *want = zeros(SEQUENCES * HE);
  for (int i = 0; i < SEQUENCES; i++) {
    sequence[i] = d.sequence[pick[i]];
    position[i] = d.position[pick[i]];
    memcpy(some + (size_t)i * HE, d.q + (size_t)pick[i] * HE, HE * sizeof *some);
    memcpy(want + (size_t)i * HE, d.want + (size_t)pick[i] * HE, HE * sizeof *want);
  }
  rows.T = SEQUENCES;
  rows.sequence = sequence;
  rows.position = position;
  void *step = new_operands(m, SEQUENCES * HE);
  o->attention(o, step, NULL, as_operands(m, some, SEQUENCES * HE), &d.kv, &rows, c->H, scale);
  same_operands(m, "attention of a decode step", step, want, SEQUENCES * HE);
  for (int i = 0; i < SEQUENCES; i++) {
    void *one = new_operands(m, HE);
    struct rows alone = rows;
    alone.T = 1;
    alone.sequence = sequence + i;
    alone.position = position + i;
    o->attention(o, one, NULL, as_operands(m, some + (size_t)i * HE, HE), &d.kv, &alone, c->H, scale);
    same_operands(m, "attention of one row", one, want + (size_t)i * HE, HE);
  }
}

static void attention_on(const struct machine *m) {
  static const struct attention_case cases[] = {
      {4, 2, 16, 16, 0},  {1, 1, 64, 32, 0},   {3, 1, 8, 48, 0},    {5, 5, 34, 16, 0},
      {7, 1, 40, 64, 0},  {8, 4, 64, 16, 0},   {6, 2, 18, 16, 0},   {2, 1, 128, 16, 0},
      {18, 3, 20, 32, 0}, {4, 2, 16, 16, 1},   {7, 1, 40, 64, 7},   {8, 4, 64, 16, 20},
      {6, 2, 18, 16, 32}, {2, 1, 128, 16, 33}, {18, 3, 20, 32, 47}, {3, 1, 8, 48, 75}};
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) attention_case_on(m, &cases[i]);
  cap = 1.5f;
  for (size_t i = 1; i < sizeof cases / sizeof cases[0]; i += 3) attention_case_on(m, &cases[i]);
  cap = 0;
  value_size = 0x1p-118f; /* times p, no floats */
  results_flushed = true;
  for (size_t i = 0; i < 4; i++) attention_case_on(m, &cases[i]);
  value_size = 1.0f;
  results_flushed = false;
}

static void test_attention(void **state) {
  (void)state;
  every_machine(attention_on);
}

static void swiglu_on(const struct machine *m) {
  const struct ops *o = m->ops;
  for (size_t n = 5000; n < 5003; n++) {
    float *gate = random_floats(n, 12.0f), *up = random_floats(n, 3.0f), *want = zeros(n);
    void *h = new_operands(m, n);
    gate[0] = 100.0f;
    gate[1] = -100.0f;
    gate[2] = 0.0f;
    for (size_t i = 0; i < n; i++) {
      float silu = gate[i] * lit_sigmoid(gate[i]);
      want[i] = silu * up[i];
    }
    o->swiglu(o, h, gate, up, n);
    same_operands(m, "swiglu", h, want, n);
  }
}

static void test_swiglu(void **state) {
  (void)state;
  every_machine(swiglu_on);
}

static void geglu_on(const struct machine *m) {
  const struct ops *o = m->ops;
  for (size_t n = 30001; n < 30003; n++) {
    float *gate = random_floats(n, 8.0f), *up = random_floats(n, 3.0f), *want = zeros(n);
    void *h = new_operands(m, n);
    gate[0] = 100.0f;
    gate[1] = -100.0f;
    gate[2] = 0.0f;
    for (size_t i = 0; i < n; i++) {
      float gelu = gate[i] * lit_gelu_share(gate[i]);
      want[i] = gelu * up[i];
    }
    o->geglu(o, h, gate, up, n);
    same_operands(m, "geglu", h, want, n);
  }
}

static void test_geglu(void **state) {
  (void)state;
  every_machine(geglu_on);
}

static void soft_cap_on(const struct machine *m) {
  const struct ops *o = m->ops;
  for (size_t n = 30001; n < 30003; n++) {
    float *x = random_floats(n, 40.0f), *want = zeros(n);
    x[0] = 1e9f;
    x[1] = -1e9f;
    x[2] = 0.0f;
    for (size_t i = 0; i < n; i++) {
      if (i % 3 == 0 && i > 2) x[i] = x[i] * 0.01f;
      want[i] = lit_capped(x[i], 7.0f);
    }
    o->soft_cap(o, x, 7.0f, n);
    same_floats(m, "soft_cap", x, want, n);
    assert_true(x[0] == 7.0f && x[1] == -7.0f && x[2] == 0.0f);
  }
}

static void test_soft_cap(void **state) {
  (void)state;
  every_machine(soft_cap_on);
}

static void elements_on(const struct machine *m) {
  const struct ops *o = m->ops;
  for (size_t n = 70001; n < 70002; n++) {
    float *x = random_floats(n, 8.0f), *y = random_operands(m, n, 3.0f), *scaled = zeros(n), *sum = zeros(n);
    for (size_t i = 0; i < n; i++) {
      scaled[i] = x[i] * 5.65625f;
      sum[i] = scaled[i] + y[i];
    }
    o->scale(o, x, 5.65625f, n);
    same_floats(m, "scale", x, scaled, n);
    o->add_operand(o, x, as_operands(m, y, n), n);
    same_floats(m, "add_operand", x, sum, n);
  }
}

static void test_elements(void **state) {
  (void)state;
  every_machine(elements_on);
}

static void logprob_on(const struct machine *m) {
  static const int widths[] = {2, 17, 256, 272, 1000};
  static const float temperatures[] = {1.0f, 0.7f};
  const struct ops *o = m->ops;
  for (int s = 0; s < 10; s++) {
    int V = widths[s / 2], T = 4000 / V + 2;
    float temperature = temperatures[s % 2], *logits = random_floats((size_t)(T * V), 9.0f), *z = zeros((size_t)V),
          sums[8], max, weighted;
    float *got = zeros((size_t)T), *lse = zeros((size_t)T), *entropy = zeros((size_t)T);
    float *want = zeros((size_t)T), *want_lse = zeros((size_t)T), *want_entropy = zeros((size_t)T);
    int32_t *target = guarded((size_t)T * sizeof *target);
    for (int t = 0; t < T; t++) {
      target[t] = t == 1 ? -1 : (int32_t)(random_u32() % (unsigned)V);
      if (t == 1) continue;
      float S = lit_softmax(z, &max, sums, &weighted, logits + t * V, temperature, V);
      want_lse[t] = max + lit_log(S);
      want[t] = z[target[t]] - want_lse[t];
      want_entropy[t] = want_lse[t] - weighted / S;
    }
    o->logprob(o, got, lse, entropy, logits, target, temperature, T, V);
    same_floats(m, "logprob", got, want, (size_t)T);
    same_floats(m, "logprob's lse", lse, want_lse, (size_t)T);
    same_floats(m, "logprob's entropy", entropy, want_entropy, (size_t)T);
    float one, one_lse;
    o->logprob(o, &one, &one_lse, NULL, logits + (T - 1) * V, target + T - 1, temperature, 1, V);
    same_floats(m, "logprob of one row", &one, want + T - 1, 1);
  }
}

static void test_logprob(void **state) {
  (void)state;
  every_machine(logprob_on);
}

/* Logits with ties, zeros of both signs, and a few that are far below the others. */
static float *logits_with_ties(int V) {
  float *logits = random_floats((size_t)V, 6.0f);
  for (int v = 0; v < V; v++) {
    if (random_u32() % 3 == 0) logits[v] = (float)(random_u32() % 5) * 0.5f - 1.0f;
    if (random_u32() % 7 == 0) logits[v] = random_u32() % 2 ? 0.0f : -0.0f;
    if (random_u32() % 9 == 0) logits[v] = logits[v] - 40.0f;
  }
  return logits;
}

/* What a cut keeps is what the definition says, in every row of a call; and log-probability and entropy of the cut row
 * are those of the literal softmax over it, finite where the entry is kept. */
static void cut_case(const struct machine *m, const struct sampling_params *cut, int V) {
  enum { ROWS = 4 };
  const struct ops *o = m->ops;
  float *got = zeros((size_t)(ROWS * V)), *want = zeros((size_t)(ROWS * V)), *z = zeros((size_t)V), sums[8];
  int32_t target[ROWS];
  for (int t = 0; t < ROWS; t++) {
    const float *logits = logits_with_ties(V);
    memcpy(got + t * V, logits, (size_t)V * sizeof *got);
    lit_cut(want + t * V, logits, cut->temperature, cut->top_k, cut->top_p, cut->min_p, V);
  }
  o->cut(o, got, cut, ROWS, V);
  same_floats(m, "cut", got, want, (size_t)(ROWS * V));
  for (int t = 0; t < ROWS; t++) {
    float max, weighted, logprob, lse, entropy;
    const float S = lit_softmax(z, &max, sums, &weighted, want + t * V, cut->temperature, V);
    target[t] = (int32_t)(random_u32() % (unsigned)V);
    o->logprob(o, &logprob, &lse, &entropy, got + t * V, target + t, cut->temperature, 1, V);
    const float want_lse = max + lit_log(S), want_logprob = z[target[t]] - want_lse,
                want_entropy = want_lse - weighted / S;
    same_floats(m, "a cut row's log-probability", &logprob, &want_logprob, 1);
    same_floats(m, "a cut row's entropy", &entropy, &want_entropy, 1);
    assert_true(isfinite(entropy) && isfinite(logprob) == isfinite(want[t * V + target[t]]));
    /* The gradient: that of a softmax over what is kept, and nothing where the entry is left out. */
    float dlogprob = isfinite(logprob) ? 0.75f : 0.0f;
    void *dlogits = new_operands(m, (size_t)V);
    o->logprob_backward(o, dlogits, &dlogprob, NULL, NULL, got + t * V, &lse, target + t, cut->temperature, 1, V);
    for (int v = 0; v < V; v++) {
      const double p = isfinite(want[t * V + v]) ? exp((double)z[v] - (double)max) / (double)S : 0;
      const double slope = 0.75 * ((v == target[t]) - p) / (double)cut->temperature;
      const float told = operand_at(m, dlogits, (size_t)v);
      if (dlogprob > 0) assert_true(fabs((double)told - slope) < (m->bf16 ? 5e-3 : 1e-6));
      if (!isfinite(want[t * V + v])) assert_true(told == 0);
    }
    struct draw d = {.row = 0, .temperature = cut->temperature, .u = (float)(random_u32() >> 8) * 0x1p-24f + 0x1p-25f};
    o->sample(o, &d, 1, got + t * V, V);
    assert_true(isfinite(want[t * V + d.token]) && isfinite(d.logprob));
  }
}

static void cut_on(const struct machine *m) {
  static const int widths[] = {1, 2, 17, 256, 272, 1000}, counts[] = {0, 1, 3, 40, 999};
  static const float masses[] = {1.0f, 1e-20f, 0.3f, 0.9f, 0.99f}, shares[] = {0.0f, 0.05f, 1.0f};
  static const float temperatures[] = {1.0f, 0.7f, 3.0f};
  const struct ops *o = m->ops;
  for (int i = m->threads; i < 6 * 5 * 5 * 3; i += 7) { /* another part for every number of threads */
    const struct sampling_params cut = {.temperature = temperatures[i % 3],
                                        .top_k = counts[i / 6 % 5],
                                        .top_p = masses[i / 30 % 5],
                                        .min_p = shares[i / 150]};
    cut_case(m, &cut, widths[i % 6]);
    guarded_free_all();
  }
  static const struct sampling_params wide[] = {{1, 0, 0.9f, 0}, {1, 3, 1, 0}, {1, 0, 0.5f, 0.4f}};
  for (int i = 0; i < 3; i++) { /* more equal entries than a kernel may look at alone */
    enum { WIDE = 20000 };
    float *even = zeros(WIDE);
    for (int v = 0; v < WIDE; v += 7) even[v] = -30.0f;
    o->cut(o, even, &wide[i], 1, WIDE);
    int kept = 0, last = 0;
    for (int v = 0; v < WIDE; v++)
      if (isfinite(even[v])) kept++, last = v;
    const int all = WIDE - (WIDE + 6) / 7, want = i == 0 ? (int)ceil(0.9 * all) : i == 1 ? 3 : all / 2;
    assert_int_equal(kept, want);
    assert_int_equal(last, want + (want - 1) / 6); /* the lowest of equals */
  }
  enum { FAR = 3000 }; /* a share that is reached only with entries far below the largest */
  float *steep = zeros(FAR), *want = zeros(FAR);
  steep[5] = 14.0f;
  lit_cut(want, steep, 1, 0, 0.9995f, 0, FAR);
  o->cut(o, steep, &(struct sampling_params){.temperature = 1, .top_p = 0.9995f}, 1, FAR);
  same_floats(m, "a share of what is far below", steep, want, FAR);
  assert_true(steep[0] == 0 && isinf(steep[FAR - 1]));
  const struct sampling_params cut = {.temperature = 1, .top_k = 2, .top_p = 1};
  float ties[5] = {3, 7, 7, 7, -1}, endless[3] = {1, HUGE_VALF, 0}, odd[4] = {NAN, 2, 1, 0};
  o->cut(o, ties, &cut, 1, 5);
  assert_true(isinf(ties[0]) && ties[1] == 7 && ties[2] == 7 && isinf(ties[3]) && isinf(ties[4]));
  o->cut(o, endless, &cut, 1, 3);
  assert_true(endless[0] == 1 && endless[2] == 0);
  o->cut(o, odd, &cut, 1, 4);
  assert_true(isnan(odd[0]) && odd[1] == 2 && isinf(odd[2]) && isinf(odd[3]));
}

static void test_cut(void **state) {
  (void)state;
  every_machine(cut_on);
}

static int32_t sample_one(const struct ops *o, const float *logits, float temperature, float u, int V) {
  struct draw d = {.temperature = temperature, .u = u};
  o->sample(o, &d, 1, logits, V);
  return d.token;
}

/* Many draws in one call, from rows in no order, at several temperatures: each as if it were alone, and its
 * log-probability that of the other kernel. */
static void draws_together(const struct ops *o, int V) {
  enum { ROWS = 5, DRAWS = 40 };
  float *logits = random_floats((size_t)(ROWS * V), 6.0f), logprob, lse;
  static const float temperatures[] = {1.0f, 0.7f, 0.0f};
  struct draw draws[DRAWS];
  for (int i = 0; i < DRAWS; i++)
    draws[i] = (struct draw){.row = (i / 3 * 7) % ROWS,
                             .temperature = temperatures[i / 5 % 3],
                             .u = (float)(random_u32() >> 8) * 0x1p-24f + 0x1p-25f};
  o->sample(o, draws, DRAWS, logits, V);
  for (int i = 0; i < DRAWS; i++) {
    const struct draw *d = &draws[i];
    const float *row = logits + d->row * V, temperature = d->temperature > 0 ? d->temperature : 1.0f;
    assert_int_equal(d->token, lit_sample(row, d->temperature, d->u, V));
    o->logprob(o, &logprob, &lse, NULL, row, &d->token, temperature, 1, V);
    assert_memory_equal(&d->logprob, &logprob, sizeof logprob);
  }
}

static void sample_on(const struct machine *m) {
  static const int widths[] = {1, 2, 17, 272, 1000};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof widths / sizeof widths[0]; s++) {
    int V = widths[s];
    float *logits = random_floats((size_t)V, 6.0f);
    for (int i = 0; i < 60; i++) {
      float u = (float)(random_u32() >> 8) * 0x1p-24f + 0x1p-25f, temperature = i % 3 == 0   ? 1.0f
                                                                                : i % 3 == 1 ? 0.5f
                                                                                             : 1.7f;
      if (i == 0) u = 1.0f;
      if (i == 1) u = 0.0f;
      assert_int_equal(sample_one(o, logits, temperature, u, V), lit_sample(logits, temperature, u, V));
    }
    assert_int_equal(sample_one(o, logits, 0.0f, 0.3f, V), lit_sample(logits, 0.0f, 0.3f, V));
    draws_together(o, V);
  }
  float ties[4] = {1.0f, 3.0f, 3.0f, 3.0f}, *cold = zeros(600);
  assert_int_equal(sample_one(o, ties, 0.0f, 0.9f, 4), 1);
  float *odd = random_floats(600, 6.0f);
  odd[300] = odd[559] = 77.0f;
  odd[1] = odd[299] = NAN;
  assert_int_equal(sample_one(o, odd, 0.0f, 0.9f, 600), 300);
  odd[0] = NAN; /* no logit is above a NaN */
  assert_int_equal(sample_one(o, odd, 0.0f, 0.9f, 600), 0);
  for (int v = 0; v < 600; v++) odd[v] = -HUGE_VALF;
  assert_int_equal(sample_one(o, odd, 0.0f, 0.9f, 600), 0);
  for (int v = 0; v < 600; v++) cold[v] = v == 270 || v == 280 ? 0.0f : -500.0f; /* blocks 0 and 2 are exactly zero */
  assert_int_equal(sample_one(o, cold, 1.0f, 0.2f, 600), 270);
  assert_int_equal(sample_one(o, cold, 1.0f, 0.7f, 600), 280);
  assert_int_equal(sample_one(o, cold, 1.0f, 1.0f, 600), 280);
  assert_int_equal(sample_one(o, cold, 1.0f, 0.0f, 600), 270);
}

static void test_sample(void **state) {
  (void)state;
  every_machine(sample_on);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_convert),      cmocka_unit_test(test_matrix),    cmocka_unit_test(test_gemm),
      cmocka_unit_test(test_gemm_special), cmocka_unit_test(test_bias),      cmocka_unit_test(test_rmsnorm),
      cmocka_unit_test(test_rope),         cmocka_unit_test(test_attention), cmocka_unit_test(test_swiglu),
      cmocka_unit_test(test_soft_cap),     cmocka_unit_test(test_geglu),     cmocka_unit_test(test_elements),
      cmocka_unit_test(test_logprob),      cmocka_unit_test(test_cut),       cmocka_unit_test(test_sample),
  };
  random_seed(7);
  pool_enter();
  return cmocka_run_group_tests_name("ops forward", tests, NULL, NULL);
}
