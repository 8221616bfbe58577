/* A sample as the learner takes it; chunks are cut from a list of them. */
#ifndef LEASEHOLD_MODEL_LEARNING_TRAIN_SAMPLE_H
#define LEASEHOLD_MODEL_LEARNING_TRAIN_SAMPLE_H

#include <stdint.h>

/* tokens [length]; scored positions are those t in [1, length) with scored[t] != 0: token t predicted from position
 * t-1. */
struct train_sample {
  const int32_t *tokens;
  int length;
  const uint8_t *scored; /* [length]; scored[0] must be 0 */
};

#endif
