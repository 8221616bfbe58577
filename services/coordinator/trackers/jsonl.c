/* Writes entries as lines, and finds the last ones of a file that is continued. */
#include "services/coordinator/trackers/jsonl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/json/json.h"

/* Lines that are not ours are left alone. */
static size_t scan(void *context, const char *bytes, size_t len) {
  struct jsonl *j = context;
  const char *at = bytes, *end = bytes + len;
  char head[80];
  for (const char *newline; at < end && (newline = memchr(at, '\n', (size_t)(end - at))); at = newline + 1) {
    const size_t line = (size_t)(newline - at), shown = line < sizeof head - 1 ? line : sizeof head - 1;
    int64_t round, step;
    memcpy(head, at, shown);
    head[shown] = '\0';
    if (sscanf(head, "{\"round\":%" SCNd64 ",\"step\":%" SCNd64 ",", &round, &step) == 2)
      track_cursor_pass(&j->cursor, step == round, round);
  }
  return (size_t)(at - bytes);
}

enum rc jsonl_open(struct jsonl *j, const char *path, struct err *err) {
  j->cursor = (struct track_cursor){0};
  return track_file_open(&j->file, path, scan, j, err);
}

enum rc jsonl_append(struct jsonl *j, const char *run_id, const struct track_entry *e, struct err *err) {
  struct buf line = BUF_INIT;
  struct json_writer w;
  if (!track_cursor_wants(&j->cursor, e)) return RC_OK;
  json_writer_init(&w, &line);
  json_object_begin(&w);
  json_kv_int(&w, "round", e->round);
  json_kv_int(&w, "step", e->step);
  json_kv_string(&w, "run", run_id);
  json_kv_f64(&w, "time", (double)e->at_ms / 1000);
  for (int i = 0; i < e->count; i++) json_kv_f64(&w, e->figures[i].name, e->figures[i].value);
  json_object_end(&w);
  buf_puts(&line, "\n");
  enum rc rc = buf_check(&line, err);
  if (rc == RC_OK) rc = track_file_append(&j->file, line.data, line.len, err);
  buf_free(&line);
  if (rc == RC_OK) track_cursor_pass(&j->cursor, e->evaluation, e->round);
  return rc;
}
