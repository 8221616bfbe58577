/* The schema, step by step, and the code that applies the steps that a database lacks.
 *
 *   runs -< rounds -< groups -< samples -1- rollouts (tokens, log-probabilities, text)
 *     |       |          |         +-< segments, spans, remote_rewards
 *     |       |          +-1- passes
 *     |       |          +-< refills
 *     |       +-< batches, inner_steps, contributions, evaluations
 *     |       +-< evaluation_sets -< evaluation_figures;  evaluation_items
 *     |       +-< cause_times
 *     +-1- settled_rounds, -< settled_contributions
 *     +-< checkpoints
 *     +-< reward_servers
 *     +-< versions -< pushes;  leases;  events;  incidents;  workers -< intervals
 *
 * States are the numbers of states.h.  A sample has a row from its first lease on; before that, its group's counts tell
 * of it.  *_ms columns are wall-clock milliseconds that go evenly (core_wall_us), except for leases.deadline_ms, which
 * is monotonic and means something only within its epoch.  leases.version_min and version_max differ in `inflight`
 * only. */
#include "services/coordinator/store/migrations.h"

#include <inttypes.h>

static const char *const steps[] = {
    /* 1 */
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT;"
    "INSERT INTO meta VALUES ('epoch', 0), ('trainer_fence', 0);"

    "CREATE TABLE workers ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, kind INTEGER NOT NULL, url TEXT NOT NULL, slots "
    "INTEGER NOT NULL, epoch INTEGER NOT NULL, fence INTEGER NOT NULL,"
    "  live INTEGER NOT NULL, ready INTEGER NOT NULL DEFAULT 0, draining INTEGER NOT NULL DEFAULT 0, loaded_digest "
    "BLOB, slots_busy INTEGER NOT NULL DEFAULT 0,"
    "  busy_slot_us INTEGER NOT NULL DEFAULT 0, tokens_sampled INTEGER NOT NULL DEFAULT 0, registered_ms INTEGER NOT "
    "NULL, seen_ms INTEGER NOT NULL, gone_ms INTEGER, gone_reason TEXT) STRICT;"
    "CREATE INDEX workers_live ON workers (live, kind, id);"

    "CREATE TABLE runs ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT NOT NULL, state INTEGER NOT NULL, error TEXT, mode INTEGER NOT "
    "NULL, objective TEXT NOT NULL, config TEXT NOT NULL,"
    "  config_hash BLOB NOT NULL, rounds INTEGER NOT NULL, seed TEXT NOT NULL, created_ms INTEGER NOT NULL, started_ms "
    "INTEGER, ended_ms INTEGER,"
    "  busy_slot_us INTEGER NOT NULL DEFAULT 0, slot_window_us INTEGER NOT NULL DEFAULT 0, leases_granted INTEGER NOT "
    "NULL DEFAULT 0, leases_lost INTEGER NOT NULL DEFAULT 0,"
    "  results_refused INTEGER NOT NULL DEFAULT 0) STRICT;"
    "CREATE INDEX runs_state ON runs (state, id);"

    "CREATE TABLE versions ("
    "  run INTEGER NOT NULL REFERENCES runs (id), version INTEGER NOT NULL, state INTEGER NOT NULL, digest BLOB NOT "
    "NULL, published INTEGER NOT NULL, step TEXT, created_ms INTEGER NOT NULL,"
    "  PRIMARY KEY (run, version)) STRICT, WITHOUT ROWID;"
    "CREATE UNIQUE INDEX versions_one_current ON versions (run) WHERE state = 1;"

    "CREATE TABLE pushes ("
    "  run INTEGER NOT NULL, version INTEGER NOT NULL, worker TEXT NOT NULL, staged INTEGER NOT NULL, digest BLOB, "
    "error TEXT,"
    "  PRIMARY KEY (run, version, worker), FOREIGN KEY (run, version) REFERENCES versions (run, version)) STRICT, "
    "WITHOUT ROWID;"

    "CREATE TABLE rounds ("
    "  run INTEGER NOT NULL REFERENCES runs (id), round INTEGER NOT NULL, state INTEGER NOT NULL, version INTEGER NOT "
    "NULL, exact INTEGER NOT NULL DEFAULT 1,"
    "  opened_ms INTEGER NOT NULL, generated_ms INTEGER, submitted_ms INTEGER, trained_ms INTEGER, step_begun_ms "
    "INTEGER, published_ms INTEGER,"
    "  groups_open INTEGER NOT NULL, groups_trained INTEGER NOT NULL DEFAULT 0, groups_filtered INTEGER NOT NULL "
    "DEFAULT 0, sampled_tokens INTEGER NOT NULL DEFAULT 0,"
    "  reward_mean REAL, well_formed_mean REAL, completion_tokens_mean REAL, denominator REAL,"
    "  trained_tokens INTEGER NOT NULL DEFAULT 0, loss_sum REAL NOT NULL DEFAULT 0, entropy_sum REAL NOT NULL DEFAULT "
    "0, compute_us INTEGER NOT NULL DEFAULT 0,"
    "  logprob_max_abs_diff REAL NOT NULL DEFAULT 0, logprob_unequal INTEGER NOT NULL DEFAULT 0,"
    "  digest BLOB, grad_norm REAL, lr REAL, skipped INTEGER, step_us INTEGER, checkpoint_us INTEGER, push_us INTEGER, "
    "finished INTEGER NOT NULL DEFAULT 0,"
    "  PRIMARY KEY (run, round), FOREIGN KEY (run, version) REFERENCES versions (run, version)) STRICT, WITHOUT ROWID;"

    "CREATE TABLE groups ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, ordinal INTEGER NOT NULL, state INTEGER NOT NULL, purpose INTEGER "
    "NOT NULL, reason TEXT, dataset_index INTEGER NOT NULL,"
    "  sample_count INTEGER NOT NULL, samples_open INTEGER NOT NULL, batch INTEGER, tokens INTEGER NOT NULL DEFAULT 0, "
    "digest BLOB, sealed_ms INTEGER,"
    "  prompt_ids BLOB NOT NULL, prompt TEXT NOT NULL, answer TEXT NOT NULL, extra TEXT NOT NULL,"
    "  PRIMARY KEY (run, round, ordinal), FOREIGN KEY (run, round) REFERENCES rounds (run, round)) STRICT;"

    "CREATE TABLE refills ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, ordinal INTEGER NOT NULL, replaces INTEGER NOT NULL, "
    "dataset_ordinal INTEGER NOT NULL,"
    "  PRIMARY KEY (run, round, ordinal), FOREIGN KEY (run, round, ordinal) REFERENCES groups (run, round, ordinal)) "
    "STRICT, WITHOUT ROWID;"

    "CREATE TABLE samples ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER NOT NULL, sample INTEGER NOT NULL, state "
    "INTEGER NOT NULL, fence INTEGER NOT NULL DEFAULT 0,"
    "  worker INTEGER, tokens INTEGER NOT NULL DEFAULT 0, finish INTEGER, reward REAL, advantage REAL, well_formed "
    "INTEGER, version_first INTEGER, version_last INTEGER, digest BLOB, detail TEXT,"
    "  PRIMARY KEY (run, round, group_ordinal, sample), FOREIGN KEY (run, round, group_ordinal) REFERENCES groups "
    "(run, round, ordinal)) STRICT, WITHOUT ROWID;"
    "CREATE INDEX samples_waiting ON samples (run, round, group_ordinal, sample) WHERE state = 0;"

    "CREATE TABLE rollouts ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER NOT NULL, sample INTEGER NOT NULL, partial "
    "INTEGER NOT NULL, token_ids BLOB NOT NULL, logprobs BLOB NOT NULL, text BLOB,"
    "  PRIMARY KEY (run, round, group_ordinal, sample), FOREIGN KEY (run, round, group_ordinal, sample) REFERENCES "
    "samples (run, round, group_ordinal, sample)) STRICT;"

    "CREATE TABLE segments ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER NOT NULL, sample INTEGER NOT NULL, start "
    "INTEGER NOT NULL, count INTEGER NOT NULL, loss_mask INTEGER NOT NULL,"
    "  PRIMARY KEY (run, round, group_ordinal, sample, start), FOREIGN KEY (run, round, group_ordinal, sample) "
    "REFERENCES samples (run, round, group_ordinal, sample)) STRICT, WITHOUT ROWID;"
    "CREATE TABLE spans ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER NOT NULL, sample INTEGER NOT NULL, start "
    "INTEGER NOT NULL, count INTEGER NOT NULL, version INTEGER NOT NULL,"
    "  PRIMARY KEY (run, round, group_ordinal, sample, start), FOREIGN KEY (run, round, group_ordinal, sample) "
    "REFERENCES samples (run, round, group_ordinal, sample)) STRICT, WITHOUT ROWID;"

    "CREATE TABLE leases ("
    "  id TEXT NOT NULL, fence INTEGER NOT NULL, run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER "
    "NOT NULL, sample_first INTEGER NOT NULL, sample_count INTEGER NOT NULL,"
    "  worker INTEGER NOT NULL REFERENCES workers (id), state INTEGER NOT NULL, epoch INTEGER NOT NULL, version_min "
    "INTEGER NOT NULL, version_max INTEGER NOT NULL, digest BLOB NOT NULL,"
    "  granted_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, ended_ms INTEGER, content BLOB,"
    "  PRIMARY KEY (id, fence), FOREIGN KEY (run, round, group_ordinal) REFERENCES groups (run, round, ordinal)) "
    "STRICT, WITHOUT ROWID;"
    "CREATE INDEX leases_granted ON leases (worker, deadline_ms) WHERE state = 0;"

    "CREATE TABLE batches ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, number INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0, groups "
    "INTEGER NOT NULL, tokens INTEGER NOT NULL, submitted_ms INTEGER, done_ms INTEGER,"
    "  loss REAL, entropy_sum REAL, trained_tokens INTEGER, compute_us INTEGER, poisoned INTEGER, logprob_max_abs_diff "
    "REAL, logprob_unequal INTEGER,"
    "  PRIMARY KEY (run, round, number), FOREIGN KEY (run, round) REFERENCES rounds (run, round)) STRICT, WITHOUT "
    "ROWID;"

    "CREATE TABLE contributions ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, worker INTEGER NOT NULL REFERENCES workers (id), samples INTEGER "
    "NOT NULL, tokens INTEGER NOT NULL,"
    "  PRIMARY KEY (run, round, worker), FOREIGN KEY (run, round) REFERENCES rounds (run, round)) STRICT, WITHOUT "
    "ROWID;"

    "CREATE TABLE evaluations ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, version INTEGER NOT NULL, problems INTEGER NOT NULL, samples "
    "INTEGER NOT NULL, accuracy REAL NOT NULL, well_formed REAL NOT NULL, at_ms INTEGER NOT NULL,"
    "  PRIMARY KEY (run, round), FOREIGN KEY (run, round) REFERENCES rounds (run, round)) STRICT, WITHOUT ROWID;"

    "CREATE TABLE incidents ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT, at_ms INTEGER NOT NULL, run INTEGER REFERENCES runs (id), kind TEXT NOT "
    "NULL, subject TEXT NOT NULL, detail TEXT NOT NULL) STRICT;"

    "CREATE TABLE events ("
    "  id INTEGER PRIMARY KEY AUTOINCREMENT, run INTEGER NOT NULL REFERENCES runs (id), type TEXT NOT NULL, data TEXT "
    "NOT NULL, at_ms INTEGER NOT NULL) STRICT;"
    "CREATE INDEX events_run ON events (run, id);",
    /* 2: what GET /v1/runs/{id} would otherwise count over all samples of a run, each time; and the newest trainer */
    "ALTER TABLE rounds ADD COLUMN stale_groups INTEGER NOT NULL DEFAULT 0;"
    "UPDATE rounds SET stale_groups = (SELECT count(*) FROM groups g WHERE g.run = rounds.run AND g.round = "
    "rounds.round AND g.state = 3 AND g.purpose = 0 AND (EXISTS (SELECT 1 FROM samples s WHERE s.run = g.run AND "
    "s.round = g.round AND s.group_ordinal = g.ordinal AND (s.version_first <> rounds.version OR s.version_last <> "
    "rounds.version)) OR EXISTS (SELECT 1 FROM spans p WHERE p.run = g.run AND p.round = g.round AND p.group_ordinal = "
    "g.ordinal AND p.version <> rounds.version))) WHERE state = 4;"
    "CREATE INDEX workers_kind ON workers (kind, id);"
    "CREATE INDEX rounds_open ON rounds (run, round) WHERE state = 0;"
    "CREATE INDEX rounds_unfinished ON rounds (run, round) WHERE finished = 0;",
    /* 3: pipelined rounds.  dataset_first: where in dataset order the round begins (null: round * groups, from before
     * refills); leased_ms: first grant, from which a group's time-out counts; waiting_ms: since when it has had waiting
     * samples; overtaken_ms: since when others go before it (frontier.h; all wall-clock); samples_waiting,
     * done_samples, done_tokens: what dispatch orders by. */
    "ALTER TABLE rounds ADD COLUMN dataset_first INTEGER;"
    "ALTER TABLE rounds ADD COLUMN groups_refilled INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN groups_failed INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN verify_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN logprob_us INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE batches ADD COLUMN logprob_us INTEGER;"
    "ALTER TABLE groups ADD COLUMN samples_waiting INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE groups ADD COLUMN done_samples INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE groups ADD COLUMN done_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE groups ADD COLUMN leased_ms INTEGER;"
    "ALTER TABLE groups ADD COLUMN waiting_ms INTEGER;"
    "ALTER TABLE groups ADD COLUMN overtaken_ms INTEGER;"
    "UPDATE groups SET samples_waiting = (SELECT count(*) FROM samples s WHERE s.run = groups.run AND s.round = "
    "groups.round AND s.group_ordinal = groups.ordinal AND s.state = 0), done_samples = sample_count - samples_open, "
    "leased_ms = unixepoch() * 1000, waiting_ms = unixepoch() * 1000 WHERE state = 0;"
    "CREATE INDEX groups_open ON groups (run, round, ordinal) WHERE state = 0;"
    "CREATE INDEX groups_waiting ON groups (run, round, ordinal) WHERE state = 0 AND samples_waiting > 0;"
    "CREATE INDEX groups_arrived ON groups (run, round, purpose, waiting_ms, ordinal) WHERE state = 0 AND "
    "samples_waiting > 0;"
    "CREATE INDEX groups_sealed ON groups (run, round, sealed_ms, ordinal) WHERE state = 1;"
    "CREATE INDEX groups_batch ON groups (run, round, batch, ordinal) WHERE batch IS NOT NULL;",
    /* 4: bubble accounting (intervals.h).  intervals.items: INTERVAL_PACKED_BYTES each; worker 0: the coordinator.
     * cause_times.actor: 0 the trainer, 1 all generation-servers together, 2 all preprocessors. */
    "CREATE TABLE intervals (id INTEGER PRIMARY KEY, worker INTEGER NOT NULL, begin_us INTEGER NOT NULL, end_us "
    "INTEGER NOT NULL, items BLOB NOT NULL) STRICT;CREATE INDEX intervals_worker ON intervals (worker, end_us);CREATE "
    "TABLE cause_times (  run INTEGER NOT NULL, round INTEGER NOT NULL, actor INTEGER NOT NULL, fill_us INTEGER NOT "
    "NULL, starved_us INTEGER NOT NULL, logprob_us INTEGER NOT NULL, compute_us INTEGER NOT NULL, step_us INTEGER NOT "
    "NULL, checkpoint_us INTEGER NOT NULL, push_us INTEGER NOT NULL, load_us INTEGER NOT NULL, idle_us INTEGER NOT "
    "NULL, slot_busy_us INTEGER NOT NULL, slot_window_us INTEGER NOT NULL,  PRIMARY KEY (run, round, actor), FOREIGN "
    "KEY (run, round) REFERENCES rounds (run, round)) STRICT, WITHOUT ROWID;CREATE INDEX rounds_opened ON rounds "
    "(opened_ms, run, round);ALTER TABLE workers ADD COLUMN clock_skew_ms INTEGER;",
    /* 5: how far trainer and samplers differ (mismatch.h) and why a round is not exact (exactness.h).  Sums are over
     * tokens with a finite difference; batches.worker is the trainer that computed it. */
    "ALTER TABLE workers ADD COLUMN exactness INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE batches ADD COLUMN worker INTEGER;"
    "ALTER TABLE batches ADD COLUMN logprob_nonfinite INTEGER;"
    "ALTER TABLE batches ADD COLUMN logprob_abs_sum REAL;"
    "ALTER TABLE batches ADD COLUMN logprob_k1_sum REAL;"
    "ALTER TABLE batches ADD COLUMN logprob_k3_sum REAL;"
    "ALTER TABLE rounds ADD COLUMN inexact_reason TEXT;"
    "ALTER TABLE rounds ADD COLUMN logprob_nonfinite INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN logprob_abs_sum REAL NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN logprob_k1_sum REAL NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN logprob_k3_sum REAL NOT NULL DEFAULT 0;"
    "UPDATE rounds SET inexact_reason = 'not recorded' WHERE exact = 0;"
    "UPDATE rounds SET logprob_abs_sum = 9e999, logprob_k1_sum = 9e999, logprob_k3_sum = 9e999 WHERE logprob_unequal > "
    "0;", /* not recorded either */
    /* 6: fabrics (null: none), and the way of a push: enum push_way */
    "ALTER TABLE workers ADD COLUMN fabric TEXT;"
    "ALTER TABLE workers ADD COLUMN fabric_kind TEXT;"
    "ALTER TABLE workers ADD COLUMN fabric_place INTEGER;"
    "ALTER TABLE pushes ADD COLUMN way INTEGER NOT NULL DEFAULT 0;",
    /* 7: the trainer's place (trainer_place.h): holder 1 for who holds it, or held it when it was live; what a run
     * waits for just now (null: nothing) */
    "ALTER TABLE workers ADD COLUMN identity TEXT;"
    "ALTER TABLE workers ADD COLUMN holder INTEGER NOT NULL DEFAULT 0;"
    "UPDATE workers SET holder = 1 WHERE kind = 1;"
    "CREATE INDEX workers_holder ON workers (fence) WHERE holder = 1;"
    "ALTER TABLE runs ADD COLUMN waiting_for TEXT;",
    /* 8: rounds whose rollouts are dropped (records/retention.h); first_sealed_ms is written then, because it is of the
     * groups.  leases_group is for the groups' deletion, whose foreign key would read all leases otherwise. */
    "ALTER TABLE rounds ADD COLUMN rollouts_state INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN first_sealed_ms INTEGER;"
    "CREATE INDEX rounds_kept ON rounds (run, round) WHERE rollouts_state = 0;"
    "CREATE INDEX rounds_dropping ON rounds (run, round) WHERE rollouts_state = 1;"
    "CREATE INDEX leases_group ON leases (run, round, group_ordinal);",
    /* 9: how long a sample of the group may be (null: the group had ended before that was stored) */
    "ALTER TABLE groups ADD COLUMN max_new_tokens INTEGER;"
    "UPDATE groups SET max_new_tokens = (SELECT json_extract(config, '$.sampling.max_new_tokens') FROM runs WHERE id = "
    "groups.run) WHERE state = 0;",
    /* 10: several optimizer steps a round (rounds/inner_steps.h).  batches.step: how many come before it.
     * inner_steps.ordinal_end: the members of the steps behind it have this ordinal or a higher one; denominator: of
     * its groups; digest: of the weights after it, kept while it is taken again.  Ratios and differences of the new
     * policy against the one that sampled are sums over trained tokens (struct batch_stats), null in batches of older
     * rounds. */
    "ALTER TABLE batches ADD COLUMN step INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE batches ADD COLUMN ratio_sum REAL;"
    "ALTER TABLE batches ADD COLUMN ratio_squares REAL;"
    "ALTER TABLE batches ADD COLUMN clipped INTEGER;"
    "ALTER TABLE batches ADD COLUMN kl_new_old REAL;"
    "ALTER TABLE batches ADD COLUMN difference_new_old REAL;"
    "ALTER TABLE rounds ADD COLUMN ratio_sum REAL;"
    "ALTER TABLE rounds ADD COLUMN ratio_squares REAL;"
    "ALTER TABLE rounds ADD COLUMN clipped INTEGER;"
    "ALTER TABLE rounds ADD COLUMN kl_new_old REAL;"
    "ALTER TABLE rounds ADD COLUMN difference_new_old REAL;"
    "CREATE TABLE inner_steps ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, step INTEGER NOT NULL, done INTEGER NOT NULL DEFAULT 0, groups "
    "INTEGER NOT NULL, ordinal_end INTEGER NOT NULL, denominator REAL NOT NULL,"
    "  planned_ms INTEGER NOT NULL, done_ms INTEGER, digest BLOB, grad_norm REAL, lr REAL, skipped INTEGER, step_us "
    "INTEGER,"
    "  PRIMARY KEY (run, round, step), FOREIGN KEY (run, round) REFERENCES rounds (run, round)) STRICT, WITHOUT ROWID;",
    /* 11: sums that were counted over a round's groups, samples and batches whenever they were asked for
     * (records/round_sums.h); only of rounds that go on.  first_sealed_ms is written with the first group that
     * closes. */
    "ALTER TABLE rounds ADD COLUMN jobs_undone INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN submitted_samples INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN groups_sealed INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN groups_stale INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN training_samples INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN training_well_formed INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN training_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN training_rewards REAL NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN evaluation_groups INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN evaluation_samples INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN evaluation_well_formed INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN evaluation_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN evaluation_rewards REAL NOT NULL DEFAULT 0;"
    "UPDATE rounds SET jobs_undone = (SELECT count(*) FROM batches b WHERE b.run = rounds.run AND b.round = "
    "rounds.round AND b.done = 0) + (SELECT count(*) FROM inner_steps i WHERE i.run = rounds.run AND i.round = "
    "rounds.round AND i.done = 0) WHERE state <> 4;UPDATE rounds SET (submitted_samples, groups_sealed, "
    "first_sealed_ms) = (SELECT coalesce(sum(sample_count) FILTER (WHERE batch IS NOT NULL), 0), count(*) FILTER "
    "(WHERE state = 1), min(sealed_ms) FROM groups g WHERE g.run = rounds.run AND g.round = rounds.round) WHERE state "
    "< 4;UPDATE rounds SET (training_samples, training_well_formed, training_tokens, training_rewards, "
    "evaluation_groups, evaluation_samples, evaluation_well_formed, evaluation_tokens, evaluation_rewards, "
    "groups_stale) = (SELECT count(*) FILTER (WHERE purpose = 0), coalesce(sum(s.well_formed) FILTER (WHERE purpose = "
    "0), 0), coalesce(sum(s.tokens) FILTER (WHERE purpose = 0), 0), coalesce(sum(s.reward) FILTER (WHERE purpose = 0), "
    "0.0), count(DISTINCT g.ordinal) FILTER (WHERE purpose = 1), count(*) FILTER (WHERE purpose = 1), "
    "coalesce(sum(s.well_formed) FILTER (WHERE purpose = 1), 0), coalesce(sum(s.tokens) FILTER (WHERE purpose = 1), "
    "0), coalesce(sum(s.reward) FILTER (WHERE purpose = 1), 0.0), count(DISTINCT g.ordinal) FILTER (WHERE purpose = 0 "
    "AND g.state <> 4 AND (s.version_first <> rounds.version OR s.version_last <> rounds.version)) FROM groups g JOIN "
    "samples s ON s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal WHERE g.run = rounds.run AND "
    "g.round = rounds.round AND g.state IN (1, 2, 3, 4, 6)) WHERE state < 4;",
    /* 12: how a round was planned (decide/admission.h): groups at first and the time until another may be begun, null
     * when every slot may be filled; whether in another order than the ordinals'; when it is expected to be trained, by
     * the plan and with every slot filled.  All null: it was not planned. */
    "ALTER TABLE rounds ADD COLUMN admission_first INTEGER;"
    "ALTER TABLE rounds ADD COLUMN admission_spacing_us INTEGER;"
    "ALTER TABLE rounds ADD COLUMN admission_ordered INTEGER;"
    "ALTER TABLE rounds ADD COLUMN admission_end_us REAL;"
    "ALTER TABLE rounds ADD COLUMN admission_filled_end_us REAL;",
    /* 13: steps that take groups of earlier rounds (rounds/stream.h).  groups.trained_in: the round whose step takes
     * it, the group's own but for `inflight`; version_first: of its oldest token.  spans.fresh: struct version_span.
     * Lags are of trained tokens, in versions; compared_tokens: whose log-probabilities the trainer's must equal.
     * versions.activated_ms: when a server was first heard of with it; null: skipped, or older than this column. */
    "ALTER TABLE groups ADD COLUMN trained_in INTEGER;"
    "ALTER TABLE groups ADD COLUMN version_first INTEGER;"
    "UPDATE groups SET trained_in = round WHERE batch IS NOT NULL;"
    "DROP INDEX groups_batch;"
    "CREATE INDEX groups_batch ON groups (run, trained_in, batch, round, ordinal) WHERE trained_in IS NOT NULL;"
    "ALTER TABLE spans ADD COLUMN fresh INTEGER NOT NULL DEFAULT 1;"
    "ALTER TABLE versions ADD COLUMN activated_ms INTEGER;"
    "ALTER TABLE batches ADD COLUMN lag_min INTEGER;"
    "ALTER TABLE batches ADD COLUMN lag_max INTEGER;"
    "ALTER TABLE batches ADD COLUMN lag_sum INTEGER;"
    "ALTER TABLE batches ADD COLUMN compared_tokens INTEGER;"
    "ALTER TABLE rounds ADD COLUMN lag_min INTEGER;"
    "ALTER TABLE rounds ADD COLUMN lag_max INTEGER;"
    "ALTER TABLE rounds ADD COLUMN lag_sum INTEGER;"
    "ALTER TABLE rounds ADD COLUMN compared_tokens INTEGER;"
    "ALTER TABLE rounds ADD COLUMN groups_lagged INTEGER NOT NULL DEFAULT 0;",
    /* 14: the reference's log-probabilities of groups, computed by preprocessors (decide/passes.h).  worker: the
     * holder, or who handed it back; first_ms: its first grant, wall clock; deadline_ms as leases'; digest: of the
     * weights that it was computed by, content: of the result; logprobs: of all trained tokens, sample after sample.
     * rounds.groups_preprocessed: of the trained ones; null: the run has no KL term, or the round is older. */
    "CREATE TABLE passes ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER NOT NULL, state INTEGER NOT NULL, fence "
    "INTEGER NOT NULL, worker INTEGER, first_ms INTEGER NOT NULL, deadline_ms INTEGER NOT NULL, ended_ms INTEGER, "
    "digest BLOB, content BLOB, logprobs BLOB,  PRIMARY KEY (run, round, group_ordinal), FOREIGN KEY (run, round, "
    "group_ordinal) REFERENCES groups (run, round, ordinal)) STRICT;CREATE INDEX passes_granted ON passes (worker, "
    "deadline_ms) WHERE state = 1;ALTER TABLE rounds ADD COLUMN groups_preprocessed INTEGER;",
    /* 15: groups that a full queue dropped while the round was filled (decide/lag.h) */
    "ALTER TABLE rounds ADD COLUMN groups_overflowed INTEGER NOT NULL DEFAULT 0;",
    /* 16: what should be looked at although the run can go on (run_context_warnings), a JSON array of texts; null
     * before it was opened */
    "ALTER TABLE runs ADD COLUMN warnings TEXT;",
    /* 17: rewards that servers answer (rounds/remote_rewards.h): a row for each finished sample and each such term of
     * the rule.  groups.rewards_open: of its rows, those that wait; rounds.rewards_missed: that count as 0, because
     * nobody answered in time.  reward_servers: what is known of the server of a term; state: enum breaker_state. */
    "CREATE TABLE remote_rewards ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER NOT NULL, sample INTEGER NOT NULL, term "
    "INTEGER NOT NULL, state INTEGER NOT NULL, value REAL, answered_ms INTEGER,  PRIMARY KEY (run, round, "
    "group_ordinal, sample, term), FOREIGN KEY (run, round, group_ordinal, sample) REFERENCES samples (run, round, "
    "group_ordinal, sample)) STRICT, WITHOUT ROWID;CREATE INDEX remote_rewards_waiting ON remote_rewards (run, term, "
    "round, group_ordinal, sample) WHERE state = 0;ALTER TABLE groups ADD COLUMN rewards_open INTEGER NOT NULL DEFAULT "
    "0;ALTER TABLE rounds ADD COLUMN rewards_missed INTEGER NOT NULL DEFAULT 0;CREATE TABLE reward_servers (  run "
    "INTEGER NOT NULL REFERENCES runs (id), term INTEGER NOT NULL, url TEXT NOT NULL, state INTEGER NOT NULL DEFAULT "
    "0, requests INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, answered INTEGER NOT NULL DEFAULT 0, "
    "missed INTEGER NOT NULL DEFAULT 0, last_error TEXT, PRIMARY KEY (run, term)) STRICT, WITHOUT ROWID;",
    /* 18: what the run's dataset was found to hold (run_context_counts), as JSON; null before it was loaded */
    "ALTER TABLE runs ADD COLUMN dataset_counts TEXT;",
    /* 19: curricula (records/curriculum.h): how many samples of an item passed when it last came, and in which epoch;
     * rounds.dataset_next: where in dataset order the round's next refill is looked for.  Null without a curriculum. */
    "CREATE TABLE prompt_rates ("
    "  run INTEGER NOT NULL REFERENCES runs (id), item INTEGER NOT NULL, samples INTEGER NOT NULL, passed INTEGER NOT "
    "NULL, epoch INTEGER NOT NULL, PRIMARY KEY (run, item)) STRICT, WITHOUT ROWID;"
    "ALTER TABLE groups ADD COLUMN dataset_epoch INTEGER;"
    "ALTER TABLE rounds ADD COLUMN dataset_next INTEGER;"
    "ALTER TABLE rounds ADD COLUMN prompts_passed_over INTEGER;",
    /* 20: evaluations of several sets (records/evaluation_results.h), kept when the groups behind them are dropped.
     * groups.evaluation_set: which of the run's sets a problem is of, null for training.  samples.passed, vote: struct
     * reward_verdict, of evaluations.  evaluation_items.content: of prompt and answer, by which problems of two
     * evaluations are paired; rewards: float64s, in the order of the samples; majority: null where answers are not
     * counted.  evaluation_figures.figure: "accuracy", "pass@4", "majority"; low, high: null where there is no
     * interval.  rounds.closing: the round behind the run's last, which only evaluates.  checkpoints: those that the
     * trainer said it keeps; best: for the run's keep_best.  runs.origin_*: the version that the run's weights came
     * from. */
    "ALTER TABLE groups ADD COLUMN evaluation_set INTEGER;"
    "UPDATE groups SET evaluation_set = 0 WHERE purpose = 1;"
    "ALTER TABLE samples ADD COLUMN passed INTEGER;"
    "ALTER TABLE samples ADD COLUMN vote INTEGER;"
    "ALTER TABLE rounds ADD COLUMN closing INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE runs ADD COLUMN origin_run INTEGER;"
    "ALTER TABLE runs ADD COLUMN origin_version INTEGER;"
    "CREATE TABLE evaluation_sets ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, number INTEGER NOT NULL, name TEXT NOT NULL, problems INTEGER NOT "
    "NULL, samples INTEGER NOT NULL, accuracy REAL NOT NULL, well_formed REAL NOT NULL, tokens REAL NOT NULL,"
    "  PRIMARY KEY (run, round, number), FOREIGN KEY (run, round) REFERENCES rounds (run, round)) STRICT, WITHOUT "
    "ROWID;CREATE TABLE evaluation_figures (  run INTEGER NOT NULL, round INTEGER NOT NULL, number INTEGER NOT NULL, "
    "place INTEGER NOT NULL, figure TEXT NOT NULL, value REAL NOT NULL, low REAL, high REAL,  PRIMARY KEY (run, round, "
    "number, place), FOREIGN KEY (run, round, number) REFERENCES evaluation_sets (run, round, number)) STRICT, WITHOUT "
    "ROWID;CREATE TABLE evaluation_items (  run INTEGER NOT NULL, round INTEGER NOT NULL, number INTEGER NOT NULL, "
    "item INTEGER NOT NULL, line INTEGER NOT NULL, content BLOB NOT NULL, samples INTEGER NOT NULL, passed INTEGER NOT "
    "NULL, well_formed INTEGER NOT NULL, tokens INTEGER NOT NULL, majority REAL, rewards BLOB NOT NULL,  PRIMARY KEY "
    "(run, round, number, item), FOREIGN KEY (run, round) REFERENCES rounds (run, round)) STRICT, WITHOUT ROWID;CREATE "
    "TABLE checkpoints (  run INTEGER NOT NULL REFERENCES runs (id), version INTEGER NOT NULL, best INTEGER NOT NULL,  "
    "PRIMARY KEY (run, version)) STRICT, WITHOUT ROWID;",
    /* 21: deadlines of reward servers outlive a restart (rounds/remote_rewards.h).  runs.rewards_counted_ms: a clock
     * that goes while the run is running and waits for them; groups.rewards_since_ms: what it showed at the group's
     * last sample. */
    "ALTER TABLE runs ADD COLUMN rewards_counted_ms INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE groups ADD COLUMN rewards_since_ms INTEGER NOT NULL DEFAULT 0;",
    /* 22: the sum over trained tokens of what the estimator of training.kl_estimator says; null in older batches and
     * where it is not finite */
    "ALTER TABLE batches ADD COLUMN kl_reference REAL;"
    "ALTER TABLE rounds ADD COLUMN kl_reference REAL;",
    /* 23: rollouts.token_ids of new rows are packed (token_bytes.h), which older coordinators cannot read */
    "SELECT 1;",
    /* 24: samples.term_values: float64s, what each term of the sample's reward gave before its weight
     * (rounds/group_seal.h); null where the reward is one verifier's, and in older rows */
    "ALTER TABLE samples ADD COLUMN term_values BLOB;"
    /* entropies: behind the trained tokens of a group (rounds/entropies.h, store/entropy_bytes.h); none of groups that
     * were not trained on */
    "CREATE TABLE entropies ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER NOT NULL, steps BLOB NOT NULL,"
    "  PRIMARY KEY (run, round, group_ordinal), FOREIGN KEY (run, round, group_ordinal) REFERENCES groups (run, round, "
    "ordinal)) STRICT, WITHOUT ROWID;",
    /* 25: names belong to tokens (pool/owners.h).  workers.owner: struct token_claim's holder, null where no token was
     * asked for; push_token: while it is live; used: 0 once it is gone without anything that refers to it. */
    "ALTER TABLE workers ADD COLUMN owner BLOB;"
    "ALTER TABLE workers ADD COLUMN push_token TEXT;"
    "ALTER TABLE workers ADD COLUMN used INTEGER NOT NULL DEFAULT 1;"
    "CREATE INDEX workers_named ON workers (kind, name, id);"
    "CREATE INDEX workers_unused ON workers (id) WHERE used = 0;",
    /* 26: samples that the trainer draws again (checks/README.md).  groups.unchecked: all samples are in, and the check
     * is still to come.  checked: of a worker's samples in a round.  handed_back: which worker drew a sample's first
     * tokens, and how many, where its lease was handed back. */
    "ALTER TABLE groups ADD COLUMN unchecked INTEGER NOT NULL DEFAULT 0;"
    "CREATE INDEX groups_unchecked ON groups (run, round, ordinal) WHERE unchecked = 1;"
    "CREATE TABLE checked ("
    "  run INTEGER NOT NULL, round INTEGER NOT NULL, name TEXT NOT NULL, held INTEGER NOT NULL, refused INTEGER NOT "
    "NULL,  PRIMARY KEY (run, round, name), FOREIGN KEY (run, round) REFERENCES rounds (run, round)) STRICT, WITHOUT "
    "ROWID;CREATE TABLE quarantines (  run INTEGER NOT NULL REFERENCES runs (id), name TEXT NOT NULL, round INTEGER "
    "NOT NULL, at_ms INTEGER NOT NULL, reason TEXT NOT NULL,  PRIMARY KEY (run, name)) STRICT, WITHOUT ROWID;CREATE "
    "TABLE handed_back (  run INTEGER NOT NULL, round INTEGER NOT NULL, group_ordinal INTEGER NOT NULL, sample INTEGER "
    "NOT NULL, tokens INTEGER NOT NULL, worker INTEGER NOT NULL,  PRIMARY KEY (run, round, group_ordinal, sample, "
    "tokens)) STRICT, WITHOUT ROWID;",
    /* 27: batches of runs in flight are verified (checks/refusals.h).  workers.device: enum worker_device, null in
     * older rows.  rounds.groups_refused: of the groups that the round's step took, those that were left out again, and
     * those that were complete when who had drawn them was found to lie.  checked.older_*: tokens of samples that held
     * which earlier versions drew, and how far off their log-probabilities were, a sum. */
    "ALTER TABLE workers ADD COLUMN device INTEGER;"
    "ALTER TABLE checked ADD COLUMN older_tokens INTEGER NOT NULL DEFAULT 0;"
    "ALTER TABLE checked ADD COLUMN older_distance REAL NOT NULL DEFAULT 0;"
    "ALTER TABLE rounds ADD COLUMN groups_refused INTEGER NOT NULL DEFAULT 0;",
    /* 28: what the rounds before one come to, so that a long run's totals need not read them (rounds/settled.h).  A
     * figure that none of them has is null. */
    "CREATE TABLE settled_rounds (run INTEGER PRIMARY KEY REFERENCES runs (id), before_round INTEGER NOT NULL,"
    "  done INTEGER NOT NULL, inexact INTEGER NOT NULL, sampled INTEGER NOT NULL, trained INTEGER, round_ms INTEGER,"
    "  opened_ms INTEGER NOT NULL, published_ms INTEGER, stale INTEGER NOT NULL, unequal INTEGER NOT NULL,"
    "  nonfinite INTEGER NOT NULL, max_abs REAL NOT NULL, abs_sum REAL, k1_sum REAL, k3_sum REAL, wait_us INTEGER,"
    "  work_us INTEGER, dispatch_ms INTEGER, dispatch_window_ms INTEGER, training_ms INTEGER) STRICT;"
    "CREATE TABLE settled_contributions (run INTEGER NOT NULL REFERENCES runs (id), worker INTEGER NOT NULL,"
    "  samples INTEGER NOT NULL, tokens INTEGER NOT NULL, PRIMARY KEY (run, worker)) STRICT, WITHOUT ROWID;",
    /* 29: how many versions behind checked.older_tokens were, a sum (checks/verdict.h).  0 in older rows: of a step
     * that was begun by an older coordinator nobody is accused by these tokens. */
    "ALTER TABLE checked ADD COLUMN older_lags INTEGER NOT NULL DEFAULT 0;",
};

int migrations_newest(void) { return (int)(sizeof steps / sizeof steps[0]); }

/* A file that another program keeps its tables in, as after a slip in --db. */
static enum rc refuse_foreign(struct store *s, struct err *err) {
  int64_t foreign = 0;
  const enum rc rc = store_int(s, &foreign, err,
                               "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!') "
                               "AND NOT EXISTS (SELECT 1 FROM sqlite_master WHERE name = 'schema_version')",
                               NO_BINDS);
  if (rc != RC_OK || !foreign) return rc;
  return err_set(err, RC_CONFLICT, "db",
                 "the database has tables of another program, and none of a coordinator's: name another file by --db");
}

enum rc migrations_apply(struct store *s, struct err *err) {
  int64_t at = 0;
  enum rc rc = refuse_foreign(s, err);
  if (rc != RC_OK) return rc;
  rc = store_script(
      s, "CREATE TABLE IF NOT EXISTS schema_version (version INTEGER PRIMARY KEY, applied_ms INTEGER NOT NULL) STRICT",
      err);
  if (rc == RC_OK) rc = store_int(s, &at, err, "SELECT max(version) FROM schema_version", NO_BINDS);
  if (rc != RC_OK) return rc;
  if (at > migrations_newest()) {
    return err_set(err, RC_UNSUPPORTED, NULL,
                   "the database has schema version %" PRId64
                   ", this coordinator knows up to %d: it was made by a newer one",
                   at, migrations_newest());
  }
  for (int step = (int)at + 1; step <= migrations_newest() && rc == RC_OK; step++) {
    rc = store_script(s, "BEGIN IMMEDIATE", err);
    if (rc == RC_OK) rc = store_script(s, steps[step - 1], err);
    if (rc == RC_OK)
      rc = store_exec(s, err, "INSERT INTO schema_version VALUES (?1, unixepoch() * 1000)", BINDS(b_int(step)));
    if (rc == RC_OK) rc = store_script(s, "COMMIT", err);
    if (rc != RC_OK && store_in_transaction(s)) store_script(s, "ROLLBACK", NULL);
  }
  return rc;
}
