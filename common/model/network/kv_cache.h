/* The paged KV cache: pool memory sized at start, pages counted by reference so that samples of a group share their
 * prompt's pages.
 *
 * A sequence is a list of pages.  Sharing: kv_fork gives a sequence that refers to the same pages; before a sequence
 * writes into a page that others refer to, kv_reserve copies it (copy on write).  Accounting is exact: pages in use +
 * free = all, and a page is free exactly when no sequence refers to it.  Owned by the engine's thread.
 */
#ifndef LEASEHOLD_MODEL_NETWORK_KV_CACHE_H
#define LEASEHOLD_MODEL_NETWORK_KV_CACHE_H

#include "common/model/network/model.h"

struct kv_cache; /* opaque */

struct kv_sequence {
  int32_t *pages; /* [pages_max], owned by the sequence */
  int page_count;
  int length; /* positions written or reserved */
  int pages_max;
};

/* page_tokens: a multiple of 16 up to 1024. RC_NO_MEMORY says how much was needed. */
enum rc kv_cache_create(struct kv_cache **out, const struct model *m, int pages, int page_tokens, struct err *err);
/* One layer's memory for all layers: enough for calls that compute every sequence from its first position on, as the
 * trainer's do; a layer's keys and values are those of the layer that was written last. */
enum rc kv_cache_create_single(struct kv_cache **out, const struct model *m, int pages, int page_tokens,
                               struct err *err);
void kv_cache_free(struct kv_cache *kv);
size_t kv_layer_page_bytes(const struct model *m, int page_tokens); /* one layer, keys and values */
size_t kv_page_bytes(const struct model *m, int page_tokens);       /* all layers, keys and values */
int kv_pages_free(const struct kv_cache *kv);
int kv_pages_total(const struct kv_cache *kv);
int kv_page_tokens(const struct kv_cache *kv);
struct kv_layer kv_cache_layer(const struct kv_cache *kv, int layer);

enum rc kv_sequence_init(struct kv_sequence *s, const struct kv_cache *kv, int tokens_max, struct err *err);
/* Gives its pages back and frees its list. */
void kv_sequence_release(struct kv_cache *kv, struct kv_sequence *s);
/* Pages that kv_reserve(kv, s, length) would take from the pool, copies on write included. */
int kv_pages_needed(const struct kv_cache *kv, const struct kv_sequence *s, int length);
/* Makes positions [s->length, length) writable and sets s->length. RC_FULL, and nothing changed, when the pool lacks
 * pages. */
enum rc kv_reserve(struct kv_cache *kv, struct kv_sequence *s, int length);
/* child (initialized, empty) shares parent's first `length` positions. */
void kv_fork(struct kv_cache *kv, struct kv_sequence *child, const struct kv_sequence *parent, int length);
/* Drops everything after `length`. */
void kv_truncate(struct kv_cache *kv, struct kv_sequence *s, int length);
/* What was computed with its keys and values is not finite, so they may not be.  Its pages are cleared before others
 * take them: positions that were not written yet count as zero, and 0 x NaN is NaN. */
void kv_distrust(struct kv_cache *kv, const struct kv_sequence *s);
/* All pages, taken ones too. */
void kv_clear(struct kv_cache *kv);

#endif
