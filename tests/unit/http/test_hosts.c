/* Allowed hosts: what an entry admits however it is written, and what the default leaves out. */
#include "tests/unit/base/cm.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "common/http/trust/hosts.h"

static struct hosts *opened(const char *list, const char *bind, const char *also) {
  struct hosts *h;
  struct err err;
  if (hosts_open(&h, list, bind, also, &err) != RC_OK) fail_msg("%s", err.message);
  return h;
}

static bool admits(const struct hosts *h, const char *host, const char *address) {
  struct sockaddr_in v4 = {.sin_family = AF_INET};
  struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
  if (inet_pton(AF_INET, address, &v4.sin_addr) == 1) return hosts_admit(h, host, (struct sockaddr *)&v4);
  assert_int_equal(inet_pton(AF_INET6, address, &v6.sin6_addr), 1);
  return hosts_admit(h, host, (struct sockaddr *)&v6);
}

static void the_default_is_where_the_service_listens(void **state) {
  (void)state;
  static const struct {
    const char *address;
    bool from_loopback, from_network;
  } cases[] = {
      {"127.0.0.1", true, true},        {"127.9.8.7", true, true},         {"::1", true, true},
      {"::ffff:127.0.0.1", true, true}, {"10.1.2.3", false, true},         {"172.16.0.1", false, true},
      {"172.31.255.255", false, true},  {"172.32.0.1", false, false},      {"192.168.7.7", false, true},
      {"fd12::1", false, true},         {"::ffff:10.0.0.1", false, true},  {"8.8.8.8", false, false},
      {"169.254.169.254", false, false}, {"fe80::1", false, false},        {"0.0.0.0", false, false},
      {"::", false, false},             {"2001:db8::1", false, false},     {"11.0.0.1", false, false},
  };
  struct hosts *loopback = opened("", "127.0.0.1", NULL), *network = opened(NULL, "0.0.0.0", "");
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    assert_int_equal(admits(loopback, "some.name", cases[i].address), cases[i].from_loopback);
    assert_int_equal(admits(network, cases[i].address, cases[i].address), cases[i].from_network);
  }
  hosts_close(loopback);
  hosts_close(network);
  struct hosts *pulls = opened("", "127.0.0.1", "http://10.0.0.5:8000"),
               *here = opened("", "127.0.0.1", "http://localhost:8000");
  assert_true(admits(pulls, "x", "10.7.7.7") && admits(pulls, "x", "127.0.0.1") && !admits(pulls, "x", "8.8.8.8"));
  assert_false(admits(here, "x", "10.7.7.7"));
  hosts_close(pulls);
  hosts_close(here);
}

static void entries_admit_what_they_name(void **state) {
  (void)state;
  struct hosts *h =
      opened("gen-1, .pool.example,10.1.0.0/16 [fd00:7::]/48,192.0.2.7", "127.0.0.1", "http://coordinator:8000/x");
  assert_true(admits(h, "gen-1", "8.8.8.8"));
  assert_true(admits(h, "GEN-1", "8.8.8.8"));
  assert_true(admits(h, "coordinator", "8.8.8.8"));
  assert_true(admits(h, "a.b.pool.example", "8.8.8.8"));
  assert_false(admits(h, "pool.example", "8.8.8.8"));
  assert_false(admits(h, "evilpool.example", "8.8.8.8"));
  assert_false(admits(h, "gen-12", "8.8.8.8"));
  assert_false(admits(h, "gen", "8.8.8.8"));
  assert_true(admits(h, "x", "10.1.255.255"));
  assert_false(admits(h, "x", "10.2.0.0"));
  assert_true(admits(h, "x", "fd00:7:0:9::1"));
  assert_false(admits(h, "x", "fd00:7:1::1"));
  assert_true(admits(h, "x", "192.0.2.7"));
  assert_false(admits(h, "x", "192.0.2.8"));
  assert_false(admits(h, "x", "127.0.0.1")); /* a list takes the default's place */
  hosts_close(h);
  h = opened("any", "127.0.0.1", NULL);
  assert_true(admits(h, "x", "8.8.8.8") && admits(h, "x", "2001:db8::1"));
  hosts_close(h);
  h = opened("192.0.2.0/25,0.0.0.0/0", "127.0.0.1", NULL);
  assert_true(admits(h, "x", "8.8.8.8"));
  assert_false(admits(h, "x", "2001:db8::1"));
  hosts_close(h);
}

static void what_is_no_entry_is_named(void **state) {
  (void)state;
  static const char *const wrong[] = {"10.0.0.0/33", "10.0.0.0/", "10.0.0.0/8x", "[fd00::/8", "a/b",
                                      "http://x",    "a:80",      ".",           "fd00::/129"};
  for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
    struct hosts *h;
    struct err err;
    assert_int_equal(hosts_open(&h, wrong[i], "127.0.0.1", NULL, &err), RC_INVALID);
    assert_non_null(strstr(err.message, wrong[i]));
  }
}

static void a_workers_url_is_read_as_the_client_reads_it(void **state) {
  (void)state;
  static const struct {
    const char *url, *host; /* NULL: refused */
  } cases[] = {
      {"http://10.0.0.7:8100", "10.0.0.7"},
      {"https://gen-1/", "gen-1"},
      {"http://[fd00::7]:8100", "fd00::7"},
      {"http://127.1:80", "127.0.0.1"},
      {"http://0x7f000001/", "127.0.0.1"},
      {"http://user@10.0.0.7", NULL},
      {"http://10.0.0.7@evil.example", NULL},
      {"http://10.0.0.7?x", NULL},
      {"http://10.0.0.7#x", NULL},
      {"ftp://10.0.0.7", NULL},
      {"file:///etc/passwd", NULL},
      {"http://", NULL},
      {"10.0.0.7:80", NULL},
      {"http://[fe80::1%25eth0]/", NULL},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    char host[HOST_BYTES_MAX] = "";
    struct err err;
    const enum rc rc = hosts_of_url(host, cases[i].url, &err);
    if (rc != (cases[i].host ? RC_OK : RC_INVALID) || (cases[i].host && strcmp(host, cases[i].host) != 0))
      fail_msg("%s: %d \"%s\"", cases[i].url, rc, host);
  }
}

static void addresses_are_compared_not_their_texts(void **state) {
  (void)state;
  assert_true(hosts_is_address("10.0.0.7", "10.0.0.7"));
  assert_true(hosts_is_address("10.0.0.7", "::ffff:10.0.0.7"));
  assert_true(hosts_is_address("FD00:0:0::7", "fd00::7"));
  assert_true(hosts_is_address("localhost", "127.0.0.1"));
  assert_false(hosts_is_address("localhost", "10.0.0.7"));
  assert_false(hosts_is_address("127.0.0.1", "10.0.0.7"));
  assert_false(hosts_is_address("gen-1", "10.0.0.7"));
  assert_false(hosts_is_address("10.0.0.7", ""));
}

static void loopback_is_told_from_open_and_unknown_addresses(void **state) {
  (void)state;
  static const struct {
    const char *bind;
    enum rc rc;
    bool loopback;
  } cases[] = {
      {"127.0.0.1", RC_OK, true},          {"127.1", RC_OK, true},    {"::1", RC_OK, true},
      {"localhost", RC_OK, true},          {"0.0.0.0", RC_OK, false}, {"::", RC_OK, false},
      {"no such host", RC_INVALID, false}, {"", RC_INVALID, false},
  };
  for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
    bool loopback = false;
    struct err err;
    const enum rc rc = hosts_bind_is_loopback(cases[i].bind, &loopback, &err);
    if (rc != cases[i].rc || loopback != cases[i].loopback) fail_msg("%s: %d %d", cases[i].bind, rc, loopback);
  }
}

static void one_caller_is_an_address_or_half_of_one(void **state) {
  (void)state;
  unsigned char a[HOST_CALLER_BYTES], b[HOST_CALLER_BYTES];
  hosts_caller(a, "2001:db8:1:2::7"), hosts_caller(b, "2001:db8:1:2:ffff::9");
  assert_memory_equal(a, b, sizeof a);
  hosts_caller(b, "2001:db8:1:3::7");
  assert_memory_not_equal(a, b, sizeof a);
  hosts_caller(a, "10.0.0.7"), hosts_caller(b, "::ffff:10.0.0.7");
  assert_memory_equal(a, b, sizeof a);
  hosts_caller(b, "10.0.0.8");
  assert_memory_not_equal(a, b, sizeof a);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(the_default_is_where_the_service_listens),
      cmocka_unit_test(entries_admit_what_they_name),
      cmocka_unit_test(what_is_no_entry_is_named),
      cmocka_unit_test(a_workers_url_is_read_as_the_client_reads_it),
      cmocka_unit_test(addresses_are_compared_not_their_texts),
      cmocka_unit_test(loopback_is_told_from_open_and_unknown_addresses),
      cmocka_unit_test(one_caller_is_an_address_or_half_of_one),
  };
  return cmocka_run_group_tests_name("hosts", tests, NULL, NULL);
}
