"""mode: inflight.  Sampling never stops, weights are swapped while samples are drawn, and what was trained on can be replayed.

The same seed does not give the same weights here, so no run is compared with another.  `audit_stream` looks into the ledger instead: every step took as many
groups as it should, none of them twice, nothing older than max_lag, under leases that were valid for it; and what could be compared with the trainer bit for
bit was equal.  Where somebody dies, the digests that were recorded before must be reached again.
"""
import os
import shutil
import sqlite3
import subprocess
import time

import pytest

from harness import BIN, DATA, FAULT_BIN, ROOT, SLOWLY, HttpError, call, digests, grpo_config
from test_overlap import CONSUMED, DONE, FAST, FILTERED, QUICK, ROUND_DONE, SLOW, audit_versions, number, start

ROUNDS, GROUPS, SAMPLES, MAX_LAG = 12, 6, 8, 3
ABANDONED = 7
ORDINAL_EVALUATION_FIRST = 8192


def config(**changes):
    made = grpo_config(ROUNDS, groups=GROUPS, samples=SAMPLES)
    made["training"].update(lr=0.001)
    made.update({"mode": "inflight", "max_lag": MAX_LAG, **changes})
    return made


def finish(cluster, run, seconds=120):
    cluster.wait(run, seconds=seconds)
    audit_stream(cluster, run)
    return cluster.status(run)


def audit_stream(cluster, run):
    r = number(run)
    resolved = cluster.status(run)["config"]
    history = {row["round"]: row for row in cluster.status(run)["history"]}
    rounds = cluster.query("SELECT round, state, version FROM rounds WHERE run = ? ORDER BY round", r)
    assert [row[0] for row in rounds] == list(range(len(rounds))) and all(version == round_ for round_, _, version in rounds)
    for round_, state, version in rounds:
        assert state == ROUND_DONE, round_
        groups = cluster.query("SELECT round, ordinal, state, batch, version_first, sample_count FROM groups WHERE run = ? AND trained_in = ?", r, round_)
        assert len(groups) == resolved["groups_per_step"] == history[round_]["groups"], round_
        assert all(state == CONSUMED and batch is not None and issued <= round_ for issued, _, state, batch, _, _ in groups), groups
        assert all(version - resolved["max_lag"] <= first <= version for *_, first, _ in groups), (round_, groups)
        lag = history[round_]["lag"]
        assert 0 <= lag["min"] <= lag["mean"] <= lag["max"] == version - min(first for *_, first, _ in groups), (lag, groups)
        batches = cluster.query("SELECT number, groups, done FROM batches WHERE run = ? AND round = ? ORDER BY number", r, round_)
        assert sum(n for _, n, _ in batches) == len(groups) and all(done for *_, done in batches)
        assert history[round_]["exact"] and history[round_]["logprob_unequal"] == 0, history[round_]
        rewards = cluster.query("SELECT s.reward FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = s.group_ordinal"
                                " WHERE g.run = ? AND g.trained_in = ?", r, round_)
        assert history[round_]["filtered"] or abs(history[round_]["reward_mean"] - sum(row[0] for row in rewards) / len(rewards)) < 1e-12
        audit_samples(cluster, r, round_)
    dropped = cluster.query("SELECT state, reason FROM groups WHERE run = ? AND trained_in IS NULL AND ordinal < ?", r, ORDINAL_EVALUATION_FIRST)
    assert all(state in (FILTERED, ABANDONED) and reason for state, reason in dropped), dropped
    places = [row[0] for row in cluster.query("SELECT dataset_index FROM groups WHERE run = ? AND ordinal < ? ORDER BY round, ordinal", r, ORDINAL_EVALUATION_FIRST)]
    assert len(places) == len(set(places)), "a prompt came twice within the first pass over the dataset"
    audit_versions(cluster, run)
    assert cluster.query("SELECT subject, detail FROM incidents WHERE kind = 'nondeterminism'") == []


def audit_samples(cluster, r, round_):
    """Every token of a consumed sample has a version that its lease was valid for."""
    samples = cluster.query(
        "SELECT s.round, s.group_ordinal, s.sample, s.state, s.tokens, s.version_first, s.version_last, s.fence FROM samples s JOIN groups g ON g.run = s.run"
        " AND g.round = s.round AND g.ordinal = s.group_ordinal WHERE g.run = ? AND g.trained_in = ?", r, round_)
    for issued, group, sample, state, tokens, first, last, fence in samples:
        where = (issued, group, sample)
        lease, = cluster.query(
            "SELECT version_min, version_max FROM leases WHERE run = ? AND round = ? AND group_ordinal = ? AND sample_first <= ? AND sample_first + sample_count > ? AND fence = ?",
            r, issued, group, sample, sample, fence)
        spans = cluster.query("SELECT start, count, version, fresh FROM spans WHERE run = ? AND round = ? AND group_ordinal = ? AND sample = ? ORDER BY start", r, *where)
        assert state == DONE and lease[0] <= first <= last <= lease[1], (where, first, last, lease)
        assert not spans or sum(count for _, count, _, _ in spans) == tokens, (where, spans)
        versions = [version for _, _, version, _ in spans] or [first]
        assert versions == sorted(versions) and versions[0] == first and versions[-1] == last, (where, spans)


def spans_of(cluster, run):
    """{(round, group, sample): [(count, version, fresh)]} of samples of several versions."""
    found = {}
    for *key, count, version, fresh in cluster.query("SELECT round, group_ordinal, sample, count, version, fresh FROM spans WHERE run = ? ORDER BY round, group_ordinal, sample, start", number(run)):
        found.setdefault(tuple(key), []).append((count, version, fresh))
    return {key: spans for key, spans in found.items() if len(spans) > 1}


# ---- the stream ----


def test_weights_are_swapped_while_samples_are_drawn(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *SLOW)
        cluster.add_server("two", *FAST)
        run = cluster.create_run(config())
        status = finish(cluster, run)
        mixed = spans_of(cluster, run)
    lags = [row["lag"] for row in status["history"]]
    assert mixed, "no sample went on over a new version"
    for spans in mixed.values():
        assert spans[0][2], spans
        # what has drawn one token has not used its keys and values yet: they are computed again
        kept = spans[1:] if spans[0][0] > 1 else spans[2:]
        assert not any(fresh for _, _, fresh in kept), f"kept keys and values are not those of the new version: {spans}"
    assert any(lag["max"] > 0 for lag in lags) and all(lag["max"] <= MAX_LAG for lag in lags), lags
    assert sum(lag["compared_tokens"] for lag in lags) >= 1000 > status["totals"]["logprob_unequal"] == 0
    assert all(0 < row["ess"] <= 1 for row in status["history"]) and any(row["ess"] < 1 for row in status["history"])
    assert len(set(digests(status))) == ROUNDS, "every step must change the weights"
    assert status["config"]["update"] == status["config"]["training"]["update"] == "inflight"


def test_keys_and_values_computed_again(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *SLOW)
        run = cluster.create_run(config(kv="recompute"))
        status = finish(cluster, run)
        mixed = spans_of(cluster, run)
    assert mixed and all(fresh for spans in mixed.values() for _, _, fresh in spans)
    assert sum(row["lag"]["compared_tokens"] for row in status["history"]) >= 1000


def test_the_order_of_submission(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *FAST)
        cluster.add_server("two", *SLOW)
        run = cluster.create_run(config(order="submission", lease_samples_max=1))
        finish(cluster, run)
        taken = cluster.query("SELECT trained_in FROM groups WHERE run = ? AND trained_in IS NOT NULL ORDER BY round, ordinal", number(run))
    assert taken == sorted(taken), "a step took a group before one that was issued earlier"


def test_what_is_too_old_is_drawn_again_or_left_out(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *SLOW)
        cluster.add_server("two", *FAST)
        run = cluster.create_run(config(max_lag=0, samples_ahead=4 * GROUPS * SAMPLES))
        status = finish(cluster, run)
        again = cluster.query("SELECT count(*) FROM leases WHERE run = ? AND state = 5", number(run))[0][0]
        reasons = cluster.query("SELECT count(*) FROM groups WHERE run = ? AND state = ? AND reason = 'lag'", number(run), FILTERED)[0][0]
    assert again > 0, "no lease fell out of its range"
    assert reasons == sum(row["lag"]["groups_dropped"] for row in status["history"]) > 0
    assert all(row["lag"]["max"] == 0 and row["lag"]["compared_tokens"] == row["tokens"] and row["ess"] == 1 for row in status["history"])


def test_evaluation_goes_along(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *FAST)
        made = config()
        made["evaluation"] = {"path": "validation.jsonl", "every_rounds": 5, "samples": 1, "problems": 6}
        run = cluster.create_run(made)
        status = finish(cluster, run)
    assert [row["round"] for row in status["evaluations"]] == [0, 5, 10, 11]
    assert all(row["samples"] == 6 and row["round"] - MAX_LAG <= row["version"] <= row["round"] for row in status["evaluations"])


def test_sampling_stays_within_its_bound(base_model, tmp_path):
    ahead = 2 * SAMPLES
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", "--slots", 16)
        run = cluster.create_run(config(samples_ahead=ahead))
        most = 0
        while cluster.status(run)["state"] != "completed":
            open_ = cluster.query("SELECT coalesce(sum(sample_count), 0) FROM groups WHERE run = ? AND state IN (0, 1)", number(run))[0][0]
            most = max(most, open_)
        finish(cluster, run)
        issued = cluster.query("SELECT count(*) FROM groups WHERE run = ?", number(run))[0][0]
    assert 0 < most <= ahead
    assert issued == ROUNDS * GROUPS, "nothing was filtered, so nothing is sampled that no step can take"


@pytest.mark.parametrize("full", ["block", "drop_oldest"])
def test_what_a_full_queue_does(base_model, tmp_path, full):
    """The trainer stands still for a while, and sampling goes on or not."""
    with start(tmp_path, base_model) as cluster:
        server = cluster.add_server("one", *FAST, SLOWLY)
        run = cluster.create_run(config(samples_ahead=GROUPS * SAMPLES, full=full))
        sealed = "SELECT count(*) FROM groups WHERE run = ? AND state = 1"
        dropped = "SELECT count(*) FROM groups WHERE run = ? AND state = 4 AND reason = 'queue'"
        cluster.wait_until("a step is over", lambda: cluster.status(run)["history"])
        cluster.trainer.freeze()
        server.hurry()
        if full == "block":
            cluster.wait_until("the queue is full", lambda: cluster.query(sealed, number(run)) == [(GROUPS,)])
        else:
            cluster.wait_until("the queue overflows", lambda: cluster.query(dropped, number(run))[0][0] > 2)
        cluster.trainer.thaw()
        status = finish(cluster, run)
        counted = cluster.query(dropped, number(run))[0][0]
    assert counted == sum(row["lag"]["groups_overflowed"] for row in status["history"])
    assert (counted > 0) == (full == "drop_oldest")
    code, said, why = replay(cluster, tmp_path, run, base_model)
    assert code == 0 and status["weights_digest"] in said, why


# ---- what cannot be asked for ----


@pytest.mark.parametrize(("changes", "field"), [
    ({"mode": "pipelined", "max_lag": 2}, "max_lag"),
    ({"mode": "sync", "kv": "keep"}, "kv"),
    ({"update": "minibatch", "groups_per_step": 2}, "update"),
    ({"groups_per_step": GROUPS - 1}, "groups_per_step"),
    ({"samples_ahead": SAMPLES - 1}, "samples_ahead"),
    ({"order": "replay"}, "order"),
    ({"kv": "drop"}, "kv"),
    ({"full": "drop"}, "full"),
    ({"mode": "pipelined", "full": "block"}, "full"),
])
def test_refusals_name_the_field(base_model, tmp_path, changes, field):
    with start(tmp_path, base_model) as cluster:
        made = config()
        if changes.get("mode"):
            del made["max_lag"]
        with pytest.raises(HttpError) as refused:
            cluster.create_run({**made, **changes})
    assert refused.value.status == 422 and refused.value.json()["error"]["field"] == field


# ---- who dies ----


@pytest.mark.parametrize("fault", ["die-before-step", "die-before-publish", "die-in-checkpoint", "die-in-batch"])
def test_a_trainer_killed_at_the_worst_moment(base_model, tmp_path, fault):
    with start(tmp_path, base_model, trainer=["--fault", fault], trainer_bin=FAULT_BIN) as cluster:
        cluster.add_server("one", *FAST)
        cluster.add_server("two", *SLOW)
        run = cluster.create_run(config())
        cluster.trainer.wait_killed()
        recorded = {row["round"]: row["digest"] for row in cluster.status(run)["history"]}
        cluster.trainer.restart()
        status = finish(cluster, run)
    assert {round_: digest for round_, digest in enumerate(digests(status)) if round_ in recorded} == recorded


def test_a_trainer_that_lost_everything_is_fed_the_record(base_model, tmp_path):
    made = config()
    made["training"]["checkpoint_every"] = 100
    with start(tmp_path, base_model) as cluster:
        server = cluster.add_server("one", *FAST, SLOWLY)
        cluster.add_server("two", *SLOW)
        run = cluster.create_run(made)
        cluster.wait_until("round 6", lambda: cluster.query("SELECT 1 FROM rounds WHERE run = ? AND round = 6", number(run)))
        cluster.trainer.kill()
        recorded = digests(cluster.status(run))
        assert cluster.status(run)["state"] == "running"
        server.hurry()
        cluster.trainer.restart()
        status = finish(cluster, run)
        log = cluster.trainer.log_text()
    assert len(recorded) >= 6 and digests(status)[: len(recorded)] == recorded
    assert "version" in log


def test_a_server_killed_and_one_that_leaves(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        victim = cluster.add_server("victim", *SLOW)
        leaver = cluster.add_server("leaver", *SLOW)
        run = cluster.create_run(config())
        cluster.wait_until("round 2", lambda: cluster.query("SELECT 1 FROM rounds WHERE run = ? AND round = 2", number(run)))
        victim.kill()
        assert leaver.stop() == 0
        cluster.add_server("heir", *FAST)
        status = finish(cluster, run)
    assert status["totals"]["leases_lost"] > 0


def test_a_coordinator_killed_again_and_again(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        server = cluster.add_server("one", *FAST, SLOWLY)
        cluster.add_server("two", *SLOW)
        run = cluster.create_run(config())
        recorded = {}
        for round_ in (1, 3, 5, 8):
            cluster.wait_until(f"round {round_}", lambda n=round_: cluster.query("SELECT 1 FROM rounds WHERE run = ? AND round >= ?", number(run), n))
            cluster.coordinator.kill()
            cluster.coordinator.restart()
            recorded.update({row["round"]: row["digest"] for row in cluster.status(run)["history"]})
        server.hurry()
        status = finish(cluster, run)
    assert {round_: digests(status)[round_] for round_ in recorded} == recorded


# ---- by hand ----


def test_pause_resume_and_stop(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *SLOW)
        run = cluster.create_run(config())
        url = f"{cluster.coordinator.url}/v1/runs/{run}"
        cluster.wait_until("round 2", lambda: cluster.query("SELECT 1 FROM rounds WHERE run = ? AND round = 2", number(run)))
        call("POST", url + "/pause")
        cluster.wait_until("nothing leased", lambda: cluster.query("SELECT count(*) FROM leases WHERE state = 0") == [(0,)])
        time.sleep(0.5)
        issued = cluster.query("SELECT count(*) FROM groups WHERE run = ?", number(run))
        time.sleep(0.5)
        assert cluster.query("SELECT count(*) FROM groups WHERE run = ?", number(run)) == issued, "a paused run issues nothing"
        call("POST", url + "/resume")
        cluster.wait_until("round 4", lambda: cluster.query("SELECT 1 FROM rounds WHERE run = ? AND round = 4", number(run)))
        call("POST", url + "/stop")
        cluster.wait(run, state="stopped")
        states = {row[0] for row in cluster.query("SELECT DISTINCT state FROM groups WHERE run = ?", number(run))}
        assert states <= {CONSUMED, FILTERED, ABANDONED}
        assert cluster.query("SELECT count(*) FROM samples WHERE run = ? AND state IN (0, 1)", number(run)) == [(0,)]
        again = cluster.create_run(config(rounds=2, start="current"))
        finish(cluster, again)


# ---- nothing to learn from ----


def test_a_run_without_signal_is_held_and_told_so(base_model, tmp_path):
    """All samples earn the same, so advantages are zero: with the filter no step can ever be taken."""
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *FAST)
        run = cluster.create_run({**config(filter={"zero_advantage": "shrink"}), "samples_per_group": 2, "verifier": {"kind": "length", "min": 1}})
        for groups in (256, 512):
            cluster.wait_until(f"{groups} groups in vain", lambda: f"all {groups} groups that were complete since step 0 are zero" in (cluster.status(run)["error"] or ""))
            status = cluster.status(run)
            assert status["state"] == "paused" and "filter.zero_advantage" in status["error"], status["error"]
            call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/resume")
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
        cluster.wait(run, state="stopped")


# ---- one flipped bit ----


@pytest.mark.parametrize(("fault", "changes"), [
    ("flip-weight", {}),
    ("flip-kv", {"kv": "recompute"}),
    ("flip-kv", {"max_lag": 0}),
])
def test_one_flipped_bit_in_one_server_is_seen(base_model, tmp_path, fault, changes):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("sound", *FAST)
        cluster.add_server("broken", *FAST, "--fault", fault, bin_dir=FAULT_BIN)
        cluster.wait_registered()
        run = cluster.create_run(config(lease_samples_max=1, verify_samples=False, **changes))  # which would refuse it
        status = cluster.wait(run)
    contributed = {w["name"]: w["samples"] for w in status["totals"]["workers"]}
    assert contributed.get("broken", 0) > 0
    assert status["totals"]["logprob_unequal"] > 0 and status["totals"]["logprob_max_abs_diff"] > 0
    assert not all(row["exact"] for row in status["history"])
    assert sum(row["lag"]["compared_tokens"] for row in status["history"]) >= 1000


def test_one_flipped_bit_in_one_gradient_is_seen(base_model, tmp_path):
    """No run of the same seed could show it, but the record does: a sound trainer does not reach it."""
    with start(tmp_path, base_model, trainer=["--fault", "flip-gradient"], trainer_bin=FAULT_BIN) as cluster:
        cluster.add_server("one", *FAST)
        run = cluster.create_run(config(rounds=6))
        finish(cluster, run)
        assert "flipped the sign bit" in cluster.trainer.log_text()
    code, said, why = replay(cluster, tmp_path, run, base_model)
    assert code == 1 and f"replaying round {run}." in why and "gave digest" in why, (said, why)


# ---- elsewhere ----


def replay(cluster, tmp_path, run, model, *trainer, seconds=120, **variables):
    made = subprocess.run(
        [ROOT / "deploy/replay.sh", cluster.database, run, "--model", model, *map(str, trainer)], capture_output=True, text=True, timeout=seconds,
        env={**os.environ, "DATA_DIR": str(DATA), "BIN": str(BIN), "OUT": str(tmp_path / "replay"), **variables}, check=False)
    return made.returncode, made.stdout, made.stderr


def test_a_database_that_is_in_use_is_replayed(base_model, tmp_path):
    """Its file and its log change while they are copied, and the copies do not fit together: a copier stands for that which gets nothing whole.  What a replay
    that was killed has left would be read as the new copy's log.  The caller's own services may speak otherwise."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/cp").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "bin/cp").chmod(0o755)
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *FAST)
        finish(cluster, cluster.create_run(config(rounds=2)))
        (tmp_path / "replay").mkdir()
        shutil.copy(f"{cluster.database}-wal", tmp_path / "replay/copy.db-wal")
        run = cluster.create_run(config(rounds=2))
        status = finish(cluster, run)
        code, said, why = replay(cluster, tmp_path, run, base_model, PATH=f"{tmp_path / 'bin'}:{os.environ['PATH']}", LEASEHOLD_TOKEN_DIR="/nowhere", LEASEHOLD_BIND="::1",
                                 LEASEHOLD_TRACK_DIR=str(tmp_path / "curves"), LEASEHOLD_LOG_FORMAT="json", LEASEHOLD_LOG_LEVEL="error")
        assert code == 0 and said.endswith(f"digest {status['weights_digest']}, as recorded\n"), (said, why)
        assert not (tmp_path / "curves").exists(), "the run has its curves: a replay would write over them"


def test_a_whole_run_is_replayed_elsewhere(base_model, tmp_path):
    """With the run that it starts from, by other kernels, without samplers; and a record in which a bit of each of a sample's log-probabilities was changed is not reached."""
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *FAST)
        cluster.add_server("two", *SLOW)
        first = cluster.create_run(config(rounds=4))
        finish(cluster, first)
        run = cluster.create_run(config(rounds=5, start={"run": first, "version": 4}))
        status = finish(cluster, run)
    code, said, why = replay(cluster, tmp_path, run, base_model, "--isa", "v3")
    assert code == 0, why
    assert [line.split()[1] for line in said.splitlines()] == [f"{first}:", f"{run}:"]
    assert status["weights_digest"] in said
    with sqlite3.connect(cluster.database) as database:
        (blob,), = database.execute("SELECT r.logprobs FROM rollouts r JOIN groups g ON g.run = r.run AND g.round = r.round AND g.ordinal = r.group_ordinal"
                                    " JOIN samples s USING (run, round, group_ordinal, sample) WHERE r.run = ? AND g.trained_in = 2 AND s.advantage <> 0 ORDER BY abs(s.advantage) DESC LIMIT 1", (number(run),))
        # Of every token's: one alone may be clipped with and without the bit, or change no weight's rounding.
        changed = bytes(byte ^ 0x40 if at % 4 == 2 else byte for at, byte in enumerate(blob))
        assert database.execute("UPDATE rollouts SET logprobs = ? WHERE logprobs = ? AND run = ?", (changed, blob, number(run))).rowcount >= 1
    code, said, why = replay(cluster, tmp_path, run, base_model)
    assert code == 1 and f"round {run}.2" in why, (said, why)
