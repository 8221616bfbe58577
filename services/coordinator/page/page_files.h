/* The files of the page that people watch runs on, as the build has put them into the program.
 *
 * The page and the API that it reads are of one build, so they always fit each other; there is no folder to install, to
 * mount or to lose, and no request can name a file of the machine.  Chart.js is not among them: it is served from where
 * Debian's package lies (--chart-js).
 *
 * Read by api/route_page.c.  Any thread: the bytes are constant, and digested once, before the first is found. */
#ifndef LEASEHOLD_COORDINATOR_PAGE_PAGE_FILES_H
#define LEASEHOLD_COORDINATOR_PAGE_PAGE_FILES_H

enum { PAGE_ETAG_MAX = 48 };

struct page_file {
  const char *name; /* "index.html" */
  const char *type; /* its Content-Type */
  const unsigned char *begin, *end;
  char etag[PAGE_ETAG_MAX]; /* of the bytes: a quoted part of their SHA-256 */
};

/* NULL when the page has no such file. */
const struct page_file *page_file_find(const char *name);

#endif
