/* The tokens of a process: which ones let a caller in and as what, and which one it shows to others.
 *
 *   --auth-token T         one token that may do everything, and that is shown
 *   --token-dir DIR        a file for each role (Kubernetes and compose mount secrets so): DIR/admin, DIR/worker,
 *                          DIR/trainer, DIR/viewer, each of lines
 *                              TOKEN [HOLDER]           # the first one of a role is the one that is shown
 *                              sha256:HEX [HOLDER]      # accepted and never shown: what only judges needs no token
 *
 * What a token takes (a worker's name) belongs to its holder: the word behind it, or else the token itself.  A token
 * that is to be replaced has a successor with the same holder.
 *
 * The files are looked at again, at most once in TOKENS_LOOK_MS, whenever a token is judged or shown; files that have
 * become wrong change nothing and are logged.  Tokens are compared by their SHA-256, each with all that there are, in
 * constant time.  Any thread; one mutex guards the table, and is held while the few small files are read. */
#ifndef LEASEHOLD_HTTP_TOKENS_H
#define LEASEHOLD_HTTP_TOKENS_H

#include <stdbool.h>

#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/rc.h"

enum { TOKENS_LOOK_MS = 1000, TOKEN_BYTES_MIN = 16, TOKEN_BYTES_MAX = 512 };

/* Bits of handler.h's http_role. */
struct token_claim {
  unsigned roles;
  struct digest holder;
};

struct tokens;

struct tokens_options {
  const char *all;  /* NULL or "": none */
  const char *dir;  /* NULL or "": none */
  unsigned shows;   /* the role whose token is shown; 0: none has to be */
  const struct clock *clock; /* NULL: the machine's */
};

/* RC_INVALID: a line that is no token, a folder without any, or none to show; RC_IO, RC_NOT_FOUND.  Strings are kept by
 * reference. */
enum rc tokens_open(struct tokens **out, const struct tokens_options *options, struct err *err);
void tokens_close(struct tokens *t); /* NULL does nothing */
/* Is a token wanted of callers?  It never changes. */
bool tokens_wanted(const struct tokens *t);
/* One more token, of this process alone, that its files do not hold: see worker_register.push_token. */
void tokens_add(struct tokens *t, const char *token, unsigned roles);
/* false: nobody's.  presented: what came behind "Bearer ", of any length. */
bool tokens_know(struct tokens *t, const char *presented, struct token_claim *out);
/* Is the token with this SHA-256 still one of one of these roles? */
bool tokens_still(struct tokens *t, const struct digest *token, unsigned roles);
/* Is there a token of this holder? */
bool tokens_hold(struct tokens *t, const struct digest *holder);
/* The token to show; false: none.  out: TOKEN_BYTES_MAX + 1 bytes. */
bool tokens_shown(struct tokens *t, char *out);
/* Grows with every change of the table. */
unsigned tokens_generation(struct tokens *t);

/* "admin", "worker", "trainer", "viewer", "push"; NULL for anything but one role's bit. */
const char *token_role_name(unsigned role);

#endif
