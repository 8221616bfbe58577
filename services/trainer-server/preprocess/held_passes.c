/* Keeps the list of the passes that are held. */
#include "services/trainer-server/preprocess/held_passes.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

void held_passes_init(struct held_passes *h) {
  *h = (struct held_passes){0};
  pthread_mutex_init(&h->mutex, NULL);
}

/* Mutex held; -1: none.  id "": a free place. */
static int place_of(const struct held_passes *h, const char *id) {
  for (int i = 0; i < LIMIT_PASSES_PER_REQUEST; i++)
    if (strcmp(h->items[i].id, id) == 0) return i;
  return -1;
}

void held_passes_hold(struct held_passes *h, const struct pass *passes, size_t count) {
  pthread_mutex_lock(&h->mutex);
  for (size_t i = 0; i < count; i++) {
    const int place = place_of(h, "");
    assert(place >= 0);
    snprintf(h->items[place].id, sizeof h->items[place].id, "%s", passes[i].group.id);
    h->items[place].fence = passes[i].fence;
    h->items[place].lost = false;
  }
  pthread_mutex_unlock(&h->mutex);
}

void held_passes_drop(struct held_passes *h, const char *id) {
  pthread_mutex_lock(&h->mutex);
  const int place = place_of(h, id);
  if (place >= 0) h->items[place].id[0] = 0;
  pthread_mutex_unlock(&h->mutex);
}

bool held_passes_lost(struct held_passes *h, const char *id) {
  pthread_mutex_lock(&h->mutex);
  const int place = place_of(h, id);
  const bool lost = place < 0 || h->items[place].lost;
  pthread_mutex_unlock(&h->mutex);
  return lost;
}

enum rc held_passes_list(struct held_passes *h, struct lease_ref **out, size_t *count, struct arena *arena,
                         struct err *err) {
  *count = 0;
  *out = arena_alloc(arena, LIMIT_PASSES_PER_REQUEST, sizeof **out);
  if (!*out) return err_set(err, RC_NO_MEMORY, NULL, "the list of passes was refused memory");
  enum rc rc = RC_OK;
  pthread_mutex_lock(&h->mutex);
  for (int i = 0; i < LIMIT_PASSES_PER_REQUEST; i++) {
    if (!h->items[i].id[0] || h->items[i].lost) continue;
    const char *id = arena_strdup(arena, h->items[i].id);
    if (!id) rc = err_set(err, RC_NO_MEMORY, NULL, "the name of a pass was refused memory");
    if (id) (*out)[(*count)++] = (struct lease_ref){.id = id, .fence = h->items[i].fence};
  }
  pthread_mutex_unlock(&h->mutex);
  return rc;
}

void held_passes_lose(struct held_passes *h, const char *const *ids, size_t count, const struct lease_ref *sent,
                      size_t sent_count) {
  pthread_mutex_lock(&h->mutex);
  for (size_t k = 0; k < count; k++) {
    const int place = place_of(h, ids[k]);
    for (size_t i = 0; place >= 0 && i < sent_count; i++)
      if (strcmp(sent[i].id, ids[k]) == 0 && sent[i].fence == h->items[place].fence) h->items[place].lost = true;
  }
  pthread_mutex_unlock(&h->mutex);
}

void held_passes_lose_all(struct held_passes *h) {
  pthread_mutex_lock(&h->mutex);
  for (int i = 0; i < LIMIT_PASSES_PER_REQUEST; i++) h->items[i].lost = true;
  pthread_mutex_unlock(&h->mutex);
}
