/* Sets libcurl's options of TLS for one call. */
#ifndef LEASEHOLD_HTTP_TLS_CLIENT_H
#define LEASEHOLD_HTTP_TLS_CLIENT_H

#include <curl/curl.h>
#include <stdbool.h>

/* What has to live as long as the call. */
struct tls_client {
  CURLU *url;
  struct curl_slist *connect_to;
};

/* In the pool: --tls-ca, --tls-cert and --tls-peer-name say whom to trust, what to show and under which name.
 * stranger: a peer outside the pool is shown no certificate, and trusted by ca_file ("": by what the system trusts). */
void tls_client_options(struct tls_client *t, CURL *easy, const char *url, bool stranger, const char *ca_file);
void tls_client_end(struct tls_client *t);

#endif
