/* See fault.h.  An empty translation unit in normal builds. */
#include "services/generation-server/fault.h"

#ifdef LEASEHOLD_FAULTS
#include <string.h>

#include "common/base/log.h"

bool fault_parse(enum engine_fault *out, const char *name) {
  if (strcmp(name, "none") == 0)
    *out = FAULT_NONE;
  else if (strcmp(name, "flip-weight") == 0)
    *out = FAULT_FLIP_WEIGHT;
  else if (strcmp(name, "flip-kv") == 0)
    *out = FAULT_FLIP_KV;
  else
    return false;
  return true;
}

void fault_after_activation(struct fault_state *f, enum engine_fault fault, struct weights *w) {
  if (fault == FAULT_FLIP_KV) f->steps_left = FAULT_KV_STEPS;
  if (fault != FAULT_FLIP_WEIGHT) return;
  uint16_t *first = w->matrices[param_table_index(&w->model->params, PARAM_Q, 0)].data;
  *first ^= (uint16_t)(1u << FAULT_BIT);
  log_warn("fault: flipped bit %d of layer 0's first q_proj weight", FAULT_BIT);
}

/* The value of position 0, head 0, element 0 of layer 0 is the first of its page. */
void fault_after_step(struct fault_state *f, struct sample *const *live, int live_count, struct kv_cache *kv) {
  if (f->steps_left == 0 || (f->steps_left > 1 && --f->steps_left >= 1)) return;
  for (int i = 0; i < live_count; i++) {
    const struct sample *s = live[i];
    if (s->job->kind != JOB_OF_LEASE || s->state != SAMPLE_RUNNING || s->kv.length < 1) continue;
    const struct kv_layer layer = kv_cache_layer(kv, 0);
    const size_t E16 = ((size_t)layer.E + 15) / 16 * 16;
    uint16_t *values = layer.values;
    values[(size_t)s->kv.pages[0] * (size_t)layer.G * (size_t)layer.page_tokens * E16] ^= (uint16_t)(1u << FAULT_BIT);
    f->steps_left = 0;
    log_warn("fault: flipped bit %d of a KV value of %s sample %d", FAULT_BIT, s->job->id, s->index);
    return;
  }
}
#endif
