/* Opens, repairs and extends a file of records. */
#include "services/coordinator/trackers/track_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum rc cut(struct track_file *f, struct err *err) {
  return ftruncate(f->fd, (off_t)f->end) == 0 ? RC_OK : err_set_errno(err, RC_IO, "cutting %s", f->path);
}

static enum rc repair(struct track_file *f, track_scan scan, void *context, struct err *err) {
  struct stat st;
  if (fstat(f->fd, &st) != 0) return err_set_errno(err, RC_IO, "looking at %s", f->path);
  const size_t len = (size_t)st.st_size;
  if (len == 0) return RC_OK;
  char *bytes = mmap(NULL, len, PROT_READ, MAP_PRIVATE, f->fd, 0);
  if (bytes == MAP_FAILED) return err_set_errno(err, RC_IO, "reading %s", f->path);
  f->end = (int64_t)scan(context, bytes, len);
  munmap(bytes, len);
  return (size_t)f->end == len ? RC_OK : cut(f, err);
}

enum rc track_file_open(struct track_file *f, const char *path, track_scan scan, void *context, struct err *err) {
  f->end = 0;
  snprintf(f->path, sizeof f->path, "%s", path);
  f->fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (f->fd < 0) return err_set_errno(err, RC_IO, "opening %s", path);
  const enum rc rc = repair(f, scan, context, err);
  if (rc != RC_OK) track_file_close(f);
  return rc;
}

enum rc track_file_append(struct track_file *f, const char *bytes, size_t len, struct err *err) {
  size_t done = 0;
  while (done < len) {
    const ssize_t n = pwrite(f->fd, bytes + done, len - done, (off_t)(f->end + (int64_t)done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      const enum rc rc = err_set_errno(err, RC_IO, "writing %s", f->path);
      cut(f, NULL);
      return rc;
    }
    done += (size_t)n;
  }
  f->end += (int64_t)len;
  return RC_OK;
}

void track_file_close(struct track_file *f) {
  if (f->fd >= 0) close(f->fd);
  f->fd = -1;
}
