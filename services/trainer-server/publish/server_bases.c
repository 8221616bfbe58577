/* Remembers what servers answered to pushes. */
#include "services/trainer-server/publish/server_bases.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM_FIRST = 64 };

void server_bases_init(struct server_bases *b) {
  *b = (struct server_bases){.count = 0};
  pthread_mutex_init(&b->lock, NULL);
}

void server_bases_free(struct server_bases *b) {
  free(b->items);
  pthread_mutex_destroy(&b->lock);
}

static struct server_base *find(const struct server_bases *b, const char *worker_id) {
  for (size_t i = 0; i < b->count; i++)
    if (strcmp(b->items[i].worker_id, worker_id) == 0) return &b->items[i];
  return NULL;
}

/* NULL: memory was refused, and the server is sent versions whole. */
static struct server_base *place(struct server_bases *b) {
  if (b->count == b->room && b->room < LIMIT_WORKERS) {
    const size_t room = b->room ? b->room * 2 : ROOM_FIRST;
    struct server_base *more = realloc(b->items, room * sizeof *more);
    if (!more) return NULL;
    b->items = more;
    b->room = room;
  }
  if (b->count < b->room) return &b->items[b->count++];
  b->next = b->next + 1 < b->count ? b->next + 1 : 0;
  return &b->items[b->next];
}

void server_bases_note(struct server_bases *b, const char *worker_id, const struct digest *holds) {
  pthread_mutex_lock(&b->lock);
  struct server_base *base = find(b, worker_id);
  if (!holds && base) *base = b->items[--b->count];
  if (holds && !base) base = place(b);
  if (holds && base) {
    snprintf(base->worker_id, sizeof base->worker_id, "%s", worker_id);
    base->digest = *holds;
  }
  pthread_mutex_unlock(&b->lock);
}

bool server_bases_find(struct server_bases *b, const char *worker_id, struct digest *out) {
  pthread_mutex_lock(&b->lock);
  const struct server_base *base = find(b, worker_id);
  if (base) *out = base->digest;
  pthread_mutex_unlock(&b->lock);
  return base != NULL;
}
