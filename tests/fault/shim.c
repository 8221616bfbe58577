/* What the shim is asked for, the sites, and the strike: see shim.h. */
#include "tests/fault/shim.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <fcntl.h>
#include <link.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum {
  MODULES_MAX = 128,
  FRAMES_MAX = 40,
  FRAMES_KEPT = 18,
  FRAMES_KEPT_MEMORY = 10,
  SITES_MAX = 1 << 16,
  LINE_MAX_BYTES = 2048
};

static const char *const call_names[CALL_COUNT] = {
    "open",   "write",  "sync",   "rename",  "remove", "mkdir", "truncate", "change", "commit",   "query",
    "memory", "thread", "socket", "connect", "accept", "send",  "receive",  "log",    "handover", "clock"};
static const char *const act_names[] = {"", "kill-before", "kill-after", "kill-after-commit", "fail", "full", "jump"};

struct module {
  uintptr_t base, begin, end;
  char name[48]; /* "main", or a library's file name */
  uint64_t hash;
};

static struct module modules[MODULES_MAX];
static int module_count;
static const struct module *own; /* the shim itself: left out of stacks */

static bool ready, recording;
static bool wanted[CALL_COUNT]; /* which calls need their stack */
static int record_fd = -1;
static uint64_t aim_site;
static int aim_call = -1, aim_error, sync_ms;
static long aim_hit;
static enum shim_act aim_act;
static char struck_path[512], freed_path[512];
static atomic_long hits;
static atomic_bool struck, dies_at_commit;
static atomic_llong clock_offset_ms;
static _Thread_local __attribute__((tls_model("initial-exec"))) bool inside;

struct site {
  atomic_uint_fast64_t hash; /* 0: free */
  atomic_long count;
};
static struct site sites[SITES_MAX]; /* open addressing */

static uint64_t mix(uint64_t hash, uint64_t value) { return (hash ^ value) * 0x100000001B3u + (hash >> 47); }

static int module_add(struct dl_phdr_info *info, size_t size, void *context) {
  (void)size, (void)context;
  if (module_count == MODULES_MAX) return 1;
  struct module *m = &modules[module_count];
  const char *slash = strrchr(info->dlpi_name, '/');
  snprintf(m->name, sizeof m->name, "%s", info->dlpi_name[0] == '\0' ? "main" : slash ? slash + 1 : info->dlpi_name);
  m->base = info->dlpi_addr;
  m->begin = UINTPTR_MAX;
  for (int i = 0; i < info->dlpi_phnum; i++) {
    const ElfW(Phdr) *p = &info->dlpi_phdr[i];
    if (p->p_type != PT_LOAD) continue;
    const uintptr_t begin = m->base + p->p_vaddr, end = begin + p->p_memsz;
    if (begin < m->begin) m->begin = begin;
    if (end > m->end) m->end = end;
  }
  m->hash = 0xCBF29CE484222325u;
  for (const char *c = m->name; *c; c++) m->hash = mix(m->hash, (unsigned char)*c);
  if ((uintptr_t)module_add >= m->begin && (uintptr_t)module_add < m->end) own = m;
  module_count++;
  return 0;
}

static const struct module *module_of(uintptr_t address) {
  for (int i = 0; i < module_count; i++)
    if (address >= modules[i].begin && address < modules[i].end) return &modules[i];
  return NULL;
}

static void raw_write(int fd, const char *text, size_t length) { (void)!syscall(SYS_write, fd, text, length); }

/* The stack's frames outside the shim, innermost first, and their hash. */
static uint64_t stack_of(enum shim_call call, void *frames[FRAMES_MAX], int *first, int *end) {
  const int count = backtrace(frames, FRAMES_MAX), most = call == CALL_MEMORY ? FRAMES_KEPT_MEMORY : FRAMES_KEPT;
  uint64_t hash = 0xCBF29CE484222325u + (uint64_t)call;
  int at = 0;
  while (at < count && module_of((uintptr_t)frames[at]) == own) at++;
  *first = at;
  *end = at;
  for (; at < count && *end - *first < most; at++, ++*end) {
    const struct module *m = module_of((uintptr_t)frames[at]);
    hash = mix(hash, m ? m->hash : 0);
    hash = mix(hash, m ? (uintptr_t)frames[at] - m->base : 0);
  }
  return hash ? hash : 1;
}

static void record_new(enum shim_call call, uint64_t hash, void *const *frames, int first, int end) {
  char line[LINE_MAX_BYTES];
  int length = snprintf(line, sizeof line, "site %016llx %s", (unsigned long long)hash, call_names[call]);
  for (int i = first; i < end && length < LINE_MAX_BYTES - 80; i++) {
    const struct module *m = module_of((uintptr_t)frames[i]);
    length += snprintf(line + length, sizeof line - (size_t)length, " %s+%llx", m ? m->name : "?",
                       m ? (unsigned long long)((uintptr_t)frames[i] - m->base) : 0);
  }
  line[length++] = '\n';
  raw_write(record_fd, line, (size_t)length);
}

static void record(enum shim_call call, uint64_t hash, void *const *frames, int first, int end) {
  for (size_t n = 0, i = hash % SITES_MAX; n < SITES_MAX; n++, i = (i + 1) % SITES_MAX) {
    uint_fast64_t found = 0;
    if (atomic_compare_exchange_strong(&sites[i].hash, &found, hash)) record_new(call, hash, frames, first, end);
    else if (found != hash) continue;
    atomic_fetch_add(&sites[i].count, 1);
    return;
  }
}

void *shim_real(void **slot, const char *name) {
  if (!*slot) *slot = dlsym(RTLD_NEXT, name);
  return *slot;
}

static bool exists(const char *path) { return path[0] && syscall(SYS_access, path, F_OK) == 0; }

static _Noreturn void die(void) {
  for (;;) syscall(SYS_kill, getpid(), SIGKILL);
}

/* True for one process and one time. */
static bool strike(void) {
  if (atomic_exchange(&struck, true)) return false;
  const long fd = syscall(SYS_open, struck_path, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0644);
  if (fd < 0) return false;
  syscall(SYS_close, fd);
  return true;
}

static bool takes_space(enum shim_call call) {
  return call == CALL_OPEN || call == CALL_WRITE || call == CALL_MKDIR || call == CALL_TRUNCATE;
}

bool shim_disk_full(void) {
  return aim_act == ACT_FULL && atomic_load(&struck) && !exists(freed_path);
}

enum shim_act shim_enter(enum shim_call call, int *error) {
  enum shim_act act = ACT_NONE;
  if (!ready || inside) return act;
  inside = true;
  const int saved = errno;
  if (takes_space(call) && shim_disk_full()) {
    *error = ENOSPC;
    act = ACT_FAIL;
  } else if (wanted[call] && (recording || !atomic_load(&struck))) {
    void *frames[FRAMES_MAX];
    int first, end;
    const uint64_t hash = stack_of(call, frames, &first, &end);
    if (recording) record(call, hash, frames, first, end);
    else if (hash == aim_site && atomic_fetch_add(&hits, 1) + 1 == aim_hit && strike()) act = aim_act;
  }
  if (act == ACT_KILL_BEFORE) die();
  if (act == ACT_KILL_AFTER_COMMIT) atomic_store(&dies_at_commit, true);
  if (act == ACT_JUMP) atomic_store(&clock_offset_ms, aim_error);
  if (act == ACT_FULL) *error = ENOSPC, act = ACT_FAIL;
  else if (act == ACT_FAIL && *error == 0) *error = aim_error;
  errno = saved;
  inside = false;
  return act;
}

void shim_leave(enum shim_act act) {
  if (act == ACT_KILL_AFTER) die();
}

void shim_committed(void) {
  if (atomic_load(&dies_at_commit)) die();
}

long long shim_clock_offset_ms(void) { return atomic_load(&clock_offset_ms); }

void shim_sync_delay(void) {
  const struct timespec t = {sync_ms / 1000, (long)(sync_ms % 1000) * 1000000};
  if (sync_ms > 0) syscall(SYS_nanosleep, &t, NULL);
}

static const char *setting(const char *name) {
  const char *value = getenv(name);
  return value ? value : "";
}

static void settings_read(void) {
  const char *calls = setting("SHIM_CALLS"), *record_path = setting("SHIM_RECORD");
  recording = record_path[0] != '\0';
  if (recording) record_fd = (int)syscall(SYS_open, record_path, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0644);
  aim_site = strtoull(setting("SHIM_SITE"), NULL, 16);
  aim_hit = strtol(setting("SHIM_HIT"), NULL, 10);
  aim_error = (int)strtol(setting("SHIM_ERROR"), NULL, 10);
  sync_ms = (int)strtol(setting("SHIM_SYNC_MS"), NULL, 10);
  for (size_t i = 1; i < sizeof act_names / sizeof act_names[0]; i++)
    if (strcmp(setting("SHIM_ACT"), act_names[i]) == 0) aim_act = (enum shim_act)i;
  for (int i = 0; i < CALL_COUNT; i++) {
    char name[16];
    snprintf(name, sizeof name, ",%s,", call_names[i]);
    if (strcmp(setting("SHIM_CALL"), call_names[i]) == 0) aim_call = i;
    wanted[i] = recording ? calls[0] == '\0' || strstr(calls, name) != NULL : i == aim_call;
  }
  snprintf(struck_path, sizeof struck_path, "%s", setting("SHIM_STRUCK"));
  snprintf(freed_path, sizeof freed_path, "%s", setting("SHIM_FREED"));
  atomic_store(&struck, !recording && exists(struck_path));
  if (aim_act == ACT_JUMP && atomic_load(&struck)) atomic_store(&clock_offset_ms, aim_error);
}

__attribute__((constructor)) static void shim_begin(void) {
  void *warm[4];
  inside = true;
  settings_read();
  dl_iterate_phdr(module_add, NULL);
  backtrace(warm, 4); /* loads the unwinder now, not from within malloc */
  inside = false;
  ready = true;
}

__attribute__((destructor)) static void shim_end(void) {
  ready = false;
  if (!recording) return;
  for (size_t i = 0; i < SITES_MAX; i++) {
    char line[64];
    const uint64_t hash = atomic_load(&sites[i].hash);
    if (hash == 0) continue;
    const int length =
        snprintf(line, sizeof line, "count %016llx %ld\n", (unsigned long long)hash, atomic_load(&sites[i].count));
    raw_write(record_fd, line, (size_t)length);
  }
}
