/* The streamer: one thread that follows calls while they are decoded, writes their server-sent events and finds their
 * stop texts.
 *
 *   engine --token, sample->shown--> wake --> streamer: scan | take pieces | http_stream_write --> libmicrohttpd
 *     ^                                          |
 *     +------- text_over, abandoned -------------+
 *
 * The engine never waits for it: it counts tokens up and sets a flag; what the streamer has not told yet lies in the
 * job, which has room for all of it.  The streamer never waits for a reader: who leaves more than STREAM_UNSENT_MAX
 * bytes unread gets nothing new, later more at once, and is cut off when it takes nothing for too long. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_STREAMER_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_STREAMER_H

#include "services/generation-server/requests/replier.h"

struct streamer;

/* replier: gets the calls that are answered whole.  stall_ms: after so long a reader that takes nothing is cut off. */
enum rc streamer_start(struct streamer **out, struct replier *replier, int stall_ms, struct err *err);
/* Tells what is left and ends the thread; every call that it follows must be over.  NULL is fine. */
void streamer_stop(struct streamer *t);

/* For job->follower. */
const struct follower *streamer_follower(const struct streamer *t);
/* The call is the streamer's, once it is over too; before its jobs are submitted. */
void streamer_follow(struct streamer *t, struct generate_call *call);
/* From any thread, once, when the last job has ended: the caller must not touch the call any more. */
void streamer_over(struct streamer *t, struct generate_call *call);

#endif
