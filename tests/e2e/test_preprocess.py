"""Preprocessors (trainer-server --role preprocess): the reference's log-probabilities of a run with a KL term, computed beside the training.

Whoever computes them, the weights are the same.  What would break: a preprocessor's numbers differ in a bit, a run waits for one that is gone, numbers of
other weights are trained on, or everything is left to the trainer.
"""
import contextlib
import json
import os
import signal
import sqlite3
import struct
import subprocess

import pytest

from harness import BIN, DATA, ROOT, Cluster, call, digests, exchange, grpo_config

ROUNDS, MANY_ROUNDS = 6, 24
QUICK = ["--heartbeat-ms", 100, "--worker-ttl-ms", 1500, "--batch-tokens", 700]  # small batches: many of them a round
PATIENT = ["--heartbeat-ms", 100, "--worker-ttl-ms", 60000, "--batch-tokens", 700]  # where a test is a preprocessor itself, which may come late
GRANTED, DONE = 1, 2  # passes.state
READY = "SELECT 1 FROM workers WHERE kind = 2 AND ready = 1"


def config(rounds=ROUNDS, groups=8, **changes):
    made = grpo_config(rounds, groups=groups, samples=4)
    made["training"].update(lr=0.001, kl_coefficient=0.2)
    made.update(changes)
    return made


def minibatch(**changes):
    return config(update="minibatch", groups_per_step=3, **changes)


def preprocessor(cluster, name, model, *args):
    return cluster.start(name, "trainer-server", ["--role", "preprocess", "--coordinator", cluster.coordinator.url, "--model", model, "--name", name, *args])


def play(folder, model, made, preprocessors=(), meanwhile=lambda cluster, run: None, trainer=(), slowly=False, coordinator=QUICK):
    """A run from its beginning to its end, with these preprocessors from the beginning on; its status.

    Slowly: its sampler is slow from before the run's beginning until meanwhile() has ended, which therefore finds the run going on.
    """
    with Cluster(folder, model=model, coordinator=coordinator, trainer=["--threads", 1, *trainer]) as cluster:
        sampler = cluster.add_server("gen-1", "--slots", 1, "--threads", 1)  # its groups end one after another, with time for a pass between
        for service in [preprocessor(cluster, name, model, "--threads", 1) for name in preprocessors]:
            service.wait_log("registered as w")
        with sampler.slowly() if slowly else contextlib.nullcontext():
            run = cluster.create_run(made)
            meanwhile(cluster, run)
        status = cluster.wait(run)
        assert cluster.query("SELECT kind, detail FROM incidents WHERE kind <> 'exactness'") == []
        assert all(row["exact"] for row in status["history"]), [row["inexact_reason"] for row in status["history"]]
        return status


def computed(status):
    """By preprocessors, and by the trainer, in each round."""
    return [(row["reference"]["by_preprocessors"], row["reference"]["by_trainer"]) for row in status["history"]]


@pytest.fixture(scope="module")
def expected(base_model, tmp_path_factory):
    """What runs end with that no preprocessor has seen, in mode sync."""
    folder = tmp_path_factory.mktemp("alone")
    many = play(folder / "many", base_model, config(MANY_ROUNDS, mode="sync"))
    strict = play(folder / "strict", base_model, config(mode="sync"))
    small = play(folder / "minibatch", base_model, minibatch(mode="sync"))
    assert computed(strict) == [(0, 8)] * ROUNDS
    assert len(set(digests(strict))) == ROUNDS and digests(strict) != digests(small)
    return {"strict": digests(strict), "minibatch": digests(small), "many": digests(many)}


@pytest.mark.parametrize("mode", ["pipelined", "sync"])
@pytest.mark.parametrize("names", [["pre-1"], ["pre-1", "pre-2"]], ids=["one", "two"])
def test_the_weights_do_not_depend_on_preprocessors(expected, base_model, tmp_path, mode, names):
    status = play(tmp_path, base_model, config(mode=mode), names)
    assert digests(status) == expected["strict"]
    assert sum(by for by, _ in computed(status)) >= 2 * ROUNDS, computed(status)


def test_inner_steps_take_the_same_groups(expected, base_model, tmp_path):
    status = play(tmp_path, base_model, minibatch(), ["pre-1"])
    assert digests(status) == expected["minibatch"]
    assert sum(by for by, _ in computed(status)) >= 2 * ROUNDS, computed(status)


def test_a_whole_rounds_advantages_are_those_of_all_its_groups(expected, base_model, tmp_path):
    """Groups whose passes are done before the round's last sample is in were trained on with their bare rewards as advantages."""
    made = config(mode="sync", advantage={"kind": "batch"})
    alone = play(tmp_path / "alone", base_model, made)
    status = play(tmp_path / "beside", base_model, made, ["pre-1"])
    assert digests(status) == digests(alone) != expected["strict"]
    assert sum(by for by, _ in computed(status)) >= 2 * ROUNDS, computed(status)


def test_other_kernels_compute_the_same(expected, base_model, tmp_path):
    def join(cluster, _):
        preprocessor(cluster, "pre-1", base_model, "--isa", "v2", "--threads", 2)
        cluster.wait_until("it holds the reference", lambda: cluster.query(READY))

    status = play(tmp_path, base_model, config(), (), join, slowly=True)
    assert digests(status) == expected["strict"]
    assert sum(by for by, _ in computed(status)) > 0, computed(status)


def test_preprocessors_are_killed_in_the_middle_of_a_pass(expected, base_model, tmp_path):
    """One by SIGKILL, one that stands still; others come in their places."""
    def end_both(cluster, _):
        for name, end in (("pre-1", lambda service: service.kill()), ("pre-2", lambda service: service.freeze())):
            service = next(s for s in cluster.services if s.name == name)
            worker = cluster.wait_until("it is registered", lambda name=name: cluster.query("SELECT id FROM workers WHERE name = ?", name))[0][0]
            cluster.wait_until("it has computed something", lambda worker=worker: cluster.query("SELECT 1 FROM passes WHERE worker = ? AND state = ?", worker, DONE))
            service.slow_down()  # its passes take so long that it is found in the middle of one, which the run waits for
            held = lambda worker=worker: cluster.query("SELECT 1 FROM passes JOIN groups ON groups.round = passes.round AND ordinal = group_ordinal WHERE worker = ? AND passes.state = ? AND groups.state = 1", worker, GRANTED)
            service.freeze_when("it is in the middle of a pass", held)
            end(service)
            service.halter.kill()  # what it left frozen stays so
            service.halter.wait()
            service.halter = None
        preprocessor(cluster, "pre-3", base_model, "--threads", 1)

    status = play(tmp_path, base_model, config(MANY_ROUNDS), ["pre-1", "pre-2"], end_both, slowly=True)
    assert digests(status) == expected["many"]


def test_every_role_is_killed_beside_preprocessors(expected, base_model, tmp_path):
    def kill(cluster, run):
        roles = {service.name: service for service in cluster.services}
        for name in ("coordinator", "pre-1", "trainer", "gen-1", "pre-1", "coordinator"):
            before = len(cluster.query("SELECT 1 FROM passes WHERE state = ?", DONE))
            cluster.wait_until("passes go on", lambda before=before: len(cluster.query("SELECT 1 FROM passes WHERE state = ?", DONE)) > before or cluster.status(run)["state"] == "completed")
            roles[name].kill()
            roles[name].restart()

    status = play(tmp_path, base_model, config(MANY_ROUNDS), ["pre-1"], kill)
    assert digests(status) == expected["many"]
    assert sum(by for by, _ in computed(status)) > 6, computed(status)


def test_one_that_joins_late_is_used(expected, base_model, tmp_path):
    def join(cluster, run):
        cluster.wait_until("a round is over", lambda: cluster.status(run)["history"])
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/pause")
        preprocessor(cluster, "pre-1", base_model, "--threads", 1)
        cluster.wait_until("it holds the reference", lambda: cluster.query(READY))
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/resume")

    status = play(tmp_path, base_model, config(MANY_ROUNDS), (), join, slowly=True)
    assert digests(status) == expected["many"]
    assert computed(status)[0] == (0, 8) and sum(by for by, _ in computed(status)) > 0, computed(status)


def test_one_that_leaves_gives_its_passes_back(expected, base_model, tmp_path):
    def leave(cluster, run):
        service = next(s for s in cluster.services if s.name == "pre-1")
        cluster.wait_until("it has computed something", lambda: cluster.query("SELECT 1 FROM passes WHERE state = ?", DONE))
        assert service.stop(signal.SIGTERM) == 0
        assert cluster.query("SELECT count(*) FROM workers WHERE kind = 2 AND live = 1") == [(0,)]

    status = play(tmp_path, base_model, config(), ["pre-1"], leave)
    assert digests(status) == expected["strict"]


def safetensors(metadata, trained, logprobs):
    data = struct.pack(f"<{len(trained)}i", *trained) + struct.pack(f"<{len(logprobs)}f", *logprobs)
    split = 4 * len(trained)
    head = json.dumps({
        "__metadata__": {"result": json.dumps(metadata)},
        "trained": {"dtype": "I32", "shape": [len(trained)], "data_offsets": [0, split]},
        "logprobs": {"dtype": "F32", "shape": [len(logprobs)], "data_offsets": [split, len(data)]},
    }).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


class Liar:
    """It holds the reference, it says, and computes nothing: every log-probability is -1."""

    def __init__(self, coordinator):
        self.url = coordinator.url + "/v1"
        answer = call("POST", self.url + "/workers", {"name": "liar", "kind": "preprocess", "url": "http://127.0.0.1:9", "slots": 0, "exactness": "invariant"})
        self.id, self.epoch = answer["worker_id"], answer["epoch"]

    def take(self):
        return call("POST", f"{self.url}/workers/{self.id}/passes", {"epoch": self.epoch, "groups_max": 1, "wait_ms": 2000})["passes"]

    def pretend(self, digest):
        beat = {"epoch": self.epoch, "ready": True, "draining": False, "loaded_digest": digest, "slots_busy": 0, "busy_slot_us": 0, "tokens_sampled": 0, "leases": []}
        call("POST", f"{self.url}/workers/{self.id}/heartbeat", beat)

    def leave(self):
        call("DELETE", f"{self.url}/workers/{self.id}")

    def put(self, item, digest):
        trained = [sum(s["count"] for s in sample["segments"] if s["loss_mask"]) for sample in item["samples"]]
        metadata = {"worker_id": self.id, "epoch": self.epoch, "fence": item["fence"], "weights_digest": digest, "handed_back": False, "samples": [sample["id"] for sample in item["samples"]]}
        status, _, content = exchange("PUT", f"{self.url}/passes/{item['pass_id']}/result", safetensors(metadata, trained, [-1.0] * sum(trained)), {"Content-Type": "application/octet-stream"})
        return status, json.loads(content)


def test_a_liar_about_one_bit_of_the_digest_is_refused(expected, base_model, tmp_path):
    refused = []

    def lie(cluster, run):
        liar = Liar(cluster.coordinator)
        while not refused:
            for item in liar.take():
                liar.pretend(item["weights_digest"])  # from now on groups wait for it
                digest = bytearray.fromhex(item["weights_digest"])
                digest[17] ^= 4
                code, answer = liar.put(item, digest.hex())
                assert code == 409, answer
                if answer["error"]["field"] == "weights_digest":  # else the trainer had taken the group before
                    refused.append(answer)
        liar.leave()  # or its passes would be waited for
        assert cluster.query("SELECT count(*) FROM passes WHERE logprobs NOT NULL") == [(0,)]

    status = play(tmp_path, base_model, config(), (), lie, slowly=True, coordinator=PATIENT)
    assert digests(status) == expected["strict"]
    assert computed(status) == [(0, 8)] * ROUNDS


def test_passes_overlap_training(expected, base_model, tmp_path):
    """Kernels that are slow enough for the timeline's milliseconds, and a round's batches one after the other."""
    spans = {}

    def look(cluster, run):
        cluster.wait(run)
        for worker in call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/timeline?round=0&limit=100")["workers"]:
            spans.setdefault(worker["kind"], []).extend(worker["intervals"])

    status = play(tmp_path, base_model, config(), ["pre-1"], look, trainer=["--isa", "v2"])
    assert digests(status) == expected["strict"]
    passes = [(begin, end) for cause, begin, end in spans["preprocess"] if cause == "logprob"]
    training = [(begin, end) for cause, begin, end in spans["trainer"] if cause in ("logprob", "compute", "step")]
    overlapping = sum(max(0, min(a[1], b[1]) - max(a[0], b[0])) for a in passes for b in training)
    assert passes and overlapping > 0, (passes[:5], training[:5])


@pytest.mark.long
def test_a_run_in_flight_is_replayed_with_and_without_what_they_computed(base_model, tmp_path):
    with Cluster(tmp_path / "cluster", model=base_model, coordinator=QUICK, trainer=["--threads", 1]) as cluster:
        cluster.add_server("gen-1", "--slots", 8, "--threads", 1)
        preprocessor(cluster, "pre-1", base_model, "--threads", 1)
        made = config(rounds=6, mode="inflight", max_lag=4)
        run = cluster.create_run(made)
        status = cluster.wait(run)
        assert sum(by for by, _ in computed(status)) > 0, computed(status)
    for kept in (True, False):
        if not kept:
            with sqlite3.connect(cluster.database) as database:
                database.execute("DELETE FROM passes")
        done = subprocess.run(
            [ROOT / "deploy/replay.sh", cluster.database, run, "--model", base_model], capture_output=True, text=True, timeout=180,
            env={**os.environ, "DATA_DIR": str(DATA), "BIN": str(BIN), "OUT": str(tmp_path / f"replay-{kept}")}, check=False)
        assert done.returncode == 0, done.stderr
        assert status["weights_digest"] in done.stdout + done.stderr, done.stdout
