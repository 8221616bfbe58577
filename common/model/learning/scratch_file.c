/* Maps files without a name. */
#include "common/model/learning/scratch_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/limits.h"

/* O_TMPFILE where the file system has it, else a name that is taken away at once. */
static int open_nameless(const char *dir) {
  char path[LIMIT_PATH_MAX];
  const int fd = open(dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
  if (fd >= 0 || (errno != EOPNOTSUPP && errno != EISDIR && errno != EINVAL)) return fd;
  if (snprintf(path, sizeof path, "%s/.scratch-XXXXXX", dir) >= (int)sizeof path) {
    errno = ENAMETOOLONG;
    return -1;
  }
  const int named = mkostemp(path, O_CLOEXEC);
  if (named >= 0) unlink(path);
  return named;
}

enum rc scratch_file_make(struct scratch_file *out, const char *dir, size_t bytes, struct err *err) {
  *out = (struct scratch_file){.fd = open_nameless(dir), .bytes = bytes};
  if (out->fd < 0) return err_set_errno(err, RC_IO, "making a scratch file in %s", dir);
  const int reserved = bytes > 0 ? posix_fallocate(out->fd, 0, (off_t)bytes) : 0;
  if (reserved != 0) {
    errno = reserved;
    err_set_errno(err, RC_IO, "reserving %zu bytes for a scratch file in %s", bytes, dir);
    scratch_file_free(out);
    return RC_IO;
  }
  void *memory = mmap(NULL, bytes > 0 ? bytes : 1, PROT_READ | PROT_WRITE, MAP_SHARED, out->fd, 0);
  if (memory == MAP_FAILED) {
    err_set_errno(err, RC_IO, "mapping %zu bytes of a scratch file in %s", bytes, dir);
    scratch_file_free(out);
    return RC_IO;
  }
  out->memory = memory;
  return RC_OK;
}

void scratch_file_free(struct scratch_file *f) {
  if (f->memory) munmap(f->memory, f->bytes > 0 ? f->bytes : 1);
  if (f->memory || f->fd > 0) close(f->fd);
  *f = (struct scratch_file){.fd = -1};
}

/* Advice: what the kernel makes of it changes no value.  A page that holds other bytes too comes back when they are
 *   used. */
void scratch_file_done(const struct scratch_file *f, const void *part, size_t bytes) {
  const uintptr_t base = (uintptr_t)f->memory, at = (uintptr_t)part;
  if (!f->memory || at < base || at - base >= f->bytes) return;
  const size_t page = (size_t)sysconf(_SC_PAGESIZE), first = (at - base) / page * page;
  const size_t end = at - base + bytes < f->bytes ? at - base + bytes : f->bytes;
  (void)madvise(f->memory + first, end - first, MADV_DONTNEED);
  (void)sync_file_range(f->fd, (off_t)first, (off_t)(end - first), SYNC_FILE_RANGE_WRITE);
}
