/* Finds out how much memory this process may still take.
 *
 * Reads /proc/meminfo, /proc/self/cgroup and the files of the control groups; a missing file sets no bound.  A
 * container sees its own group at the root of the mount, whatever /proc/self/cgroup calls it, so each ancestor up to
 * the root is tried and paths that do not exist here are skipped. */
#include "common/base/memory.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"

#define UNLIMITED (UINT64_MAX / 4) /* v1 says "no limit" with a number near 2^63 */

/* The two hierarchies, as the files of one group are called. */
struct hierarchy {
  const char *mount, *limit, *used, *reclaimable;
};
static const struct hierarchy V2 = {"/sys/fs/cgroup", "memory.max", "memory.current", "inactive_file %" SCNu64};
static const struct hierarchy V1 = {"/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
                                    "total_inactive_file %" SCNu64};

/* The first line that fits the format; 0 when there is none. */
static uint64_t read_number(const char *path, const char *format) {
  FILE *f = fopen(path, "re");
  uint64_t value = 0;
  char line[256];
  if (!f) return 0;
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, format, &value) == 1) break;
    value = 0;
  }
  fclose(f);
  return value;
}

static uint64_t group_number(const char *dir, const char *file, const char *format) {
  char path[LIMIT_PATH_MAX];
  if (snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path) return 0;
  return read_number(path, format);
}

/* Keeps the group at dir if it leaves less than the groups seen so far. */
static void look_at_group(struct memory_room *room, const char *dir, const struct hierarchy *h) {
  const uint64_t limit = group_number(dir, h->limit, "%" SCNu64);
  if (limit == 0 || limit >= UNLIMITED) return;
  const uint64_t charged = group_number(dir, h->used, "%" SCNu64),
                 cached = group_number(dir, "memory.stat", h->reclaimable);
  const uint64_t used = charged > cached ? charged - cached : 0, left = limit > used ? limit - used : 0;
  if (room->group_limit && left >= room->group_limit - room->group_used) return;
  room->group_limit = (size_t)limit;
  room->group_used = (size_t)(limit - left);
}

/* The group at mount/path and all above it; path begins with '/'. */
static void look_upwards(struct memory_room *room, const char *root, const struct hierarchy *h, const char *path) {
  char dir[LIMIT_PATH_MAX];
  const int n = snprintf(dir, sizeof dir, "%s%s%s", root, h->mount, path);
  if (n >= (int)sizeof dir) return;
  const size_t top = strlen(root) + strlen(h->mount);
  for (;;) {
    char *slash = strrchr(dir, '/');
    look_at_group(room, dir, h);
    if (!slash || (size_t)(slash - dir) < top) return;
    *slash = 0;
  }
}

/* A line "ID:CONTROLLERS:PATH": v2 has no controllers, v1's memory hierarchy names "memory" among them. */
static void look_at_line(struct memory_room *room, const char *root, char *line) {
  char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!path || path[1] != '/') return;
  *path++ = 0;
  path[strcspn(path, "\n")] = 0;
  if (*++controllers == 0) {
    look_upwards(room, root, &V2, path);
    return;
  }
  for (char *save, *name = strtok_r(controllers, ",", &save); name; name = strtok_r(NULL, ",", &save))
    if (strcmp(name, "memory") == 0) look_upwards(room, root, &V1, path);
}

void memory_room_read(struct memory_room *out, const char *root, size_t bound) {
  char path[LIMIT_PATH_MAX], line[LIMIT_PATH_MAX];
  *out = (struct memory_room){.bound = bound};
  snprintf(path, sizeof path, "%s/proc/meminfo", root);
  out->machine = (size_t)read_number(path, "MemAvailable: %" SCNu64) * 1024;
  snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
  FILE *groups = fopen(path, "re");
  if (!groups) return;
  while (fgets(line, sizeof line, groups)) look_at_line(out, root, line);
  fclose(groups);
}

size_t memory_room_left(const struct memory_room *room) {
  size_t left = SIZE_MAX;
  if (room->machine && room->machine < left) left = room->machine;
  if (room->group_limit && room->group_limit - room->group_used < left) left = room->group_limit - room->group_used;
  if (room->bound && room->bound < left) left = room->bound;
  return left;
}
