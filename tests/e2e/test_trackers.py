"""Curves for trackers (--track-dir): every round and evaluation stands in every file once, with the figures of the API, whatever was killed meanwhile."""
import collections
import json
import math
import statistics
import subprocess

import pytest

import tracks
from harness import ROOT, SLOWLY, Cluster, call, grpo_config

ROUNDS = 30


def flags(folder, *more):
    return ["--track-dir", folder / "tracks", "--trackio-dir", folder / "trackio", *more]


def config(rounds=ROUNDS):
    made = grpo_config(rounds, groups=4, samples=4, evaluation=True)
    made["verifier"] = {"terms": [{"kind": "numeric"}, {"kind": "length", "max": 3, "weight": 0.125}]}
    made["training"]["kl_coefficient"] = 0.01
    made["evaluation"].update(every_rounds=10, problems=8, samples=2, after=True)
    return made


def steps_of(status):
    """Where training and evaluations must stand: (is it an evaluation, step)."""
    return sorted([(False, row["round"] + 1) for row in status["history"]] + [(True, row["round"]) for row in status["evaluations"]])


def is_evaluation(names):
    return any(name.startswith(("eval_", "val-")) for name in names)


def figures(line):
    return {name: value for name, value in line.items() if name not in ("round", "step", "run", "time")}


def check_whole(folder, run, status):
    """All three forms hold each entry once, and the same figures."""
    lines = tracks.lines(folder / "tracks" / run)
    expected = steps_of(status)
    assert sorted((is_evaluation(line), line["step"]) for line in lines) == expected
    events = list(tracks.events(folder / "tracks" / run))
    assert sorted((is_evaluation(values), step) for step, _, values in events) == expected
    for line, (step, time, values) in zip(lines, events):
        assert (line["step"], line["time"]) == (step, time) and set(values) == set(figures(line))
        assert all(math.isclose(values[name], value, rel_tol=1e-6, abs_tol=1e-30) for name, value in figures(line).items())
    fragments = {record["log_id"]: record for record in tracks.fragments(folder / "trackio")}
    assert sorted((is_evaluation(record["metrics"]), record["step"]) for record in fragments.values()) == expected
    by_step = {(is_evaluation(line), line["step"]): figures(line) for line in lines}
    assert all(record["metrics"] == by_step[is_evaluation(record["metrics"]), record["step"]] for record in fragments.values())
    return lines


def sampled(cluster, run, number):
    rows = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/rollouts?round={number}&limit=4096")["rollouts"]
    groups = collections.defaultdict(list)
    for row in rows:
        if row["purpose"] == "training":
            groups[row["group"]].append(row)
    return list(groups.values())


def check_figures(cluster, run, lines, status):
    """Those that the API shows, and those of samples, computed again from the rollouts."""
    trainings = [line for line in lines if not is_evaluation(line)]
    for line, row in zip(trainings, status["history"]):
        assert line["reward"] == row["reward_mean"] and line["loss"] == row["loss"] and line["entropy"] == row["entropy"]
        assert line["kl"] == row["reference"]["kl"] and line["grad_norm"] == row["grad_norm"] and line["learning_rate"] == row["lr"]
        assert line["step_time"] == pytest.approx(row["window_ms"] / 1000) and line["leasehold/exact"] == 1
        groups = sampled(cluster, run, row["round"])
        rewards = [[sample["reward"] for sample in group] for group in groups]
        lengths = [len(sample["token_ids"]) for group in groups for sample in group]
        assert line["reward_std"] == pytest.approx(statistics.mean(statistics.stdev(group) for group in rewards))
        for i, name in enumerate(("numeric", "length")):
            values = [sample["terms"][i]["value"] for group in groups for sample in group]
            assert line[f"rewards/{name}/mean"] == pytest.approx(statistics.mean(values)) and line[f"rewards/{name}/std"] == pytest.approx(statistics.stdev(values))
        assert line["frac_reward_zero_std"] == statistics.mean(len(set(group)) == 1 for group in rewards)
        assert line["completions/mean_length"] == pytest.approx(statistics.mean(lengths))
        assert (line["completions/min_length"], line["completions/max_length"]) == (min(lengths), max(lengths))
        assert line["completions/clipped_ratio"] == statistics.mean(sample["finish"] == "length" for group in groups for sample in group)
    assert any(line["kl"] > 0 for line in trainings), "the policy never left its reference"
    assert any(line["reward_std"] > 0 for line in trainings), "no reward differs from another: nothing is shown"
    evaluated = {line["step"]: line for line in lines if is_evaluation(line)}
    for row in status["evaluations"]:
        assert evaluated[row["round"]]["eval_reward"] == row["accuracy"]
        assert evaluated[row["round"]]["eval_pass@1"] == row["sets"][0]["pass_at"][0]["value"]


def test_every_round_is_written_once_whatever_is_killed_and_cut_off(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model, coordinator=flags(tmp_path)) as cluster:
        server = cluster.add_server("gen", "--slots", 16, SLOWLY)
        run = cluster.create_run(config())
        folder = tmp_path / "tracks" / run
        cluster.wait_until("two rounds are written while the run goes on", lambda: (folder / "metrics.jsonl").exists() and len(tracks.lines(folder)) >= 2)
        assert cluster.status(run)["state"] == "running"
        cluster.coordinator.kill()
        server.hurry()
        with open(folder / "metrics.jsonl", "r+b") as torn, open(tracks.event_file(folder), "r+b") as records:
            torn.truncate(torn.seek(0, 2) - 7)  # as a crash leaves a record that was being written
            records.seek(0, 2)
            records.write(b"\x40\x01\x00\x00\x00\x00\x00\x00half a record")
        cluster.coordinator.restart()
        status = cluster.wait(run)
        cluster.coordinator.stop()
        cluster.coordinator.restart()
        check_figures(cluster, run, check_whole(tmp_path, run, status), status)


@pytest.mark.long
def test_files_that_were_lost_are_written_again_under_either_naming_and_never_mixed(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.add_server("gen", "--slots", 16)
        run = cluster.create_run(config(2))
        status = cluster.wait(run)
        cluster.coordinator.stop()
        cluster.coordinator.restart([*cluster.coordinator.args, *flags(tmp_path, "--track-names", "verl")])
        cluster.coordinator.stop()
        lines = check_whole(tmp_path, run, status)
        first = next(line for line in lines if not is_evaluation(line))
        assert 0 <= first["leasehold/rewards/numeric/mean"] <= 1 and first["leasehold/rewards/length/std"] >= 0
        assert first["critic/score/mean"] == status["history"][0]["reward_mean"] and first["actor/grad_norm"] == status["history"][0]["grad_norm"]
        assert any(name.startswith("val-core/") and "/reward/mean@" in name for line in lines for name in line)
        about = tmp_path / "tracks" / run / "run.json"
        about.write_text(json.dumps({**json.loads(about.read_text()), "created_ms": 1}))  # as a database made before would have left it
        (tmp_path / "tracks" / run / "metrics.jsonl").write_text("")
        cluster.coordinator.restart([*cluster.coordinator.args, *flags(tmp_path)])
        cluster.coordinator.wait_log(f"tracking run {run}: .*run.json is of another database's run {run}; name another --track-dir")
        assert (tmp_path / "tracks" / run / "metrics.jsonl").read_text() == ""


PACKAGES = ["tensorboard==2.21.0", "trackio==0.43.0"]  # 250 MB with what they need


def python_with_packages():
    home = ROOT / "build/trackers"
    python = home / "bin/python"
    if subprocess.run([python, "-c", "import tensorboard, trackio"], capture_output=True).returncode if python.exists() else True:
        subprocess.run(["/usr/bin/python3", "-m", "venv", home], check=True)
        subprocess.run([python, "-m", "pip", "install", "-q", *PACKAGES], check=True)
    return python


@pytest.mark.long
def test_the_packages_read_what_the_lines_say(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model, coordinator=flags(tmp_path)) as cluster:
        cluster.add_server("gen", "--slots", 16)
        run = cluster.create_run(config())
        status = cluster.wait(run)
        cluster.coordinator.stop()
        lines = check_whole(tmp_path, run, status)
        done = subprocess.run([python_with_packages(), ROOT / "tests/trackers/read_back.py", tmp_path / "tracks" / run, tmp_path / "trackio"], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        read = json.loads(done.stdout)
        written = collections.defaultdict(list)
        for line in lines:
            for name, value in figures(line).items():
                written[name].append([line["step"], value])
        assert set(read["tensorboard"]) == set(written)
        for name, points in written.items():
            assert [step for step, _ in read["tensorboard"][name]] == [step for step, _ in points], name
            assert all(math.isclose(value, wanted, rel_tol=1e-6, abs_tol=1e-30) for (_, value), (_, wanted) in zip(read["tensorboard"][name], points)), name
        (record,) = read["trackio"]
        assert record["run"].startswith(run) and record["config"]["rounds"] == ROUNDS
        assert len(record["logs"]) == len(lines) == read["imported"][0], "an entry was taken in twice, or not at all"
        rewards = {log["step"]: log["reward"] for log in record["logs"] if "reward" in log}
        assert rewards == {line["step"]: line["reward"] for line in lines if "reward" in line}
