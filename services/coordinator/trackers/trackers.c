/* The thread that looks at runs and writes what is new of them. */
#include "services/coordinator/trackers/trackers.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/json/json.h"
#include "services/coordinator/decide/states.h"
#include "services/coordinator/store/ids.h"
#include "services/coordinator/trackers/jsonl.h"
#include "services/coordinator/trackers/tensorboard.h"
#include "services/coordinator/trackers/trackio.h"

enum { LOOK_MS = 250, NAP_MS = 50, RETRY_MS = 5000, RUNS_AT_ONCE = 64, RUN_FILE_BYTES_MAX = 4 << 20 };

/* A run that may still have entries to come. */
struct track {
  int64_t run;
  bool opened, failed;
  int64_t retry_ms; /* not before; monotonic */
  struct jsonl jsonl;
  struct tensorboard tensorboard;
  struct id_text id;
  char *name, *config;
  int64_t created_ms;
};

struct trackers {
  struct readers *readers;
  struct trackers_options options;
  enum track_naming naming;
  pthread_t thread;
  atomic_bool stopping;
  struct metric *m_failures;
  struct track *tracks; /* this and what follows: the thread's alone */
  int count, room;
  int64_t newest; /* run that is in the list, or was */
};

/* ---- a run's files ---- */

static void track_close(struct track *t) {
  track_file_close(&t->jsonl.file);
  track_file_close(&t->tensorboard.file);
  free(t->name);
  free(t->config);
  t->name = t->config = NULL;
  t->opened = false;
}

static enum rc run_read(struct trackers *all, struct track *t, struct err *err) {
  struct store *s = NULL;
  struct rows q;
  bool row = false;
  enum rc rc = readers_take_newest(all->readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT name, config, created_ms FROM runs WHERE id = ?1", BINDS(b_int(t->run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  if (rc == RC_OK && row) {
    t->name = strdup(rows_text(&q, 0, NULL));
    t->config = strdup(rows_text(&q, 1, NULL));
    t->created_ms = rows_int(&q, 2);
  }
  rows_end(&q);
  readers_give(all->readers, s);
  if (rc == RC_OK && (!t->name || !t->config))
    rc = err_set(err, RC_NO_MEMORY, NULL, "a tracked run was refused memory");
  return rc;
}

/* A folder of that name may have been left by a run of another database, whose curves must not be continued. */
static enum rc check_same_run(const struct track *t, const char *path, const struct buf *text, struct err *err) {
  struct json *v = NULL;
  int64_t created_ms = 0;
  enum rc rc = json_parse(&v, text->data, text->len, RUN_FILE_BYTES_MAX, err);
  if (rc != RC_OK) {
    err_in_file(err, path);
    return rc;
  }
  const struct json *member = json_type_of(v) == JSON_OBJECT ? json_get(v, "created_ms") : NULL;
  const bool known = member && json_as_int(member, &created_ms);
  json_free(v);
  if (known && created_ms == t->created_ms) return RC_OK;
  return err_set(err, RC_CONFLICT, NULL,
                 "%s is of another database's run %s; name another --track-dir, or move it away", path, t->id.text);
}

static enum rc run_file_write(const struct track *t, const char *path, struct err *err) {
  struct buf text = BUF_INIT;
  struct json_writer w;
  json_writer_init(&w, &text);
  json_object_begin(&w);
  json_kv_string(&w, "run", t->id.text);
  json_kv_string(&w, "name", t->name);
  json_kv_int(&w, "created_ms", t->created_ms);
  json_key(&w, "config");
  enum rc rc = json_write_parsed(&w, t->config, strlen(t->config), RUN_FILE_BYTES_MAX, err);
  json_object_end(&w);
  buf_puts(&text, "\n");
  if (rc == RC_OK) rc = buf_check(&text, err);
  if (rc == RC_OK) rc = file_write_atomic(path, text.data, text.len, err);
  buf_free(&text);
  return rc;
}

static enum rc run_file(const struct track *t, const char *folder, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct buf text = BUF_INIT;
  enum rc rc = path_format(path, err, "%s/run.json", folder);
  if (rc != RC_OK) return rc;
  rc = file_exists(path) ? file_read(&text, path, RUN_FILE_BYTES_MAX, err) : RC_NOT_FOUND;
  if (rc == RC_OK)
    rc = check_same_run(t, path, &text, err);
  else if (rc == RC_NOT_FOUND)
    rc = run_file_write(t, path, err);
  buf_free(&text);
  return rc;
}

static enum rc track_open(struct trackers *all, struct track *t, struct err *err) {
  char folder[LIMIT_PATH_MAX], lines[LIMIT_PATH_MAX], events[LIMIT_PATH_MAX];
  enum rc rc = run_read(all, t, err);
  if (rc == RC_OK) rc = path_format(folder, err, "%s/%s", all->options.folder, t->id.text);
  if (rc == RC_OK) rc = path_format(lines, err, "%s/metrics.jsonl", folder);
  if (rc == RC_OK)
    rc = path_format(events, err, "%s/events.out.tfevents.%010" PRId64 ".leasehold", folder, t->created_ms / 1000);
  if (rc == RC_OK) rc = file_make_dirs(folder, err);
  if (rc == RC_OK) rc = run_file(t, folder, err);
  if (rc == RC_OK) rc = jsonl_open(&t->jsonl, lines, err);
  if (rc == RC_OK) rc = tensorboard_open(&t->tensorboard, events, t->created_ms, err);
  if (rc != RC_OK)
    track_close(t);
  else
    t->opened = true;
  return rc;
}

/* ---- looking ---- */

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Trackio's fragments come first: the lines tell that they are written. */
static enum rc entries_write(struct trackers *all, struct track *t, const struct track_entries *entries,
                             struct err *err) {
  const struct trackio_run run = {t->id.text, t->name, t->config, t->created_ms};
  enum rc rc = RC_OK;
  if (all->options.trackio[0]) rc = trackio_write(all->options.trackio, &run, entries, &t->jsonl.cursor, err);
  for (int i = 0; i < entries->count && rc == RC_OK; i++) {
    const struct track_entry *e = &entries->items[i];
    if (e->count) rc = tensorboard_append(&t->tensorboard, e, err);
    if (rc == RC_OK && e->count) rc = jsonl_append(&t->jsonl, t->id.text, e, err);
    if (rc == RC_OK && !e->count) { /* an evaluation of an older coordinator, which kept no figures of sets */
      track_cursor_pass(&t->tensorboard.cursor, e->evaluation, e->round);
      track_cursor_pass(&t->jsonl.cursor, e->evaluation, e->round);
    }
  }
  return rc;
}

/* Writes all that there is; *any: there was something. */
static enum rc track_write(struct trackers *all, struct track *t, bool *any, struct err *err) {
  enum rc rc = t->opened ? RC_OK : track_open(all, t, err);
  *any = false;
  for (bool more = true; rc == RC_OK && more;) {
    struct track_entries entries;
    const struct track_cursor from = {least(t->jsonl.cursor.training, t->tensorboard.cursor.training),
                                      least(t->jsonl.cursor.evaluation, t->tensorboard.cursor.evaluation)};
    rc = track_entries_read(all->readers, t->run, &from, all->naming, &entries, err);
    more = entries.count > 0;
    *any |= more;
    if (rc == RC_OK && more) rc = entries_write(all, t, &entries, err);
    track_entries_free(&entries);
  }
  return rc;
}

static enum rc state_read(struct trackers *all, int64_t run, bool *begun, bool *ended, struct err *err) {
  struct store *s = NULL;
  struct rows q;
  bool row = false;
  enum rc rc = readers_take_newest(all->readers, &s, err);
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT state, EXISTS (SELECT 1 FROM rounds WHERE run = ?1) FROM runs WHERE id = ?1",
                   BINDS(b_int(run)));
  if (rc == RC_OK) rc = rows_next(&q, &row, err);
  const int64_t state = rc == RC_OK && row ? rows_int(&q, 0) : RUN_FAILED;
  *begun = rc == RC_OK && row && rows_int(&q, 1);
  *ended = state == RUN_STOPPED || state == RUN_COMPLETED || state == RUN_FAILED;
  rows_end(&q);
  readers_give(all->readers, s);
  return rc;
}

/* False: nothing more will come of it. */
static bool track_look(struct trackers *all, struct track *t) {
  struct err err = {0};
  bool begun = false, ended = false, any = false;
  const int64_t now_ms = clock_monotonic_ms();
  if (now_ms < t->retry_ms) return true;
  log_context_id(t->id.text);
  enum rc rc = state_read(all, t->run, &begun, &ended, &err);
  if (rc == RC_OK && begun) rc = track_write(all, t, &any, &err);
  if (rc == RC_OK) {
    if (t->failed) log_info("tracking run %s: it goes on", t->id.text);
    t->failed = false;
    return !ended;
  }
  if (!t->failed)
    log_warn("tracking run %s: %s; it is tried again every %d s", t->id.text, err.message, RETRY_MS / 1000);
  metric_add(all->m_failures, 1);
  t->failed = true;
  t->retry_ms = now_ms + RETRY_MS;
  return true;
}

static enum rc track_add(struct trackers *all, int64_t run, struct err *err) {
  if (all->count == all->room) {
    const int room = all->room ? 2 * all->room : RUNS_AT_ONCE;
    struct track *tracks = realloc(all->tracks, (size_t)room * sizeof *tracks);
    if (!tracks) return err_set(err, RC_NO_MEMORY, NULL, "the list of tracked runs was refused memory");
    all->tracks = tracks;
    all->room = room;
  }
  all->tracks[all->count++] =
      (struct track){.run = run, .jsonl = JSONL_NONE, .tensorboard = TENSORBOARD_NONE, .id = id_run(run)};
  all->newest = run;
  return RC_OK;
}

static enum rc find_new(struct trackers *all, int *found, struct err *err) {
  struct store *s = NULL;
  struct rows q;
  bool row;
  enum rc rc = readers_take_newest(all->readers, &s, err);
  *found = 0;
  if (rc != RC_OK) return rc;
  rc = store_query(s, &q, err, "SELECT id FROM runs WHERE id > ?1 ORDER BY id LIMIT ?2",
                   BINDS(b_int(all->newest), b_int(RUNS_AT_ONCE)));
  for (; rc == RC_OK && (rc = rows_next(&q, &row, err)) == RC_OK && row; ++*found)
    rc = track_add(all, rows_int(&q, 0), err);
  rows_end(&q);
  readers_give(all->readers, s);
  return rc;
}

static void look(struct trackers *all) {
  struct err err = {0};
  int found = RUNS_AT_ONCE;
  while (found == RUNS_AT_ONCE) {
    log_context_clear();
    if (find_new(all, &found, &err) != RC_OK) log_warn("the runs to be tracked could not be read: %s", err.message);
    int kept = 0;
    for (int i = 0; i < all->count; i++) {
      if (track_look(all, &all->tracks[i]))
        all->tracks[kept++] = all->tracks[i];
      else
        track_close(&all->tracks[i]);
    }
    all->count = kept;
  }
}

static void *tracker_main(void *context) {
  struct trackers *all = context;
  while (!atomic_load(&all->stopping)) {
    look(all);
    for (int waited = 0; waited < LOOK_MS && !atomic_load(&all->stopping); waited += NAP_MS) clock_sleep_ms(NAP_MS);
  }
  look(all);
  return NULL;
}

/* ---- start and end ---- */

enum rc trackers_start(struct trackers **out, struct readers *readers, const struct trackers_options *options,
                       struct err *err) {
  enum track_naming naming;
  *out = NULL;
  enum rc rc = track_naming_parse(&naming, options->names, err);
  if (rc == RC_OK && options->trackio[0] && !options->folder[0])
    rc = err_set(err, RC_INVALID, "trackio-dir",
                 "--trackio-dir needs --track-dir, whose files record what Trackio has been given");
  if (rc != RC_OK || !options->folder[0]) return rc;
  if ((rc = file_make_dirs(options->folder, err)) != RC_OK) return rc;
  struct trackers *t = calloc(1, sizeof *t);
  if (!t) return err_set(err, RC_NO_MEMORY, NULL, "the trackers' state was refused memory");
  *t = (struct trackers){.readers = readers, .options = *options, .naming = naming};
  t->m_failures = metrics_register(METRIC_COUNTER, "leasehold_track_failures_total", "",
                                   "Looks of the trackers that could not write what is new");
  if (pthread_create(&t->thread, NULL, tracker_main, t) != 0) {
    free(t);
    return err_set(err, RC_NO_MEMORY, NULL, "the trackers' thread could not be started");
  }
  *out = t;
  return RC_OK;
}

void trackers_stop(struct trackers *t) {
  if (!t) return;
  atomic_store(&t->stopping, true);
  pthread_join(t->thread, NULL);
  for (int i = 0; i < t->count; i++) track_close(&t->tracks[i]);
  free(t->tracks);
  free(t);
}
