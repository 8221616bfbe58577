/* The AMX instructions that the kernels of *_amx.c are written over, eight tiles of 16 rows x 64 bytes.
 *
 *   tiles_configure(config)      their shapes; all become zero          tiles_release()  no longer in use: nothing to
 *   tile_load(t, from, stride)   rows `stride` bytes apart              keep at a context switch
 *   tile_store(t, to, stride)
 *   tile_zero(t)
 *   tile_dot(c, a, b)            c [m][n] += a [m][32] . b [32][n], b's rows in pairs: DOT's block (NUMERICS.md) as
 *                                TDPBF16PS computes it, whatever MXCSR says: nearest even, subnormals flushed
 *
 * t, a, b, c are digits: a tile is part of the instruction.  gcc's intrinsics do not declare the memory that they read;
 * the empty asm statements do, because otherwise stores to it (a configuration on the stack, say) might be left out.
 *
 * The unit tests compile the same kernels over an emulation (TILES_EMULATED), so that their blocking, edges and layouts
 * are checked on machines without AMX.  The kernels have run on the instructions in an emulated CPU (tests/bochs/run)
 * and on a real one.  tiles_hold checks that the instructions give DOT's bits before they are used. */
#ifndef LEASEHOLD_MODEL_CPU_ISA_AMX_TILES_H
#define LEASEHOLD_MODEL_CPU_ISA_AMX_TILES_H

#include <stdint.h>

enum { TILES = 8, TILE_ROWS = 16, TILE_BYTES = 64, TILE_LINES = 16 /* cache lines of a full tile */ };

struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
};
_Static_assert(sizeof(struct tile_config) == 64, "as LDTILECFG reads it");

#if defined(__AMX_BF16__)

#include <immintrin.h>

/* The level whose kernels do everything that has no product of bf16 in it.  Every CPU with these tiles has its
 * instructions; of those, the products by links would need another layout (ops.h, struct matrix). */
#define TILES_BESIDE(name) name##_v4_bf16

#define TILES_MEMORY(p) __asm__ volatile("" ::"r"(p) : "memory")

#define tiles_configure(config) \
  do {                          \
    TILES_MEMORY(config);       \
    _tile_loadconfig(config);   \
  } while (0)
#define tiles_release() _tile_release()
#define tile_load(t, from, stride) \
  do {                             \
    TILES_MEMORY(from);            \
    _tile_loadd(t, from, stride);  \
  } while (0)
#define tile_store(t, to, stride) \
  do {                            \
    _tile_stored(t, to, stride);  \
    TILES_MEMORY(to);             \
  } while (0)
#define tile_zero(t)      _tile_zero(t)
#define tile_dot(c, a, b) _tile_dpbf16ps(c, a, b)

#endif
#endif
