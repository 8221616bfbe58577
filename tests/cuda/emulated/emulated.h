/* What the tests ask of the emulated device.  Of a whole process they ask it by the environment: EMULATED_DEVICES, how
 * many there are (one memory serves them all); EMULATED_MEMORY_MIB, how large that is; EMULATED_FAIL_AFTER,
 * emulated_fail_after from the start. */
#ifndef LEASEHOLD_TESTS_CUDA_EMULATED_H
#define LEASEHOLD_TESTS_CUDA_EMULATED_H

#ifdef __cplusplus
extern "C" {
#endif

/* The n-th launch, copy or clearing from now on fails, and with it everything after, as a device does that has lost its
 * context; -1: none. */
void emulated_fail_after(int n);
/* Threads of a block run from the last to the first when `backwards`: what depends on their order then shows. */
void emulated_run_backwards(int backwards);

#ifdef __cplusplus
}
#endif

#endif
