/* Events of runs: kept in the database (a bounded ring per run), sent to the subscribers of GET /v1/runs/{id}/events
 * after the commit that made them.
 *
 * Writer: event_add in a transaction, hub_publish after it.  Any thread: hub_subscribe, which holds the hub's lock
 * while it writes past events, so that none is missed or sent twice.  Memory is bounded: a fixed number of subscribers,
 * with a few MiB unsent each (common/http/stream.c); one that reads too slowly is cut off and comes back with
 * Last-Event-ID.  An event must not be published before it is committed. */
#ifndef LEASEHOLD_COORDINATOR_VIEWS_EVENTS_H
#define LEASEHOLD_COORDINATOR_VIEWS_EVENTS_H

#include "common/http/server.h"
#include "services/coordinator/store/readers.h"

enum { EVENTS_KEPT = 2000, SUBSCRIBERS_MAX = 256 };

struct event {
  int64_t id, run;
  const char *type; /* "state" | "round" | "eval" */
  char *data;       /* one line of JSON, owned */
  bool last;        /* the run has ended: streams end after it */
  struct event *next;
};

/* Inserts and appends to *tail (the events of the transaction in hand). Takes over data, on failure too. */
enum rc event_add(struct store *s, struct event ***tail, int64_t run, const char *type, char *data, bool last,
                  int64_t wall_ms, struct err *err);
void events_free(struct event *head);

struct hub;
enum rc hub_create(struct hub **out, struct readers *readers, struct err *err);
void hub_destroy(struct hub *h); /* after http_server_stop; NULL is fine */
void hub_publish(struct hub *h, const struct event *head);
/* A comment line to every subscriber, so that proxies keep the connection. */
void hub_keep_alive(struct hub *h);
/* Suspends the request and streams: past events after `after` first; below 0: none, only those to come.  Replies with
 * an error itself. */
void hub_subscribe(struct hub *h, struct http_request *r, int64_t run, int64_t after);

#endif
