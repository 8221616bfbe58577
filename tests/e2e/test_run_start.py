"""Where a run's weights come from: the model, what the trainer holds, or a checkpoint that is named; never, by accident, from what ran before."""
import json
import pathlib
import shutil
import subprocess

import pytest

from harness import BIN, DATA, SLOWLY, Cluster, HttpError, call, digests, grpo_config, warmup_config
from ranks import Ranks

ROUNDS = 2


def grpo(**changes):
    return {**grpo_config(ROUNDS, groups=4, samples=4), **changes}


def begun_with(cluster, run):
    """The digest of the run's version 0."""
    ((digest,),) = cluster.query("SELECT hex(digest) FROM versions WHERE run = ? AND version = 0", int(run[1:]))
    return digest.lower()


def refused(cluster, config):
    with pytest.raises(HttpError) as caught:
        cluster.create_run(config)
    assert caught.value.status == 422, caught.value
    return caught.value.json()["error"]


@pytest.fixture(scope="module")
def alone(base_model, tmp_path_factory):
    """The digests of a run that nothing ran before."""
    with Cluster(tmp_path_factory.mktemp("alone"), model=base_model) as cluster:
        cluster.add_server("gen", "--slots", 16)
        status = cluster.run(grpo())
        assert len(set(digests(status))) == ROUNDS
        return begun_with(cluster, "r1"), digests(status)


@pytest.fixture(scope="module")
def cluster(base_model, tmp_path_factory):
    """Two runs have ended here: some supervised rounds, then the run that `alone` is."""
    with Cluster(tmp_path_factory.mktemp("start"), model=base_model, trainer=["--keep-checkpoints", 1]) as made:
        made.add_server("gen", "--slots", 16)
        made.first, made.second = made.run(warmup_config(3)), made.run(grpo())
        yield made


def test_a_second_run_is_the_run_that_it_would_have_been_alone(cluster, alone):
    assert (begun_with(cluster, "r2"), digests(cluster.second)) == alone
    assert cluster.second["config"]["start"] == "model" == cluster.first["config"]["start"]


def test_an_evaluation_changes_nothing_and_current_goes_on(cluster):
    latest = cluster.folder / "state/latest"
    before = latest.read_text()
    evaluation = json.loads((DATA / "runs/evaluate.json").read_text())
    evaluation.update(groups_per_round=4, samples_per_group=1)
    assert refused(cluster, {**evaluation, "start": {"run": "r2", "version": 1}})["field"] == "start"
    status = cluster.run(evaluation)
    held = begun_with(cluster, status["id"])
    assert status["config"]["start"] == "current"
    assert latest.read_text() == before and not (cluster.folder / "state" / status["id"]).exists()
    following = cluster.run(grpo(start="current"))
    assert begun_with(cluster, following["id"]) == held
    assert digests(following) != digests(cluster.second)


def test_an_evaluation_of_a_checkpoint_or_the_model_leaves_the_trainer_holding_it(cluster, alone):
    evaluation = json.loads((DATA / "runs/evaluate.json").read_text())
    evaluation.update(groups_per_round=4, samples_per_group=1)
    latest = (cluster.folder / "state/latest").read_text()
    of_first = cluster.run({**evaluation, "start": {"run": "r1", "version": 3}})
    assert begun_with(cluster, of_first["id"]) == digests(cluster.first)[-1]
    of_model = cluster.run({**evaluation, "start": "model"})
    assert begun_with(cluster, of_model["id"]) == alone[0] == begun_with(cluster, "r2")
    assert of_model["weights_from"] == [] and (cluster.folder / "state/latest").read_text() == latest
    following = cluster.run(grpo(start="current"))
    assert (begun_with(cluster, following["id"]), digests(following)) == alone


def test_a_run_begins_with_the_checkpoint_that_it_names(cluster, alone):
    again = [cluster.run(grpo(start={"run": "r1", "version": 3})) for _ in range(2)]
    assert again[0]["config"]["start"] == {"run": "r1", "version": 3}
    assert {begun_with(cluster, status["id"]) for status in again} == {digests(cluster.first)[-1]}
    assert digests(again[0]) == digests(again[1]) != alone[1]
    zero = cluster.run(grpo(start={"run": "r2", "version": 0}))
    assert (begun_with(cluster, zero["id"]), digests(zero)) == alone


def test_a_checkpoint_that_a_queued_run_starts_from_stays_while_its_run_goes_on(base_model, tmp_path):
    """It was removed by the rounds that followed, and the queued run was paused in its turn and kept the trainer from those behind it."""
    made = grpo(rounds=12, keep_last=1)
    made["training"]["checkpoint_every"] = 1
    with Cluster(tmp_path, model=base_model, trainer=["--threads", 1]) as cluster:
        server = cluster.add_server("gen", "--slots", 16, SLOWLY)
        first = cluster.create_run(made)
        cluster.wait_until("some rounds", lambda: len(cluster.status(first)["history"]) >= 2)
        call("POST", f"{cluster.coordinator.url}/v1/runs/{first}/pause")  # so that no step is under way that has not heard of it
        server.hurry()
        cluster.wait_until("nothing is under way", lambda: cluster.query("SELECT 1 FROM rounds WHERE run = 1 GROUP BY run HAVING sum(state = 0) = 1 AND sum(finished = 0) = 1 AND NOT EXISTS (SELECT 1 FROM leases WHERE state = 0)"))
        second = cluster.create_run(grpo(start={"run": first, "version": "latest"}))
        call("POST", f"{cluster.coordinator.url}/v1/runs/{first}/resume")
        rounds, version = len(cluster.wait(first)["history"]), cluster.status(second)["config"]["start"]["version"]
        assert rounds == 12 and 0 < version < 12
        assert [kept["version"] for kept in cluster.status(first)["checkpoints"]] == [0, version, 12]
        assert cluster.wait(second)["weights_from"][0] == {"run": first, "version": version, "digest": digests(cluster.status(first))[version - 1]}


def keeps_one(rounds):
    made = grpo(rounds=rounds, keep_last=1)
    made["training"]["checkpoint_every"] = 1
    return made


@pytest.fixture(scope="module")
def held_trainer(tmp_path_factory):
    """A folder with a trainer that writes no checkpoint while `held` is there; one that would makes `waits`."""
    folder = tmp_path_factory.mktemp("held")
    source, library = pathlib.Path(__file__).with_name("held_checkpoint.c"), folder / "held_checkpoint.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    program = folder / "trainer-server"
    program.write_text(f'#!/bin/sh\nLD_PRELOAD={library} HELD=$PWD/held WAITS=$PWD/waits exec {BIN}/trainer-server "$@"\n')
    program.chmod(0o755)
    return folder


def hold_step(cluster, mode):
    """A run, with a step under way that is about to write its checkpoint; and what lets it."""
    cluster.server = cluster.add_server("gen", "--slots", 16)
    first = cluster.create_run({**keeps_one(1000), "mode": mode, "stage_timeout_ms": 600000})
    cluster.wait_until("some rounds", lambda: len(cluster.status(first)["history"]) >= 3)
    held = cluster.folder / "held"
    held.touch()
    cluster.wait_until("a step is about to write its checkpoint", (cluster.folder / "waits").exists)
    return first, held.unlink


@pytest.mark.parametrize("mode", ["pipelined", "inflight"])
def test_a_checkpoint_that_a_run_is_posted_for_outlives_the_step_under_way(base_model, tmp_path, held_trainer, mode):
    """The step had been sent before the run was posted, and removed the checkpoint: the run was paused in its turn, for good."""
    with Cluster(tmp_path, model=base_model, trainer=["--threads", 1], trainer_bin=held_trainer) as cluster:
        first, release = hold_step(cluster, mode)
        second = cluster.create_run(grpo(start={"run": first, "version": "latest"}))
        version = cluster.status(second)["config"]["start"]["version"]
        release()
        cluster.wait_until("more rounds", lambda: cluster.status(first)["version"] > version + 4)
        call("POST", f"{cluster.coordinator.url}/v1/runs/{first}/stop")
        assert cluster.wait(second)["weights_from"][0]["version"] == version


@pytest.mark.parametrize("frozen", ["trainer", "server"])
def test_what_a_step_under_way_leaves_unknown_is_to_be_asked_again(base_model, tmp_path, held_trainer, frozen):
    """A trainer that could not be asked removed the checkpoint all the same; and where it had removed the latest that was known, the post was refused for good."""
    with Cluster(tmp_path, model=base_model, trainer=["--threads", 1], trainer_bin=held_trainer) as cluster:
        first, release = hold_step(cluster, "pipelined")
        latest = grpo(start={"run": first, "version": "latest"})
        known = cluster.status(first)["checkpoints"][-1]["version"]
        if frozen == "trainer":
            cluster.trainer.freeze()
        else:
            cluster.server.freeze()  # it takes no push, so the step does not end
            release()
            cluster.wait_until("the checkpoint is replaced", lambda: not (tmp_path / "state" / first / f"v{known}").exists())
        with pytest.raises(HttpError) as caught:
            cluster.create_run(latest)
        error = caught.value.json()["error"]
        assert (caught.value.status, error["field"]) == (503, "start") and f"a step of run {first} is under way" in error["message"]
        if frozen == "trainer":
            cluster.trainer.thaw()
            release()
        else:
            cluster.server.thaw()
        cluster.wait_until("the next is known", lambda: cluster.status(first)["checkpoints"][-1]["version"] > known)
        call("POST", f"{cluster.coordinator.url}/v1/runs/{first}/stop")
        cluster.wait(first, state="stopped")
        assert cluster.status(cluster.create_run(latest))["config"]["start"]["version"] > known


@pytest.mark.parametrize(
    ("start", "field", "part"),
    [
        ("r1", "start", 'expected "model", "current" or'),
        ({"run": "r1"}, "start.version", "expected this field"),
        ({"run": "r999", "version": 0}, "start.run", "there is no run 'r999'"),
        ({"run": "base", "version": 0}, "start.run", "there is no run 'base'"),
        ({"run": "r1", "version": 4}, "start.version", "there is no version 4 of run r1"),
        ({"run": "r1", "version": "best"}, "start.version", "there is no best checkpoint of run r1: it keeps one by `keep_best`"),
        ({"run": "r1", "version": "newest"}, "start.version", "best"),
        ({"run": "r999", "version": "latest"}, "start.run", "there is no run 'r999'"),
        ({"run": "base", "version": "best"}, "start.run", "there is no run 'base'"),
        ({"run": "r1", "version": 1}, "start", "keeps no checkpoint of run r1, version 1"),
    ],
    ids=json.dumps,
)
def test_a_start_that_cannot_be_is_refused(cluster, start, field, part):
    error = refused(cluster, grpo(start=start))
    assert error["field"] == field and part in error["message"], error


@pytest.mark.parametrize("dies", [False, True])
def test_current_tells_of_a_version_that_the_trainer_has_lost(base_model, tmp_path, dies):
    """A run is stopped far from its last checkpoint; what it left goes with the trainer, and the next run says so."""
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.add_server("gen", "--slots", 16)
        long = grpo(rounds=1000)
        long["training"]["checkpoint_every"] = 1000
        run = cluster.create_run(long)
        cluster.wait_until("other weights", lambda: (now := cluster.status(run))["version"] and now["weights_digest"] != begun_with(cluster, run))
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
        cluster.wait_until("stopped", lambda: cluster.status(run)["state"] == "stopped")
        left = cluster.status(run)["version"]
        if dies:
            cluster.trainer.kill()
            cluster.trainer.restart()
        following = cluster.run(grpo(start="current"))
        held, = following["weights_from"]
        assert held["digest"] == begun_with(cluster, following["id"]) and (held["version"] < left) == dies
        said = [f"start: run {run} left version {left}, and this run began with version {held['version']} of {run}: the trainer has gone back to a checkpoint since"]
        assert following["warnings"] == (said if dies else [])
        evaluation = {**json.loads((DATA / "runs/evaluate.json").read_text()), "groups_per_round": 4, "samples_per_group": 1}
        assert [cluster.run({**evaluation, "start": start})["warnings"] for start in ("current", "model", "current")] == [[], [], []]


def test_a_trainer_killed_in_mid_run_takes_up_the_run_with_its_start(base_model, alone, tmp_path):
    """With its checkpoints, and with nothing but the model: both reach the bits of the run alone, though another run went before it."""
    with Cluster(tmp_path, model=base_model) as cluster:
        server = cluster.add_server("gen", "--slots", 16)
        cluster.run(warmup_config(1))
        server.slow_down()
        run = cluster.create_run({**grpo(), "rounds": ROUNDS + 2})
        for lost in (False, True):
            cluster.wait_until("a round further", lambda: len(cluster.status(run)["history"]) > lost)
            cluster.trainer.kill()
            if lost:
                shutil.rmtree(tmp_path / "state")
            cluster.trainer.restart()
        server.hurry()
        assert digests(cluster.wait(run))[:ROUNDS] == alone[1]
        assert begun_with(cluster, run) == alone[0]


@pytest.mark.long
def test_three_ranks_start_where_one_does(tmp_path):
    """Followers hold weights too; with a KL term a reference as well."""
    seen = []
    for name, launcher in (("one", None), ("three", Ranks(3))):
        with Cluster(tmp_path / name, trainer=["--random-init", 1], launcher=launcher) as cluster:
            assert call("GET", cluster.trainer.url + "/v1/model")["ranks"] == (3 if launcher else 1)
            made = warmup_config(2)
            made["training"]["kl_coefficient"] = 0.5
            first = warmup_config(3)
            first["training"]["checkpoint_every"] = 1
            cluster.run(first)
            cluster.run(made)
            cluster.run({**made, "start": {"run": "r1", "version": 2}})
            cluster.run({**made, "start": "current"})
            seen.append([(begun_with(cluster, f"r{n}"), digests(cluster.status(f"r{n}"))) for n in range(1, 5)])
    one, three = seen
    assert three == one
    assert one[1][0] == one[0][0] and one[2][0] == one[0][1][1] and one[3][0] == one[2][1][-1]
