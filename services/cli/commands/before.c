/* Asks each program what it foresees, judges the answers line by line, and tells what a round would take.
 *
 *   coordinator --plan: the run's datasets, tokenizer, verifier --> its shape --> trainer-server --plan, generation-server --plan:
 *   memory, ports, measured paces --> coordinator --plan, with these: a round's time in each mode
 *
 * What depends on services that run together (clocks, versions, the network) is doctor's without --model. */
#include "services/cli/commands/before.h"

#include <math.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/machine.h"
#include "common/base/options.h"
#include "common/client/foresight.h"
#include "services/cli/commands/check_run.h"
#include "services/cli/commands/programs.h"
#include "services/cli/commands/show.h"

#define MEGA             1e6
#define DISK_BYTES_LEAST 5e9
/* Packed, sent and staged: about half of what a quiet machine does with itself (tests/RESULTS.md, publishing). */
#define PUSH_BYTES_PER_S 400e6

enum { ANSWER_MS = 600000, SYNCS_OF_A_CHECKPOINT = 6 };

/* What is known so far.  The answers are NULL where there is none. */
struct before {
  struct session *s;
  struct findings *f;
  struct json *config, *coordinator, *trainer, *server;
};

static double number(const struct json *v, const char *path) { return json_find_number(v, path); }
static const char *word(const struct json *v, const char *path) { return show_word(v, path, NULL); }

/* ---- asking ---- */

static enum rc ask(struct before *b, const char *name, const char *more, const struct buf *request, struct json **out) {
  struct err err = {0};
  const char *flags[] = {"--plan", "-", "--log-level", "warn", "--model", b->s->model, NULL};
  if (strcmp(name, "coordinator") == 0) {
    flags[4] = "--data-dir";
    flags[5] = b->s->data_dir;
  }
  const struct program_call call = {.name = name,
                                    .flags = flags,
                                    .more = more,
                                    .request = request,
                                    .deadline_ms = ANSWER_MS + 4 * b->s->measure_s * 1000};
  const enum rc rc = program_ask(b->s, &call, out, &err);
  if (rc != RC_OK) finding_say(b->f, FINDING_FAIL, "%s cannot say what it would need: %s", name, err.message);
  return rc;
}

/* ---- each program's own ---- */

static void check_program(struct before *b, const struct json *a) {
  const char *name = show_word(a, "program", "?"), *version = show_word(a, "version", "?");
  const struct json *libraries = json_find(a, "libraries");
  struct buf text = BUF_INIT;
  for (size_t i = 0; i < json_length(libraries); i++)
    buf_printf(&text, "%s%s %s", i ? ", " : "", show_word(json_at(libraries, i), "name", "?"),
               show_word(json_at(libraries, i), "version", "?"));
  const bool same = strcmp(version, leasehold_version) == 0;
  finding_say(b->f, same ? FINDING_OK : FINDING_WARN, "%s %s (%s)%s%s%s", name, version, text.data ? text.data : "",
              same ? "" : " is of another version than this command line (", same ? "" : leasehold_version,
              same ? "" : "): install the same ones together");
  buf_free(&text);
  const char *refused = word(a, "listen.refused"), *address = show_word(a, "listen.address", "?");
  const struct figure_text port = show_figure(number(a, "listen.port"), 0);
  if (refused)
    finding_say(b->f, FINDING_FAIL,
                "%s cannot listen on %s port %s: %s; end what listens there, or name another --port", name, address,
                port.text, refused);
  else
    finding_say(b->f, FINDING_OK, "%s can listen on %s port %s", name, address, port.text);
}

static void check_disk_of(struct before *b, const struct json *a, const char *flag) {
  const char *name = show_word(a, "program", "?"), *refused = word(a, "disk.refused");
  if (refused) {
    finding_say(b->f, FINDING_FAIL, "%s's disk cannot be written: %s; look at its %s", name, refused, flag);
    return;
  }
  char whose[128], whose_flag[128];
  snprintf(whose, sizeof whose, "%s's", name);
  snprintf(whose_flag, sizeof whose_flag, "its %s", flag);
  say_disk(b->f, whose, json_find(a, "disk"), whose_flag);
  const double room = number(a, "disk.free_bytes"), least = fmax(DISK_BYTES_LEAST, 4 * number(a, "checkpoint_bytes"));
  if (room < least)
    finding_say(b->f, FINDING_WARN, "%s's disk has %s GB left, %s would be better: a full disk stops every run", name,
                show_figure(room / 1e9, 1).text, show_figure(least / 1e9, 1).text);
}

static void check_clock(struct before *b, const struct json *a) {
  const bool kept = number(a, "clock_kept") > 0;
  finding_say(
      b->f, kept ? FINDING_OK : FINDING_WARN, "this machine's clock is %skept by a time service%s", kept ? "" : "not ",
      kept ? ""
           : ", as far as its kernel knows: where services run on several machines, set all clocks by NTP, or their "
             "times in timeline and logs do not agree");
}

/* "weights 0.4, optimizer 1.2" */
static void parts_put(struct buf *out, const struct json *parts, bool on_device) {
  for (size_t i = 0; i < json_length(parts); i++) {
    const struct json *p = json_at(parts, i);
    if ((number(p, "on_device") > 0) != on_device || number(p, "bytes") < MEGA / 20) continue;
    buf_printf(out, "%s%s %s", out->len ? ", " : "", show_word(p, "name", "?"),
               show_figure(number(p, "bytes") / MEGA, 1).text);
  }
}

/* Whether it would start. */
static bool check_memory_of(struct before *b, const struct json *a) {
  const char *name = show_word(a, "program", "?"), *refused = word(a, "start_refused");
  if (refused) {
    finding_say(b->f, FINDING_FAIL, "%s would not start: %s", name, refused);
    return false;
  }
  static const char *const where[][3] = {
      {"memory.needed_bytes", "memory.room_bytes", "memory"},
      {"memory.device_needed_bytes", "memory.device_room_bytes", "its device's memory"}};
  for (int i = 0; i < 2; i++) {
    const double needed = number(a, where[i][0]), room = number(a, where[i][1]);
    struct buf parts = BUF_INIT;
    if (!(needed > 0)) continue;
    parts_put(&parts, json_find(a, "memory.parts"), i == 1);
    const bool tight = needed > 0.9 * room;
    finding_say(b->f, tight ? FINDING_WARN : FINDING_OK, "%s needs %s MB of the %s MB of %s that there are (%s)%s",
                name, show_figure(needed / MEGA, 1).text, show_figure(room / MEGA, 1).text, where[i][2],
                parts.data ? parts.data : "each part below 0.1",
                tight ? ": requests come on top, so little is left for them; --fit chooses flags that need less" : "");
    buf_free(&parts);
  }
  return true;
}

/* Each service alone would fit; on one machine they must fit together. */
static void check_memory_together(struct before *b) {
  const double servers = (double)b->s->servers, room = number(b->trainer, "memory.room_bytes"),
               needed = number(b->trainer, "memory.needed_bytes") + servers * number(b->server, "memory.needed_bytes");
  if (isnan(needed) || isnan(room)) return;
  finding_say(b->f, needed > room ? FINDING_WARN : FINDING_OK, "together they need %s MB%s",
              show_figure(needed / MEGA, 1).text,
              needed > room ? ", more than there is: they do not fit on this machine at once" : " on one machine");
}

/* ---- the run ---- */

static enum rc config_read(struct before *b, const char *file, struct err *err) {
  struct buf text = BUF_INIT;
  enum rc rc = session_file_read(file, &text, err);
  if (rc == RC_OK) rc = json_parse(&b->config, text.data ? text.data : "", text.len, 0, err);
  if (rc != RC_OK) err_in_file(err, file);
  buf_free(&text);
  return rc;
}

/* pace NULL: none was measured yet. */
static enum rc ask_coordinator(struct before *b, const struct buf *pace, struct json **out) {
  struct buf request = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &request);
  json_object_begin(&w);
  if (b->config) {
    json_kv_string(&w, "model", b->s->model);
    json_key(&w, "config");
    json_write_value(&w, b->config);
  }
  if (pace) {
    json_key(&w, "pace");
    json_write_parsed(&w, pace->data, pace->len, 0, NULL);
  }
  json_object_end(&w);
  const enum rc rc = ask(b, "coordinator", b->s->coordinator_flags, &request, out);
  buf_free(&request);
  return rc;
}

static void check_config(struct before *b) {
  const char *refused = word(b->coordinator, "refused.message"),
             *field = show_word(b->coordinator, "refused.field", "");
  if (!b->config) return;
  if (refused) {
    const bool named = !field[0] || strstr(refused, field);
    finding_say(b->f, FINDING_FAIL, "%s: a run of it would be refused: %s%s%s", b->s->words[0], named ? "" : field,
                named ? "" : ": ", refused);
    return;
  }
  check_report(b->f, json_find(b->coordinator, "report"));
  const char *run = word(b->trainer, "run_refused");
  if (run) finding_say(b->f, FINDING_FAIL, "%s: the trainer would refuse a run of it: %s", b->s->words[0], run);
}

/* What trainer and server are asked to foresee. */
static struct foresight_request shape_of(const struct before *b) {
  const struct json *round = json_find(b->coordinator, "report.round");
  const double asked = number(round, "groups"), prompt = number(round, "prompt_tokens_mean"),
               groups =
                   asked >= 1 ? asked : number(b->coordinator, "report.dataset.prompts"); /* an evaluate run's: all */
  struct foresight_request q = {
      .groups = 8, .samples = 8, .prompt_tokens = 64, .new_tokens = 64, .measure_ms = (int32_t)b->s->measure_s * 1000};
  if (!round) return q;
  q.groups = groups >= 1 ? (int32_t)groups : 1;
  q.samples = (int32_t)number(round, "samples_per_group");
  q.prompt_tokens = prompt >= 1 ? (int32_t)prompt : 1;
  q.new_tokens = (int32_t)(b->s->new_tokens > 0 ? (double)b->s->new_tokens : number(round, "max_new_tokens"));
  q.run = json_find(b->coordinator, "run");
  return q;
}

static void ask_both(struct before *b) {
  const struct foresight_request q = shape_of(b);
  struct buf request = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &request);
  foresight_request_write(&q, &w);
  if (buf_check(&request, NULL) == RC_OK) {
    ask(b, "trainer-server", b->s->trainer_flags, &request, &b->trainer);
    ask(b, "generation-server", b->s->server_flags, &request, &b->server);
  }
  buf_free(&request);
}

/* ---- paces ---- */

/* Short ones with two decimals. */
static struct figure_text span_of(double us) {
  struct figure_text t = show_duration(us / 1000);
  if (us < 10000) snprintf(t.text, sizeof t.text, "%.2f ms", us / 1000);
  return t;
}

/* Of steps of the most rows that were measured, and of the fewest. */
static void check_sampling_pace(struct before *b) {
  const struct json *steps = json_find(b->server, "pace.steps");
  const size_t count = json_length(steps);
  if (b->s->measure_s == 0 || !b->server) return;
  if (count == 0) {
    finding_say(b->f, FINDING_WARN, "how fast a generation-server samples is not known: %s",
                show_word(b->server, "pace_unknown", "it could not be loaded"));
    return;
  }
  const struct json *most = json_at(steps, count - 1), *fewest = json_at(steps, 0);
  finding_say(
      b->f, FINDING_OK,
      "a generation-server with --threads %s samples %s tokens a second, %s samples at once, and %s with %s; a prompt "
      "of %s tokens takes %s: measured at position %s",
      show_figure(number(b->server, "threads"), 0).text,
      show_figure(number(most, "rows") / number(most, "us") * 1e6, 0).text,
      show_figure(number(most, "rows") / number(most, "steps"), 0).text,
      show_figure(number(fewest, "rows") / number(fewest, "us") * 1e6, 0).text,
      show_figure(number(fewest, "rows") / number(fewest, "steps"), 0).text,
      show_figure((double)shape_of(b).prompt_tokens, 0).text,
      span_of(number(b->server, "pace.prompt_us_per_token") * shape_of(b).prompt_tokens).text,
      show_figure(number(b->server, "pace.position"), 0).text);
}

static void check_learning_pace(struct before *b) {
  const double group_us = number(b->trainer, "pace.group_us"), rows = number(b->trainer, "pace.rows_of_a_group");
  const char *why = word(b->trainer, "pace_unknown");
  if (why) finding_say(b->f, FINDING_WARN, "how fast the trainer learns is not known: %s", why);
  if (isnan(group_us)) return;
  const bool whole = number(b->trainer, "pace.rows") >= rows;
  finding_say(b->f, FINDING_OK,
              "a trainer with --threads %s learns from %s tokens a second, prompts counted (a group of %s in %s%s); a "
              "step takes %s",
              show_figure(number(b->trainer, "threads"), 0).text, show_figure(rows / group_us * 1e6, 0).text,
              show_figure(rows, 0).text, span_of(group_us).text,
              whole ? "" : ", by smaller ones that there was time for",
              span_of(number(b->trainer, "pace.step_us")).text);
}

/* Between a round's last group and the next round, by the sizes of files and the speed of the disk. */
static double round_us(const struct before *b) {
  const double every = fmax(1, number(b->coordinator, "run.training.checkpoint_every")),
               speed = number(b->trainer, "disk.write_bytes_per_second"), sync_ms = number(b->trainer, "disk.sync_ms"),
               checkpoint_us =
                   number(b->trainer, "checkpoint_bytes") / speed * 1e6 + SYNCS_OF_A_CHECKPOINT * sync_ms * 1000,
               push_us = number(b->trainer, "weights_bytes") / PUSH_BYTES_PER_S * 1e6;
  const double sum = number(b->trainer, "pace.step_us") + checkpoint_us / every + push_us;
  return isnan(sum) ? 0 : sum;
}

static void pace_make(const struct before *b, struct buf *out) {
  const struct foresight_request q = shape_of(b);
  const double group_us = number(b->trainer, "pace.group_us");
  struct json_writer w;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_key(&w, "steps");
  json_write_value(&w, json_find(b->server, "pace.steps"));
  json_kv_int(&w, "servers", b->s->servers);
  json_kv_f64(&w, "slots", number(b->server, "slots"));
  json_kv_int(&w, "new_tokens", q.new_tokens);
  json_kv_f64(&w, "prompt_us", number(b->server, "pace.prompt_us_per_token") * q.prompt_tokens);
  json_kv_f64(&w, "group_us", isnan(group_us) ? 0 : group_us);
  json_kv_f64(&w, "round_us", round_us(b));
  json_object_end(&w);
}

static void say_mode(struct before *b, const struct json *round, const char *mode, const char *member) {
  const struct foresight_request q = shape_of(b);
  const double samples = (double)q.groups * q.samples, us = number(round, member);
  finding_say(b->f, FINDING_OK, "expect a round of mode %s%s to take %s: %s samples and %s tokens a second", mode,
              strcmp(mode, show_word(round, "mode", "")) == 0 ? ", which the run has," : "",
              show_duration(us / 1000).text, show_figure(samples / us * 1e6, samples < us / 1e6 ? 3 : 1).text,
              show_figure(samples * q.new_tokens / us * 1e6, 0).text);
}

static void say_assumptions(struct before *b) {
  const double threads = number(b->trainer, "threads") + (double)b->s->servers * number(b->server, "threads"),
               cores = number(b->trainer, "cores");
  finding_say(
      b->f, FINDING_OK,
      "this assumes %s tokens for every sample (%s), which differ from the first on (what samples of a group have in "
      "common is computed "
      "once), %s like this machine's, checkpoints as fast as the disk, pushes of 400 MB a second, and nothing "
      "else that computes here",
      show_figure((double)shape_of(b).new_tokens, 0).text,
      b->s->new_tokens > 0 ? "--new-tokens" : "the most they may have; --new-tokens names the mean",
      b->s->servers == 1 ? "one generation-server" : "generation-servers");
  if (threads > cores)
    finding_say(
        b->f, FINDING_WARN,
        "trainer and servers would have %s threads on the %s cores of this machine: if all run here they take turns, "
        "and a round of any mode takes as long as of mode sync or longer; divide the cores by --threads",
        show_figure(threads, 0).text, show_figure(cores, 0).text);
}

static void check_round(struct before *b) {
  struct buf pace = BUF_INIT;
  struct json *answer = NULL;
  if (!(number(b->coordinator, "report.round.samples") > 0) || json_length(json_find(b->server, "pace.steps")) == 0)
    return;
  if (number(b->coordinator, "report.round.trains") > 0 && isnan(number(b->trainer, "pace.group_us")))
    return; /* said above why */
  pace_make(b, &pace);
  if (buf_check(&pace, NULL) == RC_OK && ask_coordinator(b, &pace, &answer) == RC_OK) {
    const struct json *round = json_find(answer, "round");
    if (!round) {
      finding_say(b->f, FINDING_WARN,
                  "how long a round takes is not known: too little was measured; --measure-s 10 measures longer");
    } else {
      finding_say(b->f, FINDING_OK, "of a round sampling alone takes %s, learning alone %s",
                  show_duration(number(round, "sampled_us") / 1000).text,
                  show_duration(number(round, "learned_us") / 1000).text);
      say_mode(b, round, "sync", "sync_us");
      say_mode(b, round, "pipelined", "pipelined_us");
      say_mode(b, round, "inflight", "inflight_us");
      say_assumptions(b);
    }
  }
  json_free(answer);
  buf_free(&pace);
}

/* ---- the whole ---- */

/* Would it start? */
static bool check_trainer(struct before *b) {
  if (!b->trainer) return false;
  check_program(b, b->trainer);
  check_disk_of(b, b->trainer, "--state-dir");
  return check_memory_of(b, b->trainer);
}

static bool check_server(struct before *b) {
  if (!b->server) return false;
  check_program(b, b->server);
  return check_memory_of(b, b->server);
}

enum rc before_services(struct session *s, struct findings *f, struct err *err) {
  struct before b = {.s = s, .f = f};
  const enum rc rc = s->word_count > 0 ? config_read(&b, s->words[0], err) : RC_OK;
  if (rc != RC_OK) return rc;
  if (ask_coordinator(&b, NULL, &b.coordinator) == RC_OK) {
    check_program(&b, b.coordinator);
    check_disk_of(&b, b.coordinator, "--db");
    check_clock(&b, b.coordinator);
  }
  ask_both(&b);
  const bool trains = check_trainer(&b), samples = check_server(&b);
  if (trains && samples) check_memory_together(&b);
  if (b.coordinator) check_config(&b);
  if (samples) check_sampling_pace(&b);
  if (trains) check_learning_pace(&b);
  if (trains && samples) check_round(&b);
  json_free(b.config);
  json_free(b.coordinator);
  json_free(b.trainer);
  json_free(b.server);
  return RC_OK;
}
