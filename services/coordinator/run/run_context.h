/* Everything that a run needs besides the database: its parsed configuration, the tokenizer, the datasets.
 *
 * Made by the driver's thread, then immutable except for the two caches of dataset order, one per thread; shared by the
 * driver and the writer by counting references, freed with the last reference.  After a restart it is made
 * again from the stored configuration, so it must hold nothing that the database, the trainer's files and the data
 * directory do not. */
#ifndef LEASEHOLD_COORDINATOR_RUN_RUN_CONTEXT_H
#define LEASEHOLD_COORDINATOR_RUN_RUN_CONTEXT_H

#include <stdatomic.h>

#include "common/base/arena.h"
#include "common/model/tokenizer/stop_text.h"
#include "services/coordinator/run/dataset.h"
#include "services/coordinator/run/run_config.h"

struct run_context {
  atomic_int users;
  int64_t run;
  int64_t created_ms; /* when it was posted; set by the driver before it is shared */
  struct arena arena; /* config and stop ids */
  struct run_config config;
  struct tokenizer *tokenizer;
  struct chat *chat; /* NULL: the model's template cannot be used */
  struct dataset *dataset;
  struct dataset *evaluation[EVALUATION_SETS_MAX]; /* of each set; NULL: none, or they are never sampled */
  int32_t vocabulary;                   /* the model's: sampled ids lie below */
  struct json_i32s stop_token_ids;      /* empty: the run ignores them */
  struct stop_texts stops;              /* a sample ends with the token that completes one */
  struct dataset_order writer_order, driver_order; /* each for its thread; the driver's: of a supervised run alone */
};

/* The model's files, as the trainer serves them; all but config and tokenizer may be empty. */
struct model_files {
  struct buf config, tokenizer, generation_config, tokenizer_config, chat_template;
};

/* Checks whether the run could be opened, by its configuration, its datasets and the model.  Keeps nothing.  files
 * NULL: there is no trainer to fetch them from, and only what needs no model is checked.  context_max: the longest
 * sequence that the trainer trains on.  watch: of the datasets' lines; RC_TIMEOUT when it has ended the check. */
enum rc run_context_check(const struct run_config *config, const struct model_files *files, int64_t context_max,
                          const char *data_dir, const struct dataset_watch *watch, struct err *err);
/* config_text: the stored, resolved configuration. Dataset paths are resolved inside data_dir. */
enum rc run_context_create(struct run_context **out, int64_t run, const char *config_text,
                           const struct model_files *files, const char *data_dir, struct err *err);
struct run_context *run_context_keep(struct run_context *c);
void run_context_release(struct run_context *c); /* NULL is fine */

bool run_trains_on_rollouts(const struct run_config *c); /* every other objective */
bool run_is_supervised(const struct run_config *c);      /* cross_entropy */
bool run_evaluates(const struct run_config *c);          /* evaluate */
/* The rule by which a group is judged: its set's, or else the run's. set < 0: the run's own dataset. */
const struct reward_rule *run_rule(const struct run_config *c, int set);
/* The temperature at which its samples are drawn. */
double run_temperature(const struct run_config *c, int set);
/* Has its loss a KL term against the run's version 0, whatever the round?  Then preprocessors may compute that one's
 * log-probabilities. */
bool run_has_reference(const struct run_config *c);
/* Does the trainer draw the run's samples again? */
bool run_checks_samples(const struct run_config *c);
/* Before their groups are sealed: in every mode but `inflight`, where the step's own pass does it. */
bool run_checks_groups(const struct run_config *c);
/* Whose log-probabilities are the reference's: the run's teacher, else version 0.  False: version 0. */
bool run_teacher(const struct run_config *c, struct digest *out);
/* Is a step's loss divided by the round's trained tokens, rather than by its samples? */
bool run_counts_tokens(const struct run_config *c);
/* Is it decided beforehand how its rounds go?  decide/admission.h */
bool run_plans_rounds(const struct run_config *c);
/* Are the weights that round makes pushed to the servers? */
bool run_publishes(const struct run_config *c, int64_t round);

/* The dataset's item of a cross-entropy unit's sample, and the unit's tokens, prompts included.  Driver's thread. */
const struct dataset_item *run_unit_item(struct run_context *x, int64_t round, int64_t unit, int sample);
int64_t run_unit_tokens(struct run_context *x, int64_t round, int64_t unit);

/* data_dir/path into out: RC_INVALID unless it is an existing regular file that lies inside data_dir. */
enum rc data_path_resolve(char *out, size_t size, const char *data_dir, const char *path, const char *field,
                          struct err *err);

/* What should be looked at although the run can go on, as an array of texts; start: what is to be said of the weights
 * that it began with, or "". */
void run_context_warnings(const struct run_context *c, const char *start, struct json_writer *w);
/* {"prompts", "left_out", "sources": [{"path", "prompts", "left_out"}, ...]}: what the run's dataset was found to
 * hold. */
void run_context_counts(const struct run_context *c, struct json_writer *w);

/* Logs what the run's verifier makes of the first lines' answers, each given as a completion: a gold that is read as
 * something else shows there. */
void run_context_preview(const struct run_context *c);

#endif
