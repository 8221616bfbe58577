/* Doctor's findings, one line for each check.
 *
 *   ok     as it should be
 *   warn   works, but costs something: the line says what, and how to end that
 *   fail   a run would not begin, or not be what it should: the line says what to do */
#ifndef LEASEHOLD_CLI_COMMANDS_FINDINGS_H
#define LEASEHOLD_CLI_COMMANDS_FINDINGS_H

enum finding { FINDING_OK, FINDING_WARN, FINDING_FAIL };

struct findings {
  int count[FINDING_FAIL + 1];
};

/* The line is shown so that it cannot steer a terminal (show_text). */
void finding_say(struct findings *f, enum finding how, const char *format, ...) __attribute__((format(printf, 3, 4)));

#endif
