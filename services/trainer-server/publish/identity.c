/* Reads this trainer's identity from the state directory, or makes one and keeps it there. */
#include "services/trainer-server/publish/identity.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/base/log.h"

enum { FILE_MAX = 256 };

/* The digits and the end of the line, and nothing else. */
static bool is_whole(const struct buf *text) {
  return text->len == IDENTITY_MAX && text->data[IDENTITY_MAX - 1] == '\n' &&
         strspn(text->data, "0123456789abcdef") == IDENTITY_MAX - 1;
}

static enum rc make(char out[IDENTITY_MAX], struct err *err) {
  unsigned char bits[IDENTITY_BYTES];
  if (getrandom(bits, sizeof bits, 0) != (ssize_t)sizeof bits)
    return err_set_errno(err, RC_IO, "drawing this trainer's identity");
  for (size_t i = 0; i < sizeof bits; i++) snprintf(out + 2 * i, 3, "%02x", bits[i]);
  return RC_OK;
}

static void keep(const char *path, const char *identity) {
  char line[IDENTITY_MAX + 1];
  struct err err = {0};
  const int len = snprintf(line, sizeof line, "%s\n", identity);
  if (file_write_atomic(path, line, (size_t)len, &err) != RC_OK)
    log_warn("this trainer's identity could not be stored, so the coordinator will not know it after a restart: %s",
             err.message);
}

enum rc identity_read(char out[IDENTITY_MAX], const char *state_dir, struct err *err) {
  char path[LIMIT_PATH_MAX];
  struct buf text = BUF_INIT;
  struct err why = {0};
  enum rc rc = path_format(path, err, "%s/trainer-id", state_dir);
  if (rc != RC_OK) return rc;
  const enum rc found = file_read(&text, path, FILE_MAX, &why);
  const bool known = found == RC_OK && is_whole(&text);
  if (known) snprintf(out, IDENTITY_MAX, "%.*s", IDENTITY_MAX - 1, text.data);
  buf_free(&text);
  if (known) return RC_OK;
  if (found != RC_NOT_FOUND)
    log_warn("%s: expected %d hexadecimal digits, got %s; this trainer gets a new identity", path, IDENTITY_MAX - 1,
             found == RC_OK ? "something else" : why.message);
  rc = make(out, err);
  if (rc == RC_OK && found != RC_IO) keep(path, out); /* a file that cannot be read just now is not overwritten */
  return rc;
}
