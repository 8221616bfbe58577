/* Encodes and decodes registration, heartbeat and the current version.
 *
 * Called by both ends of every exchange between a worker and the coordinator, on any thread: nothing here has state. */
#include "common/wire/worker.h"

#include "common/wire/fields.h"

static const char *const KIND_NAMES[] = {
    [WORKER_GENERATION] = "generation", [WORKER_TRAINER] = "trainer", [WORKER_PREPROCESS] = "preprocess"};

static const char *const EXACTNESS_NAMES[] = {
    [WORKER_INVARIANT] = "invariant", [WORKER_FASTEST] = "fastest", [WORKER_FOREIGN] = "foreign"};

static const char *const DEVICE_NAMES[] = {[WORKER_CPU] = "cpu", [WORKER_CUDA] = "cuda"};

static const char *const ROLE_NAMES[] = {[ROLE_HOLDER] = "holder", [ROLE_STANDBY] = "standby"};

const char *worker_kind_name(enum worker_kind k) {
  return (size_t)k < WIRE_COUNT(KIND_NAMES) ? KIND_NAMES[k] : "unknown";
}

const char *worker_exactness_name(enum worker_exactness e) {
  return (size_t)e < WIRE_COUNT(EXACTNESS_NAMES) ? EXACTNESS_NAMES[e] : "unknown";
}

const char *worker_device_name(enum worker_device d) {
  return (size_t)d < WIRE_COUNT(DEVICE_NAMES) ? DEVICE_NAMES[d] : "unknown";
}

const char *worker_role_name(enum worker_role r) { return (size_t)r < WIRE_COUNT(ROLE_NAMES) ? ROLE_NAMES[r] : NULL; }

/* text NULL: it did not come. */
static enum rc role_read(enum worker_role *out, const char *text, struct err *err) {
  int at = 0;
  *out = ROLE_NONE;
  if (!text) return RC_OK;
  const enum rc rc =
      wire_choice(&at, "role", text, ROLE_NAMES + ROLE_HOLDER, WIRE_COUNT(ROLE_NAMES) - ROLE_HOLDER, err);
  if (rc == RC_OK) *out = (enum worker_role)(at + ROLE_HOLDER);
  return rc;
}

void worker_register_encode(const struct worker_register *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "name", m->name);
  json_kv_string(&w, "kind", worker_kind_name(m->kind));
  json_kv_string(&w, "url", m->url);
  json_kv_int(&w, "slots", m->slots);
  json_kv_string(&w, "exactness", worker_exactness_name(m->exactness));
  if (m->device != WORKER_CPU) json_kv_string(&w, "device", worker_device_name(m->device));
  if (m->fabric.name) {
    json_key(&w, "fabric");
    worker_fabric_write(&m->fabric, &w);
  }
  if (m->identity) json_kv_string(&w, "identity", m->identity);
  if (m->push_token) json_kv_string(&w, "push_token", m->push_token);
  json_object_end(&w);
}

void worker_fabric_write(const struct worker_fabric *m, struct json_writer *w) {
  if (!m->name) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_string(w, "name", m->name);
  json_kv_string(w, "kind", m->kind);
  json_kv_int(w, "place", m->place);
  json_object_end(w);
}

static enum rc fabric_read(struct worker_fabric *m, const struct json *value, struct arena *arena, struct err *err) {
  const struct json_field fields[] = {WIRE_NAME("name", m->name), WIRE_NAME("kind", m->kind),
                                      WIRE_I64("place", m->place)};
  if (!value || json_type_of(value) == JSON_NULL) return RC_OK;
  const enum rc rc = wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
  if (rc != RC_OK) err_in_field(err, "fabric");
  return rc;
}

enum rc worker_register_decode(struct worker_register *m, const struct json *body, struct arena *arena,
                               struct err *err) {
  *m = (struct worker_register){0};
  const char *kind = NULL, *exactness = NULL, *device = NULL;
  const struct json *fabric = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("name", m->name),
      WIRE_NAME("kind", kind),
      WIRE_URL("url", m->url),
      WIRE_I32("slots", m->slots, 0, LIMIT_SLOTS),
      WIRE_NAME("exactness", exactness),
      WIRE_OPTIONAL_NAME("device", device),
      {.name = "fabric", .kind = FIELD_VALUE, .target = &fabric},
      WIRE_OPTIONAL_NAME("identity", m->identity),
      WIRE_OPTIONAL_NAME("push_token", m->push_token),
  };
  int kind_at = 0, exactness_at = 0, device_at = WORKER_CPU;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_choice(&kind_at, "kind", kind, KIND_NAMES, WIRE_COUNT(KIND_NAMES), err);
  if (rc == RC_OK)
    rc = wire_choice(&exactness_at, "exactness", exactness, EXACTNESS_NAMES, WIRE_COUNT(EXACTNESS_NAMES), err);
  if (rc == RC_OK && device)
    rc = wire_choice(&device_at, "device", device, DEVICE_NAMES, WIRE_COUNT(DEVICE_NAMES), err);
  if (rc == RC_OK) rc = fabric_read(&m->fabric, fabric, arena, err);
  if (rc) return rc;
  m->kind = (enum worker_kind)kind_at;
  m->exactness = (enum worker_exactness)exactness_at;
  m->device = (enum worker_device)device_at;
  if (m->kind != WORKER_GENERATION && m->slots != 0)
    return err_set(err, RC_INVALID, "slots", "expected 0 slots of a %s worker, got %d", KIND_NAMES[m->kind], m->slots);
  if (m->kind == WORKER_GENERATION && m->slots == 0)
    return err_set(err, RC_INVALID, "slots", "expected 1 to %d slots of a generation-server, got 0", LIMIT_SLOTS);
  return RC_OK;
}

void worker_registered_encode(const struct worker_registered *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_string(&w, "worker_id", m->worker_id);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_u64(&w, "fence", m->fence);
  json_kv_int(&w, "heartbeat_ms", m->heartbeat_ms);
  json_kv_int(&w, "worker_ttl_ms", m->worker_ttl_ms);
  if (m->role != ROLE_NONE) json_kv_string(&w, "role", worker_role_name(m->role));
  json_object_end(&w);
}

enum rc worker_registered_decode(struct worker_registered *m, const struct json *body, struct arena *arena,
                                 struct err *err) {
  *m = (struct worker_registered){0};
  const char *role = NULL;
  const struct json_field fields[] = {
      WIRE_NAME("worker_id", m->worker_id),
      WIRE_U64("epoch", m->epoch),
      WIRE_U64("fence", m->fence),
      WIRE_I32("heartbeat_ms", m->heartbeat_ms, 1, WIRE_MS_MAX),
      WIRE_I32("worker_ttl_ms", m->worker_ttl_ms, 1, WIRE_MS_MAX),
      WIRE_OPTIONAL_NAME("role", role),
  };
  const enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  return rc == RC_OK ? role_read(&m->role, role, err) : rc;
}

static enum rc lease_ref_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct lease_ref *ref = item;
  const struct json_field fields[] = {WIRE_NAME("id", ref->id), WIRE_U64("fence", ref->fence)};
  return wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
}

static enum rc step_sum_read(void *item, const struct json *value, struct arena *arena, struct err *err) {
  struct step_sum *sum = item;
  const struct json_field fields[] = {WIRE_I32("slot", sum->slot, 0, WIRE_STEP_SLOTS - 1),
                                      WIRE_I64("steps", sum->steps), WIRE_I64("rows", sum->rows),
                                      WIRE_I64("us", sum->us)};
  return wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
}

static void steps_write(struct json_writer *w, const struct step_sum *items, size_t count) {
  json_key(w, "step_costs");
  json_array_begin(w);
  for (size_t i = 0; i < count; i++) {
    json_object_begin(w);
    json_kv_int(w, "slot", items[i].slot);
    json_kv_int(w, "steps", items[i].steps);
    json_kv_int(w, "rows", items[i].rows);
    json_kv_int(w, "us", items[i].us);
    json_object_end(w);
  }
  json_array_end(w);
}

void worker_heartbeat_encode(const struct worker_heartbeat *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_u64(&w, "epoch", m->epoch);
  json_kv_bool(&w, "ready", m->ready);
  json_kv_bool(&w, "draining", m->draining);
  if (m->has_loaded)
    wire_kv_digest(&w, "loaded_digest", &m->loaded_digest);
  else
    json_kv_string(&w, "loaded_digest", NULL);
  json_kv_int(&w, "slots_busy", m->slots_busy);
  json_kv_int(&w, "busy_slot_us", m->busy_slot_us);
  json_kv_int(&w, "tokens_sampled", m->tokens_sampled);
  json_key(&w, "leases");
  json_array_begin(&w);
  for (size_t i = 0; i < m->lease_count; i++) {
    json_object_begin(&w);
    json_kv_string(&w, "id", m->leases[i].id);
    json_kv_u64(&w, "fence", m->leases[i].fence);
    json_object_end(&w);
  }
  json_array_end(&w);
  json_kv_int(&w, "sent_us", m->sent_us);
  json_key(&w, "intervals");
  intervals_write(&w, m->intervals, m->interval_count);
  if (m->step_count) steps_write(&w, m->steps, m->step_count);
  json_object_end(&w);
}

enum rc worker_heartbeat_decode(struct worker_heartbeat *m, const struct json *body, struct arena *arena,
                                struct err *err) {
  *m = (struct worker_heartbeat){0};
  const struct json *leases = NULL, *intervals = NULL, *steps = NULL;
  const struct json_field fields[] = {
      WIRE_U64("epoch", m->epoch),
      WIRE_BOOL("ready", m->ready),
      WIRE_BOOL("draining", m->draining),
      {.name = "loaded_digest", .kind = FIELD_DIGEST, .target = &m->loaded_digest, .present = &m->has_loaded},
      WIRE_I32("slots_busy", m->slots_busy, 0, LIMIT_SLOTS),
      WIRE_I64("busy_slot_us", m->busy_slot_us),
      WIRE_I64("tokens_sampled", m->tokens_sampled),
      WIRE_VALUE("leases", leases),
      {.name = "sent_us", .kind = FIELD_I64, .target = &m->sent_us, .max = WIRE_EXACT_MAX},
      {.name = "intervals", .kind = FIELD_VALUE, .target = &intervals},
      {.name = "step_costs", .kind = FIELD_VALUE, .target = &steps},
  };
  const struct wire_list sums = {
      .name = "step_costs", .max = WIRE_STEP_SLOTS, .item_size = sizeof *m->steps, .read = step_sum_read};
  const struct wire_list list = {
      .name = "leases", .max = WIRE_HELD_MAX, .item_size = sizeof *m->leases, .read = lease_ref_read};
  void *items = NULL;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->lease_count, leases, arena, err);
  m->leases = items;
  if (rc == RC_OK && intervals) rc = intervals_read(&m->intervals, &m->interval_count, intervals, arena, err);
  items = NULL;
  if (rc == RC_OK && steps) rc = wire_items(&sums, &items, &m->step_count, steps, arena, err);
  m->steps = items;
  return rc;
}

void worker_heartbeat_answer_encode(const struct worker_heartbeat_answer *m, struct buf *out) {
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_u64(&w, "epoch", m->epoch);
  wire_kv_names(&w, "lost", m->lost, m->lost_count);
  json_kv_bool(&w, "run_active", m->run_active);
  json_key(&w, "current");
  current_version_write(&m->current, &w);
  if (m->role != ROLE_NONE) {
    json_kv_string(&w, "role", worker_role_name(m->role));
    json_kv_u64(&w, "fence", m->fence);
  }
  json_object_end(&w);
}

enum rc worker_heartbeat_answer_decode(struct worker_heartbeat_answer *m, const struct json *body, struct arena *arena,
                                       struct err *err) {
  *m = (struct worker_heartbeat_answer){0};
  const struct json *lost = NULL, *current = NULL;
  const char *role = NULL;
  const struct json_field fields[] = {WIRE_U64("epoch", m->epoch),
                                      WIRE_VALUE("lost", lost),
                                      WIRE_BOOL("run_active", m->run_active),
                                      WIRE_VALUE("current", current),
                                      WIRE_OPTIONAL_NAME("role", role),
                                      {.name = "fence", .kind = FIELD_U64, .target = &m->fence}};
  const struct wire_list list = {
      .name = "lost", .max = WIRE_HELD_MAX, .item_size = sizeof *m->lost, .read = wire_read_name};
  void *items = NULL;
  enum rc rc = wire_fields(body, fields, WIRE_COUNT(fields), arena, err);
  if (rc == RC_OK) rc = wire_items(&list, &items, &m->lost_count, lost, arena, err);
  m->lost = items;
  if (rc == RC_OK && (rc = current_version_read(&m->current, current, arena, err)) != RC_OK)
    err_in_field(err, "current");
  return rc == RC_OK ? role_read(&m->role, role, err) : rc;
}

void current_version_write(const struct current_version *m, struct json_writer *w) {
  if (!m->has) {
    json_write_null(w);
    return;
  }
  json_object_begin(w);
  json_kv_string(w, "run", m->run);
  json_kv_int(w, "version", m->version);
  wire_kv_digest(w, "digest", &m->digest);
  json_kv_string(w, "trainer_url", m->trainer_url);
  json_object_end(w);
}

enum rc current_version_read(struct current_version *m, const struct json *value, struct arena *arena,
                             struct err *err) {
  *m = (struct current_version){0};
  if (!value || json_type_of(value) == JSON_NULL) return RC_OK;
  const struct json_field fields[] = {
      WIRE_NAME("run", m->run),
      WIRE_I64("version", m->version),
      WIRE_DIGEST("digest", m->digest),
      WIRE_URL("trainer_url", m->trainer_url),
  };
  m->has = true;
  return wire_fields(value, fields, WIRE_COUNT(fields), arena, err);
}
