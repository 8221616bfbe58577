/* Keeps the list of open calls and marks those that a client wants ended.  Marking is all that happens under the mutex:
 * the engine sees the mark before its next step. */
#include "services/generation-server/requests/open_calls.h"

#include <assert.h>
#include <string.h>

void open_calls_init(struct open_calls *o) {
  o->first = NULL;
  pthread_mutex_init(&o->mutex, NULL);
}

void open_calls_destroy(struct open_calls *o) { pthread_mutex_destroy(&o->mutex); }

void open_calls_add(struct open_calls *o, struct open_link *link) {
  assert(link->name);
  pthread_mutex_lock(&o->mutex);
  link->previous = NULL;
  link->next = o->first;
  if (o->first) o->first->previous = link;
  o->first = link;
  link->listed = true;
  pthread_mutex_unlock(&o->mutex);
}

void open_calls_remove(struct open_calls *o, struct open_link *link) {
  if (!o) return;
  pthread_mutex_lock(&o->mutex);
  if (link->listed) {
    if (link->previous) link->previous->next = link->next;
    if (link->next) link->next->previous = link->previous;
    if (o->first == link) o->first = link->next;
    link->listed = false;
  }
  pthread_mutex_unlock(&o->mutex);
}

int open_calls_abort(struct open_calls *o, const char *name) {
  int count = 0;
  pthread_mutex_lock(&o->mutex);
  for (struct open_link *link = o->first; link; link = link->next) {
    if (name && strcmp(link->name, name) != 0) continue;
    atomic_store(link->abandoned, true);
    count++;
  }
  pthread_mutex_unlock(&o->mutex);
  return count;
}
