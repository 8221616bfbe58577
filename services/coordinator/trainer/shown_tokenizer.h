/* The tokenizer of the model that the trainer holds, for showing tokens while no run is active.
 *
 * Fetched from the trainer and parsed once for each incarnation of a trainer, which keeps one model all its life, and
 * kept until another incarnation's is asked for: a tokenizer.json has megabytes, and people look at one group after the
 * other.
 *
 *   shown_tokenizer_take  -->  the kept one, or one request to the trainer with a deadline  -->  shown_tokenizer_give
 *
 * Any thread; one is kept in the process, and freed when the last who took it has given it back and another is kept.
 * Called by api/route_rollouts.c on an HTTP worker's thread. */
#ifndef LEASEHOLD_COORDINATOR_TRAINER_SHOWN_TOKENIZER_H
#define LEASEHOLD_COORDINATOR_TRAINER_SHOWN_TOKENIZER_H

#include "common/model/tokenizer/tokenizer.h"
#include "services/coordinator/writer/core.h"

struct shown_tokenizer;

/* NULL where there is none: no trainer is there, or it does not answer in time. */
struct shown_tokenizer *shown_tokenizer_take(struct core *c);
const struct tokenizer *shown_tokenizer_get(const struct shown_tokenizer *s); /* NULL is fine */
void shown_tokenizer_give(struct shown_tokenizer *s);                         /* NULL is fine */

#endif
