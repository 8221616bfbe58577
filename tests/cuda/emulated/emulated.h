/* What the tests ask of the emulated device. */
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
