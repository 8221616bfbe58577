"""Compares a run that was struck with the undisturbed one: digests, groups, and the invariants of the ledger (I1 to I5, by the run's audit)."""
import dataclasses
import re
import signal
import subprocess

import rig  # noqa: F401  it puts tests/e2e on the path

from harness import DATA, digests
from test_inflight_kills import replayed
from test_overlap import number

COLUMNS = "round, ordinal, state, dataset_index, sample_count, hex(digest)"


class Wrong(Exception):
    """What must not be, in a sentence."""


@dataclasses.dataclass(frozen=True)
class Result:
    digests: tuple
    groups: tuple
    tokens: int


def result_of(rig, run):
    status = rig.status(run)
    groups = rig.query(f"SELECT {COLUMNS} FROM groups WHERE run = ? ORDER BY round, ordinal", number(run))
    return Result(tuple(digests(status)), tuple(groups), sum(row["tokens"] for row in status["history"]))


def judge(rig, run, reference, kind):
    """Raises Wrong.  reference: None for the undisturbed run itself, whose Result comes back.  kind: the run's, of runs.RUNS."""
    found = result_of(rig, run)
    try:
        kind.audit(rig, run)
    except AssertionError as error:
        raise Wrong(f"the ledger is not sound: {error}") from None
    if reference is None or not kind.repeats:
        return found
    if found.digests != reference.digests:
        raise Wrong(f"other weights: {[d[:8] for d in found.digests]}, undisturbed {[d[:8] for d in reference.digests]}")
    if found.groups != reference.groups:
        odd = set(found.groups) ^ set(reference.groups)
        raise Wrong(f"other groups: {sorted(odd)[:4]}")
    if found.tokens != reference.tokens:
        raise Wrong(f"{found.tokens} tokens were trained on, undisturbed {reference.tokens}")
    return found


def judge_record(rig, run):
    """Does what was recorded lead to the same weights once more?  The services must have ended."""
    try:
        replayed(rig, rig.folder, run, DATA / "model", "--random-init", 1, "--threads", 1)
    except (AssertionError, subprocess.TimeoutExpired) as error:
        raise Wrong(str(error)) from None


def judge_ends(ended):
    """Every end is by the fault's or the supervisor's SIGKILL, or has a sentence."""
    for end in ended:
        if end.status < 0 and end.status != -signal.SIGKILL:
            raise Wrong(f"{end.role} ended by signal {-end.status}; it had said: {end.sentence}")
        if end.status > 0 and not re.search(r" error |^[a-z-]+: \S", end.sentence):
            raise Wrong(f"{end.role} ended with {end.status} without a sentence: {end.sentence!r}")
