/* The open calls by the names that their clients know them by, so that a client can have one ended from elsewhere.
 *
 *   requests.c: submitted --open_calls_add--> listed --generate_call_release: open_calls_remove--> answered
 *   a route: open_calls_abort --> the call's `abandoned` mark --> the engine ends its jobs, the answer is what there is
 *
 * Any thread; the mutex guards the list.  A link lies in its call. */
#ifndef LEASEHOLD_GENERATION_SERVER_REQUESTS_OPEN_CALLS_H
#define LEASEHOLD_GENERATION_SERVER_REQUESTS_OPEN_CALLS_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

struct open_link {
  struct open_link *next, *previous;
  const char *name;
  atomic_bool *abandoned;
  bool listed;
};

struct open_calls {
  pthread_mutex_t mutex; /* guards the list, and that what is in it lives */
  struct open_link *first;
};

void open_calls_init(struct open_calls *o);
void open_calls_destroy(struct open_calls *o);
void open_calls_add(struct open_calls *o, struct open_link *link);
void open_calls_remove(struct open_calls *o, struct open_link *link); /* one that was never added is fine */
/* How many were marked.  NULL: all. */
int open_calls_abort(struct open_calls *o, const char *name);

#endif
