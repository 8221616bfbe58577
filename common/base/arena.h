/* An arena: allocations that live exactly as long as one request and are freed in one place.  Not thread-safe. */
#ifndef LEASEHOLD_BASE_ARENA_H
#define LEASEHOLD_BASE_ARENA_H

#include <stddef.h>

struct arena_block;
struct arena {
  struct arena_block *head;
};

#define ARENA_INIT \
  { 0 }

/* Zeroed memory, 16-byte aligned, valid until arena_free; NULL when memory is refused or count*size overflows. */
void *arena_alloc(struct arena *a, size_t count, size_t size);
/* The same without the zeroes, for bytes that the caller fills at once. */
void *arena_alloc_bytes(struct arena *a, size_t bytes);
/* A NUL-terminated copy of len bytes; NULL when memory is refused. */
char *arena_strndup(struct arena *a, const char *text, size_t len);
char *arena_strdup(struct arena *a, const char *text);
void arena_free(struct arena *a);

#endif
