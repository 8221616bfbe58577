/* Chooses the table of kernels that this CPU runs: the fastest that CPUID and a trial allow, or one that is asked for
 * by name (--isa, LEASEHOLD_ISA).  All give the same bits.
 *
 * A level is not faster because it is newer: VDPBF16PS takes Intel's cores twice as long as the two multiply-adds that
 * it stands for, so a CPU of theirs without AMX, or under a hypervisor that hides it, runs v4. */
#ifndef LEASEHOLD_MODEL_CPU_LEVELS_H
#define LEASEHOLD_MODEL_CPU_LEVELS_H

#include "common/model/cpu/kernels.h"

struct cpu_level {
  const char *isa, *ops_name; /* as it is asked for; of the operation table */
  const struct cpu_kernels *kernels; /* NULL: CPUID says that the CPU has no such instructions */
};

/* isa: "amx", "v4-bf16", "v4", "v3" or "v2"; NULL or "": the fastest.  Asks the kernel for AMX's state, if the CPU has
 * it.  Errors: RC_INVALID (no such level), RC_UNSUPPORTED (not on this machine). */
enum rc cpu_level_choose(struct cpu_level *out, const char *isa, struct err *err);

#endif
