/* Multiplies tiles to 32 x 32 outputs, which stay in four tiles:
 *
 *                    b tile 6   b tile 7
 *   rows, tile 4        0          1         along the dot, 32 at a time: two tiles of each side are loaded, and
 *   rows, tile 5        2          3         each serves two products
 *
 * Without `both` there are no rows for tiles 2, 3 and 5. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_AMX_TILE_PRODUCT_H
#define LEASEHOLD_MODEL_CPU_ISA_AMX_TILE_PRODUCT_H

#include "common/model/cpu/isa/amx_tile_layout.h"

#if defined(__AMX_BF16__) || defined(TILES_EMULATED)

enum { TILES_AHEAD = 8 * TILE_ROWS * TILE_BYTES /* bytes of b that are asked for in advance */ };

/* first_rows for tiles 0, 1 and 4, second_rows (0: none) for 2, 3 and 5. */
static inline void product_configure(int first_rows, int second_rows) {
  configure_tiles((const int[TILES]){first_rows, first_rows, second_rows, second_rows, first_rows, second_rows,
                                     TILE_ROWS, TILE_ROWS});
}

/* From zero, or from sums that lie tile by tile. */
INLINE void product_begin(const float *acc, bool first, bool both) {
  if (first) {
    tile_zero(0);
    tile_zero(1);
    if (!both) return;
    tile_zero(2);
    tile_zero(3);
    return;
  }
  tile_load(0, acc, TILE_BYTES);
  tile_load(1, acc + TILE_WORDS, TILE_BYTES);
  if (!both) return;
  tile_load(2, acc + 2 * TILE_WORDS, TILE_BYTES);
  tile_load(3, acc + 3 * TILE_WORDS, TILE_BYTES);
}

/* Tiles 0 and 1 side by side, 2 and 3 below them: to out[32][stride / 4], or each to its own place when stride is 0. */
INLINE void product_end(float *out, size_t stride, bool both) {
  const size_t step = stride ? stride : TILE_BYTES, right = stride ? 16 : TILE_WORDS,
               below = stride ? TILE_ROWS * (stride / 4) : 2 * TILE_WORDS;
  tile_store(0, out, step);
  tile_store(1, out + right, step);
  if (!both) return;
  tile_store(2, out + below, step);
  tile_store(3, out + below + right, step);
}

/* `blocks` along the dot; a and b: tiles of the two row tiles and of the two tiles of the other side.  ask: b comes
 * from far away. */
INLINE void product_add(const uint32_t *a0, const uint32_t *a1, const uint32_t *b0, const uint32_t *b1, int blocks,
                        bool both, bool ask) {
  for (int i = 0; i < blocks; i++) {
    if (ask) {
      for (int l = 0; l < TILE_LINES; l++) {
        _mm_prefetch((const char *)b0 + TILES_AHEAD + l * 64, _MM_HINT_T0);
        _mm_prefetch((const char *)b1 + TILES_AHEAD + l * 64, _MM_HINT_T0);
      }
    }
    tile_load(4, a0, TILE_BYTES);
    tile_load(6, b0, TILE_BYTES);
    tile_load(7, b1, TILE_BYTES);
    tile_dot(0, 4, 6);
    tile_dot(1, 4, 7);
    if (both) {
      tile_load(5, a1, TILE_BYTES);
      tile_dot(2, 5, 6);
      tile_dot(3, 5, 7);
    }
    a0 += TILE_WORDS;
    a1 += TILE_WORDS;
    b0 += TILE_WORDS;
    b1 += TILE_WORDS;
  }
}

#endif
#endif
