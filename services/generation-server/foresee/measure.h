/* Measures, for a few seconds, how fast a server samples for a run's shape. */
#ifndef LEASEHOLD_GENERATION_SERVER_FORESEE_MEASURE_H
#define LEASEHOLD_GENERATION_SERVER_FORESEE_MEASURE_H

#include "common/client/foresight.h"
#include "common/wire/worker.h"
#include "services/generation-server/engine/loaded_model.h"

struct sampling_pace {
  struct step_sum steps[WIRE_STEP_SLOTS]; /* steps that only decoded, as heartbeats tell of them */
  int step_count;                         /* 0: nothing was measured */
  double prompt_us_per_token;
  int position; /* in the mean, at which samples were decoded: later ones attend to more */
};

/* Opens the model with the folder's weights, or random ones where it holds none, and computes for about measure_ms. */
enum rc sampling_measure(struct sampling_pace *out, const struct loaded_model_options *options,
                         const struct model_files *files, const char *model_dir, const struct foresight_request *q,
                         struct err *err);

#endif
