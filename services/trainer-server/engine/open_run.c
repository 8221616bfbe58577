/* Opens a run on all ranks, and publishes its version 0. */
#include "services/trainer-server/engine/open_run.h"

#include <string.h>

#include "common/base/log.h"
#include "services/trainer-server/board/authority.h"
#include "services/trainer-server/engine/learning.h"
#include "services/trainer-server/engine/run_config.h"
#include "services/trainer-server/engine/start_weights.h"
#include "services/trainer-server/engine/version.h"
#include "services/trainer-server/ranks/shared_arrays.h"

/* On all ranks, or on none when one refuses. */
static enum rc training_open(struct engine *e, const struct open_run *in, const struct optimizer_config *o,
                             const struct digest *digest, struct err *err) {
  struct buf payload = BUF_INIT;
  if (!ranks_alone(&e->ranks)) open_run_encode(in, &payload);
  enum rc rc = buf_check(&payload, err);
  if (rc == RC_OK) rc = ranks_begin(&e->ranks, e->learning.weights, learning_scratch(&e->learning), digest, err);
  if (rc == RC_OK) rc = ranks_tell(&e->ranks, &(struct order){.kind = ORDER_OPEN}, &payload, err);
  buf_free(&payload);
  if (rc != RC_OK) return rc;
  rc = learning_prepare(e, err);
  rc = ranks_agree(&e->ranks, rc, err);
  if (rc == RC_OK) learning_begin(e, o);
  return rc;
}

static enum rc open_answer(struct engine *e, struct job *job) {
  struct board_view v;
  board_attach(e->board, job->id, job->in.open.current_version, &v);
  authority_accepted(e->board, job->in.open.epoch, job->in.open.fence);
  job->out.open = (struct open_run_answer){
      .run = job->id, .version = v.version, .digest = v.digest, .replaying = board_replaying(&v)};
  return RC_OK;
}

enum rc open_run_job(struct engine *e, struct job *job, struct err *err) {
  const struct open_run *in = &job->in.open;
  struct optimizer_config o;
  struct unit_config unit;
  struct weights_blob *b = NULL;
  struct board_view v;
  board_view(e->board, &v);
  if (strcmp(v.run, in->run) == 0) return open_answer(e, job); /* opened since the handler looked */
  enum rc rc = run_config_map(&in->training, &unit, &o, err);
  if (rc != RC_OK) return rc;
  version_checkpoint_end(e);
  board_run_end(e->board);
  if (e->round.changed) /* by inner steps, or by a step that is not durable: "current" is the version */
    start_weights_back(e);
  learning_forget(e);
  e->run.unit = unit;
  e->run.seed = in->seed;
  rc = start_weights_load(e, &in->start, err);
  if (rc == RC_OK) rc = version_serialize(e, in->run, 0, false, &b, err);
  if (rc == RC_OK) rc = run_config_keep(&e->run, in, err);
  if (rc == RC_OK && run_config_trains(&e->run.training)) {
    rc = training_open(e, in, &o, &b->digest, err);
    if (rc == RC_OK) rc = version_checkpoint(e, b, NULL, err);
  }
  if (rc != RC_OK) {
    weights_blob_release(b);
    start_weights_back(e);
    return rc;
  }
  learning_show_run(e, &job->request, &b->digest);
  log_info("run %s opened (%s), version 0", in->run, in->training.objective);
  board_publish(e->board, b);
  return open_answer(e, job);
}
