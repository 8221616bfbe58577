/* A folder that stands for the root of a machine's file system: tests put what they need of /proc and /sys there. */
#ifndef LEASEHOLD_TESTS_UNIT_BASE_MACHINE_ROOT_H
#define LEASEHOLD_TESTS_UNIT_BASE_MACHINE_ROOT_H

#include <stdio.h>
#include <string.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "tests/unit/base/scratch.h"

static char root[64];

static inline int make_root(void **state) {
  (void)state;
  scratch_folder(root, sizeof root, "machine");
  return 0;
}
static inline int remove_root(void **state) {
  (void)state;
  return file_remove_tree(root, NULL) == RC_OK ? 0 : -1;
}

/* root/dir/name with this text; dir begins with '/'. */
static inline void put(const char *dir, const char *name, const char *text) {
  char path[LIMIT_PATH_MAX];
  snprintf(path, sizeof path, "%s%s", root, dir);
  assert_int_equal(file_make_dirs(path, NULL), RC_OK);
  snprintf(path, sizeof path, "%s%s/%s", root, dir, name);
  assert_int_equal(file_write_atomic(path, text, strlen(text), NULL), RC_OK);
}

#endif
