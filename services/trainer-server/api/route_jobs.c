/* GET /v1/batches/{id} and GET /v1/steps/{id}: the job's status, or a long poll (?wait_ms=) until it ends.  A batch's
 * log-probabilities are left out where ?logprobs=0 says that their digest is enough; ?entropies=1 adds the entropies
 * behind them; ?form=tensors makes the answer safetensors, which is what the coordinator asks for. */
#include <string.h>

#include "services/trainer-server/api/handlers.h"
#include "services/trainer-server/engine/trainer.h"

static enum rc check_form(struct http_request *r, struct err *err) {
  const char *form = http_query(r, "form");
  if (!form || strcmp(form, "json") == 0 || strcmp(form, "tensors") == 0) return RC_OK;
  return err_set(err, RC_INVALID, "form", "expected json or tensors, got '%.40s'", form);
}

static void answer(struct http_request *r, struct trainer *t, enum job_kind kind) {
  struct err err = {0};
  int64_t wait_ms, with_logprobs, with_entropies;
  if (http_query_i64(r, "wait_ms", 0, 0, LIMIT_WAIT_MS_MAX, &wait_ms, &err) != RC_OK ||
      (kind == JOB_BATCH && (http_query_i64(r, "logprobs", 1, 0, 1, &with_logprobs, &err) != RC_OK ||
                             http_query_i64(r, "entropies", 0, 0, 1, &with_entropies, &err) != RC_OK ||
                             check_form(r, &err) != RC_OK))) {
    http_fail(r, &err);
    return;
  }
  jobs_answer(trainer_jobs(t), http_param(r, "id"), kind, r, wait_ms);
}

void handle_get_batch(struct http_request *r, void *context) { answer(r, context, JOB_BATCH); }
void handle_get_step(struct http_request *r, void *context) { answer(r, context, JOB_STEP); }
