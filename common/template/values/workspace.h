/* The memory, steps and depth that one parsing or rendering of a template may use, each with a ceiling, so that no
 * template and no conversation can hold a thread or the machine.
 *
 * Everything that is made while rendering lies in the workspace's arena and is freed with it.  Work is counted, never
 * timed: a node, an iteration or a lookup is one step, and every STEP_BYTES bytes that are copied or searched another.
 * Faults are recorded here with the template's line.  One thread. */
#ifndef LEASEHOLD_TEMPLATE_VALUES_WORKSPACE_H
#define LEASEHOLD_TEMPLATE_VALUES_WORKSPACE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/arena.h"
#include "common/base/rc.h"

enum { STEP_BYTES = 32 };

/* How built-ins find others by their names: map("upper"), select("defined"). */
struct builtin;
struct builtin_names {
  const struct builtin *(*filter)(const char *name);
  const struct builtin *(*test)(const char *name); /* NULL: there is none of this name */
};

struct workspace {
  struct arena arena;
  size_t bytes, bytes_max; /* taken from the arena, and written by builders */
  size_t text_max;         /* bytes of one text */
  int64_t steps, steps_max;
  int depth, depth_max; /* nested evaluations: bounds the C stack */
  int line;             /* of the template, the one that is worked on */
  int64_t now_ms;       /* the wall clock that strftime_now shows */
  const struct builtin_names *builtins;
  enum rc rc; /* of the first fault */
  struct err *err;
};

/* Zeroed; NULL after a fault was recorded: then return w->rc. */
void *work_alloc(struct workspace *w, size_t count, size_t size);
/* The same without zeroes. */
void *work_alloc_bytes(struct workspace *w, size_t bytes);
/* Counts memory that lies elsewhere. */
enum rc work_charge_bytes(struct workspace *w, size_t bytes);
/* Counts work over `bytes` bytes: a step, and one more for each STEP_BYTES. */
enum rc work_charge(struct workspace *w, size_t bytes);
/* work_leave follows a work_enter that gave RC_OK. */
enum rc work_enter(struct workspace *w);
void work_leave(struct workspace *w);
/* Records a fault with the line in front, and gives rc. */
enum rc work_fail(struct workspace *w, enum rc rc, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
