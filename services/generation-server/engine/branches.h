/* Tracks which samples of a decode job have drawn the same tokens so far: these need the same rows, which the step
 * computes once (engine_step.c).
 *
 * Samples of a prompt begin as one branch and part where their draws differ.  Each sample follows one of its job, the
 * branch's head, whose first tokens are all of its own; a head follows itself:
 *
 *   prompt --7--+--5--=--2   0, 1, 3    0 is the head of all at first; 1 and 3 still follow it
 *               |
 *               +--8--=      2, 4       parted from 0 with the second token; 2 is their head
 *
 * The tree says only which tokens are equal: it does not matter which step drew them, nor whether a head waits, was
 * preempted or is done.  On the engine's thread; nothing allocates. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_BRANCHES_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_BRANCHES_H

#include "services/generation-server/engine/decode_job.h"

/* Before the job's first step.  Samples that bring tokens from an earlier holder are heads. */
void branches_begin(struct decode_job *job);
/* s has drawn a token: it still follows its head, or another sample that parted from that head likewise, or itself. */
void branch_grow(struct sample *s);

#endif
