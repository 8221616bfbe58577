/* The peak loops.  Each keeps enough independent sums in registers to hide the instruction's latency, and is compiled
 * for its instruction set by a target attribute, so that one program holds them all.  v2 has no fused multiply-add:
 * its loop multiplies and adds. */
#include "tests/bench/bench_peak.h"

#include <immintrin.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

enum {
  SUMS = 12,       /* of 16 vector registers (32 with AVX-512) */
  LOOPS = 1 << 17, /* of one thread in a try: some hundred microseconds */
  TILE_SUMS = 4,
  TILE_LOOPS = 1 << 15,
  TILE_OPERATIONS = 2 * 16 * 16 * 32,
  STREAMS = 4, /* that a thread reads at once */
  PEAK_TRIES = 16,
  READ_TRIES = 4,
  LINE = 64
};
static const size_t READ_BYTES = (size_t)256 << 20;

/* --- operations --- */

#define UNROLL         _Pragma("GCC unroll 16")
/* Keeps the compiler from knowing a value, and from dropping it. */
#define OPAQUE(vector) __asm__ volatile("" : "+x"(vector))

#define PEAK_LOOP(name, isa, vector, set, multiply_add)             \
  __attribute__((target(isa))) static void name(void) {             \
    vector sums[SUMS], a = set(1.0f), b = set(0x1p-20f);            \
    OPAQUE(a);                                                      \
    OPAQUE(b);                                                      \
    UNROLL for (int i = 0; i < SUMS; i++) {                         \
      sums[i] = b;                                                  \
      OPAQUE(sums[i]); /* sums that start alike are one */          \
    }                                                               \
    for (int loop = 0; loop < LOOPS; loop++) {                      \
      UNROLL for (int i = 0; i < SUMS; i++) sums[i] = multiply_add; \
    }                                                               \
    UNROLL for (int i = 0; i < SUMS; i++) OPAQUE(sums[i]);          \
  }

PEAK_LOOP(loop_v2, "sse4.2", __m128, _mm_set1_ps, _mm_add_ps(_mm_mul_ps(sums[i], a), b))
PEAK_LOOP(loop_v3, "avx2,fma", __m256, _mm256_set1_ps, _mm256_fmadd_ps(a, b, sums[i]))
PEAK_LOOP(loop_v4, "avx512f", __m512, _mm512_set1_ps, _mm512_fmadd_ps(a, b, sums[i]))
PEAK_LOOP(loop_v4_bf16, "avx512f,avx512bf16", __m512, _mm512_set1_ps,
          _mm512_dpbf16_ps(sums[i], (__m512bh)a, (__m512bh)b))

struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};

/* Tiles 0..3 take sums, 4 and 5 rows, 6 and 7 columns.  The library has asked the kernel for the tiles, and finds its
 * own configuration as it left it. */
__attribute__((target("amx-tile,amx-bf16"))) static void loop_amx(void) {
  struct tile_config config = {.palette = 1}, kept = {0};
  for (int tile = 0; tile < 8; tile++) {
    config.row_bytes[tile] = LINE;
    config.rows[tile] = 16;
  }
  __asm__ volatile("" ::"r"(&config) : "memory"); /* gcc 12 drops the stores otherwise */
  _tile_storeconfig(&kept);
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  _tile_zero(7);
  for (int loop = 0; loop < TILE_LOOPS; loop++) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  __asm__ volatile("" ::"r"(&kept) : "memory");
  _tile_loadconfig(&kept);
}

struct peak {
  const char *kernels; /* a part of ops->name */
  void (*loop)(void);
  double operations; /* of one thread's loop */
};

/* The first that fits. */
static const struct peak *peak_of(const struct ops *ops) {
  static const struct peak peaks[] = {{"amx", loop_amx, (double)TILE_LOOPS * TILE_SUMS * TILE_OPERATIONS},
                                      {"bf16", loop_v4_bf16, (double)LOOPS * SUMS * 64},
                                      {"v4", loop_v4, (double)LOOPS * SUMS * 32},
                                      {"v3", loop_v3, (double)LOOPS * SUMS * 16},
                                      {"", loop_v2, (double)LOOPS * SUMS * 8}};
  const struct peak *p = peaks;
  while (!strstr(ops->name, p->kernels)) p++;
  return p;
}

static void peak_part(void *context, int part) {
  const struct peak *p = context;
  (void)part;
  p->loop();
}

/* Seconds that the pool needs, a part a thread, in the best of some tries. */
static double fastest(const struct ops *ops, void (*part)(void *context, int part), void *context, int tries) {
  double best = 1e9;
  for (int i = 0; i < tries; i++) {
    const int64_t begun_us = clock_monotonic_us();
    pool_run(ops->pool, part, context, pool_threads(ops->pool));
    const double seconds = (double)(clock_monotonic_us() - begun_us) * 1e-6;
    if (seconds < best) best = seconds;
  }
  return best;
}

double peak_operations(const struct ops *ops) {
  struct peak peak = *peak_of(ops);
  return peak.operations * pool_threads(ops->pool) / fastest(ops, peak_part, &peak, PEAK_TRIES);
}

/* --- memory --- */

struct peak_memory {
  const struct ops *ops;
  char *bytes;
};

enum rc peak_memory_create(struct peak_memory **out, const struct ops *ops, struct err *err) {
  struct peak_memory *memory = calloc(1, sizeof *memory);
  *out = memory;
  if (memory) *memory = (struct peak_memory){.ops = ops, .bytes = ops->alloc(ops, READ_BYTES)};
  if (memory && memory->bytes) return RC_OK;
  peak_memory_free(memory);
  *out = NULL;
  return err_set(err, RC_NO_MEMORY, NULL, "%zu bytes to be read were refused", READ_BYTES);
}

void peak_memory_free(struct peak_memory *memory) {
  if (!memory) return;
  memory->ops->release(memory->ops, memory->bytes);
  free(memory);
}

/* Each thread its part of the memory, in STREAMS streams, every byte of every line. */
static void read_part(void *context, int part) {
  const struct peak_memory *memory = context;
  const size_t bytes = READ_BYTES / (size_t)pool_threads(memory->ops->pool) / (STREAMS * LINE) * LINE;
  const char *p = memory->bytes + (size_t)part * STREAMS * bytes;
  __m128i sums[4] = {{0}};
  for (size_t at = 0; at < bytes; at += LINE) {
    UNROLL for (size_t stream = 0; stream < STREAMS; stream++) {
      const __m128i *line = (const __m128i *)(const void *)(p + stream * bytes + at);
      UNROLL for (int i = 0; i < 4; i++) sums[i] = _mm_xor_si128(sums[i], _mm_load_si128(line + i));
    }
  }
  for (int i = 0; i < 4; i++) OPAQUE(sums[i]);
}

double peak_bandwidth(struct peak_memory *memory) {
  return (double)READ_BYTES / fastest(memory->ops, read_part, memory, READ_TRIES);
}
