/* Recipes: names that people know, each a set of values for a run's fields, with its source.
 *
 * A posted configuration that names one is read over the recipe's values instead of the defaults, so a field given
 * beside the name wins; what is stored has every field, and the name as a label.  Called by run_config.c; constant. */
#ifndef LEASEHOLD_COORDINATOR_RUN_RECIPE_H
#define LEASEHOLD_COORDINATOR_RUN_RECIPE_H

#include "common/model/learning/loss.h"

struct recipe {
  const char *name;
  const char *objective, *normalization; /* training's, like the next */
  double clip_low, clip_high;
  enum advantage_kind advantage;
  double kl_coefficient;
  const char *kl_estimator, *kl_in;
  bool whole_round;   /* advantages need it: mode sync */
  bool refills;       /* groups without advantages */
  int overlong_share; /* the penalty's buffer is so much of the longest completion: 5 for a fifth; 0: no penalty */
  double lr;          /* 0: the default */
  bool teaches;       /* there are no rewards, and a teacher is needed */
};

/* RC_INVALID: there is no such recipe, or it cannot be honoured. */
enum rc recipe_find(const struct recipe **out, const char *name, struct err *err);

#endif
