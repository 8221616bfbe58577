/* The replier: one thread that writes whole answers, so that neither the engine nor an HTTP thread does.
 *
 *   engine: last job done --+
 *   streamer: stop text  ---+--> replier_take --> queue --> shape->whole --> http reply
 *
 * The queue has room for every open sample, so handing a call over never waits. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_REPLIER_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_REPLIER_H

#include "services/generation-server/requests/generate_call.h"

struct replier;

enum rc replier_start(struct replier **out, struct err *err);
/* The call, all of whose jobs have ended, is the replier's.  Any thread. */
void replier_take(struct replier *r, struct generate_call *call);
/* Answers what has been taken and ends the thread.  NULL is fine. */
void replier_stop(struct replier *r);

#endif
