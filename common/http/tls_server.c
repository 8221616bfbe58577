/* A server's connections over TLS.
 *
 *   accepted --tls_server_begin: credentials of today--> handshake (libmicrohttpd) --> request --tls_server_admit--> handler
 *                  |                                        the state HEAD of connections.c bounds its time
 *                  +-- first byte is a letter: plain HTTP, which is told so
 *
 * Each connection has the newest credentials when it begins and keeps them alive until it ends, so files may be replaced
 * at any time.  A client's certificate is asked for, not demanded, by the handshake: routes that are open (health) are
 * answered without one, since probes of a container platform have none, and a client that is refused gets a sentence
 * rather than an alert.  It is judged once for a connection, and again when the files have changed: an authority that was
 * taken out of --tls-client-ca lets nobody in from then on, on open connections neither.
 *
 * libmicrohttpd 0.9.75 with epoll would spin while a handshake is half done (it takes the socket for readable until the
 * next read of a request), so a server with TLS polls: see start_daemon in server.c. */
#include "common/http/tls_server.h"

#include <errno.h>
#include <gnutls/x509.h>
#include <string.h>
#include <sys/socket.h>

#include "common/http/trust/tls.h"
#include "common/http/trust/tls_material.h"

const char tls_server_priorities[] =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:"
    "+CHACHA20-POLY1305:-MAC-ALL:+AEAD:%SERVER_PRECEDENCE";

enum { PLAIN_READS_MAX = 8 };

/* What has come is read first: closing a socket with unread bytes would reset it, and take the answer along. */
static void answer_plain(int fd) {
  static const char words[] =
      "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
      "{\"error\":{\"code\":\"invalid\",\"message\":\"this port speaks TLS: an https:// URL was expected, but plain HTTP "
      "came\",\"field\":\"\"}}";
  char rest[4096];
  for (int i = 0; i < PLAIN_READS_MAX && recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++) continue;
  (void)!send(fd, words, sizeof words - 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* it may not listen: the end comes anyway */
  shutdown(fd, SHUT_RDWR);
}

/* GnuTLS reads the socket by this: a record of TLS begins with a byte below 32, a request of HTTP with a letter. */
static ssize_t pull(gnutls_transport_ptr_t context, void *out, size_t len) {
  struct http_connection *c = context;
  const ssize_t n = recv(c->fd, out, len, 0);
  if (n <= 0 || c->greeted) return n;
  c->greeted = true;
  const unsigned char first = *(const unsigned char *)out;
  if (first < 'A' || first > 'z') return n;
  answer_plain(c->fd);
  errno = ECONNRESET;
  return -1;
}

static gnutls_session_t session_of(struct MHD_Connection *connection) {
  return (gnutls_session_t)MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session;
}

static void use(struct http_connection *c, gnutls_session_t session) {
  gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, c->tls->credentials);
}

void tls_server_begin(struct http_connection *c, struct MHD_Connection *connection) {
  const gnutls_session_t session = session_of(connection);
  c->greeted = c->known = false;
  use(c, session);
  gnutls_certificate_server_set_request(session, c->tls->client_ca.len > 0 ? GNUTLS_CERT_REQUEST : GNUTLS_CERT_IGNORE);
  gnutls_transport_set_ptr2(session, c, gnutls_transport_get_ptr(session));
  gnutls_transport_set_pull_function(session, pull);
}

static enum rc judge(gnutls_session_t session, struct err *err) {
  gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID, .data = (unsigned char *)GNUTLS_KP_TLS_WWW_CLIENT};
  gnutls_datum_t why = {0};
  unsigned status = 0;
  if (gnutls_certificate_verify_peers(session, &purpose, 1, &status) < 0)
    return err_set(err, RC_FORBIDDEN, NULL,
                   "a client certificate signed by an authority of --tls-client-ca was expected, but none came: show one "
                   "(--tls-cert and --tls-key of Leasehold's own programs, --cert and --key of curl)");
  if (status == 0) return RC_OK;
  gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &why, 0);
  err_set(err, RC_FORBIDDEN, NULL, "the client certificate is refused: %s", why.data ? (const char *)why.data : "it is not valid");
  gnutls_free(why.data);
  return RC_FORBIDDEN;
}

enum rc tls_server_admit(struct http_connection *c, struct MHD_Connection *connection, struct err *err) {
  if (c->tls == NULL || c->tls->client_ca.len == 0) return RC_OK;
  const gnutls_session_t session = session_of(connection);
  struct tls_material *now = tls_hold();
  if (now != c->tls) {
    struct tls_material *before = c->tls;
    c->tls = now;
    c->known = false;
    use(c, session);
    tls_material_release(before);
  } else {
    tls_material_release(now);
  }
  if (c->known) return RC_OK;
  const enum rc rc = judge(session, err);
  c->known = rc == RC_OK;
  return rc;
}
