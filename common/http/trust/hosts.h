/* The hosts that this process may call when others name them: in URLs that workers register or that messages bring.
 *
 *   --allow-hosts 10.1.0.0/16,[fd00:7::]/48,gen-1,.pool.example,private
 *
 * An entry is an address, a range, a name, all names below a .domain, or one of the words loopback, private (10/8,
 * 172.16/12, 192.168/16, fc00::/7) and any (whatever its name).  Without a list: loopback, and private too where the
 * service itself listens beyond loopback or has its coordinator there.  Link-local addresses, of which one is a cloud's
 * table of secrets, are in neither.
 *
 * A name that is listed may be called wherever it leads.  Any other is judged by the address that a connection is about
 * to be made to, so a name that suddenly leads elsewhere gains nothing.  Pure but for the resolving of `bind` at start;
 * what it made never changes, so any thread may ask. */
#ifndef LEASEHOLD_HTTP_HOSTS_H
#define LEASEHOLD_HTTP_HOSTS_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/limits.h"
#include "common/base/rc.h"

enum { HOST_BYTES_MAX = LIMIT_URL_MAX, HOST_CALLER_BYTES = 16 };

struct hosts;
struct sockaddr;

/* list NULL or "": the default above.  also: NULL, "" or a URL whose host is allowed too (the coordinator's).
 * RC_INVALID names the malformed entry, or the bind address that no resolver knows. */
enum rc hosts_open(struct hosts **out, const char *list, const char *bind, const char *also, struct err *err);
void hosts_close(struct hosts *h); /* NULL does nothing */
/* Is this name, or numeric address, in the list as it was given? */
bool hosts_listed(const struct hosts *h, const char *host);
/* May a connection be made to it? */
bool hosts_admit(const struct hosts *h, const char *host, const struct sockaddr *to);

/* The host of an http:// or https:// URL, without brackets, as the client's library reads it; RC_INVALID for a URL
 * without one, or with a user, a query or a fragment: none of them has a place in a worker's address. */
enum rc hosts_of_url(char host[HOST_BYTES_MAX], const char *url, struct err *err);
/* The host that a call goes to, whatever else its URL has; false: none. */
bool hosts_of_call(char host[HOST_BYTES_MAX], const char *url);
/* Is `host` the numeric address `peer`, or localhost and peer loopback?  Compares addresses, not how they are
 * written. */
bool hosts_is_address(const char *host, const char *peer);
/* What counts as one caller of the numeric address `peer`: all of an IPv4 address, the first half of an IPv6 one; zeros
 * for what is no address. */
void hosts_caller(unsigned char out[HOST_CALLER_BYTES], const char *peer);
/* Do all addresses of `bind` lie on loopback?  Asks the resolver where it is a name; RC_INVALID: it knows none. */
enum rc hosts_bind_is_loopback(const char *bind, bool *loopback, struct err *err);

#endif
