/* The generation-server as a whole: its parts, how they are tied together, start, drain and stop.
 *
 *   coordinator <--heartbeat.c, leases.c--> engine.c <--staging.c--> trainer
 *                                              ^
 *                        clients --route_*.c---+--streamer, replier--> answers */
#ifndef LEASEHOLD_GENERATION_SERVER_API_SERVER_H
#define LEASEHOLD_GENERATION_SERVER_API_SERVER_H

#include "services/generation-server/api/server_options.h"

struct server;

enum rc server_start(struct server **out, const struct server_options *options, struct err *err);
int server_port(const struct server *s);
/* RC_OK, or why the engine has stopped computing (engine_failure). */
enum rc server_failure(struct server *s, struct err *err);
/* Hands leases back, lets plain requests finish up to drain_ms, stops everything and frees it. NULL is fine. */
void server_stop(struct server *s);

#endif
