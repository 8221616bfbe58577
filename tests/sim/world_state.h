/* What is in a world, for the files that make it:
 *
 *   world.c             randomness, the heap of events, accidents, the loop, the result
 *     world_pool.c      generation-servers: decoding, what they ask and answer
 *       world_versions.c in flight: versions are pushed to them and swapped while samples run
 *       world_results.c what is in a result, and its way through the coordinator
 *     world_trainer.c   the trainer, and the driver's turns
 *     world_knowledge.c what the coordinator knows before the first round
 *     world_checks.c    promises that are checked as messages pass; world_invariants.c asks the database
 *       world_stream.c  those of `mode: inflight`
 *       world_core.c    the coordinator's core, its clock, calls into it
 *       world_lengths.c lengths and costs: a function of the configuration
 *       world_chaos.c   small worlds full of accidents
 *
 * Memory: a world's arrays grow and are kept from run to run; messages under way are allocated one by one and freed
 * where they arrive. */
#ifndef LEASEHOLD_TESTS_SIM_WORLD_STATE_H
#define LEASEHOLD_TESTS_SIM_WORLD_STATE_H

#include "common/base/arena.h"
#include "common/wire/training.h"
#include "services/coordinator/driver/look.h"
#include "services/coordinator/driver/next.h"
#include "services/coordinator/run/run_context.h"
#include "services/coordinator/trainer/model_files.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/core_state.h"
#include "tests/sim/world.h"

enum { WORLD_ID_MAX = 48, POLL_WAIT_MS = 15000, AGAIN_US = 100000 };

/* ---- events ---- */

enum event_kind {
  REGISTER_ARRIVES,
  REGISTERED,
  POLL_ARRIVES,
  POLL_BROKEN,
  LEASES_ARRIVE,
  SERVER_LOADED,
  PUSH_ARRIVES,
  SAMPLE_ENDS,
  RESULT_ARRIVES,
  RESULT_ANSWERED,
  HEARTBEAT_LEAVES,
  HEARTBEAT_ARRIVES,
  HEARTBEAT_ANSWERED,
  LEAVE_ARRIVES,
  SERVER_JOINS,
  SERVER_THAWS,
  TRAINER_BEATS,
  TRAINER_BACK,
  JOB_ARRIVES,
  JOB_ENDS,
  JOB_KNOWN,
  VERSION_DURABLE,
  VERSION_ARRIVES,
  STEP_KNOWN,
  RUN_BEGINS,
  LOOK,
  ACCIDENT
};

struct world_event {
  int64_t at_us;
  uint64_t number; /* first in, first out among equals */
  enum event_kind kind;
  int who;       /* server or accident */
  uint32_t life; /* of the server or trainer that it is of or for */
  void *what;    /* a message, freed where it arrives */
};

enum accident_kind { KILL, FREEZE, DRAIN, JOIN, PREEMPT, TRAINER_KILL };
struct accident {
  enum accident_kind kind;
  int64_t at_us, length_us;
  uint32_t draw;
};

/* ---- generation-servers ---- */

/* Which versions drew a sample's tokens, as the ledger counts them; in flight only. */
enum { WORLD_SPANS = 24 };
struct drawn {
  int count;
  struct {
    int32_t start;
    int32_t version;
    bool fresh;
  } spans[WORLD_SPANS];
};

struct held_sample {
  double had; /* tokens that it began with */
  bool finished;
  struct drawn drawn;
};

/* A lease as its holder knows it. */
struct held {
  struct held *next; /* of its server's */
  char id[WORLD_ID_MAX];
  uint64_t fence;
  int64_t version, version_max;
  struct digest weights;
  int32_t round, ordinal, first, count;
  int left;     /* samples that have not ended */
  bool taken;   /* some of it ran here */
  bool posting; /* its result is on its way, or waits for an answer */
  uint32_t number;
  struct held_sample samples[];
};

/* PUT /v1/leases/{id}/result; outlives its sender. */
struct result_message {
  char worker[24], id[WORLD_ID_MAX];
  int64_t worker_id;
  uint64_t epoch, fence;
  struct digest weights;
  int64_t version;
  int32_t round, ordinal, first, count;
  uint32_t number; /* of the lease at its server */
  bool handed_back, repeat, lost_answer;
  struct told_sample {
    double had; /* tokens; its length: it is finished */
    struct drawn drawn;
  } samples[];
};

/* A version on its way to a server. */
struct pushed {
  int64_t version;
  struct digest digest;
};

struct beat_message {
  char worker[24];
  uint64_t epoch;
  bool has_loaded;
  struct digest loaded;
  int32_t slots_busy;
  int64_t busy_slot_us;
  struct step_sum steps[WIRE_STEP_SLOTS];
  size_t step_count;
  bool refused, lost_answer; /* refused: it must register again */
  int count;
  int lost_count;
  uint32_t *lost; /* numbers of leases */
  struct held_ref {
    char id[WORLD_ID_MAX];
    uint64_t fence;
    uint32_t number;
    int32_t ordinal, first, count, round;
  } leases[];
};

struct poll_message {
  int server;
  uint32_t life;
  char worker[24];
  uint64_t epoch;
  int32_t wanted;
  int64_t taken;
  bool has_loaded;
  struct digest loaded;
  bool dropped; /* nobody waits for the answer: it was lost, or the message came twice */
  /* The coordinator's side. */
  struct command *command; /* while it is parked */
  int parked_at;           /* in world.parked; -1 */
  struct poll_message *next;
  enum rc rc;
  struct buf body;
  struct arena arena;
  struct lease_answer answer;
};

struct register_message {
  char worker[24]; /* the answer */
  int64_t worker_id;
  uint64_t epoch;
  bool dropped;
};

struct item {
  struct held *lease;
  int sample;  /* in the lease */
  double ends; /* on the server's clock of tokens */
};

/* What the coordinator has answered a server's polls, by the world's own count: which of the answers it was told to be
 * lost. */
enum { LOST_ANSWERS = 8 };
struct answer_books {
  char worker[24];
  int64_t given, last, answered_ms; /* leases in all answers, and in the last one with leases */
  int64_t lost_ms[LOST_ANSWERS];    /* when these were made; 0: none */
  int lost_next;
};

enum poll_state { POLL_NONE, POLL_SENT };
struct server {
  bool alive, frozen, registering;
  uint32_t life; /* of the process */
  uint32_t messages, ends_number, lease_number, poll_number;
  char worker[24]; /* "": not registered */
  int64_t worker_id;
  uint64_t epoch;
  int64_t taken; /* leases found in answers since it registered */
  bool has_loaded, loading;
  struct digest loaded, staged; /* staged: pushed by the trainer */
  bool has_staged;
  int64_t version, coming; /* in flight: that is loaded, that is being loaded */
  int slots, prefetch, live; /* live: samples held and not finished */
  struct held *held;
  int held_count, running_count, queued_count, room;
  struct item *running, *queued; /* [room] */
  double clock;                  /* tokens of a sample that ran since the beginning */
  double stall_us;               /* prompts that are to be computed first */
  double slow;
  int64_t at_us, thaws_us;
  double idle_us, slot_us, busy_us;
  double step_count[WIRE_STEP_SLOTS], step_rows[WIRE_STEP_SLOTS], step_us[WIRE_STEP_SLOTS];
  enum poll_state poll;
  struct poll_message *asking; /* that the coordinator has, or NULL */
  struct answer_books answers;
};

/* ---- the trainer, and the driver ---- */

/* A batch, an inner step or a round's step. */
struct job {
  struct job *next;
  uint32_t life;
  int64_t round, number, version; /* version: that the round was sampled at */
  int64_t step;                   /* inner steps before it */
  bool is_inner, is_step;
  int count; /* of groups */
  int64_t *ordinals; /* with their rounds: place_key */
  uint64_t *contents; /* of a batch's groups */
  int64_t tokens;     /* as the ledger counts */
  double us, denominator;
  struct digest digest; /* of the weights afterwards */
  struct push_report *pushes;
  char (*push_ids)[24];
  size_t push_count;
  char worker[24];
  uint64_t epoch, fence;
};

struct trainer {
  bool up, busy;
  uint32_t life;
  char worker[24];
  int64_t worker_id;
  uint64_t epoch, fence;
  struct job *first, **last; /* queued; the first is computed while busy */
  struct digest weights;     /* in this life: after the last step that was taken */
  int64_t steps;             /* inner steps of the round that were taken */
  uint64_t sum;              /* of the groups since; sums commute */
  int64_t *held;             /* their ordinals */
  int held_count, held_room;
  int64_t durable_version;
  struct digest durable;
};

struct driver_books {
  bool due;
  int sealed, wanted;
  int64_t verified; /* the trainer that the run was opened at; 0: none */
  int64_t run, round, trainer;
  struct round_job newest;
  int at_trainer, pending;
  int64_t step_round; /* that is in step at the trainer; -1: none */
};

/* ---- the ledger's mirror: what was told to the pool ---- */

struct mirror {
  int64_t fence, worker, renewed_ms, granted_ms;
  int64_t kept; /* tokens that were handed back */
  bool granted; /* neither answered nor handed back */
  bool done;
  int64_t version_max, version_first; /* of the lease; of the oldest token that is kept, or of a sample that is done */
};
struct group_books {
  int done;
  int64_t overtaken_us; /* -1: not */
  bool closed, sealed, trained, lagged;
  int64_t version_first; /* once it is closed */
};
/* Of the groups of one round, by their places. */
struct block {
  int room;
  struct mirror *mirror; /* [room * samples] */
  struct group_books *books;
};

struct world {
  struct world_config c;
  struct world_result *r;
  struct model_files files;
  char dir[64];
  uint64_t ledgers;

  int64_t now_us;
  uint64_t numbers;
  int event_count, event_room;
  struct world_event *events;
  struct accident accidents[WORLD_ACCIDENTS];

  struct core *core;
  struct run_context *context;
  struct poll_message *answered, **answered_last;
  struct poll_message **parked;
  int parked_count, parked_room;

  int server_count, server_room;
  struct server *servers;
  int *server_of; /* [worker id] */
  int server_of_room;

  struct trainer trainer;
  struct driver_books driver;

  int64_t round; /* that is open */
  struct admission_room room;
  struct block blocks[WORLD_ROUNDS];        /* of the open round only, but in flight */
  struct digest versions[WORLD_ROUNDS + 2]; /* that were made, by their number */
  int64_t version_count;
  bool generating, over;
  struct world_round *now; /* in the result */
  double idle_us, slot_us;
  int since_check;
  int64_t changes;
};

/* world.c */
enum stream {
  STREAM_PROMPT,
  STREAM_SAMPLE,
  STREAM_FILTER,
  STREAM_ACCIDENT,
  STREAM_MESSAGE,
  STREAM_CHAOS,
  STREAM_SERVER,
  STREAM_LIE,
  STREAM_PUSH
};
void world_fault(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
uint32_t world_draw(uint64_t seed, enum stream stream, uint32_t a, uint32_t b);
double world_uniform(uint64_t seed, enum stream stream, uint32_t a, uint32_t b);
void world_at(struct world *w, int64_t at_us, enum event_kind kind, int who, uint32_t life, void *what);
/* A message's way between a server and the coordinator: half to one and a half times the mean. */
int64_t world_message_us(struct world *w, int server);
/* Draws for one message: is it lost, does it come twice? */
bool world_loses(struct world *w, int server);
bool world_doubles(struct world *w, int server);
/* Is this message to be sent with a lie before? */
bool world_lies(const struct world *w);
void *world_room(void *items, int *room, int wanted, size_t size);

/* world_lengths.c */
double world_length(const struct world_config *c, int64_t round, int64_t ordinal, int sample);
double world_grain(const struct world_config *c);
int64_t world_recorded(const struct world_config *c, double tokens); /* tokens in the ledger of a whole sample */
/* Of a sample that has come so far, and not to its end. */
int64_t world_handed_back(const struct world_config *c, int64_t round, int64_t ordinal, int sample, double had);
bool world_filtered(const struct world_config *c, int64_t round, int64_t ordinal);

/* world_core.c */
bool world_core_open(struct world *w);
void world_core_close(struct world *w);
/* Carries out a command; its answer, if wanted, is appended. */
enum rc world_call(struct world *w, command_execute execute, void *message, const char *id, struct buf *answer,
                   struct err *err);
int64_t world_number(struct world *w, const char *sql, const struct bind *binds, size_t count);
#define WORLD_NUMBER(w, sql, ...) world_number(w, sql, BINDS(__VA_ARGS__))
static inline int64_t world_now_ms(const struct world *w) { return w->now_us / 1000; }
int64_t world_wall_ms(const struct world *w);
/* Where a group is in mirror and books; -1: nowhere. */
int world_place(const struct world *w, int64_t ordinal);
int world_places(const struct world *w);

/* world_pool.c */
static inline bool server_works(const struct server *s) { return s->alive && !s->frozen; }
void server_joins(struct world *w);
void servers_drop_all(struct world *w);
/* Lets time pass on it: before anything about it changes. */
void server_pass(struct world *w, int server);
void server_freezes(struct world *w, int server, int64_t length_us);
void server_ends(struct world *w, int server, bool in_good_order);
void server_preempts(struct world *w, int server, uint32_t draw);
/* Its slots are filled, and it asks for more. */
void server_fills(struct world *w, int server);
double server_tokens(const struct world *w, const struct server *s, const struct held *l, int sample);
void server_hands_back(struct world *w, int server, struct held *l);
/* It is not about to ask again later, but now. */
void server_asks_now(struct world *w, int server);
void server_event(struct world *w, const struct world_event *e);
void server_message_free(const struct world_event *e);
/* Hands out what the coordinator has answered to polls. */
void polls_settle(struct world *w);

/* world_versions.c: in flight */
/* From now on this version draws the sample's tokens.  from: how many there are. */
void drawn_by(struct world *w, struct drawn *d, int64_t from, int64_t version, bool fresh);
void server_activates(struct world *w, int server, int64_t version, const struct digest *digest);
/* What is current, in a poll's answer; nothing: without leases. */
void server_is_told(struct world *w, int server, const struct current_version *v, bool nothing);
/* After a version was announced: it is pushed to these, each in its own time. */
void versions_push(struct world *w, const struct job *j);

/* world_trainer.c */
void trainer_registers(struct world *w);
void trainer_dies(struct world *w, int64_t length_us);
void trainer_event(struct world *w, const struct world_event *e);
void trainer_message_free(const struct world_event *e);
void trainer_forgets(struct world *w);
/* The driver's turns, as long as one is due. */
void driver_acts(struct world *w);
/* world_knowledge.c: what the coordinator is told before the first round, which has just been opened. */
void world_tell(struct world *w);
/* world.c: a round was opened. */
void round_opens(struct world *w, int64_t round);

/* world_results.c: judges a result and sends the answer back, or frees it. */
void result_arrives(struct world *w, int server, uint32_t life, struct result_message *m);

/* world_checks.c */
void checks_round(struct world *w);
void checks_forget(struct world *w);
/* NULL: it is not known to the world, or of a round that is over. */
struct group_books *books_of(struct world *w, int64_t round, int64_t ordinal);
struct mirror *mirror_of(struct world *w, int64_t round, int64_t ordinal, int sample);
void checks_polled(struct world *w, const struct poll_message *m);
void checks_granted(struct world *w, const struct poll_message *first); /* of one commit */
void checks_renewed(struct world *w, const struct beat_message *m);
/* Before and after the coordinator has judged a result. */
bool checks_result_stands(struct world *w, const struct result_message *m);
void checks_result(struct world *w, const struct result_message *m, bool stands, enum rc rc, bool repeated);
/* Nobody with an idle slot waits for samples that may be granted. */
void checks_conserving(struct world *w);
void checks_database(struct world *w);

/* world_stream.c: in flight */
void stream_lease(struct world *w, const struct poll_message *p, const struct lease *l);
/* The version has become current. */
void stream_version(struct world *w, int64_t version);
/* What the step takes, as its message is made. */
void stream_step(struct world *w, const struct job *j);
/* Whether it is time to ask what may be granted: a look goes through the groups that are ahead, so it is taken the more
 * rarely the more there may be. */
bool stream_looks(const struct world *w);
/* Samples that a server with this version must be able to have now. */
int64_t stream_grantable(struct world *w);
void stream_bounds(struct world *w);
void stream_end(struct world *w);
/* Which version drew the token, as its log-probability tells. */
float stream_logprob(float logprob, int64_t version);
int64_t stream_drawn_by(float logprob);

#endif
