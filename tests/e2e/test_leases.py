"""The life of a lease between real processes: refused, taken up in mid-round, granted to a server that just stops (test_overlap.py has it continued by the next
server).  What would break: a lease that comes back to a server that can never run it; a new server that waits for the next round; a lease that nobody knows of."""
import itertools
import json
import threading
import time

import pytest

from harness import SLOWLY, Cluster, call, digests, grpo_config
from hostile_peer import Proxy, whole
from zombie import Zombie

ROUNDS = 3


def config(tokens=96, groups=6):
    """Long samples of one prompt a lease, so that a stop falls into the middle of them."""
    config = grpo_config(ROUNDS, groups=groups, samples=8)
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
        cluster.add_server("slow", "--slots", 1, "--prefetch", 0, SLOWLY)
        cluster.create_run(config(groups=300))  # a round of minutes, with one slot
        cluster.wait_until("a round", lambda: cluster.query("SELECT 1 FROM samples WHERE state = 2"))
        assert cluster.coordinator.metric("leasehold_pool_slots") == 1 and 300 * 8 > cluster.coordinator.metric("leasehold_samples_waiting") > 300
        cluster.add_server("late", "--slots", 8)
        granted = "SELECT granted_ms - registered_ms, round FROM leases JOIN workers ON workers.id = worker WHERE name = 'late' ORDER BY granted_ms LIMIT 1"
        (took, round_), = cluster.wait_until("the late server's first lease", lambda: cluster.query(granted))
        assert cluster.coordinator.metric("leasehold_pool_slots") == 9
        print(f"from its registration to its first lease: {took} ms")
        assert round_ == 0, "still the round that it found"
        assert took < 8000, "half a second on an idle machine"


def test_leases_of_a_poll_that_a_stop_cuts_off_go_to_the_next_server(base_model, reference, tmp_path):
    """The coordinator has granted them, and the answer never arrives."""
    granted = threading.Event()

    def withhold(link):
        status, answer, kind, more = link.honest_answer()
        if json.loads(answer).get("leases"):
            granted.set()
            link.wait()
        else:
            link.send(whole(answer, f"{status} x", kind, more))

    proxy = Proxy([(r"POST /v1/workers/w\d+/leases", *[withhold] * 100)])
    try:
        with Cluster(tmp_path, model=base_model) as cluster:
            proxy.target = cluster.coordinator.url
            cut = cluster.start("cut", "generation-server", ["--coordinator", proxy.url, "--name", "cut", "--slots", 16])
            run = cluster.create_run(config())
            assert granted.wait(30)
            assert cut.stop() == 0
            assert cluster.query("SELECT count(*) FROM leases WHERE state = 0") == [(0,)]
            assert [w["name"] for w in call("GET", cluster.coordinator.url + "/v1/workers")["workers"]] == ["trainer"]
            cluster.add_server("next", "--slots", 16)
            status = cluster.wait(run)
            assert digests(status) == reference
            assert status["totals"]["leases_lost"] > 0
    finally:
        proxy.close()


def test_leases_of_an_answer_that_was_lost_do_not_wait_for_their_end(base_model, reference, tmp_path):
    """The coordinator has granted them, the connection breaks, and the server asks again."""
    answers = itertools.count()

    def lose_every_other(link):
        time.sleep(0.002)  # answers of one millisecond are not told apart
        status, answer, kind, more = link.honest_answer()
        if not json.loads(answer).get("leases") or next(answers) % 2:
            link.send(whole(answer, f"{status} x", kind, more))

    proxy = Proxy([(r"POST /v1/workers/w\d+/leases", *[lose_every_other] * 1000)])
    try:
        with Cluster(tmp_path, model=base_model, coordinator=["--lease-ttl-ms", 3600000]) as cluster:
            proxy.target = cluster.coordinator.url
            cluster.start("unlucky", "generation-server", ["--coordinator", proxy.url, "--name", "unlucky", "--slots", 16])
            status = cluster.run(config())
    finally:
        proxy.close()
    assert digests(status) == reference
    assert status["totals"]["leases_lost"] >= next(answers) // 2 > 0


def test_a_coordinator_that_does_not_know_how_answers_are_counted_is_asked_without(base_model, reference, tmp_path):
    """It is of an earlier version and refuses what it does not know."""
    refused = []

    def as_before(link):
        if b"leases_taken" in link.request[2]:
            refused.append(link.request)
            link.send(whole({"error": {"code": "invalid", "message": "leases_taken: unknown key", "field": "leases_taken"}}, "422 x"))
        else:
            status, answer, kind, more = link.honest_answer()
            link.send(whole(answer, f"{status} x", kind, more))

    proxy = Proxy([(r"POST /v1/workers/w\d+/leases", *[as_before] * 1000)])
    try:
        with Cluster(tmp_path, model=base_model) as cluster:
            proxy.target = cluster.coordinator.url
            cluster.start("newer", "generation-server", ["--coordinator", proxy.url, "--name", "newer", "--slots", 16])
            status = cluster.run(config())
    finally:
        proxy.close()
    assert digests(status) == reference
    assert len(refused) == 1, "once for each registration"


def test_a_worker_that_only_beats_loses_its_leases(base_model, reference, tmp_path):
    """Its heartbeats renew them for ever, and it samples nothing."""
    lost = threading.Event()

    def idle(idler, leases):
        while not lost.wait(0.05):
            if idler.beat(leases)["lost"]:
                lost.set()

    with Cluster(tmp_path, model=base_model, coordinator=["--lease-ttl-ms", 3000]) as cluster:
        idler = Zombie(cluster.coordinator, slots=2)
        run = cluster.create_run(config())
        leases = cluster.wait_until("leases for the one that idles", lambda: idler.beat() and idler.take())
        idling = threading.Thread(target=idle, args=(idler, leases))
        idling.start()
        try:
            cluster.add_server("works", "--slots", 16)
            assert lost.wait(60), "they are others' after eight times what a group takes"
            status = cluster.wait(run)
        finally:
            lost.set()
            idling.join()
        told = cluster.query("SELECT detail FROM incidents WHERE kind = 'worker_stands_still'")
    assert digests(status) == reference
    assert len(told) == 1 and told[0][0].startswith("zombie holds leases and has sampled nothing for ")
