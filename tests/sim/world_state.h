/* What is in a world, for the files that make it: world.c (randomness, events, trainer, accidents, the loop),
 * world_pool.c (generation-servers), world_coordinator.c (leases, groups, batches). */
#ifndef LEASEHOLD_TESTS_SIM_WORLD_STATE_H
#define LEASEHOLD_TESTS_SIM_WORLD_STATE_H

#include "tests/sim/world.h"

enum { WORLD_SERVERS = 64, EVENTS_MAX = 8192, LEASES_MAX = 32768, ITEMS_MAX = 1024, BATCHES_MAX = 1024 };

enum event_kind {
  POLL_ARRIVES,
  POLL_DUE,
  LEASES_ARRIVE,
  SAMPLE_ENDS,
  RESULT_ARRIVES,
  HEARTBEAT_LEAVES,
  HEARTBEAT_ARRIVES,
  HEARTBEAT_ANSWERED,
  GROUP_VERIFIED,
  BATCH_ARRIVES,
  BATCH_ENDS,
  BATCH_KNOWN,
  LOOK,
  ADMISSION,
  ACCIDENT,
  SERVER_JOINS,
  SERVER_THAWS,
  TRAINER_BACK
};

struct event {
  int64_t at_us;
  uint64_t number; /* first in, first out among equals */
  enum event_kind kind;
  int who;       /* server, group, batch or accident */
  uint32_t life; /* of the server or trainer when it was sent: a later life does not get it */
  int lease;     /* or the poll's number */
};

enum accident_kind { KILL, FREEZE, DRAIN, JOIN, TRAINER_KILL };
struct accident {
  enum accident_kind kind;
  int64_t at_us, length_us;
  uint32_t draw;
};

enum sim_sample_state { WAITING, LEASED, DONE };
struct sample {
  enum sim_sample_state state;
  int lease; /* the newest; -1: none */
  int64_t fence;
  double tokens, had; /* its length; handed back and continued */
};

enum sim_group_state { ABSENT, OPEN, SEALED, SUBMITTED, CONSUMED, CLOSED }; /* closed: filtered or evaluated */
struct group {
  enum sim_group_state state;
  struct waiting_group facts; /* what the database's columns hold */
  bool filtered;
  int size, sealings, consumed_lineage;
  int64_t leased_us, sealed_us, overtaken_us; /* -1: not (now) */
  double tokens;
  struct sample samples[WORLD_SAMPLES];
};

struct sim_lease {
  bool granted; /* else ended */
  int group, first, count, server;
  uint32_t life;
  int64_t fence, deadline_ms;
  int left; /* samples that its holder has not finished; -1: on its way there */
  bool finished[WORLD_SAMPLES];
};

struct item {
  int lease, sample;
  double ends; /* on the server's clock of tokens */
};

enum poll_state { POLL_NONE, POLL_SENT, POLL_PARKED, POLL_ANSWERED };
struct server {
  bool alive, frozen, known; /* known: registered, as the coordinator sees it */
  uint32_t life, messages, ends_number, poll_number;
  int slots, prefetch, live; /* live: samples held and not finished */
  int held;                  /* samples of its leases, as the coordinator sees it */
  int running_count, queued_count;
  struct item running[ITEMS_MAX], queued[ITEMS_MAX];
  double clock; /* tokens of a sample that ran since the beginning */
  int64_t at_us, seen_ms;
  double idle_us, slot_us;
  enum poll_state poll;
  int wanted;
};

struct batch {
  int groups[WORLD_GROUPS], count;
  double tokens;
};

struct world {
  struct world_config c;
  struct world_result *r;
  int64_t now_us;
  uint64_t numbers;
  int event_count;
  struct event events[EVENTS_MAX];
  int training_count, group_count, refills, open_groups; /* groups by index: training, refills, evaluation */
  struct group groups[WORLD_GROUPS];
  int lease_count;
  struct sim_lease leases[LEASES_MAX];
  int server_count;
  struct server servers[WORLD_SERVERS];
  int batch_count, at_trainer, lineage, queue_head, queue_tail, queue[BATCHES_MAX];
  struct batch batches[BATCHES_MAX];
  bool trainer_up, trainer_busy;
  struct accident accidents[WORLD_ACCIDENTS];
  bool dispatch_due;
  struct rate drain, latency, tokens;
  double starved_us, hoarded_us;
  struct admission_plan plan;
  int32_t place[WORLD_GROUPS]; /* in the plan's order, from 1; 0: none */
  int64_t admission_us;        /* when more is admitted is looked at; 0: not */
  struct admission_room room;
};

/* world.c */
enum stream { STREAM_PROMPT, STREAM_SAMPLE, STREAM_FILTER, STREAM_ACCIDENT, STREAM_MESSAGE, STREAM_CHAOS };
void world_fault(struct world *w, const char *format, ...) __attribute__((format(printf, 2, 3)));
double world_uniform(uint64_t seed, enum stream stream, uint32_t a, uint32_t b);
void world_at(struct world *w, int64_t at_us, enum event_kind kind, int who, uint32_t life, int lease);
/* A message's way between a server and the coordinator: half to one and a half times the mean. */
int64_t world_message_us(struct world *w, int server);
static inline int64_t world_now_ms(const struct world *w) { return w->now_us / 1000; }

/* world_pool.c */
static inline bool server_works(const struct server *s) { return s->alive && !s->frozen; }
void server_joins(struct world *w);
/* Lets time pass on it: before anything about it changes. */
void server_pass(struct world *w, int server);
/* Fills its slots from its queue, expects the next end, asks for more. */
void server_fill(struct world *w, int server);
/* Drops what it holds of a lease, or (-1) of all. */
void server_drop(struct world *w, int server, int lease);
void server_leases_arrive(struct world *w, int server);
void server_sample_ends(struct world *w, int server);
void server_heartbeat_answered(struct world *w, int server);
void server_freezes(struct world *w, int server, int64_t length_us);
void server_thaws(struct world *w, int server);
/* Tells the tokens that its unfinished samples have, so that they can be continued elsewhere. */
void server_hands_back(struct world *w, int server);

/* world_coordinator.c */
void world_coordinator_open(struct world *w);
/* How many samples a poll must be able to have now. */
int world_coordinator_grantable(const struct world *w);
void world_coordinator_dispatch(struct world *w);
void world_coordinator_poll(struct world *w, int server);
void world_coordinator_poll_due(struct world *w, int server, int number);
void world_coordinator_result(struct world *w, int lease);
void world_coordinator_heartbeat(struct world *w, int server);
void world_coordinator_drained(struct world *w, int server);
void world_coordinator_look(struct world *w);
void world_coordinator_admission(struct world *w);
void world_coordinator_verified(struct world *w, int group);
void world_coordinator_submit(struct world *w);
void world_coordinator_batch_known(struct world *w, int batch);

#endif
