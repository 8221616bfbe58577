"""The rollout-agent over real services: a foreign engine samples for a run, and what it says about its weights is never simply believed.

The engine (foreign_engine.py) computes with our kernels, so the trainer agrees with every log-probability that came through: ids and numbers are carried
unchanged.  Its lies are told while a run goes on.
"""
import contextlib
import subprocess
import threading

import pytest

from foreign_engine import ForeignEngine
from harness import BIN, Cluster, call, digests, grpo_config
from mismatch import differences

ROUNDS = 3
REASON = "the engine of agent is not ours"


class Pool(Cluster):
    """A coordinator, a trainer, one foreign engine with its agent, and servers of ours where a test adds them."""

    def __init__(self, folder, base_model):
        super().__init__(folder, base_model, trainer=["--threads", 1])
        self.base_model = base_model
        self.stack = contextlib.ExitStack()

    def backend(self, name):
        return self.start(name, "generation-server", ["--model", self.base_model, "--slots", 8, "--threads", 1, "--context-max", 96, "--log-level", "warn"])

    def add_engine(self, wire, *args, checksums=True, name="agent"):
        self.engine = self.stack.enter_context(ForeignEngine(self.backend(f"{name}-backend").url, self.base_model, checksums))
        flags = ["--coordinator", self.coordinator.url, "--name", name, "--engine", wire, "--engine-url", self.engine.url, "--weights-dir", self.folder / "versions"]
        self.agent = self.start(name, "rollout-agent", [*flags, "--slots", 4, *args])
        return self.agent

    def agent_ready(self):
        with contextlib.suppress(Exception):
            return call("GET", self.agent.url + "/readyz")["status"] == "ready"
        return False

    def parts(self, run, round_):
        """Who sampled of a round."""
        rows = self.query("SELECT DISTINCT name FROM contributions JOIN workers ON workers.id = worker WHERE run = ? AND round = ?", int(run[1:]), round_)
        return {name for (name,) in rows}

    def metric(self, name):
        return self.agent.metric("leasehold_agent_" + name)

    def close(self):
        super().close()
        self.stack.close()


@pytest.fixture
def pool(tmp_path, base_model):
    with Pool(tmp_path, base_model) as made:
        yield made


def config(rounds=ROUNDS, **more):
    return {**grpo_config(rounds=rounds, groups=8, samples=4), **more}


def assert_not_ours(row):
    assert not row["exact"] and row["inexact_reason"] == REASON, row


@pytest.mark.parametrize("wire, checksums", [("vllm", True), ("vllm", False), ("sglang", True), ("sglang", False)])
def test_an_engine_of_others_samples_a_run(pool, wire, checksums):
    agent = pool.add_engine(wire, checksums=checksums)
    agent.wait_log("serving; ready once the engine is proven to hold a version")
    assert not pool.agent_ready()
    rounds = ROUNDS + 1
    status = pool.run(config(rounds))
    assert len(set(digests(status))) == rounds, "every round must change the weights, or a version could not be told from another"
    for row in status["history"]:
        assert_not_ours(row)
        assert row["logprob_unequal"] == 0 and row["logprob_max_abs_diff"] == 0, "it computes with our kernels"
    assert {w["name"]: w["exactness"] for w in call("GET", pool.coordinator.url + "/v1/workers")["workers"] if w["live"]}["agent"] == "foreign"
    assert pool.metric("loads_total") >= 2 and pool.metric("doubts_total") == 0 and pool.metric("proofs_total") > 0
    assert pool.metric("tokens_sampled_total") == sum(row["tokens"] for row in status["history"])
    pool.wait_until("a last load is over", lambda: not pool.engine.paused)
    assert "push of version" not in pool.trainer.log_text(), "nothing is pushed to an agent"
    kept = {path.name.partition("-")[0] for path in (pool.folder / "versions/agent").iterdir()}
    assert "r1.v0" not in kept and len(kept) <= 3, "old versions are removed"
    checks = {"vllm": "/weight_checker", "sglang": "/weights_checker"}[wire]
    assert (pool.engine.calls.count(checks) > 0) and pool.engine.calls.count({"vllm": "/weight_info", "sglang": "/model_info"}[wire]) > 0


def until_round(pool, run, rounds):
    pool.wait_until(f"{rounds} rounds are over", lambda: len(digests(pool.status(run))) >= rounds, 120)


@pytest.mark.parametrize("wire, checksums", [("sglang", True), ("vllm", False)])
def test_a_peer_that_lies_about_its_version_is_caught(pool, wire, checksums):
    """After the first round it says that it loads, and does not: it gets no lease, the run waits for a server that is honest, and its rounds are exact."""
    pool.add_engine(wire, checksums=checksums)
    pool.engine.slow_seconds = 0.05
    run = pool.create_run(config(rounds=4))
    until_round(pool, run, 1)
    pool.engine.deaf = True
    pool.agent.wait_log("the engine's weights are in doubt.*(its checksum is the one of the version before|gets the log-probabilities of the version before)")
    lied_at = len(digests(pool.status(run)))
    asked = len(pool.engine.requests)
    assert not pool.agent_ready() and pool.metric("engine_proven") == 0
    pool.add_server("gen", "--slots", 8, "--threads", 1)
    status = pool.wait(run)
    assert len(pool.engine.requests) == asked, "it was asked for samples of weights that it does not have"
    assert pool.metric("doubts_total") >= 1
    for row in status["history"]:
        assert row["logprob_unequal"] == 0
        if row["round"] < lied_at:
            assert_not_ours(row)
        else:
            assert row["exact"] and pool.parts(run, row["round"]) == {"gen"}, row
    pool.engine.deaf = False
    pool.wait_until("it is believed again", pool.agent_ready)


def test_an_engine_that_refuses_to_generate_holds_no_lease(pool):
    """Its weights are shown by checksums alone, which says nothing of its other routes: leases went to it and back for ever, and the run waited for nothing."""
    pool.add_engine("vllm")
    pool.engine.closed = True
    run = pool.create_run(config(rounds=1))
    pool.agent.wait_log("holds no lease: /inference/v1/generate: status 403: .*--enable-scale-out")
    pool.wait_until("the run says what it waits for", lambda: "has the weights" in (pool.status(run)["waiting_for"] or ""))
    assert not pool.agent_ready() and pool.status(run)["totals"]["leases_granted"] == 0
    pool.engine.closed = False
    pool.wait(run)


def test_an_engine_that_has_forgotten_its_weights_hands_back(pool):
    """It comes back with the weights that it began with, in the middle of a round: nothing of them is accepted."""
    pool.add_engine("vllm")
    pool.engine.slow_seconds = 0.2
    run = pool.create_run(config())
    until_round(pool, run, 1)
    asked = len(pool.engine.requests)
    pool.wait_until("requests of the next round run", lambda: len(pool.engine.requests) > asked)
    pool.engine.forget()
    status = pool.wait(run)
    assert pool.metric("doubts_total") >= 1 and pool.metric("results_handed_back_total") >= 1
    for row in status["history"]:
        assert_not_ours(row)
        assert row["logprob_unequal"] == 0, "tokens of the forgotten weights were accepted"


def test_an_engine_that_swaps_weights_behind_its_word_hands_back(pool):
    """Its word for its weights stays, its memory does not: only the proof after a request shows it."""
    pool.add_engine("sglang")
    pool.engine.slow_seconds = 0.2
    run = pool.create_run(config())
    until_round(pool, run, 1)
    asked = len(pool.engine.requests)
    pool.wait_until("requests of the next round run", lambda: len(pool.engine.requests) > asked)
    pool.engine.push(pool.engine.first)
    status = pool.wait(run)
    assert pool.metric("doubts_total") >= 1 and pool.metric("results_handed_back_total") >= 1
    assert pool.agent.wait_log("its checksum is another one")
    assert all(row["logprob_unequal"] == 0 for row in status["history"])


def test_an_engine_that_forgot_while_idle_is_asked_for_nothing(pool):
    """Its word is asked for before a request, so that none is made in vain; then it loads what it had."""
    pool.add_engine("sglang")
    pool.run(config(rounds=1))
    pool.wait_until("the last version is held", lambda: pool.metric("policy_version") == 1)
    pool.engine.forget()
    seen, asked = len(pool.engine.calls), len(pool.engine.requests)
    status = pool.run({**config(rounds=1), "start": "current"})
    calls = pool.engine.calls[seen:]
    assert len(pool.engine.requests) == asked + 32 and calls.index("/generate") > calls.index("/update_weights_from_disk"), calls
    assert status["history"][0]["logprob_unequal"] == 0


def test_an_engine_without_room_is_asked_again(pool):
    """429 puts nothing in doubt, and hands nothing back."""
    pool.add_engine("vllm")
    pool.engine.full = 6
    status = pool.run(config(rounds=1))
    assert status["history"][0]["logprob_unequal"] == 0
    assert pool.metric("doubts_total") == 0 and pool.metric("results_handed_back_total") == 0


def test_in_flight_the_agent_loads_between_two_requests(pool):
    """Never beside one: every token has the version that drew it, under which the trainer agrees."""
    pool.add_engine("sglang")
    pool.engine.slow_seconds = 0.1
    status = pool.run({**config(rounds=5), "mode": "inflight", "max_lag": 3})
    assert pool.metric("loads_total") >= 2 and pool.metric("doubts_total") == 0
    assert pool.engine.loaded_beside == 0
    for row in status["history"]:
        assert_not_ours(row)
        assert row["logprob_unequal"] == 0
    versions = {rollout["version"] for r in range(5) for rollout in call("GET", f"{pool.coordinator.url}/v1/runs/{status['id']}/rollouts?round={r}&limit=4096")["rollouts"]}
    assert len(versions) >= 2, versions


@pytest.mark.parametrize("checksums", [True, False])
def test_an_engine_that_lags_is_waited_for(pool, checksums):
    """It says at once that it has loaded, and has half a second later."""
    pool.add_engine("sglang", checksums=checksums)
    pool.engine.lag_seconds = 0.5
    status = pool.run(config())
    assert pool.metric("doubts_total") >= 1
    assert all(row["logprob_unequal"] == 0 for row in status["history"])


def test_an_engine_that_dies_and_comes_back(pool):
    pool.add_engine("vllm")
    pool.engine.slow_seconds = 0.2
    run = pool.create_run(config())
    until_round(pool, run, 1)
    pool.engine.close()
    pool.wait_until("it is missed", lambda: not pool.agent_ready())
    pool.engine.forget()
    pool.engine.open(pool.engine.port)
    status = pool.wait(run)
    assert all(row["logprob_unequal"] == 0 for row in status["history"])


def test_a_peer_that_keeps_two_sets_of_weights_shows_in_the_rounds(pool):
    """It proves one set, and samples from another: only the trainer's own pass sees that, and the rounds say it."""
    pool.add_engine("sglang")
    pool.engine.aside = pool.backend("aside").url
    status = pool.run(config())
    first, later = status["history"][0], status["history"][1:]
    assert first["logprob_unequal"] == 0, "the first version is what both sets are"
    for row in later:
        assert not row["exact"] and row["inexact_reason"].startswith(REASON + "; ") and "differ from the samplers'" in row["inexact_reason"], row
        assert row["logprob_unequal"] > 0 and row["logprob_max_abs_diff"] > 0
    d = differences(pool, status["id"], ROUNDS - 1)
    assert later[-1]["logprob_max_abs_diff"] == max(map(abs, d))


def test_an_agent_that_stops_hands_its_leases_back(pool):
    """SIGTERM cuts requests that would take minutes; a server of ours takes the leases at once."""
    pool.add_engine("vllm")
    pool.engine.slow_seconds = 120
    run = pool.create_run(config(rounds=1))
    pool.wait_until("requests run", lambda: len(pool.engine.requests) >= 4)
    assert pool.agent.stop(seconds=15) == 0
    pool.add_server("gen", "--slots", 8, "--threads", 1)
    status = pool.wait(run, seconds=60)
    assert status["history"][0]["exact"], "it had no part in what was trained on"


@pytest.mark.parametrize("sampling, why", [({"top_p": 0.9}, "leaves tokens out by top_p"), ({"stop": "7"}, "has stop texts")])
def test_what_an_engine_may_see_otherwise_is_refused(pool, sampling, why):
    """What it leaves out, and where it finds a text to end, need not be what the trainer and the coordinator do: such leases are for servers of ours."""
    pool.add_engine("vllm", "--slots", 2)
    made = config(rounds=1)
    made["sampling"].update(sampling)
    run = pool.create_run(made)
    pool.agent.wait_log(f"lease .* is handed back: .* {why}")
    assert not pool.engine.requests
    pool.add_server("gen", "--slots", 8)
    assert pool.wait(run)["history"][0]["exact"]


def test_log_probabilities_of_raw_logits_are_no_behaviour_at_another_temperature(pool):
    """vLLM's are, by default: such leases are refused for good, with the reason; told that they are processed, the agent takes them."""
    pool.add_engine("vllm", "--slots", 2)
    warm = config(rounds=1)
    warm["sampling"] = {**warm["sampling"], "temperature": 0.7}
    run = pool.create_run(warm)
    pool.agent.wait_log("lease .* is handed back: .* samples at temperature 0.69")
    pool.wait_until("the run says why nobody samples", lambda: "(agent) gets no leases" in (pool.status(run)["waiting_for"] or ""))
    assert "at temperature 0.69" in pool.status(run)["waiting_for"]
    assert not pool.engine.requests
    assert pool.agent.stop() == 0
    pool.agent.restart([*pool.agent.args, "--engine-logprobs", "processed"])
    assert pool.wait(run)["history"][0]["logprob_unequal"] == 0


def test_an_engine_is_not_left_paused_by_an_agent_that_stops(pool):
    """It was told to pause for a load, which SIGTERM cut; the call that goes on was cut too, and the engine served nobody until another agent came."""
    pool.add_engine("vllm")
    begun, goes_on = threading.Event(), threading.Event()
    load = pool.engine.load

    def slow_load(path):
        begun.set()
        goes_on.wait(20)
        load(path)

    pool.engine.load = slow_load
    pool.create_run(config())
    assert begun.wait(60) and pool.engine.paused
    assert pool.agent.stop() == 0
    goes_on.set()
    assert pool.engine.calls[-1] == "/resume" and not pool.engine.paused


def test_a_folder_that_is_named_from_the_agents_own_is_found_by_the_engine(pool):
    """An engine that is told `versions/agent/r1.v0` would look for it in its own folder."""
    pool.add_engine("sglang", "--weights-dir", "versions")
    pool.create_run(config(1))
    pool.wait_until("the engine is proven to hold it", pool.agent_ready)
    assert (pool.folder / "versions/agent").is_dir()


def test_an_address_that_no_engine_can_have_is_refused_at_the_start(tmp_path):
    """It began, was well, and had the engine in doubt for ever."""
    for url in ("127.0.0.1:8001", "engine", "ftp://127.0.0.1:8001", "http://"):
        command = [BIN / "rollout-agent", "--port", 0, "--coordinator", "http://127.0.0.1:1", "--engine-url", url, "--weights-dir", tmp_path]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 1 and "--engine-url: expected http://host:port" in done.stderr and url in done.stderr, done
