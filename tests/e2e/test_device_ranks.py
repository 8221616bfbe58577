"""One trainer of several processes whose arrays live on a device: the bits of one process on that device, whatever the number of ranks, whichever of them dies,
and however many go on from a checkpoint.

Over the emulated CUDA device (`make unit-cuda` builds the services); over real ones with LEASEHOLD_TEST_DEVICE_BIN=build/cuda/bin, which tests/cuda/check.sh
sets.  There LEASEHOLD_TEST_RANKS_OVER says what must carry the arrays: `staged` (the default) where ranks share a GPU, `nccl` where each has its own.
"""
import os
import re
import signal

import pytest

from harness import DATA, ROOT, Cluster, call, digests, warmup_config
from ranks import Ranks, rank_pids
from test_device import DEVICE, DEVICE_BIN
from test_ranks import Played, SILENCE, alive, assert_each_step_moves, assert_same, kill_ranks, minibatches, wide_model

EMULATED = "LEASEHOLD_TEST_DEVICE_BIN" not in os.environ
OVER = os.environ.get("LEASEHOLD_TEST_RANKS_OVER", "staged")
ROUNDS = 2
CHUNK = ["--chunk-tokens", 256]
FLAGS = [*DEVICE, *CHUNK, "--random-init", 1]

pytestmark = pytest.mark.skipif(not (DEVICE_BIN / "trainer-server-mpi").exists(), reason="make unit-cuda (make cuda) builds the ranks that this needs")
emulated_only = pytest.mark.skipif(not EMULATED, reason="the emulated device is told what it has")


def on_device(count, **how):
    return Ranks(count, bin_dir=DEVICE_BIN, **how)


def supervised(rounds=ROUNDS):
    """Groups for every rank, tensors and optimizer in shards, and a checkpoint of every version."""
    made = warmup_config(rounds)
    made.update(groups_per_round=3, samples_per_group=1)
    made["training"].update(checkpoint_every=1, chunk_tokens=256)
    return made


@pytest.fixture(scope="module")
def wide(tmp_path_factory):
    """Four blocks of the norm: as small as three shards can be."""
    return wide_model(tmp_path_factory.mktemp("wide"), hidden=96, ffn=256)


@pytest.fixture(scope="module")
def reference(wide, tmp_path_factory):
    """One process, on the device, without ranks."""
    with Cluster(tmp_path_factory.mktemp("one"), model=wide, trainer=FLAGS, trainer_bin=DEVICE_BIN) as cluster:
        model = call("GET", cluster.trainer.url + "/v1/model")
        assert (model["device"], model["ranks"], model["ranks_over"]) == ("cuda:0", 1, "self")
        run = cluster.create_run(supervised())
        played = Played(cluster, run, cluster.wait(run))
    assert len(set(played.digests)) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
    return played


@pytest.mark.parametrize("count", [1, 2, 3])
def test_so_many_ranks_give_the_bits_of_one_process(wide, reference, tmp_path, count):
    with Cluster(tmp_path, model=wide, trainer=FLAGS, launcher=on_device(count)) as cluster:
        model = call("GET", cluster.trainer.url + "/v1/model")
        assert (model["device"], model["ranks"], model["ranks_over"]) == ("cuda:0", count, OVER if count > 1 else "mpi")
        assert len(rank_pids(cluster.trainer.process.pid)) == count
        chosen = re.findall(r"arrays go from rank to rank over (\w+)", cluster.trainer.log_text())
        assert chosen == ([OVER] * count if count > 1 else [])
        run = cluster.create_run(supervised())
        played = Played(cluster, run, cluster.wait(run))
    assert_same(played, reference)


def test_a_checkpoint_goes_on_with_other_numbers_of_ranks(wide, reference, tmp_path):
    """Two ranks, killed in the second round, and then three."""
    with Cluster(tmp_path, model=wide, trainer=FLAGS, launcher=on_device(2)) as cluster:
        run = cluster.create_run(supervised())
        cluster.wait_until("the second round", lambda: len(digests(cluster.status(run))) == 1, 120)
        kill_ranks(cluster.trainer)
        cluster.trainer.launcher = on_device(3)
        cluster.trainer.restart()
        played = Played(cluster, run, cluster.wait(run))
    assert_same(played, reference)


def test_inner_steps_on_a_device_are_the_same_on_several_ranks(wide, tmp_path):
    """Each rank keeps the weights that sampled the round in its device's memory."""
    said = minibatches(tmp_path / "one", wide, flags=FLAGS, trainer_bin=DEVICE_BIN, chunk_tokens=256)
    assert_each_step_moves(said)
    assert minibatches(tmp_path / "two", wide, on_device(2), flags=FLAGS, chunk_tokens=256) == said


def test_a_killed_rank_is_found(wide, tmp_path):
    """The launcher looks away; the others end by themselves, and say who is silent."""
    count = 2 if OVER == "nccl" else 3
    with Cluster(tmp_path, model=wide, trainer=FLAGS, launcher=on_device(count, blind=True, flags=SILENCE)) as cluster:
        cluster.run(supervised(1))
        pids = rank_pids(cluster.trainer.process.pid)
        os.kill(pids[1], signal.SIGKILL)
        for rank in {0, count - 1} - {1}:
            cluster.wait_until(f"rank {rank} ends", lambda: not alive(pids[rank]), seconds=30)
        assert f"rank 1 of {count} has been silent for 2000 ms" in cluster.trainer.log_text()
        cluster.trainer.wait_end()


@emulated_only
@pytest.mark.parametrize("calls", [550, 850])
def test_a_rank_whose_device_fails_ends_the_job(wide, reference, tmp_path, calls):
    """After so many calls, as it happens in the first step and in a unit of the second round: what it computed is not used, the run goes on in the next life,
    and ends with the right bits."""
    broken = on_device(2, settings={1: {"EMULATED_FAIL_AFTER": calls}})
    with Cluster(tmp_path, model=wide, trainer=FLAGS, launcher=broken) as cluster:
        run = cluster.create_run(supervised())
        assert cluster.trainer.wait_end(120) != 0
        assert "cuda:0: cudaErrorLaunchFailure (unspecified launch failure)" in cluster.trainer.log_text()
        status = cluster.status(run)
        assert status["state"] == "running" and len(digests(status)) < ROUNDS
        cluster.trainer.launcher = on_device(2)
        cluster.trainer.restart()
        played = Played(cluster, run, cluster.wait(run))
    assert_same(played, reference)


# ---- which device, what carries arrays between devices, and what fits there ----


@emulated_only
def test_ranks_take_the_devices_in_turns(tmp_path):
    """Three ranks and two devices; one that is named stays."""
    devices = {rank: {"EMULATED_DEVICES": 2} for rank in range(3)}
    with Cluster(tmp_path / "turns", model=DATA / "model", trainer=FLAGS, launcher=on_device(3, settings=devices)) as cluster:
        said = re.findall(r"rank (\d) of 3 computes on (cuda:\d), as do (\d) others", cluster.trainer.log_text())
        assert sorted(said) == [("0", "cuda:0", "1"), ("1", "cuda:1", "0"), ("2", "cuda:0", "1")]
    pinned = ["--device", "cuda:1", *CHUNK, "--random-init", 1]
    with Cluster(tmp_path / "pinned", model=DATA / "model", trainer=pinned, launcher=on_device(2, settings=devices)) as cluster:
        assert call("GET", cluster.trainer.url + "/v1/model")["device"] == "cuda:1"
        assert len(re.findall(r"computes on cuda:1, as do 1 others", cluster.trainer.log_text())) == 2


@emulated_only
def test_ranks_with_a_device_each_are_joined(wide, reference, tmp_path):
    """By NCCL, whose place another comm takes here: chosen by all, for what all have, and to the same bits."""
    own = {"EMULATED_DEVICES": 2}
    with Cluster(tmp_path / "all", model=wide, trainer=FLAGS, launcher=on_device(2, settings={0: own, 1: own})) as cluster:
        assert call("GET", cluster.trainer.url + "/v1/model")["ranks_over"] == "nccl"
        run = cluster.create_run(supervised())
        played = Played(cluster, run, cluster.wait(run))
        assert re.findall(r"arrays go from rank to rank over (\w+)", cluster.trainer.log_text()) == ["nccl"] * 2
    assert_same(played, reference)
    lacking = {0: own, 1: {**own, "EMULATED_NCCL": 0}}
    with Cluster(tmp_path / "one", model=wide, trainer=FLAGS, launcher=on_device(2, settings=lacking)) as cluster:
        assert call("GET", cluster.trainer.url + "/v1/model")["ranks_over"] == "staged"
        assert cluster.trainer.log_text().count("the ranks' devices are not joined: a rank has no emulated NCCL") == 2


@emulated_only
def test_what_ranks_plan_on_one_device_must_fit_together(wide, tmp_path):
    """The device is as large as what one rank plans and half of that: one process starts, two ranks are refused with numbers, two devices take them."""
    with Cluster(tmp_path / "two", model=wide, trainer=FLAGS, launcher=on_device(2)) as cluster:
        plans = [float(planned) for planned in re.findall(r"memory planned on the device: (\S+) MiB", cluster.trainer.log_text())]
        assert len(plans) == 2
    size = {"EMULATED_MEMORY_MIB": int(max(plans) * 1.5) + 96}  # and the table's scratch, which is taken before
    both = on_device(2, settings={0: size, 1: size})
    with pytest.raises(RuntimeError) as refused, Cluster(tmp_path / "refused", model=wide, trainer=FLAGS, launcher=both):
        pass
    told = re.search(r"the trainer needs (\S+) MiB on the device \(weights .*\), and the device has (\S+) MiB free, of which other processes plan to take ([0-9.]+)", str(refused.value))
    own, free, others = (float(number.rstrip(".")) for number in told.groups())
    assert own in plans and others in plans and own <= free < own + others
    apart = {rank: {**size, "EMULATED_DEVICES": 2} for rank in range(2)}
    with Cluster(tmp_path / "apart", model=wide, trainer=FLAGS, launcher=on_device(2, settings=apart)) as cluster:
        assert call("GET", cluster.trainer.url + "/v1/model")["ranks"] == 2


@emulated_only
def test_ranks_on_unlike_devices_are_refused(tmp_path):
    """Their products of matrices differ, so their weights could not agree."""

    class Unlike(Ranks):
        def command(self, flags):
            return [*super().command(flags), "--device", "cpu"]

    differ = "the ranks differ in --device and --exactness .*: [01] here, 0 to 1 in all"
    with pytest.raises(RuntimeError, match=differ), Cluster(tmp_path, model=DATA / "model", trainer=FLAGS, launcher=Unlike(2, bin_dir=DEVICE_BIN)):
        pass
