/* A scratch file is memory: zeros at first, what was written stays, also after its pages have left; it has no name, and
 * a disk that lacks the room refuses it. */
#include "tests/unit/base/cm.h"

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/model/learning/scratch_file.h"

static struct err err;
static char dir[] = "/tmp/leasehold-scratch-XXXXXX";

static int folder_is_empty(void) {
  DIR *folder = opendir(dir);
  int entries = 0;
  assert_non_null(folder);
  while (readdir(folder)) entries++;
  closedir(folder);
  return entries == 2; /* . and .. */
}

static size_t resident(const struct scratch_file *f) {
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), pages = f->bytes / page;
  size_t kib = 0;
  char line[256], start[32];
  FILE *maps = fopen("/proc/self/smaps", "re");
  assert_non_null(maps);
  snprintf(start, sizeof start, "%lx-", (unsigned long)(uintptr_t)f->memory);
  for (int here = 0; fgets(line, sizeof line, maps);) {
    if (strncmp(line, start, strlen(start)) == 0) here = 1;
    if (here && sscanf(line, "Rss: %zu kB", &kib) == 1) break;
  }
  fclose(maps);
  assert_true(kib <= pages * page / 1024);
  return kib * 1024;
}

static void what_was_written_stays_when_its_pages_have_left(void **state) {
  (void)state;
  enum { BYTES = 1 << 20 };
  struct scratch_file f;
  if (scratch_file_make(&f, dir, BYTES, &err) != RC_OK) fail_msg("%s", err.message);
  assert_true(folder_is_empty());
  for (int i = 0; i < BYTES; i++) assert_int_equal(f.memory[i], 0);
  for (int i = 0; i < BYTES; i++) f.memory[i] = (char)(i * 7);
  assert_true(resident(&f) == BYTES);
  scratch_file_done(&f, f.memory + 5000, BYTES - 9000);
  assert_true(resident(&f) <= 16384);
  scratch_file_done(&f, f.memory, 2 * BYTES); /* no further than it goes */
  assert_int_equal(resident(&f), 0);
  for (int i = 0; i < BYTES; i++) assert_int_equal(f.memory[i], (char)(i * 7));
  scratch_file_free(&f);
  assert_null(f.memory);
}

static void memory_that_is_not_its_own_is_left_alone(void **state) {
  (void)state;
  struct scratch_file f, none = {0};
  char *other = calloc(1, 1 << 16);
  assert_int_equal(scratch_file_make(&f, dir, 1 << 16, &err), RC_OK);
  memset(other, 3, 1 << 16);
  scratch_file_done(&f, other, 1 << 16);
  scratch_file_done(&none, other, 1 << 16);
  for (int i = 0; i < 1 << 16; i++) assert_int_equal(other[i], 3);
  scratch_file_free(&f);
  free(other);
}

static void a_folder_without_room_refuses(void **state) {
  (void)state;
  struct scratch_file f;
  assert_int_equal(scratch_file_make(&f, "/nowhere/at/all", 100, &err), RC_IO);
  assert_non_null(strstr(err.message, "/nowhere/at/all"));
  assert_int_equal(scratch_file_make(&f, dir, (size_t)1 << 50, &err), RC_IO);
  assert_non_null(strstr(err.message, "reserving 1125899906842624 bytes"));
  assert_true(folder_is_empty());
  assert_int_equal(scratch_file_make(&f, dir, 0, &err), RC_OK); /* a rank may have nothing to keep */
  scratch_file_free(&f);
}

static int gone(void **state) {
  (void)state;
  return file_remove_tree(dir, NULL) == RC_OK ? 0 : -1;
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(what_was_written_stays_when_its_pages_have_left),
      cmocka_unit_test(memory_that_is_not_its_own_is_left_alone),
      cmocka_unit_test(a_folder_without_room_refuses),
  };
  if (!mkdtemp(dir)) return 1;
  return cmocka_run_group_tests_name("model/scratch_file", tests, NULL, gone);
}
