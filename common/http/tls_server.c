/* A server's connections over TLS.
 *
 *   accepted --tls_server_begin: credentials of today--> handshake (libmicrohttpd) --> request --tls_server_admit--> handler
 *                  |                                        the state HEAD of connections.c bounds its time
 *                  +-- first byte is a letter: plain HTTP, which is told so
 *
 * Each connection has the newest credentials when it begins and keeps them alive until it ends, so files may be
 * replaced at any time.  A client's certificate is asked for, not demanded, by the handshake: routes that are open
 * (health) are answered without one, since probes of a container platform have none, and a client that is refused gets
 * a sentence rather than an alert.  It is judged once for a connection, and again when the files have changed: an
 * authority that was taken out of --tls-client-ca lets nobody in from then on, on open connections neither.
 *
 * Handshakes that fail are counted by why (leasehold_tls_handshakes_failed_total).  libmicrohttpd tells of them in its
 * log only, and by the time it reports the end of a connection the session is gone.  So GnuTLS tells when one is
 * complete (the hook on Finished), `pull` notes what came, and the logger, which libmicrohttpd calls on the thread of
 * the handshake right after it has failed, asks the session for the client's alert.
 *
 * libmicrohttpd 0.9.75 with epoll would spin while a handshake is half done (it takes the socket for readable until the
 * next read of a request), so a server with TLS polls: see start_daemon in server.c. */
#include "common/http/tls_server.h"

#include <errno.h>
#include <gnutls/x509.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "common/base/metrics.h"
#include "common/http/trust/tls.h"
#include "common/http/trust/tls_material.h"

const char tls_server_priorities[] =
    "NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-KX-ALL:+ECDHE-ECDSA:+ECDHE-RSA:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:"
    "+CHACHA20-POLY1305:-MAC-ALL:+AEAD:%SERVER_PRECEDENCE";

enum { PLAIN_READS_MAX = 8, RECORD_HEADER_BYTES = 5, RECORD_ALERT = 21 };

enum tls_failure { TLS_SILENT, TLS_PLAIN, TLS_UNFIT, TLS_REFUSED, TLS_ENDED, TLS_CERTIFICATE };
_Static_assert(TLS_CERTIFICATE + 1 == HTTP_TLS_FAILURES, "one metric for each");

/* Whose handshake this thread has read for last, while that lasts. */
static _Thread_local struct http_connection *shaking;

void tls_server_register(struct http_server *s) {
  static const char *const why[HTTP_TLS_FAILURES] = {
      [TLS_SILENT] = "silent",   [TLS_PLAIN] = "plain", [TLS_UNFIT] = "unfit",
      [TLS_REFUSED] = "refused", [TLS_ENDED] = "ended", [TLS_CERTIFICATE] = "certificate"};
  for (int i = 0; i < HTTP_TLS_FAILURES; i++) {
    char labels[32];
    snprintf(labels, sizeof labels, "why=\"%s\"", why[i]);
    s->handshakes_failed[i] = metrics_register(
        METRIC_COUNTER, "leasehold_tls_handshakes_failed_total", labels,
        "Connections to the TLS port without a handshake: nothing came (silent), plain HTTP, no TLS that is spoken "
        "here (unfit), refused by the client, ended half way; and clients whose certificate is missing or refused.");
  }
}

/* Bytes that have arrived are read first: closing a socket with unread bytes would reset it, and take the answer
 * along. */
static void answer_plain(int fd) {
  static const char words[] =
      "HTTP/1.1 400 Bad Request\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
      "{\"error\":{\"code\":\"invalid\",\"message\":\"this port speaks TLS: an https:// URL was expected, but plain "
      "HTTP came\",\"field\":\"\"}}";
  char rest[4096];
  for (int i = 0; i < PLAIN_READS_MAX && recv(fd, rest, sizeof rest, MSG_DONTWAIT) > 0; i++) continue;
  (void)!send(fd, words, sizeof words - 1, MSG_DONTWAIT | MSG_NOSIGNAL); /* it may not listen: the end comes anyway */
  shutdown(fd, SHUT_RDWR);
}

/* GnuTLS reads the socket by this: a record of TLS begins with a byte below 32, a request of HTTP with a letter. */
static ssize_t pull(gnutls_transport_ptr_t context, void *out, size_t len) {
  struct http_connection *c = context;
  const ssize_t n = recv(c->fd, out, len, 0);
  if (c->shake.shaken) return n;
  shaking = c;
  if (n >= 0) c->shake.came = n > 0;
  if (n > 0 && len == RECORD_HEADER_BYTES) c->shake.alert = *(const unsigned char *)out == RECORD_ALERT;
  if ((n > 0 || (n == 0 && c->shake.greeted)) && c->shake.failure != TLS_PLAIN)
    c->shake.failure = TLS_ENDED; /* as long as nothing else is known */
  if (n <= 0 || c->shake.greeted) return n;
  c->shake.greeted = true;
  const unsigned char first = *(const unsigned char *)out;
  if (first < 'A' || first > 'z') return n;
  c->shake.failure = TLS_PLAIN;
  answer_plain(c->fd);
  errno = ECONNRESET;
  return -1;
}

static gnutls_session_t session_of(struct MHD_Connection *connection) {
  return (gnutls_session_t)MHD_get_connection_info(connection, MHD_CONNECTION_INFO_GNUTLS_SESSION)->tls_session;
}

/* The client's Finished has come: the handshake is complete, in every version of TLS. */
static int on_finished(gnutls_session_t session, unsigned what, unsigned when, unsigned incoming,
                       const gnutls_datum_t *message) {
  gnutls_transport_ptr_t receives, sends;
  (void)what;
  (void)when;
  (void)message;
  if (!incoming) return 0;
  gnutls_transport_get_ptr2(session, &receives, &sends);
  ((struct http_connection *)receives)->shake.shaken = true;
  shaking = NULL;
  return 0;
}

void tls_server_hear(void) {
  struct http_connection *c = shaking;
  if (c == NULL || c->shake.failure != TLS_ENDED) return;
  /* CLOSE_NOTIFY is 0, and also stands for none.  A client of TLS 1.3 may refuse a certificate before it has begun to
   * encrypt, which GnuTLS does not take for an alert. */
  if (c->shake.alert || gnutls_alert_get(c->shake.session) != GNUTLS_A_CLOSE_NOTIFY)
    c->shake.failure = TLS_REFUSED;
  else if (c->shake.came)
    c->shake.failure = TLS_UNFIT; /* until more of it is read */
}

void tls_server_end(const struct http_server *s, struct http_connection *c) {
  if (shaking == c) shaking = NULL;
  c->shake.session = NULL;
  if (!c->shake.shaken) metric_add(s->handshakes_failed[c->shake.failure], 1);
}

static void use(struct http_connection *c, gnutls_session_t session) {
  gnutls_credentials_set(session, GNUTLS_CRD_CERTIFICATE, c->tls->credentials);
}

void tls_server_begin(struct http_connection *c, struct MHD_Connection *connection) {
  const gnutls_session_t session = session_of(connection);
  memset(&c->shake, 0, sizeof c->shake);
  c->shake.session = session;
  c->shake.failure = TLS_SILENT;
  use(c, session);
  gnutls_certificate_server_set_request(session, c->tls->client_ca.len > 0 ? GNUTLS_CERT_REQUEST : GNUTLS_CERT_IGNORE);
  gnutls_transport_set_ptr2(session, c, gnutls_transport_get_ptr(session));
  gnutls_transport_set_pull_function(session, pull);
  gnutls_handshake_set_hook_function(session, GNUTLS_HANDSHAKE_FINISHED, GNUTLS_HOOK_POST, on_finished);
}

static enum rc judge(gnutls_session_t session, struct err *err) {
  gnutls_typed_vdata_st purpose = {.type = GNUTLS_DT_KEY_PURPOSE_OID,
                                   .data = (unsigned char *)GNUTLS_KP_TLS_WWW_CLIENT};
  gnutls_datum_t why = {0};
  unsigned status = 0;
  if (gnutls_certificate_verify_peers(session, &purpose, 1, &status) < 0)
    return err_set(
        err, RC_FORBIDDEN, NULL,
        "a client certificate signed by an authority of --tls-client-ca was expected, but none came: show one "
        "(--tls-cert and --tls-key of Leasehold's own programs, --cert and --key of curl)");
  if (status == 0) return RC_OK;
  gnutls_certificate_verification_status_print(status, GNUTLS_CRT_X509, &why, 0);
  err_set(err, RC_FORBIDDEN, NULL, "the client certificate is refused: %s",
          why.data ? (const char *)why.data : "it is not valid");
  gnutls_free(why.data);
  return RC_FORBIDDEN;
}

enum rc tls_server_admit(const struct http_server *s, struct http_connection *c, struct MHD_Connection *connection,
                         struct err *err) {
  if (c->tls == NULL || c->tls->client_ca.len == 0) return RC_OK;
  const gnutls_session_t session = session_of(connection);
  struct tls_material *now = tls_hold();
  if (now != c->tls) {
    struct tls_material *before = c->tls;
    c->tls = now;
    c->shake.known = false;
    use(c, session);
    tls_material_release(before);
  } else {
    tls_material_release(now);
  }
  if (c->shake.known) return RC_OK;
  const enum rc rc = judge(session, err);
  c->shake.known = rc == RC_OK;
  if (rc != RC_OK && !c->shake.told) metric_add(s->handshakes_failed[TLS_CERTIFICATE], 1);
  c->shake.told |= rc != RC_OK; /* a connection counts once, whatever it asks */
  return rc;
}
