/* Chooses among the tables of kernels: see levels.h. */
#include "common/model/cpu/levels.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/log.h"

enum { LEVELS = 5 };

/* The kernel saves tile data only for processes that ask; the permission is for all threads of the process. */
static bool tiles_permitted(void) {
  enum { REQUEST_STATE = 0x1023, TILE_DATA = 18 };
  return syscall(SYS_arch_prctl, REQUEST_STATE, TILE_DATA) == 0;
}

/* Best first. */
static void find_levels(struct cpu_level levels[LEVELS]) {
  __builtin_cpu_init();
  const bool v4 = __builtin_cpu_supports("x86-64-v4"), bf16 = v4 && __builtin_cpu_supports("avx512bf16"),
             amx = bf16 && __builtin_cpu_supports("amx-tile") && __builtin_cpu_supports("amx-bf16");
  levels[0] = (struct cpu_level){"amx", "cpu-amx", amx && tiles_permitted() ? &cpu_kernels_amx : NULL};
  levels[1] = (struct cpu_level){"v4-bf16", "cpu-v4-bf16", bf16 ? &cpu_kernels_v4_bf16 : NULL};
  levels[2] = (struct cpu_level){"v4", "cpu-v4", v4 ? &cpu_kernels_v4 : NULL};
  levels[3] = (struct cpu_level){"v3", "cpu-v3", __builtin_cpu_supports("x86-64-v3") ? &cpu_kernels_v3 : NULL};
  levels[4] = (struct cpu_level){"v2", "cpu-v2", __builtin_cpu_supports("x86-64-v2") ? &cpu_kernels_v2 : NULL};
}

static bool usable(const struct cpu_level *l) { return l->kernels && (!l->kernels->holds || l->kernels->holds()); }

static bool pays(const struct cpu_level *l) { return !l->kernels->pays || l->kernels->pays(); }

/* "v4-bf16, v4, v3, v2" */
static void list_usable(char *out, size_t size, const struct cpu_level levels[LEVELS]) {
  size_t used = 0;
  out[0] = '\0';
  for (int i = 0; i < LEVELS; i++) {
    if (!usable(&levels[i])) continue;
    const int n = snprintf(out + used, size - used, "%s%s", used ? ", " : "", levels[i].isa);
    assert(n > 0 && (size_t)n < size - used);
    used += (size_t)n;
  }
}

static enum rc choose_best(const struct cpu_level **out, const struct cpu_level levels[LEVELS], struct err *err) {
  for (int i = 0; i < LEVELS; i++) {
    if (!levels[i].kernels) continue;
    if (!usable(&levels[i])) {
      log_warn(
          "this CPU has the instructions of the %s kernels, but they do not give the bits of NUMERICS.md; passed over",
          levels[i].isa);
    } else if (!pays(&levels[i])) {
      log_debug("this CPU has the instructions of the %s kernels, but does as much by others faster; passed over",
                levels[i].isa);
    } else {
      *out = &levels[i];
      return RC_OK;
    }
  }
  return err_set(err, RC_UNSUPPORTED, "isa", "expected a CPU of level x86-64-v2 or above (SSE4.2), this one is below");
}

static enum rc choose_named(const struct cpu_level **out, const struct cpu_level levels[LEVELS], const char *isa,
                            struct err *err) {
  char list[64];
  for (int i = 0; i < LEVELS; i++) {
    if (strcmp(isa, levels[i].isa) != 0) continue;
    *out = &levels[i];
    if (usable(&levels[i])) return RC_OK;
    list_usable(list, sizeof list, levels);
    return err_set(err, RC_UNSUPPORTED, "isa", "this machine cannot run the %s kernels; it can run %s", isa, list);
  }
  list_usable(list, sizeof list, levels);
  return err_set(err, RC_INVALID, "isa", "expected kernels that this machine can run (%s), got \"%s\"", list, isa);
}

enum rc cpu_level_choose(struct cpu_level *out, const char *isa, struct err *err) {
  struct cpu_level levels[LEVELS];
  const struct cpu_level *chosen = NULL;
  find_levels(levels);
  const enum rc rc = isa && *isa ? choose_named(&chosen, levels, isa, err) : choose_best(&chosen, levels, err);
  if (rc == RC_OK) *out = *chosen;
  return rc;
}
