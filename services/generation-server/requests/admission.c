/* Lets plain requests in: checks that a model is there and ready, and keeps the budget of open samples and
 * positions. */
#include "services/generation-server/requests/admission.h"

#include "common/base/clock.h"
#include "services/generation-server/requests/model_names.h"

struct loaded_model *admission_model(struct admission *a, bool ready, struct err *err) {
  struct policy active;
  struct loaded_model *loaded = atomic_load(&a->loaded);
  if (!loaded) {
    err_set(err, RC_UNAVAILABLE, NULL,
            "the model is not loaded yet: no run of the coordinator has named a trainer to fetch it from");
    return NULL;
  }
  if (!ready) return loaded;
  if (atomic_load(&a->draining)) {
    err_set(err, RC_UNAVAILABLE, NULL, "the server is draining");
    return NULL;
  }
  if (engine_failure(loaded->engine, err) != RC_OK) {
    err->rc = RC_UNAVAILABLE;
    return NULL;
  }
  if (!engine_policy(loaded->engine, &active)) {
    err_set(err, RC_UNAVAILABLE, NULL, "no weights are loaded yet");
    return NULL;
  }
  return loaded;
}

enum rc admission_check_name(const struct admission *a, const struct loaded_model *loaded, const char *model,
                             struct err *err) {
  struct policy active = {0};
  engine_policy(loaded->engine, &active);
  return model_name_check(model, active.run, a->folder, err);
}

uint64_t admission_number(struct admission *a) { return atomic_fetch_add(&a->request_number, 1); }

/* --- the budget --- */

enum rc admission_check(const struct admission *a, struct err *err) {
  if (atomic_load(&a->samples_open) < LIMIT_QUEUED_REQUESTS) return RC_OK;
  return err_set(err, RC_FULL, NULL, "%d samples are open already", LIMIT_QUEUED_REQUESTS);
}

void admission_give_back(struct admission *a, int samples, int64_t positions) {
  atomic_fetch_sub(&a->samples_open, samples);
  atomic_fetch_sub(&a->positions_open, positions);
}

enum rc admission_take(struct admission *a, int samples, int64_t positions, struct err *err) {
  const int samples_before = atomic_fetch_add(&a->samples_open, samples);
  const int64_t positions_before = atomic_fetch_add(&a->positions_open, positions);
  if (samples_before + samples <= LIMIT_QUEUED_REQUESTS && positions_before + positions <= LIMIT_OPEN_POSITIONS)
    return RC_OK;
  admission_give_back(a, samples, positions);
  return err_set(err, RC_FULL, NULL, "%d samples of %lld positions are open already; the limits are %d and %d",
                 samples_before, (long long)positions_before, LIMIT_QUEUED_REQUESTS, LIMIT_OPEN_POSITIONS);
}

/* --- open requests --- */

void admission_enter(struct admission *a) { atomic_fetch_add(&a->requests_open, 1); }

void admission_leave(struct admission *a) { atomic_fetch_sub(&a->requests_open, 1); }

void admission_wait_empty(const struct admission *a, int64_t ms) {
  const int64_t until_ms = clock_monotonic_ms() + ms;
  while (atomic_load(&a->requests_open) > 0 && clock_monotonic_ms() < until_ms) clock_sleep_ms(5);
}
