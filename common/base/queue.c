/* Passes pointers between threads through a ring under one mutex, with one condition for "an item came or the queue was
 * closed".  Pushing never waits; popping waits no longer than its caller allows. */
#include "common/base/queue.h"

#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "common/base/clock.h"

struct queue {
  pthread_mutex_t mutex; /* guards everything below */
  pthread_cond_t changed;
  size_t capacity, head, length;
  bool closed;
  void *ring[];
};

void cond_init(pthread_cond_t *c) {
  pthread_condattr_t attr;
  pthread_condattr_init(&attr); /* with glibc none of these can fail */
  pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
  pthread_cond_init(c, &attr);
  pthread_condattr_destroy(&attr);
}

enum rc queue_create(struct queue **out, size_t capacity, struct err *err) {
  *out = NULL;
  if (capacity == 0 || capacity > (size_t)1 << 32)
    return err_set(err, RC_INVALID, NULL, "expected a queue capacity from 1 to 2^32, got %zu", capacity);
  struct queue *q = malloc(sizeof *q + capacity * sizeof q->ring[0]);
  if (!q) return err_set(err, RC_NO_MEMORY, NULL, "a queue of %zu items was refused memory", capacity);
  pthread_mutex_init(&q->mutex, NULL);
  cond_init(&q->changed);
  q->capacity = capacity;
  q->head = q->length = 0;
  q->closed = false;
  *out = q;
  return RC_OK;
}

void queue_destroy(struct queue *q) {
  if (!q) return;
  pthread_cond_destroy(&q->changed);
  pthread_mutex_destroy(&q->mutex);
  free(q);
}

static enum rc push(struct queue *q, void *item, bool first) {
  enum rc rc = RC_OK;
  pthread_mutex_lock(&q->mutex);
  if (q->closed) {
    rc = RC_UNAVAILABLE;
  } else if (q->length == q->capacity) {
    rc = RC_FULL;
  } else {
    if (first) q->head = (q->head + q->capacity - 1) % q->capacity;
    q->ring[first ? q->head : (q->head + q->length) % q->capacity] = item;
    q->length++;
    pthread_cond_signal(&q->changed);
  }
  pthread_mutex_unlock(&q->mutex);
  return rc;
}

enum rc queue_push(struct queue *q, void *item) { return push(q, item, false); }
enum rc queue_push_first(struct queue *q, void *item) { return push(q, item, true); }

enum rc queue_pop(struct queue *q, void **item, int64_t wait_ms) {
  enum rc rc = RC_OK;
  pthread_mutex_lock(&q->mutex);
  if (q->length == 0 && !q->closed && wait_ms > 0) {
    const struct timespec until = clock_deadline_in(wait_ms);
    while (q->length == 0 && !q->closed)
      if (pthread_cond_timedwait(&q->changed, &q->mutex, &until) == ETIMEDOUT) break;
  }
  if (q->length > 0) {
    *item = q->ring[q->head];
    q->head = (q->head + 1) % q->capacity;
    q->length--;
  } else {
    rc = q->closed ? RC_UNAVAILABLE : RC_TIMEOUT;
  }
  pthread_mutex_unlock(&q->mutex);
  return rc;
}

size_t queue_length(struct queue *q) {
  pthread_mutex_lock(&q->mutex);
  const size_t length = q->length;
  pthread_mutex_unlock(&q->mutex);
  return length;
}

void queue_close(struct queue *q) {
  pthread_mutex_lock(&q->mutex);
  q->closed = true;
  pthread_cond_broadcast(&q->changed);
  pthread_mutex_unlock(&q->mutex);
}
