/* Tells how far reading or writing a large file has come: a line in the log every few seconds, and none for a short
 * one.
 *
 * The code that reads or writes makes one and adds what it has done; it asks nothing back.  The line says how much is
 * done, how fast, and how long the rest will take at that speed.  One thread at a time. */
#ifndef LEASEHOLD_SAFETENSORS_PROGRESS_H
#define LEASEHOLD_SAFETENSORS_PROGRESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROGRESS_MS = 3000, PROGRESS_LINE_MAX = 512 };

struct progress {
  const char *what; /* "loading /models/x"; borrowed */
  size_t done, all; /* bytes */
  int64_t begun_ms, told_ms;
};

void progress_begin(struct progress *p, const char *what, size_t bytes);
/* bytes more are done; p may be NULL. */
void progress_add(struct progress *p, size_t bytes);
/* The same at a given time; true when a line is due, which is then in out[PROGRESS_LINE_MAX]. */
bool progress_at(char *out, struct progress *p, size_t bytes, int64_t now_ms);

#endif
