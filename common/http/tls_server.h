/* A server's connections over TLS: their credentials, plain HTTP on a TLS port, clients' certificates. */
#ifndef LEASEHOLD_HTTP_TLS_SERVER_H
#define LEASEHOLD_HTTP_TLS_SERVER_H

#include "common/http/server_state.h"

/* TLS 1.2 and 1.3 with ephemeral keys and authenticated ciphers; AES-128 first, which is the fastest in hardware. */
extern const char tls_server_priorities[];

/* The connection begins; c->tls is set already.  On libmicrohttpd's thread. */
void tls_server_begin(struct http_connection *c, struct MHD_Connection *connection);
/* RC_FORBIDDEN: its client must show a certificate of --tls-client-ca's, and has not.  On libmicrohttpd's thread, once the
 * head of a request has come. */
enum rc tls_server_admit(struct http_connection *c, struct MHD_Connection *connection, struct err *err);

#endif
