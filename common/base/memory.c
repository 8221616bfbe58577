/* See memory.h.  Reads /proc/meminfo and the cgroup v2 files; a file that is absent bounds nothing. */
#include "common/base/memory.h"

#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>

static uint64_t read_number(const char *path, const char *format) {
  FILE *f = fopen(path, "re");
  uint64_t value = 0;
  char line[256];
  if (!f) return 0;
  while (fgets(line, sizeof line, f)) {
    if (sscanf(line, format, &value) == 1) break;
  }
  fclose(f);
  return value;
}

size_t memory_available_bytes(void) {
  uint64_t machine = read_number("/proc/meminfo", "MemAvailable: %" SCNu64) * 1024;
  uint64_t limit = read_number("/sys/fs/cgroup/memory.max", "%" SCNu64),
           used = read_number("/sys/fs/cgroup/memory.current", "%" SCNu64);
  if (limit && limit > used && (!machine || limit - used < machine)) return (size_t)(limit - used);
  return (size_t)machine;
}
