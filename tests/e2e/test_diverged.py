"""Weights under which log-probabilities are not finite: the run is paused and says so once nobody is left who draws finite ones, and one server alone that says so
is put aside.
"""
import pytest

from harness import DATA, HttpError, call, digests, grpo_config
from liar import incidents
from test_inflight_checks import quarantined
from test_overlap import FAST, PATIENT, start
from zombie import Zombie

GROUPS, SAMPLES = 3, 3
RANDOM = ["--random-init", 1]


def calm(**changes):
    made = grpo_config(3, groups=GROUPS, samples=SAMPLES)
    made.update(verifier={"kind": "regex", "pattern": "[0-9]"}, filter={"zero_advantage": "keep"}, lease_samples_max=1, **changes)
    made["sampling"]["max_new_tokens"] = 6
    return made


def decaying():
    """Nothing is rewarded, so there is no gradient that could be infinite and have the step skipped, but the decay makes matrices a million times as large with
    each step."""
    made = calm(mode="pipelined", rounds=8)
    made["verifier"]["pattern"] = "never this"
    made["training"].update(lr=1000, weight_decay=1000, kl_coefficient=0)
    return made


def diverging(mode):
    """Matrices are a million times as large and of the other sign after each step: they stay finite, and activations do not."""
    made = calm(mode=mode, rounds=20)
    made["training"] = {"chunk_tokens": 256, "objective": "reinforce", "lr": 1000, "weight_decay": 1000, "beta2": 0, "clip_norm": 1e12}
    made.update({"groups_per_round": 1} if mode == "inflight" else {"update": "minibatch", "groups_per_step": 1})
    return made


def paused(cluster, run):
    """Its status.  In flight the trainer may know before a sample is drawn from the version: it has others' to compute, and takes steps by them."""
    status = cluster.wait_until("the run is paused", lambda: (status := cluster.status(run))["state"] == "paused" and status)
    version = len(status["history"])
    error = status["error"]
    assert "training has diverged" in error and f'"start": {{"run": "{run}", "version": n' in error and "training.lr" in error, error
    if status["config"]["mode"] != "inflight":
        assert f"the weights of version {version} give log-probabilities that are not finite, in round {run}.{version}," in error, error
    assert quarantined(cluster, run) == []
    return status


def act(cluster, run, verb):
    return call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/{verb}")


def resume(cluster, run):
    """Until it has been running again."""
    running = "SELECT count(*) FROM events WHERE type = 'state' AND data LIKE '%running%'"
    (before,), = cluster.query(running)
    act(cluster, run, "resume")
    cluster.wait_until("it is resumed", lambda: cluster.query(running)[0][0] > before)


@pytest.mark.parametrize("servers", [1, 2])
@pytest.mark.parametrize("mode", ["pipelined", "inflight"])
def test_a_diverged_run_says_so_and_goes_on_from_before(tmp_path, mode, servers):
    with start(tmp_path, DATA / "model", trainer=RANDOM) as cluster:
        for i in range(servers):
            cluster.add_server(f"gen-{i}", *FAST)
        cluster.wait_registered()
        run = cluster.create_run(diverging(mode))
        paused(cluster, run)
        resume(cluster, run)  # to the same weights
        paused(cluster, run)
        goes_on_from_before(cluster, run, mode)


def goes_on_from_before(cluster, run, mode):
    act(cluster, run, "stop")
    cluster.wait(run, state="stopped")
    onward = cluster.create_run(calm(mode=mode, start={"run": run, "version": 0}))
    assert len(set(digests(cluster.wait(onward)))) == 3


@pytest.mark.parametrize("trainer", [[], ["--lean"]], ids=["whole", "lean"])
def test_weights_that_are_not_finite_are_not_published(tmp_path, trainer):
    """No server takes such a version, so the run waited for ever for one that had it."""
    with start(tmp_path, DATA / "model", trainer=[*RANDOM, *trainer]) as cluster:
        cluster.add_server("alone", *FAST)
        run = cluster.create_run(decaying())
        status = cluster.wait_until("the run is paused", lambda: (status := cluster.status(run))["state"] == "paused" and status)
        version = len(status["history"]) + 1
        assert f"training has diverged: in version {version} tensor model." in status["error"] and "training.lr" in status["error"]
        resume(cluster, run)
        again = cluster.wait_until("it is paused again", lambda: (status := cluster.status(run))["state"] == "paused" and status)
        assert again["error"] == status["error"] and len(again["history"]) == version - 1
        goes_on_from_before(cluster, run, "pipelined")


def not_finite(worker, lease, version=0, **changes):
    """A result that hands the lease back, with nothing drawn."""
    indices = range(lease["sample_first"], lease["sample_first"] + lease["sample_count"])
    samples = [{"sample": index, "token_ids": [], "logprobs": [], "finish_reason": "abort", "segments": [], "version_spans": []} for index in indices]
    head = {"worker_id": worker.id, "epoch": worker.epoch, "fence": lease["fence"], "loaded_digest": lease["weights_digest"], "handed_back": True}
    return {**head, "nonfinite_version": version, "samples": samples, **changes}


def first_lease(cluster, worker):
    def asked():
        worker.beat()
        return worker.take(slots_free=1)

    return cluster.wait_until(f"{worker.name} has a lease", asked)[0]


@pytest.mark.parametrize("checked", [True, False], ids=["checked", "believed"])
@pytest.mark.parametrize("mode", ["pipelined", "inflight"])
def test_one_server_that_draws_what_is_not_finite_is_put_aside(tmp_path, mode, checked):
    with start(tmp_path, DATA / "model", trainer=RANDOM, coordinator=PATIENT) as cluster:
        broken = Zombie(cluster.coordinator, "broken")
        Zombie(cluster.coordinator, "asleep")  # it could tell, and says nothing
        run = cluster.create_run(calm(mode=mode, verify_samples=checked))
        lease = first_lease(cluster, broken)
        assert [broken.post(lease, not_finite(broken, lease, **wrong)) for wrong in ({"version": 1}, {"handed_back": False})] == [422, 422]
        assert broken.post(lease, not_finite(broken, lease)) == 200
        assert incidents(cluster, "nonfinite") == [(lease["id"], f"{broken.id} (broken) drew log-probabilities that are not finite from version 0")]
        assert quarantined(cluster, run) == ["broken"] and broken.take(wait_ms=0) == []
        waits = cluster.wait_until("the run says what it waits for", lambda: broken.beat() and cluster.status(run)["waiting_for"])
        assert "only generation-servers in quarantine" in waits and "(broken) drew" in waits
        cluster.coordinator.kill()
        cluster.coordinator.restart()
        cluster.add_server("sound", *FAST)
        assert len(set(digests(cluster.wait(run)))) == 3
        assert quarantined(cluster, run) == ["broken"]


@pytest.mark.parametrize("mode", ["pipelined", "inflight"])
def test_two_servers_that_say_so_pause_the_run_though_the_coordinator_dies_in_between(tmp_path, mode):
    with start(tmp_path, DATA / "model", trainer=RANDOM, coordinator=PATIENT) as cluster:
        one, other = (Zombie(cluster.coordinator, name) for name in ("one", "other"))
        run = cluster.create_run(calm(mode=mode))
        lease = first_lease(cluster, one)
        assert one.post(lease, not_finite(one, lease)) == 200
        cluster.coordinator.kill()
        cluster.coordinator.restart()
        assert quarantined(cluster, run) == ["one"] and cluster.status(run)["state"] == "running"
        other.register()
        lease = first_lease(cluster, other)
        assert other.post(lease, not_finite(other, lease)) == 200
        status = cluster.status(run)
        assert status["state"] == "paused" and "version 0 give log-probabilities that are not finite" in status["error"] and "the model" in status["error"]
        assert quarantined(cluster, run) == []
        cluster.add_server("sound", *FAST)
        act(cluster, run, "resume")
        assert len(set(digests(cluster.wait(run)))) == 3
