"""A version goes to a server as what changed since the one that it holds, where that is less, and nothing but the bytes sent is different.

The demo's model under a learning rate that moves few values by much more than a unit of bf16.  The same run is played three times: as it is; through a proxy that
lets no changes pass, so that every version goes whole; and with a server that is killed and started again in its middle.  All have the same digests.
"""
import json

import pytest

from harness import SLOWLY, Cluster, call, digests, grpo_config
from hostile_peer import Proxy

ROUNDS = 8


class Unchanging(Proxy):
    """Refuses changes as a server does that holds another version."""

    def __init__(self):
        super().__init__([])
        self.refused = 0

    def forward(self, method, path, body, headers):
        if path.startswith("/v1/push-weights") and "base=" in path:
            self.refused += 1
            return 409, json.dumps({"error": {"code": "CONFLICT", "message": "another version is here", "field": "base"}}).encode(), "application/json", ""
        return super().forward(method, path, body, headers)


def config(rounds=ROUNDS):
    made = grpo_config(rounds)
    made["training"]["lr"] = 0.0004
    return made


def play(cluster, servers=("a", "b")):
    for name in servers:
        cluster.add_server(name, "--slots", 16)
    cluster.wait_until("all servers are there", lambda: len(call("GET", cluster.coordinator.url + "/v1/workers")["workers"]) == 1 + len(servers))
    return digests(cluster.run(config()))


def sent(cluster):
    """Bytes that went as changes, whole, and what those that went as changes have themselves."""
    text = call("GET", cluster.trainer.url + "/metrics", raw=True).decode()
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    names = ('leasehold_trainer_pushed_bytes_total{as="changes"}', 'leasehold_trainer_pushed_bytes_total{as="whole"}', "leasehold_trainer_changed_versions_bytes_total")
    return [float(figures[name]) for name in names]


@pytest.fixture(scope="module")
def reference(base_model, tmp_path_factory):
    """Every version whole."""
    proxy = Unchanging()
    try:
        with Cluster(tmp_path_factory.mktemp("whole"), model=base_model) as cluster:
            server = cluster.add_server("a", "--slots", 16, "--advertise-url", proxy.url)
            proxy.target = server.url
            played = digests(cluster.run(config()))
            changes, whole, _ = sent(cluster)
            assert changes == 0 and whole > 0 and proxy.refused >= ROUNDS - 2
            assert cluster.trainer.metric("leasehold_trainer_changes_refused_total") == proxy.refused
    finally:
        proxy.close()
    assert len(set(played)) == ROUNDS
    return played


def test_a_run_is_the_same_with_changes(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        assert play(cluster) == reference
        changes, whole, stood_for = sent(cluster)
        print(f"{changes / 1e3:.0f} KB went for {stood_for / 1e3:.0f} KB, beside {whole / 1e3:.0f} KB whole")
        assert 0 < changes < stood_for / 2
        assert cluster.trainer.metric("leasehold_trainer_changes_refused_total") == 0
        for server in cluster.services[2:]:
            assert server.metric("leasehold_generation_versions_from_changes_total") >= ROUNDS - 2


def test_a_server_started_again_gets_it_whole_and_then_changes(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model, coordinator=["--worker-ttl-ms", 2000, "--heartbeat-ms", 200]) as cluster:
        first, second = (cluster.add_server(name, "--slots", 16, SLOWLY) for name in "ab")
        run = cluster.create_run(config())
        cluster.wait_until("some versions", lambda: (cluster.status(run)["round"] or 0) >= 3)
        second.kill()
        second.restart()
        cluster.wait_until("it has weights again", lambda: second.metric('leasehold_generation_versions_staged_total{way="pull"}'))
        for server in (first, second):
            server.hurry()
        assert digests(cluster.wait(run)) == reference
        assert first.metric("leasehold_generation_versions_from_changes_total") > 0
        restarted = second.metric("leasehold_generation_versions_from_changes_total")
        pulled = second.metric('leasehold_generation_versions_staged_total{way="pull"}')
        whole = second.metric('leasehold_generation_versions_staged_total{way="http"}') - restarted
        print(f"after its restart: {pulled:.0f} pulled, {whole:.0f} pushed whole, {restarted:.0f} as changes")
        assert pulled >= 1 and (whole >= 1 or restarted == 0)
        assert cluster.trainer.metric("leasehold_trainer_changes_refused_total") == 0


def test_a_trainer_that_is_not_to_compare_sends_every_version_whole(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model, trainer=["--push-changes", "false"]) as cluster:
        assert play(cluster) == reference
        changes, whole, _ = sent(cluster)
        assert changes == 0 and whole > 0
        assert cluster.trainer.metric('leasehold_memory_planned_bytes{part="changes between versions"}') == 0
