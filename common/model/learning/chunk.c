/* Cuts a gradient unit's samples into chunks, and finds the rows that samples share and those that need no gradient. */
#include "common/model/learning/chunk.h"

#include <assert.h>
#include <string.h>

enum { SAMPLES_MIN = 16, SAMPLES_MAX = 512 };

static int pages_of(int length) { return length / CHUNK_PAGE_TOKENS + (length % CHUNK_PAGE_TOKENS != 0); }

int chunk_sequences_max(int chunk_tokens) {
  const int n = pages_of(chunk_tokens);
  return n < SAMPLES_MIN ? SAMPLES_MIN : n > SAMPLES_MAX ? SAMPLES_MAX : n;
}

/* The sum of ceil(length / 32) over the samples of a chunk is at most this. */
int chunk_pages_max(int chunk_tokens) { return pages_of(chunk_tokens) + chunk_sequences_max(chunk_tokens); }

static size_t table_size(int rows) {
  size_t size = 2;
  while (size < 2 * (size_t)rows) size *= 2;
  return size;
}

static void chunk_place(struct array_layout *l, struct chunk *c, int chunk_tokens) {
  const size_t T = (size_t)chunk_tokens, i = sizeof(int32_t), f = sizeof(float);
  const size_t sequences = (size_t)chunk_sequences_max(chunk_tokens);
  int32_t **const rows[] = {&c->tokens,
                            &c->sequence,
                            &c->position,
                            &c->pick,
                            &c->target,
                            &c->row,
                            &c->own_tokens,
                            &c->own_sequence,
                            &c->own_position,
                            &c->own_parent,
                            &c->finish,
                            &c->finished_sequence,
                            &c->finished_position,
                            &c->hidden_row,
                            &c->active_row,
                            &c->active_own,
                            &c->active_position,
                            &c->query,
                            &c->mark,
                            &c->once.row,
                            &c->once.position,
                            &c->once.query,
                            &c->once.active_from,
                            &c->once.active_row,
                            &c->once.active_own,
                            &c->once.active_position,
                            &c->repeat,
                            &c->repeat_active};
  float **const numbers[] = {&c->logprob, &c->lse, &c->entropy, &c->dlogprob, &c->dentropy};
  c->chunk_tokens = chunk_tokens;
  c->sequences_max = chunk_sequences_max(chunk_tokens);
  c->pages_max = chunk_pages_max(chunk_tokens);
  for (size_t a = 0; a < sizeof rows / sizeof rows[0]; a++) *rows[a] = array_layout_take(l, T, i);
  for (size_t a = 0; a < sizeof numbers / sizeof numbers[0]; a++) *numbers[a] = array_layout_take(l, T, f);
  c->start = array_layout_take(l, sequences + 1, i);
  c->once.start = array_layout_take(l, sequences + 1, i);
  c->pages = array_layout_take(l, sequences * (size_t)pages_of(chunk_tokens), i);
  c->table = array_layout_take(l, table_size(chunk_tokens), i);
}

size_t chunk_bytes(int chunk_tokens) {
  struct chunk measured;
  struct array_layout l = {NULL, 0};
  chunk_place(&l, &measured, chunk_tokens);
  return l.used;
}

void chunk_init(struct chunk *c, void *memory, int chunk_tokens) {
  struct array_layout l = {memory, 0};
  memset(memory, 0, chunk_bytes(chunk_tokens));
  chunk_place(&l, c, chunk_tokens);
  c->shares = true;
  memset(c->mark, 0xff, (size_t)c->chunk_tokens * sizeof *c->mark);
}

/* The slot of the computed row of `token` after computed row `parent` (-1: at the start); it holds -1 when that is
 * new. */
static size_t row_slot(const struct chunk *c, size_t size, int32_t parent, int32_t token) {
  const uint64_t key = (uint64_t)(uint32_t)(parent + 1) << 32 | (uint32_t)token;
  size_t slot = (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (size - 1);
  for (; c->table[slot] >= 0; slot = (slot + 1) & (size - 1)) {
    const int32_t known = c->table[slot];
    if (c->own_parent[known] == parent && c->own_tokens[known] == token) break;
  }
  return slot;
}

/* That row, made when it is new. */
static int32_t computed_row(struct chunk *c, size_t size, int32_t parent, int32_t token, int32_t position) {
  const size_t slot = c->shares ? row_slot(c, size, parent, token) : 0;
  if (c->shares && c->table[slot] >= 0) return c->table[slot];
  const int32_t row = c->computed++;
  c->own_tokens[row] = token;
  c->own_sequence[row] = c->sequences;
  c->own_position[row] = position;
  c->own_parent[row] = parent;
  if (c->shares) c->table[slot] = row;
  return row;
}

static void add_sample(struct chunk *c, const struct train_sample *s, size_t size) {
  int32_t parent = -1;
  for (int t = 0; t < s->length; t++) {
    const int row = c->T + t;
    c->tokens[row] = s->tokens[t];
    c->sequence[row] = c->sequences;
    c->position[row] = t;
    if (s->scored[t]) {
      c->pick[c->scored] = row - 1;
      c->hidden_row[c->scored] = parent;
      c->target[c->scored++] = s->tokens[t];
    }
    c->row[row] = parent = computed_row(c, size, parent, s->tokens[t], t);
  }
  c->T += s->length;
  c->start[++c->sequences] = c->T;
}

static void chunk_clear(struct chunk *c, bool forward_only) {
  c->T = c->sequences = c->scored = c->computed = c->pages_per_sequence = 0;
  c->start[0] = 0;
  c->forward_only = forward_only;
  c->repeats = false;
}

int chunk_fill(struct chunk *c, const struct train_sample *samples, int count, const int32_t *pages) {
  int taken = 0, T = 0, next = 0;
  chunk_clear(c, false);
  while (taken < count && taken < c->sequences_max && T + samples[taken].length <= c->chunk_tokens) {
    const int n = pages_of(samples[taken].length);
    if (n > c->pages_per_sequence) c->pages_per_sequence = n;
    T += samples[taken++].length;
  }
  const size_t size = table_size(T);
  if (c->shares) memset(c->table, 0xff, size * sizeof *c->table);
  for (int s = 0; s < taken; s++) {
    int32_t *row = c->pages + (size_t)s * (size_t)c->pages_per_sequence;
    add_sample(c, &samples[s], size);
    for (int i = 0; i < c->pages_per_sequence; i++) row[i] = i < pages_of(samples[s].length) ? pages[next++] : 0;
  }
  assert(taken > 0 && next <= c->pages_max);
  return taken;
}

/* A sample that shares its beginning with those before it: how many rows, and how many whole pages of them. */
struct beginning {
  int rows, pages, scored;
};

static struct beginning beginning_of(const struct chunk *c, const struct train_sample *s, size_t size) {
  struct beginning b = {0};
  for (int32_t parent = -1; b.rows < s->length; b.rows++) {
    parent = c->table[row_slot(c, size, parent, s->tokens[b.rows])];
    if (parent < 0) break;
  }
  for (int t = 0; t < s->length; t++) b.scored += s->scored[t];
  b.pages = b.rows / CHUNK_PAGE_TOKENS;
  return b;
}

/* Every computed row is written at least once, so that what is written bounds both. */
static bool has_room(const struct chunk *c, const struct train_sample *s, const struct beginning *b, int pages) {
  return c->sequences < c->sequences_max && c->T + s->length - b->pages * CHUNK_PAGE_TOKENS <= c->chunk_tokens &&
         c->scored + b->scored <= c->chunk_tokens && pages + pages_of(s->length) - b->pages <= c->pages_max;
}

/* Whole pages of the shared beginning are those of the sample that made their rows, which has written them. */
static void add_sample_forward(struct chunk *c, const struct train_sample *s, const struct beginning *b, size_t size,
                               const int32_t *pages) {
  int32_t *own = c->pages + (size_t)c->sequences * (size_t)c->pages_per_sequence, parent = -1;
  memset(own, 0, (size_t)c->pages_per_sequence * sizeof *own);
  for (int page = b->pages; page < pages_of(s->length); page++) own[page] = *pages++;
  for (int t = 0; t < s->length; t++) {
    const int page = t / CHUNK_PAGE_TOKENS;
    if (s->scored[t]) {
      c->hidden_row[c->scored] = parent;
      c->target[c->scored++] = s->tokens[t];
    }
    parent = computed_row(c, size, parent, s->tokens[t], t);
    if (page < b->pages) {
      const size_t maker = (size_t)c->own_sequence[parent] * (size_t)c->pages_per_sequence;
      if (t % CHUNK_PAGE_TOKENS == CHUNK_PAGE_TOKENS - 1) own[page] = c->pages[maker + (size_t)page];
      continue;
    }
    c->sequence[c->T] = c->sequences;
    c->position[c->T] = t;
    c->row[c->T++] = parent;
  }
  c->sequences++;
}

int chunk_fill_forward(struct chunk *c, const struct train_sample *samples, int count, const int32_t *pages) {
  const size_t size = table_size(c->chunk_tokens);
  int taken = 0, used = 0;
  assert(c->shares);
  chunk_clear(c, true);
  for (int i = 0; i < count; i++)
    if (pages_of(samples[i].length) > c->pages_per_sequence) c->pages_per_sequence = pages_of(samples[i].length);
  memset(c->table, 0xff, size * sizeof *c->table);
  for (; taken < count; taken++) {
    const struct train_sample *s = &samples[taken];
    const struct beginning b = beginning_of(c, s, size);
    if (!has_room(c, s, &b, used)) break;
    add_sample_forward(c, s, &b, size, pages + used);
    used += pages_of(s->length) - b.pages;
  }
  assert(taken > 0);
  return taken;
}

void chunk_finish(struct chunk *c, bool partly) {
  c->partly = partly;
  c->finished = partly ? 0 : c->computed;
  c->active = partly ? c->scored : c->T;
  if (!partly) return;
  for (int i = 0; i < c->scored; i++) c->mark[c->hidden_row[i]] = 0;
  for (int32_t u = 0; u < c->computed; u++) {
    if (c->mark[u] < 0) continue;
    c->mark[u] = c->finished;
    c->finish[c->finished] = u;
    c->finished_sequence[c->finished] = c->own_sequence[u];
    c->finished_position[c->finished++] = c->own_position[u];
  }
  if (!c->forward_only) memset(c->query, 0xff, (size_t)c->T * sizeof *c->query);
  for (int i = 0; i < c->scored; i++) {
    const int32_t own = c->hidden_row[i];
    c->hidden_row[i] = c->mark[own];
    if (c->forward_only) continue;
    c->query[c->pick[i]] = i;
    c->active_own[i] = own;
    c->active_position[i] = c->position[c->pick[i]];
    c->active_row[i] = c->hidden_row[i];
  }
  for (int i = 0; i < c->finished; i++) c->mark[c->finish[i]] = -1;
}

/* begin[s]: the first scored token of sample s. */
static void scored_begins(const struct chunk *c, int32_t *begin) {
  int i = 0;
  for (int s = 0; s < c->sequences; s++) {
    begin[s] = i;
    while (i < c->scored && c->pick[i] < c->start[s + 1]) i++;
  }
  begin[c->sequences] = i;
}

/* Whether two samples have the same tokens, of which the same are scored, with the same gradients.  Equal computed rows
 * at the end are equal tokens all along. */
static bool is_repeat(const struct chunk *c, const int32_t *begin, int s, int other, bool entropy) {
  const int length = c->start[s + 1] - c->start[s], n = begin[s + 1] - begin[s];
  const size_t bytes = (size_t)n * sizeof *c->dlogprob;
  if (length != c->start[other + 1] - c->start[other] || n != begin[other + 1] - begin[other]) return false;
  if (c->row[c->start[s + 1] - 1] != c->row[c->start[other + 1] - 1]) return false;
  for (int i = 0; i < n; i++)
    if (c->pick[begin[s] + i] - c->start[s] != c->pick[begin[other] + i] - c->start[other]) return false;
  return memcmp(c->dlogprob + begin[s], c->dlogprob + begin[other], bytes) == 0 &&
         (!entropy || memcmp(c->dentropy + begin[s], c->dentropy + begin[other], bytes) == 0);
}

/* Appends the sample to those that are computed once. */
static void keep_sample(struct chunk *c, const int32_t *begin, int s) {
  const int32_t active = c->once.active;
  for (int t = c->start[s]; t < c->start[s + 1]; t++) {
    const int32_t at = c->once.T++;
    c->once.row[at] = c->row[t];
    c->once.position[at] = c->position[t];
    c->once.query[at] = c->query[t] < 0 ? -1 : active + (c->query[t] - begin[s]);
  }
  for (int32_t i = begin[s]; i < begin[s + 1]; i++) {
    const int32_t at = c->once.active++;
    c->once.active_from[at] = i;
    c->once.active_row[at] = c->active_row[i];
    c->once.active_own[at] = c->active_own[i];
    c->once.active_position[at] = c->active_position[i];
  }
  c->once.start[++c->once.sequences] = c->once.T;
}

void chunk_find_repeats(struct chunk *c, bool entropy) {
  int32_t begin[SAMPLES_MAX + 1], row[SAMPLES_MAX], active[SAMPLES_MAX], like[SAMPLES_MAX];
  c->repeats = false;
  c->once.T = c->once.sequences = c->once.active = 0;
  c->once.start[0] = 0;
  if (!c->partly || !c->shares || c->forward_only) return;
  scored_begins(c, begin);
  for (int s = 0; s < c->sequences; s++) {
    for (like[s] = 0; like[s] < s; like[s]++)
      if (like[like[s]] == like[s] && is_repeat(c, begin, s, like[s], entropy)) break;
    if (like[s] == s) {
      row[s] = c->once.T;
      active[s] = c->once.active;
      keep_sample(c, begin, s);
    }
    for (int t = c->start[s]; t < c->start[s + 1]; t++) c->repeat[t] = row[like[s]] + (t - c->start[s]);
    for (int32_t i = begin[s]; i < begin[s + 1]; i++) c->repeat_active[i] = active[like[s]] + (i - begin[s]);
  }
  c->repeats = c->once.sequences < c->sequences;
}

struct forward_call chunk_call(const struct chunk *c) {
  struct forward_call call = {.rows = {.T = c->T,
                                       .sequence = c->sequence,
                                       .position = c->position,
                                       .pages = c->pages,
                                       .pages_per_sequence = c->pages_per_sequence,
                                       .sequences = c->sequences},
                              .row = c->row,
                              .tokens = c->own_tokens,
                              .finish = c->partly ? c->finish : NULL};
  call.computed = call.finished = call.rows;
  call.computed.T = c->computed;
  call.computed.sequence = c->own_sequence;
  call.computed.position = c->own_position;
  call.finished.T = c->finished;
  call.finished.sequence = c->finished_sequence;
  call.finished.position = c->finished_position;
  return call;
}

int chunk_distinct(struct chunk *c, int first, int count, int32_t *ask, int32_t *where) {
  int n = 0;
  for (int i = 0; i < count; i++) {
    const int32_t row = c->hidden_row[first + i];
    if (c->mark[row] < 0) {
      c->mark[row] = n;
      ask[n++] = row;
    }
    where[i] = c->mark[row];
  }
  for (int i = 0; i < n; i++) c->mark[ask[i]] = -1;
  return n;
}
