/* Judges pairs from the standard input for tests/verifiers/compare: a line is the gold, a tab and the completion (\x01
 * for a new line); the answer is 1 or 0 on a line.  With --time it judges every pair 200 times and prints the
 * microseconds that 50, 99 and 100 of 100 verdicts took at most. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"
#include "services/coordinator/verifiers/math.h"

enum { LINE_MAX_BYTES = 1 << 16, TIMES_MAX = 1 << 20, REPEATS = 200 };

static int64_t times_us[TIMES_MAX];

static int by_size(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  static char line[LINE_MAX_BYTES];
  const bool timed = argc > 1 && strcmp(argv[1], "--time") == 0;
  size_t count = 0;
  while (fgets(line, sizeof line, stdin)) {
    struct verdict v;
    line[strcspn(line, "\n")] = 0;
    char *text = strchr(line, '\t');
    if (!text) continue;
    *text++ = 0;
    for (char *c = text; *c; c++)
      if (*c == 1) *c = '\n';
    const size_t len = strlen(text);
    for (int i = 0; i < (timed ? REPEATS : 1); i++) {
      const int64_t begun = clock_monotonic_us();
      math_verify(text, len, line, &v);
      if (timed && count < TIMES_MAX) times_us[count++] = clock_monotonic_us() - begun;
    }
    if (!timed) printf("%d\n", v.reward == 1);
  }
  if (!timed || count == 0) return 0;
  qsort(times_us, count, sizeof *times_us, by_size);
  printf("%zu verdicts, microseconds: p50 %" PRId64 ", p99 %" PRId64 ", most %" PRId64 "\n", count, times_us[count / 2],
         times_us[count - 1 - count / 100], times_us[count - 1]);
  return 0;
}
