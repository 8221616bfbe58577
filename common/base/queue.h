/* A bounded queue of pointers between threads.  Every wait has a deadline; a full queue is reported, never waited
 * for. */
#ifndef LEASEHOLD_BASE_QUEUE_H
#define LEASEHOLD_BASE_QUEUE_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/rc.h"

struct queue;

enum rc queue_create(struct queue **out, size_t capacity, struct err *err);
void queue_destroy(struct queue *q); /* the caller frees items that are left first; NULL does nothing */
/* RC_FULL at capacity, RC_UNAVAILABLE once closed. */
enum rc queue_push(struct queue *q, void *item);
/* The same, but it is the next to be popped. */
enum rc queue_push_first(struct queue *q, void *item);
/* Waits up to wait_ms for an item: RC_OK; RC_TIMEOUT; RC_UNAVAILABLE when closed and empty. */
enum rc queue_pop(struct queue *q, void **item, int64_t wait_ms);
size_t queue_length(struct queue *q);
void queue_close(struct queue *q); /* wakes all waiters */

/* A condition variable that measures against CLOCK_MONOTONIC (see clock_deadline_in). */
void cond_init(pthread_cond_t *c);

#endif
