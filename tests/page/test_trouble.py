"""What the page says of a run that is not well, that waits in the queue, or that has nothing to show yet, and of a call that is refused."""
import json

import pytest

from harness import ROOT, Cluster, call, grpo_config
from test_page import visit

DATA = ROOT / "deploy/demo"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("trouble"), trainer=["--random-init", 1, "--threads", 1], coordinator=["--reward-hosts", "127.0.0.1", "--heartbeat-ms", 100]) as made:
        made.add_server("gen", "--slots", 8)
        yield made


def small(rounds=1, **more):
    return {**grpo_config(rounds, groups=2, samples=4), "start": "model", **more}


def stop(cluster, run):
    call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
    cluster.wait_until("it has stopped", lambda: cluster.status(run)["state"] == "stopped")


def test_a_dead_reward_server_is_told(browser, cluster):
    run = cluster.create_run(small(verifier={"kind": "http", "server": {"url": "http://127.0.0.1:1/get_reward", "breaker_ms": 100}}))
    page = browser.page()
    page.open(f"{cluster.coordinator.url}/#/{run}/overview")  # before it was asked: a run that stalls sends no events
    page.wait("[...document.querySelectorAll('main .note.warn')].some((note) => /[0-9]+ samples wait for the reward server http:..127.0.0.1:1.get_reward, whose last request failed: ./.test(note.textContent))", 30)
    assert page.faults == []
    stop(cluster, run)
