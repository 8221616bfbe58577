/* Generation-servers that a test plays: they register, poll for leases and put results, over real HTTP, and sample
 * nothing.  Right answers come from even samples, wrong ones from odd ones, so that every group has advantages; all
 * log-probabilities are fake_logprob's.  Every struct here is the caller's; what it points to stays until the fixture's
 * teardown. */
#ifndef LEASEHOLD_TESTS_FAKE_SERVER_H
#define LEASEHOLD_TESTS_FAKE_SERVER_H

#include <pthread.h>

#include "tests/unit/coordinator/service_fixture.h"

struct fake_server {
  struct worker_registered is;
  bool has_loaded;
  struct digest loaded;
};

/* A name that is registered already: a new incarnation of it, which has loaded nothing. */
void register_server(struct fixture *f, struct fake_server *s, const char *name);
void register_server_as(struct fixture *f, struct fake_server *s, const char *name, enum worker_exactness exactness);
/* Says that it is ready: versions are pushed to it from now on. */
void report_ready(struct fixture *f, const struct fake_server *s);

/* One poll that does not wait; loads what it is told to. */
enum rc poll_once(struct fixture *f, struct fake_server *s, int slots, struct lease_answer *out, struct err *err);
/* Polls until there are leases. */
void poll_leases(struct fixture *f, struct fake_server *s, int slots, struct lease_answer *out);
/* Polls until it has been granted `wanted` leases. */
void collect_leases(struct fixture *f, struct fake_server *s, struct lease *leases, int wanted);

/* A poll on a thread of its own, because it is not answered at once: static memory, as the thread may outlive a test
 * that fails.  The test joins the thread and frees the arena. */
struct waiting_poll {
  const char *url;
  const struct fake_server *s;
  int slots, wait_ms;
  pthread_t thread;
  struct arena arena;
  struct lease_answer answer;
  enum rc rc;
};
/* Returns when the poll waits: nobody else's may be waiting. */
void wait_for_leases(struct waiting_poll *w, struct fixture *f, const struct fake_server *s, int slots, int wait_ms);

/* A sample of a prompt "<digit>+0=": "#<digit>" and the end; not right: another digit. */
void make_sample(struct fixture *f, struct sample_result *out, const struct lease *l, int index, bool right);
/* The whole lease's. */
struct lease_result make_result(struct fixture *f, const struct fake_server *s, const struct lease *l);
/* The same of so many tokens each, none of them a stop token. */
struct lease_result make_result_of_length(struct fixture *f, const struct fake_server *s, const struct lease *l,
                                          int tokens, enum finish_reason finish);
/* Of the right form, but not what the version draws: checks find it. */
enum made_up { MADE_UP_TOKEN, MADE_UP_LOGPROB, MADE_UP_LENGTH };
void make_up_sample(struct fixture *f, struct sample_result *out, const struct lease *l, enum made_up which);
enum rc put_result(struct fixture *f, const struct lease *l, const struct lease_result *r, bool *repeated,
                   struct err *err);
/* make_result and put_result; the test fails when it is refused. */
void answer_lease(struct fixture *f, const struct fake_server *s, const struct lease *l);
/* The same with every sample right, or every one wrong: nothing can be learned from such a group, and it is
 * filtered. */
void answer_lease_alike(struct fixture *f, const struct fake_server *s, const struct lease *l, bool right);

/* Serves leases until the run is in the state; its JSON, to be freed. */
struct json *serve_run(struct fixture *f, struct fake_server *s, const char *run, const char *wanted);

#endif
