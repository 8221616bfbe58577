/* Fixtures of the operation table's tests: every machine (instruction set x format x threads) in turn, arrays that
 * begin or end at a page nobody may touch, seeded random numbers, and comparison by bits. */
#ifndef LEASEHOLD_TESTS_MODEL_OPS_SUPPORT_H
#define LEASEHOLD_TESTS_MODEL_OPS_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/model/cpu/kernels.h"
#include "common/model/ops.h"
#include "tests/unit/model/literal.h"
#include "tests/unit/model/tiles_emulated.h"

#define SUPPORT static inline

/* --- guarded memory: freed all at once --- */

enum { GUARDED_MAX = 4096 };
static struct {
  char *map, *canary;
  size_t map_bytes, canary_bytes;
} guarded_list[GUARDED_MAX];
static int guarded_count;
static uint32_t guarded_state = 1;

/* `bytes` zeroed, between two inaccessible pages; by chance they begin right behind the first or end right before the
 * second, and the rest is a canary. */
SUPPORT void *guarded(size_t bytes) {
  size_t page = (size_t)sysconf(_SC_PAGESIZE), body = (bytes + 64 + page - 1) / page * page;
  assert_true(guarded_count < GUARDED_MAX);
  char *map = mmap(NULL, body + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(map != MAP_FAILED);
  assert_int_equal(mprotect(map, page, PROT_NONE), 0);
  assert_int_equal(mprotect(map + page + body, page, PROT_NONE), 0);
  guarded_state = guarded_state * 1664525u + 1013904223u;
  const bool at_front = guarded_state >> 31;
  char *canary = map + page + (at_front ? bytes : 0);
  memset(canary, 0xa5, body - bytes);
  guarded_list[guarded_count].map = map;
  guarded_list[guarded_count].map_bytes = body + 2 * page;
  guarded_list[guarded_count].canary = canary;
  guarded_list[guarded_count++].canary_bytes = body - bytes;
  return map + page + (at_front ? 0 : body - bytes);
}

SUPPORT void guarded_free_all(void) {
  for (int i = 0; i < guarded_count; i++) {
    for (size_t b = 0; b < guarded_list[i].canary_bytes; b++)
      assert_int_equal((uint8_t)guarded_list[i].canary[b], 0xa5);
    munmap(guarded_list[i].map, guarded_list[i].map_bytes);
  }
  guarded_count = 0;
}

/* --- machines --- */

struct machine {
  struct ops *ops;
  struct pool *pool;
  const char *level;
  int threads;
  bool bf16;
};

/* Whether matrices are kept in links (ops.h, struct matrix). */
SUPPORT bool in_links(const struct machine *m) { return m->bf16 && strcmp(m->ops->name, "cpu-v4-bf16") == 0; }

cpu_kernel gemm_emulated, gemm_weight_backward_emulated, attention_emulated, attention_backward_emulated;
extern const struct window_limit weight_windows_emulated;
bool tiles_hold_emulated(void);

/* The kernels of a CPU with AMX over emulated tiles; the others are v2's. */
SUPPORT void emulated_machine(struct machine *m, void (*f)(const struct machine *)) {
  static struct cpu_kernels kernels;
  kernels = cpu_kernels_v2;
  kernels.gemm = gemm_emulated;
  kernels.attention = attention_emulated;
  kernels.attention_backward = attention_backward_emulated;
  kernels.gemm_weight_backward = gemm_weight_backward_emulated;
  kernels.weight_windows[FORMAT_BF16] = &weight_windows_emulated;
  m->level = "emulated amx";
  m->bf16 = true;
  assert_int_equal(cpu_ops_create(&m->ops, FORMAT_BF16, &kernels, "emulated-amx", m->pool, NULL), RC_OK);
  f(m);
  guarded_free_all();
  ops_free(m->ops);
}

/* Calls f for every level this CPU has, both formats, 1 to 3 threads; and for emulated AMX.  LEASEHOLD_TEST_LEVEL names
 * the only one, which must be there: an emulated CPU is slow (tests/bochs/run). */
SUPPORT void every_machine(void (*f)(const struct machine *)) {
  static const char *levels[] = {"v2", "v3", "v4", "v4-bf16", "amx"};
  const char *only = getenv("LEASEHOLD_TEST_LEVEL");
  for (int threads = 1, ran = 0; threads <= 3; threads++, ran = 0) {
    struct machine m = {.threads = threads};
    assert_int_equal(pool_create(&m.pool, threads, NULL), RC_OK);
    for (int i = 0; i < 10; i++) {
      m.level = levels[i / 2];
      m.bf16 = i % 2 == 0;
      if (only && strcmp(only, m.level) != 0) continue;
      enum rc rc = ops_cpu_create(&m.ops, m.bf16 ? FORMAT_BF16 : FORMAT_F32, m.level, m.pool, NULL);
      if (rc == RC_UNSUPPORTED && !only) continue;
      assert_int_equal(rc, RC_OK);
      f(&m);
      ran++;
      guarded_free_all();
      ops_free(m.ops);
    }
    if (!only) emulated_machine(&m, f);
    assert_true(ran > 0);
    pool_destroy(m.pool);
  }
}

/* --- numbers --- */

static uint64_t random_state = 1;

SUPPORT void random_seed(uint64_t seed) { random_state = seed * 0x9e3779b97f4a7c15u + 1; }

SUPPORT uint32_t random_u32(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32);
}

SUPPORT float random_float(float scale) /* in (-scale, scale), denser near 0 */
{
  float a = (float)(random_u32() >> 8) * 0x1p-24f, b = (float)(random_u32() >> 8) * 0x1p-24f;
  return (a + b - 1.0f) * scale;
}

SUPPORT float *random_floats(size_t n, float scale) {
  float *x = guarded(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = random_float(scale);
  return x;
}

/* count different numbers below `below`, ascending when so. */
SUPPORT int32_t *random_choice(int count, int below, bool ascending) {
  int32_t *out = guarded((size_t)count * sizeof *out);
  int n = 0;
  for (int32_t i = 0; i < below && n < count; i++)
    if ((int)(random_u32() % (unsigned)(below - i)) < count - n) out[n++] = i;
  for (int i = count - 1; i > 0 && !ascending; i--) {
    const int j = (int)(random_u32() % (unsigned)(i + 1));
    const int32_t kept = out[i];
    out[i] = out[j];
    out[j] = kept;
  }
  return out;
}

SUPPORT float *zeros(size_t n) { return guarded(n * sizeof(float)); }

SUPPORT float *copy_floats(const float *x, size_t n) {
  float *y = guarded(n * sizeof *y);
  memcpy(y, x, n * sizeof *y);
  return y;
}

/* Random operand values, as floats. */
SUPPORT float *random_operands(const struct machine *m, size_t n, float scale) {
  float *x = random_floats(n, scale);
  for (size_t i = 0; i < n; i++) x[i] = lit_operand(x[i], m->bf16);
  return x;
}

/* Of either sign, their exponents within 4 of `exponent`. */
SUPPORT float *operands_near(const struct machine *m, size_t n, int exponent) {
  float *x = random_operands(m, n, 1.0f);
  for (size_t i = 0; i < n; i++) {
    const int away = (int)(random_u32() % 9) - 4;
    x[i] = lit_float((lit_bits(x[i]) & 0x807fffffu) | (uint32_t)(127 + exponent + away) << 23);
  }
  return x;
}

SUPPORT void *new_operands(const struct machine *m, size_t n) { return guarded(n * (m->bf16 ? 2 : 4)); }

/* Floats that hold operand values, as operands. */
SUPPORT void *as_operands(const struct machine *m, const float *x, size_t n) {
  void *out = new_operands(m, n);
  for (size_t i = 0; i < n; i++) {
    if (m->bf16)
      ((uint16_t *)out)[i] = (uint16_t)(lit_bits(x[i]) >> 16);
    else
      ((float *)out)[i] = x[i];
  }
  return out;
}

SUPPORT float operand_at(const struct machine *m, const void *x, size_t i) {
  return m->bf16 ? lit_float((uint32_t)((const uint16_t *)x)[i] << 16) : ((const float *)x)[i];
}

SUPPORT struct matrix packed_matrix(const struct machine *m, const float *w, int N, int K) {
  struct matrix W = {.N = N, .K = K};
  W.data = guarded(m->ops->matrix_bytes(m->ops, N, K));
  m->ops->matrix_pack(m->ops, &W, as_operands(m, w, (size_t)N * (size_t)K));
  return W;
}

/* --- comparison --- */

#define FAIL_AT(what, m, i, got, want)                                                                          \
  fail_msg("%s on %s, %s, %d threads: element %zu is %.9g (%08x), expected %.9g (%08x)", what, (m)->level,      \
           (m)->bf16 ? "bf16" : "f32", (m)->threads, (size_t)(i), (double)(got), lit_bits(got), (double)(want), \
           lit_bits(want))

static bool results_flushed; /* subnormal ones: NUMERICS.md does not fix their zeros' signs */

SUPPORT bool same_number(float got, float want) {
  return lit_bits(got) == lit_bits(want) || (results_flushed && got == 0 && want == 0);
}

/* What NUMERICS.md fixes of numbers that may be NaNs, or zeros for flushed subnormals. */
SUPPORT void same_fixed(const struct machine *m, const char *what, size_t i, float got, float want) {
  if (lit_bits(got) != lit_bits(want) && !(isnan(got) && isnan(want)) && !(got == 0 && want == 0))
    FAIL_AT(what, m, i, got, want);
}

SUPPORT void same_floats(const struct machine *m, const char *what, const float *got, const float *want, size_t n) {
  for (size_t i = 0; i < n; i++)
    if (!same_number(got[i], want[i])) FAIL_AT(what, m, i, got[i], want[i]);
}

/* want: unrounded floats. */
SUPPORT void same_operands(const struct machine *m, const char *what, const void *got, const float *want, size_t n) {
  for (size_t i = 0; i < n; i++) {
    float g = operand_at(m, got, i), w = lit_operand(want[i], m->bf16);
    if (!same_number(g, w)) FAIL_AT(what, m, i, g, w);
  }
}

SUPPORT double seconds(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

#endif
