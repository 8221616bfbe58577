/* pass@k: the chance that at least one of k samples of a problem is right.
 *
 * Of n samples with c right ones the unbiased estimate (Chen et al. 2021, "Evaluating Large Language Models Trained on
 * Code", equation 1) is the share of the k-subsets that hold a right one:
 *
 *   1 - C(n-c, k) / C(n, k)  =  1 - product over i = n-c+1 .. n of (1 - k/i)        0 <= c <= n, 1 <= k <= n
 *
 * For k = 1 it is c / n.  Pure, any thread, no memory.  Called by records/evaluation_results.c and
 * api/route_evaluations.c. */
#ifndef LEASEHOLD_COORDINATOR_EVALUATION_PASS_AT_K_H
#define LEASEHOLD_COORDINATOR_EVALUATION_PASS_AT_K_H

#include <stdbool.h>
#include <stdint.h>

double pass_at_k(int64_t samples, int64_t passed, int64_t k);

/* The k that are shown for a problem's `samples` samples: 1, 2, 4, ... and their number itself.  Returns how many. */
enum { PASS_KS_MAX = 12 };
int pass_ks(int64_t samples, int64_t ks[PASS_KS_MAX]);
bool pass_k_shown(int64_t samples, int64_t k);

#endif
