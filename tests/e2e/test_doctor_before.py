"""`leasehold doctor --model` before any service runs: what their programs foresee, by the code that they run with, and how near a real run comes to it.

What would break: a set-up that the services would refuse is called well, or the other way round; a line does not say what to do; -v prints a command that
answers something else; a check that leaves files behind, or takes long; a round whose time is foreseen wrong by more than a factor of two.
"""
import json
import re
import shutil
import socket
import subprocess
import time

import pytest

from harness import BIN, DATA, Cluster, call, grpo_config
from test_doctor import hows

MEASURE_S = 1


def before(folder, *args, run=None, seconds=90, program=BIN / "leasehold", env=None):
    """(exit status, [(how, what)], standard error)"""
    files = [folder / "run.json"] if run else []
    if run:
        files[0].write_text(json.dumps(run))
    command = [program, "doctor", *files, "--data-dir", DATA, "--measure-s", MEASURE_S, *args]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=seconds, cwd=folder, env=env)
    assert done.stdout, (done.returncode, done.stderr)
    *lines, verdict = done.stdout.splitlines()
    found = [re.fullmatch(r"(ok|warn|fail) +(.+)", line).groups() for line in lines]
    assert (done.returncode == 1) == any(how == "fail" for how, _ in found) == (verdict == "A run would not do what it should."), done.stdout
    return done.returncode, found, done.stderr


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture
def flags(tmp_path):
    """Of the three programs: ports that are free and folders of this test."""
    return {
        "--coordinator-flags": f"--port {free_port()} --db {tmp_path}/ledger/runs.db",
        "--trainer-flags": f"--port {free_port()} --state-dir {tmp_path}/state --threads 1",
        "--server-flags": f"--port {free_port()} --slots 16 --threads 1",
    }


def given(flags, **more):
    """The command's flags, with these behind a program's: trainer="--lean"."""
    return [word for name, text in flags.items() for word in (name, text + " " + more.get(name[2:].partition("-")[0], ""))]


def test_a_set_up_that_is_well(base_model, flags, tmp_path):
    begun = time.monotonic()
    status, found, _ = before(tmp_path, "--model", base_model, *given(flags), run=grpo_config(2, groups=8, samples=4))
    assert status == 0, found
    assert time.monotonic() - begun < 60
    for good in (
        r"^coordinator \S+ \(libmicrohttpd [\d.]+, libcurl [\d.]+, GnuTLS [\d.]+\)",
        r"^trainer-server \S+ \(",
        r"^generation-server \S+ \(",
        r"generation-server can listen on 127.0.0.1 port \d+",
        r"trainer-server needs [\d.]+ MB of the [\d.]+ MB of memory that there are \(.*optimizer",
        r"generation-server needs [\d.]+ MB .*KV cache",
        r"together they need [\d.]+ MB on one machine",
        r"train.jsonl: \d+ prompts, every line was read",
        "the tokenizer gives the first 10 prompts back as they were",
        "the verifier numeric gives full marks to the answers of the first 10 lines",
        r"a generation-server with --threads 1 samples \d+ tokens a second, 16 samples at once, and \d+ with 1",
        r"a trainer with --threads 1 learns from \d+ tokens a second, .*\(a group of \d+ in .*\); a step takes",
        r"expect a round of mode sync to take .*: [\d.]+ samples and \d+ tokens a second",
        r"expect a round of mode pipelined, which the run has, to take",
        r"expect a round of mode inflight",
        r"this assumes 32 tokens for every sample \(the most they may have",
    ):
        assert hows(found, good) == ["ok"], (good, found)
    assert hows(found, "this machine's clock is") in (["ok"], ["warn"])
    assert len(hows(found, r"disk \(.+\) writes \d+ MB/s")) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"], "a check has left something"


def test_without_a_run_there_are_memory_ports_and_disks(base_model, flags, tmp_path):
    status, found, _ = before(tmp_path, "--model", base_model, *given(flags))
    assert status == 0 and hows(found, "together they need") == ["ok"] and hows(found, "samples .* tokens a second") == ["ok"]
    assert not [what for _, what in found if "expect a round" in what or "verifier" in what]


def test_what_stands_in_the_way_is_said(base_model, flags, tmp_path):
    run = grpo_config(2, groups=8, samples=4)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        status, found, _ = before(tmp_path, "--model", base_model, *given(flags, server=f"--port {port}"), run=run)
    assert status == 1 and hows(found, f"generation-server cannot listen on 127.0.0.1 port {port}: .*name another --port") == ["fail"]
    for program, line in (("trainer", r"trainer-server would not start: .* needs [\d.]+ MiB .*it would fit with|trainer-server would not start: .* needs [\d.]+ MiB"), ("server", r"generation-server would not start: .* needs [\d.]+ MiB")):
        status, found, _ = before(tmp_path, "--model", base_model, *given(flags, **{program: "--memory-max 900000"}), run=run)
        assert status == 1 and hows(found, line) == ["fail"], found
        assert not [what for _, what in found if "expect a round" in what]
    for change, line in (
        ({"dataset": {"path": "none.jsonl"}}, "run.json: a run of it would be refused: .*the data directory holds no file 'none.jsonl'"),
        ({"groups_per_round": 0}, "run.json: a run of it would be refused: .*groups_per_round"),
        ({"verifier": {"kind": "regex", "pattern": "^no answer looks so$"}}, "the verifier regex gives full marks to 0 of the first 10 answers"),
        ({"training": {**run["training"], "chunk_tokens": 8192}}, r"run.json: the trainer would refuse a run of it: .*\(--chunk-tokens\)"),
    ):
        status, found, _ = before(tmp_path, "--model", base_model, *given(flags), run={**run, **change})
        assert status == 1 and hows(found, line) == ["fail"], (line, found)
        assert "the verifier" in line or not [what for _, what in found if "expect a round" in what], found
    (tmp_path / "model").mkdir()
    shutil.copy(base_model / "config.json", tmp_path / "model/config.json")
    status, found, _ = before(tmp_path, "--model", tmp_path / "model", *given(flags), run=run)
    assert status == 1 and hows(found, "a run of it would be refused: the model's folder: .*tokenizer.json") == ["fail"]


def test_a_program_that_refuses_its_flags_or_is_not_there(base_model, flags, tmp_path):
    status, found, _ = before(tmp_path, "--model", base_model, *given(flags, trainer="--no-such-flag"), run=grpo_config(1))
    assert status == 1 and hows(found, "trainer-server cannot say what it would need: .*unknown flag --no-such-flag") == ["fail"]
    assert hows(found, "generation-server needs") == ["ok"]
    alone = tmp_path / "elsewhere"
    alone.mkdir()
    shutil.copy(BIN / "leasehold", alone / "leasehold")
    status, found, _ = before(tmp_path, "--model", base_model, *given(flags), program=alone / "leasehold", env={"PATH": "/nowhere"})
    assert status == 1 and len(hows(found, "there is no program .* beside this one or on PATH")) == 3


def test_a_folder_without_weights_needs_a_seed(flags, tmp_path):
    run = grpo_config(1, groups=4, samples=4)
    status, found, _ = before(tmp_path, "--model", DATA / "model", *given(flags), run=run)
    assert status == 1 and hows(found, "trainer-server would not start: .*holds no weights.*--random-init") == ["fail"]
    status, found, _ = before(tmp_path, "--model", DATA / "model", *given(flags, trainer="--random-init 1"), run=run)
    assert status == 0 and hows(found, "learns from") == ["ok"]


@pytest.mark.parametrize(
    "flags_of_the_trainer, change",
    [
        ("--lean", {}),
        ("--lean --optimizer-state mapped", {}),
        ("--recompute-activations", {}),
        ("--optimizer-moments 8bit", {"training": {"optimizer_moments": "8bit"}}),
        ("", {"update": "minibatch", "groups_per_step": 2}),
        ("", {"mode": "inflight", "max_lag": 1}),
        ("", {"training": {"kl_coefficient": 0}}),
        ("", {"training": {"teacher": "ab" * 32}}),
    ],
)
def test_every_kind_of_learning_can_be_measured(base_model, flags, tmp_path, flags_of_the_trainer, change):
    run = grpo_config(1, groups=4, samples=4)
    run.update({**change, "training": {**run["training"], **change.get("training", {})}})
    status, found, _ = before(tmp_path, "--model", base_model, *given(flags, trainer=flags_of_the_trainer), run=run)
    assert status == 0 and hows(found, "learns from") == ["ok"] and hows(found, "which the run has") == ["ok"], found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.json"], "a check has left something"


def test_a_supervised_run_has_a_pace_and_no_sampling(base_model, flags, tmp_path):
    status, found, _ = before(tmp_path, "--model", base_model, *given(flags), run={"recipe": "sft", "dataset": {"path": "warmup.jsonl"}, "rounds": 2})
    assert status == 0 and hows(found, "learns from") == ["ok"] and not [what for _, what in found if "expect a round" in what], found


def test_what_v_prints_can_be_run_by_hand(base_model, flags, tmp_path):
    status, _, error = before(tmp_path, "--model", base_model, *given(flags), "-v", run=grpo_config(1, groups=4, samples=4))
    commands = error.splitlines()
    assert status == 0 and len(commands) == 4 and all(line.startswith("printf %s '{") for line in commands), error
    for line, member in zip(commands, ("report", "memory", "memory", "round")):
        done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, cwd=tmp_path, timeout=60, check=True)
        assert json.loads(done.stdout)[member], line


def test_nobody_answers_and_what_helps():
    done = subprocess.run([BIN / "leasehold", "doctor", "--coordinator", "http://127.0.0.1:1"], capture_output=True, text=True, timeout=30)
    assert done.returncode == 3 and not done.stdout and "before any service runs: leasehold doctor [FILE] --model FOLDER" in done.stderr


def seconds(text):
    """Of show_duration."""
    units = {"ms": 1e-3, "s": 1, "min": 60, "h": 3600}
    return sum(float(value) * units[unit] for value, unit in re.findall(r"([\d.]+) (ms|s|min|h)", text))


def foreseen(found):
    return {mode: seconds(hows_text(found, rf"expect a round of mode {mode}(?:, which the run has,)? to take (.*?):")) for mode in ("sync", "pipelined")}


def hows_text(found, pattern):
    (match,) = [m for m in (re.search(pattern, what) for _, what in found) if m]
    return match[1]


def foresee_and_run(base_model, flags, folder):
    """What a round of each mode was foreseen to take before a real run and behind it, and what the quickest took: paces are the quickest that were measured, too."""
    run = grpo_config(10, groups=32, samples=8)
    run["sampling"].update(max_new_tokens=48, ignore_eos=True)
    folder.mkdir()
    first = foreseen(before(folder, "--model", base_model, *given(flags), "--measure-s", 3, run=run)[1])
    took = {}
    with Cluster(folder / "c", model=base_model, trainer=["--threads", 1]) as cluster:
        cluster.add_server("gen", "--threads", 1, "--slots", 16)
        for mode in first:
            made = cluster.create_run({**run, "mode": mode, "start": "model"})
            cluster.wait(made)
            rounds = call("GET", f"{cluster.coordinator.url}/v1/runs/{made}/timeline")["rounds"]
            took[mode] = min((b["opened_ms"] - a["opened_ms"]) / 1e3 for a, b in zip(rounds[1:], rounds[2:]))  # the pool loads weights in the first
    second = foreseen(before(folder, "--model", base_model, *given(flags), "--measure-s", 3, run=run)[1])
    return first, took, second


@pytest.mark.alone
def test_a_real_run_takes_about_as_long_as_foreseen(base_model, flags, tmp_path):
    """Within a factor of two of what was foreseen before or behind it, each service with a core of its own.  Other programs may take the cores meanwhile: three tries."""
    for attempt in range(3):
        first, took, second = foresee_and_run(base_model, flags, tmp_path / str(attempt))
        print("foreseen", first, "took", took, "foreseen", second)
        if all(min(first[mode], second[mode]) / 2 < took[mode] < 2 * max(first[mode], second[mode]) for mode in took):
            return
    raise AssertionError((first, took, second))
