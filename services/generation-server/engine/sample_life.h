/* A sample's slot, pages and end, as the engine and its step change them.  On the engine's thread. */
#ifndef LEASEHOLD_GENERATION_SERVER_ENGINE_SAMPLE_LIFE_H
#define LEASEHOLD_GENERATION_SERVER_ENGINE_SAMPLE_LIFE_H

#include "services/generation-server/engine/decode_job.h"

struct engine;

/* A free slot must be there. */
void sample_enter_slot(struct engine *e, struct sample *s);
/* Pages and slot go back; tokens stay. */
void sample_evict(struct engine *e, struct sample *s);
/* The pages alone go back: the sample computes its positions again. */
void sample_drop_kv(struct engine *e, struct sample *s);
/* Publishes how many slots and pages are taken and how many samples wait. */
void samples_show(struct engine *e);
/* Publishes what has been written to the sample: its follower may read so far. */
void sample_show(struct engine *e, struct sample *s);
/* The sample has its last token; its job ends with its last sample. */
void sample_finish(struct engine *e, struct sample *s, enum finish_reason finish);

/* Ends a job before its samples are finished: those get FINISH_ABORT and keep their tokens. */
void decode_job_break_off(struct engine *e, struct decode_job *job, enum decode_job_end end);
/* The job's done callback runs once the step is over. */
void decode_job_ended(struct engine *e, struct decode_job *job, enum decode_job_end end);

#endif
