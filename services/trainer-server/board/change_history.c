/* Keeps the links between the last versions, and finds the way from one to another. */
#include "services/trainer-server/board/change_history.h"

#include <stdlib.h>
#include <string.h>

void change_history_init(struct change_history *h) {
  *h = (struct change_history){.count = 0};
  pthread_mutex_init(&h->lock, NULL);
}

void change_links_release(struct change_link **links, size_t count) {
  for (size_t i = 0; i < count; i++) {
    if (atomic_fetch_sub(&links[i]->holders, 1) > 1) continue;
    buf_free(&links[i]->bytes);
    free(links[i]);
  }
}

void change_history_free(struct change_history *h) {
  change_links_release(h->links, h->count);
  pthread_mutex_destroy(&h->lock);
}

/* With the lock held. */
static void drop_oldest(struct change_history *h) {
  change_links_release(h->links, 1);
  memmove(h->links, h->links + 1, --h->count * sizeof h->links[0]);
}

/* With the lock held. */
static void trim(struct change_history *h, size_t bytes_max) {
  size_t sum = 0;
  for (size_t i = 0; i < h->count; i++) sum += h->links[i]->bytes.len;
  while (h->count > 0 && sum > bytes_max) {
    sum -= h->links[0]->bytes.len;
    drop_oldest(h);
  }
}

void change_history_add(struct change_history *h, struct buf *bytes, const struct digest *base,
                        const struct digest *made, size_t bytes_max) {
  struct change_link *link = malloc(sizeof *link);
  if (!link) {
    buf_free(bytes);
    return;
  }
  *link = (struct change_link){.bytes = *bytes, .base = *base, .made = *made};
  *bytes = (struct buf)BUF_INIT;
  atomic_store(&link->holders, 1);
  pthread_mutex_lock(&h->lock);
  if (h->count == CHANGES_LINKS_MAX) drop_oldest(h);
  h->links[h->count++] = link;
  trim(h, bytes_max);
  pthread_mutex_unlock(&h->lock);
}

void change_history_trim(struct change_history *h, size_t bytes_max) {
  pthread_mutex_lock(&h->lock);
  trim(h, bytes_max);
  pthread_mutex_unlock(&h->lock);
}

size_t change_history_find(struct change_history *h, const struct digest *base, const struct digest *made,
                           struct change_link **out) {
  struct change_link *found[CHANGES_LINKS_MAX]; /* the last first */
  const struct digest *wanted = made;
  size_t count = 0;
  const bool is_same = digest_equal(base, made);
  bool complete = false;
  pthread_mutex_lock(&h->lock);
  for (size_t i = h->count; i > 0 && !complete; i--) {
    struct change_link *link = h->links[i - 1];
    if (!digest_equal(&link->made, wanted) || (!is_same && digest_equal(&link->base, &link->made))) continue;
    found[count++] = link;
    wanted = &link->base;
    complete = digest_equal(wanted, base);
  }
  if (!complete) count = 0;
  for (size_t i = 0; i < count; i++) {
    out[i] = found[count - 1 - i];
    atomic_fetch_add(&out[i]->holders, 1);
  }
  pthread_mutex_unlock(&h->lock);
  return count;
}
