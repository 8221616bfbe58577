/* The table of the trainer's endpoints; context is struct trainer *. */
#ifndef LEASEHOLD_TRAINER_SERVER_API_ROUTES_H
#define LEASEHOLD_TRAINER_SERVER_API_ROUTES_H

#include "common/http/server.h"

extern const struct http_route trainer_routes[];
extern const size_t trainer_route_count;

#endif
