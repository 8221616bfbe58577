"""What an older tree left behind goes on: its database and checkpoints, killed in the middle of a run, end with the digests it would have reached itself.

And a pool whose services are replaced one after another: what only the newer of two knows is refused in words, and nobody waits for it.

`tests/upgrade/<commit>/` was made once by that commit (tests/upgrade/make-fixture) and is never made again.
"""
import contextlib
import json
import pathlib
import shutil
import sqlite3

import pytest

from harness import Cluster, call, digests, grpo_config
from test_trace_state import Relay

UPGRADE = pathlib.Path(__file__).resolve().parents[1] / "upgrade"
TREES = sorted(folder for folder in UPGRADE.iterdir() if folder.is_dir())


def left_by(tree, folder):
    """A copy of what `tree` left, where a Cluster in `folder` finds it."""
    folder.mkdir()
    shutil.copy(tree / "coordinator.db", folder / "coordinator.db")
    shutil.copytree(tree / "state", folder / "state")
    return folder


# What a round's row keeps of its groups, samples and batches, and what a scan of them gives.
SUMS = """SELECT jobs_undone, groups_sealed, submitted_samples, first_sealed_ms, training_samples, training_well_formed, training_tokens, training_rewards, groups_stale
  FROM rounds r WHERE run = ? AND round = ?"""
SCAN = """SELECT (SELECT count(*) FROM batches b WHERE b.run = g.run AND b.round = g.round AND done = 0), count(DISTINCT ordinal) FILTER (WHERE g.state = 1),
  count(*) FILTER (WHERE batch IS NOT NULL), min(sealed_ms), count(*), sum(well_formed), sum(s.tokens), sum(reward), 0
  FROM groups g JOIN samples s ON s.run = g.run AND s.round = g.round AND s.group_ordinal = g.ordinal WHERE g.run = ? AND g.round = ? AND g.state IN (1, 2)"""


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_sums_of_a_round_that_goes_on_are_made_of_what_is_stored(tree, tmp_path):
    folder = left_by(tree, tmp_path / "left")
    with Cluster(tmp_path / "cluster", model=tree / "model") as cluster:
        alone = cluster.start("alone", "coordinator", ["--db", folder / "coordinator.db", "--data-dir", cluster.folder])
        assert call("GET", alone.url + "/v1/runs/r2")["state"] == "running"
        with contextlib.closing(sqlite3.connect(folder / "coordinator.db")) as database:
            (place,) = database.execute("SELECT run, round FROM rounds WHERE state = 0").fetchall()
            (kept,), (scanned,) = database.execute(SUMS, place).fetchall(), database.execute(SCAN, place).fetchall()
        assert kept == scanned and kept[1] > 0 and kept[2] > 0 and kept[4] > 0, (kept, scanned)


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_runs_of_an_older_tree_end_with_the_digests_that_it_would_have_reached(tree, tmp_path):
    expected = json.loads((tree / "expected.json").read_text())
    with Cluster(left_by(tree, tmp_path / "cluster"), model=tree / "model") as cluster:
        before = cluster.status("r2")
        assert before["state"] == "running" and before["round"] < len(expected["r2"]) - 1, "the fixture was not killed in the middle"
        cluster.add_server("gen-1", "--slots", 4)
        for run, hexes in expected.items():
            assert digests(cluster.wait(run)) == hexes, run
        assert cluster.query("SELECT subject, detail FROM incidents WHERE kind = 'nondeterminism'") == []


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.name)
def test_an_older_trees_rollouts_and_timeline_are_shown(tree, tmp_path):
    with Cluster(left_by(tree, tmp_path / "cluster"), model=tree / "model") as cluster:
        rollouts = call("GET", f"{cluster.coordinator.url}/v1/runs/r2/rollouts?round=0&limit=100")["rollouts"]
        assert len(rollouts) == 24 and all(sample["text"] for sample in rollouts)
        assert call("GET", f"{cluster.coordinator.url}/v1/runs/r2/timeline?round=0")["workers"]


# ---- services of two versions ----


def in_every_lease(content):
    """As a newer coordinator's."""
    answer = json.loads(content)
    for lease in answer["leases"]:
        lease["temperature_of_tomorrow"] = 2
    return json.dumps(answer).encode()


def in_the_answer(content):
    return json.dumps({**json.loads(content), "tomorrow": 1}).encode()


@contextlib.contextmanager
def beside_an_older_server(folder, model, change):
    """(cluster, server): it has registered, and its coordinator's leases are of a newer version; no other server is there."""
    folder.mkdir()
    relay = Relay(folder / "coordinator.port")
    relay.changes["/leases"] = change
    try:
        with Cluster(folder, model=model, coordinator=["--lease-ttl-ms", 1000, "--heartbeat-ms", 100]) as cluster:
            server = cluster.add_server("older", "--slots", 4, "--coordinator", relay.url)
            server.wait_log("registered as w")
            yield cluster, server
    finally:
        relay.close()


def config():
    return grpo_config(3, groups=8, samples=4)


@pytest.fixture(scope="module")
def expected(base_model, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("alone"), model=base_model) as cluster:
        cluster.add_server("alone", "--slots", 16)
        return digests(cluster.run(config()))


def incidents(cluster, kind):
    return [detail for (detail,) in cluster.query("SELECT detail FROM incidents WHERE kind = ?", kind)]


def test_a_lease_that_says_what_the_server_does_not_know_is_handed_back_to_others(base_model, expected, tmp_path):
    with beside_an_older_server(tmp_path / "c", base_model, in_every_lease) as (cluster, older):
        run = cluster.create_run(config())
        told = cluster.wait_until("it refuses", lambda: incidents(cluster, "lease_refused"))
        assert "the lease says 'temperature_of_tomorrow', which is unknown here: this worker is of an earlier version than the coordinator" in told[0]
        cluster.add_server("newer", "--slots", 16)
        status = cluster.wait(run)
        assert digests(status) == expected
        assert [w["name"] for w in status["totals"]["workers"] if w["samples"]] == ["newer"]
        assert incidents(cluster, "leases_untaken") == []


def test_a_server_that_cannot_read_its_leases_gets_no_more_of_them(base_model, expected, tmp_path):
    with beside_an_older_server(tmp_path / "c", base_model, in_the_answer) as (cluster, older):
        run = cluster.create_run(config())
        older.wait_log("the two services are of different versions.*tomorrow")
        told = cluster.wait_until("it is given up", lambda: incidents(cluster, "leases_untaken"))
        assert told == ["older takes none of the leases that it asks for, so it gets no more for 20000 ms: its log says why; if it is of another version than this coordinator, replace it"]
        cluster.wait_until("the run says so", lambda: "takes none of the leases" in (cluster.status(run)["waiting_for"] or ""))
        cluster.add_server("newer", "--slots", 16)
        status = cluster.wait(run)
        assert digests(status) == expected
        assert [w["name"] for w in status["totals"]["workers"] if w["samples"]] == ["newer"]
