/* A worker's tie to the coordinator: one thread that registers, sends heartbeats, and registers again when the
 * coordinator does not know the worker any more (404, 410) or has a new epoch (409).
 *
 *   UNREGISTERED --POST /v1/workers--> REGISTERED --404, 409, 410--> UNREGISTERED
 *                                      REGISTERED --DELETE /v1/workers/{id}--> gone
 *
 * Owns the worker's id, the epoch and the thread.  Both kinds of worker use it; the callbacks, which run on this
 * thread, make their messages and handle the answers.  Every call has a deadline, every failure a pause that grows, and
 * a worker that is forgotten before its first heartbeat was answered (two of them under one name) waits before it
 * registers again.  The first failure of a series is logged; that the coordinator has not started yet, as a warning
 * only when it takes long. */
#ifndef LEASEHOLD_CLIENT_REGISTRATION_H
#define LEASEHOLD_CLIENT_REGISTRATION_H

#include "common/client/coordinator_client.h"

struct registration;

struct registration_options {
  const char *coordinator; /* borrowed, as are the strings of `worker` */
  struct worker_register worker;
  const struct http_access *access; /* borrowed */
  bool beat_at_once;    /* the first heartbeat follows a registration without a pause */
  int64_t retry_ms_max; /* the longest pause after a failure */
  void (*registered)(void *context, const struct worker_registered *answer);
  /* Fills what a heartbeat tells; the epoch is in it already.  Memory that m points to may live in the arena. */
  enum rc (*tell)(void *context, struct worker_heartbeat *m, struct arena *arena, struct err *err);
  /* The heartbeat `m` was answered. */
  void (*answered)(void *context, const struct worker_heartbeat *m, const struct worker_heartbeat_answer *answer);
  /* NULL, or asked during a pause: is there reason to ask the coordinator before the next heartbeat is due? */
  bool (*in_doubt)(void *context);
  void *context;
};

/* What is said of a failure; `said`: what was said of this series of failures already; waited_ms: since the start, if
 * the worker has never been registered, else -1.  Services are started in any order, so waiting a while is nothing to
 * warn of. */
enum registration_word { SAY_NOTHING, SAY_WAITING, SAY_WARNING };
enum registration_word registration_word(enum rc failure, int64_t waited_ms, enum registration_word said);

/* --name and --advertise-url, before a service starts: what the coordinator would refuse for ever, and a worker's name
 * is a folder's too.  "": a default is made later.  RC_INVALID names the flag. */
enum rc registration_check(const char *name, const char *advertise_url, struct err *err);
enum rc registration_start(struct registration **out, const struct registration_options *options, struct err *err);
/* Send a heartbeat now: something changed that the coordinator should know. */
void registration_poke(struct registration *r);
/* The coordinator told another thread that it does not know this worker: register again. */
void registration_stale(struct registration *r);
/* 0 before the first registration. */
uint64_t registration_epoch(struct registration *r);
/* Ends the thread and deregisters: the coordinator then gives the worker's work to others at once. */
void registration_leave(struct registration *r);
/* Ends the thread, cutting a call short.  NULL is fine. */
void registration_stop(struct registration *r);

#endif
