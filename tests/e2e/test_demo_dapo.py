"""The DAPO demo, small: its data, its three phases through real services, and its control.  Its bars are held by tests/e2e/demo-dapo.

What would break: the demo does not run; its runs are not DAPO's; a problem of the test is trained on; the control's weights move where nothing may be learned.
"""
import json
import os
import subprocess
import sys

import pytest

from harness import BIN, ROOT

DAPO = ROOT / "deploy/dapo"


@pytest.fixture(scope="module")
def done(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dapo") / "out"
    environment = {**os.environ, "BIN": str(BIN), "OUT": str(folder), "SEED": "3", "WARMUP": "100", "ROUNDS": "2", "CONTROL": "lr0"}
    result = subprocess.run([sys.executable, DAPO / "demo.py"], cwd=ROOT, capture_output=True, text=True, timeout=300, env=environment)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-2000:]
    return result.stdout, json.loads((folder / "summary.json").read_text()), folder


@pytest.mark.long
def test_the_demo_trains_and_its_control_does_not(done):
    text, summary, _ = done
    assert summary["dapo"]["distinct_digests"] == 2 and summary["dapo"]["logprob_max_abs_diff"] == 0
    assert summary["control_run"]["distinct_digests"] == 1 and summary["control"] == summary["before"]
    assert "accuracy, hard" in text and "groups without a signal" in text


def rows(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.long
def test_its_data_is_of_mixed_difficulty_and_held_out(done):
    test, train, warmup = (rows(done[2] / "data" / f"{name}.jsonl") for name in ("test", "train", "warmup"))
    held_out = {row["prompt"] for row in test}
    assert len(held_out) == len(test) and not held_out & {row["prompt"] for row in train + warmup}
    assert {len(row["prompt"]) // 2 - 1 for row in train} == {len(row["prompt"]) // 2 - 1 for row in test} == set(range(1, 7))
    for row in train:
        value, *steps = row["prompt"][0], *zip(row["prompt"][1:-1:2], row["prompt"][2:-1:2])
        for sign, digit in steps:
            value = (int(value) + int(digit) if sign == "+" else int(value) * int(digit)) % 10
        assert row["answer"] == str(value) and row["max_new_tokens"] >= 6 * len(steps) + 3
    assert max(len(row["prompt"]) + len(row["completion"]) for row in warmup) < 128


def test_its_run_is_dapos():
    config = json.loads((DAPO / "runs/dapo.json").read_text())
    assert config["training"]["clip_high"] > config["training"]["clip_low"] and config["training"]["kl_coefficient"] == 0 and config["training"]["normalization"] == "tokens"
    assert config["filter"]["zero_advantage"] == "refill" and config["overlong"]["buffer"] > 0 and len(config["verifier"]["terms"]) > 1 and config["groups_per_step"] < config["groups_per_round"]
