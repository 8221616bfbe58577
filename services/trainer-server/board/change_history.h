/* Keeps what the last versions changed, each against the one before: a server that holds one of them is sent these
 * links instead of the whole newest version (common/model/network/weights_changes.h says what is in them).
 *
 *   version 4 --link--> version 5 --link--> version 6 --link--> version 7, the newest
 *                       `------ a server that holds 5 is sent these two ------'
 *
 * The board adds a link when it publishes a version; pushes find links and hold them while they send.  Together the
 * links are never larger than half of a version's file, and at most CHANGES_LINKS_MAX: beyond, the oldest are dropped;
 * so are those that the link being made leaves no room for, all of which would have to go once it is added.  Any
 * thread. */
#ifndef LEASEHOLD_TRAINER_SERVER_BOARD_CHANGE_HISTORY_H
#define LEASEHOLD_TRAINER_SERVER_BOARD_CHANGE_HISTORY_H

#include <pthread.h>
#include <stdatomic.h>

#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/model/network/weights_changes.h"

struct change_link {
  struct buf bytes;
  struct digest base, made;
  atomic_int holders;
};

struct change_history {
  pthread_mutex_t lock; /* guards all below */
  struct change_link *links[CHANGES_LINKS_MAX]; /* the oldest first */
  size_t count;
};

void change_history_init(struct change_history *h);
void change_history_free(struct change_history *h);
/* Takes the bytes over.  bytes_max: of all links together.  Where memory is refused there is no such link. */
void change_history_add(struct change_history *h, struct buf *bytes, const struct digest *base,
                        const struct digest *made, size_t bytes_max);
/* Drops the oldest links until all have at most bytes_max bytes together. */
void change_history_trim(struct change_history *h, size_t bytes_max);
/* The links that lead from base to made, in this order, into out[CHANGES_LINKS_MAX]: how many, 0 when there is no way.
 * The caller holds them until change_links_release. */
size_t change_history_find(struct change_history *h, const struct digest *base, const struct digest *made,
                           struct change_link **out);
void change_links_release(struct change_link **links, size_t count);

#endif
