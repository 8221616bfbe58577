/* Writes fragments of Trackio's inbox. */
#include "services/coordinator/trackers/trackio.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/json/json.h"

enum { ID_MAX = LIMIT_NAME_MAX + 64, TRIES = 3 };

static void time_write(struct json_writer *w, int64_t at_ms) {
  char text[64], whole[32];
  struct tm tm;
  const time_t seconds = (time_t)(at_ms / 1000);
  gmtime_r(&seconds, &tm);
  strftime(whole, sizeof whole, "%Y-%m-%dT%H:%M:%S", &tm);
  snprintf(text, sizeof text, "%s.%03d+00:00", whole, (int)(at_ms % 1000));
  json_kv_string(w, "timestamp", text);
}

static enum rc record_write(struct buf *out, const struct trackio_run *run, const char *run_id,
                            const struct track_entry *e, bool first, struct err *err) {
  struct json_writer w;
  char text[ID_MAX + 64];
  enum rc rc = RC_OK;
  json_writer_init(&w, out);
  json_object_begin(&w);
  json_kv_int(&w, "v", 1);
  json_kv_string(&w, "kind", "metric");
  json_kv_string(&w, "project", "leasehold");
  snprintf(text, sizeof text, "%s%s%s", run->id, run->name[0] ? " " : "", run->name);
  json_kv_string(&w, "run", text);
  json_kv_string(&w, "run_id", run_id);
  json_kv_int(&w, "step", e->step);
  time_write(&w, e->at_ms);
  snprintf(text, sizeof text, "%s-%s-%" PRId64, run_id, e->evaluation ? "evaluation" : "training", e->round);
  json_kv_string(&w, "log_id", text);
  if (first) {
    json_key(&w, "config");
    rc = json_write_parsed(&w, run->config, strlen(run->config), 0, err);
  }
  json_key(&w, "metrics");
  json_object_begin(&w);
  for (int i = 0; i < e->count; i++) json_kv_f64(&w, e->figures[i].name, e->figures[i].value);
  json_object_end(&w);
  json_object_end(&w);
  buf_puts(out, "\n");
  return rc;
}

/* Trackio removes folders that it has emptied. */
static enum rc put(const char *folder, const char *name, const struct buf *text, struct err *err) {
  char part[LIMIT_PATH_MAX], path[LIMIT_PATH_MAX];
  enum rc rc = path_format(part, err, "%s/%s.part", folder, name);
  if (rc == RC_OK) rc = path_format(path, err, "%s/%s.jsonl", folder, name);
  if (rc != RC_OK) return rc;
  for (int i = 0; i < TRIES; i++) {
    rc = file_make_dirs(folder, err);
    if (rc == RC_OK) rc = file_write(part, text->data, text->len, err);
    if (rc == RC_OK && rename(part, path) != 0) rc = err_set_errno(err, RC_IO, "renaming %s", part);
    if (rc == RC_OK) return RC_OK;
  }
  unlink(part);
  return rc;
}

enum rc trackio_write(const char *folder, const struct trackio_run *run, const struct track_entries *entries,
                      const struct track_cursor *cursor, struct err *err) {
  char run_id[ID_MAX], inbox[LIMIT_PATH_MAX], name[32];
  struct buf text = BUF_INIT;
  enum rc rc = RC_OK;
  int written = 0;
  snprintf(run_id, sizeof run_id, "%s-%" PRId64, run->id, run->created_ms);
  for (int i = 0; i < entries->count && rc == RC_OK; i++) {
    const struct track_entry *e = &entries->items[i];
    if (!track_cursor_wants(cursor, e)) continue;
    if (written == 0) snprintf(name, sizeof name, "%08" PRId64, 2 * e->round + !e->evaluation);
    rc = record_write(&text, run, run_id, e, written == 0, err);
    written++;
  }
  if (rc == RC_OK) rc = buf_check(&text, err);
  if (rc == RC_OK && written) rc = path_format(inbox, err, "%s/inbox/leasehold-%s", folder, run_id);
  if (rc == RC_OK && written) rc = put(inbox, name, &text, err);
  buf_free(&text);
  return rc;
}
