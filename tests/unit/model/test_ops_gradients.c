/* Every backward operation against central finite differences, in double, of a double-precision forward written here:
 * the formulas are right, not only reproducible.  fp32 format, the best level of this CPU. */
#include "tests/unit/model/ops_support.h"

static struct machine m = {.level = "best", .threads = 1};

/* A forward under test: from its inputs the scalar sum of r[i] * out[i]; `c` is the case. */
typedef double forward_sum(const void *c);

/* d forward / d x[i] by central differences in double: x is the double input that the forward reads. */
static void check_gradient(const char *what, forward_sum *f, const void *c, double *x, const float *got, size_t n) {
  double largest = 0, worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < n; i++) {
    const double keep = x[i], h = 1e-5;
    x[i] = keep + h;
    double up = f(c);
    x[i] = keep - h;
    double down = f(c);
    x[i] = keep;
    double want = (up - down) / (2 * h), error = fabs(want - (double)got[i]);
    if (fabs(want) > largest) largest = fabs(want);
    if (error > worst) {
      worst = error;
      at = i;
    }
  }
  if (worst > 3e-5 * (largest + 0.1))
    fail_msg("%s: element %zu is off by %g where the largest is %g", what, at, worst, largest);
  assert_true(largest > 1e-3);
}

static double *doubles(const float *x, size_t n) {
  double *d = guarded(n * sizeof *d);
  for (size_t i = 0; i < n; i++) d[i] = (double)x[i];
  return d;
}

/* For outputs that are added to: the amount that was added. */
static const float *added(const float *sum, const float *start, size_t n) {
  float *d = zeros(n);
  for (size_t i = 0; i < n; i++) d[i] = sum[i] - start[i];
  return d;
}

struct norm_case {
  int T, H, E;
  double *x, *w;
  const float *r, *rope;
  const int32_t *position;
  bool rotate;
};

static double norm_forward(const void *context) {
  const struct norm_case *c = context;
  double sum = 0, y[64];
  for (int row = 0; row < c->T * c->H; row++) {
    const double *x = c->x + row * c->E;
    const float *r = c->r + row * c->E;
    double squares = 0;
    for (int e = 0; e < c->E; e++) squares += x[e] * x[e];
    double rstd = 1 / sqrt(squares / c->E + 1e-6);
    for (int e = 0; e < c->E; e++) y[e] = x[e] * rstd * c->w[e];
    if (!c->rotate) {
      for (int e = 0; e < c->E; e++) sum += y[e] * (double)r[e];
      continue;
    }
    const float *table = c->rope + c->position[row / c->H] * c->E;
    for (int e = 0; e < c->E / 2; e++) {
      double a = y[e], b = y[e + c->E / 2], cosine = (double)table[2 * e], sine = (double)table[2 * e + 1];
      sum += (a * cosine - b * sine) * (double)r[e] + (b * cosine + a * sine) * (double)r[e + c->E / 2];
    }
  }
  return sum;
}

static void test_rmsnorm(void **state) {
  enum { T = 5, D = 37, N = T * D };
  float *x = random_floats(N, 2.0f), *w = random_floats(D, 2.0f), *r = random_floats(N, 1.0f), *rstd = zeros(T),
        *dx = random_floats(N, 1.0f);
  float *dw = random_floats(D, 1.0f), *dx0 = copy_floats(dx, N), *dw0 = copy_floats(dw, D), *y = zeros(N);
  (void)state;
  m.ops->rmsnorm(m.ops, y, rstd, x, w, false, 1e-6f, T, D);
  m.ops->rmsnorm_backward(m.ops, dx, dw, r, x, w, false, rstd, NULL, T, D);
  struct norm_case c = {.T = T, .H = 1, .E = D, .x = doubles(x, N), .w = doubles(w, D), .r = r};
  check_gradient("rmsnorm dx", norm_forward, &c, c.x, added(dx, dx0, N), N);
  check_gradient("rmsnorm dw", norm_forward, &c, c.w, added(dw, dw0, D), D);
}

static void test_head_norm_rope(void **state) {
  enum { T = 5, H = 3, E = 18, N = T * H * E };
  float *x = random_floats(N, 2.0f), *w = random_floats(E, 2.0f), *r = random_floats(N, 1.0f), *rstd = zeros(T * H),
        *dx = zeros(N), *dw = zeros(E), *y = zeros(N);
  float *rope = zeros(T * E);
  int32_t position[T] = {4, 2, 0, 1, 3};
  (void)state;
  for (int i = 0; i < T * E / 2; i++) {
    double angle = 0.37 * i;
    rope[2 * i] = (float)cos(angle);
    rope[2 * i + 1] = (float)sin(angle);
  }
  m.ops->head_norm_rope(m.ops, y, rstd, x, w, false, 1e-6f, rope, position, T, H, E);
  m.ops->head_norm_rope_backward(m.ops, dx, dw, r, x, w, false, rstd, rope, position, NULL, T, H, E);
  struct norm_case c = {.T = T,
                        .H = H,
                        .E = E,
                        .x = doubles(x, N),
                        .w = doubles(w, E),
                        .r = r,
                        .rope = rope,
                        .position = position,
                        .rotate = true};
  check_gradient("head_norm_rope dx", norm_forward, &c, c.x, dx, N);
  check_gradient("head_norm_rope dw", norm_forward, &c, c.w, dw, E);
}

struct attention_case {
  int H, G, E, samples;
  const int32_t *start;
  double *q, *k, *v, scale;
  const float *r;
};

static double attention_row(const struct attention_case *c, int first, int i, int h) {
  double p[64], total = 0, sum = 0;
  int g = h / (c->H / c->G), count = i - first + 1;
  for (int j = 0; j < count; j++) {
    double s = 0;
    for (int e = 0; e < c->E; e++) s += c->q[(i * c->H + h) * c->E + e] * c->k[((first + j) * c->G + g) * c->E + e];
    p[j] = exp(s * c->scale);
    total += p[j];
  }
  for (int j = 0; j < count; j++)
    for (int e = 0; e < c->E; e++)
      sum += p[j] / total * c->v[((first + j) * c->G + g) * c->E + e] * (double)c->r[(i * c->H + h) * c->E + e];
  return sum;
}

static double attention_forward(const void *context) {
  const struct attention_case *c = context;
  double sum = 0;
  for (int s = 0; s < c->samples; s++)
    for (int i = c->start[s]; i < c->start[s + 1]; i++)
      for (int h = 0; h < c->H; h++) sum += attention_row(c, c->start[s], i, h);
  return sum;
}

static void test_attention(void **state) {
  enum { T = 46, H = 4, G = 2, E = 6, SAMPLES = 2, HE = H * E, GE = G * E };
  static const int32_t start[SAMPLES + 1] = {0, 9, T};
  float *q = random_floats(T * HE, 2.0f), *k = random_floats(T * GE, 2.0f), *v = random_floats(T * GE, 1.0f),
        *r = random_floats(T * HE, 1.0f);
  float *out = zeros(T * HE), *lse = zeros(T * H), *dq = zeros(T * HE), *dk = zeros(T * GE), *dv = zeros(T * GE);
  int32_t sequence[T], position[T], pages[SAMPLES * 3] = {0, 1, 2, 3, 4, 5};
  (void)state;
  for (int t = 0; t < T; t++) {
    sequence[t] = t >= 9;
    position[t] = t - start[sequence[t]];
  }
  struct kv_layer kv = {
      .keys = zeros(6 * 16 * G * 32), .values = zeros(6 * 16 * G * 16), .page_tokens = 16, .G = G, .E = E};
  struct rows rows = {.T = T,
                      .sequence = sequence,
                      .position = position,
                      .pages = pages,
                      .pages_per_sequence = 3,
                      .sequences = SAMPLES};
  struct packed batch = {.sequences = SAMPLES, .start = start};
  m.ops->kv_write(m.ops, &kv, &rows, k, v, NULL);
  m.ops->attention(m.ops, out, lse, q, &kv, &rows, H, 0.5f);
  m.ops->attention_backward(m.ops, dq, dk, dv, r, out, lse, q, k, v, &batch, H, G, E, 0.5f);
  struct attention_case c = {.H = H,
                             .G = G,
                             .E = E,
                             .samples = SAMPLES,
                             .start = start,
                             .q = doubles(q, T * HE),
                             .k = doubles(k, T * GE),
                             .v = doubles(v, T * GE),
                             .scale = 0.5,
                             .r = r};
  check_gradient("attention dq", attention_forward, &c, c.q, dq, T * HE);
  check_gradient("attention dk", attention_forward, &c, c.k, dk, T * GE);
  check_gradient("attention dv", attention_forward, &c, c.v, dv, T * GE);
}

struct swiglu_case {
  int n;
  double *gate, *up;
  const float *r;
};

static double swiglu_forward(const void *context) {
  const struct swiglu_case *c = context;
  double sum = 0;
  for (int i = 0; i < c->n; i++) sum += c->gate[i] / (1 + exp(-c->gate[i])) * c->up[i] * (double)c->r[i];
  return sum;
}

static void test_swiglu(void **state) {
  enum { N = 77 };
  float *gate = random_floats(N, 6.0f), *up = random_floats(N, 2.0f), *r = random_floats(N, 1.0f), *dgate = zeros(N),
        *dup = zeros(N);
  (void)state;
  m.ops->swiglu_backward(m.ops, dgate, dup, r, gate, up, NULL, 1, N);
  struct swiglu_case c = {.n = N, .gate = doubles(gate, N), .up = doubles(up, N), .r = r};
  check_gradient("swiglu dgate", swiglu_forward, &c, c.gate, dgate, N);
  check_gradient("swiglu dup", swiglu_forward, &c, c.up, dup, N);
}

struct logprob_case {
  int T, V;
  double *logits;
  const float *r;
  const int32_t *target;
  double temperature;
};

static double logprob_forward(const void *context) {
  const struct logprob_case *c = context;
  double sum = 0;
  for (int t = 0; t < c->T; t++) {
    double total = 0;
    for (int v = 0; v < c->V; v++) total += exp(c->logits[t * c->V + v] / c->temperature);
    if (c->target[t] >= 0) sum += (double)c->r[t] * (c->logits[t * c->V + c->target[t]] / c->temperature - log(total));
  }
  return sum;
}

static void test_logprob(void **state) {
  enum { T = 4, V = 263 };
  static const int32_t target[T] = {5, 262, -1, 256};
  float *logits = random_floats(T * V, 4.0f), *r = random_floats(T, 1.0f), *lp = zeros(T), *lse = zeros(T),
        *d = zeros(T * V);
  (void)state;
  for (int warm = 0; warm < 2; warm++) {
    float temperature = warm ? 1.3f : 1.0f;
    m.ops->logprob(m.ops, lp, lse, NULL, logits, target, temperature, T, V);
    m.ops->logprob_backward(m.ops, d, r, NULL, NULL, logits, lse, target, temperature, T, V);
    struct logprob_case c = {
        .T = T, .V = V, .logits = doubles(logits, T * V), .r = r, .target = target, .temperature = (double)temperature};
    check_gradient("logprob dlogits", logprob_forward, &c, c.logits, d, T * V);
  }
}

/* Of e times the entropy, with r times the log-probability. */
struct entropy_case {
  struct logprob_case logprob;
  const float *e;
};

static double entropy_forward(const void *context) {
  const struct entropy_case *c = context;
  const struct logprob_case *l = &c->logprob;
  double sum = logprob_forward(l);
  for (int t = 0; t < l->T; t++) {
    double total = 0, entropy = 0;
    for (int v = 0; v < l->V; v++) total += exp(l->logits[t * l->V + v] / l->temperature);
    for (int v = 0; v < l->V; v++) {
      const double logprob = l->logits[t * l->V + v] / l->temperature - log(total);
      entropy -= exp(logprob) * logprob;
    }
    if (l->target[t] >= 0) sum += (double)c->e[t] * entropy;
  }
  return sum;
}

static void test_entropy(void **state) {
  enum { T = 4, V = 263 };
  static const int32_t target[T] = {5, 262, -1, 256};
  float *logits = random_floats(T * V, 4.0f), *r = random_floats(T, 1.0f), *e = random_floats(T, 1.0f), *lp = zeros(T),
        *lse = zeros(T), *entropy = zeros(T), *d = zeros(T * V);
  (void)state;
  for (int warm = 0; warm < 2; warm++) {
    const float temperature = warm ? 1.3f : 1.0f;
    m.ops->logprob(m.ops, lp, lse, entropy, logits, target, temperature, T, V);
    m.ops->logprob_backward(m.ops, d, r, e, entropy, logits, lse, target, temperature, T, V);
    struct entropy_case c = {.logprob = {.T = T,
                                         .V = V,
                                         .logits = doubles(logits, T * V),
                                         .r = r,
                                         .target = target,
                                         .temperature = (double)temperature},
                             .e = e};
    check_gradient("entropy dlogits", entropy_forward, &c, c.logprob.logits, d, T * V);
  }
}

struct gemm_case {
  int T, N, K;
  double *x, *w;
  const float *r;
};

static double gemm_forward(const void *context) {
  const struct gemm_case *c = context;
  double sum = 0;
  for (int t = 0; t < c->T; t++)
    for (int n = 0; n < c->N; n++)
      for (int k = 0; k < c->K; k++) sum += c->x[t * c->K + k] * c->w[n * c->K + k] * (double)c->r[t * c->N + n];
  return sum;
}

static void test_gemm(void **state) /* dx through the transposed weights, dW through gemm_weight_backward */
{
  enum { T = 7, N = 19, K = 35 };
  float *x = random_floats(T * K, 1.0f), *w = random_floats(N * K, 1.0f), *r = random_floats(T * N, 1.0f),
        *dx = zeros(T * K), *dW = random_floats(N * K, 1.0f);
  float *start = copy_floats(dW, N * K);
  struct matrix W = {.N = K, .K = N};
  (void)state;
  W.data = guarded(m.ops->matrix_bytes(m.ops, K, N));
  m.ops->matrix_pack_transposed(m.ops, &W, w, N, K);
  m.ops->gemm(m.ops, dx, r, &W, T, false);
  m.ops->gemm_weight_backward(m.ops, dW, r, x, NULL, NULL, T, N, K);
  struct gemm_case c = {.T = T, .N = N, .K = K, .x = doubles(x, T * K), .w = doubles(w, N * K), .r = r};
  check_gradient("gemm dx", gemm_forward, &c, c.x, dx, T * K);
  check_gradient("gemm dW", gemm_forward, &c, c.w, added(dW, start, N * K), N * K);
}

static int free_guarded(void **state) {
  (void)state;
  guarded_free_all();
  return 0;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test_teardown(test_rmsnorm, free_guarded),
      cmocka_unit_test_teardown(test_head_norm_rope, free_guarded),
      cmocka_unit_test_teardown(test_attention, free_guarded),
      cmocka_unit_test_teardown(test_swiglu, free_guarded),
      cmocka_unit_test_teardown(test_logprob, free_guarded),
      cmocka_unit_test_teardown(test_entropy, free_guarded),
      cmocka_unit_test_teardown(test_gemm, free_guarded),
  };
  struct err err;
  random_seed(13);
  pool_enter();
  if (ops_cpu_create(&m.ops, FORMAT_F32, NULL, NULL, &err) != RC_OK) {
    fprintf(stderr, "%s\n", err.message);
    return 1;
  }
  int failed = cmocka_run_group_tests_name("ops gradients", tests, NULL, NULL);
  ops_free(m.ops);
  return failed;
}
