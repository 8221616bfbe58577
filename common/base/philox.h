/* Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC'11),
 * and the one way in which Leasehold turns it into random numbers: keyed by their purpose, never by worker, slot or
 * time.
 *
 *   key     = run seed (low word, high word)
 *   counter = { position, sample | purpose << 24, group ordinal, round }
 *
 * Pure; called by generation-server/engine/engine_step.c for the uniform of every token. */
#ifndef LEASEHOLD_BASE_PHILOX_H
#define LEASEHOLD_BASE_PHILOX_H

#include <stdint.h>

enum rng_purpose {
  RNG_SAMPLE = 1,    /* the uniform behind one sampled token */
  RNG_SHUFFLE = 2,   /* dataset order */
  RNG_INIT = 3,      /* random initial weights */
  RNG_REWARD = 4,    /* the shuffled-reward control */
  RNG_REQUEST = 5,   /* plain /v1/generate requests with a seed of their own */
  RNG_EVALUATION = 6, /* sampled evaluation during a run */
  RNG_BOOTSTRAP = 7   /* problems drawn again: coordinator/evaluation/bootstrap.h */
};

/* sample must be < 2^24. */
struct rng_key {
  uint64_t seed;
  enum rng_purpose purpose;
  uint32_t round;
  uint32_t group; /* ordinal within the round, refills counted */
  uint32_t sample;
};

/* out = philox4x32-10(counter, key). */
void philox4x32_10(uint32_t out[4], const uint32_t counter[4], const uint32_t key[2]);

/* The four words for (key, position). */
void rng_words(uint32_t out[4], const struct rng_key *key, uint32_t position);

/* A float32 strictly between 0 and 1 from one word: ((word >> 9) + 0.5) * 2^-23, exact in float32. */
float rng_uniform(uint32_t word);

/* An index below bound (multiply-shift of a 64-bit word, whose bias is negligible); bound > 0. */
uint64_t rng_below(const struct rng_key *key, uint32_t position, uint64_t bound);

/* In-place Fisher-Yates of n indices; deterministic in (seed, epoch). */
void rng_shuffle(uint32_t *indices, uint32_t n, uint64_t seed, uint32_t epoch);

#endif
