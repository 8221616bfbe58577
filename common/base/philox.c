/* Computes Philox4x32-10 and derives every random number of Leasehold from it.  Pure functions; any thread.
 *
 * A round multiplies two of the four words by constants, and mixes high halves with the others and the key; the key
 * is bumped by Weyl constants between rounds.  Published test vectors are in tests/unit/base/test_philox.c. */
#include "common/base/philox.h"

#include <assert.h>

#define PHILOX_M0 0xD2511F53u
#define PHILOX_M1 0xCD9E8D57u
#define PHILOX_W0 0x9E3779B9u /* golden ratio */
#define PHILOX_W1 0xBB67AE85u /* sqrt(3) - 1 */

void philox4x32_10(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]) {
  uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
  uint32_t k0 = key[0], k1 = key[1];
  for (int round = 0; round < 10; round++) {
    const uint64_t p0 = (uint64_t)PHILOX_M0 * c0;
    const uint64_t p1 = (uint64_t)PHILOX_M1 * c2;
    c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
    c1 = (uint32_t)p1;
    c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
    c3 = (uint32_t)p0;
    k0 += PHILOX_W0;
    k1 += PHILOX_W1;
  }
  out[0] = c0;
  out[1] = c1;
  out[2] = c2;
  out[3] = c3;
}

void rng_words(uint32_t out[4], const struct rng_key *key, uint32_t position) {
  assert(key->sample < 1u << 24);
  const uint32_t k[2] = {(uint32_t)key->seed, (uint32_t)(key->seed >> 32)};
  const uint32_t c[4] = {position, key->sample | (uint32_t)key->purpose << 24, key->group, key->round};
  philox4x32_10(out, c, k);
}

float rng_uniform(uint32_t word) { return ((float)(word >> 9) + 0.5f) * 0x1p-23f; }

uint64_t rng_below(const struct rng_key *key, uint32_t position, uint64_t bound) {
  assert(bound > 0);
  uint32_t w[4];
  rng_words(w, key, position);
  const uint64_t word = (uint64_t)w[1] << 32 | w[0];
  return (uint64_t)((unsigned __int128)word * bound >> 64);
}

void rng_shuffle(uint32_t *indices, uint32_t n, uint64_t seed, uint32_t epoch) {
  const struct rng_key key = {.seed = seed, .purpose = RNG_SHUFFLE, .round = epoch};
  for (uint32_t i = n; i > 1; i--) {
    const uint64_t j = rng_below(&key, i - 1, i);
    const uint32_t held = indices[i - 1];
    indices[i - 1] = indices[j];
    indices[j] = held;
  }
}
