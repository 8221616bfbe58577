/* Judges a result by its headers: a zombie's is refused here, and costs one look-up, however long its body is.  One
 * whose lease stands costs none (pool/granted.h).
 *
 * The order is that of result_execute, which has the last word: what is refused here would be refused there, because a
 * lease that has ended never stands again and an epoch never comes back. */
#include "services/coordinator/api/result_head.h"

#include <string.h>

#include "common/wire/claim.h"
#include "services/coordinator/pool/leases.h"
#include "services/coordinator/pool/pool.h"
#include "services/coordinator/rounds/rounds.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/writer/core.h"
#include "services/coordinator/writer/journal.h"

static enum rc read_claim(struct claim *out, const struct http_request *r, struct err *err) {
  return claim_read(out, http_header(r, CLAIM_EPOCH_HEADER), http_header(r, CLAIM_FENCE_HEADER),
                    http_header(r, CLAIM_WORKER_HEADER), err);
}

/* Without a fence, the lease says nothing but that it is there. */
static enum rc find(struct store *s, const char *id, const struct claim *claim, struct lease_row *out,
                    struct err *err) {
  return claim->has_fence ? lease_claimed(s, id, &claim->fence, claim->worker, out, err)
                          : lease_claimed(s, id, NULL, NULL, out, err);
}

static enum rc judge(const struct core *c, const struct lease_row *l, const struct claim *claim, struct err *err) {
  if (!claim->has_fence || l->has_content) return RC_OK; /* with content: a repeat? */
  const enum rc rc = claim->has_epoch ? journal_check_epoch(c, claim->epoch, err) : RC_OK;
  return rc == RC_OK ? lease_stands(l, err) : rc;
}

struct refusal {
  int64_t run;
};

static enum rc count_execute(struct core *c, struct command *cmd, struct err *err) {
  return rounds_result_refused(c, ((const struct refusal *)cmd->message)->run, err);
}

static void count_refusal(struct core *c, int64_t run) {
  struct command *cmd = command_new(count_execute, sizeof(struct refusal));
  if (cmd) *(struct refusal *)cmd->message = (struct refusal){run};
  if (cmd) cmd->patient = true;
  core_tell(c, cmd);
}

/* A lease that stands, as far as memory tells; what is wrong with any other is for the database to say. */
static bool stands_in_memory(const struct core *c, const char *id, const struct claim *claim) {
  struct granted_lease l;
  return claim->has_fence && granted_find(c->pool->granted, id, claim->fence, &l, NULL) &&
         (!claim->worker || strcmp(id_worker(l.worker).text, claim->worker) == 0) &&
         (!claim->has_epoch || claim->epoch == core_epoch(c));
}

enum rc admit_result(struct http_request *r, void *context, struct err *err) {
  struct core *c = context;
  struct claim claim;
  struct lease_row l;
  struct store *s;
  enum rc rc = read_claim(&claim, r, err);
  if (rc == RC_OK && stands_in_memory(c, http_param(r, "id"), &claim)) return RC_OK;
  if (rc != RC_OK || readers_take_newest(core_readers(c), &s, NULL) != RC_OK) return rc; /* the writer finds out */
  rc = find(s, http_param(r, "id"), &claim, &l, err);
  readers_give(core_readers(c), s);
  if (rc == RC_OK) rc = judge(c, &l, &claim, err);
  if (rc != RC_OK && l.run) count_refusal(c, l.run);
  return rc;
}

enum rc result_head_agrees(const struct http_request *r, const struct lease_result *m, struct err *err) {
  struct claim claim;
  const enum rc rc = read_claim(&claim, r, err);
  return rc == RC_OK ? claim_agrees(&claim, m->epoch, m->fence, m->worker_id, err) : rc;
}
