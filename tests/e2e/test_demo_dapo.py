"""The DAPO demo, small: its data, its three phases through real services, and its control.  Its bars are held by tests/e2e/demo-dapo.

What would break: the demo does not run; its runs are not DAPO's; a problem of the test is trained on; the control's weights move where nothing may be learned.
"""
import json
import os
import pathlib
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


def processes_of(folder):
    found = []
    for line in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += [line] if str(folder).encode() in line.read_bytes() else []
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


@pytest.mark.parametrize(("script", "reached"), [("dapo/demo.py", "1. Supervised warm-up"), ("rewards/demo.py", "round")])
def test_a_demo_that_is_ended_ends_its_services_and_the_callers_own_settings_do_not_reach_them(tmp_path, script, reached):
    """SIGTERM ended the script alone, and its services computed on; a proxy was asked for 127.0.0.1."""
    own = {"LEASEHOLD_TLS_CERT": "/nowhere", "LEASEHOLD_AUTH_TOKEN": "secret", "LEASEHOLD_BIND": "0.0.0.0", "http_proxy": "http://127.0.0.1:9"}
    environment = {**os.environ, "BIN": str(BIN), "OUT": str(tmp_path / "out"), "SEED": "3", "WARMUP": "50", "ROUNDS": "1000", **own}
    command = [sys.executable, "-u", ROOT / "deploy" / script]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
        text = ""
        for line in process.stdout:
            text += line
            if reached in line:
                break
        assert reached in text and len(processes_of(tmp_path)) >= 3, text
        process.terminate()
        text += process.stdout.read()
        assert process.wait(30) == 1 and "interrupted" in text, text
    assert not processes_of(tmp_path)


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
