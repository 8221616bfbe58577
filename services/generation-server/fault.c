/* What the generation-server's faults do: see fault.h.  An empty translation unit in normal builds. */
#include "services/generation-server/fault.h"

#ifdef LEASEHOLD_FAULTS
#include "common/base/log.h"

const char *const generation_faults[] = {[FAULT_NONE] = "",
                                         [GENERATION_FAULT_FLIP_WEIGHT] = "flip-weight",
                                         [GENERATION_FAULT_FLIP_KV] = "flip-kv",
                                         [GENERATION_FAULT_NO_VERSION_CHECK] = "no-version-check",
                                         [GENERATION_FAULT_FLIP_INCOMING] = "flip-incoming",
                                         [GENERATION_FAULT_DIE_IN_LEASE] = "die-in-lease",
                                         NULL};

enum {
  KV_STEPS = 5,
  FLIPPED_BIT = 6, /* of a bf16: the highest bit of the mantissa */
  VERSIONS_TAKEN = 2
};

static int steps_left; /* until the KV entry is flipped; 0: not armed */

void fault_after_activation(struct weights *w) {
  steps_left = fault_is(GENERATION_FAULT_FLIP_KV) ? KV_STEPS : 0;
  if (!fault_is(GENERATION_FAULT_FLIP_WEIGHT)) return;
  uint16_t *first = w->matrices[param_table_index(&w->model->params, PARAM_Q, 0)].data;
  *first ^= (uint16_t)(1u << FLIPPED_BIT);
  log_warn("fault: flipped bit %d of layer 0's first q_proj weight", FLIPPED_BIT);
}

static void die_in_lease(const struct sample *s) {
  const struct decode_job *job = s->job;
  if (job->kind != JOB_OF_LEASE || s->state != SAMPLE_RUNNING) return;
  if (!fault_is_due(GENERATION_FAULT_DIE_IN_LEASE, job->key.round)) return;
  if (3 * s->count < job->max_new || 3 * s->count > 2 * job->max_new) return;
  log_warn("fault: die-in-lease %s sample %d has %d tokens", job->id, s->index, s->count);
  fault_die(GENERATION_FAULT_DIE_IN_LEASE, job->key.round);
}

/* The value of position 0, head 0, element 0 of layer 0 is one half of the first word of its page; the instruction set
 * decides which half (ops.h, struct kv_layer), so the bit is flipped in both. */
static void flip_kv(struct sample *const *live, int live_count, struct kv_cache *kv) {
  if (steps_left == 0 || (steps_left > 1 && --steps_left >= 1)) return;
  for (int i = 0; i < live_count; i++) {
    const struct sample *s = live[i];
    if (s->job->kind != JOB_OF_LEASE || s->state != SAMPLE_RUNNING || s->kv.length < 1) continue;
    const struct kv_layer layer = kv_cache_layer(kv, 0);
    const size_t E16 = ((size_t)layer.E + 15) / 16 * 16;
    uint32_t *words = layer.values;
    words[(size_t)s->kv.pages[0] * (size_t)layer.G * (size_t)layer.page_tokens * E16 / 2] ^= 0x10001u << FLIPPED_BIT;
    steps_left = 0;
    log_warn("fault: flipped bit %d of a KV value of %s sample %d", FLIPPED_BIT, s->job->id, s->index);
    return;
  }
}

void fault_after_step(struct sample *const *live, int live_count, struct kv_cache *kv) {
  for (int i = 0; i < live_count; i++) die_in_lease(live[i]);
  flip_kv(live, live_count, kv);
}

bool fault_takes_any_lease(void) { return fault_is(GENERATION_FAULT_NO_VERSION_CHECK); }

bool fault_ignores_newer_versions(int64_t activations) {
  return fault_is(GENERATION_FAULT_NO_VERSION_CHECK) && activations >= VERSIONS_TAKEN;
}

void fault_incoming(char *bytes, size_t len) {
  if (!fault_is(GENERATION_FAULT_FLIP_INCOMING) || len < 2) return;
  bytes[len - 2] ^= 1 << FLIPPED_BIT;
  log_warn("fault: flipped bit %d of the last weight of %zu incoming bytes", FLIPPED_BIT, len);
}
#endif
