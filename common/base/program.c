/* Starts a service's process: flags, log, signals, the file that tells the port, and the URL that others reach it
 * by. */
#include "common/base/program.h"

#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/file.h"
#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/base/metrics.h"
#include "common/base/signals.h"

enum rc program_start(bool *run, const struct program *p, int argc, char **argv, struct err *err) {
  enum options_action action;
  enum log_level level;
  enum log_format format;
  *run = false;
  enum rc rc = options_parse(&action, p->options, p->option_count, argc, argv, err);
  if (rc != RC_OK) return rc;
  if (action == OPTIONS_HELP) {
    options_print_help(p->name, p->summary, p->options, p->option_count);
    return RC_OK;
  }
  if (action == OPTIONS_VERSION) {
    printf("%s %s\n", p->name, leasehold_version);
    return RC_OK;
  }
  if ((rc = log_level_parse(&level, p->settings->log_level, err)) != RC_OK) return rc;
  if ((rc = log_format_parse(&format, p->settings->log_format, err)) != RC_OK) return rc;
  log_init(p->name, level);
  log_as(format);
  char version[64];
  snprintf(version, sizeof version, "version=\"%s\"", leasehold_version);
  metric_set(
      metrics_register(METRIC_GAUGE, "leasehold_build_info", version, "1; its label says which version this is."), 1);
  signals_install();
  *run = true;
  return RC_OK;
}

enum rc program_write_port(const struct program_settings *s, int port, struct err *err) {
  char text[16];
  if (!s->port_file[0]) return RC_OK;
  snprintf(text, sizeof text, "%d\n", port);
  return file_write_atomic(s->port_file, text, strlen(text), err);
}

/* The host of "http://user@host:port/path" or "http://[v6]:port"; false when there is none. */
static bool url_host(char *out, size_t size, const char *url) {
  const char *start = strstr(url, "://");
  start = start ? start + 3 : url;
  const char *end = start + strcspn(start, "/?#");
  const char *at = memrchr(start, '@', (size_t)(end - start));
  if (at) start = at + 1;
  const bool v6 = *start == '[';
  if (v6) start++;
  const char *stop = memchr(start, v6 ? ']' : ':', (size_t)(end - start));
  const size_t n = (size_t)((stop ? stop : end) - start);
  if (n == 0 || n >= size) return false;
  memcpy(out, start, n);
  out[n] = 0;
  return true;
}

/* The numeric address from which this machine sends to host.  Connecting a datagram socket sends nothing; it only asks
 * the routing table, so the port does not matter. */
static bool address_toward(char *out, size_t size, int family, const char *host) {
  const struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_DGRAM, .ai_flags = AI_NUMERICSERV};
  struct addrinfo *found = NULL;
  bool known = false;
  if (getaddrinfo(host, "9", &hints, &found) != 0) return false;
  for (const struct addrinfo *a = found; a && !known; a = a->ai_next) {
    struct sockaddr_storage name;
    socklen_t name_len = sizeof name;
    const int fd = socket(a->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) continue;
    known = connect(fd, a->ai_addr, a->ai_addrlen) == 0 && getsockname(fd, (struct sockaddr *)&name, &name_len) == 0 &&
            getnameinfo((struct sockaddr *)&name, name_len, out, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0 &&
            !strchr(out, '%'); /* a link-local address has a meaning on this machine only */
    close(fd);
  }
  freeaddrinfo(found);
  return known;
}

void program_default_url(char *out, size_t size, const char *bind, int port, bool tls, const char *coordinator) {
  char target[LIMIT_URL_MAX], host[NI_MAXHOST] = "127.0.0.1";
  const bool any4 = strcmp(bind, "0.0.0.0") == 0, any6 = strcmp(bind, "::") == 0; /* "::" takes IPv4 as well */
  if (!any4 && !any6) {
    snprintf(host, sizeof host, "%s", bind);
  } else if (coordinator && *coordinator &&
             !(url_host(target, sizeof target, coordinator) &&
               address_toward(host, sizeof host, any4 ? AF_INET : AF_UNSPEC, target))) {
    if (gethostname(host, sizeof host - 1) != 0 || !host[0]) snprintf(host, sizeof host, "127.0.0.1");
    log_warn(
        "no route to the coordinator at %s is known yet, so others are told this machine's host name, \"%s\"; "
        "--advertise-url names another",
        coordinator, host);
  }
  const bool v6 = strchr(host, ':');
  snprintf(out, size, "http%s://%s%s%s:%d", tls ? "s" : "", v6 ? "[" : "", host, v6 ? "]" : "", port);
}

void program_default_name(char *out, size_t size, const char *prefix, int port) {
  char host[64] = "";
  gethostname(host, sizeof host - 1);
  for (char *c = host; *c; c++)
    if (!((*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z') || (*c >= '0' && *c <= '9') || *c == '.' || *c == '-'))
      *c = '-';
  snprintf(out, size, "%s-%s-%d", prefix, host, port);
}

int program_end(const struct program *p, enum rc rc, const struct err *err) {
  if (rc == RC_OK) return 0;
  if (log_is_text())
    fprintf(stderr, "%s: %s\n", p->name, err->message);
  else
    log_error("%s", err->message);
  return 1;
}
