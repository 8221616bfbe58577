/* Measures the machine: its disk, its clock, its ports and its libraries. */
#include "common/http/check_machine.h"

#include <curl/curl.h>
#include <gnutls/gnutls.h>
#include <math.h>
#include <microhttpd.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/base/machine.h"
#include "common/http/server.h"

static void speed_write(struct json_writer *w, const char *dir, const struct disk_speed *speed) {
  json_kv_string(w, "directory", dir);
  json_kv_f64(w, "write_bytes_per_second", speed->write_bytes_per_s);
  json_kv_f64(w, "sync_ms", (double)speed->sync_us_median / 1000);
  json_kv_f64(w, "sync_ms_most", (double)speed->sync_us_most / 1000);
}

void http_check_disk(struct http_request *r, const char *dir) {
  static atomic_flag measuring = ATOMIC_FLAG_INIT;
  struct disk_speed speed = {0};
  struct buf body = BUF_INIT;
  struct json_writer w;
  struct err err = {0};
  enum rc rc = RC_FULL;
  if (atomic_flag_test_and_set(&measuring)) {
    err_set(&err, rc, NULL, "the disk is being measured for another request; try again");
  } else {
    rc = file_disk_speed(&speed, dir, &err);
    atomic_flag_clear(&measuring);
  }
  json_writer_init(&w, &body);
  json_object_begin(&w);
  speed_write(&w, dir, &speed);
  json_kv_int(&w, "time_ms", clock_real_ms());
  json_object_end(&w);
  http_reply_json_or_fail(r, rc, &body, &err);
}

/* ---- before a service runs ---- */

static void library_write(struct json_writer *w, const char *name, const char *version) {
  json_object_begin(w);
  json_kv_string(w, "name", name);
  json_kv_string(w, "version", version);
  json_object_end(w);
}

static void listen_write(struct json_writer *w, const struct program_settings *s) {
  struct err err = {0};
  const enum rc rc = http_port_check(s->bind, (int)s->port, &err);
  json_object_begin(w);
  json_kv_string(w, "address", s->bind);
  json_kv_int(w, "port", s->port);
  json_kv_string(w, "refused", rc == RC_OK ? NULL : err.message);
  json_object_end(w);
}

/* Cuts what is not there yet off the path. */
static void nearest_folder(char path[LIMIT_PATH_MAX]) {
  while (path[0] && !file_exists(path)) {
    char *slash = strrchr(path, '/');
    if (!slash)
      snprintf(path, LIMIT_PATH_MAX, ".");
    else
      slash[slash == path] = 0;
  }
}

static void disk_write(struct json_writer *w, const char *dir) {
  char path[LIMIT_PATH_MAX];
  struct disk_speed speed = {0};
  struct err err = {0};
  snprintf(path, sizeof path, "%s", dir);
  nearest_folder(path);
  const enum rc rc = file_disk_speed(&speed, path, &err);
  json_object_begin(w);
  speed_write(w, path, &speed);
  json_kv_f64(w, "free_bytes", machine_disk_free(path));
  json_kv_string(w, "refused", rc == RC_OK ? NULL : err.message);
  json_object_end(w);
}

void check_machine_write(struct json_writer *w, const struct program *p, const char *dir) {
  json_kv_string(w, "program", p->name);
  json_kv_string(w, "version", leasehold_version);
  json_key(w, "libraries");
  json_array_begin(w);
  library_write(w, "libmicrohttpd", MHD_get_version());
  library_write(w, "libcurl", curl_version_info(CURLVERSION_NOW)->version);
  library_write(w, "GnuTLS", gnutls_check_version(NULL));
  json_array_end(w);
  json_kv_int(w, "cores", cores_usable());
  json_kv_bool(w, "clock_kept", clock_is_kept());
  json_key(w, "listen");
  listen_write(w, p->settings);
  json_key(w, "disk");
  if (dir && dir[0])
    disk_write(w, dir);
  else
    json_write_null(w);
}
