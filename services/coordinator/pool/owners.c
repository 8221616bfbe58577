/* Judges whose a name is, and keeps the record of names short. */
#include "services/coordinator/pool/owners.h"

#include "common/http/trust/access.h"
#include "services/coordinator/store/ids.h"

enum { PRUNED_AT_ONCE = 8 };

static bool may_act_for(const struct core *c, const struct token_claim *caller, const struct digest *owner) {
  if (caller->roles == 0 || (caller->roles & HTTP_ADMIN) || digest_equal(&caller->holder, owner)) return true;
  const struct http_access *access = c->options.access;
  return access && !tokens_hold(access->tokens, owner);
}

enum rc owner_check(const struct core *c, const struct command *cmd, const struct live_worker *w, struct err *err) {
  if (!w->owned || may_act_for(c, &cmd->caller, &w->owner)) return RC_OK;
  return err_set(err, RC_FORBIDDEN, "id", "worker %s was registered with another token than this request's",
                 id_worker(w->id).text);
}

enum rc owner_may_take(struct core *c, const struct command *cmd, enum worker_kind kind, const char *name,
                       struct err *err) {
  const unsigned role = kind == WORKER_TRAINER ? HTTP_TRAINER : HTTP_WORKER, roles = cmd->caller.roles;
  struct rows q;
  struct digest owner;
  bool row = false, owned = false;
  if (roles == 0) return RC_OK;
  if (!(roles & (role | HTTP_ADMIN)))
    return err_set(err, RC_FORBIDDEN, "kind", "expected a token of role %s to register a %s worker, got one of role "
                                              "%s",
                   token_role_name(role), worker_kind_name(kind),
                   token_role_name(role == HTTP_TRAINER ? HTTP_WORKER : HTTP_TRAINER));
  enum rc rc =
      store_query(c->store, &q, err,
                  "SELECT owner FROM workers INDEXED BY workers_named WHERE kind = ?1 AND name = ?2 ORDER BY id "
                  "DESC LIMIT 1",
                  BINDS(b_int((int64_t)kind), b_text(name)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) owned = rows_digest(&q, 0, &owner);
  rows_end(&q);
  if (rc != RC_OK || !owned || may_act_for(c, &cmd->caller, &owner)) return rc;
  return err_set(
      err, RC_FORBIDDEN, "name",
      "the name '%.100s' belongs to another token than this request's: take another name, or remove that token",
      name);
}

enum rc owners_prune(struct core *c, enum worker_kind kind, const char *name, struct err *err) {
  enum rc rc = store_exec(c->store, err,
                          "DELETE FROM workers WHERE kind = ?1 AND name = ?2 AND used = 0 AND live = 0",
                          BINDS(b_int((int64_t)kind), b_text(name)));
  if (rc != RC_OK) return rc;
  return store_exec(
      c->store, err,
      "DELETE FROM workers WHERE (SELECT count(*) FROM workers INDEXED BY workers_unused WHERE used = 0) > ?1 "
      "AND id IN (SELECT id FROM workers INDEXED BY workers_unused WHERE used = 0 ORDER BY id LIMIT ?2)",
      BINDS(b_int(OWNERS_KEPT), b_int(PRUNED_AT_ONCE)));
}
