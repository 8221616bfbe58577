/* Measures a disk for whoever asks, and says what this machine's clock shows. */
#include "common/http/check_disk.h"

#include <stdatomic.h>

#include "common/base/clock.h"
#include "common/base/file.h"

void http_check_disk(struct http_request *r, const char *dir) {
  static atomic_flag measuring = ATOMIC_FLAG_INIT;
  struct disk_speed speed = {0};
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  enum rc rc = RC_FULL;
  if (atomic_flag_test_and_set(&measuring)) {
    err_set(&err, rc, NULL, "the disk is being measured for somebody else; try again");
  } else {
    rc = file_disk_speed(&speed, dir, &err);
    atomic_flag_clear(&measuring);
  }
  json_writer_init(&w, &body);
  json_object_begin(&w);
  json_kv_string(&w, "directory", dir);
  json_kv_f64(&w, "write_bytes_per_second", speed.write_bytes_per_s);
  json_kv_f64(&w, "sync_ms", (double)speed.sync_us_median / 1000);
  json_kv_f64(&w, "sync_ms_most", (double)speed.sync_us_most / 1000);
  json_kv_int(&w, "time_ms", clock_real_ms());
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}
