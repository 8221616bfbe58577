/* The tile instructions themselves against their emulation (tiles_emulated.h): what they load, multiply and store, over
 * every kind of number, all shapes of a tile, and whatever MXCSR says.
 *
 *   check_tiles                 the emulation's results as digests, on any machine
 *   check_tiles instructions    the instructions' results likewise, each first held to the emulation's
 *
 * tests/bochs/run compares the digests of the two: inside an emulated CPU fmaf is the emulator's as well, on the
 * machine outside it is not.  A NaN's payload and sign and the sign of a zero are counted and left out, as NUMERICS.md
 * leaves them open.  Exit status: 0 all the same, 1 not.  One thread, no memory but its stack. */
#include <immintrin.h>
#include <inttypes.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "tests/unit/model/tiles_emulated.h"

enum { ROUNDS = 600, FLUSH = 0x8040 /* FTZ and DAZ */, REQUEST_STATE = 0x1023, TILE_DATA = 18 };

/* Rows lie further apart than they are wide, so that what lies between them must stay. */
enum { STRIDE = TILE_BYTES + 16, AREA = TILE_ROWS * STRIDE };

struct product {
  struct tile_config config;
  uint8_t a[AREA], b[AREA], c[AREA];
};

static uint64_t state = 1;

static uint32_t random_u32(void) {
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (uint32_t)(state >> 32);
}

/* Kind 0: any bits.  1: ordinary numbers and some special ones.  2: so small that products and sums are subnormal. */
static uint16_t random_operand(int kind) {
  static const uint16_t special[] = {0,      0x8000, 1,      0x807f, 0x0080, 0x8080, 0x7f7f, 0xff7f,
                                     0x7f80, 0xff80, 0x7fc0, 0x7f81, 0xff81, 0x3f80, 0xbf80, 0x0041};
  const uint32_t r = random_u32();
  if (kind == 0) return (uint16_t)r;
  if (r >> 16 < (kind == 1 ? 400 : 4000)) return special[r % 16 < 12 || kind == 1 ? r % 16 : 0];
  return (uint16_t)((r & 0x807f) | ((kind == 1 ? 120 : 58) + (r >> 8) % 10) << 7);
}

static uint32_t random_sum(int kind) {
  const uint32_t r = random_u32();
  if (kind == 0) return r;
  if (kind == 1) return (r & 0x807fffffu) | (118 + r % 12) << 23;
  return (r & 0x807fffffu) | r % 4 << 23; /* every fourth is subnormal */
}

static void fill_product(struct product *p, int round) {
  const int kind = round % 3, m = 1 + (int)(random_u32() % TILE_ROWS);
  const int n = 1 + (int)(random_u32() % 16), pairs = 1 + (int)(random_u32() % 16);
  const bool full = round % 2;
  memset(p, 0, sizeof *p);
  p->config.palette = 1;
  p->config.rows[0] = p->config.rows[4] = (uint8_t)(full ? TILE_ROWS : m);
  p->config.row_bytes[0] = p->config.row_bytes[6] = (uint16_t)(full ? TILE_BYTES : 4 * n);
  p->config.row_bytes[4] = (uint16_t)(full ? TILE_BYTES : 4 * pairs);
  p->config.rows[6] = (uint8_t)(full ? 16 : pairs);
  for (int i = 0; i < AREA; i += 2) {
    const uint16_t a = random_operand(kind), b = random_operand(kind);
    memcpy(p->a + i, &a, sizeof a);
    memcpy(p->b + i, &b, sizeof b);
  }
  for (int i = 0; i < AREA; i += 4) {
    const uint32_t c = random_sum(kind);
    memcpy(p->c + i, &c, sizeof c);
  }
}

static void multiply_emulated(struct product *p) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr((saved | FLUSH) & ~0x6000u);
  tiles_configure(&p->config);
  tile_load(0, p->c, STRIDE);
  tile_load(4, p->a, STRIDE);
  tile_load(6, p->b, STRIDE);
  tile_dot(0, 4, 6);
  tile_store(0, p->c, STRIDE);
  tiles_release();
  _mm_setcsr(saved);
}

/* Rounding up, down, to zero and nearest; with and without flushing: none of it may count. */
__attribute__((target("amx-tile,amx-bf16"))) static void multiply(struct product *p, int round) {
  const unsigned saved = _mm_getcsr();
  _mm_setcsr((saved & ~(0x6000u | FLUSH)) | (unsigned)(round % 4) << 13 | (round % 8 < 4 ? FLUSH : 0));
  __asm__ volatile("" ::"r"(p) : "memory");
  _tile_loadconfig(&p->config);
  _tile_loadd(0, p->c, STRIDE);
  _tile_loadd(4, p->a, STRIDE);
  _tile_loadd(6, p->b, STRIDE);
  _tile_dpbf16ps(0, 4, 6);
  _tile_stored(0, p->c, STRIDE);
  _tile_release();
  __asm__ volatile("" ::"r"(p) : "memory");
  _mm_setcsr(saved);
}

struct counts {
  uint64_t digest;
  int sums, nans, zeros, subnormals, other_nans, other_zeros, wrong;
};

static uint32_t word_at(const struct product *p, int i) {
  uint32_t word;
  memcpy(&word, p->c + 4 * i, sizeof word);
  return word;
}

static bool is_nan(uint32_t u) { return (u & 0x7fffffffu) > 0x7f800000u; }
static bool is_zero(uint32_t u) { return (u & 0x7fffffffu) == 0; }

/* Sums and what lies between the rows alike. */
static void compare(struct counts *to, const struct product *got, const struct product *want, int round) {
  for (int i = 0; i < AREA / 4; i++) {
    const uint32_t g = word_at(got, i), w = word_at(want, i);
    const bool sum = i % (STRIDE / 4) < got->config.row_bytes[0] / 4 && i / (STRIDE / 4) < got->config.rows[0];
    const bool nans = is_nan(g) && is_nan(w), zeros = is_zero(g) && is_zero(w);
    if (g != w && !(sum && (nans || zeros)) && to->wrong++ < 5)
      printf("round %d, word %d: %08" PRIx32 ", expected %08" PRIx32 "\n", round, i, g, w);
    if (!sum) continue;
    to->sums++;
    to->nans += is_nan(g);
    to->zeros += is_zero(g);
    to->subnormals += !is_zero(g) && (g & 0x7f800000u) == 0;
    to->other_nans += nans && g != w;
    to->other_zeros += zeros && g != w;
    to->digest = (to->digest ^ (is_nan(g) ? 0x7fc00000u : is_zero(g) ? 0 : g)) * 0x100000001b3u;
  }
}

int main(int argc, char **argv) {
  const bool instructions = argc == 2 && strcmp(argv[1], "instructions") == 0;
  struct counts counts = {.digest = 0xcbf29ce484222325u};
  if (argc > 2 || (argc == 2 && !instructions)) {
    fprintf(stderr, "usage: check_tiles [instructions]\n");
    return 1;
  }
  if (instructions && syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) != 0) {
    printf("check_tiles: the kernel does not permit tiles\n");
    return 1;
  }
  for (int round = 0; round < ROUNDS; round++) {
    struct product want, got;
    fill_product(&want, round);
    got = want;
    multiply_emulated(&want);
    if (instructions)
      multiply(&got, round);
    else
      got = want;
    compare(&counts, &got, &want, round);
  }
  printf("check_tiles: %s: %d sums of %d products (%d NaNs, %d zeros, %d subnormals): %d unlike the emulation's\n",
         instructions ? "instructions" : "emulation", counts.sums, ROUNDS, counts.nans, counts.zeros, counts.subnormals,
         counts.wrong);
  if (instructions)
    printf("check_tiles: not counted: %d NaNs of other bits, %d zeros of the other sign\n", counts.other_nans,
           counts.other_zeros);
  printf("digest tiles %016" PRIx64 "\n", counts.digest);
  return counts.wrong > 0 || counts.subnormals > 0;
}
