"""A machine's clock that was set between a service's kill -9 and its restart: back by two hours or ahead by two days.  The run goes on at once, with the
same weights; no group, lease or reward fails by a clock, and no time that is shown runs backwards.
"""
import pathlib
import subprocess
import time

import pytest

from harness import BIN, Cluster, call, digests, grpo_config

ROUNDS, MIDDLE = 12, 4
HOURS_BACK, DAYS_AHEAD = -2 * 3600, 2 * 86400
PROGRAMS = {"coordinator": "coordinator", "trainer": "trainer-server", "gen": "generation-server"}


def config():
    made = grpo_config(ROUNDS, groups=4, samples=8)
    made["training"]["checkpoint_every"] = 2
    return {**made, "group_timeout_ms": 60000, "keep_rounds": 6}


def start(folder, model):
    cluster = Cluster(folder, model=model, trainer=["--threads", 1], coordinator=["--track-dir", folder / "tracks"])
    cluster.add_server("gen", "--slots", 16)
    return cluster


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    made = tmp_path_factory.mktemp("clock") / "set_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", made, pathlib.Path(__file__).with_name("set_clock.c")], check=True)
    return made


@pytest.fixture(scope="module")
def reference(base_model, tmp_path_factory):
    with start(tmp_path_factory.mktemp("undisturbed"), base_model) as cluster:
        return digests(cluster.run(config()))


def under_another_clock(folder, library, program, seconds):
    """A folder with the program, which finds the clock set."""
    folder.mkdir()
    (folder / program).write_text(f'#!/bin/sh\nLD_PRELOAD={library} CLOCK_SET_S={seconds} exec {BIN}/{program} "$@"\n')
    (folder / program).chmod(0o755)
    return folder


def negative(value, path=""):
    """Where numbers below zero stand under names that end as times and durations do."""
    if isinstance(value, dict):
        return [place for name, inner in value.items() for place in negative(inner, f"{path}.{name}")]
    if isinstance(value, list):
        return [place for i, inner in enumerate(value) for place in negative(inner, f"{path}[{i}]")]
    return [path] * (isinstance(value, (int, float)) and value < 0 and path.endswith(("_ms", "_us", "_ratio")) and not path.endswith("skew_ms"))


@pytest.mark.parametrize("seconds", [HOURS_BACK, DAYS_AHEAD], ids=["back", "ahead"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_clock_that_was_set_before_a_restart_holds_nothing_up(base_model, library, reference, tmp_path, name, seconds):
    with start(tmp_path / "run", base_model) as cluster:
        service = next(s for s in cluster.services if s.name == name)
        run = cluster.create_run(config())
        cluster.services[-1].freeze_when("the middle of the run", lambda: (cluster.status(run)["version"] or 0) >= MIDDLE)
        service.kill()
        begun = time.monotonic()
        service.restart(bin_dir=under_another_clock(tmp_path / "set", library, PROGRAMS[name], seconds))
        cluster.services[-1].thaw()
        status = cluster.wait(run, seconds=100)
        assert time.monotonic() - begun < 60, "somebody waited for a clock"
        assert digests(status) == reference and all(row["exact"] for row in status["history"])
        assert cluster.query("SELECT subject, detail FROM incidents WHERE kind IN ('group_timeout', 'reward_missed', 'inexact')") == []
        timeline = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/timeline?from=0&limit=100")
        assert negative(status) == negative(timeline) == []
        times = cluster.query("SELECT at_ms FROM events ORDER BY id")
        assert times == sorted(times) and len(times) > ROUNDS
        published = cluster.query("SELECT published_ms FROM rounds ORDER BY round")
        assert published == sorted(published)
        assert cluster.query("SELECT count(*) FROM rounds WHERE rollouts_state > 0")[0][0] > 0, "keep_rounds goes by rounds, whatever the clock"
