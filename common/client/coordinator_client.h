/* Typed calls to the coordinator, for workers.  Answers live in the caller's arena.  Every call has a deadline. */
#ifndef LEASEHOLD_CLIENT_COORDINATOR_CLIENT_H
#define LEASEHOLD_CLIENT_COORDINATOR_CLIENT_H

#include "common/http/client.h"
#include "common/wire/passes.h"

struct coordinator_client {
  struct http_client *http;
  const char *base_url;
};

enum rc coordinator_register(const struct coordinator_client *c, const struct worker_register *m,
                             struct worker_registered *out, struct arena *arena, int64_t deadline_ms, struct err *err);
enum rc coordinator_heartbeat(const struct coordinator_client *c, const char *worker_id,
                              const struct worker_heartbeat *m, struct worker_heartbeat_answer *out,
                              struct arena *arena, int64_t deadline_ms, struct err *err);
/* The worker leaves: the leases that it still holds are given to others at once. */
enum rc coordinator_leave(const struct coordinator_client *c, const char *worker_id, int64_t deadline_ms,
                          struct err *err);
/* deadline_ms should exceed m->wait_ms. */
enum rc coordinator_leases(const struct coordinator_client *c, const char *worker_id, const struct lease_request *m,
                           struct lease_answer *out, struct arena *arena, int64_t deadline_ms, struct err *err);
enum rc coordinator_put_result(const struct coordinator_client *c, const char *lease_id, const struct lease_result *m,
                               struct lease_result_answer *out, struct arena *arena, int64_t deadline_ms,
                               struct err *err);
/* deadline_ms should exceed m->wait_ms. */
enum rc coordinator_passes(const struct coordinator_client *c, const char *worker_id, const struct pass_request *m,
                           struct pass_answer *out, struct arena *arena, int64_t deadline_ms, struct err *err);
enum rc coordinator_put_pass(const struct coordinator_client *c, const char *pass_id, const struct pass_result *m,
                             struct lease_result_answer *out, struct arena *arena, int64_t deadline_ms,
                             struct err *err);
enum rc coordinator_announce_version(const struct coordinator_client *c, const struct version_announce *m,
                                     int64_t deadline_ms, struct err *err);

#endif
