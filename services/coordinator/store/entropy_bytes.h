/* The entropies behind a group's trained tokens as they are stored (table entropies): for each sample, in order, how
 * many they are as a uint32, then as many uint16s in steps of 1/4096 nat; all little-endian.  For people: nothing is
 * computed from them.
 *
 *   the trainer's answer --entropy_bytes_append--> entropies.steps --entropy_bytes_of--> views/group_view.c
 *
 * Pure, any thread. */
#ifndef LEASEHOLD_COORDINATOR_STORE_ENTROPY_BYTES_H
#define LEASEHOLD_COORDINATOR_STORE_ENTROPY_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

/* The largest is 16 nats less two steps, above the logarithm of any vocabulary; the one behind it stands for what is
 * not finite. */
enum { ENTROPY_STEPS_PER_NAT = 4096, ENTROPY_STEP_LAST = 65534, ENTROPY_NOT_FINITE = 65535 };

/* Appends one sample's. */
void entropy_bytes_append(struct buf *out, const float *nats, size_t count);
/* The entropies of sample number `sample`, to be read by entropy_bytes_at; NULL where there are none. */
const void *entropy_bytes_of(const void *bytes, size_t len, size_t sample, size_t *count);
/* In nats; NaN for what was not finite. */
double entropy_bytes_at(const void *of, size_t token);

#endif
