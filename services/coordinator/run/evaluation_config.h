/* The configuration's `evaluation` and `keep_best`: what a run is evaluated on, and which of its checkpoints are kept
 * for that.
 *
 *   "evaluation": {"path": ...}                           one set, named after its file
 *   "evaluation": {"sets": [{"name", "path", ...}, ...]}  several; what a set does not say itself is the block's
 *
 * Parsed, resolved and written as run_config.h says; called by run_config.c alone.  Strings live in the caller's
 * arena. */
#ifndef LEASEHOLD_COORDINATOR_RUN_EVALUATION_CONFIG_H
#define LEASEHOLD_COORDINATOR_RUN_EVALUATION_CONFIG_H

#include "common/json/json.h"
#include "services/coordinator/run/reading.h"
#include "services/coordinator/verifiers/reward.h"

enum { EVALUATION_SETS_MAX = 16, KEEP_BEST_MAX = 64, KEEP_LAST_MAX = 1000 };

struct evaluation_set {
  const char *name, *path;
  struct reading reading;
  int32_t samples, problems; /* of a problem; how many problems, the set's first */
  double temperature;
  struct reward_rule verifier; /* the run's, unless it has_verifier */
  bool has_verifier;
};

struct evaluation_config {
  int32_t every_rounds; /* in every such round from the first on, and in the last; 0: in none */
  bool before, after;   /* of version 0 at any rate; of the run's last version, in a round of its own */
  struct evaluation_set *sets;
  int count;
  bool is_list;               /* `sets` were given */
  struct evaluation_set base; /* what sets inherit; its name and path are NULL */
};

/* The figure by which the versions are chosen whose checkpoints are kept. */
enum figure_kind { FIGURE_ACCURACY, FIGURE_PASS, FIGURE_MAJORITY };
struct keep_best {
  int32_t count;   /* 0: none is kept for that */
  const char *set; /* its name */
  enum figure_kind figure;
  int64_t k; /* of FIGURE_PASS */
};

/* Does it evaluate anything at all? */
bool evaluation_wanted(const struct evaluation_config *c);
/* In this round?  `rounds`: the run's; the round of that number comes behind the last one. */
bool evaluation_due(const struct evaluation_config *c, int64_t rounds, int64_t round);
void evaluation_config_defaults(struct evaluation_config *c);
/* value NULL: there is none.  dataset: how the run's own lines are read. */
enum rc evaluation_config_read(struct evaluation_config *c, const struct json *value, const struct reading *dataset,
                               struct arena *arena, struct err *err);
/* After the run's own verifier has been read. */
void evaluation_config_judge(struct evaluation_config *c, const struct reward_rule *verifier);
void evaluation_config_write(const struct evaluation_config *c,
                             struct json_writer *w); /* a member; nothing where there is none */
/* "accuracy", "majority" or "pass@K". */
enum rc figure_read(enum figure_kind *figure, int64_t *k, const char *text, struct err *err);
enum { FIGURE_TEXT_MAX = 32 };
void figure_text(char out[FIGURE_TEXT_MAX], enum figure_kind figure, int64_t k);
/* value NULL: none. */
enum rc keep_best_read(struct keep_best *k, const struct json *value, const struct evaluation_config *c,
                       struct arena *arena, struct err *err);
void keep_best_write(const struct keep_best *k, struct json_writer *w); /* a member; nothing where there is none */

/* A set's name where it has none: the path up to the file's first dot. */
const char *evaluation_name_of(const char *path, struct arena *arena);

#endif
