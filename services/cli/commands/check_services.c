/* Asks the services what they know of their machines.
 *
 * A service that cannot be asked from here may be fine: it is reached by others.  So that is a warning, which says who
 * would have to reach it. */
#include "services/cli/commands/check_services.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/options.h"
#include "services/cli/commands/show.h"

#define MEGA 1e6
#define SYNC_MS_MOST 20.0
#define WRITE_BYTES_LEAST (50 * MEGA)
#define MEMORY_SHARE_MOST 0.9
enum { CLOCK_MS_MOST = 1000, TRIED_SAMPLES = 16, TRIED_TOKENS = 32 };

double metric_of(const char *page, const char *name) {
  const size_t len = strlen(name);
  double value = NAN;
  for (const char *at = page; at && *at; at = strchr(at, '\n'), at += at != NULL) {
    if (strncmp(at, name, len) == 0 && at[len] == ' ' && sscanf(at + len, "%lf", &value) == 1) return value;
  }
  return NAN;
}

bool check_version(struct findings *f, const char *name, const char *page) {
  char same[96];
  snprintf(same, sizeof same, "leasehold_build_info{version=\"%s\"}", leasehold_version);
  if (metric_of(page, same) > 0) return true;
  finding_say(f, FINDING_WARN, "%s is of another version than this command line (%s): run the same ones together", name,
              leasehold_version);
  return false;
}

/* ---- disks and clocks ---- */

void say_disk(struct findings *f, const char *whose, const struct json *answer, const char *flag) {
  const double sync_ms = json_find_number(answer, "sync_ms"),
               bytes = json_find_number(answer, "write_bytes_per_second");
  const bool slow = !(sync_ms <= SYNC_MS_MOST), thin = !(bytes >= WRITE_BYTES_LEAST);
  finding_say(f, slow || thin ? FINDING_WARN : FINDING_OK,
              "%s disk (%s) writes %s MB/s and syncs a block in %s ms%s%s%s", whose,
              show_word(answer, "directory", "?"), show_figure(bytes / MEGA, 0).text, show_figure(sync_ms, 1).text,
              slow || thin ? ": " : "",
              slow   ? "whatever is acknowledged waits for that; a faster disk under "
              : thin ? "checkpoints will take long; a faster disk under "
                     : "",
              slow || thin ? flag : "");
}

/* The disk of the service at base; *skew_ms: its clock less this machine's, NaN where it did not answer. */
static void check_disk(struct session *s, struct findings *f, const char *base, const char *whose, const char *flag,
                       double *skew_ms) {
  struct json *answer = NULL;
  struct err err = {0};
  *skew_ms = NAN;
  const enum rc rc = session_post_at(s, base, "/v1/check-disk", NULL, &answer, &err);
  const double came_ms = (double)clock_real_ms();
  if (rc == RC_OK) {
    *skew_ms = json_find_number(answer, "time_ms") - came_ms;
    say_disk(f, whose, answer, flag);
  } else if (rc == RC_UNAVAILABLE || rc == RC_TIMEOUT || rc == RC_FORBIDDEN) { /* a viewer may not */
    finding_say(f, FINDING_WARN, "%s disk is not measured: %s", whose, err.message);
  } else {
    finding_say(f, FINDING_FAIL, "%s disk cannot be written: %s; look at %s", whose, err.message, flag);
  }
  json_free(answer);
}

static void say_clock(struct findings *f, const char *whose, double skew_ms) {
  if (isnan(skew_ms)) return;
  if (fabs(skew_ms) <= CLOCK_MS_MOST)
    finding_say(f, FINDING_OK, "%s clock is within a second of this machine's", whose);
  else
    finding_say(f, FINDING_WARN,
                "%s clock is %s %s this machine's: times of logs and rounds do not agree; set both by NTP", whose,
                show_duration(fabs(skew_ms)).text, skew_ms > 0 ? "ahead of" : "behind");
}

void check_coordinator_machine(struct session *s, struct findings *f) {
  double skew_ms;
  check_disk(s, f, s->coordinator, "the database's", "the coordinator's --db", &skew_ms);
  say_clock(f, "the coordinator's", skew_ms);
}

/* ---- a service ---- */

static void check_memory(struct findings *f, const char *name, const char *page) {
  static const char *const where[][3] = {
      {"memory", "leasehold_memory_needed_bytes{where=\"host\"}", "leasehold_memory_room_bytes{where=\"host\"}"},
      {"its device's memory", "leasehold_memory_needed_bytes{where=\"device\"}",
       "leasehold_memory_room_bytes{where=\"device\"}"}};
  for (int i = 0; i < 2; i++) {
    const double needed = metric_of(page, where[i][1]), room = metric_of(page, where[i][2]);
    if (!(needed > 0)) continue;
    const bool tight = !(needed <= MEMORY_SHARE_MOST * room);
    finding_say(f, tight ? FINDING_WARN : FINDING_OK, "%s is sized for %s MB of the %s MB of %s that there were%s",
                name, show_figure(needed / MEGA, 1).text, show_figure(room / MEGA, 1).text, where[i][0],
                tight ? ": requests come on top, so little is left for them; --fit chooses flags that need less" : "");
  }
}

/* Tokens a second since the trainer was started, over the time in which it learned. */
static double check_learning(struct findings *f, const char *name, const char *page) {
  const double tokens = metric_of(page, "leasehold_trainer_tokens_total"),
               steps = metric_of(page, "leasehold_trainer_steps_total"),
               seconds = metric_of(page, "leasehold_trainer_seconds_total{cause=\"logprob\"}") +
                         metric_of(page, "leasehold_trainer_seconds_total{cause=\"compute\"}") +
                         metric_of(page, "leasehold_trainer_seconds_total{cause=\"step\"}");
  if (!(steps > 0 && tokens > 0 && seconds > 0)) {
    finding_say(
        f, FINDING_WARN,
        "%s has taken no step since it was started, so how fast it learns is not known until a run has done a round",
        name);
    return NAN;
  }
  finding_say(f, FINDING_OK, "%s learned from %s tokens a second in its %s steps, steps included, checkpoints not",
              name, show_figure(tokens / seconds, 0).text, show_figure(steps, 0).text);
  return tokens / seconds;
}

/* A few samples at once, for a moment.  What a full server gives is mostly more, with long prompts less. */
static double check_sampling(struct session *s, struct findings *f, const struct json *w) {
  const char *name = show_word(w, "name", "");
  const double slots = json_find_number(w, "slots"), busy = json_find_number(w, "slots_busy");
  const int samples = slots < TRIED_SAMPLES ? slots < 1 ? 1 : (int)slots : TRIED_SAMPLES;
  struct json *answer = NULL;
  struct err err = {0};
  char body[256];
  if (!(json_find_number(w, "ready") > 0)) {
    finding_say(f, FINDING_WARN,
                "%s has no weights %s, so how fast it samples is not known; it loads some when a run begins", name,
                show_word(w, "loaded_digest", NULL) ? "of a run" : "yet");
    return NAN;
  }
  snprintf(body, sizeof body,
           "{\"input_ids\":[0],\"sampling_params\":{\"n\":%d,\"max_new_tokens\":%d,\"ignore_eos\":true}}", samples,
           TRIED_TOKENS);
  const int64_t begun_us = clock_monotonic_us();
  const enum rc rc = session_post_at(s, show_word(w, "url", ""), "/v1/generate", body, &answer, &err);
  const double per_s = samples * TRIED_TOKENS * 1e6 / (double)(clock_monotonic_us() - begun_us);
  json_free(answer);
  if (rc == RC_FORBIDDEN) {
    finding_say(f, FINDING_WARN, "how fast %s samples is not measured: %s", name, err.message);
    return NAN;
  }
  if (rc != RC_OK) {
    finding_say(f, FINDING_FAIL, "%s does not sample: %s; its log says why", name, err.message);
    return NAN;
  }
  finding_say(f, FINDING_OK, "%s sampled %s tokens a second just now: %d tokens of each of %d samples at once%s", name,
              show_figure(per_s, 0).text, TRIED_TOKENS, samples, busy > 0 ? ", beside a run's" : "");
  return per_s;
}

/* Rollout-agents and preprocessors pull what they need. */
static const char *reached_by(bool trains, bool samples) {
  if (trains) return "the coordinator and the generation-servers";
  return samples ? "the trainer, which pushes weights there," : "those who watch it";
}

/* False: it could not be asked, or is of another version. */
static bool check_service(struct session *s, struct findings *f, const struct json *w, struct pace_found *out) {
  const char *name = show_word(w, "name", ""), *url = show_word(w, "url", ""), *kind = show_word(w, "kind", "");
  const bool trains = strcmp(kind, "trainer") == 0;
  const bool samples = strcmp(kind, "generation") == 0 && strcmp(show_word(w, "exactness", ""), "foreign") != 0;
  struct buf page = BUF_INIT;
  struct err err = {0};
  double skew_ms;
  int status = 0;
  const enum rc rc = session_get_text_at(s, url, "/metrics", &page, &status, &err);
  if (rc != RC_OK || status != 200 || !page.data) {
    finding_say(
        f, FINDING_WARN,
        "%s cannot be asked from here at %s (%s), so its machine is not checked; %s must reach it there, or its "
        "--advertise-url is wrong",
        name, url,
        rc != RC_OK     ? err.message
        : status == 401 || status == 403 ? "it refuses this token"
                        : "it answers otherwise",
        reached_by(trains, samples));
    buf_free(&page);
    return false;
  }
  const bool same = check_version(f, name, page.data);
  check_memory(f, name, page.data);
  if (trains) {
    char whose[256];
    snprintf(whose, sizeof whose, "%s's", name);
    check_disk(s, f, url, whose, "its --state-dir", &skew_ms);
    const double learned = check_learning(f, name, page.data);
    if (strcmp(show_word(w, "role", ""), "holder") == 0) out->learned = learned;
  }
  buf_free(&page);
  const double sampled = samples ? check_sampling(s, f, w) : NAN;
  if (!isnan(sampled)) out->sampled = isnan(out->sampled) ? sampled : out->sampled + sampled;
  return same;
}

void check_services(struct session *s, struct findings *f, const struct json *workers, struct pace_found *out) {
  *out = (struct pace_found){.sampled = NAN, .learned = NAN};
  int same = 0;
  for (size_t i = 0; i < json_length(workers); i++) same += check_service(s, f, json_at(workers, i), out);
  if (same > 0)
    finding_say(f, FINDING_OK, "%d worker%s of this command line's version, %s", same, same == 1 ? " is" : "s are",
                leasehold_version);
}
