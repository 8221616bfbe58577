/* Encodes and decodes a step, its status, the announcement of the version that it made, and the answer to pushed
 * weights.
 *
 * Previous hop: coordinator/driver/step.c.  Next: trainer-server/api/route_submit_step.c, later publish/publisher.c. */
#include <float.h>
#include <math.h>

#include "common/wire/fields.h"
#include "common/wire/training.h"

enum { PUSH_ERROR_BYTES = 4 * ERR_MESSAGE_MAX }; /* invalid UTF-8 grows on the wire */

static enum rc target_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct push_target *t = item;
  const struct json_field fields[] = {
      WIRE_NAME("worker_id", t->worker_id),
      WIRE_URL("url", t->url),
      {.name = "fabric_place",
       .kind = FIELD_I64,
       .target = &t->fabric_place,
       .max = WIRE_EXACT_MAX,
       .present = &t->shares_fabric},
      WIRE_OPTIONAL_NAME("push_token", t->push_token),
  };
  return wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
}

void submit_step_encode(const struct submit_step *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "step_id", m->step_id);
  json_kv_string(&w, "run", m->run);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_u64(&w, "fence", m->fence);
  json_kv_int(&w, "version", m->version);
  wire_kv_names(&w, "groups", m->groups, m->group_count);
  json_kv_f64(&w, "denominator", m->denominator);
  json_kv_bool(&w, "last", m->last);
  if (m->inner) json_kv_bool(&w, "inner", true);
  if (m->after_steps != 0) json_kv_int(&w, "after_steps", m->after_steps);
  if (m->announce_first) json_kv_bool(&w, "announce_first", true);
  if (m->checkpoint) json_kv_bool(&w, "checkpoint", true);
  if (m->keep_last) json_kv_int(&w, "keep_last", m->keep_last);
  if (m->keep_versions.count) json_kv_i32s(&w, "keep_versions", m->keep_versions.items, m->keep_versions.count);
  json_key(&w, "push_to");
  json_array_begin(&w);
  for (size_t i = 0; i < m->push_count; i++) {
    json_object_begin(&w);
    json_kv_string(&w, "worker_id", m->push_to[i].worker_id);
    json_kv_string(&w, "url", m->push_to[i].url);
    if (m->push_to[i].shares_fabric) json_kv_int(&w, "fabric_place", m->push_to[i].fabric_place);
    if (m->push_to[i].push_token) json_kv_string(&w, "push_token", m->push_to[i].push_token);
    json_object_end(&w);
  }
  json_array_end(&w);
  json_kv_int(&w, "stage_timeout_ms", m->stage_timeout_ms);
  json_object_end(&w);
}

/* An inner step only moves the weights. */
static enum rc inner_check(const struct submit_step *m, struct err *err) {
  if (!m->inner) return RC_OK;
  if (m->group_count == 0)
    return err_set(err, RC_INVALID, "groups", "expected at least one group of an inner step, got none");
  if (m->last) return err_set(err, RC_INVALID, "last", "an inner step is not a run's last: it makes no version");
  if (m->push_count > 0)
    return err_set(err, RC_INVALID, "push_to", "expected none, an inner step makes no version to push; got %zu",
                   m->push_count);
  if (m->announce_first)
    return err_set(err, RC_INVALID, "announce_first", "an inner step makes no version to announce");
  if (m->checkpoint) return err_set(err, RC_INVALID, "checkpoint", "an inner step makes no version to write");
  return RC_OK;
}

enum rc submit_step_decode(struct submit_step *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct submit_step){0};
  const struct json *groups = NULL, *push_to = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("step_id", m->step_id),
      WIRE_NAME("run", m->run),
      WIRE_U64("epoch", m->epoch),
      WIRE_U64("fence", m->fence),
      WIRE_I64("version", m->version),
      WIRE_VALUE("groups", groups),
      WIRE_F64("denominator", m->denominator, 0, WIRE_EXACT_MAX),
      WIRE_BOOL("last", m->last),
      {.name = "inner", .kind = FIELD_BOOL, .target = &m->inner},
      WIRE_AFTER_STEPS(m->after_steps),
      {.name = "announce_first", .kind = FIELD_BOOL, .target = &m->announce_first},
      {.name = "checkpoint", .kind = FIELD_BOOL, .target = &m->checkpoint},
      {.name = "keep_last", .kind = FIELD_I32, .target = &m->keep_last, .min = 0, .max = KEPT_VERSIONS_MAX},
      {.name = "keep_versions",
       .kind = FIELD_I32_ARRAY,
       .target = &m->keep_versions,
       .min = 0,
       .max = LIMIT_ROUNDS,
       .count_max = KEPT_VERSIONS_MAX},
      WIRE_VALUE("push_to", push_to),
      WIRE_I32("stage_timeout_ms", m->stage_timeout_ms, 1, WIRE_MS_MAX),
  };
  const struct wire_list names = {
      .name = "groups", .max = LIMIT_GROUPS_PER_ROUND, .item_size = sizeof *m->groups, .read = wire_read_name};
  const struct wire_list targets = {
      .name = "push_to", .max = LIMIT_WORKERS, .item_size = sizeof *m->push_to, .read = target_read};
  void *group_items = NULL, *target_items = NULL;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_items(&names, &group_items, &m->group_count, groups, arena, err);
  if (rc == RC_OK) rc = wire_items(&targets, &target_items, &m->push_count, push_to, arena, err);
  if (rc) return rc;
  m->groups = group_items;
  m->push_to = target_items;
  if (m->denominator != 0 && !(m->denominator >= DBL_MIN)) /* a smaller one may be flushed to zero */
    return err_set(err, RC_INVALID, "denominator",
                   "expected 0, where nothing of the groups is trained on, or at least %g, got %g", DBL_MIN,
                   m->denominator);
  if ((rc = inner_check(m, err)) != RC_OK) return rc;
  return wire_distinct("groups", m->groups, m->group_count, arena, err);
}

static const char *const WAY_NAMES[] = {[PUSH_HTTP] = "http", [PUSH_FABRIC] = "fabric"};

const char *push_way_name(enum push_way way) { return (size_t)way < WIRE_COUNT(WAY_NAMES) ? WAY_NAMES[way] : NULL; }

static void write_pushes(struct json_writer *w, const struct push_report *pushes, size_t count) {
  json_key(w, "pushes");
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) {
    json_object_begin(w);
    json_kv_string(w, "worker_id", pushes[i].worker_id);
    json_kv_bool(w, "staged", pushes[i].staged);
    json_kv_string(w, "way", push_way_name(pushes[i].way));
    wire_kv_digest_or_null(w, "digest", &pushes[i].digest);
    json_kv_string(w, "error", pushes[i].error);
    json_object_end(w);
  }
  json_array_end(w);
}

static enum rc push_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct push_report *p = item;
  const char *way = NULL;
  int index = 0;
  const struct json_field fields[] = {
      WIRE_NAME("worker_id", p->worker_id),
      WIRE_BOOL("staged", p->staged),
      {.name = "way", .kind = FIELD_STRING, .target = &way, .min = 1, .max = WIRE_NAME_BYTES},
      {.name = "digest", .kind = FIELD_DIGEST, .target = &p->digest},
      {.name = "error", .kind = FIELD_STRING, .target = &p->error, .min = 0, .max = PUSH_ERROR_BYTES},
  };
  enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK && way)
    rc = wire_choice(&index, "way", way, &WAY_NAMES[PUSH_HTTP], WIRE_COUNT(WAY_NAMES) - PUSH_HTTP, err);
  if (rc) return rc;
  if (way) p->way = (enum push_way)(PUSH_HTTP + index);
  if (p->staged && wire_digest_is_zero(&p->digest))
    return err_set(err, RC_INVALID, "digest", "expected the digest of the staged weights, got none");
  return RC_OK;
}

static enum rc pushes_read(struct push_report **out, size_t *count, const struct json *value, struct arena *arena,
                           struct err *err) {
  const struct wire_list list = {.name = "pushes", .max = LIMIT_WORKERS, .item_size = sizeof **out, .read = push_read};
  void *items = NULL;
  const enum rc rc = wire_items(&list, &items, count, value, arena, err);
  *out = items;
  return rc;
}

/* version and digest are null until the step is done; only a failed one has an error. */
void step_status_encode(const struct step_status *m, struct buf *out) {
  const bool done = m->state == JOB_DONE;
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "step_id", m->step_id);
  json_kv_string(&w, "state", job_state_name(m->state));
  wire_kv_error(&w, "error", &m->error, m->state == JOB_FAILED);
  if (done) {
    json_kv_int(&w, "version", m->version);
    wire_kv_digest(&w, "digest", &m->digest);
  } else {
    json_kv_string(&w, "version", NULL);
    json_kv_string(&w, "digest", NULL);
  }
  json_kv_f64(&w, "grad_norm", m->grad_norm);
  json_kv_f64(&w, "lr", m->lr);
  json_kv_bool(&w, "skipped", m->skipped);
  json_kv_int(&w, "step_us", m->step_us);
  json_kv_int(&w, "checkpoint_us", m->checkpoint_us);
  json_kv_int(&w, "push_us", m->push_us);
  json_kv_int(&w, "oldest_checkpoint", m->oldest_checkpoint);
  if (m->checkpoints.count) json_kv_i32s(&w, "checkpoints", m->checkpoints.items, m->checkpoints.count);
  write_pushes(&w, m->pushes, m->push_count);
  json_key(&w, "intervals");
  intervals_write(&w, m->intervals, done ? m->interval_count : 0);
  json_object_end(&w);
}

enum rc step_status_decode(struct step_status *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct step_status){0};
  const char *state = NULL;
  const struct json *error = NULL, *grad_norm = NULL, *pushes = NULL, *intervals = NULL;
  bool has_version = false, has_digest = false;
  const struct json_field fields[] = {
      WIRE_NAME("step_id", m->step_id),
      WIRE_NAME("state", state),
      WIRE_VALUE("error", error),
      {.name = "version",
       .kind = FIELD_I64,
       .target = &m->version,
       .min = 0,
       .max = WIRE_EXACT_MAX,
       .present = &has_version},
      {.name = "digest", .kind = FIELD_DIGEST, .target = &m->digest, .present = &has_digest},
      WIRE_VALUE("grad_norm", grad_norm),
      WIRE_F64("lr", m->lr, 0, 1000),
      WIRE_BOOL("skipped", m->skipped),
      WIRE_I64("step_us", m->step_us),
      WIRE_I64("checkpoint_us", m->checkpoint_us),
      WIRE_I64("push_us", m->push_us),
      {.name = "oldest_checkpoint",
       .kind = FIELD_I64,
       .target = &m->oldest_checkpoint,
       .min = 0,
       .max = WIRE_EXACT_MAX},
      {.name = "checkpoints",
       .kind = FIELD_I32_ARRAY,
       .target = &m->checkpoints,
       .min = 0,
       .max = INT32_MAX,
       .count_max = KEPT_VERSIONS_MAX},
      WIRE_VALUE("pushes", pushes),
      WIRE_VALUE("intervals", intervals),
  };
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = job_state_read(&m->state, state, err);
  if (rc == RC_OK) rc = wire_error_read(&m->error, error, arena, err);
  if (rc == RC_OK) rc = wire_number_or_nan(&m->grad_norm, "grad_norm", grad_norm, err);
  if (rc == RC_OK) rc = pushes_read(&m->pushes, &m->push_count, pushes, arena, err);
  if (rc == RC_OK) rc = intervals_read(&m->intervals, &m->interval_count, intervals, arena, err);
  if (rc) return rc;
  if ((m->state == JOB_FAILED) != (m->error.rc != RC_OK))
    return err_set(err, RC_INVALID, "error", "expected an error exactly when the state is \"failed\", got state \"%s\"",
                   state);
  if (m->state == JOB_DONE && !has_version)
    return err_set(err, RC_INVALID, "version", "expected the version of a step that is done, got none");
  if (m->state == JOB_DONE && !has_digest)
    return err_set(err, RC_INVALID, "digest", "expected the digest of a step that is done, got none");
  return RC_OK;
}

void version_announce_encode(const struct version_announce *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "run", m->run);
  json_kv_string(&w, "step_id", m->step_id);
  json_kv_string(&w, "worker_id", m->worker_id);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_u64(&w, "fence", m->fence);
  json_kv_int(&w, "version", m->version);
  wire_kv_digest(&w, "digest", &m->digest);
  json_kv_f64(&w, "grad_norm", m->grad_norm);
  json_kv_f64(&w, "lr", m->lr);
  json_kv_bool(&w, "skipped", m->skipped);
  write_pushes(&w, m->pushes, m->push_count);
  json_object_end(&w);
}

enum rc version_announce_decode(struct version_announce *m, const struct json *body, struct arena *arena,
                                struct err *err) {
  *m = (struct version_announce){.grad_norm = NAN};
  const struct json *pushes = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("run", m->run),
      WIRE_NAME("step_id", m->step_id),
      WIRE_NAME("worker_id", m->worker_id),
      WIRE_U64("epoch", m->epoch),
      WIRE_U64("fence", m->fence),
      WIRE_I64("version", m->version),
      WIRE_DIGEST("digest", m->digest),
      {.name = "grad_norm", .kind = FIELD_F64, .target = &m->grad_norm, .min = 0, .max = WIRE_GRAD_NORM_MAX},
      WIRE_F64("lr", m->lr, 0, 1000),
      WIRE_BOOL("skipped", m->skipped),
      WIRE_VALUE("pushes", pushes),
  };
  const enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  return rc ? rc : pushes_read(&m->pushes, &m->push_count, pushes, arena, err);
}

void push_answer_encode(const struct push_answer *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_bool(&w, "staged", m->staged);
  wire_kv_digest_or_null(&w, "digest", &m->digest);
  json_object_end(&w);
}

enum rc push_answer_decode(struct push_answer *m, const struct json *body, struct arena *arena, struct err *err) {
  *m = (struct push_answer){0};
  bool has_digest = false;
  const struct json_field fields[] = {
      WIRE_BOOL("staged", m->staged),
      {.name = "digest", .kind = FIELD_DIGEST, .target = &m->digest, .present = &has_digest},
  };
  const enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK && m->staged && !has_digest)
    return err_set(err, RC_INVALID, "digest", "expected the digest of the staged weights, got none");
  return rc;
}
