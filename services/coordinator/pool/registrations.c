/* Judges registrations by the address and the token that they come from. */
#include "services/coordinator/pool/registrations.h"

#include <string.h>

#include "common/http/trust/access.h"
#include "services/coordinator/writer/core.h"

static uint64_t key_of(struct digest_state *s) {
  struct digest d;
  uint64_t key;
  digest_end(&d, s);
  memcpy(&key, d.bytes, sizeof key);
  return key ? key : 1;
}

static uint64_t origin_of(const unsigned char caller[HOST_CALLER_BYTES], const struct digest *holder) {
  struct digest_state s;
  digest_begin(&s);
  digest_update_text(&s, "origin");
  digest_update(&s, caller, HOST_CALLER_BYTES);
  digest_update(&s, holder->bytes, sizeof holder->bytes);
  return key_of(&s);
}

static uint64_t name_key(enum worker_kind kind, const char *name) {
  struct digest_state s;
  digest_begin(&s);
  digest_update_text(&s, worker_kind_name(kind));
  digest_update_text(&s, name);
  return key_of(&s);
}

static enum rc check_url(const struct core *c, const struct worker_register *m, const char *peer, struct err *err) {
  const struct http_access *access = c->options.access;
  char host[HOST_BYTES_MAX];
  const char *url = m->url;
  if (!access || m->kind == WORKER_PREPROCESS || m->exactness == WORKER_FOREIGN) return RC_OK;
  const enum rc rc = hosts_of_url(host, url, err);
  if (rc != RC_OK || hosts_is_address(host, peer) || (access->hosts_given && hosts_listed(access->hosts, host)))
    return rc;
  return err_set(
      err, RC_INVALID, "url",
      "expected a URL of the address that registers, %s, got '%.100s': weights and tokens go there; if the URL is "
      "right, start the coordinator with --allow-hosts %s",
      peer, url, host);
}

/* A name that was registered before, and that this caller may register again as far as the writer will agree. */
static bool is_known(struct core *c, const struct worker_register *m, const struct command *cmd) {
  static const char of_anybody[] = "SELECT 1 FROM workers WHERE kind = ?1 AND name = ?2 AND owner IS NULL";
  static const char of_holder[] = "SELECT 1 FROM workers WHERE kind = ?1 AND name = ?2 AND owner = ?3";
  if (cmd->caller.roles == 0)
    return readers_find(core_readers(c), of_anybody, BINDS(b_int((int64_t)m->kind), b_text(m->name)));
  return readers_find(core_readers(c), of_holder,
                      BINDS(b_int((int64_t)m->kind), b_text(m->name), b_digest(&cmd->caller.holder)));
}

static enum rc check_rate(struct core *c, const struct worker_register *m, const struct command *cmd, uint64_t origin,
                          struct err *err) {
  struct pool *p = c->pool;
  const int64_t per_s = c->options.registrations_per_s;
  const int64_t now_ms = c->options.clock.monotonic_us(c->options.clock.context) / 1000;
  if (per_s == 0) return RC_OK;
  const bool known = is_known(c, m, cmd);
  const int64_t name_per_s = per_s > RATE_NAME_SHARE ? per_s / RATE_NAME_SHARE : 1;
  pthread_mutex_lock(&p->registrations.mutex);
  const int64_t wait_ms =
      known ? registration_rate_take(&p->registrations.rate, name_key(m->kind, m->name), RATE_NAME_BURST_S * name_per_s,
                                     name_per_s, now_ms)
            : registration_rate_take(&p->registrations.rate, origin, RATE_BURST_S * per_s, per_s, now_ms);
  pthread_mutex_unlock(&p->registrations.mutex);
  if (wait_ms == 0) return RC_OK;
  if (known)
    return err_set(err, RC_FULL, "name",
                   "'%.100s' is being registered again and again, as when two processes have the same --name: try "
                   "again in %lld ms",
                   m->name, (long long)wait_ms);
  return err_set(err, RC_FULL, NULL,
                 "expected at most %lld new names a second from one address (--registrations-per-s): try again in "
                 "%lld ms",
                 (long long)per_s, (long long)wait_ms);
}

enum rc registration_admit(struct core *c, struct http_request *r, struct command *cmd, struct err *err) {
  const struct worker_register *m = cmd->message;
  uint64_t *origin = arena_alloc(&cmd->arena, 1, sizeof *origin);
  const char *peer = http_peer(r);
  unsigned char caller[HOST_CALLER_BYTES];
  if (!origin) return err_set(err, RC_NO_MEMORY, NULL, "a registration was refused memory");
  cmd->caller = http_caller(r);
  hosts_caller(caller, peer);
  *origin = origin_of(caller, &cmd->caller.holder);
  cmd->prepared = origin;
  enum rc rc = check_url(c, m, peer, err);
  if (rc == RC_OK) rc = check_rate(c, m, cmd, *origin, err);
  return rc;
}

static uint64_t url_key(const char *url) {
  struct digest_state s;
  digest_begin(&s);
  digest_update_text(&s, url);
  return key_of(&s);
}

void registration_compare(struct core *c, struct live_worker *w, const char *url, const struct live_worker *old) {
  struct pool *p = c->pool;
  const uint64_t name = name_key(w->kind, w->name);
  w->url = url_key(url);
  w->url_before = old->url == w->url ? old->url_before : old->url;
  if (old->url == w->url || old->url_before != w->url) return;
  pthread_mutex_lock(&p->registrations.mutex);
  unsigned at = 0;
  while (at < SHARED_NAMES_MAX && p->registrations.shared[at].name != name) at++;
  if (at == SHARED_NAMES_MAX) at = p->registrations.shared_next++ % SHARED_NAMES_MAX;
  p->registrations.shared[at].name = name;
  p->registrations.shared[at].at_ms = c->wall_ms;
  pthread_mutex_unlock(&p->registrations.mutex);
}

int64_t registration_shared_ms(struct core *c, enum worker_kind kind, const char *name, int64_t wall_ms) {
  struct pool *p = c->pool;
  const uint64_t key = name_key(kind, name);
  int64_t at_ms = 0;
  pthread_mutex_lock(&p->registrations.mutex);
  for (int i = 0; i < SHARED_NAMES_MAX; i++)
    if (p->registrations.shared[i].name == key) at_ms = p->registrations.shared[i].at_ms;
  pthread_mutex_unlock(&p->registrations.mutex);
  return wall_ms - at_ms < SHARED_NAME_MS ? at_ms : 0;
}
