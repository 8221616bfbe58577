/* Finds out how much of the machine this process may take.
 *
 * Reads /proc/meminfo, /proc/self/cgroup and the files of the control groups; a missing file sets no bound.  A
 * container sees its own group at the root of the mount, whatever /proc/self/cgroup calls it, so each ancestor up to
 * the root is tried and paths that do not exist here are skipped. */
#include "common/base/machine.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>

#include "common/base/limits.h"

/* --- control groups --- */

enum group_version { GROUPS_V1, GROUPS_V2 };

struct walk {
  const char *root, *controller;
  void (*visit)(void *context, const char *dir, enum group_version version);
  void *context;
};

/* The group at mount/path and all above it; path begins with '/'. */
static void look_upwards(const struct walk *w, enum group_version version, const char *path) {
  char dir[LIMIT_PATH_MAX], mount[64] = "/sys/fs/cgroup";
  if (version == GROUPS_V1) snprintf(mount, sizeof mount, "/sys/fs/cgroup/%s", w->controller);
  const int n = snprintf(dir, sizeof dir, "%s%s%s", w->root, mount, path);
  if (n >= (int)sizeof dir) return;
  const size_t top = strlen(w->root) + strlen(mount);
  for (;;) {
    char *slash = strrchr(dir, '/');
    w->visit(w->context, dir, version);
    if (!slash || (size_t)(slash - dir) < top) return;
    *slash = 0;
  }
}

/* A line "ID:CONTROLLERS:PATH": v2 has no controllers, a hierarchy of v1 names its own. */
static void look_at_line(const struct walk *w, char *line) {
  char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!path || path[1] != '/') return;
  *path++ = 0;
  path[strcspn(path, "\n")] = 0;
  if (*++controllers == 0) {
    look_upwards(w, GROUPS_V2, path);
    return;
  }
  for (char *save, *name = strtok_r(controllers, ",", &save); name; name = strtok_r(NULL, ",", &save))
    if (strcmp(name, w->controller) == 0) look_upwards(w, GROUPS_V1, path);
}

/* Calls visit with the folder of every group that may bound `controller` ("memory", "cpu"): of v2's hierarchy, which
 * has all controllers, and of v1's with that one. */
static void group_walk(const char *root, const char *controller,
                       void (*visit)(void *context, const char *dir, enum group_version version), void *context) {
  const struct walk w = {root, controller, visit, context};
  char path[LIMIT_PATH_MAX], line[LIMIT_PATH_MAX];
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *groups = fopen(path, "re");
  if (!groups) return;
  while (fgets(line, sizeof line, groups)) look_at_line(&w, line);
  fclose(groups);
}

/* The number in the first line that fits the format; 0 when there is none. */
static uint64_t file_number(const char *dir, const char *file, const char *format) {
  char path[LIMIT_PATH_MAX], line[256];
  uint64_t value = 0;
  if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path) return 0;
  FILE *f = fopen(path, "re");
  if (!f) return 0;
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, format, &value) == 1) break;
    value = 0;
  }
  fclose(f);
  return value;
}

/* --- memory --- */

#define UNLIMITED (UINT64_MAX / 4) /* v1 says "no limit" with a number near 2^63 */

/* How the files of one group are called, by version. */
struct group_files {
  const char *limit, *used, *reclaimable;
};
static const struct group_files FILES[] = {
    [GROUPS_V2] = {"memory.max", "memory.current", "inactive_file %" SCNu64},
    [GROUPS_V1] = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file %" SCNu64}};

/* Keeps the group at dir if it leaves less than the groups seen so far. */
static void look_at_memory(void *context, const char *dir, enum group_version version) {
  const struct group_files *h = &FILES[version];
  struct memory_room *room = context;
  const uint64_t limit = file_number(dir, h->limit, "%" SCNu64);
  if (limit == 0 || limit >= UNLIMITED) return;
  const uint64_t charged = file_number(dir, h->used, "%" SCNu64),
                 cached = file_number(dir, "memory.stat", h->reclaimable);
  const uint64_t used = charged > cached ? charged - cached : 0, left = limit > used ? limit - used : 0;
  if (room->group_limit && left >= room->group_limit - room->group_used) return;
  room->group_limit = (size_t)limit;
  room->group_used = (size_t)(limit - left);
}

void memory_room_read(struct memory_room *out, const char *root, size_t bound) {
  *out = (struct memory_room){.bound = bound};
  out->machine = (size_t)file_number(root, "proc/meminfo", "MemAvailable: %" SCNu64) * 1024;
  group_walk(root, "memory", look_at_memory, out);
}

size_t memory_room_left(const struct memory_room *room) {
  size_t left = SIZE_MAX;
  if (room->machine && room->machine < left) left = room->machine;
  if (room->group_limit && room->group_limit - room->group_used < left) left = room->group_limit - room->group_used;
  if (room->bound && room->bound < left) left = room->bound;
  return left;
}

/* --- disks --- */

double machine_disk_free(const char *path) {
  struct statvfs disk;
  return statvfs(path, &disk) == 0 ? (double)disk.f_bavail * (double)disk.f_frsize : NAN;
}

/* --- cores --- */

/* Quota and period.  v2 has both in one line, "QUOTA PERIOD" or "max PERIOD"; v1 says "no quota" with -1. */
struct quota_file {
  const char *name, *format;
};
static const struct quota_file QUOTAS[][2] = {
    [GROUPS_V2] = {{"cpu.max", "%" SCNu64}, {"cpu.max", "%*s %" SCNu64}},
    [GROUPS_V1] = {{"cpu.cfs_quota_us", "%" SCNu64}, {"cpu.cfs_period_us", "%" SCNu64}}};

/* Keeps the group's grant if it is less than those of the groups seen so far. */
static void look_at_quota(void *context, const char *dir, enum group_version version) {
  const struct quota_file *const q = QUOTAS[version];
  int *granted = context;
  const int64_t quota = (int64_t)file_number(dir, q[0].name, q[0].format),
                period = (int64_t)file_number(dir, q[1].name, q[1].format);
  if (quota <= 0 || period <= 0) return;
  const int64_t cores = quota / period + (quota % period != 0);
  if (cores < INT_MAX && (*granted == 0 || cores < *granted)) *granted = (int)cores;
}

int cores_granted(const char *root) {
  int granted = 0;
  group_walk(root, "cpu", look_at_quota, &granted);
  return granted;
}

int cores_usable(void) {
  cpu_set_t set;
  const int allowed = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1, granted = cores_granted("");
  const int cores = granted > 0 && granted < allowed ? granted : allowed;
  return cores < LIMIT_THREADS ? cores : LIMIT_THREADS;
}
