/* Keeps repeated sequences of operations as CUDA graphs, so that a decode step is one launch instead of some hundreds.
 *
 *   first time    the operations run, and the key is remembered
 *   second time   they are recorded, and the recording is run
 *   from then on  the recording is run
 *
 * The least recently used keys make room.  Releasing memory forgets everything, because recordings contain
 * addresses. */
#include <stdlib.h>
#include <string.h>

#include "common/model/cuda/cuda_table.h"

enum { KEPT_MAX = 64, NONE = -1 };

struct kept {
  bool known;
  struct repeat_key key;
  cudaGraphExec_t graph; /* NULL: the key has come once */
  uint64_t used;         /* when, by `clock` */
};

struct graph_cache {
  struct kept kept[KEPT_MAX];
  uint64_t clock;
  int recording; /* NONE, or which */
};

enum rc graph_cache_open(struct cuda_ops *c, struct err *err) {
  c->graphs = (struct graph_cache *)calloc(1, sizeof *c->graphs);
  if (!c->graphs)
    return err_set(err, RC_NO_MEMORY, NULL, "the table of recordings needs %zu bytes, which were refused",
                   sizeof *c->graphs);
  c->graphs->recording = NONE;
  return RC_OK;
}

static void forget(struct kept *k) {
  if (k->graph) (void)cudaGraphExecDestroy(k->graph);
  memset(k, 0, sizeof *k);
}

void graph_cache_forget(struct cuda_ops *c) {
  for (int i = 0; i < KEPT_MAX; i++) forget(&c->graphs->kept[i]);
}

void graph_cache_close(struct cuda_ops *c) {
  if (c->graphs) graph_cache_forget(c);
  free(c->graphs);
}

static bool same_key(const struct repeat_key *a, const struct repeat_key *b) {
  for (int i = 0; i < 3; i++)
    if (a->arrays[i] != b->arrays[i] || a->numbers[i] != b->numbers[i]) return false;
  return true;
}

/* The key's place: its own, a free one, or that of the least recently used key, which is forgotten. */
static int place_of(struct graph_cache *r, const struct repeat_key *key) {
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
  struct graph_cache *r = c->graphs;
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
  struct graph_cache *r = c->graphs;
  if (r->recording == NONE) return;
  struct kept *k = &r->kept[r->recording];
  cudaGraph_t graph = NULL;
  r->recording = NONE;
  const bool ended = cuda_check(c, cudaStreamEndCapture(c->stream, &graph), "ending a recording");
  const bool made = ended && cuda_check(c, cudaGraphInstantiate(&k->graph, graph, 0), "making a recording ready");
  if (graph) (void)cudaGraphDestroy(graph);
  if (made) cuda_check(c, cudaGraphLaunch(k->graph, c->stream), "running a recording");
}
