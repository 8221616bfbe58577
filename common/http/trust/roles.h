/* The roles that tokens give (tokens.h), by which a route says who may call it.
 *
 *   admin     everything
 *   worker    a generation-server, rollout-agent or preprocessor: registers, holds leases, fetches weights
 *   trainer   a trainer-server, and the coordinator towards it: registers as the trainer, announces versions, takes batches
 *   viewer    reads
 *   push      the token that a generation-server hands out when it registers: with it one may push weights to this server
 *
 * openapi/ says the same of each operation (x-roles); `make api-check` compares both. */
#ifndef LEASEHOLD_HTTP_ROLES_H
#define LEASEHOLD_HTTP_ROLES_H

enum http_role {
  HTTP_ADMIN = 1,
  HTTP_WORKER = 2,
  HTTP_TRAINER = 4,
  HTTP_VIEWER = 8,
  HTTP_PUSH = 16,
  HTTP_ROLES_ALL = 31,
  HTTP_OPEN = 32 /* of a route alone: answered without a token */
};

#endif
