/* Answers GET / and GET /page/{file}: the page's files, and Chart.js from where its package lies.
 *
 * These routes are open: the files hold no data, and a browser that has no token yet must be able to ask for one.  What
 * the page shows comes from the routes under /v1, with the token.  The policy sent with every file lets the browser
 * load from here only, run no script that is not one of these files, and make no markup out of text: what a model has
 * sampled stays text whatever it says. */
#include "services/coordinator/api/route_page.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "services/coordinator/page/page_files.h"
#include "services/coordinator/writer/core.h"

#define PAGE_POLICY                                                                                                 \
  "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; " \
  "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

/* True when the browser has these bytes already; then it is answered. */
static bool page_headers(struct http_request *r, const char *etag) {
  const char *known = http_header(r, "If-None-Match");
  http_set_header(r, "Content-Security-Policy", PAGE_POLICY);
  http_set_header(r, "X-Content-Type-Options", "nosniff");
  http_set_header(r, "Referrer-Policy", "no-referrer");
  http_set_header(r, "Cross-Origin-Opener-Policy", "same-origin");
  http_set_header(r, "Cache-Control", "no-cache"); /* kept, and asked about each time: a new build shows at once */
  http_set_header(r, "ETag", etag);
  if (known == NULL || strstr(known, etag) == NULL) return false;
  struct buf nothing = BUF_INIT;
  http_reply(r, 304, NULL, &nothing);
  return true;
}

static void page_send(struct http_request *r, const char *name) {
  const struct page_file *file = page_file_find(name);
  struct err err;
  if (file == NULL) {
    err_set(&err, RC_NOT_FOUND, NULL, "the page has no such file");
    http_fail(r, &err);
    return;
  }
  if (page_headers(r, file->etag)) return;
  struct buf body = BUF_INIT;
  buf_append(&body, file->begin, (size_t)(file->end - file->begin));
  http_reply(r, 200, file->type, &body);
}

static void chart_js_send(struct http_request *r, const char *path) {
  struct stat st;
  struct err err;
  char etag[PAGE_ETAG_MAX];
  if (stat(path, &st) != 0 || !S_ISREG(st.st_mode)) {
    err_set(&err, RC_NOT_FOUND, NULL,
            "there is no Chart.js at %s: install libjs-chart.js, or say with --chart-js where chart.min.js is", path);
    http_fail(r, &err);
    return;
  }
  snprintf(etag, sizeof etag, "\"%llx-%llx\"", (unsigned long long)st.st_mtime, (unsigned long long)st.st_size);
  if (!page_headers(r, etag)) http_reply_file(r, "text/javascript; charset=utf-8", path);
}

void handle_get_page(struct http_request *r, void *context) {
  (void)context;
  page_send(r, "index.html");
}

void handle_get_page_file(struct http_request *r, void *context) {
  const char *name = http_param(r, "file");
  if (strcmp(name, "chart.js") == 0)
    chart_js_send(r, core_options(context)->chart_js);
  else
    page_send(r, name);
}
