"""Datasets as people have them, in real runs: other people's forms, packed files, mixtures, and what is said of bad ones.

What would break: a preset or a packed file gives other prompts than the plain file; a mixture's prompts do not come by its weights; a fault of a file shows after
the run was accepted; what a reading stands for is not shown; a run trains before its datasets were checked, or overtakes one that is being checked.
"""
import gzip
import json
import re
import shutil
import subprocess

import pytest

from harness import ROOT, Cluster, HttpError, call, digests, grpo_config

PROBLEMS = [(f"{a}+{b}=", a + b) for a in range(4) for b in range(4)]


def lines(make):
    return "".join(json.dumps(make(*problem)) + "\n" for problem in PROBLEMS)


def gsm8k(question, answer):
    return {"question": question, "answer": f"It is <<{question}{answer}>>{answer}.\n#### {answer}"}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    (folder / "plain.jsonl").write_text(lines(lambda q, a: {"prompt": q, "answer": a}))
    with gzip.open(folder / "gsm8k.jsonl.gz", "wt") as f:
        f.write(lines(gsm8k))
    (folder / "verl.jsonl").write_text(lines(lambda q, a: {"prompt": [{"role": "user", "content": q}], "reward_model": {"ground_truth": str(a)}}))
    (folder / "bad.jsonl").write_text('{"question":"1+1=","answer":"2"}\n' * 5)
    (folder / "train.parquet").write_bytes(b"PAR1 and what follows")
    return folder


@pytest.fixture(scope="module")
def cluster(data, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("cluster") / "c", trainer=["--random-init", 1, "--chunk-tokens", 256], coordinator=["--data-dir", data]) as made:
        made.add_server("gen-1", "--threads", 1)
        made.wait_until("the trainer is registered", lambda: call("GET", made.coordinator.url + "/v1/workers")["workers"])
        yield made


def config(dataset, groups=8, **changes):
    made = grpo_config(1, groups=groups, samples=2)
    made["training"]["chunk_tokens"] = 256
    return {**made, "sampling": {"max_new_tokens": 4}, "dataset": dataset, **changes}


def test_the_status_counts_prompts_and_lines_left_out(cluster, data):
    (data / "long.jsonl").write_text(lines(lambda q, a: {"prompt": q + "0" * (q[0] == "3"), "answer": a}))
    sources = [{"path": "plain.jsonl"}, {"path": "long.jsonl", "prompt_tokens_max": 4, "long_prompts": "skip"}]
    run = cluster.run(config({"sources": sources}))
    assert run["dataset"] == {"prompts": 28, "left_out": 4, "sources": [{"path": "plain.jsonl", "prompts": 16, "left_out": 0}, {"path": "long.jsonl", "prompts": 12, "left_out": 4}]}


def groups_of(cluster, run, count):
    return cluster.query("SELECT prompt, answer FROM groups WHERE run = ? ORDER BY ordinal LIMIT ?", int(run["id"][1:]), count)


def test_a_preset_over_a_packed_file_is_the_plain_file(cluster):
    plain = cluster.run(config({"path": "plain.jsonl"}))
    packed = cluster.run(config({"path": "gsm8k.jsonl.gz", "preset": "gsm8k"}))
    assert groups_of(cluster, packed, 8) == groups_of(cluster, plain, 8)
    assert digests(packed) == digests(plain)
    assert packed["config"]["dataset"]["keys"]["prompt"] == "question" and packed["config"]["dataset"]["extract"] == "####"
    assert "keys" not in plain["config"]["dataset"] and plain["warnings"] == []


def test_a_mixture_comes_by_its_weights(cluster):
    sources = [{"path": "plain.jsonl", "weight": 3}, {"path": "verl.jsonl", "weight": 1, "preset": "verl", "template": "Q {prompt}"}]
    run = cluster.run(config({"sources": sources}, groups=16))
    prompts = [prompt for prompt, _ in groups_of(cluster, run, 16)]
    for first in range(0, 16, 4):
        assert sum("<|im_start|>user\nQ " in prompt for prompt in prompts[first:first + 4]) == 1, prompts
    assert run["warnings"] == ["dataset: messages became prompts in the ChatML form, because the model has no chat template"]
    answers = dict(PROBLEMS)
    for prompt, answer in groups_of(cluster, run, 16):
        question = prompt.split("Q ")[-1].split("<|im_end|>")[0]
        assert str(answers[question]) == answer


def refused(cluster, dataset):
    with pytest.raises(HttpError) as caught:
        cluster.create_run(config(dataset))
    assert caught.value.status == 422, caught.value
    return caught.value.json()["error"]


def test_bad_files_are_refused_with_what_they_would_have_needed(cluster):
    error = refused(cluster, {"path": "bad.jsonl"})
    assert error["field"] == "dataset.path" and "bad.jsonl line 1: prompt: expected exactly one of `prompt`, `messages`" in error["message"]
    assert "preset 'gsm8k' reads such lines; line 2: " in error["message"] and "; line 3: " in error["message"], error
    error = refused(cluster, {"path": "bad.jsonl", "preset": "gsm8k"})
    assert "line 1: answer: expected an answer after ####, got '2'" in error["message"], error
    error = refused(cluster, {"path": "train.parquet"})
    assert "deploy/parquet-to-jsonl" in error["message"] and (ROOT / "deploy/parquet-to-jsonl").exists(), error
    error = refused(cluster, {"sources": [{"path": "plain.jsonl"}, {"path": "bad.jsonl"}]})
    assert error["field"] == "dataset.sources" and "bad.jsonl line 1" in error["message"], error
    error = refused(cluster, {"path": "plain.jsonl", "prompt_tokens_max": 3})
    assert "plain.jsonl line 1: prompt" in error["message"], error


@pytest.mark.skipif(not shutil.which("zstd"), reason="there is no zstd program")
def test_a_file_packed_by_the_zstd_program(cluster, data):
    subprocess.run(["zstd", "-q", "-f", data / "plain.jsonl"], check=True)
    packed, plain = cluster.run(config({"path": "plain.jsonl.zst"})), cluster.run(config({"path": "plain.jsonl"}))
    assert groups_of(cluster, packed, 8) == groups_of(cluster, plain, 8)


def test_messages_become_prompts_by_the_models_own_template(data, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(ROOT / "deploy/demo/model", model)
    (model / "chat_template.jinja").write_text("{% for message in messages %}[{{ message.role }}] {{ message.content }}{% endfor %}{% if add_generation_prompt %}: {% endif %}")
    with Cluster(tmp_path / "c", model=model, trainer=["--random-init", 1, "--chunk-tokens", 256], coordinator=["--data-dir", data]) as cluster:
        cluster.add_server("gen-1", "--threads", 1)
        run = cluster.run(config({"path": "verl.jsonl", "preset": "verl"}))
        assert {prompt for prompt, _ in groups_of(cluster, run, 8)} <= {f"[user] {question}: " for question, _ in PROBLEMS} and run["warnings"] == []
        assert call("POST", cluster.services[-1].url + "/tokenize", {"messages": [{"role": "user", "content": "1+1="}]})["count"] == len("[user] 1+1=: ")


# --- datasets that take longer to check than a caller should wait ---


@pytest.fixture(scope="module")
def hasty(data, tmp_path_factory):
    """No time at all: every run is `checking` first."""
    with gzip.open(data / "large.jsonl.gz", "wb", compresslevel=1) as f:
        line = json.dumps({"prompt": "1+1=" + "+1" * 20, "answer": 2, "note": "x" * 400}) + "\n"
        for _ in range(60):
            f.write(line.encode() * 5000)
        f.write(b"{}\n")
    folder = tmp_path_factory.mktemp("hasty") / "c"
    with Cluster(folder, trainer=["--random-init", 1, "--chunk-tokens", 256], coordinator=["--data-dir", data, "--check-ms", 0]) as made:
        made.add_server("gen-1", "--threads", 1)
        made.wait_until("the trainer is registered", lambda: call("GET", made.coordinator.url + "/v1/workers")["workers"])
        yield made


def states_of(cluster, run):
    return [json.loads(text)["state"] for (text,) in cluster.query("SELECT data FROM events WHERE run = ? AND type = 'state' ORDER BY id", int(run[1:]))]


def test_a_run_that_was_checked_late_is_the_same(cluster, hasty):
    late = hasty.run(config({"path": "plain.jsonl"}))
    assert states_of(hasty, late["id"])[:3] == ["checking", "queued", "starting"]
    assert digests(late) == digests(cluster.run(config({"path": "plain.jsonl"})))


def test_a_dataset_that_is_refused_late_fails_the_run_before_it_begins(hasty):
    run = hasty.create_run(config({"path": "bad.jsonl"}))
    status = hasty.wait(run, state="failed")
    assert "dataset.path: bad.jsonl line 1: prompt: expected exactly one of `prompt`, `messages`" in status["error"] and "; line 3: " in status["error"]
    assert status["ended_ms"] and status["started_ms"] is None and status["dataset"] is None and status["history"] == []
    assert states_of(hasty, run) == ["checking", "failed"]
    for verb in ("pause", "resume"):
        with pytest.raises(HttpError) as caught:
            call("POST", f"{hasty.coordinator.url}/v1/runs/{run}/{verb}", {})
        assert caught.value.status == 409


def test_runs_wait_behind_one_that_is_checked(hasty):
    """The check survives the coordinator, says how far it is, and ends when the run is stopped."""
    large = hasty.create_run(config({"path": "large.jsonl.gz"}))
    behind = hasty.create_run(config({"path": "plain.jsonl"}))
    hasty.wait_until("the check is under way", lambda: "the check of large.jsonl.gz: " in (hasty.status(large)["waiting_for"] or ""))
    hasty.coordinator.kill()
    hasty.coordinator.restart(args=[10000 if arg == 0 else arg for arg in hasty.coordinator.args])
    hasty.wait_until("the trainer is registered", lambda: call("GET", hasty.coordinator.url + "/v1/workers")["workers"])
    last = hasty.create_run(config({"path": "plain.jsonl"}))
    assert hasty.status(last)["state"] == "queued"
    far = hasty.wait_until("the check goes on", lambda: re.match(r"the check of large.jsonl.gz: ([1-9]\d*) lines were read", hasty.status(large)["waiting_for"] or ""))
    assert int(far[1]) < 300000 and [hasty.status(run)["state"] for run in (large, behind, last)] == ["checking", "checking", "queued"]
    assert call("POST", f"{hasty.coordinator.url}/v1/runs/{large}/stop", {})["state"] == "stopped"
    assert hasty.wait(last)["started_ms"] > hasty.wait(behind)["ended_ms"] and hasty.status(large)["started_ms"] is None
