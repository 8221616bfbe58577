/* Puts the page's files into the program, and finds them by name. */
#include "services/coordinator/page/page_files.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/base/digest.h"

#define HTML "text/html; charset=utf-8"
#define CSS  "text/css; charset=utf-8"
#define JS   "text/javascript; charset=utf-8"
#define JSON "application/json"
#define SVG  "image/svg+xml"

/* clang-format off */
#define PAGE_FILES(X)                              \
  X(index, "index.html", HTML)                     \
  X(icon, "icon.svg", SVG)                         \
  X(css, "page.css", CSS)                          \
  X(run_config, "run_config.json", JSON)           \
  X(main, "main.js", JS)                           \
  X(api, "api.js", JS)                             \
  X(dom, "dom.js", JS)                             \
  X(format, "format.js", JS)                       \
  X(charts, "charts.js", JS)                       \
  X(round_charts, "round_charts.js", JS)           \
  X(run_data, "run_data.js", JS)                   \
  X(spread, "spread.js", JS)                       \
  X(state_chip, "state_chip.js", JS)               \
  X(timeline_lanes, "timeline_lanes.js", JS)       \
  X(timeline_canvas, "timeline_canvas.js", JS)     \
  X(token_strip, "token_strip.js", JS)             \
  X(view_runs, "view_runs.js", JS)                 \
  X(view_compare, "view_compare.js", JS)           \
  X(view_start, "view_start.js", JS)               \
  X(view_overview, "view_overview.js", JS)         \
  X(view_reward, "view_reward.js", JS)             \
  X(view_groups, "view_groups.js", JS)             \
  X(view_lengths, "view_lengths.js", JS)           \
  X(view_policy, "view_policy.js", JS)             \
  X(view_mismatch, "view_mismatch.js", JS)         \
  X(view_versions, "view_versions.js", JS)         \
  X(view_timeline, "view_timeline.js", JS)         \
  X(view_rollouts, "view_rollouts.js", JS)         \
  X(view_group, "view_group.js", JS)               \
  X(view_configuration, "view_configuration.js", JS)
/* clang-format on */

/* The assembler reads the file; paths begin at the folder that `make` runs in. */
#define PUT_IN(symbol, file, type)                                                                              \
  __asm__(".pushsection .rodata\n"                                                                              \
          ".global page_file_" #symbol "_begin\n"                                                               \
          "page_file_" #symbol "_begin:\n"                                                                      \
          ".incbin \"services/coordinator/page/files/" file "\"\n"                                              \
          ".global page_file_" #symbol "_end\n"                                                                 \
          "page_file_" #symbol "_end:\n"                                                                        \
          ".byte 0\n"                                                                                           \
          ".popsection\n");                                                                                     \
  extern const unsigned char page_file_##symbol##_begin[], page_file_##symbol##_end[];
PAGE_FILES(PUT_IN)

static pthread_once_t digested = PTHREAD_ONCE_INIT;
static struct page_file files[] = {
#define ENTRY(symbol, file, type) {file, type, page_file_##symbol##_begin, page_file_##symbol##_end, ""},
    PAGE_FILES(ENTRY)};

static void files_digest(void) {
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
    struct digest digest;
    char hex[DIGEST_HEX_MAX];
    digest_of(&digest, files[i].begin, (size_t)(files[i].end - files[i].begin));
    digest_hex(hex, &digest);
    snprintf(files[i].etag, sizeof files[i].etag, "\"%.32s\"", hex);
  }
}

const struct page_file *page_file_find(const char *name) {
  pthread_once(&digested, files_digest);
  for (size_t i = 0; i < sizeof files / sizeof files[0]; i++)
    if (strcmp(files[i].name, name) == 0) return &files[i];
  return NULL;
}
