/* The names that other trainers give to the fields of a run, so that a configuration that uses them is told ours.
 *
 * Called by run_config.c on what was posted, before its fields are read: a list of what could have come, which is all
 * that json_fields can say, does not tell that `learning_rate` is `training.lr`.  The names are those of TRL's
 * GRPOConfig, verl and OpenRLHF; deploy/recipes/other-trainers.md has them side by side, with the defaults.  Pure. */
#ifndef LEASEHOLD_COORDINATOR_RUN_OTHER_NAMES_H
#define LEASEHOLD_COORDINATOR_RUN_OTHER_NAMES_H

#include "common/json/json.h"

/* RC_INVALID, naming ours, where `body` or its `training` or `sampling` has a key that is another trainer's name;
 * RC_OK else, and where `body` is no object. */
enum rc other_names_refuse(const struct json *body, struct err *err);

#endif
