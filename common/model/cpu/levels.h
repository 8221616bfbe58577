/* Which table of kernels this CPU is to run: the best that CPUID and a trial allow, or one that is asked for by name
 * (--isa, LEASEHOLD_ISA).  All give the same bits. */
#ifndef LEASEHOLD_MODEL_CPU_LEVELS_H
#define LEASEHOLD_MODEL_CPU_LEVELS_H

#include "common/model/cpu/kernels.h"

struct cpu_level {
  const char *isa, *ops_name; /* as it is asked for; of the operation table */
  const struct cpu_kernels *kernels; /* NULL: CPUID says that the CPU has no such instructions */
};

/* isa: "amx", "v4-bf16", "v4", "v3" or "v2"; NULL or "": the best.  Asks the kernel for AMX's state, if the CPU has it.
 * Errors: RC_INVALID (no such level), RC_UNSUPPORTED (not on this machine). */
enum rc cpu_level_choose(struct cpu_level *out, const char *isa, struct err *err);

#endif
