/* The trainer's tie to the coordinator: one thread that registers, beats, and registers again when the coordinator
 * has forgotten it or has a new epoch. What it learns (epoch, fence, role, worker id) it gives to the trainer and the
 * publisher; every call has a deadline, and stopping cuts them short.  A message with an unknown
 * epoch or fence brings the next heartbeat forward. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_REGISTRATION_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_REGISTRATION_H

#include "services/trainer-server/publish/publisher.h"

struct registration;
struct registration_options {
  const char *coordinator_url, *token, *name, *advertise_url;
  const char *identity;            /* see identity.h; NULL: none */
  enum worker_exactness exactness; /* what the kernels promise */
  struct worker_fabric fabric;
};
/* Options' strings are borrowed. */
enum rc registration_start(struct registration **out, const struct registration_options *options, struct board *board,
                           struct publisher *p, struct err *err);
void registration_stop(struct registration *r); /* NULL is fine */

#endif
