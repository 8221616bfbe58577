/* The emulated device: see cuda_runtime.h.  One launch at a time in the process (two tables take turns).
 *
 * Device memory is one arena that is inaccessible but inside `struct entered`.  A fiber is a thread of a block: its own
 * stack, switched by emulated_switch.  run_block goes round the fibers until all have ended; a whole round in which
 * nobody passes a barrier is a barrier that cannot open. */
#include "cuda_runtime.h"
#include "emulated.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#include <map>
#include <mutex>
#include <vector>

extern "C" void emulated_switch(void **save, void *load);
asm(".text\n"
    ".globl emulated_switch\n"
    "emulated_switch:\n"
    "  pushq %rbp\n  pushq %rbx\n  pushq %r12\n  pushq %r13\n  pushq %r14\n  pushq %r15\n"
    "  movq %rsp, (%rdi)\n"
    "  movq %rsi, %rsp\n"
    "  popq %r15\n  popq %r14\n  popq %r13\n  popq %r12\n  popq %rbx\n  popq %rbp\n"
    "  ret\n");

thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

[[noreturn]] void die(const char *why) {
  fprintf(stderr, "emulated device: %s\n", why);
  abort();
}

/* --- memory --- */

const size_t CANARY = 64, GRAIN = 256;

/* What a process under test is told of its device: see emulated.h. */
long setting(const char *name, long otherwise) {
  const char *text = getenv(name);
  return text ? atol(text) : otherwise;
}
const size_t ARENA_BYTES = (size_t)setting("EMULATED_MEMORY_MIB", 4096) << 20;
const int DEVICES = (int)setting("EMULATED_DEVICES", 1);

struct arena {
  char *base;
  size_t used = 0;
  std::map<char *, size_t> sizes; /* of what is allocated */
  std::multimap<size_t, char *> free_by_size;
  arena() {
    base = (char *)mmap(NULL, ARENA_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) die("no room for its memory");
  }
};

arena &memory() {
  static arena a;
  return a;
}

std::recursive_mutex device;

/* Device memory is accessible while one lives. */
struct entered {
  std::lock_guard<std::recursive_mutex> held;
  static int depth;
  entered() : held(device) {
    if (depth++ == 0 && mprotect(memory().base, memory().used, PROT_READ | PROT_WRITE) != 0) die("cannot be entered");
  }
  ~entered() {
    if (--depth == 0 && mprotect(memory().base, memory().used, PROT_NONE) != 0) die("cannot be left");
  }
};
int entered::depth = 0;

int calls_left = (int)setting("EMULATED_FAIL_AFTER", -1);
bool lost = false;

/* A call that may fail for good. */
bool fails() {
  if (calls_left >= 0 && calls_left-- == 0) lost = true;
  return lost;
}

/* --- fibers --- */

const size_t STACK_BYTES = 128 << 10;
const int THREADS_MAX = 1024, SLOT_BYTES = 64;

struct pending {
  void *to;
  const void *from;
  bool there;
};

struct fiber {
  void *stack_pointer;
  char *stack = NULL;
  dim3 index;
  bool ended;
  unsigned or_calls, slots; /* slots: which of the two sets; nobody is more than one ahead of anybody in its warp */
  std::vector<std::vector<pending>> copies; /* committed groups, oldest first; the last is open */
};

struct barrier {
  int arrived = 0, alive = 0, generation = 0;
};

struct block_state {
  fiber fibers[THREADS_MAX];
  int count, current;
  size_t shared_bytes;
  barrier all, warps[THREADS_MAX / 32];
  int any[4]; /* of the last calls of emulated_block_or */
  bool moved;
  void *scheduler;
  const std::function<void()> *kernel;
  alignas(128) unsigned char shared[232 << 10];
  alignas(64) unsigned char slots[2][THREADS_MAX][SLOT_BYTES];
} * running;

bool backwards;

void open_if_complete(barrier *b) {
  if (b->arrived == 0 || b->arrived < b->alive) return;
  b->arrived = 0;
  b->generation++;
  running->moved = true;
}

void give_way() {
  fiber *f = &running->fibers[running->current];
  emulated_switch(&f->stack_pointer, running->scheduler);
  threadIdx = f->index;
}

void wait_at(barrier *b) {
  const int generation = b->generation;
  b->arrived++;
  open_if_complete(b);
  while (b->generation == generation) give_way();
}

void fiber_main() {
  (*running->kernel)();
  fiber *f = &running->fibers[running->current];
  f->ended = true;
  running->moved = true;
  barrier *warp = &running->warps[running->current / 32];
  running->all.alive--;
  warp->alive--;
  open_if_complete(&running->all);
  open_if_complete(warp);
  emulated_switch(&f->stack_pointer, running->scheduler);
}

void start_fiber(fiber *f, dim3 index) {
  if (!f->stack) {
    f->stack = (char *)mmap(NULL, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (f->stack == MAP_FAILED) die("no room for a fiber's stack");
  }
  void **top = (void **)(f->stack + STACK_BYTES - 64); /* 16-aligned: where the entry's address lies */
  *top = (void *)fiber_main;
  memset(top - 6, 0, 6 * sizeof *top);
  f->stack_pointer = top - 6;
  f->index = index;
  f->ended = false;
  f->or_calls = f->slots = 0;
  if (f->copies.size() != 1 || !f->copies[0].empty()) f->copies.assign(1, {});
}

void run_block() {
  block_state *s = running;
  s->all = barrier();
  s->all.alive = s->count;
  for (int w = 0; w < (s->count + 31) / 32; w++) {
    s->warps[w] = barrier();
    s->warps[w].alive = s->count - w * 32 < 32 ? s->count - w * 32 : 32;
  }
  memset(s->shared, 0xff, s->shared_bytes);
  memset(s->any, 0, sizeof s->any);
  for (int i = 0; i < s->count; i++) {
    const unsigned n = (unsigned)i;
    start_fiber(&s->fibers[i], dim3(n % blockDim.x, n / blockDim.x % blockDim.y, n / blockDim.x / blockDim.y));
  }
  while (s->all.alive > 0) {
    s->moved = false;
    for (int i = 0; i < s->count; i++) {
      s->current = backwards ? s->count - 1 - i : i;
      fiber *f = &s->fibers[s->current];
      if (f->ended) continue;
      threadIdx = f->index;
      emulated_switch(&s->scheduler, f->stack_pointer);
    }
    if (!s->moved) die("a barrier that not all threads reach");
  }
}

} /* namespace */

/* A stream holds nothing but what is recorded on it; graphs hold launches. */
struct emulated_graph {
  std::vector<std::function<void()>> launches;
};
struct emulated_stream {
  emulated_graph *recorded = NULL;
};

static void run_launch(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()> &kernel) {
  static block_state *state = new block_state();
  entered here;
  running = state;
  running->kernel = &kernel;
  running->shared_bytes = shared_bytes;
  running->count = (int)(block.x * block.y * block.z);
  if (running->count > THREADS_MAX || shared_bytes > sizeof running->shared) die("a block that no device takes");
  if (grid.y > 65535 || grid.z > 65535) die("a grid that no device takes");
  gridDim = grid;
  blockDim = block;
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = dim3(x, y, z);
        run_block();
      }
  running = NULL;
}

void emulated_launch(cudaStream_t stream, dim3 grid, dim3 block, size_t shared_bytes,
                     const std::function<void()> &kernel) {
  if (fails()) return;
  if (stream->recorded)
    stream->recorded->launches.push_back([=] { run_launch(grid, block, shared_bytes, kernel); });
  else
    run_launch(grid, block, shared_bytes, kernel);
}

void emulated_block_barrier(void) { wait_at(&running->all); }
void emulated_warp_barrier(void) { wait_at(&running->warps[running->current / 32]); }
int emulated_lane(void) { return running->current % 32; }
unsigned char *emulated_slot(int lane) {
  return running->slots[running->fibers[running->current].slots][running->current / 32 * 32 + lane];
}
void emulated_slots_read(void) { running->fibers[running->current].slots ^= 1; }
unsigned char *emulated_shared(void) { return running->shared; }

int emulated_block_or(int value) {
  /* Nobody is more than one call ahead of anybody, so the slot after the next is nobody's. */
  const unsigned call = running->fibers[running->current].or_calls++;
  running->any[(call + 2) % 4] = 0;
  running->any[call % 4] |= value != 0;
  emulated_block_barrier();
  return running->any[call % 4];
}

/* --- cp.async --- */

void emulated_copy_later(void *shared, const void *global, bool there) {
  if ((uintptr_t)shared % 16 || (uintptr_t)global % 16)
    die("cp.async of 16 bytes at an address that is no multiple of 16");
  memset(shared, 0xff, 16);
  running->fibers[running->current].copies.back().push_back({shared, global, there});
}
void emulated_copy_commit(void) { running->fibers[running->current].copies.push_back({}); }
void emulated_copy_wait(int left) {
  std::vector<std::vector<pending>> &groups = running->fibers[running->current].copies;
  while ((int)groups.size() - 1 > left) {
    for (const pending &p : groups.front()) {
      if (p.there)
        memcpy(p.to, p.from, 16);
      else
        memset(p.to, 0, 16);
    }
    groups.erase(groups.begin());
  }
}

/* --- the runtime's calls --- */

cudaError_t cudaGetDeviceCount(int *count) {
  *count = DEVICES;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int which) {
  *properties = cudaDeviceProp();
  snprintf(properties->uuid.bytes, sizeof properties->uuid.bytes, "emulated %d", which);
  snprintf(properties->name, sizeof properties->name, "emulated");
  properties->major = 8;
  return cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return lost ? cudaErrorLaunchFailure : cudaSuccess; }

cudaError_t cudaMalloc(void **out, size_t bytes) {
  entered here;
  arena &a = memory();
  const size_t size = (bytes + CANARY + GRAIN - 1) / GRAIN * GRAIN;
  char *at;
  const auto known = a.free_by_size.find(size);
  if (known != a.free_by_size.end()) {
    at = known->second;
    a.free_by_size.erase(known);
  } else {
    if (a.used + size > ARENA_BYTES) return cudaErrorMemoryAllocation;
    at = a.base + a.used;
    a.used += (size + 4095) / 4096 * 4096;
    if (mprotect(a.base, a.used, PROT_READ | PROT_WRITE) != 0) die("cannot grow");
  }
  memset(at, 0x5a, bytes < GRAIN ? bytes : (size_t)GRAIN); /* what is not cleared is not zero */
  memset(at + bytes, 0xa5, CANARY);
  a.sizes[at] = bytes;
  *out = at;
  return cudaSuccess;
}

cudaError_t cudaFree(void *what) {
  entered here;
  arena &a = memory();
  char *at = (char *)what;
  const auto known = a.sizes.find(at);
  if (known == a.sizes.end()) die("memory is freed that was not allocated");
  for (size_t i = 0; i < CANARY; i++)
    if ((unsigned char)at[known->second + i] != 0xa5) die("something was written behind an allocation");
  a.free_by_size.insert({(known->second + CANARY + GRAIN - 1) / GRAIN * GRAIN, at});
  a.sizes.erase(known);
  return cudaSuccess;
}

cudaError_t cudaMallocHost(void **out, size_t bytes) {
  *out = malloc(bytes);
  return *out ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFreeHost(void *what) {
  free(what);
  return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *all) {
  entered here;
  *all = ARENA_BYTES;
  *available = ARENA_BYTES - memory().used;
  return cudaSuccess;
}

static bool on_device(const void *p) {
  return (const char *)p >= memory().base && (const char *)p < memory().base + ARENA_BYTES;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t stream) {
  if (fails()) return cudaErrorLaunchFailure;
  if (stream->recorded) die("a copy is recorded, which this emulation has no need of");
  entered here;
  if (on_device(to) != (kind != cudaMemcpyDeviceToHost) || on_device(from) != (kind != cudaMemcpyHostToDevice))
    die("a copy whose direction is not what it says");
  if ((char *)to < (const char *)from + bytes && (const char *)from < (char *)to + bytes) die("a copy onto itself");
  memcpy(to, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *what, int value, size_t bytes, cudaStream_t) {
  if (fails()) return cudaErrorLaunchFailure;
  entered here;
  memset(what, value, bytes);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned) {
  *stream = new emulated_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  if (fails()) return cudaErrorLaunchFailure;
  stream->recorded = new emulated_graph();
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph) {
  *graph = stream->recorded;
  stream->recorded = NULL;
  return lost ? cudaErrorLaunchFailure : cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *ready, cudaGraph_t graph, unsigned long long) {
  *ready = new emulated_graph(*graph);
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t) {
  if (fails()) return cudaErrorLaunchFailure;
  for (const std::function<void()> &launch : graph->launches) launch();
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (stream->recorded) die("a stream is waited for while it is recorded");
  return lost ? cudaErrorLaunchFailure : cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) {
  *event = (cudaEvent_t)(void *)event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaGetLastError(void) { return lost ? cudaErrorLaunchFailure : cudaSuccess; }
const char *cudaGetErrorName(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "cudaErrorLaunchFailure" : "cudaErrorMemoryAllocation";
}
const char *cudaGetErrorString(cudaError_t error) {
  return error == cudaErrorLaunchFailure ? "unspecified launch failure" : "out of memory";
}

void emulated_fail_after(int n) {
  calls_left = n;
  lost = false;
}
void emulated_run_backwards(int yes) { backwards = yes != 0; }
