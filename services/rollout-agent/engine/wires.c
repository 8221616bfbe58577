/* Finds a wire by its name.  Called by main.c. */
#include "services/rollout-agent/engine/wires.h"

#include <string.h>

const struct engine_wire *engine_wire_named(const char *name) {
  static const struct engine_wire *const all[] = {&engine_vllm, &engine_sglang};
  for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
    if (strcmp(all[i]->name, name) == 0) return all[i];
  return NULL;
}
