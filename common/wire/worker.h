/* Messages between workers (generation-servers, trainer-servers, preprocessors) and the coordinator: registration,
 * heartbeat, the current version.  Every X_encode appends JSON to a buf; every X_decode reads a parsed body into memory
 * of the arena.  Unknown keys are refused in requests and in answers. */
#ifndef LEASEHOLD_WIRE_WORKER_H
#define LEASEHOLD_WIRE_WORKER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/base/limits.h"
#include "common/base/rc.h"
#include "common/json/json.h"
#include "common/wire/interval.h"

enum worker_kind {
  WORKER_GENERATION,
  WORKER_TRAINER,
  WORKER_PREPROCESS /* a trainer-server that computes passes (passes.h): it trains nothing, so it has no place to
                     * hold */
};

/* The promise of a worker's kernels.  "invariant": a row's bits do not depend on the other rows; "fastest": they
 * may; "foreign": a foreign engine samples for the worker, and its arithmetic is unknown. */
enum worker_exactness { WORKER_INVARIANT, WORKER_FASTEST, WORKER_FOREIGN };

/* What a worker's kernels run on.  Kinds have bits of their own; of one kind all levels and models agree. */
enum worker_device { WORKER_CPU, WORKER_CUDA };

/* A faster way than HTTP to reach a process.  Processes with the same name and kind of fabric reach each other. */
struct worker_fabric {
  const char *name; /* NULL: nothing; like a worker's name */
  const char *kind; /* "mpi", "nccl" */
  int64_t place;    /* where in it; 0 where the kind has no places */
};

/* The holder among trainers is given work; a standby waits until the holder of the place is gone. */
enum worker_role { ROLE_NONE, ROLE_HOLDER, ROLE_STANDBY }; /* absent | "holder" | "standby" */

/* POST /v1/workers. A generation-server's or preprocessor's name that registers again is a new incarnation: it gets a
 * new id, the old one's leases are re-issued.  A trainer is known by its identity; one without is known by its name. */
struct worker_register {
  const char *name;      /* "gen-1": letters, digits, '.', '_', '-' */
  enum worker_kind kind; /* "generation" | "trainer" | "preprocess" */
  const char *url;       /* where its own API answers: "http://host:port", or https */
  int32_t slots;         /* decode slots; 0 for a trainer and a preprocessor */
  enum worker_exactness exactness;
  enum worker_device device; /* "cpu", also when absent | "cuda" */
  struct worker_fabric fabric;
  /* A generation-server's: a client that shows it may push weights to this server, and it is good for nothing else.
   * The coordinator tells the trainer, who so needs to show no token of its own.  In the characters of a name; NULL:
   * none is asked for. */
  const char *push_token;
  const char *identity; /* kept by a trainer in its state directory, in the characters of a name; NULL: none */
};

struct worker_registered {
  const char *worker_id; /* "w3" */
  uint64_t epoch;        /* the coordinator's; every later message carries it */
  uint64_t fence;        /* a trainer's fence: it refuses messages with another one */
  enum worker_role role; /* a trainer's */
  int32_t heartbeat_ms, worker_ttl_ms;
};

/* The weights that the coordinator declares current; absent (has false) when no run is active. */
struct current_version {
  bool has;
  const char *run; /* "r7" */
  int64_t version;
  struct digest digest;
  const char *trainer_url; /* where to pull: {trainer_url}/v1/weights/{version}?run={run} */
};

struct lease_ref {
  const char *id;
  uint64_t fence;
};

/* Decode steps of 2^(slot-1) + 1 to 2^slot rows: how many, the sum of their rows, the time that they took. */
enum { WIRE_STEP_SLOTS = 16 }; /* the last one has the larger steps too */
struct step_sum {
  int32_t slot;
  int64_t steps, rows, us;
};

/* POST /v1/workers/{id}/heartbeat */
struct worker_heartbeat {
  uint64_t epoch;
  bool ready, draining;
  bool has_loaded; /* weights are loaded: loaded_digest is valid */
  struct digest loaded_digest;
  int32_t slots_busy;
  int64_t busy_slot_us;     /* sum over slots of time spent on leased samples since registration */
  int64_t tokens_sampled;   /* since registration */
  struct lease_ref *leases; /* held: renewed; a preprocessor's are passes */
  size_t lease_count;
  int64_t sent_us; /* the sender's wall clock, to see how far it is off; 0: not told */
  /* The worker's time since the last heartbeat that was answered with 200, ordered and without overlaps.  A server that
   * got no answer sends them again, with later ones; stored intervals are not counted twice. */
  struct interval *intervals;
  size_t interval_count;
  struct step_sum *steps; /* since registration, each slot at most once; a server that does not measure tells none */
  size_t step_count;
};

struct worker_heartbeat_answer {
  uint64_t epoch;
  const char **lost; /* ids of leases and passes that are no longer this worker's: drop them */
  size_t lost_count;
  bool run_active; /* a run samples or trains; if not, current may still be the last run's */
  struct current_version current;
  enum worker_role role; /* a trainer's; sent with its fence, which grows when the trainer becomes the holder */
  uint64_t fence;
};

void worker_register_encode(const struct worker_register *m, struct buf *out);
enum rc worker_register_decode(struct worker_register *m, const struct json *body, struct arena *arena,
                               struct err *err);
void worker_registered_encode(const struct worker_registered *m, struct buf *out);
enum rc worker_registered_decode(struct worker_registered *m, const struct json *body, struct arena *arena,
                                 struct err *err);
void worker_heartbeat_encode(const struct worker_heartbeat *m, struct buf *out);
enum rc worker_heartbeat_decode(struct worker_heartbeat *m, const struct json *body, struct arena *arena,
                                struct err *err);
void worker_heartbeat_answer_encode(const struct worker_heartbeat_answer *m, struct buf *out);
enum rc worker_heartbeat_answer_decode(struct worker_heartbeat_answer *m, const struct json *body, struct arena *arena,
                                       struct err *err);

/* {"name","kind","place"} or null; used in the list of workers too. */
void worker_fabric_write(const struct worker_fabric *m, struct json_writer *w);
/* {"run","version","digest","trainer_url"} or null; used inside other messages. */
void current_version_write(const struct current_version *m, struct json_writer *w);
enum rc current_version_read(struct current_version *m, const struct json *value, struct arena *arena, struct err *err);

const char *worker_kind_name(enum worker_kind k);
const char *worker_exactness_name(enum worker_exactness e);
const char *worker_device_name(enum worker_device d);
const char *worker_role_name(enum worker_role r); /* NULL for ROLE_NONE */

#endif
