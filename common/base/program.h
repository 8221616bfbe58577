/* The common part of the four services' mains: flags that every service has, --help and --version, the one-line
 * refusal of a wrong flag, log and signals, and the file that tells the port.
 *
 * Called by main only, before any thread; nothing here is kept. */
#ifndef LEASEHOLD_BASE_PROGRAM_H
#define LEASEHOLD_BASE_PROGRAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/options.h"
#include "common/base/rc.h"
#include "common/base/service_limits.h"

/* The files of TLS, each "" where it is not named: common/http/trust/tls.h. */
struct tls_settings {
  const char *cert, *key;  /* a listener's, and shown to peers that ask for one */
  const char *ca;          /* who signs peers' certificates */
  const char *client_ca;   /* who signs those that clients must show; "": they need none */
  const char *peer_name;   /* what peers' certificates must hold for in the place of their URL's host */
};

/* The flags of every program that calls others. */
#define TLS_CLIENT_OPTIONS(tls)                                                                                    \
  {"tls-cert",                                                                                                     \
   OPTION_STRING,                                                                                                  \
   &(tls)->cert,                                                                                                   \
   "",                                                                                                             \
   0,                                                                                                              \
   0,                                                                                                              \
   "certificate (PEM, with its intermediates): a service listens on https with it, and every "                     \
   "program shows it to a peer that asks for one"},                                                                \
      {"tls-key", OPTION_STRING, &(tls)->key, "", 0, 0, "the certificate's key (PEM)"},                            \
      {"tls-ca",                                                                                                   \
       OPTION_STRING,                                                                                              \
       &(tls)->ca,                                                                                                 \
       "",                                                                                                         \
       0,                                                                                                          \
       0,                                                                                                          \
       "CA certificates (PEM) that https peers' certificates are checked against; empty: those that the system "   \
       "trusts"},                                                                                                  \
  {                                                                                                                \
    "tls-peer-name", OPTION_STRING, &(tls)->peer_name, "", 0, 0,                                                   \
        "the name that https peers' certificates must be valid for, instead of their URL's host"                   \
  }

/* The flags that every service has. */
struct program_settings {
  const char *bind, *port_file, *token, *token_dir, *allow_hosts, *log_level, *log_format;
  int64_t port;
  bool insecure;
  struct tls_settings tls;
  struct service_limits limits;
};

#define PROGRAM_OPTIONS(settings, default_port)                                                                 \
  {"bind", OPTION_STRING, &(settings)->bind, "127.0.0.1", 0, 0, "address to listen on"},                        \
      {"port", OPTION_INT, &(settings)->port, default_port, 0, 65535, "port to listen on; 0 picks a free one"}, \
      {"port-file", OPTION_STRING, &(settings)->port_file, "", 0, 0, "write the port here once ready"},         \
      {"auth-token",                                                                                            \
       OPTION_STRING,                                                                                           \
       &(settings)->token,                                                                                      \
       "",                                                                                                      \
       0,                                                                                                       \
       0,                                                                                                       \
       "bearer token that callers must show, and that is shown to the other services"},                         \
      {"token-dir",                                                                                             \
       OPTION_STRING,                                                                                           \
       &(settings)->token_dir,                                                                                  \
       "",                                                                                                      \
       0,                                                                                                       \
       0,                                                                                                       \
       "folder with the tokens of each role, read again when they change: files admin, worker, trainer, viewer"}, \
      {"allow-hosts",                                                                                           \
       OPTION_STRING,                                                                                           \
       &(settings)->allow_hosts,                                                                                \
       "",                                                                                                      \
       0,                                                                                                       \
       0,                                                                                                       \
       "hosts that this service may call when others name them, such as gen-1,10.1.0.0/16,private; default: "   \
       "loopback, and private too when --bind or --coordinator is beyond loopback"},                            \
      {"insecure",                                                                                              \
       OPTION_BOOL,                                                                                             \
       &(settings)->insecure,                                                                                   \
       "false",                                                                                                 \
       0,                                                                                                       \
       0,                                                                                                       \
       "listen beyond loopback without asking for a token"},                                                    \
      {"log-level", OPTION_STRING, &(settings)->log_level, "info", 0, 0, "debug, info, warn or error"},         \
      TLS_CLIENT_OPTIONS(&(settings)->tls),                                                                     \
      {"tls-client-ca",                                                                                         \
       OPTION_STRING,                                                                                           \
       &(settings)->tls.client_ca,                                                                              \
       "",                                                                                                      \
       0,                                                                                                       \
       0,                                                                                                       \
       "CA certificates (PEM): every client must show a certificate that one of them signed, except on open "   \
       "routes; empty: no client is asked for one"},                                                            \
      {"log-format",                                                                                            \
       OPTION_STRING,                                                                                           \
       &(settings)->log_format,                                                                                 \
       "text",                                                                                                  \
       0,                                                                                                       \
       0,                                                                                                       \
       "text, logfmt or json; the latter two have separate keys: run, round, lease, trace ..."},                \
      SERVICE_LIMIT_OPTIONS(&(settings)->limits)

struct program {
  const char *name;    /* "trainer-server" */
  const char *summary; /* the first line of --help */
  const struct option *options;
  size_t option_count;
  const struct program_settings *settings; /* filled by the options above */
};

/* Fills the options' targets and sets up log and signals.  *run is false when --help or --version was answered. */
enum rc program_start(bool *run, const struct program *p, int argc, char **argv, struct err *err);
/* Writes the port atomically to the file that --port-file names, if there is one. */
enum rc program_write_port(const struct program_settings *s, int port, struct err *err);
/* The URL of a server that was not given one: http://BIND:PORT, or https://.  A wildcard address is no destination;
 * instead of it the URL has the address from which this machine sends to the coordinator: in a container or a pod the
 * one that its peers see, on one machine 127.0.0.1.  It has the host name while the coordinator's address is unknown,
 * and 127.0.0.1 without a coordinator ("").  May ask the resolver, under the resolver's own time-outs. */
void program_default_url(char *out, size_t size, const char *bind, int port, bool tls, const char *coordinator);
/* "<prefix>-<host>-<port>", with '-' for what a worker's name may not hold: two workers with one name would take each
 * other's place. */
void program_default_name(char *out, size_t size, const char *prefix, int port);
/* The exit status; says what went wrong in one line on stderr. */
int program_end(const struct program *p, enum rc rc, const struct err *err);

#endif
