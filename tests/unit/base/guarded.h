/* A copy of some bytes that ends, or begins, at the edge of mapped memory: code that reads beyond it crashes, without
 * any sanitizer. */
#ifndef LEASEHOLD_TESTS_UNIT_BASE_GUARDED_H
#define LEASEHOLD_TESTS_UNIT_BASE_GUARDED_H

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct guarded {
  void *at; /* writable; aligned as far as `bytes` allows */
  char *map;
  size_t mapped;
};

/* data NULL: zeros. */
static inline struct guarded guarded_copy(const void *data, size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), held = (bytes + page - 1) / page * page;
  struct guarded g = {.mapped = held + page};
  g.map = mmap(NULL, g.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(g.map != MAP_FAILED);
  assert_int_equal(mprotect(g.map + held, page, PROT_NONE), 0);
  g.at = g.map + held - bytes;
  if (data) memcpy(g.at, data, bytes);
  return g;
}

/* The same the other way round: code that reads before the copy crashes. */
static inline struct guarded guarded_begin(const void *data, size_t bytes) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), held = (bytes + page - 1) / page * page;
  struct guarded g = {.mapped = held + page};
  g.map = mmap(NULL, g.mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(g.map != MAP_FAILED);
  assert_int_equal(mprotect(g.map, page, PROT_NONE), 0);
  g.at = g.map + page;
  if (data) memcpy(g.at, data, bytes);
  return g;
}

static inline void guarded_free(struct guarded *g) { assert_int_equal(munmap(g->map, g->mapped), 0); }

#endif
