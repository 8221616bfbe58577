"""The shim and the model of the disk of `make fault`: what was synced survives a power loss, what was not does not, and a promise that was broken is told."""
import os
import pathlib
import random
import signal
import subprocess
import sys

import pytest

from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/fault"))

import disk  # noqa: E402
import sites  # noqa: E402

SHIM = ROOT / "build/tests/fault/shim.so"
WRITER = """
import os, sys
root, steps = sys.argv[1], sys.argv[2].split()
folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
if "write" in steps:
    file = os.open(root + "/part", os.O_WRONLY | os.O_CREAT, 0o644)
    os.write(file, b"x" * 4096)
for step in steps:
    if step == "sync":
        os.fsync(file)
    if step == "rename":
        os.rename(root + "/part", root + "/whole")
    if step == "folder":
        os.fsync(folder)
print("done", flush=True)
"""


@pytest.fixture(scope="module", autouse=True)
def shim():
    subprocess.run(["make", "-s", "build/tests/fault/shim.so"], cwd=ROOT, check=True)


def preloaded(root, steps, **environment):
    made = {**os.environ, "LD_PRELOAD": str(SHIM), **{name: str(value) for name, value in environment.items()}}
    return subprocess.run([sys.executable, "-c", WRITER, root, steps], env=made, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("steps", "left", "broken"),
    [
        ("write sync rename folder", {"whole": 4096}, False),
        ("write sync folder", {"part": 4096}, False),
        ("write sync folder rename", {"part": 4096}, False),
        ("write sync rename", {}, False),
        ("write rename folder", {"whole": 0}, True),
        ("write folder", {"part": 0}, False),
    ],
)
def test_a_power_loss_leaves_what_was_synced(tmp_path, steps, left, broken):
    root = tmp_path / "root"
    root.mkdir()
    preloaded(root, steps, SHIM_ROOT=root, SHIM_DISK=tmp_path / "log").check_returncode()
    found = disk.Disk(root).play(tmp_path / "log")
    assert bool(found.broken) == broken, found.broken
    found.lose()
    found.write(root)
    assert {path.name: path.stat().st_size for path in root.iterdir()} == left


def test_a_part_of_what_was_not_synced_may_stay(tmp_path):
    root = tmp_path / "root"
    root.mkdir()
    preloaded(root, "write folder", SHIM_ROOT=root, SHIM_DISK=tmp_path / "log").check_returncode()
    sizes = set()
    for seed in range(40):
        found = disk.Disk(root).play(tmp_path / "log")
        found.lose(random.Random(seed))
        found.write(root)
        sizes.add((root / "part").stat().st_size)
    assert {0, 4096} < sizes and all(size % disk.SECTOR == 0 for size in sizes), sizes


def recorded(tmp_path, call):
    record = tmp_path / "record"
    preloaded(tmp_path, "write sync rename folder", SHIM_RECORD=record).check_returncode()
    return next(site for site in sites.read(record, "writer", "run") if site.call == call)


def strike(tmp_path, site, act, **environment):
    (tmp_path / "whole").unlink(missing_ok=True)
    return preloaded(tmp_path, "write sync rename folder", SHIM_SITE=site.hash, SHIM_CALL=site.call, SHIM_HIT=1, SHIM_ACT=act, SHIM_STRUCK=tmp_path / "struck", **environment)


@pytest.mark.parametrize(("act", "renamed"), [("kill-before", False), ("kill-after", True)])
def test_a_site_is_struck_once(tmp_path, act, renamed):
    site = recorded(tmp_path, "rename")
    assert strike(tmp_path, site, act).returncode == -signal.SIGKILL
    assert (tmp_path / "whole").exists() == renamed and (tmp_path / "struck").exists()
    assert strike(tmp_path, site, act).returncode == 0, "struck a second time"


def test_a_call_fails_as_it_is_told(tmp_path):
    done = strike(tmp_path, recorded(tmp_path, "rename"), "fail", SHIM_ERROR=28)
    assert done.returncode == 1 and "No space left on device" in done.stderr, done.stderr
