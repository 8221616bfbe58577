/* Judges a generation-server that draws log-probabilities which are not finite: see nonfinite.h. */
#include "services/coordinator/checks/nonfinite.h"

#include <inttypes.h>
#include <stdio.h>

#include "services/coordinator/checks/accused.h"
#include "services/coordinator/decide/lag.h"
#include "services/coordinator/pool/workers.h"
#include "services/coordinator/rounds/run_life.h"
#include "services/coordinator/rounds/stream.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/journal.h"

static void say_undecided(char *out, size_t size, int64_t run, int64_t round, int64_t version) {
  const int told = snprintf(out, size,
                            "the weights of version %" PRId64
                            " give log-probabilities that are not finite, in round %s, and no other generation-server "
                            "is left that draws finite ones: ",
                            version, id_round(run, round).text);
  if (told < 0 || (size_t)told >= size) return;
  out += told;
  size -= (size_t)told;
  if (version == 0)
    snprintf(out, size, "the model that the run began with overflows, or is broken; start a run from another");
  else
    snprintf(out, size,
             "training has diverged; stop this run, and start one from an earlier version, by \"start\": {\"run\": "
             "\"%s\", \"version\": n} with n of its `checkpoints`, and a smaller training.lr or training.clip_norm",
             id_run(run).text);
}

enum rc nonfinite_settle(struct core *c, const struct lease_row *l, int64_t version, struct err *err) {
  const struct live_worker *w = worker_live(c, l->worker);
  const bool inflight = c->context->config.mode == MODE_INFLIGHT;
  struct accused accused = {.run = l->run};
  char undecided[ACCUSED_DETAIL_MAX], detail[ACCUSED_DETAIL_MAX];
  enum run_state state = RUN_RUNNING;
  bool held = false;
  enum rc rc = run_state_of(c->store, l->run, &state, err);
  if (rc != RC_OK || state != RUN_RUNNING || !w) return rc;
  rc = stream_round(c, l->run, l->round, &accused.round, err);
  if (rc != RC_OK) return rc;
  accused.since = inflight ? lag_oldest(accused.round, c->context->config.max_lag + 1) : accused.round;
  say_undecided(undecided, sizeof undecided, l->run, accused.round, version);
  accused.undecided = undecided;
  snprintf(detail, sizeof detail, "%s (%s) drew log-probabilities that are not finite from version %" PRId64,
           id_worker(w->id).text, w->name, version);
  accused_add(&accused, w->name, detail);
  rc = journal_incident(c, l->run, "nonfinite", l->id, detail, err);
  return rc == RC_OK ? accused_judge(c, &accused, accused.names[0], &held, err) : rc;
}
