/* A unit's gradient without an array of all parameters: tensor by tensor it goes into the optimizer's integer sums.
 *
 *   one chunk        a tensor's gradient is whole when the backward pass leaves it:   slot -> sums
 *   several chunks   it is added up over chunks in float32, as in one array:          slot -> carried, a scratch file
 *                    and after the last one                                           carried -> slot -> sums
 *
 * There are two slots, because the embedding's gradient is open while the layers' come and go: with tied embeddings the
 * head's part comes first and the embedding's last.  The sums are the same, bit for bit (NUMERICS.md, Gradient units).
 *
 * Used by backward.c; made by trainer-server/engine/learning.c, one for one learner.  Only where the CPU computes.
 * Owned by the engine's thread. */
#ifndef LEASEHOLD_MODEL_LEARNING_GRADIENT_PARTS_H
#define LEASEHOLD_MODEL_LEARNING_GRADIENT_PARTS_H

#include "common/model/learning/optimizer.h"

struct gradient_parts; /* opaque */

/* scratch_dir: where the carried gradient of 4 bytes a parameter is reserved; RC_IO when there is no room. */
enum rc gradient_parts_create(struct gradient_parts **out, const struct model *m, const char *scratch_dir,
                              struct err *err);
void gradient_parts_free(struct gradient_parts *g); /* NULL is fine */
/* In memory. */
size_t gradient_parts_bytes(const struct model *m);

/* A unit: begin, then learner_gradients_in_parts, then end.  sums NULL: the gradient goes nowhere, because it is in
 * them. */
void gradient_parts_begin(struct gradient_parts *g, struct optimizer *sums);
/* False when the unit poisoned the step. */
bool gradient_parts_end(struct gradient_parts *g);

/* --- for backward.c --- */
/* Before each chunk: is it the first of the unit, and the last with a scored token? */
void gradient_parts_chunk(struct gradient_parts *g, bool first, bool last);
/* Room where the parameter's gradient is added to, [count], with the chunks before in it; the same once more until it
 * is closed. */
float *gradient_parts_open(struct gradient_parts *g, int param);
void gradient_parts_close(struct gradient_parts *g, int param);

#endif
