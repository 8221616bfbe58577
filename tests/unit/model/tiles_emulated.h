/* AMX tiles in plain C, after the pseudo code of Intel's manual (LDTILECFG, TILELOADD, TILESTORED, TDPBF16PS), so that
 * the kernels written over them can be held to literal.h on any machine: its blocking, edges and layouts, not the
 * instructions.  Shapes that the instructions would refuse fail an assertion.  The calling thread has FTZ and DAZ set,
 * as the instruction always has.
 *
 * The kernels are compiled once more with this header in front of them (the Makefile's %.tiles.o), and linked into the
 * model's tests as gemm_emulated, attention_emulated and so on; tiles_emulated.c holds the tiles. */
#ifndef LEASEHOLD_TESTS_MODEL_TILES_EMULATED_H
#define LEASEHOLD_TESTS_MODEL_TILES_EMULATED_H

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define TILES_EMULATED
#define TILES_BESIDE(name) name##_v2
#define CPU_ISA            emulated

#include "common/model/cpu/isa/amx_tiles.h"
#include "tests/unit/model/fma_clones.h"

struct tiles_emulated {
  bool configured;
  struct tile_config config;
  uint8_t data[TILES][TILE_ROWS][TILE_BYTES];
};
extern _Thread_local struct tiles_emulated tiles;

extern bool tiles_swap_chains; /* a mutant of the instruction: tiles_hold must see it */

static inline void tiles_configure(const struct tile_config *c) {
  assert(c->palette == 1 && c->start_row == 0);
  for (int t = 0; t < 16; t++) {
    assert(t < TILES || (c->rows[t] == 0 && c->row_bytes[t] == 0));
    assert(c->rows[t] <= TILE_ROWS && c->row_bytes[t] <= TILE_BYTES);
    assert((c->rows[t] == 0) == (c->row_bytes[t] == 0));
  }
  memset(&tiles, 0, sizeof tiles);
  tiles.config = *c;
  tiles.configured = true;
}

static inline void tiles_release(void) { memset(&tiles, 0, sizeof tiles); }

static inline void tile_zero(int t) {
  assert(tiles.configured && tiles.config.rows[t] > 0);
  memset(tiles.data[t], 0, sizeof tiles.data[t]);
}

static inline void tile_load(int t, const void *from, size_t stride) {
  tile_zero(t);
  for (int r = 0; r < tiles.config.rows[t]; r++)
    memcpy(tiles.data[t][r], (const char *)from + (size_t)r * stride, tiles.config.row_bytes[t]);
}

static inline void tile_store(int t, void *to, size_t stride) {
  assert(tiles.configured && tiles.config.rows[t] > 0);
  for (int r = 0; r < tiles.config.rows[t]; r++)
    memcpy((char *)to + (size_t)r * stride, tiles.data[t][r], tiles.config.row_bytes[t]);
}

static inline float tile_operand(int t, int row, int element) {
  uint16_t h;
  memcpy(&h, tiles.data[t][row] + 2 * element, sizeof h);
  const uint32_t u = (uint32_t)h << 16;
  float x;
  memcpy(&x, &u, sizeof x);
  return x;
}

FMA_CLONES static void tile_dot(int c, int a, int b) {
  const struct tile_config *shape = &tiles.config;
  const int lanes = shape->row_bytes[c] / 4, pairs = shape->row_bytes[a] / 4;
  assert(tiles.configured && c != a && c != b && a != b);
  assert(shape->rows[c] > 0 && shape->rows[a] == shape->rows[c]);
  assert(shape->row_bytes[b] == shape->row_bytes[c] && shape->rows[b] == pairs);
  for (int m = 0; m < shape->rows[c]; m++) {
    float even[16] = {0}, odd[16] = {0}, sum[16];
    for (int k = 0; k < pairs; k++)
      for (int n = 0; n < lanes; n++) {
        even[n] = fmaf(tile_operand(a, m, 2 * k), tile_operand(b, k, 2 * n), even[n]);
        odd[n] = fmaf(tile_operand(a, m, 2 * k + 1), tile_operand(b, k, 2 * n + 1), odd[n]);
      }
    memcpy(sum, tiles.data[c][m], sizeof sum);
    for (int n = 0; n < lanes; n++)
      sum[n] = tiles_swap_chains ? (sum[n] + even[n]) + odd[n] : sum[n] + (even[n] + odd[n]);
    memcpy(tiles.data[c][m], sum, sizeof sum);
  }
}

#endif
