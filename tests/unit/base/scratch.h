/* A new empty folder for one test, in memory where the machine has such a file system: what is tested is seldom the
 * disk, and a test that creates a database or a checkpoint would mostly wait for it to be written. */
#ifndef LEASEHOLD_TESTS_UNIT_BASE_SCRATCH_H
#define LEASEHOLD_TESTS_UNIT_BASE_SCRATCH_H

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/unit/base/cm.h"

/* Its path goes to *path, for which there are `size` bytes; the caller removes it (file_remove_tree). */
static inline void scratch_folder(char *path, size_t size, const char *name) {
  const char *const root = access("/dev/shm", W_OK | X_OK) == 0 ? "/dev/shm" : "/tmp";
  const int n = snprintf(path, size, "%s/leasehold-%s-XXXXXX", root, name);
  assert_true(n > 0 && (size_t)n < size);
  if (!mkdtemp(path)) fail_msg("no folder could be made in %s", root);
}

#endif
