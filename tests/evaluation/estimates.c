/* Answers one question a line, for comparison with reference.py: tests/e2e/test_evaluation.py.
 *
 *   pass N C K | majority ANSWER:PASSED ... | interval DRAWS X ... | bootstrap SEED RESAMPLES D ...   -->  numbers,
 *   %.17g */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/evaluation/bootstrap.h"
#include "services/coordinator/evaluation/interval.h"
#include "services/coordinator/evaluation/majority.h"
#include "services/coordinator/evaluation/pass_at_k.h"

enum { WORDS_MAX = 8192 };

static void majority(char **words, int count) {
  struct vote votes[WORDS_MAX];
  for (int i = 0; i < count; i++) {
    char *end;
    votes[i].answer = strtoull(words[i], &end, 10);
    votes[i].passed = strcmp(end, ":1") == 0;
  }
  printf("%.17g\n", majority_value(votes, count));
}

static void interval(char **words, int count) {
  struct item_sums sums = {0};
  for (int i = 1; i < count; i++) item_sums_add(&sums, atof(words[i]));
  const struct figure f = figure_of(&sums, atof(words[0]));
  printf("%.17g %.17g %.17g\n", f.value, f.low, f.high);
}

static void bootstrap(char **words, int count) {
  double differences[WORDS_MAX];
  const int64_t resamples = atoll(words[1]);
  double *means = malloc((size_t)resamples * sizeof *means);
  for (int i = 2; i < count; i++) differences[i - 2] = atof(words[i]);
  const struct bootstrap b = bootstrap_paired(differences, count - 2, strtoull(words[0], NULL, 10), means, resamples);
  printf("%.17g %.17g %.17g %.17g\n", b.difference, b.low, b.high, b.p_value);
  free(means);
}

int main(void) {
  static char line[1 << 20];
  static char *words[WORDS_MAX];
  while (fgets(line, sizeof line, stdin)) {
    int count = 0;
    for (char *word = strtok(line, " \n"); word && count < WORDS_MAX; word = strtok(NULL, " \n")) words[count++] = word;
    if (count == 4 && strcmp(words[0], "pass") == 0)
      printf("%.17g\n", pass_at_k(atoll(words[1]), atoll(words[2]), atoll(words[3])));
    else if (count >= 1 && strcmp(words[0], "majority") == 0)
      majority(words + 1, count - 1);
    else if (count > 2 && strcmp(words[0], "interval") == 0)
      interval(words + 1, count - 1);
    else if (count > 3 && strcmp(words[0], "bootstrap") == 0)
      bootstrap(words + 1, count - 1);
    else
      return 1;
    fflush(stdout);
  }
  return 0;
}
