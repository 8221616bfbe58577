/* Knows who may call this process, and which token it may show to which hosts: the tokens (tokens.h) and allowed hosts
 * (hosts.h) of its flags.
 *
 * Made by main before any thread, handed to the server and to every client that calls other services, closed after all
 * of them.  Any thread may use it. */
#ifndef LEASEHOLD_HTTP_ACCESS_H
#define LEASEHOLD_HTTP_ACCESS_H

#include "common/base/program.h"
#include "common/http/trust/hosts.h"
#include "common/http/trust/roles.h"
#include "common/http/trust/tokens.h"

struct http_access {
  struct tokens *tokens;
  struct hosts *hosts;
  bool hosts_given; /* --allow-hosts was: not the default */
};

/* shows: the role whose token this service shows; 0: it calls no service.  coordinator: NULL, "" or its URL, whose host
 * is allowed.  RC_INVALID: a flag is wrong, or the service would listen beyond loopback with no token asked for, and no
 * --insecure that says so. */
enum rc http_access_open(struct http_access **out, const struct program_settings *settings, unsigned shows,
                         const char *coordinator, struct err *err);
void http_access_close(struct http_access *a); /* NULL does nothing */

#endif
