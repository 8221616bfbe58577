/* The options by which a model is loaded: main.c's flags.  Constant; the activity is borrowed. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_MODEL_OPTIONS_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_MODEL_OPTIONS_H

#include <stdbool.h>

#include "common/model/device.h"

struct activity;

struct loaded_model_options {
  int slots, threads, pages, page_tokens, prefill_chunk,
      context_max;    /* pages 0: from slots, context and memory; context_max 0: the model's */
  int64_t memory_max; /* bytes to plan for; 0: what the machine and the control group have left */
  bool fit; /* what the memory leaves no room for is given up: fit.h */
  struct device device;
  struct activity *activity; /* engine.h */
};

#endif
