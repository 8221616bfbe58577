/* Tells libcurl whom to trust, what to show, and under which name a peer is known.
 *
 * A certificate holds for names, and in a pool that grows the machines' names are not known when it is made.  With
 * --tls-peer-name every peer's certificate must hold for that one name in the place of its URL's host: libcurl is given
 * a URL of that name, and told to connect to the host all the same. */
#include "common/http/trust/tls_client.h"

#include <stdio.h>
#include <strings.h>

#include "common/http/trust/tls.h"
#include "common/http/trust/tls_material.h"

enum { CA_KEPT_S = 60, /* then a file of authorities is read again by a new connection, so that it can be replaced */
       CONNECT_TO_BYTES = 600 };

static void set_blob(CURL *easy, CURLoption option, const struct buf *pem) {
  struct curl_blob blob = {.data = pem->data, .len = pem->len, .flags = CURL_BLOB_COPY};
  if (pem->len > 0) curl_easy_setopt(easy, option, &blob);
}

static void show_and_trust(CURL *easy) {
  struct tls_material *m = tls_hold();
  if (m == NULL) return;
  set_blob(easy, CURLOPT_SSLCERT_BLOB, &m->cert);
  set_blob(easy, CURLOPT_SSLKEY_BLOB, &m->key);
  set_blob(easy, CURLOPT_CAINFO_BLOB, &m->ca);
  if (m->ca.len > 0) curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
  tls_material_release(m);
}

/* Whatever fails here leaves the URL's own host to be checked: a call fails rather than reaches a stranger. */
static void rename_peer(struct tls_client *t, CURL *easy, const char *url, const char *name) {
  char *host = NULL, *port = NULL, line[CONNECT_TO_BYTES];
  CURLU *u = curl_url();
  bool fine = u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
              curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
              curl_url_set(u, CURLUPART_HOST, name, 0) == CURLUE_OK;
  if (fine) {
    const int len = snprintf(line, sizeof line, "::%s:%s", host, port);
    t->connect_to = len > 0 && (size_t)len < sizeof line ? curl_slist_append(NULL, line) : NULL;
    fine = t->connect_to != NULL;
  }
  if (fine) {
    t->url = u;
    curl_easy_setopt(easy, CURLOPT_CURLU, u);
    curl_easy_setopt(easy, CURLOPT_CONNECT_TO, t->connect_to);
  } else {
    curl_url_cleanup(u);
  }
  curl_free(host);
  curl_free(port);
}

void tls_client_options(struct tls_client *t, CURL *easy, const char *url, bool stranger, const char *ca_file) {
  const char *name = tls_peer_name();
  /* libcurl checks the certificate and its host unless it is told not to; said here all the same */
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYPEER, 1L);
  curl_easy_setopt(easy, CURLOPT_SSL_VERIFYHOST, 2L);
  curl_easy_setopt(easy, CURLOPT_SSLVERSION, (long)CURL_SSLVERSION_TLSv1_2);
  curl_easy_setopt(easy, CURLOPT_CA_CACHE_TIMEOUT, (long)CA_KEPT_S);
  if (strncasecmp(url, "https:", 6) != 0) return;
  if (!stranger) {
    show_and_trust(easy);
    if (name[0]) rename_peer(t, easy, url, name);
  } else if (ca_file[0]) {
    curl_easy_setopt(easy, CURLOPT_CAINFO, ca_file);
    curl_easy_setopt(easy, CURLOPT_CAPATH, NULL);
  }
}

void tls_client_end(struct tls_client *t) {
  curl_url_cleanup(t->url);
  curl_slist_free_all(t->connect_to);
  *t = (struct tls_client){0};
}
