/* Finds the versions whose checkpoints a run keeps for their evaluations (`keep_best`) or for queued runs that start
 * from them, and notes which ones the trainer says it has.
 *
 *   a round's step --kept_versions_stay--> submit-step: keep_versions --> the trainer prunes --> step's answer: checkpoints
 *   --kept_versions_store--> the table that a run's view shows
 *
 * The best have the highest figure of the named set; of equal ones the earlier.  A version that will be evaluated has a
 * checkpoint whatever checkpoint_every says (kept_versions_wanted), and its evaluation is in before the next step
 * prunes.
 *
 * A posted run may name its start as `best` or `latest`: kept_versions_find.
 *
 * Readers' connections or the writer's; kept_versions_store and _mark inside the writer's savepoint. */
#ifndef LEASEHOLD_COORDINATOR_RECORDS_KEPT_VERSIONS_H
#define LEASEHOLD_COORDINATOR_RECORDS_KEPT_VERSIONS_H

#include "services/coordinator/run/run_config.h"
#include "services/coordinator/store/store.h"

/* None without keep_best; arena memory. */
enum rc kept_versions_best(struct store *s, const struct run_config *config, int64_t run, struct json_i32s *out,
                           struct arena *arena, struct err *err);
/* The best, and those that queued runs start from, which may be of a run that is still pruning; arena memory. */
enum rc kept_versions_stay(struct store *s, const struct run_config *config, int64_t run, struct json_i32s *out,
                           struct arena *arena, struct err *err);
/* Where `start` names the best or the latest checkpoint of a run, its number in place of the word, as things stand now.
 * Nothing else is looked at: RC_INVALID where there is none.  A reader's connection. */
enum rc kept_versions_find(struct store *s, struct run_config *config, struct err *err);
/* The run's versions above config->start.version that have a checkpoint by now or will have one, newest first, though
 * the trainer has not said so yet. */
enum rc kept_versions_newer(struct store *s, const struct run_config *config, int64_t *out, size_t most, size_t *count,
                            struct err *err);
/* Pure: must this version have a checkpoint, so that it can be the best? */
bool kept_versions_wanted(const struct run_config *config, int64_t version);
/* The trainer's list, in place of the one before. */
enum rc kept_versions_store(struct store *s, const struct run_config *config, int64_t run,
                            const struct json_i32s *versions, struct err *err);
/* An evaluation is in: others may be the best now. */
enum rc kept_versions_mark(struct store *s, const struct run_config *config, int64_t run, struct err *err);

#endif
