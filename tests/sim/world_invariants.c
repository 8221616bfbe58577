/* Counts rows that break an invariant.  The states' numbers are spelled out: this is what the database holds. */
#include "tests/sim/world_invariants.h"

struct invariant {
  const char *what, *sql; /* rows that must not be there */
};

/* For the round behind the step that is being taken, as its first batch. */
#define PLANNED_AHEAD                                                                                               \
  "g.batch = 0 AND NOT EXISTS (SELECT 1 FROM rounds r WHERE r.run = g.run AND r.round >= g.trained_in) AND EXISTS " \
  "(SELECT 1 "                                                                                                      \
  "FROM rounds r WHERE r.run = g.run AND r.round = g.trained_in - 1 AND r.state IN (2, 3, 4))"
#define IN_FLIGHT(of) "(SELECT mode = 2 FROM runs WHERE id = " of ".run)"

static const struct invariant invariants[] = {
    {"I1: runs with more or fewer than one current version",
     "SELECT count(*) FROM runs r WHERE state IN (2, 3, 4) AND 1 <> (SELECT count(*) FROM versions v WHERE v.run = "
     "r.id "
     "AND v.state = 1)"},
    {"I2: leases that stand for another version than the current",
     "SELECT count(*) FROM leases l WHERE l.state = 0 AND NOT EXISTS (SELECT 1 FROM versions v WHERE v.run = l.run AND "
     "v.state = 1 AND v.version BETWEEN l.version_min AND l.version_max AND (v.digest = l.digest OR " IN_FLIGHT(
         "l") "))"},
    {"I2: leases in flight for weights of no version in their range, or for a longer range",
     "SELECT count(*) FROM leases l JOIN runs r ON r.id = l.run WHERE l.state = 0 AND r.mode = 2 AND (l.version_max - "
     "l.version_min <> json_extract(r.config, '$.max_lag') OR NOT EXISTS (SELECT 1 FROM versions v WHERE v.run = l.run "
     "AND "
     "v.version BETWEEN l.version_min AND l.version_max AND v.digest = l.digest))"},
    {"I2: what is older than max_lag and may yet be trained",
     "SELECT count(*) FROM groups g JOIN runs r ON r.id = g.run AND r.mode = 2 JOIN versions v ON v.run = r.id AND "
     "v.state "
     "= 1 LEFT JOIN samples s ON s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal AND s.state = 2 "
     "WHERE "
     "g.purpose = 0 AND g.state IN (0, 1, 2) AND coalesce(s.version_first, g.version_first) < v.version - "
     "json_extract(r.config, '$.max_lag')"},
    {"I2: tokens of samples that are not done, older than max_lag",
     "SELECT count(*) FROM groups g JOIN runs r ON r.id = g.run AND r.mode = 2 JOIN versions v ON v.run = r.id AND "
     "v.state "
     "= 1 JOIN spans p ON p.run = g.run AND p.round = g.round AND p.group_ordinal = g.ordinal JOIN samples s ON s.run "
     "= "
     "p.run AND s.round = p.round AND s.group_ordinal = p.group_ordinal AND s.sample = p.sample WHERE g.state = 0 AND "
     "s.state <> 2 AND p.version < v.version - json_extract(r.config, '$.max_lag')"},
    {"I2: open rounds at another version than the current",
     "SELECT count(*) FROM rounds r WHERE r.state IN (0, 1, 2) AND r.version <> (SELECT v.version FROM versions v "
     "WHERE "
     "v.run = r.run AND v.state = 1)"},
    {"I3: leases that workers hold who are gone",
     "SELECT count(*) FROM leases l JOIN workers w ON w.id = l.worker WHERE l.state = 0 AND w.live = 0"},
    {"I3: samples that two leases hold",
     "SELECT count(*) FROM leases a JOIN leases b ON a.run = b.run AND a.round = b.round AND a.group_ordinal = "
     "b.group_ordinal AND (a.id, a.fence) < (b.id, b.fence) AND a.sample_first < b.sample_first + b.sample_count AND "
     "b.sample_first < a.sample_first + a.sample_count WHERE a.state = 0 AND b.state = 0"},
    {"I3: leased samples without a lease of their fence",
     "SELECT count(*) FROM samples s WHERE s.state = 1 AND NOT EXISTS (SELECT 1 FROM leases l WHERE l.state = 0 AND "
     "l.run = s.run AND l.round = s.round AND l.group_ordinal = s.group_ordinal AND s.sample BETWEEN l.sample_first "
     "AND "
     "l.sample_first + l.sample_count - 1 AND l.fence = s.fence AND l.worker = s.worker)"},
    {"I4: groups that are closed without all their samples",
     "SELECT count(*) FROM groups g WHERE g.state IN (1, 2, 3, 4) AND (g.digest IS NULL OR g.sample_count <> (SELECT "
     "count(*) FROM samples s WHERE s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal AND s.state = "
     "2 "
     "AND s.advantage IS NOT NULL AND s.digest IS NOT NULL))"},
    {"I4: groups that are open with all their samples",
     "SELECT count(*) FROM groups g WHERE g.state = 0 AND g.unchecked = 0 AND g.sample_count = (SELECT count(*) FROM "
     "samples s WHERE s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal AND s.state = 2)"},
    {"I4: groups that wait for a check and are closed, or have not all their samples",
     "SELECT count(*) FROM groups g WHERE g.unchecked = 1 AND (g.state IN (1, 2, 3, 4) OR (g.state = 0 AND "
     "(g.samples_open <> 0 OR EXISTS (SELECT 1 FROM samples s WHERE s.run = g.run AND s.round = g.round AND "
     "s.group_ordinal = g.ordinal AND s.state <> 2))))"},
    {"leases that workers in quarantine hold",
     "SELECT count(*) FROM leases l JOIN workers w ON w.id = l.worker JOIN quarantines q ON q.run = l.run AND q.name = "
     "w.name WHERE l.state = 0"},
    {"samples that checks refused without an incident, or the other way round",
     "SELECT count(*) FROM runs r WHERE (SELECT coalesce(sum(refused), 0) FROM checked WHERE run = r.id) <> (SELECT "
     "count(*) FROM incidents WHERE run = r.id AND kind = 'sample_refused')"},
    {"I5: groups that are filtered without a reason, or trained all the same",
     "SELECT count(*) FROM groups WHERE state = 4 AND (reason IS NULL OR batch IS NOT NULL)"},
    {"I5: groups in step that are in no batch, or sealed ones that are in one",
     "SELECT count(*) FROM groups g WHERE g.state <> 7 AND (g.state IN (2, 3)) <> (g.batch IS NOT NULL AND (EXISTS "
     "(SELECT 1 FROM "
     "batches b WHERE b.run = g.run AND b.round = g.trained_in AND b.number = g.batch) OR (" PLANNED_AHEAD "))) "},
    {"I5: batches of other groups than they were planned with",
     "SELECT count(*) FROM batches b WHERE b.groups <> (SELECT count(*) FROM groups g WHERE g.run = b.run AND "
     "g.trained_in = b.round AND g.batch = b.number)"},
    {"I5: rounds in flight whose steps take another number of groups",
     "SELECT count(*) FROM rounds t JOIN runs r ON r.id = t.run AND r.mode = 2 WHERE t.state IN (1, 2, 3, 4) AND "
     "(SELECT "
     "count(*) FROM groups g WHERE g.run = t.run AND g.trained_in = t.round) <> json_extract(r.config, "
     "'$.groups_per_round')"},
    {"I5: groups in batches of another inner step than their ordinals say",
     "SELECT count(*) FROM groups g JOIN batches b ON b.run = g.run AND b.round = g.round AND b.number = g.batch WHERE "
     "EXISTS (SELECT 1 FROM inner_steps i WHERE i.run = g.run AND i.round = g.round AND (i.step < b.step) <> "
     "(i.ordinal_end <= g.ordinal))"},
    {"I5: inner steps over another number of groups than they were planned with",
     "SELECT count(*) FROM inner_steps i WHERE i.groups <> (SELECT count(*) FROM groups g JOIN batches b ON b.run = "
     "g.run "
     "AND b.round = g.round AND b.number = g.batch WHERE g.run = i.run AND g.round = i.round AND b.step = i.step)"},
    {"I5: done rounds with groups that were neither consumed nor filtered",
     "SELECT count(*) FROM groups g JOIN rounds r ON r.run = g.run AND r.round = coalesce(g.trained_in, g.round) WHERE "
     "r.state = 4 AND g.state NOT IN (3, 4, 6) AND NOT (" IN_FLIGHT("g") " AND g.trained_in IS NULL)"},
    {"I5: groups that were consumed by a round that is not done, or not by one that is",
     "SELECT count(*) FROM groups g JOIN rounds r ON r.run = g.run AND r.round = g.trained_in WHERE (g.state = 3) <> "
     "(r.state = 4)"},
    {"I5: done rounds with batches or inner steps that are not",
     "SELECT count(*) FROM rounds r WHERE r.state = 4 AND (EXISTS (SELECT 1 FROM batches b WHERE b.run = r.run AND "
     "b.round = r.round AND b.done = 0) OR EXISTS (SELECT 1 FROM inner_steps i WHERE i.run = r.run AND i.round = "
     "r.round "
     "AND i.done = 0))"},
    {"I6: done rounds without the version that they made, or versions of rounds that are not done",
     "SELECT (SELECT count(*) FROM rounds r WHERE r.state = 4 AND NOT EXISTS (SELECT 1 FROM versions v WHERE v.run = "
     "r.run AND v.version = r.version + 1 AND v.digest = r.digest)) + (SELECT count(*) FROM versions v WHERE v.version "
     "> 0 "
     "AND NOT EXISTS (SELECT 1 FROM rounds r WHERE r.run = v.run AND r.version + 1 = v.version AND r.state = 4))"},
    {"I6: rounds that are open behind one that is not done",
     "SELECT count(*) FROM rounds r JOIN rounds b ON b.run = r.run AND b.round < r.round WHERE b.state <> 4"},
    {"counters of open groups that are off",
     "SELECT count(*) FROM groups g WHERE g.state = 0 AND (g.samples_waiting <> g.sample_count - (SELECT count(*) FROM "
     "samples s WHERE s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal AND s.state <> 0) OR "
     "g.samples_open <> g.sample_count - (SELECT count(*) FROM samples s WHERE s.run = g.run AND s.round = g.round AND "
     "s.group_ordinal = g.ordinal AND s.state = 2))"},
    {"whole rollouts of samples that are to be drawn again",
     "SELECT count(*) FROM samples s JOIN rollouts r ON r.run = s.run AND r.round = s.round AND r.group_ordinal = "
     "s.group_ordinal AND r.sample = s.sample WHERE s.state IN (0, 1) AND r.partial = 0"},
    {"samples without a row that lie before one with a row",
     "SELECT count(*) FROM samples s WHERE s.sample > 0 AND NOT EXISTS (SELECT 1 FROM samples b WHERE b.run = s.run "
     "AND "
     "b.round = s.round AND b.group_ordinal = s.group_ordinal AND b.sample = s.sample - 1)"},
};

const char *invariant_broken(struct store *s, int64_t now_ms, int64_t *rows) {
  struct err err;
  for (size_t i = 0; i < sizeof invariants / sizeof invariants[0]; i++) {
    *rows = -1;
    if (store_int(s, rows, &err, invariants[i].sql, NO_BINDS) != RC_OK || *rows != 0) return invariants[i].what;
  }
  if (now_ms == INT64_MIN) return NULL;
  *rows = -1;
  if (store_int(s, rows, &err, "SELECT count(*) FROM leases WHERE state = 0 AND deadline_ms <= ?1",
                BINDS(b_int(now_ms))) != RC_OK ||
      *rows != 0)
    return "leases that stand behind their deadline";
  return NULL;
}
