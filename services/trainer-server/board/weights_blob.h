/* The serialized weights of one version: the bytes that are pushed, pulled and checkpointed, once in memory however
 * many use them.
 *
 *   holders   the board while it is the current version, the engine, the publisher: they may use `bytes` freely
 *   pushers   pushes in the background: the same, but no other version waits for them
 *   readers   answers to GET /v1/weights that are on their way: they copy piece by piece with weights_blob_read
 *
 * A superseded version lives on for its readers, until another version is about to be serialized: weights_blob_shut,
 * called then (board.c), ends the answers that are still going out, however slowly their peers read.  So the bytes of
 * two versions at most are in memory: of the current one, and of the one before or the next one; and where versions are
 * pushed in the background, of two more (publish/background.h).
 *
 * With --lean they lie in a scratch file, and pages that are read or written leave memory soon after.
 *
 * Any thread.  The mutex guards the counts, `shut` and, against readers, `bytes`; it is held for one piece's copy at
 * most. */
#ifndef LEASEHOLD_TRAINER_SERVER_BOARD_WEIGHTS_BLOB_H
#define LEASEHOLD_TRAINER_SERVER_BOARD_WEIGHTS_BLOB_H

#include <pthread.h>
#include <stdbool.h>

#include "common/base/buf.h"
#include "common/base/digest.h"
#include "common/base/limits.h"
#include "common/model/learning/scratch_file.h"

enum { WEIGHTS_BLOBS_MAX = 2, WEIGHTS_BLOBS_PUSHED_MAX = 2 /* beside those, in the background */ };

struct weights_blob {
  struct buf bytes;
  struct scratch_file file; /* that they are mapped from, or none */
  size_t len; /* of the bytes; constant once it is published */
  char run[LIMIT_NAME_MAX];
  int64_t version;
  struct digest digest;
  struct buf changes; /* since the version of digest base, until the board publishes this one; may be empty */
  struct digest base;

  pthread_mutex_t lock; /* guards all below, and bytes */
  int holders, pushers, readers;
  bool kept; /* the board remembers it */
  bool shut;
};

/* Without bytes yet; the caller is its only holder. */
enum rc weights_blob_create(struct weights_blob **out, const char *run, int64_t version, struct err *err);
/* The bytes, at most `most`, shall lie in a scratch file in this folder, of which only the part at hand is in
 * memory. */
enum rc weights_blob_map(struct weights_blob *b, const char *scratch_dir, size_t most, struct err *err);
/* Done for now with some of them, or with all: they may leave memory. */
void weights_blob_part_done(const struct weights_blob *b, const void *part, size_t count);
void weights_blob_all_done(const struct weights_blob *b);
void weights_blob_hold(struct weights_blob *b);
void weights_blob_release(struct weights_blob *b); /* NULL is fine */

/* Superseded: the caller is no holder any more, and remembers it until it calls weights_blob_forget. */
void weights_blob_keep(struct weights_blob *b);
/* The same for a push in the background; the caller holds it, or is a pusher of it. */
void weights_blob_push_begin(struct weights_blob *b);
void weights_blob_push_end(struct weights_blob *b);
/* Ends the readers' answers.  Are the bytes gone, or a pusher's only?  Else somebody holds them. */
bool weights_blob_shut(struct weights_blob *b);
void weights_blob_forget(struct weights_blob *b);

void weights_blob_read_begin(struct weights_blob *b);
/* Copies up to `max` bytes from `at` on; 0 once it is shut. */
size_t weights_blob_read(struct weights_blob *b, size_t at, char *out, size_t max);
void weights_blob_read_end(struct weights_blob *b);

#endif
