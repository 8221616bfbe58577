/* Manages the paged KV cache: one array of keys and one of values per layer, one reference count per page, a stack of
 * free pages.
 *
 * A page number means the same page in every layer.  page_count of a sequence is always ceil(length / page_tokens),
 * so only the last page can be partly filled, and only the last page may have to be copied by a writer.  Freed
 * pages keep their old, finite contents: attention gives positions beyond a row's own a weight of exactly zero. */
#include "common/model/network/kv_cache.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct kv_cache {
  const struct model *model; /* borrowed */
  int pages, page_tokens;
  int layers;            /* the model's, or one that all of them share */
  void **keys, **values; /* [layers] */
  int32_t *references;   /* [pages] */
  bool *distrusted;      /* [pages] to be cleared before they are taken again */
  int32_t *free_pages;   /* stack */
  int free_count;
};

static size_t round_up(size_t n, size_t grain) { return (n + grain - 1) / grain * grain; }

/* Bytes of one page in one layer. */
static size_t key_bytes(const struct model *m, int page_tokens) {
  return (size_t)m->config.kv_heads * (size_t)page_tokens * round_up((size_t)m->config.head_dim, 32) *
         m->ops->operand_bytes;
}
static size_t value_bytes(const struct model *m, int page_tokens) {
  return (size_t)m->config.kv_heads * (size_t)page_tokens * round_up((size_t)m->config.head_dim, 16) *
         m->ops->operand_bytes;
}

size_t kv_layer_page_bytes(const struct model *m, int page_tokens) {
  return key_bytes(m, page_tokens) + value_bytes(m, page_tokens);
}
size_t kv_page_bytes(const struct model *m, int page_tokens) {
  return (size_t)m->config.layers * kv_layer_page_bytes(m, page_tokens);
}

static bool allocate(struct kv_cache *kv) {
  const struct ops *ops = kv->model->ops;
  const size_t layers = (size_t)kv->layers, pages = (size_t)kv->pages;
  kv->keys = calloc(layers, sizeof *kv->keys);
  kv->values = calloc(layers, sizeof *kv->values);
  kv->references = calloc(pages, sizeof *kv->references);
  kv->free_pages = calloc(pages, sizeof *kv->free_pages);
  kv->distrusted = calloc(pages, sizeof *kv->distrusted);
  if (!kv->keys || !kv->values || !kv->references || !kv->free_pages || !kv->distrusted) return false;
  for (size_t layer = 0; layer < layers; layer++) {
    kv->keys[layer] = ops->alloc(ops, pages * key_bytes(kv->model, kv->page_tokens));
    kv->values[layer] = ops->alloc(ops, pages * value_bytes(kv->model, kv->page_tokens));
    if (!kv->keys[layer] || !kv->values[layer]) return false;
  }
  return true;
}

static enum rc create(struct kv_cache **out, const struct model *m, int layers, int pages, int page_tokens,
                      struct err *err) {
  *out = NULL;
  if (page_tokens < 16 || page_tokens > 1024 || page_tokens % 16 != 0)
    return err_set(err, RC_INVALID, "page_tokens", "expected a multiple of 16 up to 1024, got %d", page_tokens);
  if (pages < 1) return err_set(err, RC_INVALID, "pages", "expected at least one page, got %d", pages);
  struct kv_cache *kv = calloc(1, sizeof *kv);
  if (kv) {
    kv->model = m;
    kv->layers = layers;
    kv->pages = pages;
    kv->page_tokens = page_tokens;
  }
  if (!kv || !allocate(kv)) {
    kv_cache_free(kv);
    return err_set(err, RC_NO_MEMORY, NULL, "a KV cache of %d pages of %d tokens needs %zu bytes, which were refused",
                   pages, page_tokens, (size_t)layers * (size_t)pages * kv_layer_page_bytes(m, page_tokens));
  }
  for (int i = 0; i < pages; i++) kv->free_pages[kv->free_count++] = pages - 1 - i; /* page 0 is taken first */
  *out = kv;
  return RC_OK;
}

enum rc kv_cache_create(struct kv_cache **out, const struct model *m, int pages, int page_tokens, struct err *err) {
  return create(out, m, m->config.layers, pages, page_tokens, err);
}
enum rc kv_cache_create_single(struct kv_cache **out, const struct model *m, int pages, int page_tokens,
                               struct err *err) {
  return create(out, m, 1, pages, page_tokens, err);
}

void kv_cache_free(struct kv_cache *kv) {
  if (!kv) return;
  const struct ops *ops = kv->model->ops;
  for (int layer = 0; layer < kv->layers; layer++) {
    if (kv->keys && kv->keys[layer]) ops->release(ops, kv->keys[layer]);
    if (kv->values && kv->values[layer]) ops->release(ops, kv->values[layer]);
  }
  free(kv->keys);
  free(kv->values);
  free(kv->references);
  free(kv->free_pages);
  free(kv->distrusted);
  free(kv);
}

int kv_pages_free(const struct kv_cache *kv) { return kv->free_count; }
int kv_pages_total(const struct kv_cache *kv) { return kv->pages; }
int kv_page_tokens(const struct kv_cache *kv) { return kv->page_tokens; }

struct kv_layer kv_cache_layer(const struct kv_cache *kv, int layer) {
  assert(layer >= 0 && layer < kv->model->config.layers);
  const int at = kv->layers == 1 ? 0 : layer;
  return (struct kv_layer){.keys = kv->keys[at],
                           .values = kv->values[at],
                           .page_tokens = kv->page_tokens,
                           .G = kv->model->config.kv_heads,
                           .E = kv->model->config.head_dim};
}

static int pages_of(const struct kv_cache *kv, int length) {
  return length / kv->page_tokens + (length % kv->page_tokens != 0);
}

static void clear_page(struct kv_cache *kv, int32_t page) {
  const struct ops *ops = kv->model->ops;
  const size_t k = key_bytes(kv->model, kv->page_tokens), v = value_bytes(kv->model, kv->page_tokens);
  for (int layer = 0; layer < kv->layers; layer++) {
    ops->clear(ops, (char *)kv->keys[layer] + (size_t)page * k, k);
    ops->clear(ops, (char *)kv->values[layer] + (size_t)page * v, v);
  }
  kv->distrusted[page] = false;
}

void kv_distrust(struct kv_cache *kv, const struct kv_sequence *s) {
  for (int i = 0; i < s->page_count; i++) kv->distrusted[s->pages[i]] = true;
}

void kv_clear(struct kv_cache *kv) {
  for (int32_t page = 0; page < kv->pages; page++) clear_page(kv, page);
}

static int32_t take_page(struct kv_cache *kv) {
  assert(kv->free_count > 0);
  const int32_t page = kv->free_pages[--kv->free_count];
  assert(kv->references[page] == 0);
  kv->references[page] = 1;
  if (kv->distrusted[page]) clear_page(kv, page);
  return page;
}

static void drop_page(struct kv_cache *kv, int32_t page) {
  assert(page >= 0 && page < kv->pages && kv->references[page] > 0);
  if (--kv->references[page] == 0) kv->free_pages[kv->free_count++] = page;
}

static void copy_page(struct kv_cache *kv, int32_t to, int32_t from) {
  const struct ops *ops = kv->model->ops;
  const size_t k = key_bytes(kv->model, kv->page_tokens), v = value_bytes(kv->model, kv->page_tokens);
  for (int layer = 0; layer < kv->layers; layer++) {
    char *keys = kv->keys[layer], *values = kv->values[layer];
    ops->copy(ops, keys + (size_t)to * k, keys + (size_t)from * k, k);
    ops->copy(ops, values + (size_t)to * v, values + (size_t)from * v, v);
  }
  kv->distrusted[to] = kv->distrusted[from];
}

enum rc kv_sequence_init(struct kv_sequence *s, const struct kv_cache *kv, int tokens_max, struct err *err) {
  assert(tokens_max > 0);
  *s = (struct kv_sequence){.pages_max = pages_of(kv, tokens_max)};
  s->pages = calloc((size_t)s->pages_max, sizeof *s->pages);
  if (!s->pages)
    return err_set(err, RC_NO_MEMORY, NULL, "a page list of %d pages needs %zu bytes, which were refused", s->pages_max,
                   (size_t)s->pages_max * sizeof *s->pages);
  return RC_OK;
}

void kv_sequence_release(struct kv_cache *kv, struct kv_sequence *s) {
  if (!s->pages) return;
  kv_truncate(kv, s, 0);
  free(s->pages);
  *s = (struct kv_sequence){0};
}

/* Whether writing at s->length would change a page that others read. */
static bool copies_on_write(const struct kv_cache *kv, const struct kv_sequence *s) {
  return s->length % kv->page_tokens != 0 && kv->references[s->pages[s->page_count - 1]] > 1;
}

int kv_pages_needed(const struct kv_cache *kv, const struct kv_sequence *s, int length) {
  if (length <= s->length) return 0;
  return pages_of(kv, length) - s->page_count + (copies_on_write(kv, s) ? 1 : 0);
}

enum rc kv_reserve(struct kv_cache *kv, struct kv_sequence *s, int length) {
  if (length <= s->length) return RC_OK;
  assert(pages_of(kv, length) <= s->pages_max);
  if (kv_pages_needed(kv, s, length) > kv->free_count) return RC_FULL;
  if (copies_on_write(kv, s)) {
    int32_t *last = &s->pages[s->page_count - 1];
    const int32_t copy = take_page(kv);
    copy_page(kv, copy, *last);
    drop_page(kv, *last);
    *last = copy;
  }
  while (s->page_count < pages_of(kv, length)) s->pages[s->page_count++] = take_page(kv);
  s->length = length;
  return RC_OK;
}

void kv_fork(struct kv_cache *kv, struct kv_sequence *child, const struct kv_sequence *parent, int length) {
  assert(child->pages && child->page_count == 0 && length >= 0 && length <= parent->length);
  const int count = pages_of(kv, length);
  assert(count <= child->pages_max);
  for (int i = 0; i < count; i++) {
    child->pages[i] = parent->pages[i];
    kv->references[child->pages[i]]++;
  }
  child->page_count = count;
  child->length = length;
}

void kv_truncate(struct kv_cache *kv, struct kv_sequence *s, int length) {
  assert(length >= 0);
  if (length >= s->length) return;
  const int keep = pages_of(kv, length);
  while (s->page_count > keep) drop_page(kv, s->pages[--s->page_count]);
  s->length = length;
}
