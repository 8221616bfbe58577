"""`make bench-inflight` still runs small: a row for each step of each run, lags as they were asked for, a table with its bars; and its reading of curves."""
import csv
import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.bench
ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/bench/inflight"))
from curves import crossing, reached, spread  # noqa: E402

HEADER = "mode,lag,seed,lr,step,seconds,samples,reward_mean,accuracy,ess,kl,lag_min,lag_mean,lag_max"
STEPS, EVERY, STEP_SAMPLES = 12, 4, 32
SMALL = {"SEEDS": "2", "TUNINGS": "2", "LAGS": "1,4", "HEADLINE": "1", "LRS": "0.0004,0.0008", "STEPS": str(STEPS), "EVERY": str(EVERY), "GROUPS": "4", "PROBLEMS": "16", "SAMPLES": "1",
         "WARMUP": "40", "ACCURACY": "0.9", "TRAINER_ISA": "v3"}


def bench_inflight(out, **variables):
    program = ROOT / "tests/bench/bench-inflight"
    return subprocess.run([program], cwd=ROOT, env={**os.environ, **SMALL, **variables, "OUT": str(out)}, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    run = bench_inflight(out)
    assert run.returncode == 0, run.stdout + run.stderr
    text = (out / "inflight.csv").read_text()
    assert text.splitlines()[0] == HEADER
    return list(csv.DictReader(text.splitlines())), (out / "inflight.md").read_text(), out


def test_every_step_of_every_run_has_its_row(small):
    rows = small[0]
    runs = {}
    for row in rows:
        runs.setdefault((row["seed"], row["lag"]), []).append(row)
    assert list(runs) == [(seed, lag) for seed in "12" for lag in "014"]
    for (_, lag), found in runs.items():
        assert [int(row["step"]) for row in found] == list(range(1, STEPS + 1))
        assert [int(row["samples"]) for row in found] == [STEP_SAMPLES * step for step in range(1, STEPS + 1)]
        seconds = [float(row["seconds"]) for row in found]
        assert seconds == sorted(seconds) and seconds[0] > 0
        assert [row["accuracy"] != "" for row in found] == [step % EVERY == 0 for step in range(1, STEPS + 1)]
        for row in found:
            assert row["mode"] == ("inflight" if lag != "0" else "sync") and row["lr"] in ("0.0004", "0.0008")
            assert 0 <= float(row["reward_mean"]) <= 1 and 0 < float(row["ess"]) <= 1 and float(row["kl"]) >= 0
            assert 0 <= int(row["lag_min"]) <= float(row["lag_mean"]) <= int(row["lag_max"]) <= int(lag)


def test_the_lag_that_was_asked_for_occurs_and_tells(small):
    most = {lag: max(int(row["lag_max"]) for row in small[0] if row["lag"] == lag) for lag in "014"}
    assert most == {"0": 0, "1": 1, "4": 4}, "samples_ahead does not lead to the lag"
    least = {lag: min(float(row["ess"]) for row in small[0] if row["lag"] == lag) for lag in "014"}
    assert least["0"] == 1 > least["1"] and least["4"] < 1


def test_the_page_has_a_line_for_every_mode_and_every_bar(small):
    page = small[1]
    table = [line for line in page.splitlines() if line.startswith("| ")]
    for name in ("sync", "inflight, max_lag 1", "inflight, max_lag 4"):
        assert sum(line.startswith(f"| {name} |") for line in table) >= 2, name
    bars = [line for line in page.splitlines() if line.startswith("max_lag 1, ")]
    assert [line.split(":")[0] for line in bars] == ["max_lag 1, samples a second, of what is attainable", "max_lag 1, samples to 90%, against sync", "max_lag 1, time to 90%, sooner than sync"]
    assert all(line.endswith(("met.", "**missed**.")) for line in bars)


def test_every_rate_was_tried_by_every_mode(small):
    tried = list(csv.DictReader((small[2] / "inflight-tuning.csv").read_text().splitlines()))
    assert [(row["lag"], row["lr"]) for row in tried] == [(lag, lr) for lag in "014" for _ in range(2) for lr in ("0.0004", "0.0008")]
    for lag in "014":
        both = {lr: sum(float(row["reward_mean"]) for row in tried if (row["lag"], row["lr"]) == (lag, lr)) for lr in ("0.0004", "0.0008")}
        assert {row["lr"] for row in small[0] if row["lag"] == lag} == {max(both, key=both.get)}


def test_what_cannot_be_measured_is_refused(tmp_path):
    run = bench_inflight(tmp_path, HEADLINE="2")
    assert run.returncode != 0 and "HEADLINE" in run.stderr


# ---- reading a curve ----


def test_a_target_is_reached_where_the_smoothed_curve_crosses_it():
    rising = [(0, 0.5), (10, 0.6), (20, 0.7), (30, 0.8), (40, 0.9)]  # means with the neighbours: .55 .6 .7 .8 .85
    assert crossing(rising, 0.65) == pytest.approx(15)
    assert crossing(rising, 0.825) == pytest.approx(35)
    assert crossing(rising, 0.86) is None, "the last point alone does not reach it"
    assert crossing(rising, 0.5) == 0
    assert crossing([(0, 0.1), (10, 0.9), (20, 0.1), (30, 0.1)], 0.6) is None, "one lucky evaluation is no arrival"


def test_a_run_begins_with_the_accuracy_of_the_warm_up():
    run = {"before": 0.5, "steps": [{"samples": 10}, {"samples": 20, "accuracy": 0.9}, {"samples": 30}, {"samples": 40, "accuracy": 0.9}]}
    assert reached(run, "samples", 0.75) == pytest.approx(20 * (0.75 - 0.7) / (2.3 / 3 - 0.7))


def test_a_seed_that_never_arrives_counts_as_the_worst():
    assert spread([1.0, 3.0, None], float("inf")) == (3.0, 1.0, 3.0)
    assert spread([1.0, None, None], float("inf")) is None
    assert spread([2.0, None, 4.0], 0) == (2.0, 2.0, 4.0)
    assert spread([None], 0) is None
