/* A table of granted leases by their ids: see granted.h. */
#include "services/coordinator/pool/granted.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/digest.h"

enum { BUCKETS = 8192 }; /* a power of two */

struct entry {
  struct entry *next;
  struct granted_lease lease; /* its texts lie behind it */
};

struct granted {
  pthread_mutex_t lock; /* guards all below */
  int count;
  struct entry *buckets[BUCKETS];
};

enum rc granted_create(struct granted **out, struct err *err) {
  struct granted *g = calloc(1, sizeof *g);
  if (!g) return err_set(err, RC_NO_MEMORY, NULL, "the table of granted leases was refused %zu bytes", sizeof *g);
  pthread_mutex_init(&g->lock, NULL);
  *out = g;
  return RC_OK;
}

void granted_destroy(struct granted *g) {
  if (!g) return;
  for (int b = 0; b < BUCKETS; b++) {
    for (struct entry *e = g->buckets[b], *next; e; e = next) {
      next = e->next;
      free(e);
    }
  }
  pthread_mutex_destroy(&g->lock);
  free(g);
}

/* lock held: the link to the lease's entry, or to NULL at the end of its bucket */
static struct entry **link_of(struct granted *g, const char *id) {
  const uint64_t hash = fnv1a(FNV1A_BEGIN, id, strlen(id));
  struct entry **link = &g->buckets[(hash ^ hash >> 32) % BUCKETS];
  while (*link && strcmp((*link)->lease.id, id) != 0) link = &(*link)->next;
  return link;
}

/* lock held */
static void drop(struct granted *g, struct entry **link) {
  struct entry *e = *link;
  if (!e) return;
  *link = e->next;
  g->count--;
  free(e);
}

static const char *put(char **to, const char *text, size_t bytes) {
  const char *at = memcpy(*to, text, bytes);
  *to += bytes;
  return at;
}

static struct entry *entry_make(const struct granted_lease *l) {
  const size_t id = strlen(l->id) + 1, answer = strlen(l->answer) + 1, extra = strlen(l->extra) + 1;
  struct entry *e = answer + extra <= GRANTED_TEXT_BYTES ? malloc(sizeof *e + id + answer + extra) : NULL;
  if (!e) return NULL;
  char *to = (char *)(e + 1);
  *e = (struct entry){.lease = *l};
  e->lease.id = put(&to, l->id, id);
  e->lease.answer = put(&to, l->answer, answer);
  e->lease.extra = put(&to, l->extra, extra);
  return e;
}

void granted_note(struct granted *g, const struct granted_lease *l) {
  struct entry *e = entry_make(l);
  pthread_mutex_lock(&g->lock);
  struct entry **link = link_of(g, l->id);
  drop(g, link);
  if (e && g->count < GRANTED_MAX) {
    e->next = *link;
    *link = e;
    g->count++;
    e = NULL;
  }
  pthread_mutex_unlock(&g->lock);
  free(e);
}

void granted_end(struct granted *g, const char *id, int64_t fence) {
  pthread_mutex_lock(&g->lock);
  struct entry **link = link_of(g, id);
  if (*link && (*link)->lease.fence == fence) drop(g, link);
  pthread_mutex_unlock(&g->lock);
}

bool granted_find(struct granted *g, const char *id, uint64_t fence, struct granted_lease *out, struct arena *arena) {
  pthread_mutex_lock(&g->lock);
  const struct entry *e = *link_of(g, id);
  bool found = e && (uint64_t)e->lease.fence == fence;
  if (found) {
    *out = e->lease;
    out->id = id;
    out->answer = arena ? arena_strdup(arena, e->lease.answer) : NULL;
    out->extra = arena ? arena_strdup(arena, e->lease.extra) : NULL;
    found = !arena || (out->answer && out->extra);
  }
  pthread_mutex_unlock(&g->lock);
  return found;
}
