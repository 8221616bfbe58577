/* The wires of engines that this agent speaks. */
#ifndef LEASEHOLD_ROLLOUT_AGENT_ENGINE_WIRES_H
#define LEASEHOLD_ROLLOUT_AGENT_ENGINE_WIRES_H

#include "services/rollout-agent/engine/wire.h"

extern const struct engine_wire engine_vllm, engine_sglang;

/* NULL: there is none of the name. */
const struct engine_wire *engine_wire_named(const char *name);

#endif
