/* The names of the one model that is loaded, by which clients of OpenAI's and vLLM's shapes ask for it: the run whose
 * weights are active, which answers name; leasehold, which fits whatever is loaded; and --model's folder as it was
 * given, which is what vLLM calls a model that has no other name.  Pure; any thread. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_MODEL_NAMES_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_MODEL_NAMES_H

#include <stddef.h>

#include "common/base/rc.h"

enum { MODEL_NAMES_MAX = 3 };

/* The one that answers bear.  run: "" of weights that are no run's. */
const char *model_name_of_run(const char *run);
/* How many; the first is the one that answers bear.  folder: NULL or "" without --model.  They point into run and
 * folder. */
size_t model_names(const char *names[MODEL_NAMES_MAX], const char *run, const char *folder);
/* RC_NOT_FOUND: wanted is none of them.  NULL and "" ask for whatever there is. */
enum rc model_name_check(const char *wanted, const char *run, const char *folder, struct err *err);

#endif
