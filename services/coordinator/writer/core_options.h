/* The options of a core, and the callbacks that it calls as transactions begin and time passes.  The writer knows no
 * worker, lease or round: the rooms that do stand above it, so main hands it their callbacks (rounds/tick.h has
 * them). */
#ifndef LEASEHOLD_COORDINATOR_WRITER_CORE_OPTIONS_H
#define LEASEHOLD_COORDINATOR_WRITER_CORE_OPTIONS_H

#include "common/base/clock.h"
#include "common/base/rc.h"

struct core;
struct http_access;

/* The writer looks at the time at least so often.  When it comes back more than three times as late, it was away and
 * puts deadlines off (expiry_stall): a test moves its clock by steps of this, with core_wake after each. */
enum {
  CORE_LOOK_MS = 100,
  CORE_POLLS_SPACING_US = 2 * 1000 * CORE_LOOK_MS /* parked polls are looked at no more often */
};

/* All on the writer's thread, or before it is started and after it has ended. */
struct core_callbacks {
  enum rc (*create)(struct core *c, struct err *err); /* the state of the rooms above: core->pool and core->rounds */
  void (*destroy)(struct core *c);                    /* also after a create that failed */
  enum rc (*begin)(struct core *c, struct err *err);  /* in the transaction that begins an epoch */
  /* In a savepoint: what has fallen due?  *next_ms, when to ask again, may be brought forward. */
  enum rc (*tick)(struct core *c, int64_t *next_ms, struct err *err);
  enum rc (*put_off)(struct core *c, int64_t ms,
                     struct err *err); /* in a transaction: nobody could be heard for so long */
  /* In a savepoint: as many groups were sealed, some in this transaction, as core_await_groups was told of.  *planned:
   * a batch takes them now. */
  enum rc (*sealed)(struct core *c, bool trainer_idle, bool *planned, struct err *err);
};

struct core_options {
  const char *db_path; /* ":memory:": nothing is kept, and nobody but execute functions can read it */
  const char *data_dir;
  const char *reward_hosts; /* that may be asked for rewards (rewards/reward_hosts.h); NULL or "": none */
  const char *chart_js; /* the file that the page draws charts with (api/route_page.c) */
  struct http_access *access; /* whose tokens are whose, and for calls to trainers; NULL: none are asked for or shown */
  int64_t lease_ttl_ms, heartbeat_ms, worker_ttl_ms, batch_tokens;
  int64_t workers_max;                    /* 0: 1024 */
  int64_t registrations_per_s;            /* new names of one address and token; 0: any number */
  int64_t check_ms;                       /* a posted run's datasets are checked for so long before it is `checking` */
  struct clock clock;                     /* that everything here decides by and stores; {0}: the machine's */
  const struct core_callbacks *callbacks; /* &tick_callbacks */
};

#endif
