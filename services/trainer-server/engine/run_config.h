/* A run's configuration: checked for this trainer, turned into the model module's configurations, and kept while the
 * run is open.  Any thread may check it; only the engine's keeps it. */
#ifndef LEASEHOLD_TRAINER_SERVER_ENGINE_RUN_CONFIG_H
#define LEASEHOLD_TRAINER_SERVER_ENGINE_RUN_CONFIG_H

#include "services/trainer-server/engine/engine.h"
#include "services/trainer-server/engine/memory.h"

enum { CHUNK_TOKENS_MIN = 2 };

/* False: it evaluates. */
bool run_config_trains(const struct training_config *c);
/* Its batches bring behaviour log-probabilities. */
bool run_config_takes_behaviour(const struct training_config *c);
/* Its batches may bring the reference's log-probabilities; with a teacher they must. */
bool run_config_takes_reference(const struct training_config *c);
/* What a run needs beside what every run does; pure. */
struct frozen_weights run_config_frozen(const struct training_config *c);
/* The wire's names and numbers as the model module's configurations; pure. */
enum rc run_config_map(const struct training_config *c, struct unit_config *unit, struct optimizer_config *o,
                       struct err *err);
/* A run that this trainer can carry out, apart from what it starts from; pure. */
enum rc run_config_check(const struct trainer_options *options, const struct open_run *m, struct err *err);
/* The run's identity (trainer_run_digest in trainer.h). */
enum rc run_config_digest(struct digest *out, const struct open_run *m, struct err *err);
/* Copies what outlives the request. */
enum rc run_config_keep(struct current_run *run, const struct open_run *m, struct err *err);

#endif
