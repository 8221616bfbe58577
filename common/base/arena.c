/* Allocates from a list of blocks that are freed together.
 *
 * The head block is filled from the front; a large request gets a block of its own behind it, so that the rest of the
 * head stays usable.  Pieces are zeroed as they are given out, unless the caller fills them: a block that is zeroed as
 * a whole costs more than what is used of it.  Only a block of its own gets its zeroes from calloc. */
#include "common/base/arena.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 16, ARENA_BLOCK_FIRST = 4096, ARENA_BLOCK_MAX = 1 << 20 };

struct arena_block {
  struct arena_block *next;
  size_t used, size; /* bytes of payload */
  _Alignas(ARENA_ALIGN) unsigned char payload[];
};

static struct arena_block *block_new(size_t size, bool zeroed) {
  struct arena_block *b = zeroed ? calloc(1, sizeof *b + size) : malloc(sizeof *b + size);
  if (b) *b = (struct arena_block){.size = size};
  return b;
}

static void *take(struct arena *a, size_t bytes, bool zeroed) {
  if (bytes > (size_t)PTRDIFF_MAX - 2 * ARENA_BLOCK_MAX) return NULL;
  bytes = (bytes ? bytes + ARENA_ALIGN - 1 : ARENA_ALIGN) & ~(size_t)(ARENA_ALIGN - 1);
  struct arena_block *head = a->head;
  if (!head || head->size - head->used < bytes) {
    size_t next_size = head && head->size >= ARENA_BLOCK_FIRST ? head->size * 2 : ARENA_BLOCK_FIRST;
    if (next_size > ARENA_BLOCK_MAX) next_size = ARENA_BLOCK_MAX;
    if (bytes > next_size / 4) {
      struct arena_block *own = block_new(bytes, zeroed);
      if (!own) return NULL;
      own->used = bytes;
      if (head) {
        own->next = head->next;
        head->next = own;
      } else {
        a->head = own;
      }
      return own->payload;
    }
    struct arena_block *fresh = block_new(next_size, false);
    if (!fresh) return NULL;
    fresh->next = head;
    a->head = head = fresh;
  }
  void *p = head->payload + head->used;
  head->used += bytes;
  return zeroed ? memset(p, 0, bytes) : p;
}

void *arena_alloc(struct arena *a, size_t count, size_t size) {
  size_t bytes;
  return __builtin_mul_overflow(count, size, &bytes) ? NULL : take(a, bytes, true);
}

void *arena_alloc_bytes(struct arena *a, size_t bytes) { return take(a, bytes, false); }

char *arena_strndup(struct arena *a, const char *text, size_t len) {
  if (len == SIZE_MAX) return NULL;
  char *copy = arena_alloc_bytes(a, len + 1);
  if (!copy) return NULL;
  memcpy(copy, text, len);
  copy[len] = '\0';
  return copy;
}

char *arena_strdup(struct arena *a, const char *text) { return arena_strndup(a, text, strlen(text)); }

void arena_free(struct arena *a) {
  struct arena_block *b = a->head;
  while (b) {
    struct arena_block *next = b->next;
    free(b);
    b = next;
  }
  a->head = NULL;
}
