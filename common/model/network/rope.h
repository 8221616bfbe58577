/* The frequencies of the rotation, plain or scaled as config.json asks (config.h, struct rope_scaling).
 *
 * Rounded to float32 where transformers rounds (NUMERICS.md); logarithms and powers are our own, so that every machine
 * has the same bits. */
#ifndef LEASEHOLD_MODEL_NETWORK_ROPE_H
#define LEASEHOLD_MODEL_NETWORK_ROPE_H

#include "common/model/network/config.h"

/* inverse_frequency [head_dim/2]: the angle of pair i at position p is p times its i-th. */
void rope_frequencies(float *inverse_frequency, const struct model_config *config);
/* The frequencies of sliding layers that have their own theta. */
void rope_frequencies_local(float *inverse_frequency, const struct model_config *config);
/* Cosines and sines are multiplied by this. */
float rope_magnitude(const struct model_config *config);

#endif
