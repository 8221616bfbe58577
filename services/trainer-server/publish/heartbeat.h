/* Fills the trainer's heartbeats and handles the coordinator's answers: epoch, fence, role and worker id go to the
 * board and the publisher.  common/client/registration.h decides when to register and when to send a heartbeat.  A
 * message with an unknown epoch or fence brings the next heartbeat forward. */
#ifndef LEASEHOLD_TRAINER_SERVER_PUBLISH_HEARTBEAT_H
#define LEASEHOLD_TRAINER_SERVER_PUBLISH_HEARTBEAT_H

#include "services/trainer-server/publish/publisher.h"

struct heartbeat;
struct heartbeat_options {
  const char *coordinator_url, *name, *advertise_url;
  const struct http_access *access; /* borrowed */
  const char *identity;            /* see identity.h; NULL: none */
  enum worker_exactness exactness; /* what the kernels promise */
  enum worker_device device;
  struct worker_fabric fabric;
};
/* Options' strings are borrowed. */
enum rc heartbeat_start(struct heartbeat **out, const struct heartbeat_options *options, struct board *board,
                        struct publisher *p, struct err *err);
void heartbeat_stop(struct heartbeat *h); /* NULL is fine */

#endif
