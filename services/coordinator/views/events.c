/* Stores the events of runs, and sends them to those who have subscribed to a run. */
#include "services/coordinator/views/events.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "services/coordinator/store/ids.h"
#include "services/coordinator/decide/states.h"

enum { STREAM_MS = 24 * 3600 * 1000 };

struct subscriber {
  struct http_request *request;
  int64_t run, seen;
};

struct hub {
  struct readers *readers;
  pthread_mutex_t lock; /* guards all below, and the order in which a subscriber's events are written */
  struct subscriber subscribers[SUBSCRIBERS_MAX];
  int count;
};

enum rc event_add(struct store *s, struct event ***tail, int64_t run, const char *type, char *data, bool last,
                  int64_t wall_ms, struct err *err) {
  struct event *e = data ? calloc(1, sizeof *e) : NULL;
  if (!e) {
    free(data);
    return err_set(err, RC_NO_MEMORY, NULL, "an event was refused memory");
  }
  *e = (struct event){.run = run, .type = type, .data = data, .last = last};
  enum rc rc = store_exec(s, err, "INSERT INTO events (run, type, data, at_ms) VALUES (?1, ?2, ?3, ?4)",
                          BINDS(b_int(run), b_text(type), b_text(data), b_int(wall_ms)));
  e->id = store_last_id(s);
  if (rc == RC_OK) {
    rc = store_exec(s, err,
                    "DELETE FROM events WHERE run = ?1 AND id <= (SELECT id FROM events WHERE run = ?1 ORDER BY id "
                    "DESC LIMIT 1 OFFSET ?2)",
                    BINDS(b_int(run), b_int(EVENTS_KEPT)));
  }
  if (rc != RC_OK) {
    free(data);
    free(e);
    return rc;
  }
  **tail = e;
  *tail = &e->next;
  return RC_OK;
}

void events_free(struct event *head) {
  while (head) {
    struct event *next = head->next;
    free(head->data);
    free(head);
    head = next;
  }
}

enum rc hub_create(struct hub **out, struct readers *readers, struct err *err) {
  struct hub *h = calloc(1, sizeof *h);
  if (!h) return err_set(err, RC_NO_MEMORY, NULL, "the event hub was refused memory");
  h->readers = readers;
  pthread_mutex_init(&h->lock, NULL);
  *out = h;
  return RC_OK;
}

void hub_destroy(struct hub *h) {
  if (!h) return;
  pthread_mutex_destroy(&h->lock);
  free(h);
}

static enum rc write_event(struct http_request *r, int64_t id, const char *type, const char *data) {
  struct buf line = BUF_INIT;
  buf_printf(&line, "id: %" PRId64 "\nevent: %s\ndata: %s\n\n", id, type, data);
  enum rc rc = buf_check(&line, NULL);
  if (rc == RC_OK) rc = http_stream_write(r, line.data, line.len);
  buf_free(&line);
  return rc;
}

/* lock held; ends the stream */
static void drop(struct hub *h, int i) {
  struct http_request *r = h->subscribers[i].request;
  h->subscribers[i] = h->subscribers[--h->count];
  http_stream_end(r);
}

void hub_publish(struct hub *h, const struct event *head) {
  if (!head) return;
  pthread_mutex_lock(&h->lock);
  for (const struct event *e = head; e; e = e->next) {
    for (int i = h->count - 1; i >= 0; i--) {
      struct subscriber *s = &h->subscribers[i];
      if (s->run != e->run || e->id <= s->seen) continue;
      s->seen = e->id;
      if (write_event(s->request, e->id, e->type, e->data) != RC_OK || e->last) drop(h, i);
    }
  }
  pthread_mutex_unlock(&h->lock);
}

void hub_keep_alive(struct hub *h) {
  pthread_mutex_lock(&h->lock);
  for (int i = h->count - 1; i >= 0; i--) {
    if (http_stream_write(h->subscribers[i].request, ": still here\n\n", 14) != RC_OK) drop(h, i);
  }
  pthread_mutex_unlock(&h->lock);
}

/* Called by the HTTP watcher: the client hung up, the deadline passed, or the service stops. */
static void subscriber_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  struct hub *h = context;
  (void)why;
  pthread_mutex_lock(&h->lock);
  for (int i = 0; i < h->count; i++) {
    if (h->subscribers[i].request == r) {
      drop(h, i);
      break;
    }
  }
  pthread_mutex_unlock(&h->lock);
}

/* lock held: writes the events that are committed already; later ones come by hub_publish */
static enum rc write_past(struct store *s, struct subscriber *to, bool *ended, struct err *err) {
  struct rows q;
  bool row;
  enum rc rc = store_query(s, &q, err, "SELECT id, type, data FROM events WHERE run = ?1 AND id > ?2 ORDER BY id",
                           BINDS(b_int(to->run), b_int(to->seen)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    to->seen = rows_int(&q, 0);
    rc = write_event(to->request, to->seen, rows_text(&q, 1, NULL), rows_text(&q, 2, NULL));
  }
  rows_end(&q);
  int64_t state = RUN_QUEUED;
  if (rc == RC_OK) rc = store_int(s, &state, err, "SELECT state FROM runs WHERE id = ?1", BINDS(b_int(to->run)));
  *ended = state == RUN_STOPPED || state == RUN_COMPLETED || state == RUN_FAILED;
  return rc;
}

void hub_subscribe(struct hub *h, struct http_request *r, int64_t run, int64_t after) {
  struct store *s = NULL;
  struct err err = {0};
  bool ended = false;
  int64_t found;
  pthread_mutex_lock(&h->lock);
  enum rc rc = readers_take(h->readers, &s, &err);
  if (rc == RC_OK &&
      (rc = store_int(s, &found, &err, "SELECT id FROM runs WHERE id = ?1", BINDS(b_int(run)))) == RC_NOT_FOUND) {
    err_set(&err, rc, "id", "there is no run %s", id_run(run).text);
  }
  if (rc == RC_OK && after < 0)
    rc = store_int(s, &after, &err, "SELECT coalesce(max(id), 0) FROM events WHERE run = ?1", BINDS(b_int(run)));
  if (rc == RC_OK && h->count == SUBSCRIBERS_MAX)
    rc = err_set(&err, RC_FULL, NULL, "%d streams of events are open already", SUBSCRIBERS_MAX);
  if (rc != RC_OK) {
    http_fail(r, &err);
  } else {
    struct subscriber *to = &h->subscribers[h->count++];
    *to = (struct subscriber){.request = r, .run = run, .seen = after};
    http_suspend(r, STREAM_MS, subscriber_cancelled, h);
    http_set_header(r, "Cache-Control", "no-store");
    http_stream_begin(r, 200, "text/event-stream");
    rc = http_stream_write(r, "retry: 1000\n\n", 13);
    if (rc == RC_OK) rc = write_past(s, to, &ended, &err);
    if (rc != RC_OK || ended) drop(h, h->count - 1);
  }
  readers_give(h->readers, s);
  pthread_mutex_unlock(&h->lock);
}
