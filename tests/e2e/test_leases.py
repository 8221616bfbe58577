"""The life of a lease between real processes: refused, taken up in mid-round (test_overlap.py has it continued by the next server).  What would break: a
lease that comes back to a server that can never run it; a new server that waits for the next round."""
import time

import pytest

from harness import Cluster, digests, grpo_config

ROUNDS = 3


def config(tokens=96):
    """Long samples of one prompt a lease, so that a stop falls into the middle of them."""
    config = grpo_config(ROUNDS, groups=6, samples=8)
    config["sampling"]["max_new_tokens"] = tokens
    return config


@pytest.fixture(scope="module")
def reference(base_model, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("one"), model=base_model) as cluster:
        cluster.add_server("alone", "--slots", 16)
        return digests(cluster.run(config()))


def test_a_server_that_can_never_run_the_leases_is_not_asked_again(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        short = cluster.add_server("short", "--slots", 16, "--context-max", 48)
        run = cluster.create_run(config())
        cluster.wait_until("the short server refuses", lambda: cluster.query("SELECT 1 FROM incidents WHERE kind = 'lease_refused'"))
        cluster.add_server("long", "--slots", 16)
        status = cluster.wait(run)
        assert digests(status) == reference
        assert [w["name"] for w in status["totals"]["workers"] if w["samples"]] == ["long"]
        refused = cluster.query("SELECT count(*) FROM incidents WHERE kind = 'lease_refused'")[0][0]
        granted = cluster.query("SELECT count(*) FROM leases JOIN workers ON workers.id = worker WHERE name = 'short'")[0][0]
        assert refused == granted <= 16, "it got what one poll takes, and nothing after that"
        assert "exceed this server's context of 48 tokens" in short.log_text()


def test_a_server_that_is_started_in_mid_round_works_at_once(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.add_server("slow", "--slots", 1, "--prefetch", 0)
        run = cluster.create_run(config())
        cluster.wait_until("a round", lambda: cluster.query("SELECT 1 FROM samples WHERE state = 2"))
        begun = time.time()
        cluster.add_server("late", "--slots", 8)
        granted = "SELECT granted_ms FROM leases JOIN workers ON workers.id = worker WHERE name = 'late' ORDER BY granted_ms LIMIT 1"
        first = cluster.wait_until("the late server's first lease", lambda: cluster.query(granted))
        took = first[0][0] / 1000 - begun
        print(f"from the start of the process to its first lease: {took:.3f} s")
        assert cluster.query("SELECT round FROM rounds WHERE state = 0") == [(0,)], "still the round that it found"
        assert took < 3, "a second on an idle machine"
        assert cluster.status(run)["state"] == "running"
