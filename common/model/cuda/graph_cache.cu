/* Sequences of operations that come again: kept as CUDA graphs, so that a decode step is one launch and not some hundreds.
 *
 *   first time    the operations run, and the key is remembered
 *   second time   they are recorded, and the recording is run
 *   from then on  the recording is run
 *
 * The keys used least lately make room.  Releasing memory forgets everything, since recordings name addresses. */
#include <stdlib.h>
#include <string.h>

#include "common/model/cuda/cuda_table.h"

enum { KEPT_MAX = 64, NONE = -1 };

struct kept {
  bool known;
  struct repeat_key key;
  cudaGraphExec_t graph; /* NULL: it has come once */
  uint64_t used;         /* when, by `clock` */
};

struct repeats {
  struct kept kept[KEPT_MAX];
  uint64_t clock;
  int recording; /* NONE, or which */
};

enum rc repeats_open(struct cuda_ops *c, struct err *err) {
  c->repeats = (struct repeats *)calloc(1, sizeof *c->repeats);
  if (!c->repeats)
    return err_set(err, RC_NO_MEMORY, NULL, "the table of recordings needs %zu bytes, which were refused",
                   sizeof *c->repeats);
  c->repeats->recording = NONE;
  return RC_OK;
}

static void forget(struct kept *k) {
  if (k->graph) (void)cudaGraphExecDestroy(k->graph);
  memset(k, 0, sizeof *k);
}

void repeats_forget(struct cuda_ops *c) {
  for (int i = 0; i < KEPT_MAX; i++) forget(&c->repeats->kept[i]);
}

void repeats_close(struct cuda_ops *c) {
  if (c->repeats) repeats_forget(c);
  free(c->repeats);
}

static bool same_key(const struct repeat_key *a, const struct repeat_key *b) {
  for (int i = 0; i < 3; i++)
    if (a->arrays[i] != b->arrays[i] || a->numbers[i] != b->numbers[i]) return false;
  return true;
}

/* The key's place: its own, a free one, or that of the key used least lately, which is forgotten. */
static int place_of(struct repeats *r, const struct repeat_key *key) {
  int oldest = 0;
  for (int i = 0; i < KEPT_MAX; i++) {
    if (r->kept[i].known && same_key(&r->kept[i].key, key)) return i;
    if (r->kept[i].used < r->kept[oldest].used) oldest = i;
  }
  forget(&r->kept[oldest]);
  return oldest;
}

bool cuda_repeat_begin(const struct ops *o, const struct repeat_key *key) {
  struct cuda_ops *c = cuda_of(o);
  struct repeats *r = c->repeats;
  if (!cuda_enter(c)) return true;
  const int at = place_of(r, key);
  struct kept *k = &r->kept[at];
  k->used = ++r->clock;
  if (k->graph) {
    cuda_check(c, cudaGraphLaunch(k->graph, c->stream), "running a recording");
    return false;
  }
  if (k->known &&
      cuda_check(c, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeThreadLocal), "beginning a recording"))
    r->recording = at;
  k->known = true;
  k->key = *key;
  return true;
}

void cuda_repeat_end(const struct ops *o) {
  struct cuda_ops *c = cuda_of(o);
  struct repeats *r = c->repeats;
  if (r->recording == NONE) return;
  struct kept *k = &r->kept[r->recording];
  cudaGraph_t graph = NULL;
  r->recording = NONE;
  const bool ended = cuda_check(c, cudaStreamEndCapture(c->stream, &graph), "ending a recording");
  const bool made = ended && cuda_check(c, cudaGraphInstantiate(&k->graph, graph, 0), "making a recording ready");
  if (graph) (void)cudaGraphDestroy(graph);
  if (made) cuda_check(c, cudaGraphLaunch(k->graph, c->stream), "running a recording");
}
