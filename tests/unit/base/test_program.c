/* The URL of a server that was not given one, above all when it binds a wildcard address.  With a wrong URL the
 * trainer's pushes would not reach a container's server. */
#include "tests/unit/base/cm.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/program.h"

static char url[512];

static const char *default_url(const char *bind, const char *coordinator) {
  program_default_url(url, sizeof url, bind, 8100, false, coordinator);
  return url;
}

/* http://<this machine's host name>:8100 */
static const char *host_url(void) {
  static char expected[512];
  char host[256] = "";
  assert_int_equal(gethostname(host, sizeof host - 1), 0);
  snprintf(expected, sizeof expected, "http://%s:8100", host);
  return expected;
}

static void test_an_address_of_its_own_is_told_as_it_is(void **state) {
  (void)state;
  assert_string_equal(default_url("10.1.2.3", "http://127.0.0.1:8000"), "http://10.1.2.3:8100");
  assert_string_equal(default_url("127.0.0.1", ""), "http://127.0.0.1:8100");
  assert_string_equal(default_url("fd00::5", "http://127.0.0.1:8000"), "http://[fd00::5]:8100");
  program_default_url(url, sizeof url, "10.1.2.3", 8100, true, "https://10.1.2.9:8000");
  assert_string_equal(url, "https://10.1.2.3:8100");
}

static void test_a_wildcard_beside_the_coordinator_is_loopback(void **state) {
  (void)state;
  static const char *const coordinators[] = {"",
                                             "http://127.0.0.1:8000",
                                             "http://127.0.0.1",
                                             "http://127.0.0.1/prefix:9",
                                             "http://user:p@ss@127.0.0.1:8000/?q#f",
                                             "127.0.0.1:8000"};
  for (size_t i = 0; i < sizeof coordinators / sizeof coordinators[0]; i++) {
    assert_string_equal(default_url("0.0.0.0", coordinators[i]), "http://127.0.0.1:8100");
    assert_string_equal(default_url("::", coordinators[i]), "http://127.0.0.1:8100");
  }
}

/* One of this machine's addresses that is not loopback; false when it has none. */
static bool own_address(char *out, size_t size) {
  struct ifaddrs *all;
  bool found = false;
  assert_int_equal(getifaddrs(&all), 0);
  for (const struct ifaddrs *a = all; a && !found; a = a->ifa_next)
    found = a->ifa_addr && a->ifa_addr->sa_family == AF_INET &&
            getnameinfo(a->ifa_addr, sizeof(struct sockaddr_in), out, (socklen_t)size, NULL, 0, NI_NUMERICHOST) == 0 &&
            strncmp(out, "127.", 4) != 0;
  freeifaddrs(all);
  return found;
}

static void test_a_wildcard_is_the_address_on_the_way_to_the_coordinator(void **state) {
  (void)state;
  char own[256], coordinator[300], expected[300];
  if (!own_address(own, sizeof own)) skip(); /* a machine without a network */
  snprintf(coordinator, sizeof coordinator, "http://%s:8000/", own);
  snprintf(expected, sizeof expected, "http://%s:8100", own);
  assert_string_equal(default_url("0.0.0.0", coordinator), expected);
  assert_string_equal(default_url("::", coordinator), expected);
}

static void test_a_wildcard_over_ipv6_is_bracketed(void **state) {
  (void)state;
  const int fd = socket(AF_INET6, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) skip();
  close(fd);
  const char *got = default_url("::", "http://[::1]:8000");
  if (strcmp(got, host_url()) == 0) skip(); /* IPv6 is compiled in, but no address is up */
  assert_string_equal(got, "http://[::1]:8100");
}

/* Never loopback when the coordinator is elsewhere: the trainer would push to itself. */
static void test_without_a_way_to_the_coordinator_the_host_name_is_told(void **state) {
  (void)state;
  static const char *const coordinators[] = {"http://", "http://:8000", "http://[]:8000", "http:///path",
                                             "http://[::1]:8000"};
  for (size_t i = 0; i < sizeof coordinators / sizeof coordinators[0]; i++)
    assert_string_equal(default_url("0.0.0.0", coordinators[i]), host_url());
}

static void test_a_host_longer_than_any_url_is_refused(void **state) {
  (void)state;
  char coordinator[2000] = "http://";
  memset(coordinator + 7, 'a', sizeof coordinator - 8);
  coordinator[sizeof coordinator - 1] = 0;
  assert_string_equal(default_url("0.0.0.0", coordinator), host_url());
}

int main(void) {
  log_init("test", LOG_ERROR);
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(test_an_address_of_its_own_is_told_as_it_is),
      cmocka_unit_test(test_a_wildcard_beside_the_coordinator_is_loopback),
      cmocka_unit_test(test_a_wildcard_is_the_address_on_the_way_to_the_coordinator),
      cmocka_unit_test(test_a_wildcard_over_ipv6_is_bracketed),
      cmocka_unit_test(test_without_a_way_to_the_coordinator_the_host_name_is_told),
      cmocka_unit_test(test_a_host_longer_than_any_url_is_refused),
  };
  return cmocka_run_group_tests(tests, NULL, NULL);
}
