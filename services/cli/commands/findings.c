/* Prints doctor's lines, and counts them. */
#include "services/cli/commands/findings.h"

#include <stdarg.h>
#include <string.h>

#include "services/cli/commands/show.h"

enum { LINE_MAX_BYTES = 4096 };

void finding_say(struct findings *f, enum finding how, const char *format, ...) {
  static const char *const words[] = {"ok", "warn", "fail"};
  char line[LINE_MAX_BYTES];
  va_list args;
  va_start(args, format);
  vsnprintf(line, sizeof line, format, args);
  va_end(args);
  f->count[how]++;
  printf("%-5s ", words[how]);
  show_text(stdout, line, strlen(line));
  printf("\n");
  fflush(stdout); /* the next check may take a while */
}
