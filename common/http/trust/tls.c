/* Keeps the TLS material of this process, and reads its files again when they have changed: see tls.h. */
#include "common/http/trust/tls.h"

#include <pthread.h>
#include <string.h>
#include <sys/stat.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/http/trust/tls_material.h"

/* How a file looked: a change of any of it is a reason to read the file again. */
struct stamp {
  dev_t device;
  ino_t inode;
  off_t size;
  struct timespec written, changed;
};

enum { FILES = 4 };

static struct {
  struct tls_settings settings; /* set before any thread, as `expires` */
  struct metric *expires;
  pthread_mutex_t lock; /* guards all below */
  struct tls_material *current;
  struct stamp stamps[FILES];
  int64_t next_look_ms;
} tls = {.settings = {"", "", "", "", ""}, .lock = PTHREAD_MUTEX_INITIALIZER};

static void look_at(struct stamp stamps[FILES]) {
  const char *const paths[FILES] = {tls.settings.cert, tls.settings.key, tls.settings.ca, tls.settings.client_ca};
  memset(stamps, 0, FILES * sizeof *stamps);
  for (int i = 0; i < FILES; i++) {
    struct stat s;
    if (!paths[i][0] || stat(paths[i], &s) != 0) continue;
    stamps[i].device = s.st_dev;
    stamps[i].inode = s.st_ino;
    stamps[i].size = s.st_size;
    stamps[i].written = s.st_mtim;
    stamps[i].changed = s.st_ctim;
  }
}

static void take(struct tls_material *m) {
  tls_material_release(tls.current);
  tls.current = m;
  metric_set(tls.expires, (double)m->expires_s);
}

/* The stamps are older than the bytes that are read then: a change in between is seen the next time. */
static void look_again(void) {
  struct stamp now[FILES];
  struct tls_material *m;
  struct err err;
  tls.next_look_ms = clock_monotonic_ms() + TLS_LOOK_MS;
  look_at(now);
  if (memcmp(now, tls.stamps, sizeof now) == 0) return;
  memcpy(tls.stamps, now, sizeof now);
  if (tls_material_load(&m, &tls.settings, &err) == RC_OK) {
    take(m);
    log_info("tls: the files have changed; the new ones are in use from now on");
  } else {
    log_error("tls: the files have changed but cannot be used; those read before stay in use: %s", err.message);
  }
}

enum rc http_tls_start(const struct tls_settings *settings, struct err *err) {
  struct tls_material *m;
  if (!settings->cert[0] && !settings->key[0] && !settings->ca[0] && !settings->client_ca[0]) {
    tls.settings.peer_name = settings->peer_name;
    return RC_OK;
  }
  tls.settings = *settings;
  look_at(tls.stamps);
  const enum rc rc = tls_material_load(&m, settings, err);
  if (rc != RC_OK) return rc;
  if (m->cert.len > 0)
    tls.expires = metrics_register(METRIC_GAUGE, "leasehold_tls_certificate_expires_timestamp_seconds", "",
                                   "When the certificate of --tls-cert expires, in seconds since 1970.");
  take(m);
  tls.next_look_ms = clock_monotonic_ms() + TLS_LOOK_MS;
  return RC_OK;
}

struct tls_material *tls_hold(void) {
  pthread_mutex_lock(&tls.lock);
  if (tls.current != NULL && clock_monotonic_ms() >= tls.next_look_ms) look_again();
  struct tls_material *m = tls.current;
  if (m != NULL) atomic_fetch_add(&m->refs, 1);
  pthread_mutex_unlock(&tls.lock);
  return m;
}

const char *tls_peer_name(void) { return tls.settings.peer_name; }

bool http_tls_serves(void) { return tls.settings.cert[0] != '\0'; }

const char *http_tls_ca(void) { return tls.settings.ca; }
