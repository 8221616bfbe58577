/* Runs the services' programs for what they tell of themselves (--plan), and reads the JSON that they answer.
 *
 * One thread, one program at a time, each with a deadline.  A program is the one beside this command line's own, or
 * else the first of its name on PATH. */
#ifndef LEASEHOLD_CLI_COMMANDS_PROGRAMS_H
#define LEASEHOLD_CLI_COMMANDS_PROGRAMS_H

#include "services/cli/commands/session.h"

struct program_call {
  const char *name;          /* "trainer-server" */
  const char *const *flags;  /* NULL last */
  const char *more;          /* the user's own flags, between blanks; they come last, so they win */
  const struct buf *request; /* its standard input */
  int64_t deadline_ms;
};

/* The parsed answer, freed by the caller.  An error has the program's own last line. */
enum rc program_ask(const struct session *s, const struct program_call *call, struct json **out, struct err *err);

#endif
