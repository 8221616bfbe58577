/* The pool's state in memory: live workers, the identity that the trainer's place is kept for, and the pace that
 * dispatch goes by.
 *
 * Writer's thread only; core->pool.  Sized at start for workers_max workers.  It is lost with the process: workers
 * register again, and rates are measured again.  workers.c and trainer_place.c change it; other rooms call these
 * two. */
#ifndef LEASEHOLD_COORDINATOR_POOL_POOL_H
#define LEASEHOLD_COORDINATOR_POOL_POOL_H

#include <pthread.h>

#include "common/base/limits.h"
#include "common/base/metrics.h"
#include "common/wire/worker.h"
#include "services/coordinator/decide/frontier.h"
#include "services/coordinator/pool/granted.h"
#include "services/coordinator/pool/pace.h"
#include "services/coordinator/pool/prompt_lengths.h"
#include "services/coordinator/pool/registration_rate.h"
#include "services/coordinator/pool/waiting.h"
#include <stdatomic.h>

#include "services/coordinator/writer/core_state.h"

enum { WORKERS_KNOWN = 8192 };

/* The part of a live worker's state that changes too often, or means too little after a restart, to be read back from
 * the database. */
struct live_worker {
  int64_t id;
  char name[LIMIT_NAME_MAX];
  enum worker_kind kind;
  int32_t slots;
  enum worker_exactness exactness;
  enum worker_device device;
  char identity[LIMIT_NAME_MAX]; /* a trainer's; "": none */
  bool holder;                   /* of the trainer's place: trainer_place.h */
  int64_t fence;                 /* the holder's */
  bool ready;                    /* worker_ready changes it */
  bool owned;                    /* a token took its name */
  struct digest owner;           /* that token's holder */
  uint64_t origin;               /* of its address and holder, a hash: 0: unknown */
  uint64_t url, url_before;      /* hashes: of its URL, and of the last other one of its name, or 0 */
  bool used;                     /* rows may refer to its row: set before they are written, and never taken back */
  int64_t seen_ms;               /* monotonic */
  int64_t busy_slot_us;          /* as last reported, less what is carried to the next heartbeat (slot_time.h) */
  int64_t accounted_ms;          /* until when its slots' time was accounted for: monotonic */
  int64_t skew_us;               /* its clock less ours (clock_skew.h) */
  int64_t tokens_sampled;        /* as last reported */
  int64_t progressed_ms;         /* when that last was another number, it held no lease, or a result came: monotonic */
  int32_t held;                  /* samples of its leases, as of its last poll that had to know */
  struct steps_seen steps;       /* as last reported */
  struct digest reference;       /* a preprocessor's: of the weights that it last said to hold; zero: none */
  int64_t positions_refused;     /* it cannot run leases of so many positions or more; 0: none were refused */
  int64_t leases_given;          /* in answers since it registered */
  int32_t last_given;            /* of these, in the last answer with leases */
  int64_t last_given_ms[2];      /* by the wall clock: when it was made, and the one before it */
  int32_t untaken;               /* answers with leases since it last named one, in a heartbeat or a result */
  int64_t untaken_ms;            /* when the first was given, or until when it gets none: monotonic */
};

enum { SHARED_NAMES_MAX = 64, SHARED_NAME_MS = 600000 };

struct pool {
  struct live_worker *workers; /* [options.workers_max], in the order of their ids */
  int worker_count;
  int generating;                 /* generation-servers that are ready */
  int64_t slots;                  /* theirs */
  int preprocessing;              /* preprocessors that are */
  int64_t held;                   /* samples of their leases, as of each one's last poll */
  int64_t leases_due_ms;          /* no granted lease ends before: monotonic */
  char place_for[LIMIT_NAME_MAX]; /* since the start: the identity that the trainer's place is kept for; "": none */
  int64_t place_kept_until_ms;    /* monotonic */
  struct dispatch_rates rates;    /* of the active run */
  struct pace pace;
  struct prompt_lengths prompt_lengths;
  struct waiting waiting; /* of its open round */
  struct granted *granted; /* for any thread */
  _Atomic int64_t known[WORKERS_KNOWN]; /* for any thread: ids by their remainders, of workers that were found
                                         * registered */
  struct {                 /* for any thread: registrations.h */
    pthread_mutex_t mutex; /* guards the rest */
    struct registration_rate rate;
    struct {
      uint64_t name; /* a hash */
      int64_t at_ms; /* by the wall clock */
    } shared[SHARED_NAMES_MAX];
    unsigned shared_next;
  } registrations;
  int64_t activated_run, activated; /* the newest version that a server is known to have loaded */
  struct metric *m_granted, *m_lost, *m_workers, *m_slots, *m_silent, *m_passes_granted, *m_passes_done, *m_passes_lost;
};

enum rc pool_create(struct core *c, struct err *err);
void pool_destroy(struct core *c); /* also after a pool_create that failed */
/* What the worker's leases hold, as far as it is known now. */
void pool_note_held(struct pool *p, struct live_worker *w, int32_t samples);

#endif
