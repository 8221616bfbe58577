/* The operations of layers of experts equal the literal text of NUMERICS.md bit for bit, on every level, format and
 * thread count: the router's choice and shares, the weighted sums, and their gradients. */
#include "tests/unit/model/ops_support.h"

enum { CASES = 6 };
static const struct {
  int T, N, k;
  bool normalize;
} cases[CASES] = {{1, 1, 1, true},     {9, 5, 2, true},    {70, 128, 8, true},
                  {70, 128, 8, false}, {3, 17, 17, false}, {40, 33, 20, true}};

/* One row: prob [N] from the logits z, then the k experts and their shares. */
static void literal_route(int32_t *expert, float *share, float *prob, const float *z, bool normalize, int N, int k) {
  float max = -INFINITY, sum;
  int found = 0;
  for (int e = 0; e < N; e++) max = z[e] > max ? z[e] : max;
  for (int e = 0; e < N; e++) prob[e] = lit_exp(z[e] - max);
  sum = lit_sum(prob, N);
  for (int e = 0; e < N; e++) prob[e] = prob[e] / sum;
  for (int e = 0; e < N; e++) { /* chosen: fewer than k others come before it */
    int before = 0;
    for (int i = 0; i < N; i++) before += z[i] > z[e] || (z[i] == z[e] && i < e);
    if (before < k) expert[found++] = e;
  }
  assert_int_equal(found, k);
  for (int j = 0; j < k; j++) share[j] = prob[expert[j]];
  sum = lit_sum(share, k);
  for (int j = 0; normalize && j < k; j++) share[j] = share[j] / sum;
}

static void route_on(const struct machine *m) {
  for (int s = 0; s < CASES; s++) {
    const int T = cases[s].T, N = cases[s].N, k = cases[s].k;
    const size_t TN = (size_t)(T * N), Tk = (size_t)(T * k);
    float *z = random_floats(TN, 5.0f), *prob, *share = zeros(Tk), *want = zeros(TN), *want_share = zeros(Tk);
    int32_t *expert = guarded(Tk * sizeof *expert), *want_expert = guarded(Tk * sizeof *expert);
    for (size_t i = 0; i < TN; i += 3) z[i] = (float)(int)(z[i]); /* ties */
    prob = copy_floats(z, TN);
    for (int t = 0; t < T; t++)
      literal_route(want_expert + t * k, want_share + t * k, want + t * N, z + t * N, cases[s].normalize, N, k);
    m->ops->route(m->ops, expert, share, prob, cases[s].normalize, T, N, k);
    assert_memory_equal(expert, want_expert, Tk * sizeof *expert);
    same_floats(m, "route's probabilities", prob, want, TN);
    same_floats(m, "route's shares", share, want_share, Tk);
    m->ops->route(m->ops, expert, share, z + (T - 1) * N, cases[s].normalize, 1, N, k);
    assert_memory_equal(expert, want_expert + (T - 1) * k, (size_t)k * sizeof *expert);
  }
}

/* Logits that are no numbers choose experts all the same, k different ones. */
static void odd_logits_on(const struct machine *m) {
  float z[6] = {NAN, 1.0f, NAN, INFINITY, -INFINITY, NAN}, share[4];
  int32_t expert[4];
  m->ops->route(m->ops, expert, share, z, true, 1, 6, 4);
  for (int j = 0; j < 4; j++) assert_true(expert[j] >= 0 && expert[j] < 6 && (j == 0 || expert[j] > expert[j - 1]));
}

static void test_route(void **state) {
  (void)state;
  every_machine(route_on);
  every_machine(odd_logits_on);
}

static void rows_on(const struct machine *m) {
  static const int widths[] = {1, 15, 64, 100, 300};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof widths / sizeof widths[0]; s++) {
    const int D = widths[s], rows = 40, count = 23;
    const size_t all = (size_t)(rows * D), some = (size_t)(count * D);
    float *x = random_floats(all, 2.0f), *y = random_floats(some, 2.0f), *share = random_floats(90, 1.0f);
    float *got = copy_floats(x, all), *plain = copy_floats(x, all), *want = copy_floats(x, all),
          *want_plain = copy_floats(x, all), *want_shared = zeros(some);
    int32_t *row = random_choice(count, rows, true), *slot = random_choice(count, 90, false);
    void *shared = new_operands(m, some);
    for (int i = 0; i < count; i++)
      for (int d = 0; d < D; d++) {
        const int at = row[i] * D + d;
        const float product = y[i * D + d] * share[slot[i]];
        want[at] = want[at] + product;
        want_plain[at] = want_plain[at] + y[i * D + d];
        want_shared[i * D + d] = x[at] * share[slot[i]];
      }
    o->add_rows(o, got, y, share, slot, row, count, D);
    same_floats(m, "add_rows", got, want, all);
    o->add_rows(o, plain, y, NULL, NULL, row, count, D);
    same_floats(m, "add_rows without shares", plain, want_plain, all);
    o->share_rows(o, shared, x, share, slot, row, count, D);
    same_operands(m, "share_rows", shared, want_shared, some);
  }
}

static void test_rows(void **state) {
  (void)state;
  every_machine(rows_on);
}

static void share_backward_on(const struct machine *m) {
  static const int widths[] = {1, 15, 64, 100, 300};
  const struct ops *o = m->ops;
  for (size_t s = 0; s < sizeof widths / sizeof widths[0]; s++) {
    const int F = widths[s], pairs = 40, count = 23;
    const size_t n = (size_t)(count * F);
    float *h = random_operands(m, (size_t)(pairs * F), 2.0f), *dh = random_floats(n, 1.0f),
          *share = random_floats(90, 1.0f);
    float *dshare = zeros(70), *want_share = zeros(70), *want = zeros(n), *terms = zeros((size_t)F);
    int32_t *slot = random_choice(count, 70, false), *saved = random_choice(count, 90, false),
            *pair = random_choice(count, pairs, false);
    for (int i = 0; i < count; i++) {
      for (int f = 0; f < F; f++) {
        terms[f] = dh[i * F + f] * h[pair[i] * F + f];
        want[i * F + f] = dh[i * F + f] * share[saved[i]];
      }
      want_share[slot[i]] = lit_sum(terms, F);
    }
    o->share_backward(o, dshare, dh, as_operands(m, h, (size_t)(pairs * F)), share, slot, saved, pair, count, F);
    same_floats(m, "share_backward's shares", dshare, want_share, 70);
    same_floats(m, "share_backward's dh", dh, want, n);
  }
}

static void route_backward_on(const struct machine *m) {
  const struct ops *o = m->ops;
  for (int s = 0; s < CASES; s++) {
    const int T = cases[s].T, N = cases[s].N, k = cases[s].k, saved = T + 2;
    const size_t SN = (size_t)(saved * N), Sk = (size_t)(saved * k);
    float *z = random_floats(SN, 5.0f), *prob = zeros(SN), *share = zeros(Sk),
          *dshare = random_floats((size_t)(T * k), 1.0f);
    float *want = zeros((size_t)(T * N)), *terms = zeros((size_t)k);
    int32_t *expert = guarded(Sk * sizeof *expert), *row = random_choice(T, saved, false);
    void *dlogits = new_operands(m, (size_t)(T * N));
    for (int t = 0; t < saved; t++)
      literal_route(expert + t * k, share + t * k, prob + t * N, z + t * N, cases[s].normalize, N, k);
    for (int t = 0; t < T; t++) {
      const int r = row[t];
      for (int j = 0; j < k; j++) terms[j] = share[r * k + j] * dshare[t * k + j];
      const float inner = lit_sum(terms, k);
      for (int e = 0; e < N && !cases[s].normalize; e++) want[t * N + e] = prob[r * N + e] * (0.0f - inner);
      for (int j = 0; j < k; j++) {
        const float apart = dshare[t * k + j] - inner;
        want[t * N + expert[r * k + j]] = share[r * k + j] * apart;
      }
    }
    o->route_backward(o, dlogits, dshare, prob, expert, share, row, cases[s].normalize, T, N, k);
    same_operands(m, "route_backward", dlogits, want, (size_t)(T * N));
  }
}

static void test_backward(void **state) {
  (void)state;
  every_machine(share_backward_on);
  every_machine(route_backward_on);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_route),
      cmocka_unit_test(test_rows),
      cmocka_unit_test(test_backward),
  };
  random_seed(11);
  pool_enter();
  return cmocka_run_group_tests_name("ops experts", tests, NULL, NULL);
}
