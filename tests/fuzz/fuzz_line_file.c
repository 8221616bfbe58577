/* Files of lines, plain and packed: every line is within its bounds, and reading ends. */
#include <sys/mman.h>
#include <unistd.h>

#include "services/coordinator/run/line_file.h"
#include "tests/fuzz/fuzz.h"

enum { LINE_MAX_BYTES = 4096, UNPACKED_MAX = 1 << 20 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static int fd = -1;
  char path[64];
  struct line_file *f = NULL;
  struct err err = {0};
  const char *text;
  size_t len, sum = 0;
  if (fd < 0) fd = memfd_create("lines", 0);
  if (fd < 0 || ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) exit(1);
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  enum rc rc = line_file_open(&f, path, LINE_MAX_BYTES, UNPACKED_MAX, &err);
  while (rc == RC_OK && (rc = line_file_next(f, &text, &len, &err)) == RC_OK && text) {
    sum += len + 1;
    FUZZ_CHECK(sum <= UNPACKED_MAX + LINE_MAX_BYTES + 1);
    for (size_t i = 0; i < len && i < LINE_MAX_BYTES; i++) FUZZ_CHECK(text[i] != '\n');
  }
  FUZZ_CHECK(rc == RC_OK || err.message[0]);
  line_file_close(f);
  return 0;
}
