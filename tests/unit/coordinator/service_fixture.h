/* What the tests of whole runs share: a coordinator (writer, driver, HTTP) in the test's process, with a fake trainer
 * behind real HTTP (fake_trainer.h) and generation-servers played by the test (fake_server.h).
 *
 * The coordinator's clock is the fixture's.  It stands still until the test moves it (time_passes); only while the test
 * waits for something (wait_state and the like, poll_leases, serve_run) it moves a little with every look, so that
 * troubles that pass by themselves do, unless clock_stands is set.  No time to live ends by itself: a test that is
 * about one sets it in `options`, restarts the coordinator, and lets the time pass.
 *
 * A test takes fixture_setup and fixture_teardown from here and finds its struct fixture in *state.  All calls are made
 * on the test's thread.  What they return stays until the teardown (in f->arena), unless it says otherwise; what cannot
 * be right fails the test, with the sentence that came. */
#ifndef LEASEHOLD_TESTS_SERVICE_FIXTURE_H
#define LEASEHOLD_TESTS_SERVICE_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdatomic.h>

#include "common/client/coordinator_client.h"
#include "services/coordinator/writer/core.h"
#include "tests/unit/base/await.h"
#include "tests/unit/coordinator/fake_trainer.h"

enum { DEADLINE_MS = 20000, HOUR_MS = 3600000 };

struct driver;
struct sample_checks;

struct fixture {
  char dir[64], db[96], data[96], url[64];
  struct core *core; /* NULL while the coordinator is down */
  struct driver *driver;
  struct sample_checks *checks; /* NULL but where checks_samples is set */
  struct http_server *server;
  struct fake_trainer trainer;
  struct http_client *http;
  struct coordinator_client client;
  struct arena arena; /* of answers */
  struct worker_registered trainer_is;
  struct core_options options; /* of the next coordinator_up */
  _Atomic int64_t now_us;      /* of the coordinator's clock */
  bool clock_stands;           /* also while the test waits */
  bool checks_samples;         /* of the next coordinator_up: runs may have verify_samples */
};

/* ---- the coordinator ---- */

/* Up, on an empty database, with the fake trainer registered; ten prompts "<digit>+0=" in train.jsonl, ten pairs in
 * warm.jsonl. */
int fixture_setup(void **state);
int fixture_teardown(void **state);
void coordinator_down(struct fixture *f);
/* On the database that the one before left behind. */
void coordinator_up(struct fixture *f);
/* Down, up with f->options as they are now, and the trainer is registered again. */
void coordinator_restart(struct fixture *f);
void register_trainer(struct fixture *f);
void register_trainer_as(struct fixture *f, enum worker_exactness exactness);
/* A file of the data folder. */
void write_data(struct fixture *f, const char *name, const char *text);

/* ---- time ---- */

/* So much time goes by, in steps at which the writer looks at what is due; 0: it looks once.  What was due is done
 * then. */
void time_passes(struct fixture *f, int64_t ms);
/* Nobody looks meanwhile: as while the coordinator is down, or its writer away. */
void time_leaps(struct fixture *f, int64_t ms);
/* Returns when the driver has looked at the database as it is now, and has done what it found to do. */
void driver_has_looked(struct fixture *f);

/* ---- calls ---- */

/* A plain call; its status.  The answer is parsed to *out, which the caller frees; NULL: nobody wants it. */
int call(struct fixture *f, const char *method, const char *path, const char *body, struct json **out);
void post_run(struct fixture *f, const char *config);
/* The run as GET tells it, to be freed. */
struct json *get_run(struct fixture *f, const char *run);
/* Member a of the object, or member b of that; cut to an integer. */
int64_t get_int(const struct json *object, const char *a, const char *b);
/* A number from the database, read as everybody may; ?1 is n where the text has one. */
int64_t read_int(struct fixture *f, const char *sql);
int64_t read_int_of(struct fixture *f, const char *sql, int64_t n);

/* A value of /metrics, by its name and labels. */
double read_metric(struct fixture *f, const char *name);

/* ---- waiting ---- */

/* Waits until a value of /metrics is this; NaN is NaN.  Gauges rest between two readings, and one reading is of all. */
void wait_metric(struct fixture *f, const char *name, double wanted);
/* What a wait does between two looks. */
void a_moment_passes(struct fixture *f);

/* Waits until the run is in the state; the run's JSON, to be freed. */
struct json *wait_state(struct fixture *f, const char *run, const char *wanted);
/* Waits until trouble has paused the run with this in its sentence; its JSON, to be freed. */
struct json *wait_held(struct fixture *f, const char *run, const char *why);
/* Waits until the run's error, in whatever state it is, says this. */
void wait_error(struct fixture *f, const char *run, const char *part);
/* Waits until the run, running, says that it waits for something of which `part` is told; NULL: for nothing. */
void wait_waiting(struct fixture *f, const char *run, const char *part);

/* A run of `rounds` rounds with 3 groups of 4 samples each, in the file's order; `more` ends the object "training". */
#define GRPO(rounds, more)                                                                         \
  "{\"rounds\":" #rounds                                                                           \
  ",\"seed\":3,\"dataset\":{\"path\":\"train.jsonl\",\"shuffle\":false},\"verify_samples\":false," \
  "\"groups_per_round\":3,\"samples_per_group\":4,"                                                \
  "\"sampling\":{\"temperature\":1.0,\"max_new_tokens\":8},\"training\":{\"objective\":\"grpo\"" more "}"

#endif
