"""A trainer of an inflight run, fed as a coordinator feeds it: batches bring behaviour log-probabilities, steps announce first.

Killed with SIGKILL at random moments and fed the record again, it ends with the digests of one that was left alone; and a server that takes a push and never
answers delays no step, nor costs more memory than was planned.
"""
import random
import socket
import time

import pytest

from harness import Cluster, Deadline, call
from ranks import Ranks
from test_memory import CONFIG, EPOCH, SMALL, Alone, ended, follows, held_to_its_plan, planned, sample, sizes

ROUNDS, KILLS = 8, 12
TRAINING = {"objective": "reinforce", "update": "inflight", "clip_low": 1, "clip_high": 4, "normalization": "samples", "lr": 1e-3, "chunk_tokens": 256, "checkpoint_every": 3}


@pytest.fixture
def alone(tmp_path):
    with Alone(tmp_path) as made:
        yield made


def groups_of(v, config, samples=4, length=24, groups=2):
    """A round's groups as they are on record."""
    made = []
    for g in range(groups):
        group = {"id": f"r1.{v}.{g}", "samples": [sample(f"r1.{v}.{g}.{i}", length, config["vocab_size"], salt=7 * v + 3 * g + i) for i in range(samples)]}
        for i, one in enumerate(group["samples"]):
            one["behaviour"] = [-0.03125 * ((31 * v + 17 * g + 5 * i + 3 * t) % 200) for t in range(length - 8)]
        made.append(group)
    return made


def open_run(trainer, recorded, **training):
    return call("POST", trainer.url + "/v1/runs", {"run": "r1", **EPOCH, "seed": 1, "current_version": recorded, "training": {**TRAINING, **training}})


def batch(v, groups):
    return {"batch_id": f"r1.{v}.b0", "run": "r1", **EPOCH, "version": v, "groups": groups}


def step(v, groups, push_to=(), stage_timeout_ms=100):
    return {
        "step_id": f"r1.{v}", "run": "r1", **EPOCH, "version": v, "groups": [group["id"] for group in groups], "denominator": float(sum(len(group["samples"]) for group in groups)),
        "last": False, "announce_first": True, "stage_timeout_ms": stage_timeout_ms, "push_to": list(push_to),
    }


def play(trainer, v, groups, **how):
    call("POST", trainer.url + "/v1/submit-batch", batch(v, groups))
    ended(f"{trainer.url}/v1/batches/r1.{v}.b0")
    call("POST", trainer.url + "/v1/submit-step", step(v, groups, **how))
    return ended(f"{trainer.url}/v1/steps/r1.{v}")


def test_a_killed_trainer_that_is_fed_the_record_reaches_the_recorded_digests(alone):
    left_alone = alone.trainer("left-alone", SMALL, "--chunk-tokens", 256)
    open_run(left_alone, 0)
    recorded = [play(left_alone, v, groups_of(v, SMALL))["digest"] for v in range(ROUNDS)]
    trainer = alone.trainer("killed", SMALL, "--chunk-tokens", 256)
    moments = random.Random(14)
    open_run(trainer, 0)
    v = reached = kills = 0
    while v < ROUNDS:
        groups = groups_of(v, SMALL)
        dies = kills < KILLS and moments.random() < 0.7
        in_step = moments.random() < 0.5
        call("POST", trainer.url + "/v1/submit-batch", batch(v, groups))
        if not dies or in_step:
            ended(f"{trainer.url}/v1/batches/r1.{v}.b0")
            call("POST", trainer.url + "/v1/submit-step", step(v, groups))
        if dies:
            time.sleep(moments.random() * 0.03)
            trainer.kill()
            trainer.restart()
            kills += 1
            v = open_run(trainer, reached)["version"]
            continue
        assert ended(f"{trainer.url}/v1/steps/r1.{v}")["digest"] == recorded[v], v
        v += 1
        reached = max(reached, v)
    assert kills == KILLS
    assert call("GET", trainer.url + "/v1/model")["digest"] == recorded[-1]


def rounds_by_ranks(folder, launcher=None):
    with Cluster(folder, trainer=["--random-init", 1], launcher=launcher) as cluster:
        url, authority, said = cluster.trainer.url, cluster.authority(), []
        call("POST", url + "/v1/runs", {"run": "r1", **authority, "seed": 1, "training": TRAINING})
        for v in range(3):
            groups = groups_of(v, {"vocab_size": 32}, groups=3)
            call("POST", url + "/v1/submit-batch", {**batch(v, groups), **authority})
            answer = ended(f"{url}/v1/batches/r1.{v}.b0")
            stats = {name: value for name, value in answer["stats"].items() if not name.endswith("_us")}
            assert stats["ratio_sum"] != stats["tokens"] and stats["kl_new_old"] > 0
            call("POST", url + "/v1/submit-step", {**step(v, groups), **authority})
            said.append((stats, answer["logprobs_sha256"], ended(f"{url}/v1/steps/r1.{v}")["digest"]))
        return said


def test_ranks_share_the_record_and_give_the_bits_of_one(tmp_path):
    alone, shared = rounds_by_ranks(tmp_path / "one"), rounds_by_ranks(tmp_path / "two", Ranks(2))
    assert len({digest for *_, digest in alone}) == 3
    assert shared == alone


class Deaf:
    """A server that takes connections and never reads or answers."""

    def __init__(self, name):
        self.socket = socket.socket()
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.listen(16)
        self.target = {"worker_id": name, "url": f"http://127.0.0.1:{self.socket.getsockname()[1]}"}


def test_pushes_that_hang_delay_no_step_and_cost_what_is_planned(alone):
    """Two servers hang, each with another version, while six more versions are made."""
    tiny = alone.trainer("tiny", SMALL, "--chunk-tokens", 64)
    trainer = alone.trainer("trainer", CONFIG, "--chunk-tokens", 1024)
    first, second = Deaf("w1"), Deaf("w2")
    open_run(trainer, 0, checkpoint_every=1000, chunk_tokens=1024)
    deadline = Deadline(60)
    for v in range(8):
        servers = [first, second] if v else [first]
        play(trainer, v, groups_of(v, CONFIG, samples=8, length=120, groups=1), push_to=[server.target for server in servers], stage_timeout_ms=120000)
    assert not deadline.passed()
    assert len(call("GET", trainer.url + "/v1/weights/8", raw=True)) > 0
    follows(planned(trainer), {"published versions": 4 * sizes(CONFIG)[-1], "versions being pushed": 6 * sizes(CONFIG)[-1]})
    held_to_its_plan(trainer, tiny)
