"""`make bench-pipeline` still runs and writes the table that others read: its columns, a row for every mode, equal weights, times that can be."""
import csv
import os
import pathlib
import subprocess

import pytest

pytestmark = pytest.mark.bench
ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = "lengths,R,ratio,mode,window_s,trainer_waiting_ratio,generation_idle_ratio,bound_s,clairvoyant_s,weights_sha256"
SIMULATED = ["sync", "cgp", "gate", "pipelined", "minibatch"]
MODES = [*SIMULATED, "inflight"]
SMALL = {"LENGTHS": "bimodal", "R": "6", "PAIRS": "1", "ROUNDS": "1", "SLOTS": "16", "SAMPLER_ISA": "v3", "PREAMBLE": "5"}


def bench_pipeline(out, **variables):
    subprocess.run(["make", "-s", "build/tests/sim/predict"], cwd=ROOT, check=True)
    program = ROOT / "tests/bench/bench-pipeline"
    return subprocess.run([program], cwd=ROOT, env={**os.environ, **SMALL, **variables, "OUT": str(out)}, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    out = tmp_path_factory.mktemp("bench")
    run = bench_pipeline(out)
    assert run.returncode == 0, run.stdout + run.stderr
    return run, out


def rows(path):
    text = path.read_text()
    assert text.splitlines()[0] == HEADER
    return list(csv.DictReader(text.splitlines()))


def test_the_table_has_a_row_for_every_mode_with_equal_weights(small):
    found = rows(small[1] / "pipeline.csv")
    assert [row["mode"] for row in found] == MODES
    weights = {row["mode"]: row["weights_sha256"] for row in found}
    assert len({weights[mode] for mode in ("sync", "cgp", "gate", "pipelined")}) == 1 and weights["minibatch"] != weights["sync"]
    assert weights["inflight"] == "", "they are those of one run, and no other run's"
    for row in found:
        assert (row["lengths"], row["R"]) == ("bimodal", "6") and len(row["weights_sha256"]) == (64 if row["mode"] != "inflight" else 0)
        assert 0 < float(row["window_s"]) < 60 and float(row["ratio"]) > 0
        assert 0 <= float(row["trainer_waiting_ratio"]) < 1 and 0 <= float(row["generation_idle_ratio"]) < 1
        assert 0 < float(row["bound_s"]) <= float(row["clairvoyant_s"])


def test_other_ratios_are_simulated_apart_from_what_was_measured(small):
    found = rows(small[1] / "pipeline-simulated.csv")
    assert [row["mode"] for row in found] == 3 * SIMULATED and {row["weights_sha256"] for row in found} == {""}
    for row in found:
        assert float(row["bound_s"]) <= float(row["clairvoyant_s"]) <= max(float(r["window_s"]) for r in found if r["ratio"] == row["ratio"])
    sync = {row["ratio"]: float(row["window_s"]) for row in found if row["mode"] == "sync"}
    assert sync["0.500"] > sync["0.870"] > sync["1.500"], "the trainer is scaled, the sampler is not"


def test_each_run_is_kept_beside_its_cpu_time(small):
    with open(small[1] / "pipeline-runs.csv", newline="") as file:
        found = list(csv.DictReader(file))
    assert [(row["pair"], row["mode"]) for row in found] == [(pair, mode) for mode in MODES for pair in "0"]
    for row in found:
        assert float(row["trainer_cpu_s"]) > 0 and float(row["sampler_cpu_s"]) > 0 and float(row["coordinator_cpu_s"]) > 0
        assert float(row["train_s"]) > 0 and (row["rollout_s"] == "") == (row["mode"] == "inflight") == (row["lag_max"] != "")
        assert 48 / 60 < float(row["samples_per_s"]) < 48 / float(row["train_s"]), "a step is of 6 groups of 8, and no mode trains without computing"


def test_a_stream_is_compared_by_samples_a_second(small):
    with open(small[1] / "pipeline-runs.csv", newline="") as file:
        found = [row for row in csv.DictReader(file) if row["mode"] == "inflight"]
    for row in found:
        assert float(row["window_s"]) == pytest.approx(48 / float(row["samples_per_s"]), rel=1e-3)
        assert 0 <= int(row["lag_min"]) <= float(row["lag_mean"]) <= int(row["lag_max"]) and int(row["lag_max"]) >= 1, "nothing was drawn ahead of the trainer"
    page = (small[1] / "pipeline.md").read_text()
    assert "of the attainable" in page and "| samples/s |" in page.splitlines()[2]


def test_what_is_not_known_is_refused(tmp_path):
    run = bench_pipeline(tmp_path, LENGTHS="heavy,endless")
    assert run.returncode != 0 and "endless" in run.stderr
    run = bench_pipeline(tmp_path, MODES="pipelined")
    assert run.returncode != 0 and "sync" in run.stderr
