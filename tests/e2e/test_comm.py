"""The seam between the ranks of one trainer, over MPI, with 1, 2 and 4 processes: right answers, the same bits, and no wait without an end."""
import contextlib
import os
import re
import signal
import subprocess
import time

import pytest

from harness import ROOT, Deadline
from ranks import MPIRUN, MPIRUN_BLIND, environment, rank_pids

PROGRAM = ROOT / "build/tests/ranks/check_comm"
RANKS = [1, 2, 4]


def play(ranks, *args, seconds=120):
    return subprocess.run(
        [*MPIRUN, "-n", str(ranks), PROGRAM, *map(str, args)], env=environment(), capture_output=True, text=True, timeout=seconds
    )


def digest_of(ranks, *mutant):
    ended = play(ranks, "steps", *mutant)
    assert ended.returncode == 0, ended.stderr
    return re.search(r"^digest ([0-9a-f]{64})$", ended.stdout, re.M)[1]


@pytest.mark.parametrize("ranks", RANKS)
def test_every_call_gives_what_it_must(ranks):
    ended = play(ranks, "collectives")
    assert ended.returncode == 0 and f"collectives of {ranks} ranks over mpi are right" in ended.stdout, ended.stderr


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.long), pytest.param(7, marks=pytest.mark.long)])
def test_a_fabric_carries_what_its_root_has_and_waits_for_nobody_for_ever(ranks):
    ended = play(ranks, "fabric")
    assert ended.returncode == 0 and f"a fabric of {ranks} ranks over mpi carries right" in ended.stdout, ended.stderr


@pytest.fixture(scope="module")
def alone():
    return digest_of(1)


@pytest.mark.parametrize("ranks", RANKS[1:] + [3])
def test_steps_by_shards_give_the_weights_of_one_rank(alone, ranks):
    assert digest_of(ranks) == alone


@pytest.mark.parametrize("mutant", ["doubled", "boundary"])
def test_a_spoilt_rank_is_seen(alone, mutant):
    assert digest_of(4, mutant) != alone


def lost(output):
    """{rank: (milliseconds that its last call took, why it ended)}"""
    lines = re.findall(r"^rank (\d+) lost after (\d+) ms: (.+)$", output, re.M)
    return {int(rank): (int(took), why) for rank, took, why in lines}


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_dead_or_frozen_rank_is_found_in_time(tmp_path, how):
    """The launcher looks away; silence_ms is 2000, and the others know it 200 ms and a scheduler's whim later."""
    log = tmp_path / "log"
    with open(log, "w") as out:
        launcher = subprocess.Popen([*MPIRUN_BLIND, "-n", "3", PROGRAM, "silence", "2000"], env=environment(), stdout=out, stderr=out)
    try:
        wait_for(log, lambda text: text.count("met") >= 3)
        victim = rank_pids(launcher.pid)[1]
        os.kill(victim, how)
        wait_for(log, lambda text: set(lost(text)) == {0, 2}, seconds=20)
        with contextlib.suppress(ProcessLookupError):
            os.kill(victim, signal.SIGKILL)
        launcher.wait(timeout=20)
    finally:
        launcher.kill()
        launcher.wait()
    for rank, (took, why) in lost(log.read_text()).items():
        assert why in ("rank 1 of 3 has been silent for 2000 ms", f"rank {2 - rank} of 3 gave up"), why
        assert took >= 1500, "a rank that was late by less is not dead"


def wait_for(log, condition, seconds=60):
    deadline = Deadline(seconds)
    while not condition(log.read_text()):
        assert not deadline.passed(), log.read_text()
        time.sleep(0.01)


def test_a_rank_that_lives_but_does_not_come_is_not_waited_for():
    """Rank 0 stays away from a barrier; the others give up after the call's own time, and rank 0 learns of it."""
    found = lost(play(3, "late", 1500).stdout)
    assert set(found) >= {1, 2}, found
    for rank in (1, 2):
        took, why = found[rank]
        assert "did not end within 1500 ms" in why or "gave up" in why, why
        assert took >= 1400, took


def test_a_rank_that_gives_up_tells_the_others():
    found = lost(play(3, "give-up").stdout)
    assert found[0][1] == "rank 0 of 3 gave up: this one"
    for rank in set(found) - {0}:
        assert found[rank][1] == "rank 0 of 3 gave up", found
