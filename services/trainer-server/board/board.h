/* The board: what the engine shows to everybody else.
 *
 *   engine        --version, run, busy-->      board  --view, published weights--> handlers, publisher, registration
 *   registration  --epoch, fence, role-->             --whose messages are taken (authority.h)--> handlers
 *
 * Handlers copy the view out under `lock`; the engine's thread writes it, and what the coordinator says of epoch and
 * fence comes from the registration's thread.  Nothing here waits for anything but that lock.
 *
 *   READY <--a step reaches the version that the coordinator recorded-- REPLAYING
 *     `--------an opening names a newer version than the one held---------^
 *
 * Of the published weights it holds the current version, and remembers the one before while answers still read it; see
 * weights_blob.h for how many there can be. */
#ifndef LEASEHOLD_TRAINER_SERVER_BOARD_BOARD_H
#define LEASEHOLD_TRAINER_SERVER_BOARD_BOARD_H

#include <stdatomic.h>

#include "common/base/metrics.h"
#include "services/trainer-server/board/change_history.h"
#include "services/trainer-server/board/weights_blob.h"

struct board_view {
  char run[LIMIT_NAME_MAX]; /* "" before the first run */
  int64_t version;
  struct digest digest;
  uint64_t epoch, fence; /* what messages must carry: see authority.h */
  bool registered;       /* the coordinator gave them; false: they are the newest that were accepted */
  bool stands_by;        /* registered, but another trainer holds the place */
  bool busy;
  struct digest run_digest; /* of the run's seed and training: see trainer_run_digest */
  int chunk_tokens;         /* the run's: the longest sample it takes */
  bool takes_behaviour;     /* the run's batches bring behaviour log-probabilities */
  bool has_reference;       /* it has a KL term against its version 0, whose digest follows */
  struct digest reference_digest;
  int frozen_copies;        /* of weights, which the run keeps beside the current ones */
  /* Replaying from replay_from on while version < replay_to, the version that the coordinator recorded. */
  int64_t replay_from, replay_to;
  int64_t attached_us; /* CLOCK_MONOTONIC when the coordinator opened the run; 0: not yet, or it took its last step */
};
static inline bool board_replaying(const struct board_view *v) { return v->version < v->replay_to; }

struct board { /* the fields are board.c's and authority.c's */
  bool has_coordinator;
  atomic_bool in_doubt; /* see authority_take_doubt */
  struct metric *metric_version, *metric_replaying;
  struct change_history changes; /* what the last versions changed; any thread */

  pthread_mutex_t lock; /* guards all below */
  struct board_view view;
  struct weights_blob *current;

  struct weights_blob *superseded; /* the engine's thread's: the one before, until another is serialized */
};

/* has_coordinator: false, messages are taken from anybody. */
void board_init(struct board *b, bool has_coordinator);
void board_free(struct board *b);

void board_view(struct board *b, struct board_view *out);
/* RC_CONFLICT for another run or version than the current. */
enum rc board_check_version(struct board *b, const char *run, int64_t version, struct err *err);
/* Begins to read the current version's bytes; end with weights_blob_read_end.  RC_NOT_FOUND, RC_CONFLICT when the
 * version is superseded, or RC_UNAVAILABLE when a replay is to reach it.  run "" matches any. */
enum rc board_read_weights(struct board *b, const char *run, int64_t version, struct weights_blob **out,
                           struct err *err);

/* --- the engine's thread --- */
void board_busy(struct board *b, bool busy);
/* The run that the next board_publish is of: the view's fields of these names. */
struct board_run {
  struct digest run_digest;
  int chunk_tokens;
  bool takes_behaviour, has_reference;
  struct digest reference_digest;
  int frozen_copies;
};
void board_run_begin(struct board *b, const struct board_run *run);
/* From here on no message of the old run is taken, even if the new one cannot be opened. */
void board_run_end(struct board *b);
/* The coordinator has opened `run`, and has recorded current_version of it: replaying begins, or its end moves up, when
 * that is newer than what is held.  *out is the view afterwards; nothing changes when another run is current.  Handlers
 * call it too. */
void board_attach(struct board *b, const char *run, int64_t current_version, struct board_view *out);
/* The run took its last step: the engine waits for another run. */
void board_detach(struct board *b);
/* Before another version is serialized: ends the answers that still read a superseded one.  RC_UNAVAILABLE while one is
 * still being pushed; a coordinator takes no step before it has heard of the last one's pushes, so this passes. */
enum rc board_make_room(struct board *b, struct err *err);
/* Called while changes are made: there are `made` bytes of them so far, and at most `most` may there be together with
 * the older ones, of which the oldest are dropped.  Any thread. */
void board_make_room_for_changes(struct board *b, size_t made, size_t most);
/* Makes it the version that everybody sees, and takes over the caller's hold.  Room has been made for it. */
void board_publish(struct board *b, struct weights_blob *blob);
/* The current version: only the engine replaces it, so it stays while the engine's thread looks at it. */
const struct weights_blob *board_current(const struct board *b);

#endif
