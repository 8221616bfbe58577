/* The options of an engine: its sizes, and the callback for activations.  Declarations only. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_ENGINE_OPTIONS_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_ENGINE_OPTIONS_H

#include "services/generation-server/engine/activity.h"
#include "services/generation-server/engine/decode_job.h"

struct engine_options {
  const struct model *model; /* borrowed; its ops and pool are the engine thread's from now on */
  int slots;                 /* samples decoded at once */
  int pages, page_tokens;    /* of the KV pool */
  int prefill_chunk;         /* rows of prompt computed in one step */
  int samples_max;           /* unfinished samples, running and waiting; a job that brings more goes back */
  int inbox_max;             /* messages waiting */
  struct activity *activity; /* told when decoding of leased samples begins and ends; NULL: no record */
  /* Called on the engine's thread after the weights were swapped, and the first step under them if there is one; hands
   * over the set that decoded before (NULL the first time). */
  void (*activated)(void *context, struct weights *previous, const struct policy *now);
  /* Called on the engine's thread when it has become settled (engine_settled). */
  void (*settled)(void *context);
  void *context;
};

#endif
