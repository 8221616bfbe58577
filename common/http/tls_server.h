/* A server's connections over TLS: their credentials, plain HTTP on a TLS port, clients' certificates. */
#ifndef LEASEHOLD_HTTP_TLS_SERVER_H
#define LEASEHOLD_HTTP_TLS_SERVER_H

#include "common/http/server_state.h"

/* TLS 1.2 and 1.3 with ephemeral keys and authenticated ciphers; AES-128 first, which is the fastest in hardware. */
extern const char tls_server_priorities[];

/* Once for a server with TLS, before its daemon starts. */
void tls_server_register(struct http_server *s);
/* The connection begins; c->tls is set already.  On libmicrohttpd's thread, as all below. */
void tls_server_begin(struct http_connection *c, struct MHD_Connection *connection);
/* libmicrohttpd has logged something: where a handshake has just failed its session still tells why. */
void tls_server_hear(void);
/* The connection ends, and its session is gone; a handshake that did not come about is counted. */
void tls_server_end(const struct http_server *s, struct http_connection *c);
/* RC_FORBIDDEN: its client must show a certificate of --tls-client-ca's, and has not.  Once the head of a request has
 * come. */
enum rc tls_server_admit(const struct http_server *s, struct http_connection *c, struct MHD_Connection *connection,
                         struct err *err);

#endif
