"""Rewards of one's own: deploy/rewards' servers judge real runs.  A server that answers as a built-in verifier does leads to the same weights, bit for bit, whatever becomes of it
meanwhile: slow, wrong, killed, and with the coordinator killed while it was asked."""
import json
import re
import signal
import subprocess
import sys
import time

import pytest

from authority import Authority
from harness import ROOT, SERVICE_OF, Cluster, Deadline, HttpError, call, digests, grpo_config
from test_cli import said

SCORES = """
import pathlib, time
mode = pathlib.Path(__file__).with_name("mode")
scored = 0  # in mode "few", whose others are not answered as long as it is that
def score(prompt, response, label):
    global scored
    now = mode.read_text()
    scored = scored + 1 if now == "few" else 0
    while now == "few" and scored > 8:
        time.sleep(0.01)
        now = mode.read_text()
    if now == "slow":
        time.sleep(0.03)
    if now == "wrong":
        return float("nan")
    if now == "poison" and prompt == POISON:
        raise ValueError("this prompt is too much")
    return 1 if any("0" <= letter <= "4" for letter in response) else 0
POISON = "5+1+0*8="
"""


class Judge:
    """deploy/rewards/reward_server.py with scores of the test's, which can be killed and comes back on its port."""

    scheme = "http"

    def __init__(self, folder, program="reward_server.py", *flags):
        self.folder = folder
        folder.mkdir()
        (folder / "scores.py").write_text(SCORES)
        self.mode("fine")
        self.command = [sys.executable, ROOT / "deploy/rewards" / program, *(flags or ("--module", folder / "scores.py"))]
        self.port = 0
        self.start()

    def mode(self, name):
        (self.folder / "mode").write_text(name)

    def start(self):
        file = self.folder / "port"
        file.unlink(missing_ok=True)
        self.process = subprocess.Popen([*map(str, self.command), "--port", str(self.port), "--port-file", str(file)], stdout=subprocess.DEVNULL)
        deadline = Deadline(30)
        while not (file.exists() and file.read_text()):
            assert self.process.poll() is None and not deadline.passed(), "the reward server did not start"
            time.sleep(0.01)
        self.port = int(file.read_text())
        SERVICE_OF.pop(f"http://127.0.0.1:{self.port}", None)  # a service of an earlier test may have had its port
        self.url = f"{self.scheme}://127.0.0.1:{self.port}/get_reward"

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()


class SecureJudge(Judge):
    scheme = "https"

    def __init__(self, authority, name, names="IP:127.0.0.1", days=30):
        certificate, key = authority.certificate(name, names, days)
        folder = authority.folder / name
        super().__init__(folder, "reward_server.py", "--module", folder / "scores.py", "--certificate", certificate, "--key", key)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("authority") / "trusted")


@pytest.fixture(scope="module")
def judge(tmp_path_factory):
    made = Judge(tmp_path_factory.mktemp("judge") / "judge")
    yield made
    made.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, authority):
    flags = ["--reward-hosts", "127.0.0.1", "--reward-ca", authority.file]
    with Cluster(tmp_path_factory.mktemp("rewards") / "cluster", trainer=["--random-init", 1], coordinator=flags) as made:
        made.add_server("gen", "--slots", 16)
        yield made


def config(verifier, rounds=2, **more):
    return {**grpo_config(rounds, groups=4, samples=4), "start": "model", "verifier": verifier, **more}


def http(judge, **more):
    return {"kind": "http", "server": {"url": judge.url, **more}}


@pytest.fixture(scope="module")
def expected(cluster):
    """The weights that the same rewards by a built-in verifier lead to."""
    run = cluster.run(config({"kind": "regex", "pattern": "[0-4]"}))
    assert 0 < run["reward_mean"] < 1
    return digests(run)


def servers(run):
    return run["reward_servers"][0]


def test_a_server_is_worth_as_much_as_a_verifier(cluster, judge, expected):
    for shape, mode in (("openrlhf", "pipelined"), ("slime", "sync")):
        run = cluster.run(config(http(judge, shape=shape, batch=3) if shape == "openrlhf" else http(judge, shape=shape), mode=mode))
        assert digests(run) == expected, shape
        known = servers(run)
        assert (known["answered"], known["missed"], known["waiting"], known["breaker"], known["last_error"]) == (32, 0, 0, "closed", None)
        assert run["config"]["verifier"]["server"]["on_deadline"] == "fail"


def test_an_https_server_is_asked_only_under_a_trusted_certificate_of_its_host(cluster, judge, authority, expected, tmp_path):
    judge.mode("fine")
    trusted, late, other = SecureJudge(authority, "trusted"), SecureJudge(authority, "late", days=-1), SecureJudge(authority, "other", names="DNS:judge.example")
    stranger = SecureJudge(Authority(tmp_path / "stranger"), "stranger")
    plain = "https" + judge.url.removeprefix("http")
    try:
        run = cluster.run(config(http(trusted)))
        assert digests(run) == expected and servers(run)["answered"] == 32 and servers(run)["last_error"] is None
        terms = [{**http(one, concurrency=1), "weight": 1} for one in (late, other, stranger)] + [{"kind": "http", "server": {"url": plain}, "weight": 1}]
        run = cluster.create_run(config({"terms": terms}))
        cluster.wait_until("all of them were tried", lambda: [known["failures"] > 0 for known in cluster.status(run)["reward_servers"]] == [True] * 4)
        known = cluster.status(run)["reward_servers"]
        for one, what in zip(known, ("certificate has expired", "127.0.0.1", "unable to get local issuer certificate", "wrong version number")):
            assert what in one["last_error"] and (one["answered"], one["missed"]) == (0, 0), known
        assert all("its certificate is refused" in one["last_error"] and str(authority.file) in one["last_error"] for one in known[:3]), known
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
    finally:
        for one in (trusted, late, other, stranger):
            one.kill()


def test_slow_wrong_and_killed_servers_cost_time_only(cluster, judge, expected):
    judge.mode("wrong")
    run = cluster.create_run(config(http(judge, breaker_failures=2, breaker_ms=100)))
    cluster.wait_until("the server was asked and is of no use", lambda: (known := cluster.status(run)["reward_servers"]) and known[0]["failures"] > 1)
    last_error = servers(cluster.status(run))["last_error"]
    assert "answered with status 422: " in last_error and "ValueError" in last_error, last_error
    cluster.wait_until("the run says so", lambda: (status := cluster.status(run))["waiting_for"] and "ValueError" in status["waiting_for"])
    assert all(one["reward"] is None for one in call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/rollouts?round=0")["rollouts"])
    judge.kill()
    cluster.wait_until("it is left alone", lambda: servers(cluster.status(run))["breaker"] != "closed")
    told = rf"samples? waits? for the reward server {re.escape(judge.url)}, whose last request failed: .*"
    assert re.search("  rewards: [0-9]+ " + told, said(cluster, "run", "show", run))
    assert re.search(f"warn  run {run}: [0-9]+ " + told, said(cluster, "doctor"))
    judge.mode("slow")
    judge.start()
    done = cluster.wait(run)
    assert digests(done) == expected
    assert servers(done)["answered"] == 32 and all(row["exact"] for row in done["history"])


def test_a_killed_coordinator_asks_again_and_counts_once(cluster, judge, expected):
    judge.mode("few")
    run = cluster.create_run(config(http(judge, batch=1, concurrency=2)))
    cluster.wait_until("some rewards are in", lambda: cluster.query("SELECT count(*) FROM remote_rewards WHERE run = ? AND state = 1", int(run[1:]))[0][0] >= 5)
    cluster.coordinator.kill()
    stored = cluster.query("SELECT round, group_ordinal, sample, value, answered_ms FROM remote_rewards WHERE run = ? AND state = 1", int(run[1:]))
    assert cluster.query("SELECT count(*) FROM remote_rewards WHERE run = ? AND state = 0", int(run[1:]))[0][0] > 0
    cluster.coordinator.restart()
    judge.mode("fine")
    done = cluster.wait(run)
    assert digests(done) == expected and servers(done)["answered"] == 32
    now = cluster.query("SELECT round, group_ordinal, sample, value, answered_ms FROM remote_rewards WHERE run = ?", int(run[1:]))
    assert set(stored) <= set(now) and len(now) == 32


def test_what_a_server_chokes_on_delays_its_group_and_is_dropped(cluster, judge):
    judge.mode("poison")
    prompt = json.loads((ROOT / "deploy/demo/train.jsonl").read_text().split("\n")[1])["prompt"]
    (judge.folder / "scores.py").write_text(SCORES.replace("5+1+0*8=", prompt))
    judge.kill()
    judge.start()
    dataset = {"path": "train.jsonl", "shuffle": False}
    run = cluster.run(config(http(judge, retries=2, on_deadline="drop"), rounds=1, dataset=dataset))
    row = run["history"][0]
    assert row["groups"] == 3 and not row["exact"] and "not complete in time" in row["inexact_reason"]
    assert servers(run)["missed"] == 4 and servers(run)["answered"] == 12
    zero = cluster.run(config(http(judge, retries=1, on_deadline="zero"), rounds=1, dataset=dataset))
    row = zero["history"][0]
    assert row["groups"] == 4 and not row["exact"] and row["inexact_reason"].startswith("4 rewards were not answered in time")
    details = [one["detail"] for one in call("GET", f"{cluster.coordinator.url}/v1/runs/{zero['id']}/rollouts?round=0")["rollouts"] if one["prompt"] == prompt]
    assert details == ["http 0 (not answered in time)"] * 4


def test_a_deadline_may_pause_the_run(cluster, judge, expected):
    judge.kill()
    run = cluster.create_run(config(http(judge, retries=0, breaker_ms=60000, breaker_failures=1)))
    cluster.wait_until("the run is paused", lambda: cluster.status(run)["state"] == "paused")
    assert "no reward for 4 samples of group" in cluster.status(run)["error"]
    judge.mode("fine")
    judge.start()
    call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/resume")
    assert digests(cluster.wait(run)) == expected


def counted_ms(cluster, run):
    return cluster.query("SELECT rewards_counted_ms FROM runs WHERE id = ?", int(run[1:]))[0][0]


def test_a_deadline_goes_on_where_a_killed_coordinator_left_it(cluster, judge, expected):
    deadline_ms, before_ms = 6000, 5000  # beginning anew it would come to their sum
    judge.kill()
    run = cluster.create_run(config(http(judge, deadline_ms=deadline_ms)))
    cluster.wait_until("the deadline is near", lambda: counted_ms(cluster, run) >= before_ms)
    cluster.coordinator.kill()
    cluster.coordinator.restart()
    cluster.wait_until("the run is paused", lambda: cluster.status(run)["state"] == "paused")
    assert deadline_ms - 400 < counted_ms(cluster, run) < deadline_ms + before_ms - 450
    judge.mode("fine")
    judge.start()
    call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/resume")
    assert digests(cluster.wait(run)) == expected


@pytest.mark.long
def test_a_server_that_is_dead_for_a_minute_costs_a_minute(cluster, judge, expected):
    judge.mode("few")
    run = cluster.create_run(config(http(judge, batch=1, concurrency=2)))
    cluster.wait_until("some rewards are in", lambda: (known := cluster.status(run)["reward_servers"]) and known[0]["answered"] >= 3)
    judge.kill()
    time.sleep(30)
    assert servers(cluster.status(run))["breaker"] != "closed" and cluster.status(run)["state"] == "running"
    cluster.coordinator.kill()
    cluster.coordinator.restart()
    time.sleep(30)
    judge.mode("fine")
    judge.start()
    came_back = time.monotonic()
    done = cluster.wait(run)
    assert time.monotonic() - came_back < 60, "the server was left alone for too long"
    assert digests(done) == expected and all(row["exact"] for row in done["history"])
    assert (servers(done)["answered"], servers(done)["missed"]) == (32, 0)


def test_only_hosts_that_were_named_are_asked(cluster):
    with pytest.raises(HttpError) as refused:
        call("POST", cluster.coordinator.url + "/v1/runs", config({"kind": "http", "server": {"url": "http://localhost:1/"}}))
    error = refused.value.json()["error"]
    assert refused.value.status == 422 and error["field"] == "verifier.server.url" and "--reward-hosts localhost:1" in error["message"]
    with pytest.raises(HttpError) as refused:
        call("POST", cluster.coordinator.url + "/v1/verify", {"verifier": {"kind": "http", "server": {"url": "http://127.0.0.1:1/"}}, "samples": [{"completion": "1"}]})
    assert refused.value.status == 422 and refused.value.json()["error"]["field"] == "verifier.kind"


def test_code_runs_in_a_child_without_network_and_with_limits(tmp_path):
    judge = Judge(tmp_path / "code", "code_server.py", "--jobs", "4")
    try:
        def scores(*samples):
            queries = ["write f\n" + code for code, _ in samples]
            labels = [json.dumps({"answer": "", "tests": tests}) for _, tests in samples]
            return call("POST", judge.url, {"query": queries, "prompts": ["write f\n"] * len(samples), "labels": labels})["rewards"]

        dials = "import socket\ntry:\n    socket.create_connection(('127.0.0.1', %d), 1)\n    raise SystemExit(1)\nexcept ConnectionRefusedError:\n    raise SystemExit(1)\nexcept OSError:\n    pass" % judge.port
        assert scores(("```python\ndef f(x):\n    return x + 1\n```", ["assert f(1) == 2", "assert f(2) == 4"]),
                      ("print(sum(map(int, input().split())))", [{"input": "1 2", "output": "3"}, {"input": "2 2", "output": "4\n"}]),
                      ("import os\nos._exit(0)", ["assert False"]),
                      ("x = 'a' * (1 << 30)", ["pass"]),
                      (dials, ["pass"]),
                      ("import os\nos.kill(os.getppid() or %d, 9)" % judge.process.pid, ["pass"]),
                      ("import os\nos.kill(%d, 9)" % judge.process.pid, ["pass"])) == [0.5, 1, 0, 0, 1, 0, 0]
        with pytest.raises(HttpError) as refused:
            scores(("pass", []))
        assert refused.value.status == 422
    finally:
        judge.kill()
