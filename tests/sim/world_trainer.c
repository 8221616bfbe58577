/* The trainer of a world, and the turns of the coordinator's driver, which chooses by driver/next.h and sends here.
 *
 * The trainer keeps books as a real one must: groups that were accumulated since its last step, its weights as a digest
 * over what was stepped.  So a batch that is lost, sent twice or out of order ends in other weights, and a step that
 * names other groups than were accumulated is a fault. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "services/coordinator/api/route_versions.h"
#include "services/coordinator/api/route_workers.h"
#include "services/coordinator/driver/step.h"
#include "services/coordinator/rounds/batches.h"
#include "services/coordinator/rounds/run_attach.h"
#include "services/coordinator/store/ids.h"
#include "tests/sim/world_state.h"

static const int64_t LATE_US = 300000; /* an announcement may take so long on its way */

enum { TURNS_MAX = 1000 }; /* at one moment */

/* ---- memory ---- */

static struct job *job_new(const struct world *w, int64_t round, int64_t version) {
  struct job *j = calloc(1, sizeof *j);
  if (!j) abort();
  *j = (struct job){.life = w->trainer.life, .round = round, .version = version};
  return j;
}

static void job_free(struct job *j) {
  if (!j) return;
  free(j->ordinals);
  free(j->contents);
  free(j->pushes);
  free(j->push_ids);
  free(j);
}

void trainer_message_free(const struct world_event *e) {
  switch (e->kind) {
    case JOB_ARRIVES:
    case JOB_KNOWN:
    case VERSION_DURABLE:
    case VERSION_ARRIVES:
    case STEP_KNOWN: job_free(e->what); break;
    default: break;
  }
}

void trainer_forgets(struct world *w) {
  struct trainer *t = &w->trainer;
  while (t->first) {
    struct job *next = t->first->next;
    job_free(t->first);
    t->first = next;
  }
  t->last = &t->first;
  t->busy = false;
  t->steps = 0;
  t->sum = 0;
  t->held_count = 0;
  t->weights = t->durable;
}

/* ---- registration ---- */

void trainer_registers(struct world *w) {
  struct trainer *t = &w->trainer;
  struct buf answer = BUF_INIT;
  struct arena arena = ARENA_INIT;
  struct json *json = NULL;
  struct worker_registered is;
  struct err err = {0};
  struct worker_register r = {.name = "trainer", .kind = WORKER_TRAINER, .url = "http://127.0.0.1:8", .identity = "t"};
  trainer_forgets(w);
  enum rc rc = world_call(w, register_execute, &r, NULL, &answer, &err);
  if (rc == RC_OK) rc = json_parse(&json, answer.data, answer.len, 0, &err);
  if (rc == RC_OK) rc = worker_registered_decode(&is, json, &arena, &err);
  if (rc == RC_OK) rc = id_parse_worker(&t->worker_id, is.worker_id, &err);
  if (rc == RC_OK) {
    snprintf(t->worker, sizeof t->worker, "%s", is.worker_id);
    t->epoch = is.epoch;
    t->fence = is.fence;
    t->up = true;
  }
  if (rc != RC_OK) world_fault(w, "the trainer cannot register: %.200s", err.message);
  if (rc == RC_OK && is.role != ROLE_HOLDER) world_fault(w, "the trainer is not given its place");
  json_free(json);
  buf_free(&answer);
  arena_free(&arena);
  w->r->trainers++;
  world_at(w, w->now_us + 1000 * w->c.heartbeat_ms, TRAINER_BEATS, 0, t->life, NULL);
}

static void beats(struct world *w) {
  struct err err = {0};
  struct worker_heartbeat m = {.epoch = w->trainer.epoch, .ready = true};
  const enum rc rc = world_call(w, heartbeat_execute, &m, w->trainer.worker, NULL, &err);
  if (rc != RC_OK) world_fault(w, "the trainer's heartbeat is refused: %.200s", err.message);
  world_at(w, w->now_us + 1000 * w->c.heartbeat_ms, TRAINER_BEATS, 0, w->trainer.life, NULL);
}

/* It comes back with nothing of this round, and is fed what was accepted again. */
void trainer_dies(struct world *w, int64_t length_us) {
  if (!w->trainer.up) return;
  trainer_forgets(w);
  w->trainer.up = false;
  w->trainer.life++;
  w->driver.at_trainer = w->driver.pending = 0;
  w->driver.step_round = -1;
  w->driver.run = 0;
  if (w->now && w->now->published_us == 0) w->now->train_us = 0;
  world_at(w, w->now_us + length_us, TRAINER_BACK, 0, w->trainer.life, NULL);
}

/* ---- training ---- */

static void next_job(struct world *w) {
  struct trainer *t = &w->trainer;
  if (t->busy || !t->up || !t->first) return;
  t->busy = true;
  if (w->now->first_train_us == 0) w->now->first_train_us = w->now_us - w->now->opened_us;
  world_at(w, w->now_us + (int64_t)t->first->us, JOB_ENDS, 0, t->life, NULL);
}

static void accumulate(struct world *w, const struct job *j) {
  struct trainer *t = &w->trainer;
  if (j->step != t->steps)
    world_fault(w, "I5: a batch of step %lld comes when %lld were taken", (long long)j->step, (long long)t->steps);
  t->held = world_room(t->held, &t->held_room, t->held_count + j->count, sizeof *t->held);
  for (int i = 0; i < j->count; i++) {
    t->held[t->held_count++] = j->ordinals[i];
    t->sum += j->contents[i];
  }
}

static int by_value(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

/* Inner or not. */
static void step(struct world *w, struct job *j) {
  struct trainer *t = &w->trainer;
  struct digest_state d;
  uint64_t bits;
  if (j->step != t->steps)
    world_fault(w, "I5: step %lld is asked for when %lld were taken", (long long)j->step, (long long)t->steps);
  if (t->held_count) qsort(t->held, (size_t)t->held_count, sizeof *t->held, by_value);
  if (j->count != t->held_count || (j->count && memcmp(j->ordinals, t->held, (size_t)j->count * sizeof *t->held) != 0))
    world_fault(w, "I5: a step of round %lld over %d groups is asked for, %d were accumulated, or others",
                (long long)j->round, j->count, t->held_count);
  memcpy(&bits, &j->denominator, sizeof bits);
  digest_begin(&d);
  digest_update(&d, t->weights.bytes, DIGEST_BYTES);
  digest_update_u64(&d, t->sum);
  digest_update_u64(&d, bits);
  digest_end(&t->weights, &d);
  t->sum = 0;
  t->held_count = 0;
  t->steps = j->is_step ? 0 : t->steps + 1;
  j->digest = t->weights;
}

static void job_ends(struct world *w) {
  struct trainer *t = &w->trainer;
  struct job *j = t->first;
  t->first = j->next;
  if (!t->first) t->last = &t->first;
  t->busy = false;
  if (j->is_inner || j->is_step)
    step(w, j);
  else
    accumulate(w, j);
  if (j->is_step) {
    t->durable_version = j->version + 1;
    t->durable = t->weights;
    world_at(w, w->now_us + (int64_t)w->c.publish_us, VERSION_DURABLE, 0, t->life, j);
  } else {
    w->now->train_us += (int64_t)j->us;
    w->now->end_us = w->now_us - w->now->opened_us;
    world_at(w, w->now_us + w->c.message_us, JOB_KNOWN, 0, t->life, j);
  }
  next_job(w);
}

/* ---- answers ---- */

static enum rc batch_answer_execute(struct core *c, struct command *cmd, struct err *err) {
  return batches_answered(c, cmd->message, err);
}

static enum rc inner_answer_execute(struct core *c, struct command *cmd, struct err *err) {
  return inner_steps_answered(c, cmd->message, err);
}

static void job_known(struct world *w, struct job *j) {
  const bool by_tokens = run_counts_tokens(&w->context->config);
  struct err err = {0};
  enum rc rc;
  w->driver.pending--;
  if (j->is_inner) {
    struct inner_step_answer m = {.run = 1,
                                  .round = j->round,
                                  .step = j->step,
                                  .trainer_worker = w->trainer.worker_id,
                                  .by_tokens = by_tokens,
                                  .digest = j->digest,
                                  .step_us = (int64_t)j->us};
    rc = world_call(w, inner_answer_execute, &m, NULL, NULL, &err);
  } else {
    struct batch_answer m = {
        .run = 1,
        .round = j->round,
        .number = j->number,
        .trainer_worker = w->trainer.worker_id,
        .by_tokens = by_tokens,
        .stats = {.samples = (int64_t)j->count * w->c.samples, .tokens = j->tokens, .compute_us = (int64_t)j->us}};
    w->driver.at_trainer--;
    rc = world_call(w, batch_answer_execute, &m, NULL, NULL, &err);
  }
  if (rc != RC_OK) world_fault(w, "the trainer's answer is refused: %.200s", err.message);
  w->driver.due = true;
  job_free(j);
}

/* ---- versions ---- */

/* Has a version become current, and a round been opened? */
static void look_for_round(struct world *w) {
  const int64_t version =
      WORLD_NUMBER(w, "SELECT version FROM versions WHERE run = ?1 AND state = ?2", b_int(1), b_int(VERSION_CURRENT));
  const int64_t round = WORLD_NUMBER(w, "SELECT max(round) FROM rounds WHERE run = ?1", b_int(1));
  if (version < w->version_count) return;
  if (version != w->trainer.durable_version)
    world_fault(w, "I6: version %lld is current, the durable one is %lld", (long long)version,
                (long long)w->trainer.durable_version);
  w->versions[version] = w->trainer.durable;
  w->version_count = version + 1;
  if (w->c.inflight) stream_version(w, version);
  if (w->now) w->now->published_us = w->now_us - w->now->opened_us;
  w->r->ended_us = w->now_us;
  if (round > w->round) round_opens(w, round);
}

/* The servers that are up have staged what was pushed. */
static void push(struct world *w, struct job *j) {
  for (size_t i = 0; i < j->push_count; i++) {
    int64_t id = 0;
    struct err err;
    struct push_report *p = &j->pushes[i];
    const bool known = id_parse_worker(&id, p->worker_id, &err) == RC_OK && id < w->server_of_room;
    struct server *s = known && w->server_of[id] >= 0 ? &w->servers[w->server_of[id]] : NULL;
    p->staged = s && server_works(s) && s->worker_id == id;
    p->way = PUSH_HTTP;
    p->digest = p->staged ? j->digest : (struct digest){0};
    if (!p->staged) continue;
    s->staged = j->digest;
    s->has_staged = true;
  }
}

static void version_durable(struct world *w, struct job *j) {
  const double late = world_uniform(w->c.seed, STREAM_MESSAGE, UINT32_MAX, (uint32_t)j->round);
  const bool slow = w->c.trainer_kills && late < 0.5;
  if (!w->c.inflight) push(w, j);
  memcpy(j->worker, w->trainer.worker, sizeof j->worker);
  j->epoch = w->trainer.epoch;
  j->fence = w->trainer.fence;
  world_at(w, w->now_us + w->c.message_us + (slow ? (int64_t)(2 * late * (double)LATE_US) : 0), VERSION_ARRIVES, 0,
           j->life, j);
}

/* What nobody may announce: under another epoch or fence, a version that the round does not make, or one of a round
 * that is not in step. */
static void lies(struct world *w, const struct version_announce *true_one, const struct job *j) {
  static const char *const about[] = {"another epoch", "another fence", "a later number", "the round behind it"};
  const struct id_text next = id_round(1, j->round + 1);
  for (int what = 0; what < 4; what++) {
    struct version_announce m = *true_one;
    struct err err = {0};
    if (what == 0) m.epoch--;
    if (what == 1) m.fence++;
    if (what >= 2) m.version++;
    if (what == 3) m.step_id = next.text;
    if (world_call(w, version_execute, &m, NULL, NULL, &err) == RC_OK)
      world_fault(w, "I6, I9: a version is accepted under %s", about[what]);
  }
}

/* From a trainer that may have died meanwhile. */
static void version_arrives(struct world *w, struct job *j) {
  struct err err = {0};
  const struct id_text step_id = id_round(1, j->round);
  struct version_announce m = {.run = "r1",
                               .step_id = step_id.text,
                               .worker_id = j->worker,
                               .epoch = j->epoch,
                               .fence = j->fence,
                               .version = j->version + 1,
                               .digest = j->digest,
                               .pushes = j->pushes,
                               .push_count = w->c.inflight ? 0 : j->push_count};
  const bool holds = strcmp(j->worker, w->trainer.worker) == 0;
  lies(w, &m, j);
  const enum rc rc = world_call(w, version_execute, &m, NULL, NULL, &err);
  if (rc == RC_OK && !holds) world_fault(w, "I9: the version of a trainer that lost its place is accepted");
  if (rc != RC_OK && holds && w->trainer.life == j->life) world_fault(w, "a version is refused: %.200s", err.message);
  if (rc != RC_OK) w->r->refused++;
  look_for_round(w);
  if (rc == RC_OK && w->c.inflight) versions_push(w, j);
  lies(w, &m, j);
  world_at(w, w->now_us + w->c.message_us, STEP_KNOWN, 0, j->life, j);
}

static void step_store_as(struct world *w, int64_t round, const struct step_status *status) {
  struct err err = {0};
  const struct active_run a = {.run = 1, .rounds = w->context->config.rounds};
  const enum rc rc = step_store(w->core, &a, w->trainer.worker_id, round, status, &err);
  if (rc != RC_OK) world_fault(w, "a step's figures are refused: %.200s", err.message);
  look_for_round(w);
  w->driver.step_round = -1;
  w->driver.due = true;
}

static void step_known(struct world *w, struct job *j) {
  const struct step_status status = {.state = JOB_DONE,
                                     .version = j->version + 1,
                                     .digest = j->digest,
                                     .pushes = j->pushes,
                                     .push_count = w->c.inflight ? 0 : j->push_count,
                                     .step_us = (int64_t)j->us};
  step_store_as(w, j->round, &status);
  job_free(j);
}

/* ---- the driver sends ---- */

static void send_job(struct world *w, struct job *j) {
  world_at(w, w->now_us + w->c.message_us, JOB_ARRIVES, 0, w->trainer.life, j);
}

static void groups_room(struct job *j, int64_t count) {
  j->ordinals = calloc((size_t)count + 1, sizeof *j->ordinals);
  j->contents = calloc((size_t)count + 1, sizeof *j->contents);
  if (!j->ordinals || !j->contents) abort();
}

/* A group's round and ordinal, in their order. */
static int64_t place_key(int64_t round, int64_t ordinal) { return (round << 20) | ordinal; }

/* The groups that the ledger has under the batch's number: what batch_build.c would put into the message. */
static enum rc batch_fill(struct world *w, struct job *j, struct err *err) {
  struct rows q;
  struct digest digest;
  bool row;
  groups_room(j, WORLD_NUMBER(w, "SELECT groups FROM batches WHERE run = 1 AND round = ?1 AND number = ?2",
                              b_int(j->round), b_int(j->number)));
  double tokens = 0;
  enum rc rc = store_query(
      w->core->store, &q, err,
      "SELECT round, ordinal, digest, tokens FROM groups INDEXED BY groups_batch WHERE run = 1 AND trained_in "
      "= ?1 AND batch = ?2 ORDER BY round, ordinal",
      BINDS(b_int(j->round), b_int(j->number)));
  while (rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row) {
    const int64_t round = rows_int(&q, 0), ordinal = rows_int(&q, 1);
    j->ordinals[j->count] = place_key(round, ordinal);
    rows_digest(&q, 2, &digest);
    memcpy(&j->contents[j->count++], digest.bytes, sizeof j->contents[0]);
    j->tokens += rows_int(&q, 3);
    for (int s = 0; s < w->c.samples; s++) tokens += world_length(&w->c, round, ordinal, s);
  }
  rows_end(&q);
  j->us = w->c.batch_us + tokens * w->c.train_us_per_token;
  return rc;
}

/* Group ids as they stand in the message, back to ordinals. */
static enum rc step_groups_read(struct world *w, struct job *j, const struct submit_step *m, struct err *err) {
  enum rc rc = RC_OK;
  groups_room(j, (int64_t)m->group_count);
  for (size_t i = 0; i < m->group_count && rc == RC_OK; i++) {
    long long round, ordinal;
    const bool good = sscanf(m->groups[i], "r1.%lld.%lld", &round, &ordinal) == 2;
    if (!good) rc = err_set(err, RC_CORRUPT, NULL, "'%s' is no group", m->groups[i]);
    if (good) j->ordinals[j->count++] = place_key(round, ordinal);
  }
  j->denominator = m->denominator;
  j->step = m->after_steps;
  j->us = w->c.optimizer_us;
  return rc;
}

static enum rc inner_fill(struct world *w, struct job *j, const struct trainer_target *target, struct err *err) {
  const struct inner_step_place place = {.round = j->round, .step = j->step, .version = j->version};
  struct inner_step *inner = NULL;
  enum rc rc = inner_step_make(&inner, core_readers(w->core), w->context, target, &place, err);
  if (rc == RC_OK) rc = step_groups_read(w, j, &inner->message, err);
  inner_step_free(inner);
  j->is_inner = true;
  w->r->inner_steps++;
  return rc;
}

static enum rc driver_sends(struct world *w, const struct active_run *a, const struct trainer_target *target,
                            struct next_job *next, struct err *err) {
  enum rc rc = next->stored ? RC_OK : next_job_plan(w->core, next, err);
  if (rc != RC_OK) return rc;
  if (!w->trainer.up) { /* nobody is there to take it: the driver tries again */
    w->driver.run = 0;
    next->found = false;
    return RC_OK;
  }
  struct job *j = job_new(w, a->round, a->round_version);
  j->number = next->job.number;
  j->step = next->job.step;
  rc = next->job.inner ? inner_fill(w, j, target, err) : batch_fill(w, j, err);
  w->r->batches += !next->job.inner;
  w->driver.at_trainer += !next->job.inner;
  w->driver.pending++;
  w->driver.newest = next->job;
  send_job(w, j);
  return rc;
}

static enum rc driver_trains(struct world *w, const struct active_run *a, const struct trainer_target *target,
                             struct err *err) {
  struct driver_books *d = &w->driver;
  struct next_job next = {.found = true};
  enum rc rc = RC_OK;
  if (d->run != a->run || d->round != a->round || d->trainer != target->worker) {
    d->run = a->run;
    d->round = a->round;
    d->trainer = target->worker;
    d->newest = round_job_none();
    d->at_trainer = d->pending = 0;
  }
  while (rc == RC_OK && next.found) {
    rc = next_job_find(&next, core_readers(w->core), w->context, a, &d->newest, d->at_trainer,
                       core_options(w->core)->batch_tokens, core_wall_us(w->core) / 1000, err);
    if (rc == RC_OK && next.found) rc = driver_sends(w, a, target, &next, err);
  }
  d->wanted = next.groups_wanted;
  core_await_groups(w->core, rc == RC_OK ? d->wanted : INT_MAX, d->at_trainer == 0);
  if (rc == RC_OK && d->pending == 0 && w->trainer.up) rc = next_step_begin(w->core, a, &w->context->config, err);
  return rc;
}

static enum rc driver_steps(struct world *w, const struct active_run *a, const struct trainer_target *target,
                            int64_t round, struct err *err) {
  struct arena arena = ARENA_INIT;
  struct submit_step m;
  if (w->driver.step_round == round || !w->trainer.up) return RC_OK;
  if (a->unfinished == round) { /* published by a trainer whose figures are lost */
    step_store_as(w, round, NULL);
    return RC_OK;
  }
  if (w->trainer.durable_version == a->round_version + 1) { /* made durable by an earlier life */
    const struct step_status status = {
        .state = JOB_DONE, .version = w->trainer.durable_version, .digest = w->trainer.durable};
    step_store_as(w, round, &status);
    return RC_OK;
  }
  struct job *j = job_new(w, round, a->round_version);
  enum rc rc = step_message(w->core, w->context, target, round, &m, &arena, err);
  if (rc == RC_OK) rc = step_groups_read(w, j, &m, err);
  j->is_step = true;
  if (rc == RC_OK && w->c.inflight) stream_step(w, j);
  j->push_count = rc == RC_OK ? m.push_count : 0;
  j->pushes = calloc(j->push_count + 1, sizeof *j->pushes);
  j->push_ids = calloc(j->push_count + 1, sizeof *j->push_ids);
  if (!j->pushes || !j->push_ids) abort();
  for (size_t i = 0; i < j->push_count; i++) {
    snprintf(j->push_ids[i], sizeof j->push_ids[i], "%s", m.push_to[i].worker_id);
    j->pushes[i].worker_id = j->push_ids[i];
  }
  w->driver.step_round = round;
  send_job(w, j);
  arena_free(&arena);
  return rc;
}

/* ---- the driver's turns ---- */

struct attach_message {
  struct run_context *context;
  struct digest digest;
  int64_t again;
};

static enum rc attach_execute(struct core *c, struct command *cmd, struct err *err) {
  const struct attach_message *m = cmd->message;
  return run_attach(c, m->context, &m->digest, m->again, err);
}

static enum rc driver_starts(struct world *w, const struct active_run *a, const struct trainer_target *target,
                             struct err *err) {
  const bool first = !a->has_version;
  if (!w->trainer.up) return RC_OK;
  struct attach_message m = {
      .context = w->context, .digest = w->trainer.durable, .again = next_again(a, w->trainer.durable_version)};
  const enum rc rc = world_call(w, attach_execute, &m, NULL, NULL, err);
  w->driver.verified = target->worker;
  w->driver.run = 0;
  w->driver.at_trainer = w->driver.pending = 0;
  w->driver.step_round = -1;
  w->driver.due = true;
  if (rc != RC_OK || !first) return rc;
  look_for_round(w);
  world_tell(w);
  return rc;
}

static void turn(struct world *w) {
  struct active_run a;
  struct trainer_target target;
  struct err err = {0};
  int64_t round = 0;
  w->driver.due = false;
  w->driver.sealed = 0;
  w->driver.wanted = 1;
  enum rc rc = look_read(core_readers(w->core), &target, &a, &err);
  const bool opened = target.found && w->driver.verified == target.worker;
  if (rc == RC_OK) {
    switch (next_work(&a, target.found, opened ? &w->context->config : NULL, &round)) {
      case NEXT_NOTHING: w->over = !a.found; break;
      case NEXT_NO_TRAINER: break;
      case NEXT_START: rc = driver_starts(w, &a, &target, &err); break;
      case NEXT_TRAIN: rc = driver_trains(w, &a, &target, &err); break;
      case NEXT_STEP: rc = driver_steps(w, &a, &target, round, &err); break;
    }
  }
  if (rc != RC_OK) world_fault(w, "the driver fails: %.200s", err.message);
  if (w->driver.sealed >= w->driver.wanted) w->driver.due = true;
  polls_settle(w);
  look_free(&a);
}

void driver_acts(struct world *w) {
  int turns = 0;
  while (w->driver.due && w->r->trainers > 0 && !w->over && !w->r->fault[0]) {
    turn(w);
    if (++turns > TURNS_MAX) world_fault(w, "the driver turns without end, and there is nothing to do");
  }
}

/* ---- events ---- */

void trainer_event(struct world *w, const struct world_event *e) {
  struct trainer *t = &w->trainer;
  struct job *j = e->what;
  if (e->kind == VERSION_ARRIVES) {
    version_arrives(w, j);
    return;
  }
  if (e->life != t->life) {
    trainer_message_free(e);
    return;
  }
  switch (e->kind) {
    case TRAINER_BEATS: beats(w); break;
    case TRAINER_BACK: trainer_registers(w); break;
    case JOB_ARRIVES:
      j->next = NULL;
      *t->last = j;
      t->last = &j->next;
      next_job(w);
      break;
    case JOB_ENDS: job_ends(w); break;
    case JOB_KNOWN: job_known(w, j); break;
    case VERSION_DURABLE: version_durable(w, j); break;
    case STEP_KNOWN: step_known(w, j); break;
    default: break;
  }
}
