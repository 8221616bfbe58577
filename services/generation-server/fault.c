/* Injects the faults of the exactness tests.  An empty translation unit in normal builds. */
#include "services/generation-server/fault.h"

#ifdef LEASEHOLD_FAULTS
#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "common/base/log.h"

static const char *const names[] = {[FAULT_NONE] = "none",
                                    [FAULT_FLIP_WEIGHT] = "flip-weight",
                                    [FAULT_FLIP_KV] = "flip-kv",
                                    [FAULT_NO_VERSION_CHECK] = "no-version-check",
                                    [FAULT_FLIP_INCOMING] = "flip-incoming",
                                    [FAULT_DIE_IN_LEASE] = "die-in-lease"};

bool fault_parse(enum engine_fault *out, const char *name) {
  for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
    if (strcmp(name, names[i]) != 0) continue;
    *out = (enum engine_fault)i;
    return true;
  }
  return false;
}

void fault_after_activation(struct fault_state *f, enum engine_fault fault, struct weights *w) {
  if (fault == FAULT_FLIP_KV) f->steps_left = FAULT_KV_STEPS;
  if (fault != FAULT_FLIP_WEIGHT) return;
  uint16_t *first = w->matrices[param_table_index(&w->model->params, PARAM_Q, 0)].data;
  *first ^= (uint16_t)(1u << FAULT_BIT);
  log_warn("fault: flipped bit %d of layer 0's first q_proj weight", FAULT_BIT);
}

static void die_in_lease(const struct sample *s) {
  const struct decode_job *job = s->job;
  if (job->kind != JOB_OF_LEASE || s->state != SAMPLE_RUNNING || job->key.round < 1) return;
  if (3 * s->count < job->max_new || 3 * s->count > 2 * job->max_new) return;
  log_warn("fault: die-in-lease %s sample %d has %d tokens", job->id, s->index, s->count);
  kill(getpid(), SIGKILL);
}

/* The value of position 0, head 0, element 0 of layer 0 is one half of the first word of its page; the instruction set
 * decides which half (ops.h, struct kv_layer), so the bit is flipped in both. */
static void flip_kv(struct fault_state *f, struct sample *const *live, int live_count, struct kv_cache *kv) {
  if (f->steps_left == 0 || (f->steps_left > 1 && --f->steps_left >= 1)) return;
  for (int i = 0; i < live_count; i++) {
    const struct sample *s = live[i];
    if (s->job->kind != JOB_OF_LEASE || s->state != SAMPLE_RUNNING || s->kv.length < 1) continue;
    const struct kv_layer layer = kv_cache_layer(kv, 0);
    const size_t E16 = ((size_t)layer.E + 15) / 16 * 16;
    uint32_t *words = layer.values;
    words[(size_t)s->kv.pages[0] * (size_t)layer.G * (size_t)layer.page_tokens * E16 / 2] ^= 0x10001u << FAULT_BIT;
    f->steps_left = 0;
    log_warn("fault: flipped bit %d of a KV value of %s sample %d", FAULT_BIT, s->job->id, s->index);
    return;
  }
}

void fault_after_step(struct fault_state *f, enum engine_fault fault, struct sample *const *live, int live_count,
                      struct kv_cache *kv) {
  for (int i = 0; i < live_count && fault == FAULT_DIE_IN_LEASE; i++) die_in_lease(live[i]);
  flip_kv(f, live, live_count, kv);
}

bool fault_takes_any_lease(enum engine_fault fault) { return fault == FAULT_NO_VERSION_CHECK; }

bool fault_is_deaf(enum engine_fault fault, int64_t activations) {
  return fault == FAULT_NO_VERSION_CHECK && activations >= FAULT_VERSIONS_HEARD;
}

void fault_incoming(enum engine_fault fault, char *bytes, size_t len) {
  if (fault != FAULT_FLIP_INCOMING || len < 2) return;
  bytes[len - 2] ^= 1 << FAULT_BIT;
  log_warn("fault: flipped bit %d of the last weight of %zu incoming bytes", FAULT_BIT, len);
}
#endif
