"""`make bench` still runs and writes the file that others read: its columns, a row for every name, numbers that can be."""
import csv
import os
import pathlib
import subprocess

import pytest

pytestmark = pytest.mark.bench
ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = "name,shape,threads,value,unit,limit,share,peer,peer_value"
FIGURES = {("gemm", "1x512x512"), ("gemm", "4096x512x512"), ("prefill", "42M 512"), ("decode", "42M b1"), ("decode", "42M b64"), ("decode", "0.6B b1"),
           ("train", "42M 16x256"), ("pack", "42M"), ("sample", "V151936"), ("gradient", "4096x512x512"), ("attention", "42M 16x256"),
           ("attention_backward", "42M 16x256")}


def make_bench(**variables):
    return subprocess.run(["make", "-s", "bench"], cwd=ROOT, env={**os.environ, "QUICK": "1", **variables}, capture_output=True, text=True, timeout=600)


@pytest.fixture(scope="module")
def quick():
    return make_bench()


def test_a_smoke_run_writes_every_figure_with_the_columns_that_were_promised(quick):
    assert quick.returncode == 0, quick.stderr
    text = (ROOT / "build/bench/bench.csv").read_text()
    assert text.splitlines()[0] == HEADER
    rows = list(csv.DictReader(text.splitlines()))
    assert FIGURES <= {(row["name"], row["shape"]) for row in rows}
    for row in rows:
        assert int(row["threads"]) >= 1 and row["unit"], row
        assert float(row["value"]) > 0 and float(row["limit"]) > 0, row
        assert float(row["share"]) == pytest.approx(float(row["value"]) / float(row["limit"]), rel=1e-3), row
        assert bool(row["peer"]) == bool(row["peer_value"]), row


def test_a_peer_that_is_absent_is_said_to_be(quick):
    rows = csv.DictReader((ROOT / "build/bench/bench.csv").read_text().splitlines())
    peers = {row["name"]: row["peer"] for row in rows}
    assert peers["train"] == "" and "`train` has no peer" in quick.stdout
    assert peers["gemm"].startswith("oneDNN") or "oneDNN is not installed" in quick.stdout


def test_a_name_that_is_not_known_is_refused():
    run = make_bench(NAMES="gemm,decoding")
    assert run.returncode != 0 and "decoding" in run.stderr
