/* Counts votes. */
#include "services/coordinator/evaluation/majority.h"

#include <stdlib.h>

static int by_answer(const void *a, const void *b) {
  const uint64_t x = ((const struct vote *)a)->answer, y = ((const struct vote *)b)->answer;
  return (x > y) - (x < y);
}

double majority_value(struct vote *votes, int count) {
  int right = 0, most = 0, rivals = 0;
  for (int i = 0; i < count; i++) {
    right += votes[i].passed;
    if (votes[i].passed) votes[i].answer = 0; /* counted */
  }
  qsort(votes, (size_t)count, sizeof *votes, by_answer);
  for (int i = 0, end; i < count; i = end) {
    end = i + 1;
    while (end < count && votes[end].answer == votes[i].answer) end++;
    if (votes[i].answer == 0 || end - i < most) continue;
    rivals = end - i == most ? rivals + 1 : 1;
    most = end - i;
  }
  if (right == 0 || right < most) return 0;
  return right > most ? 1 : 1.0 / (rivals + 1);
}
