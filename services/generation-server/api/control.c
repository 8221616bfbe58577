/* Carries out the orders of clients that drive this server as another engine. */
#include "services/generation-server/api/control.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/clock.h"

enum { REST_WAIT_MS = 20000, LOAD_DEADLINE_MS = 600000 };

struct loaded_model *control_model(struct server *s, struct err *err) {
  if (s->leases) {
    err_set(err, RC_CONFLICT, NULL, "expected a server without a coordinator: this one takes its orders from %s",
            s->options.coordinator);
    return NULL;
  }
  return admission_model(&s->admission, true, err);
}

/* The engine takes messages between two steps: another look at it, or RC_TIMEOUT when it has had until_ms for one. */
static enum rc await_step(int64_t until_ms, struct err *err) {
  if (clock_monotonic_ms() > until_ms)
    return err_set(err, RC_TIMEOUT, NULL, "the engine's step has not ended within %d ms", REST_WAIT_MS);
  clock_sleep_ms(1);
  return RC_OK;
}

static enum rc await_rest(const struct engine *e, bool paused, struct err *err) {
  const int64_t until_ms = clock_monotonic_ms() + REST_WAIT_MS;
  enum rc rc = RC_OK;
  while (rc == RC_OK && engine_paused(e) != paused) rc = await_step(until_ms, err);
  return rc;
}

static enum rc not_taken(enum rc rc, struct err *err) {
  return rc == RC_OK ? RC_OK : err_set(err, rc, NULL, "the engine's inbox is full or closed");
}

enum rc control_pause(struct server *s, enum engine_pause mode, struct err *err) {
  struct loaded_model *loaded = control_model(s, err);
  if (!loaded) return err->rc;
  const enum rc rc = not_taken(engine_pause(loaded->engine, mode), err);
  return rc == RC_OK ? await_rest(loaded->engine, true, err) : rc;
}

/* From when the engine has taken the message the stager waits. */
static enum rc await_pausing(const struct engine *e, struct err *err) {
  const int64_t until_ms = clock_monotonic_ms() + REST_WAIT_MS;
  enum rc rc = RC_OK;
  while (rc == RC_OK && !engine_pausing(e) && !engine_paused(e)) rc = await_step(until_ms, err);
  return rc;
}

enum rc control_pause_at_end(struct http_request *r, struct server *s,
                             void (*answer)(struct http_request *, enum rc, const struct policy *, const struct err *),
                             struct err *err) {
  const struct staging_order order = {.request = r, .awaits_pause = true, .answer = answer};
  struct loaded_model *loaded = control_model(s, err);
  if (!loaded) return err->rc;
  enum rc rc = engine_paused(loaded->engine) ? RC_OK : not_taken(engine_pause(loaded->engine, ENGINE_PAUSE_WAIT), err);
  if (rc == RC_OK) rc = await_pausing(loaded->engine, err);
  return rc == RC_OK ? control_load(r, s, &order, err) : rc;
}

enum rc control_resume(struct server *s, struct err *err) {
  struct loaded_model *loaded = control_model(s, err);
  if (!loaded) return err->rc;
  const enum rc rc = not_taken(engine_resume(loaded->engine), err);
  return rc == RC_OK ? await_rest(loaded->engine, false, err) : rc;
}

enum rc control_relabel(struct server *s, int64_t version, struct err *err) {
  struct policy active = {0}, wanted;
  struct loaded_model *loaded = control_model(s, err);
  if (!loaded) return err->rc;
  engine_policy(loaded->engine, &active);
  wanted = active;
  wanted.version = version;
  enum rc rc = not_taken(engine_relabel(loaded->engine, &wanted), err);
  const int64_t until_ms = clock_monotonic_ms() + REST_WAIT_MS;
  while (rc == RC_OK && active.version != version) {
    if (!digest_equal(&active.digest, &wanted.digest))
      return err_set(err, RC_CONFLICT, NULL, "other weights decode now, those of version "
                                             "%lld", (long long)active.version);
    rc = await_step(until_ms, err);
    engine_policy(loaded->engine, &active);
  }
  return rc;
}

/* The stager replies in any case. */
static void on_cancelled(struct http_request *r, enum http_cancel why, void *context) {
  (void)r, (void)why, (void)context;
}

enum rc control_load(struct http_request *r, struct server *s, const struct staging_order *order, struct err *err) {
  if (!control_model(s, err)) return err->rc;
  http_suspend(r, LOAD_DEADLINE_MS, on_cancelled, s);
  return staging_take_order(s->staging, order, err);
}

enum rc control_read_version(int64_t *out, const struct json *v, const char *field, struct err *err) {
  if (!v) return RC_OK;
  if (json_as_int(v, out) && *out >= 0) return RC_OK;
  const char *word = json_word(v);
  char *end = NULL;
  if (word && *word >= '0' && *word <= '9' && strlen(word) < CONTROL_VERSION_MAX - 5) *out = strtoll(word, &end, 10);
  if (end && *end == '\0') return RC_OK;
  return err_set(err, RC_INVALID, field, "expected a version's number, got %.40s",
                 word ? word : json_type_name(json_type_of(v)));
}

void control_version(char out[CONTROL_VERSION_MAX], struct loaded_model *loaded) {
  struct policy active = {0};
  engine_policy(loaded->engine, &active);
  snprintf(out, CONTROL_VERSION_MAX, "%lld", (long long)active.version);
}
