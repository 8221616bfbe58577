/* Reads --allow-hosts and looks hosts up in it.
 *
 * All addresses are compared as IPv6 ones, IPv4's as ::ffff:a.b.c.d: however an address is written, it is one. */
#include "common/http/trust/hosts.h"

#include <arpa/inet.h>
#include <curl/curl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

enum { ADDRESS_BYTES = 16, V4_BITS = 96, RANGES_OF_A_WORD = 4 };

struct address {
  uint8_t bytes[ADDRESS_BYTES];
};

struct range {
  struct address address;
  int bits;
};

struct hosts {
  struct range ranges[LIMIT_ALLOWED_HOSTS * RANGES_OF_A_WORD + 1];
  int range_count;
  char names[LIMIT_ALLOWED_HOSTS + 1][HOST_BYTES_MAX]; /* ".x": all names below x */
  int name_count;
  bool any;
};

/* --- addresses --- */

static const uint8_t MAPPED[V4_BITS / 8] = {[10] = 0xff, [11] = 0xff};

static bool address_read(struct address *out, const char *text, bool *v4) {
  struct in_addr a;
  *v4 = inet_pton(AF_INET, text, &a) == 1;
  if (!*v4) return inet_pton(AF_INET6, text, out->bytes) == 1;
  memcpy(out->bytes, MAPPED, sizeof MAPPED);
  memcpy(out->bytes + sizeof MAPPED, &a, sizeof a);
  return true;
}

static bool address_of(struct address *out, const struct sockaddr *from) {
  char text[INET_ADDRSTRLEN];
  bool v4;
  if (from->sa_family == AF_INET6) {
    memcpy(out->bytes, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, ADDRESS_BYTES);
    return true;
  }
  return from->sa_family == AF_INET &&
         inet_ntop(AF_INET, &((const struct sockaddr_in *)(const void *)from)->sin_addr, text, sizeof text) != NULL &&
         address_read(out, text, &v4);
}

static bool in_range(const struct range *r, const struct address *a) {
  const int whole = r->bits / 8, rest = r->bits % 8;
  if (memcmp(r->address.bytes, a->bytes, (size_t)whole) != 0) return false;
  return rest == 0 || (r->address.bytes[whole] ^ a->bytes[whole]) >> (8 - rest) == 0;
}

static const char *const LOOPBACK[] = {"127.0.0.0/8", "::1/128", NULL};
static const char *const PRIVATE[] = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", NULL};

/* "10.0.0.0/8", "[fd00::]/8", "10.0.0.7" */
static bool range_read(struct range *out, const char *text) {
  char address[INET6_ADDRSTRLEN];
  const bool bracket = text[0] == '[';
  const char *begin = text + bracket;
  const size_t len = strcspn(begin, bracket ? "]" : "/");
  const char *rest = begin + len;
  bool v4;
  if (len == 0 || len >= sizeof address || (bracket && *rest++ != ']')) return false;
  memcpy(address, begin, len);
  address[len] = '\0';
  if (!address_read(&out->address, address, &v4)) return false;
  const int most = v4 ? 32 : 128;
  long bits = most;
  if (*rest == '/') {
    char *end;
    bits = strtol(rest + 1, &end, 10);
    if (rest[1] < '0' || rest[1] > '9' || *end != '\0' || bits > most) return false;
  } else if (*rest != '\0') {
    return false;
  }
  out->bits = (int)bits + (v4 ? V4_BITS : 0);
  return true;
}

/* --- the list --- */

static void add_ranges(struct hosts *h, const char *const *texts) {
  for (; *texts != NULL; texts++)
    if (range_read(&h->ranges[h->range_count], *texts)) h->range_count++;
}

static bool name_is_sound(const char *name) {
  static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  const size_t len = strlen(name);
  return len > 0 && len < HOST_BYTES_MAX && strspn(name, letters) == len && strcmp(name, ".") != 0;
}

static enum rc add_entry(struct hosts *h, const char *entry, struct err *err) {
  if (strcmp(entry, "loopback") == 0)
    add_ranges(h, LOOPBACK);
  else if (strcmp(entry, "private") == 0)
    add_ranges(h, PRIVATE);
  else if (strcmp(entry, "any") == 0)
    h->any = true;
  else if (range_read(&h->ranges[h->range_count], entry))
    h->range_count++;
  else if (name_is_sound(entry))
    snprintf(h->names[h->name_count++], HOST_BYTES_MAX, "%s", entry);
  else
    return err_set(err, RC_INVALID, "allow-hosts",
                   "--allow-hosts: an address, a range as 10.1.0.0/16, a name, a .domain, loopback, private or any was "
                   "expected, but \"%.80s\" came",
                   entry);
  return RC_OK;
}

static enum rc read_list(struct hosts *h, const char *list, struct err *err) {
  int count = 0;
  for (const char *p = list + strspn(list, ", "); *p != '\0';) {
    char entry[HOST_BYTES_MAX];
    const size_t len = strcspn(p, ", ");
    if (len >= sizeof entry || ++count > LIMIT_ALLOWED_HOSTS)
      return err_set(err, RC_INVALID, "allow-hosts",
                     "--allow-hosts: at most %d entries of fewer than %d characters were expected", LIMIT_ALLOWED_HOSTS,
                     HOST_BYTES_MAX);
    memcpy(entry, p, len);
    entry[len] = '\0';
    const enum rc rc = add_entry(h, entry, err);
    if (rc != RC_OK) return rc;
    p += len;
    p += strspn(p, ", ");
  }
  return RC_OK;
}

static bool is_loopback(const struct address *a) {
  for (const char *const *text = LOOPBACK; *text != NULL; text++) {
    struct range r;
    if (range_read(&r, *text) && in_range(&r, a)) return true;
  }
  return false;
}

/* The coordinator's host.  By default its network is where the others are. */
static enum rc add_also(struct hosts *h, const char *url, bool by_default, struct err *err) {
  char host[HOST_BYTES_MAX];
  bool v4, loopback = false;
  struct range r = {.bits = 8 * ADDRESS_BYTES};
  const enum rc rc = hosts_of_url(host, url, err);
  if (rc != RC_OK) return rc;
  if (address_read(&r.address, host, &v4)) {
    h->ranges[h->range_count++] = r;
    loopback = is_loopback(&r.address);
  } else {
    snprintf(h->names[h->name_count++], HOST_BYTES_MAX, "%s", host);
    loopback = strcasecmp(host, "localhost") == 0;
  }
  if (by_default && !loopback) add_ranges(h, PRIVATE);
  return RC_OK;
}

enum rc hosts_open(struct hosts **out, const char *list, const char *bind, const char *also, struct err *err) {
  struct hosts *h = calloc(1, sizeof *h);
  *out = NULL;
  if (h == NULL) return err_set(err, RC_NO_MEMORY, NULL, "the allowed hosts were refused their memory");
  enum rc rc = RC_OK;
  if (list != NULL && list[0] != '\0') {
    rc = read_list(h, list, err);
  } else {
    bool loopback = false;
    rc = hosts_bind_is_loopback(bind, &loopback, err);
    add_ranges(h, LOOPBACK);
    if (rc == RC_OK && !loopback) add_ranges(h, PRIVATE);
  }
  if (rc == RC_OK && also != NULL && also[0] != '\0') rc = add_also(h, also, list == NULL || list[0] == '\0', err);
  if (rc == RC_OK)
    *out = h;
  else
    hosts_close(h);
  return rc;
}

void hosts_close(struct hosts *h) { free(h); }

static bool name_fits(const char *name, const char *host) {
  if (name[0] != '.') return strcasecmp(name, host) == 0;
  const size_t below = strlen(name), len = strlen(host);
  return len > below && strcasecmp(host + len - below, name) == 0;
}

static bool in_ranges(const struct hosts *h, const struct address *a) {
  for (int i = 0; i < h->range_count; i++)
    if (in_range(&h->ranges[i], a)) return true;
  return false;
}

bool hosts_listed(const struct hosts *h, const char *host) {
  struct address a;
  bool v4;
  if (h->any) return true;
  if (address_read(&a, host, &v4)) return in_ranges(h, &a);
  for (int i = 0; i < h->name_count; i++)
    if (name_fits(h->names[i], host)) return true;
  return false;
}

bool hosts_admit(const struct hosts *h, const char *host, const struct sockaddr *to) {
  struct address a;
  return hosts_listed(h, host) || (address_of(&a, to) && in_ranges(h, &a));
}

/* --- URLs and addresses as text --- */

static bool part_is_absent(CURLU *u, CURLUPart part) {
  char *text = NULL;
  const CURLUcode code = curl_url_get(u, part, &text, 0);
  curl_free(text);
  return code != CURLUE_OK;
}

static bool host_of(char host[HOST_BYTES_MAX], CURLU *u, const char *url) {
  char *found = NULL, *scheme = NULL;
  bool sound = u != NULL && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
               curl_url_get(u, CURLUPART_HOST, &found, 0) == CURLUE_OK &&
               curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
               (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0) && part_is_absent(u, CURLUPART_ZONEID);
  size_t len = sound ? strlen(found) : 0;
  const bool bracket = len > 2 && found[0] == '[';
  if (bracket) len -= 2;
  sound = sound && len > 0 && len < HOST_BYTES_MAX;
  if (sound) {
    memcpy(host, found + bracket, len);
    host[len] = '\0';
  }
  curl_free(found);
  curl_free(scheme);
  return sound;
}

bool hosts_of_call(char host[HOST_BYTES_MAX], const char *url) {
  CURLU *u = curl_url();
  const bool sound = host_of(host, u, url);
  curl_url_cleanup(u);
  return sound;
}

enum rc hosts_of_url(char host[HOST_BYTES_MAX], const char *url, struct err *err) {
  CURLU *u = curl_url();
  const bool sound = host_of(host, u, url) && part_is_absent(u, CURLUPART_USER) &&
                     part_is_absent(u, CURLUPART_PASSWORD) && part_is_absent(u, CURLUPART_QUERY) &&
                     part_is_absent(u, CURLUPART_FRAGMENT);
  curl_url_cleanup(u);
  if (sound) return RC_OK;
  return err_set(err, RC_INVALID, "url",
                 "http://host:port was expected, without a user or a query, but \"%.100s\" came", url);
}

bool hosts_is_address(const char *host, const char *peer) {
  struct address there, here;
  bool v4;
  if (!address_read(&here, peer, &v4)) return false;
  if (strcasecmp(host, "localhost") == 0) return is_loopback(&here);
  return address_read(&there, host, &v4) && memcmp(&there, &here, sizeof here) == 0;
}

void hosts_caller(unsigned char out[HOST_CALLER_BYTES], const char *peer) {
  struct address a = {{0}};
  bool v4;
  if (!address_read(&a, peer, &v4)) a = (struct address){{0}};
  if (memcmp(a.bytes, MAPPED, sizeof MAPPED) != 0) memset(a.bytes + ADDRESS_BYTES / 2, 0, ADDRESS_BYTES / 2);
  memcpy(out, a.bytes, sizeof a.bytes);
}

/* Do all addresses of the name `bind` lie on loopback? */
static enum rc resolve_loopback(const char *bind, bool *loopback, struct err *err) {
  const struct addrinfo hints = {.ai_flags = AI_PASSIVE, .ai_socktype = SOCK_STREAM};
  struct addrinfo *found = NULL;
  const int failed = getaddrinfo(bind, NULL, &hints, &found);
  if (failed == EAI_MEMORY)
    return err_set(err, RC_NO_MEMORY, "bind", "the resolver was refused its memory for \"%.100s\"", bind);
  if (failed != 0)
    return err_set(err, RC_INVALID, "bind", "an address to bind was expected, but \"%.100s\" came: %s", bind,
                   gai_strerror(failed));
  *loopback = found != NULL;
  for (const struct addrinfo *f = found; f != NULL && *loopback; f = f->ai_next) {
    struct address a;
    *loopback = address_of(&a, f->ai_addr) && is_loopback(&a);
  }
  freeaddrinfo(found);
  return RC_OK;
}

enum rc hosts_bind_is_loopback(const char *bind, bool *loopback, struct err *err) {
  struct address a;
  bool v4;
  if (!address_read(&a, bind, &v4)) return resolve_loopback(bind, loopback, err);
  *loopback = is_loopback(&a);
  return RC_OK;
}
