/* Decides how much KV cache a server takes, and what it gives up where memory is short.  Pure.
 *
 * With --kv-pages 0 the cache holds every slot at full context, but takes at most a quarter of the memory, no more than
 * the rest leaves, and one sequence at least.  Where the whole does not fit, from the cheapest to the dearest:
 *
 *   --kv-pages 0             as many as there is room for, where more were asked for
 *   --prefill-chunk 32       prompts take more steps
 *   --context-max half ...   no sequence may be longer
 *
 * None of them moves a bit of a sample.  Called by loaded_model.c, for the advice behind a refusal and for --fit. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_FIT_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_FIT_H

#include "common/base/memory_plan.h"
#include "common/model/network/model.h"
#include "services/generation-server/engine/model_options.h"

/* A model's plan under these options with `pages` KV pages; pure. */
typedef void (*kv_planner)(struct memory_plan *out, const struct model *m, const struct loaded_model_options *options,
                           int pages);

/* The pages that these options come to. */
int fit_pages(const struct loaded_model_options *o, const struct model *m, const struct memory_room *room,
              kv_planner plan_of);
/* The cheapest options with which the plan fits, into *out; else the smallest.  The advice says what they change. */
void fit_choose(struct loaded_model_options *out, struct memory_advice *advice, const struct model *m,
                const struct loaded_model_options *asked, const struct memory_room *room, kv_planner plan_of);

#endif
