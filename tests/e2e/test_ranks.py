"""One trainer of several processes: the bits of one, whatever the number of ranks, whichever of them dies, and however many go on from a checkpoint.

The ranks are real processes under mpirun.  What must not depend on them is compared with a plain trainer-server: digests, norms and rates after every
round, and the checkpoint's files byte for byte.  Mutants spoil one rank.
"""
import contextlib
import json
import os
import re
import signal
import subprocess

import pytest

from authority import Authority, Tls
from harness import DATA, FAULT_BIN, Cluster, HttpError, call, digests, grpo_config, warmup_config
from ranks import Ranks, rank_pids

ROUNDS = 4
SUPERVISED_ROUNDS = 6
SILENCE = ["--rank-silence-ms", 2000]


def history(status):
    return [(row["digest"], row["grad_norm"], row["lr"], row["tokens"]) for row in status["history"]]


def checkpoint(cluster, run, version):
    folder = cluster.folder / "state" / run / f"v{version}"
    return {name: (folder / name).read_bytes() for name in ("model.safetensors", "optimizer.safetensors")}


class Played:
    def __init__(self, cluster, run, status):
        self.history = history(status)
        self.digests = digests(status)
        self.unequal = status["totals"]["logprob_unequal"]
        self.exact = all(row["exact"] for row in status["history"])
        self.checkpoint = checkpoint(cluster, run, len(self.digests))


def assert_same(played, reference):
    assert played.digests == reference.digests
    assert played.history == reference.history
    assert played.unequal == 0 and played.exact
    assert played.checkpoint == reference.checkpoint


def grpo():
    """With a reference for the KL term, and a checkpoint every other round."""
    made = grpo_config(ROUNDS)
    made["training"]["checkpoint_every"] = 2
    assert made["training"]["kl_coefficient"] > 0
    return made


def play_grpo(folder, model, launcher=None):
    with Cluster(folder, model=model, launcher=launcher) as cluster:
        cluster.add_server("alone", "--slots", 16)
        run = cluster.create_run(grpo())
        return Played(cluster, run, cluster.wait(run))


@pytest.fixture(scope="module")
def reference(base_model, tmp_path_factory):
    played = play_grpo(tmp_path_factory.mktemp("one"), base_model)
    assert len(set(played.digests)) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
    return played


@pytest.mark.parametrize("count", [1, 2, 4])
def test_so_many_ranks_give_the_same_bits_after_every_round(base_model, reference, tmp_path, count):
    with Cluster(tmp_path, model=base_model, launcher=Ranks(count)) as cluster:
        cluster.add_server("alone", "--slots", 16)
        assert call("GET", cluster.trainer.url + "/v1/model")["ranks"] == count
        assert cluster.trainer.metric("leasehold_trainer_ranks") == count
        assert len(rank_pids(cluster.trainer.process.pid)) == count
        run = cluster.create_run(grpo())
        played = Played(cluster, run, cluster.wait(run))
    assert_same(played, reference)


@pytest.mark.parametrize("faults", [{1: "double-batch"}, {1: "flip-gradient"}, {3: "short-shard"}], ids=lambda f: next(iter(f.values())))
def test_a_spoilt_rank_is_seen(base_model, reference, tmp_path, faults):
    """One rank's units count twice, one bit of one rank's gradient is flipped, one rank's shard ends a block early."""
    played = play_grpo(tmp_path, base_model, Ranks(2 if 1 in faults else 4, faults))
    assert len(played.digests) == ROUNDS and played.digests != reference.digests


def test_a_rank_with_other_weights_ends_the_job(base_model, reference, tmp_path):
    """One bit of one weight of one rank: the ranks compare digests before a version is anybody's.  The next life ends with the right bits."""
    with Cluster(tmp_path, model=base_model, launcher=Ranks(2, {1: "flip-weight"})) as cluster:
        cluster.add_server("alone", "--slots", 16)
        run = cluster.create_run(grpo())
        assert cluster.trainer.wait_end(60) != 0
        assert "the weights of rank 1 have digest " in cluster.trainer.log_text()
        cluster.trainer.launcher = Ranks(2)
        cluster.trainer.restart()
        played = Played(cluster, run, cluster.wait(run))
    assert_same(played, reference)


# ---- straight to the trainer ----


def poisoned_rounds(folder, launcher=None):
    """Three rounds by hand; in the second one, one group's gradient overflows: of two ranks it is the other one's.  What the trainer says of each."""
    with Cluster(folder, trainer=["--random-init", 1], launcher=launcher) as cluster:
        url = cluster.trainer.url + "/v1"
        authority = {"run": "r1", **cluster.authority()}
        call("POST", url + "/runs", {**authority, "seed": 1, "training": {"lr": 0.01, "kl_coefficient": 0}})
        said = []
        for version in range(3):
            groups = [group(f"r1.{version}.{g}", 1e30 if (version, g) == (1, 1) else 1 - g) for g in range(3)]
            call("POST", url + "/submit-batch", {**authority, "batch_id": f"r1.{version}.b0", "version": version, "groups": groups})
            batch = call("GET", f"{url}/batches/r1.{version}.b0?wait_ms=60000")
            step = {"step_id": f"r1.{version}", "version": version, "groups": [g["id"] for g in groups], "denominator": 12.0, "push_to": []}
            call("POST", url + "/submit-step", {**authority, **step, "last": False, "stage_timeout_ms": 1000})
            step = call("GET", f"{url}/steps/r1.{version}?wait_ms=60000")
            stats = {name: value for name, value in batch["stats"].items() if not name.endswith("_us")}
            said.append((stats, batch["logprobs_sha256"], step["digest"], step["grad_norm"], step["skipped"]))
        return said


def group(name, advantage):
    tokens = list(range(len(name), len(name) + 6 + int(name[-1])))
    sample = {"tokens": tokens, "prompt_length": 2, "segments": [{"start": 0, "count": len(tokens) - 2, "loss_mask": True}]}
    return {"id": name, "samples": [{**sample, "id": f"{name}.{i}", "advantage": advantage * (-1) ** i} for i in range(2)]}


def test_one_ranks_poison_skips_the_step_on_all(tmp_path):
    alone, shared = poisoned_rounds(tmp_path / "one"), poisoned_rounds(tmp_path / "two", Ranks(2))
    assert [skipped for *_, skipped in alone] == [False, True, False]
    assert [stats["poisoned"] for stats, *_ in alone] == [False, True, False]
    assert shared == alone


def cut_batch(folder, launcher=None):
    """In flight a version's own cut may leave out a token that an older one drew: its log-probability is -infinity.  What the trainer says of such a batch."""
    with Cluster(folder, trainer=["--random-init", 1], launcher=launcher) as cluster:
        url = cluster.trainer.url + "/v1"
        authority = {"run": "r1", **cluster.authority()}
        call("POST", url + "/runs", {**authority, "seed": 1, "training": {"update": "inflight", "top_k": 5, "kl_coefficient": 0}})
        groups = [group(f"r1.0.{g}", 1) for g in range(3)]
        for sample in (sample for each in groups for sample in each["samples"]):
            sample["behaviour"] = [-1.0] * sample["segments"][0]["count"]
        call("POST", url + "/submit-batch", {**authority, "batch_id": "r1.0.b0", "version": 0, "groups": groups})
        batch = call("GET", f"{url}/batches/r1.0.b0?wait_ms=60000")
        assert batch["state"] == "done", batch["error"]
        stats = {name: value for name, value in batch["stats"].items() if not name.endswith("_us")}
        return stats, batch["samples"], batch["logprobs_sha256"]


def test_a_log_probability_that_is_not_finite_is_told_by_every_rank(tmp_path):
    alone, shared = cut_batch(tmp_path / "one"), cut_batch(tmp_path / "two", Ranks(2))
    assert all(None in sample["logprobs"] for sample in alone[1][2:4]), "of the group that the other rank computes"
    assert shared == alone


# ---- a rank dies ----


@pytest.mark.parametrize(
    "faults",
    [{1: "die-in-batch"}, {1: "die-before-step"}, {0: "die-in-checkpoint"}],
    ids=lambda f: "-".join(map(str, *f.items())),
)
def test_a_rank_killed_at_the_worst_moment(base_model, reference, tmp_path, faults):
    """The rank dies by SIGKILL; the launcher ends the others; started again, the job replays what is logged, and ends with the same bits."""
    with Cluster(tmp_path, model=base_model, launcher=Ranks(2, faults)) as cluster:
        cluster.add_server("alone", "--slots", 16)
        run = cluster.create_run(grpo())
        assert cluster.trainer.wait_end(60) != 0
        (fault,) = faults.values()
        assert "fault: " + fault in cluster.trainer.log_text()
        status = cluster.status(run)
        assert status["state"] == "running" and 0 < status["round"] < ROUNDS
        cluster.trainer.launcher = Ranks(2)
        cluster.trainer.restart()
        played = Played(cluster, run, cluster.wait(run))
    assert_same(played, reference)


@pytest.mark.parametrize(("victim", "how"), [(1, signal.SIGKILL), (0, signal.SIGSTOP)], ids=["dead", "frozen"])
def test_ranks_find_a_lost_one_by_themselves(tmp_path, victim, how):
    """The launcher looks away.  The others end, and say who is silent, within --rank-silence-ms and a pulse."""
    with Cluster(tmp_path, trainer=["--random-init", 1], launcher=Ranks(3, blind=True, flags=SILENCE)) as cluster:
        cluster.run(warmup_config(2))
        pids = rank_pids(cluster.trainer.process.pid)
        os.kill(pids[victim], how)
        for rank in {0, 1, 2} - {victim}:
            cluster.wait_until(f"rank {rank} ends", lambda: not alive(pids[rank]), seconds=20)
        assert f"rank {victim} of 3 has been silent for 2000 ms" in cluster.trainer.log_text()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[victim], signal.SIGKILL)
        cluster.trainer.wait_end()


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_launcher_killed(tmp_path):
    with Cluster(tmp_path, trainer=["--random-init", 1], launcher=Ranks(2)) as cluster:
        cluster.run(warmup_config(1))
        pids = rank_pids(cluster.trainer.process.pid)
        cluster.trainer.kill()
        cluster.wait_until("no rank is left", lambda: not any(map(alive, pids.values())), seconds=20)
        cluster.trainer.restart()
        cluster.run(warmup_config(1))


@pytest.mark.parametrize("asked", [0, 1])
def test_a_rank_that_is_asked_to_stop_ends_the_job_in_order(tmp_path, asked):
    with Cluster(tmp_path, trainer=["--random-init", 1], launcher=Ranks(2)) as cluster:
        cluster.run(warmup_config(1))
        os.kill(rank_pids(cluster.trainer.process.pid)[asked], signal.SIGTERM)
        assert cluster.trainer.wait_end() == 0, cluster.trainer.log_text()
        assert "silent" not in cluster.trainer.log_text() and "gave up" not in cluster.trainer.log_text()


# ---- a larger model: every rank has a shard ----


def wide_model(folder, hidden=120, ffn=360):
    """Six blocks of the norm, the last one short, and tensors that lie across their bounds."""
    target = folder / "model"
    target.mkdir()
    for name in ("tokenizer.json", "generation_config.json"):
        (target / name).write_bytes((DATA / "model" / name).read_bytes())
    sizes = json.loads((DATA / "model/config.json").read_text())
    sizes.update(hidden_size=hidden, intermediate_size=ffn)
    (target / "config.json").write_text(json.dumps(sizes))
    return target


def supervised():
    made = warmup_config(SUPERVISED_ROUNDS)
    made.update(groups_per_round=5, samples_per_group=4)
    made["training"]["checkpoint_every"] = 1
    return made


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    return wide_model(tmp_path_factory.mktemp("wide"))


@pytest.fixture(scope="module")
def supervised_reference(wide, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("wide-one"), model=wide, trainer=["--random-init", 1]) as cluster:
        run = cluster.create_run(supervised())
        return Played(cluster, run, cluster.wait(run))


@pytest.mark.parametrize("count", [2, 4])
def test_every_rank_has_a_shard(wide, supervised_reference, tmp_path, count):
    with Cluster(tmp_path, model=wide, trainer=["--random-init", 1], launcher=Ranks(count)) as cluster:
        run = cluster.create_run(supervised())
        played = Played(cluster, run, cluster.wait(run))
    assert_same(played, supervised_reference)


def test_a_checkpoint_of_so_many_ranks_goes_on_with_others(wide, supervised_reference, tmp_path):
    """Killed in every second round, and started with another number of ranks: four, one, three, and a plain trainer-server at the end."""
    with Cluster(tmp_path, model=wide, trainer=["--random-init", 1], launcher=Ranks(4)) as cluster:
        made = supervised()
        run = cluster.create_run(made)
        for number, launcher in enumerate([Ranks(1), Ranks(3), None]):
            cluster.wait_until("a round further", lambda: (cluster.status(run)["round"] or 0) >= 2 * number + 1)
            kill_ranks(cluster.trainer)
            cluster.trainer.launcher = launcher
            cluster.trainer.restart()
        played = Played(cluster, run, cluster.wait(run))
    assert_same(played, supervised_reference)


def kill_ranks(trainer):
    for pid in rank_pids(trainer.process.pid).values():
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert trainer.wait_end() != 0


# ---- several steps a round, straight to the trainer ----

STEP_SIZES = [[2, 2, 0], [2, 2, 1], [3, 1, 1]]  # groups of each version's two inner steps, and of its own


class Minibatches:
    """Rounds by hand: batches and steps in their order, and what the trainer says of each."""

    def __init__(self, cluster, **training):
        self.cluster = cluster
        self.training = {"lr": 0.05, "kl_coefficient": 0.1, "update": "minibatch", **training}
        self.open()

    def open(self, **more):
        self.url = self.cluster.trainer.url + "/v1"
        self.authority = {"run": "r1", **self.cluster.authority()}
        return call("POST", self.url + "/runs", {**self.authority, "seed": 1, "training": self.training, **more})["version"]

    def round(self, version):
        said, first = [], 0
        for after, size in enumerate(STEP_SIZES[version]):
            groups = [group(f"r1.{version}.{g}", 1 - g % 3) for g in range(first, first + size)]
            first += size
            said += [self.batch(f"r1.{version}.b{after}", version, after, groups)] if groups else []
            said.append(self.step(f"r1.{version}" + (f".s{after}" if after < 2 else ""), version, after, groups))
        return said

    def batch(self, name, version, after, groups):
        call("POST", self.url + "/submit-batch", {**self.authority, "batch_id": name, "version": version, "after_steps": after, "groups": groups})
        status = call("GET", f"{self.url}/batches/{name}?wait_ms=60000")
        assert status["state"] == "done", status["error"]
        return {key: value for key, value in status["stats"].items() if not key.endswith("_us")}, status["logprobs_sha256"]

    def step(self, name, version, after, groups):
        tokens = sum(len(sample["tokens"]) - 2 for g in groups for sample in g["samples"])
        step = {"step_id": name, "version": version, "groups": [g["id"] for g in groups], "denominator": tokens, "push_to": []}
        step.update(inner=after < 2, after_steps=after, last=False, stage_timeout_ms=1000)
        call("POST", self.url + "/submit-step", {**self.authority, **step})
        status = call("GET", f"{self.url}/steps/{name}?wait_ms=60000")
        assert status["state"] == "done", status["error"]
        return status["version"], status["digest"], status["grad_norm"], status["lr"], status["skipped"]


def minibatches(folder, model, launcher=None, flags=("--random-init", 1), trainer_bin=None, **training):
    with Cluster(folder, model=model, trainer=flags, launcher=launcher, trainer_bin=trainer_bin) as cluster:
        rounds = Minibatches(cluster, **training)
        return [rounds.round(version) for version in range(len(STEP_SIZES))]


def assert_each_step_moves(said):
    steps = [step for played in said for step in played if len(step) == 5]
    assert len({digest for _, digest, *_ in steps}) == sum(size > 0 for sizes in STEP_SIZES for size in sizes) and not any(skipped for *_, skipped in steps)
    assert said[1][2][0]["difference_new_old"] > 0


@pytest.fixture(scope="module")
def minibatch_reference(wide, tmp_path_factory):
    said = minibatches(tmp_path_factory.mktemp("minibatch-one"), wide)
    assert_each_step_moves(said)
    return said


@pytest.mark.parametrize("count", [2, 3])
def test_inner_steps_of_several_ranks_are_those_of_one(wide, minibatch_reference, tmp_path, count):
    """Every rank keeps the weights that sampled the round: sums, log-probabilities and weights after each step."""
    assert minibatches(tmp_path, wide, Ranks(count)) == minibatch_reference


def test_a_check_after_an_inner_step_is_of_the_version_on_every_rank(wide, tmp_path):
    """Whichever rank computes a group draws it with the weights that sampled it: they accuse no honest server."""

    def checked(name):
        groups = [{**group(f"r1.0.{g}", 0), "ordinal": g} for g in range(2, 6)]
        call("POST", rounds.url + "/submit-batch", {**rounds.authority, "batch_id": name, "version": 0, "groups": groups, "check": {"seed": 1, "round": 0}})
        status = call("GET", f"{rounds.url}/batches/{name}?wait_ms=60000")
        assert status["state"] == "done", status["error"]
        return status["samples"], status["differences"]

    with Cluster(tmp_path, model=wide, trainer=["--random-init", 1], launcher=Ranks(2)) as cluster:
        rounds = Minibatches(cluster)
        before = checked("before")
        first = [group(f"r1.0.{g}", 1 - g) for g in range(2)]
        rounds.batch("r1.0.b0", 0, 0, first)
        *_, skipped = rounds.step("r1.0.s0", 0, 0, first)
        assert not skipped
        assert checked("after") == before


@pytest.mark.parametrize("ranks", [0, 2], ids=["alone", "two-ranks"])
def test_a_trainer_that_dies_in_an_inner_step_repeats_the_round(wide, minibatch_reference, tmp_path, ranks):
    """SIGKILL when the first inner step of version 1 is about to be applied; started again, it has no inner step, and takes the round from its begin."""
    faulty = {"launcher": Ranks(2, {1: "die-before-step"})} if ranks else {"trainer_bin": FAULT_BIN}
    flags = ["--random-init", 1, *([] if ranks else ["--fault", "die-before-step"])]
    with Cluster(tmp_path, model=wide, trainer=flags, **faulty) as cluster:
        rounds = Minibatches(cluster)
        assert rounds.round(0) == minibatch_reference[0]
        first = [group(f"r1.1.{g}", 1 - g % 3) for g in range(STEP_SIZES[1][0])]
        assert rounds.batch("r1.1.b0", 1, 0, first) == minibatch_reference[1][0]
        with pytest.raises((HttpError, OSError)):
            rounds.step("r1.1.s0", 1, 0, first)
        assert cluster.trainer.wait_end(60) != 0
        assert "fault: die-before-step" in cluster.trainer.log_text()
        cluster.trainer.launcher = Ranks(2) if ranks else None
        cluster.trainer.restart()
        assert rounds.open(current_version=1) == 1
        with pytest.raises(AssertionError, match="0 inner steps of the round have been taken"):
            rounds.batch("r1.1.early", 1, 1, [group("r1.1.2", 1)])
        assert [rounds.round(1), rounds.round(2)] == minibatch_reference[1:]


# ---- what is refused ----


def test_unlike_ranks_are_refused(tmp_path):
    class Unlike(Ranks):
        def command(self, flags):
            return [*super().command(flags), "--chunk-tokens", "512"]

    with pytest.raises(RuntimeError, match="the ranks differ in --chunk-tokens: .* here, 512 to 4096 in all"):
        Cluster(tmp_path, trainer=["--random-init", 1], launcher=Unlike(2))


def test_a_rank_that_cannot_keep_the_reference_refuses_the_run_for_all(base_model, tmp_path):
    """Memory of rank 1 is bounded to what its plan needs without a reference; the ranks go on, and take a run without one."""

    class Tight(Ranks):
        def command(self, flags):
            return [*super().command(flags), "--memory-max", str(int((needs + 0.1) * 2**20))]

    with Cluster(tmp_path, model=base_model, trainer=["--threads", 1], launcher=Ranks(2)) as cluster:
        needs = min(float(planned) for planned in re.findall(r"memory planned: (\S+) MiB", cluster.trainer.log_text()))  # the smaller shard is rank 1's
        cluster.trainer.stop()
        cluster.trainer.launcher = Tight(2)
        cluster.trainer.restart()
        request = {"run": "r1", **cluster.authority(), "seed": 1, "training": {"kl_coefficient": 0.5}}
        with pytest.raises(HttpError) as refused:
            call("POST", cluster.trainer.url + "/v1/runs", request)
        assert refused.value.status == 503 and "rank 1 of 2: the trainer with the frozen reference" in refused.value.json()["error"]["message"]
        request.update(run="r2", training={"kl_coefficient": 0})
        assert call("POST", cluster.trainer.url + "/v1/runs", request)["version"] == 0


# --- what TLS does not cover ---

ELSEWHERE = """
#include <string.h>
int gethostname(char *name, size_t size) { strncpy(name, "another-machine", size); return 0; }
"""


def test_ranks_on_several_machines_are_warned_of_where_tls_is_set(tmp_path):
    """One of two ranks takes itself for another machine's."""
    (tmp_path / "elsewhere.c").write_text(ELSEWHERE)
    shim = tmp_path / "elsewhere.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", shim, tmp_path / "elsewhere.c"], check=True)
    authority = Authority(tmp_path / "trusted")
    tls = Tls(authority, *authority.certificate("pool"))

    def warnings(name, settings, tls):
        with Cluster(tmp_path / name, trainer=["--random-init", 1], launcher=Ranks(2, settings=settings), tls=tls) as cluster:
            cluster.trainer.wait_log("registered as w")
            return re.findall(r"the ranks run on (\d+) machines .* unencrypted", cluster.trainer.log_text())

    two = {1: {"LD_PRELOAD": shim}}
    assert warnings("two", two, tls) == ["2"]
    assert warnings("one", {}, tls) == [] and warnings("plain", two, None) == []
