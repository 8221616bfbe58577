/* Reads and judges the files of --tls-*: are they there, PEM, a pair, valid today?
 *
 * By GnuTLS, which libmicrohttpd serves with.  libcurl is handed the same bytes, never the files, so that a pair that
 * is being replaced is not read half old and half new. */
#include "common/http/trust/tls_material.h"

#include <gnutls/x509.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"

enum { FILE_BYTES_MAX = 1 << 20, WARN_DAYS = 7, DAY_S = 24 * 3600 };

static gnutls_datum_t datum_of(const struct buf *pem) {
  return (gnutls_datum_t){.data = (unsigned char *)pem->data, .size = (unsigned)pem->len};
}

static enum rc read_file(struct buf *out, const char *flag, const char *path, struct err *err) {
  struct err why = {0};
  if (!path[0]) return RC_OK;
  const enum rc rc = file_read(out, path, FILE_BYTES_MAX, &why);
  if (rc != RC_OK)
    return err_set(err, rc, NULL, "%s: %s; name a file that the user of this process can read", flag, why.message);
  if (out->len > 0) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "%s: %s is empty, PEM was expected", flag, path);
}

/* Certificates of a PEM file, freed by free_chain. */
static enum rc parse(gnutls_x509_crt_t **out, unsigned *count, const struct buf *pem, const char *flag,
                     const char *path, struct err *err) {
  const gnutls_datum_t text = datum_of(pem);
  const int code = gnutls_x509_crt_list_import2(out, count, &text, GNUTLS_X509_FMT_PEM, 0);
  if (code >= 0 && *count > 0) return RC_OK;
  return err_set(err, RC_INVALID, NULL,
                 "%s: %s: certificates in PEM (\"-----BEGIN CERTIFICATE-----\") were expected: %s", flag, path,
                 code < 0 ? gnutls_strerror(code) : "there are none");
}

static void free_chain(gnutls_x509_crt_t *chain, unsigned count) {
  for (unsigned i = 0; i < count; i++) gnutls_x509_crt_deinit(chain[i]);
  gnutls_free(chain);
}

static const char *day_of(char out[32], time_t s) {
  struct tm t;
  if (gmtime_r(&s, &t) == NULL || strftime(out, 32, "%Y-%m-%d %H:%M UTC", &t) == 0) strcpy(out, "another time");
  return out;
}

/* Is the certificate, the first of its file, valid now? */
static enum rc check_dates(struct tls_material *m, const char *path, struct err *err) {
  gnutls_x509_crt_t *chain = NULL;
  unsigned count = 0;
  char day[32];
  enum rc rc = parse(&chain, &count, &m->cert, "--tls-cert", path, err);
  if (rc != RC_OK) return rc;
  const time_t now = (time_t)(clock_real_ms() / 1000), from = gnutls_x509_crt_get_activation_time(chain[0]),
               until = gnutls_x509_crt_get_expiration_time(chain[0]);
  m->expires_s = until;
  if (until < now)
    rc = err_set(err, RC_INVALID, NULL, "--tls-cert: %s expired on %s; have it signed anew by its authority", path,
                 day_of(day, until));
  else if (from > now)
    rc = err_set(err, RC_INVALID, NULL, "--tls-cert: %s is not valid before %s; is this machine's clock right?", path,
                 day_of(day, from));
  free_chain(chain, count);
  return rc;
}

/* Of what can be used and should not stay so. */
static void warn(const struct tls_material *m, const struct tls_settings *files) {
  char day[32];
  struct stat s;
  if (m->expires_s - clock_real_ms() / 1000 < WARN_DAYS * DAY_S)
    log_warn("--tls-cert: %s expires on %s; have it signed anew: the new file is read without a restart", files->cert,
             day_of(day, (time_t)m->expires_s));
  if (stat(files->key, &s) == 0 && (s.st_mode & S_IROTH) != 0)
    log_warn("--tls-key: every user of this machine can read %s; chmod 600 it, and replace it where that mattered",
             files->key);
}

static enum rc check_pair(struct tls_material *m, const struct tls_settings *files, struct err *err) {
  const gnutls_datum_t cert = datum_of(&m->cert), key = datum_of(&m->key);
  const int code = gnutls_certificate_set_x509_key_mem2(m->credentials, &cert, &key, GNUTLS_X509_FMT_PEM, NULL, 0);
  if (code >= 0) return RC_OK;
  if (code == GNUTLS_E_CERTIFICATE_KEY_MISMATCH)
    return err_set(err, RC_INVALID, NULL,
                   "--tls-key: %s is not the key of the first certificate in %s; name the two that were made together",
                   files->key, files->cert);
  if (code == GNUTLS_E_DECRYPTION_FAILED)
    return err_set(
        err, RC_INVALID, NULL,
        "--tls-key: %s is encrypted, and a service cannot ask for the passphrase; write it without a "
        "passphrase: openssl pkey "
        "-in %s -out ...",
        files->key, files->key);
  return err_set(err, RC_INVALID, NULL, "--tls-key: %s: a private key in PEM was expected: %s", files->key,
                 gnutls_strerror(code));
}

static enum rc check_authorities(const struct buf *pem, const char *flag, const char *path, struct err *err) {
  gnutls_x509_crt_t *list = NULL;
  unsigned count = 0;
  if (pem->len == 0) return RC_OK;
  const enum rc rc = parse(&list, &count, pem, flag, path, err);
  if (rc == RC_OK) free_chain(list, count);
  return rc;
}

/* What a server shows, and whom it trusts. */
static enum rc make_credentials(struct tls_material *m, const struct tls_settings *files, struct err *err) {
  if (gnutls_certificate_allocate_credentials(&m->credentials) < 0)
    return err_set(err, RC_NO_MEMORY, NULL, "no memory for TLS credentials");
  enum rc rc = check_dates(m, files->cert, err);
  if (rc == RC_OK) rc = check_pair(m, files, err);
  if (rc != RC_OK) return rc;
  if (m->client_ca.len == 0) return RC_OK;
  const gnutls_datum_t authorities = datum_of(&m->client_ca);
  const int code = gnutls_certificate_set_x509_trust_mem(m->credentials, &authorities, GNUTLS_X509_FMT_PEM);
  if (code > 0) return RC_OK;
  return err_set(err, RC_INVALID, NULL, "--tls-client-ca: %s: authorities' certificates in PEM were expected: %s",
                 files->client_ca, code < 0 ? gnutls_strerror(code) : "there are none");
}

static enum rc load(struct tls_material *m, const struct tls_settings *files, struct err *err) {
  if (!files->cert[0] != !files->key[0])
    return err_set(err, RC_INVALID, NULL, "--tls-cert and --tls-key belong together, but %s is missing",
                   files->cert[0] ? "--tls-key" : "--tls-cert");
  if (files->client_ca[0] && !files->cert[0])
    return err_set(
        err, RC_INVALID, NULL,
        "--tls-client-ca asks clients for certificates, which needs a server that speaks TLS: --tls-cert and "
        "--tls-key are missing");
  enum rc rc = read_file(&m->cert, "--tls-cert", files->cert, err);
  if (rc == RC_OK) rc = read_file(&m->key, "--tls-key", files->key, err);
  if (rc == RC_OK) rc = read_file(&m->ca, "--tls-ca", files->ca, err);
  if (rc == RC_OK) rc = read_file(&m->client_ca, "--tls-client-ca", files->client_ca, err);
  if (rc == RC_OK) rc = check_authorities(&m->ca, "--tls-ca", files->ca, err);
  if (rc == RC_OK && m->cert.len > 0) rc = make_credentials(m, files, err);
  if (rc == RC_OK && m->cert.len > 0) warn(m, files);
  return rc;
}

enum rc tls_material_load(struct tls_material **out, const struct tls_settings *files, struct err *err) {
  struct tls_material *m = calloc(1, sizeof *m);
  if (m == NULL) return err_set(err, RC_NO_MEMORY, NULL, "no memory for TLS certificates");
  atomic_init(&m->refs, 1);
  const enum rc rc = load(m, files, err);
  if (rc == RC_OK)
    *out = m;
  else
    tls_material_release(m);
  return rc;
}

void tls_material_release(struct tls_material *m) {
  if (m == NULL || atomic_fetch_sub(&m->refs, 1) > 1) return;
  if (m->credentials != NULL) gnutls_certificate_free_credentials(m->credentials);
  if (m->key.data != NULL) gnutls_memset(m->key.data, 0, m->key.len);
  buf_free(&m->cert);
  buf_free(&m->key);
  buf_free(&m->ca);
  buf_free(&m->client_ca);
  free(m);
}
