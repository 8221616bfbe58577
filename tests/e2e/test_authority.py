"""The trainer takes messages of its own coordinator only, one trainer holds the place, and a run survives trouble: a refused message teaches nothing, a second
trainer stands by, a full disk under the checkpoints is waited out.

Every run here must end with the weights of an undisturbed one.
"""
import contextlib
import hashlib
import os
import re
import resource
import shutil
import subprocess
import time

import pytest

from harness import BIN, DATA, Cluster, Deadline, Service, call, digests, exchange, grpo_config
from hostile_peer import Peer

ROUNDS = 30
HUGE = 2**63 - 1
MODEL = ["--model", DATA / "model"]
TTL = ["--worker-ttl-ms", 3000, "--heartbeat-ms", 200]


def config():
    return grpo_config(ROUNDS, groups=2, samples=2)


def start(folder, coordinator=(), trainer=()):
    cluster = Cluster(folder, coordinator=coordinator, trainer=["--random-init", 1, *trainer])
    cluster.server = cluster.add_server("gen", "--slots", 4)
    cluster.authority()  # it has the place
    return cluster


@pytest.fixture(scope="module")
def wanted(tmp_path_factory):
    with start(tmp_path_factory.mktemp("undisturbed")) as cluster:
        return digests(cluster.run(config()))


def until(what, condition, seconds=30):
    deadline = Deadline(seconds)
    while not (value := condition()):
        assert not deadline.passed(), what
        time.sleep(0.02)
    return value


def begun(cluster):
    """A run that is in the middle, and stays there until its server is no longer slow."""
    cluster.server.slow_down()
    run = cluster.create_run(config())
    until("the run has begun", lambda: (cluster.status(run)["version"] or 0) >= 2)
    return run


def second_trainer(cluster, name, *args):
    return cluster.start(name, "trainer-server", ["--coordinator", cluster.coordinator.url, *MODEL, "--state-dir", cluster.folder / f"{name}-state", "--name", name, *args])


def roles(cluster):
    workers = call("GET", cluster.coordinator.url + "/v1/workers")["workers"]
    return {worker["name"]: worker["role"] for worker in workers if worker["kind"] == "trainer"}


def resume(cluster, run):
    return call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/resume")["state"]


# --- epochs ---


def open_request(run, epoch):
    training = {"objective": "grpo", "lr": 0.1, "temperature": 1, "chunk_tokens": 64}
    return {"run": run, "epoch": epoch, "fence": epoch, "seed": 1, "training": training}


def test_a_refused_message_with_a_huge_epoch_harms_no_run(tmp_path, wanted):
    with start(tmp_path) as cluster:
        run = begun(cluster)
        sample = {"id": "r9.0.0.0", "tokens": [48, 49, 256], "prompt_length": 2, "segments": [{"start": 0, "count": 1, "loss_mask": True}], "advantage": 1.0}
        head = {"run": "r9", "epoch": HUGE, "fence": HUGE, "version": 0}
        batch = {**head, "batch_id": "r9.0.b0", "groups": [{"id": "r9.0.0", "samples": [sample]}]}
        step = {**head, "step_id": "r9.0", "groups": ["r9.0.0"], "denominator": 1.0, "last": False, "stage_timeout_ms": 100, "push_to": []}
        for path, body in (("submit-batch", batch), ("submit-step", step), ("runs", open_request("r9", HUGE))):
            assert exchange("POST", f"{cluster.trainer.url}/v1/{path}", body)[0] == 409, path
        cluster.server.hurry()
        assert digests(cluster.wait(run)) == wanted
        cluster.trainer.kill()
        cluster.trainer.restart()
        cluster.run(grpo_config(1, groups=2, samples=2))


def test_a_state_directory_with_a_huge_epoch_goes_on(tmp_path):
    """As earlier versions left it when they had refused a message, or anybody had opened a run: the checkpoint says what nobody will ever reach."""
    state = tmp_path / "cluster/state"
    state.mkdir(parents=True)
    alone = Cluster.__new__(Cluster)
    alone.folder, alone.services = tmp_path, []
    with alone:
        trainer = Service(alone, "alone", "trainer-server", [*MODEL, "--random-init", 1, "--state-dir", state], BIN)
        alone.services.append(trainer)
        assert call("POST", trainer.url + "/v1/runs", open_request("r9", HUGE))["version"] == 0
        assert trainer.stop() == 0
    written = state / "r9/v0/trainer_state.json"
    text = re.sub(r'"(epoch|fence)":"\d+"', rf'"\1":"{HUGE}"', written.read_text())
    covered = text[: text.rindex(',"state_digest"')]
    written.write_text(f'{covered},"state_digest":"{hashlib.sha256(covered.encode()).hexdigest()}"}}')
    with start(tmp_path / "cluster") as cluster:
        assert len(cluster.run(grpo_config(2, groups=2, samples=2))["history"]) == 2


# --- the place ---


def test_a_second_trainer_stands_by_and_the_run_ends_as_if_it_were_not_there(tmp_path, wanted):
    garbage = Peer(lambda *_: (200, b"<html>it works</html>", "text/html"))
    with start(tmp_path) as cluster:
        run = begun(cluster)
        second_trainer(cluster, "another-model", "--random-init", 2)
        worker = {"name": "trainer", "kind": "trainer", "url": garbage.url, "slots": 0, "exactness": "invariant"}  # even the same name
        assert call("POST", cluster.coordinator.url + "/v1/workers", worker)["role"] == "standby"
        until("it stands by", lambda: roles(cluster).get("another-model") == "standby")
        cluster.server.hurry()
        assert digests(cluster.wait(run)) == wanted
        assert not garbage.asked
    garbage.close()


def test_a_restarted_trainer_has_its_place_at_once_under_another_name_and_address(tmp_path, wanted):
    with start(tmp_path, coordinator=["--worker-ttl-ms", 600000]) as cluster:
        second_trainer(cluster, "another-model", "--random-init", 2)
        run = begun(cluster)
        cluster.trainer.kill()
        args = [*cluster.trainer.args, "--name", "renamed"]
        cluster.trainer.restart(args=args, port=0)
        cluster.server.hurry()
        assert digests(cluster.wait(run)) == wanted
        assert roles(cluster) == {"renamed": "holder", "another-model": "standby"}


def test_a_standby_of_the_same_model_goes_on_with_the_run(tmp_path, wanted):
    with start(tmp_path, coordinator=TTL) as cluster:
        second_trainer(cluster, "second", "--random-init", 1)
        until("it stands by", lambda: roles(cluster).get("second") == "standby")
        run = begun(cluster)
        cluster.trainer.kill()
        cluster.server.hurry()
        assert digests(cluster.wait(run)) == wanted
        assert roles(cluster)["second"] == "holder"


def test_a_standby_of_another_model_pauses_the_run_and_the_first_goes_on(tmp_path, wanted):
    with start(tmp_path, coordinator=TTL) as cluster:
        wrong = second_trainer(cluster, "wrong", "--random-init", 2)
        until("it stands by", lambda: roles(cluster).get("wrong") == "standby")
        run = begun(cluster)
        cluster.trainer.kill()
        cluster.server.hurry()
        status = cluster.wait(run, state="paused")
        assert "other weights" in status["error"] and "resume" in status["error"], status["error"]
        cluster.trainer.restart()
        until("it stands by", lambda: roles(cluster).get("trainer") == "standby")
        wrong.kill()
        until("it has the place", lambda: roles(cluster).get("trainer") == "holder")
        assert cluster.status(run)["state"] == "paused"  # until somebody says so
        assert resume(cluster, run) == "running"
        assert digests(cluster.wait(run)) == wanted


def test_a_run_waits_for_a_trainer_that_is_gone(tmp_path, wanted):
    with start(tmp_path, coordinator=TTL) as cluster:
        run = begun(cluster)
        cluster.trainer.kill()
        cluster.server.hurry()
        status = until("it says so", lambda: (s := cluster.status(run))["waiting_for"] == "no trainer is registered" and s)
        assert status["state"] == "running" and status["error"] is None
        cluster.trainer.restart()
        assert digests(cluster.wait(run)) == wanted
        assert cluster.status(run)["waiting_for"] is None


# --- a full disk ---


@contextlib.contextmanager
def small_disk(folder, mib):
    """A file system of its own where this machine permits that; else None."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "none", folder]
    mounted = shutil.which("mount") and subprocess.run(command, capture_output=True).returncode == 0
    try:
        yield folder if mounted else None
    finally:
        if mounted:
            subprocess.run(["umount", "-l", folder], check=True)


def fill(disk, trainer):
    """No more room for a checkpoint; returns what makes room again."""
    if disk:
        filler = disk / "filler"
        with open(filler, "wb") as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 65536)
                file.flush()
        return filler.unlink
    _, hard = resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE)
    resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE, (60000, hard))  # below a checkpoint, above the log
    return lambda: resource.prlimit(trainer.process.pid, resource.RLIMIT_FSIZE, (hard, hard))


def test_a_full_disk_under_the_checkpoints_makes_the_run_wait(tmp_path, wanted):
    with small_disk(tmp_path / "disk", 24) as disk, start(tmp_path, trainer=["--state-dir", tmp_path / "disk/state"]) as cluster:
        run = begun(cluster)
        make_room = fill(disk, cluster.trainer)
        cluster.server.hurry()
        status = until("it waits", lambda: (s := cluster.status(run))["waiting_for"] and s)
        assert status["state"] == "running" and ("No space left" if disk else "too large") in status["waiting_for"], status["waiting_for"]
        until("nothing is left half written", lambda: not any(name.startswith(".partial") for name in os.listdir(tmp_path / "disk/state" / run)))
        assert len(cluster.query("SELECT detail FROM incidents WHERE kind = 'storage'")) == 1
        time.sleep(2.5)  # it tries again, in vain
        assert cluster.status(run)["version"] == status["version"]
        make_room()
        assert digests(cluster.wait(run)) == wanted
        assert cluster.status(run)["waiting_for"] is None


def test_a_run_that_waits_for_room_can_be_stopped_and_the_next_one_begins_when_there_is(tmp_path):
    with small_disk(tmp_path / "disk", 24) as disk, start(tmp_path, trainer=["--state-dir", tmp_path / "disk/state"]) as cluster:
        run = begun(cluster)
        make_room = fill(disk, cluster.trainer)
        cluster.server.hurry()
        until("it waits", lambda: cluster.status(run)["waiting_for"])
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
        cluster.wait(run, seconds=20, state="stopped")
        after = cluster.create_run(grpo_config(1, groups=2, samples=2))
        until("it waits too", lambda: cluster.status(after)["waiting_for"])
        make_room()
        cluster.wait(after, seconds=20)
