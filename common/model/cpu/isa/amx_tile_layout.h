/* Lays operands out as the tiles that are multiplied (amx_tiles.h): a tile of one side holds 16 rows of 32 operands
 * along the dot, a tile of the other side 16 rows of pairs of them.  A word is two operands, the earlier in the low
 * half. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_AMX_TILE_LAYOUT_H
#define LEASEHOLD_MODEL_CPU_ISA_AMX_TILE_LAYOUT_H

#include "common/model/cpu/isa/amx_tiles.h"
#include "common/model/cpu/isa/vec.h"

#if defined(__AMX_BF16__) || defined(TILES_EMULATED)

enum {
  TILE_DEPTH = 32,                        /* operands along the dot */
  TILE_WORDS = TILE_ROWS * TILE_BYTES / 4 /* pairs of operands, or sums */
};

/* Tiles of full width; rows 0: not used. */
static inline void configure_tiles(const int rows[TILES]) {
  struct tile_config config = {.palette = 1};
  for (int t = 0; t < TILES; t++) {
    config.rows[t] = (uint8_t)rows[t];
    config.row_bytes[t] = rows[t] > 0 ? TILE_BYTES : 0;
  }
  tiles_configure(&config);
}

typedef uint32_t words16 __attribute__((vector_size(64)));
typedef uint16_t halves16 __attribute__((vector_size(32)));
typedef uint16_t halves32 __attribute__((vector_size(64)));

/* A row's next n operands along the dot into a row of a tile, zero padded; n <= 0: zeros. */
INLINE void tile_row(uint32_t *to, const uint16_t *row, int n) {
  if (n >= TILE_DEPTH) {
    memcpy(to, row, TILE_BYTES);
    return;
  }
  memset(to, 0, TILE_BYTES);
  if (n > 0) memcpy(to, row, (size_t)n * sizeof *row);
}

/* n <= 16 operands; the rest are zero and are not read. */
INLINE void load_halves(halves16 *x, const uint16_t *p, int n) {
  *x = (halves16){0};
  if (n >= 16)
    memcpy(x, p, sizeof *x);
  else
    memcpy(x, p, (size_t)n * sizeof *p);
}

/* 16 words, of two operands each: those of `first` in the low halves.  n <= 16 of them are read; the others are
 * zero. */
INLINE void interleave(words16 *out, const uint16_t *first, const uint16_t *second, int n) {
  halves16 low, high;
  load_halves(&low, first, n);
  load_halves(&high, second, n);
  *out = __builtin_convertvector(low, words16) | __builtin_convertvector(high, words16) << 16;
}

/* The same for 32 columns of two rows: groups of four columns go to the one and to the other tile in turn, as the
 * instructions do it.  n <= 32 of them are read. */
INLINE void interleave_fours(words16 *one, words16 *other, const uint16_t *first, const uint16_t *second, int n) {
  halves32 a = {0}, b = {0};
  if (n >= 32) {
    memcpy(&a, first, sizeof a);
    memcpy(&b, second, sizeof b);
  } else {
    memcpy(&a, first, (size_t)n * sizeof *first);
    memcpy(&b, second, (size_t)n * sizeof *second);
  }
  *one = (words16)__builtin_shuffle(a, b, (halves32){0,  32, 1,  33, 2,  34, 3,  35, 8,  40, 9,  41, 10, 42, 11, 43,
                                                     16, 48, 17, 49, 18, 50, 19, 51, 24, 56, 25, 57, 26, 58, 27, 59});
  *other = (words16)__builtin_shuffle(a, b, (halves32){4,  36, 5,  37, 6,  38, 7,  39, 12, 44, 13, 45, 14, 46, 15, 47,
                                                       20, 52, 21, 53, 22, 54, 23, 55, 28, 60, 29, 61, 30, 62, 31, 63});
}

/* in: 16 rows of 16 words; out: its columns. */
static inline void transpose16(uint32_t *out, const void *in) {
  words16 v[16];
  memcpy(v, in, sizeof v);
  TRANSPOSE_STEP(v, 16, 8);
  TRANSPOSE_STEP(v, 16, 4);
  TRANSPOSE_STEP(v, 16, 2);
  TRANSPOSE_STEP(v, 16, 1);
  memcpy(out, v, sizeof v);
}

#endif
#endif
