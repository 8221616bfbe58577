/* Reads whole files and writes them durably.
 *
 * Durable means: data fsynced, then renamed, then the folder fsynced, so that after a crash a name leads either to the
 * old content or to all of the new.  Any thread; two writers of one path are the caller's mistake. */
#include "common/base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/limits.h"

enum { READ_CHUNK = 1 << 16, TREE_OPEN_MAX = 16 };

static enum rc io_error(struct err *err, const char *doing, const char *path) {
  const enum rc rc = errno == ENOENT ? RC_NOT_FOUND : RC_IO;
  return err_set_errno(err, rc, "%s %s", doing, path);
}

static enum rc read_all(struct buf *out, int fd, const char *path, size_t max_bytes, struct err *err) {
  size_t total = 0;
  for (;;) {
    buf_reserve(out, READ_CHUNK);
    const enum rc rc = buf_check(out, err);
    if (rc) return rc;
    const ssize_t n = read(fd, out->data + out->len, out->cap - out->len - 1);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return err_set_errno(err, RC_IO, "reading %s", path);
    if (n == 0) break;
    total += (size_t)n;
    if (total > max_bytes)
      return err_set(err, RC_TOO_LARGE, NULL, "%s: expected at most %zu bytes, got more", path, max_bytes);
    out->len += (size_t)n;
  }
  out->data[out->len] = '\0';
  return RC_OK;
}

enum rc file_read(struct buf *out, const char *path, size_t max_bytes, struct err *err) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return io_error(err, "opening", path);
  const size_t len_before = out->len;
  struct stat st;
  enum rc rc = RC_OK;
  if (fstat(fd, &st) != 0)
    rc = err_set_errno(err, RC_IO, "looking at %s", path);
  else if (S_ISDIR(st.st_mode))
    rc = err_set(err, RC_IO, NULL, "%s: expected a file, got a folder", path);
  else if (S_ISREG(st.st_mode) && (uintmax_t)st.st_size > max_bytes)
    rc = err_set(err, RC_TOO_LARGE, NULL, "%s: expected at most %zu bytes, got %jd", path, max_bytes,
                 (intmax_t)st.st_size);
  else {
    if (S_ISREG(st.st_mode)) buf_reserve(out, (size_t)st.st_size + READ_CHUNK);
    rc = read_all(out, fd, path, max_bytes, err);
  }
  close(fd);
  if (rc && out->data) { /* after a failed read *out holds its old content */
    out->len = len_before;
    out->data[len_before] = '\0';
  }
  return rc;
}

/* The folder part of path; "." when there is none. */
static enum rc parent_of(char out[LIMIT_PATH_MAX], const char *path, struct err *err) {
  const char *slash = strrchr(path, '/');
  const size_t len = !slash ? 0 : slash == path ? 1 : (size_t)(slash - path);
  if (len >= LIMIT_PATH_MAX)
    return err_set(err, RC_TOO_LARGE, NULL, "expected a path below %d bytes, got %zu", LIMIT_PATH_MAX, len);
  memcpy(out, len ? path : ".", len ? len : 1);
  out[len ? len : 1] = '\0';
  return RC_OK;
}

enum rc file_sync_dir(const char *path, struct err *err) {
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return io_error(err, "opening folder", path);
  enum rc rc = RC_OK;
  if (fsync(fd) != 0) rc = err_set_errno(err, RC_IO, "fsync of folder %s", path);
  close(fd);
  return rc;
}

static enum rc sync_file(int fd, const char *path, struct err *err) {
  return fsync(fd) == 0 ? RC_OK : err_set_errno(err, RC_IO, "fsync of %s", path);
}

/* Starts the writing only; a file system that cannot be told so writes when it is synced. */
static enum rc start_file(int fd, const char *path, struct err *err) {
  (void)path, (void)err;
  sync_file_range(fd, 0, 0, SYNC_FILE_RANGE_WRITE);
  return RC_OK;
}

static enum rc each_file(const char *path, enum rc (*act)(int fd, const char *path, struct err *err), struct err *err) {
  DIR *folder = opendir(path);
  if (!folder) return io_error(err, "listing", path);
  enum rc rc = RC_OK;
  for (const struct dirent *e; rc == RC_OK && (e = readdir(folder));) {
    struct stat st;
    char file[LIMIT_PATH_MAX];
    if (fstatat(dirfd(folder), e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && !S_ISREG(st.st_mode)) continue;
    if ((rc = path_format(file, err, "%s/%s", path, e->d_name)) != RC_OK) break;
    const int fd = open(file, O_RDONLY | O_CLOEXEC);
    rc = fd < 0 ? io_error(err, "opening", file) : act(fd, file, err);
    if (fd >= 0) close(fd);
  }
  closedir(folder);
  return rc;
}

enum rc file_sync_folder(const char *path, struct err *err) {
  enum rc rc = each_file(path, start_file, err);
  if (rc == RC_OK) rc = each_file(path, sync_file, err);
  return rc == RC_OK ? file_sync_dir(path, err) : rc;
}

enum rc file_rename_durable(const char *from, const char *to, struct err *err) {
  char parent[LIMIT_PATH_MAX];
  const enum rc rc = parent_of(parent, to, err);
  if (rc) return rc;
  if (rename(from, to) != 0) {
    const enum rc code = errno == ENOENT ? RC_NOT_FOUND : RC_IO;
    return err_set_errno(err, code, "renaming %s to %s", from, to);
  }
  return file_sync_dir(parent, err);
}

enum rc file_sync(const char *path, struct err *err) {
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return err_set_errno(err, RC_IO, "opening %s", path);
  const enum rc rc = sync_file(fd, path, err);
  close(fd);
  return rc;
}

static enum rc write_all(int fd, const char *path, const char *bytes, size_t len, struct err *err) {
  for (size_t done = 0; done < len;) {
    const ssize_t n = write(fd, bytes + done, len - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return err_set_errno(err, RC_IO, "writing %s after %zu of %zu bytes", path, done, len);
    done += (size_t)n;
  }
  return RC_OK;
}

static enum rc create_and_write(const char *path, const void *bytes, size_t len, bool durable, struct err *err) {
  const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return io_error(err, "creating", path);
  enum rc rc = write_all(fd, path, bytes, len, err);
  if (rc == RC_OK && durable && fsync(fd) != 0) rc = err_set_errno(err, RC_IO, "fsync of %s", path);
  if (close(fd) != 0 && rc == RC_OK) rc = err_set_errno(err, RC_IO, "closing %s", path);
  return rc;
}

enum rc file_write(const char *path, const void *bytes, size_t len, struct err *err) {
  return create_and_write(path, bytes, len, false, err);
}

enum rc file_write_atomic(const char *path, const void *bytes, size_t len, struct err *err) {
  char tmp[LIMIT_PATH_MAX];
  const int n = snprintf(tmp, sizeof tmp, "%s.tmp", path);
  if (n < 0 || (size_t)n >= sizeof tmp)
    return err_set(err, RC_TOO_LARGE, NULL, "expected a path below %d bytes, got %zu", LIMIT_PATH_MAX - 4,
                   strlen(path));
  enum rc rc = create_and_write(tmp, bytes, len, true, err);
  if (!rc) rc = file_rename_durable(tmp, path, err);
  if (rc) unlink(tmp); /* gone already if only the folder's fsync failed */
  return rc;
}

enum rc file_make_dirs(const char *path, struct err *err) {
  char part[LIMIT_PATH_MAX];
  const size_t len = strlen(path);
  if (len == 0 || len >= sizeof part)
    return err_set(err, RC_INVALID, NULL, "expected a folder path of 1 to %d bytes, got %zu", LIMIT_PATH_MAX - 1, len);
  memcpy(part, path, len + 1);
  for (size_t i = 1; i <= len; i++) {
    if (part[i] != '/' && part[i] != '\0') continue;
    part[i] = '\0';
    if (mkdir(part, 0755) != 0) {
      const int failed = errno;
      struct stat st;
      if (stat(part, &st) != 0) {
        errno = failed;
        return err_set_errno(err, RC_IO, "making folder %s", part);
      }
      if (!S_ISDIR(st.st_mode))
        return err_set(err, RC_IO, NULL, "making folder %s: expected a folder, got a file there", part);
    }
    part[i] = path[i];
  }
  return RC_OK;
}

enum rc file_refuse_pointer(const void *bytes, size_t len, struct err *err) {
  static const char beginning[] = "version https://git-lfs.github.com/";
  if (len < sizeof beginning - 1 || memcmp(bytes, beginning, sizeof beginning - 1) != 0) return RC_OK;
  return err_set(err, RC_INVALID, NULL,
                 "this is a pointer of %zu bytes to a file in Git LFS, not the file: `git lfs pull` fetches it", len);
}

bool file_exists(const char *path) {
  struct stat st;
  return stat(path, &st) == 0;
}

static int remove_entry(const char *path, const struct stat *st, int kind, struct FTW *where) {
  (void)st;
  (void)kind;
  (void)where;
  return remove(path) == 0 || errno == ENOENT ? 0 : -1;
}

enum rc file_remove_tree(const char *path, struct err *err) {
  const size_t len = strlen(path);
  if (strspn(path, "/.") == len) /* "", "/", ".", "..", "//" */
    return err_set(err, RC_INVALID, NULL, "refusing to remove \"%s\": expected the path of a folder of ours", path);
  if (nftw(path, remove_entry, TREE_OPEN_MAX, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
    return err_set_errno(err, RC_IO, "removing %s", path);
  return RC_OK;
}

enum rc path_format(char *out, struct err *err, const char *format, ...) {
  va_list args;
  va_start(args, format);
  const int length = vsnprintf(out, LIMIT_PATH_MAX, format, args);
  va_end(args);
  if (length >= 0 && length < LIMIT_PATH_MAX) return RC_OK;
  return err_set(err, RC_TOO_LARGE, NULL, "expected a path below %d bytes, got %d: %.80s...", LIMIT_PATH_MAX, length,
                 out);
}

/* ---- how fast a disk is ---- */

enum { SPEED_BLOCK = 1 << 20, SPEED_BLOCKS = 32, SPEED_SYNC_BYTES = 4096, SPEED_SYNCS = 15, SPEED_US_MAX = 2000000 };

static enum rc speed_of_writes(int fd, const char *block, double *bytes_per_s, struct err *err) {
  const int64_t begun_us = clock_monotonic_us();
  int64_t written = 0;
  for (int i = 0; i < SPEED_BLOCKS && clock_monotonic_us() - begun_us < SPEED_US_MAX; i++) {
    const ssize_t n = write(fd, block, SPEED_BLOCK);
    if (n != SPEED_BLOCK) return err_set_errno(err, RC_IO, "writing %d bytes to try the disk", SPEED_BLOCK);
    written += n;
  }
  if (fdatasync(fd) != 0) return err_set_errno(err, RC_IO, "syncing a file to try the disk");
  const int64_t took_us = clock_monotonic_us() - begun_us;
  *bytes_per_s = (double)written * 1e6 / (double)(took_us > 0 ? took_us : 1);
  return RC_OK;
}

static int by_size(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static enum rc speed_of_syncs(int fd, const char *block, struct disk_speed *out, struct err *err) {
  int64_t took_us[SPEED_SYNCS], all_us = 0;
  int count = 0;
  for (; count < SPEED_SYNCS && all_us < SPEED_US_MAX; count++) {
    const int64_t begun_us = clock_monotonic_us();
    if (pwrite(fd, block, SPEED_SYNC_BYTES, (off_t)count * SPEED_SYNC_BYTES) != SPEED_SYNC_BYTES || fdatasync(fd) != 0)
      return err_set_errno(err, RC_IO, "syncing a block of %d bytes to try the disk", SPEED_SYNC_BYTES);
    took_us[count] = clock_monotonic_us() - begun_us;
    all_us += took_us[count];
  }
  qsort(took_us, (size_t)count, sizeof took_us[0], by_size);
  out->sync_us_median = took_us[count / 2];
  out->sync_us_most = took_us[count - 1];
  return RC_OK;
}

enum rc file_disk_speed(struct disk_speed *out, const char *dir, struct err *err) {
  char path[LIMIT_PATH_MAX];
  *out = (struct disk_speed){0};
  enum rc rc = path_format(path, err, "%s/.leasehold-speed-XXXXXX", dir);
  if (rc != RC_OK) return rc;
  char *block = malloc(SPEED_BLOCK);
  if (!block) return err_set(err, RC_NO_MEMORY, NULL, "%d bytes to try the disk with were refused", SPEED_BLOCK);
  for (size_t i = 0; i < SPEED_BLOCK; i++) block[i] = (char)(i * 2654435761u >> 13); /* not what a disk would pack */
  const int fd = mkostemp(path, O_CLOEXEC);
  if (fd < 0) rc = err_set_errno(err, RC_IO, "making a file in %s to try the disk", dir);
  if (fd >= 0) {
    unlink(path); /* it goes with the descriptor, also when this process is killed */
    rc = speed_of_writes(fd, block, &out->write_bytes_per_s, err);
    if (rc == RC_OK) rc = speed_of_syncs(fd, block, out, err);
    close(fd);
  }
  free(block);
  return rc;
}
