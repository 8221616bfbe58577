/* Tries VDPBF16PS before kernels rely on it: whether it computes what bf16_chain.h says, and whether it is the faster
 * way to compute it on this CPU. */
#include <pthread.h>

#include "common/model/cpu/isa/bf16_chain.h"
#include "common/model/cpu/isa/instruction_trial.h"

#if defined(__AVX512BF16__)

/* Lanes whose bf16, made by the conversions from high and low, is not the nearest one, ties to even; normal numbers. */
static uint32_t badly_rounded(vu high, vu low) {
  const vu wide[2] = {low, high};
  const h32 both = (h32)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  uint32_t wrong = 0;
  for (int i = 0; i < 2; i++) {
    const h16 one = round16((vf)wide[i]);
    for (int l = 0; l < VL; l++) {
      const uint32_t bits = wide[i][l], nearest = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
      wrong |= (one[l] ^ nearest) | (both[i * VL + l] ^ nearest);
    }
  }
  return wrong;
}

/* Whether the instructions do what this file says, over some thousand lanes: ordinary numbers, sums that cancel,
 * products around the smallest normal number, zeros, infinities, NaNs; and numbers halfway between two bf16. */
bool ISA_NAME(links_hold)(void) {
  const unsigned saved = _mm_getcsr();
  uint32_t state = 1, wrong = 0;
  _mm_setcsr(TRIAL_MXCSR);
  for (int i = 0; i < 512; i++) {
    const uint32_t tiny = i % 2 ? 0 : 60;
    vu a, w;
    vf acc;
    for (int l = 0; l < VL; l++) {
      a[l] = trial_operand(&state, 123 - tiny) << 16 | trial_operand(&state, 123 - tiny);
      w[l] = trial_operand(&state, 123 - tiny) << 16 | trial_operand(&state, 123 - tiny);
      acc[l] = (float)(int32_t)state * (tiny ? 0x1p-125f : 0x1p-31f) * 0x1p-31f;
    }
    const vf one = link_add(acc, a, w);
    const vf two = vfma((vf)(a << 16), (vf)(w << 16), vfma((vf)(a & 0xffff0000u), (vf)(w & 0xffff0000u), acc));
    const vi same = ((vi)one == (vi)two) | ((one != one) & (two != two));
    for (int l = 0; l < VL; l++) wrong |= (uint32_t)~same[l];
    /* the exponent of 1 instead of the operands', which may be anything */
    const vu x = (a & 0x807fffffu) | 0x3f800000u, y = (w & 0x807f0000u) | 0x3f808000u;
    wrong |= badly_rounded(x, y) | badly_rounded(y, x);
  }
  _mm_setcsr(saved);
  return wrong == 0;
}

/* ---- speed ---- */

enum {
  PACE_CHAINS = 12,     /* independent ones: enough to hide an instruction's latency */
  PACE_LINKS = 1 << 11, /* of each: some ten microseconds */
  PACE_TRIES = 8        /* the shortest counts; the first ones wait for the CPU's wide units */
};

/* Ticks of the CPU's counter for PACE_LINKS links of each chain, by VDPBF16PS or by the two multiply-adds that it
 * stands for. */
INLINE uint64_t pace(const bool by_twos) {
  vf acc[PACE_CHAINS];
  vu a = link_set(0x3f803f80u), w = link_set(0x30003000u);
  __asm__ volatile("" : "+v"(a), "+v"(w)); /* unknown to the compiler, as are the sums: none is left out */
  UNROLL
  for (int i = 0; i < PACE_CHAINS; i++) {
    acc[i] = (vf)w;
    __asm__ volatile("" : "+v"(acc[i]));
  }
  const uint64_t begun = __rdtsc();
#pragma GCC unroll 1
  for (int link = 0; link < PACE_LINKS; link++) {
    UNROLL
    for (int i = 0; i < PACE_CHAINS; i++)
      acc[i] = by_twos ? link_add(acc[i], a, w) : vfma((vf)a, (vf)w, vfma((vf)a, (vf)w, acc[i]));
  }
  UNROLL
  for (int i = 0; i < PACE_CHAINS; i++) __asm__ volatile("" : "+v"(acc[i]));
  return __rdtsc() - begun;
}

static bool links_are_faster;

static void compare_paces(void) {
  uint64_t links = UINT64_MAX, adds = UINT64_MAX;
  for (int i = 0; i < PACE_TRIES; i++) {
    const uint64_t by_links = pace(true), by_adds = pace(false);
    if (by_links < links) links = by_links;
    if (by_adds < adds) adds = by_adds;
  }
  links_are_faster = links < adds;
}

/* AMD's cores take half the time of two multiply-adds for one VDPBF16PS, Intel's twice that.  Found out once a process,
 * so that it never changes its mind. */
bool ISA_NAME(links_pay)(void) {
  static pthread_once_t compared = PTHREAD_ONCE_INIT;
  pthread_once(&compared, compare_paces);
  return links_are_faster;
}

#endif
