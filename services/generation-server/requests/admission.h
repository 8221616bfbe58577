/* Admission of plain requests: the model they run on, whether more are let in, and how much the open ones hold.
 *
 *   server.c:  sets `loaded` when the model is known, `draining` when it stops
 *   a request: admission_model --> admission_take --> admission_enter --> answered: admission_give_back, admission_leave
 *
 * Open requests are bounded by their samples, which the scheduler walks over, and by their positions, which take
 * memory.  Everything is atomic, so any thread may call anything at any time.  The server owns it; it outlives every
 * request. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_ADMISSION_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_ADMISSION_H

#include <stdatomic.h>

#include "services/generation-server/engine/loaded_model.h"

struct admission {
  _Atomic(struct loaded_model *) loaded; /* NULL while the model is unknown */
  atomic_bool draining;
  atomic_int requests_open; /* plain requests with the engine, the streamer or the replier */
  atomic_int samples_open;  /* of them */
  atomic_llong positions_open;
  atomic_ullong request_number;
  uint64_t start_seed; /* of requests that bring none */
  const char *folder;  /* --model's, a name of the model; NULL: none was given */
};

/* The loaded model, or NULL and a reason (RC_UNAVAILABLE). With `ready`, weights must be active and the server not
 * draining. */
struct loaded_model *admission_model(struct admission *a, bool ready, struct err *err);

/* RC_NOT_FOUND: the model that a request names is not the loaded one (model_names.h). */
enum rc admission_check_name(const struct admission *a, const struct loaded_model *loaded, const char *model,
                             struct err *err);

/* A number for each request: its seed if it brings none. */
uint64_t admission_number(struct admission *a);

/* Before the work of making jobs: RC_FULL when no sample would fit. */
enum rc admission_check(const struct admission *a, struct err *err);
/* RC_FULL when these samples and positions would exceed the budget. */
enum rc admission_take(struct admission *a, int samples, int64_t positions, struct err *err);
void admission_give_back(struct admission *a, int samples, int64_t positions);

/* Counts the requests that wait for their answer. */
void admission_enter(struct admission *a);
void admission_leave(struct admission *a);
/* Waits until no request is open, for at most this long. */
void admission_wait_empty(const struct admission *a, int64_t ms);

#endif
