/* TLS of this process: the certificate that its servers show, and its clients too where a peer asks for one; the
 * authorities that each side trusts.
 *
 * A process is one member of the pool, so there is one set of files (--tls-*).  main names it once; from then on every
 * http_server of the process speaks TLS if there is a certificate, and every http_client knows which peers to trust.
 * The files are looked at again while the process runs, TLS_LOOK_MS after the last time at the earliest, when a
 * connection is made:
 *
 *     changed, and fit for use --> used by connections made from then on; the open ones live on
 *     changed, and unfit       --> one line in the log; what was read before stays in use
 *
 * Next: tls_material.c judges the files, tls_server.c and tls_client.c use them. */
#ifndef LEASEHOLD_HTTP_TLS_H
#define LEASEHOLD_HTTP_TLS_H

#include <stdbool.h>

#include "common/base/program.h"
#include "common/base/rc.h"

enum { TLS_LOOK_MS = 1000 };

/* Called once by main, before any thread; the settings' strings are kept.  Without any file nothing changes.
 * RC_INVALID, RC_NOT_FOUND, RC_IO: a sentence that names the flag and says what to do. */
enum rc http_tls_start(const struct tls_settings *settings, struct err *err);
/* Do this process's servers speak TLS? */
bool http_tls_serves(void);
/* The newest fit material with one more reference (tls_material.h), or NULL when no file was named. */
struct tls_material *tls_hold(void);
/* --tls-peer-name, or "". */
const char *tls_peer_name(void);
/* --tls-ca, or "": for peers outside the pool that are to be trusted by the same authorities. */
const char *http_tls_ca(void);

#endif
