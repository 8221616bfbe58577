/* What the tests of the CUDA table share: a CPU's table and a device's side by side, arrays on both, comparison.
 *
 * The same programs run over the emulated device (tests/cuda/emulated, in `make test`) and over a real one
 * (tests/cuda/check.sh). */
#ifndef LEASEHOLD_TESTS_CUDA_SUPPORT_H
#define LEASEHOLD_TESTS_CUDA_SUPPORT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/model/cuda/ops_cuda.h"
#include "common/threads/pool.h"
#include "tests/unit/model/literal.h"

#define SUPPORT static inline __attribute__((unused))

static struct pool *pool;
static struct ops *cpu, *gpu;

SUPPORT int tables_open(void **state) {
  struct err err = {0};
  (void)state;
  assert_int_equal(pool_create(&pool, 2, &err), RC_OK);
  assert_int_equal(ops_cpu_create(&cpu, FORMAT_BF16, NULL, pool, &err), RC_OK);
  const enum rc rc = ops_cuda_create(&gpu, FORMAT_BF16, 0, EXACTNESS_INVARIANT, pool, &err);
  if (rc != RC_OK) print_error("%s\n", err.message);
  return rc == RC_OK ? 0 : -1;
}

SUPPORT void gpu_holds(void) {
  struct err err = {0};
  if (gpu->status(gpu, &err) != RC_OK) fail_msg("%s", err.message);
}

SUPPORT int tables_close(void **state) {
  (void)state;
  gpu_holds();
  ops_free(gpu);
  ops_free(cpu);
  pool_destroy(pool);
  return 0;
}

/* --- arrays: the host's are freed all at once with their twins on the device --- */

enum { ARRAYS_MAX = 1024 };
static struct { void *host, *device; } arrays[ARRAYS_MAX];
static int array_count;

SUPPORT void *host_array(size_t bytes) {
  assert_true(array_count < ARRAYS_MAX);
  void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
  assert_non_null(memory);
  memset(memory, 0, bytes);
  arrays[array_count].host = memory;
  arrays[array_count++].device = NULL;
  return memory;
}

SUPPORT void *device_array(size_t bytes) {
  assert_true(array_count < ARRAYS_MAX);
  void *memory = gpu->alloc(gpu, bytes);
  assert_non_null(memory);
  arrays[array_count].host = NULL;
  arrays[array_count++].device = memory;
  return memory;
}

/* A copy on the device; NULL stays NULL. */
SUPPORT void *put(const void *host, size_t bytes) {
  if (!host) return NULL;
  void *memory = device_array(bytes);
  gpu->upload(gpu, memory, host, bytes);
  return memory;
}
SUPPORT float *put_floats(const float *x, size_t n) { return put(x, n * sizeof *x); }
SUPPORT int32_t *put_list(const int32_t *x, size_t n) { return put(x, n * sizeof *x); }
SUPPORT uint16_t *put_operands(const uint16_t *x, size_t n) { return put(x, n * sizeof *x); }

SUPPORT void arrays_free(void) {
  gpu_holds();
  for (int i = 0; i < array_count; i++) {
    free(arrays[i].host);
    if (arrays[i].device) gpu->release(gpu, arrays[i].device);
  }
  array_count = 0;
}

/* --- numbers --- */

static uint64_t random_state = 88172645463325252u;

SUPPORT uint32_t random_u32(void) {
  random_state ^= random_state << 13;
  random_state ^= random_state >> 7;
  random_state ^= random_state << 17;
  return (uint32_t)(random_state >> 32);
}
SUPPORT int random_below(int bound) { return (int)(random_u32() % (uint32_t)bound); }
SUPPORT float random_float(float scale) {
  const float a = (float)(random_u32() >> 8) * 0x1p-24f, b = (float)(random_u32() >> 8) * 0x1p-24f;
  return (a + b - 1.0f) * scale;
}
SUPPORT float *random_floats(size_t n, float scale) {
  float *x = host_array(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = random_float(scale);
  return x;
}
SUPPORT uint16_t *random_operands(size_t n, float scale) {
  uint16_t *x = host_array(n * sizeof *x);
  for (size_t i = 0; i < n; i++) x[i] = lit_bf16(random_float(scale));
  return x;
}
SUPPORT float *floats(size_t n) { return host_array(n * sizeof(float)); }
SUPPORT float *copy_of(const float *x, size_t n) {
  float *y = floats(n);
  memcpy(y, x, n * sizeof *y);
  return y;
}
/* count numbers of [0, below), ascending, each at most once. */
SUPPORT int32_t *random_ascending(int count, int below) {
  int32_t *out = host_array((size_t)count * sizeof *out);
  int n = 0;
  for (int32_t i = 0; n < count; i++)
    if (random_below(below - i) < count - n) out[n++] = i;
  return out;
}

/* --- comparison: want is the host's, got the device's --- */

SUPPORT float *got_floats(const float *device, size_t n) {
  float *x = floats(n);
  gpu->download(gpu, x, device, n * sizeof *x);
  return x;
}
SUPPORT uint16_t *got_operands(const void *device, size_t n) {
  uint16_t *x = host_array(n * sizeof *x);
  gpu->download(gpu, x, device, n * sizeof *x);
  return x;
}

SUPPORT void same_floats(const char *what, const float *device, const float *want, size_t n) {
  const float *got = got_floats(device, n);
  for (size_t i = 0; i < n; i++)
    if (lit_bits(got[i]) != lit_bits(want[i]) && !(got[i] == 0 && want[i] == 0) &&
        !(got[i] != got[i] && want[i] != want[i]))
      fail_msg("%s: element %zu is %.9g (%08x), expected %.9g (%08x)", what, i, (double)got[i], lit_bits(got[i]),
               (double)want[i], lit_bits(want[i]));
}

SUPPORT void same_operands(const char *what, const void *device, const uint16_t *want, size_t n) {
  const uint16_t *got = got_operands(device, n);
  for (size_t i = 0; i < n; i++)
    if (got[i] != want[i] && ((got[i] | want[i]) & 0x7fff))
      fail_msg("%s: element %zu is %04x, expected %04x", what, i, got[i], want[i]);
}

/* Every difference at most `part` of the largest magnitude. */
SUPPORT void near_floats(const char *what, const float *device, const float *want, size_t n, double part) {
  const float *got = got_floats(device, n);
  double largest = 0;
  for (size_t i = 0; i < n; i++) largest = fabs((double)want[i]) > largest ? fabs((double)want[i]) : largest;
  for (size_t i = 0; i < n; i++)
    if (!(fabs((double)got[i] - (double)want[i]) <= part * largest))
      fail_msg("%s: element %zu is %.9g, expected %.9g to %.2g of %.3g", what, i, (double)got[i], (double)want[i], part,
               largest);
}

SUPPORT float *widened(const uint16_t *x, size_t n) {
  float *y = floats(n);
  for (size_t i = 0; i < n; i++) y[i] = lit_float((uint32_t)x[i] << 16);
  return y;
}

SUPPORT void near_operands(const char *what, const void *device, const uint16_t *want, size_t n, double part) {
  const float *got = widened(got_operands(device, n), n);
  near_floats(what, put_floats(got, n), widened(want, n), n, part);
}

#endif
