/* The contents of the files of --tls-*: checked, and kept in memory until the last connection that uses it is gone.
 *
 * Immutable once loaded; any thread may hold and release it. */
#ifndef LEASEHOLD_HTTP_TLS_MATERIAL_H
#define LEASEHOLD_HTTP_TLS_MATERIAL_H

#include <gnutls/gnutls.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/program.h"
#include "common/base/rc.h"

struct tls_material {
  atomic_int refs;
  struct buf cert, key, ca, client_ca;          /* PEM; empty: none */
  gnutls_certificate_credentials_t credentials; /* a server's; NULL without a certificate */
  int64_t expires_s;                            /* the certificate's, since 1970 */
};

/* *out has one reference.  Errors name the flag, the file, what is wrong with it and what to do. */
enum rc tls_material_load(struct tls_material **out, const struct tls_settings *files, struct err *err);
void tls_material_release(struct tls_material *m); /* NULL does nothing */
#endif
