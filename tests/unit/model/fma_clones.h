/* For functions of tests in which most of the time goes into fmaf: it is called only where the CPU has no such
 * instruction.  The clone is chosen while the program is loaded, before the thread sanitizer can take a call. */
#ifndef LEASEHOLD_TESTS_FMA_CLONES_H
#define LEASEHOLD_TESTS_FMA_CLONES_H

#if defined(__SANITIZE_THREAD__)
#define FMA_CLONES __attribute__((unused))
#else
#define FMA_CLONES __attribute__((unused, target_clones("fma", "default")))
#endif

#endif
