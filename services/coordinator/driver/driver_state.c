/* Forgets what the driver keeps of a run, so that it is taken up again from the database. */
#include "services/coordinator/driver/driver_state.h"

void driver_drop_sent(struct driver *d) {
  batch_answers_reset(d->answers);
  d->sent.run = 0;
}

void driver_drop_ahead(struct driver *d) {
  batch_free(d->ahead);
  d->ahead = NULL;
}

void driver_forget_run(struct driver *d) {
  driver_drop_sent(d);
  driver_drop_ahead(d);
  run_context_release(d->context);
  d->context = NULL;
  d->verified_trainer = 0;
}
