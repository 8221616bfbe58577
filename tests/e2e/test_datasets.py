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
    hasty.coordinator.slow_down()  # or the check might be over before anybody looks
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
    hasty.coordinator.hurry()
    assert hasty.wait(last)["started_ms"] > hasty.wait(behind)["ended_ms"] and hasty.status(large)["started_ms"] is None


# --- curricula ---


@pytest.fixture(scope="module")
def known(data):
    """Sixteen prompts; where completions must have three tokens, every one of the odd ones' passes, and none of the others'."""
    (data / "known.jsonl").write_text("".join(json.dumps({"prompt": f"{n}+1=", "max_new_tokens": 4 if n % 2 else 2}) + "\n" for n in range(16)))


def test_a_check_shows_an_excerpt_of_long_answers(cluster, data):
    """Rows of a megabyte made an answer of ten."""
    line = {"prompt": "1+1=", "answer": "x" + "\u00fc" * 500000}
    (data / "long-answers.jsonl").write_text((json.dumps(line, ensure_ascii=False) + "\n") * 10)
    report = call("POST", f"{cluster.coordinator.url}/v1/check-run", config({"path": "long-answers.jsonl"}, verifier={"kind": "length", "min": 3}))
    failures = report["verifier"]["failures"]
    assert len(failures) == 10 and all(row["answer"] == "x" + "\u00fc" * 511 and row["answer_cut"] for row in failures)
    (data / "long-answers.jsonl").write_text(json.dumps({**line, "answer": "2"}) + "\n")
    report = call("POST", f"{cluster.coordinator.url}/v1/check-run", config({"path": "long-answers.jsonl"}, verifier={"kind": "length", "min": 3}))
    assert [(row["answer"], row["answer_cut"]) for row in report["verifier"]["failures"]] == [("2", False)]


LONG_ENOUGH = {"verifier": {"kind": "length", "min": 3}, "sampling": {"max_new_tokens": 4, "ignore_eos": True}}


def curriculum_config(rounds, curriculum, **changes):
    made = config({"path": "known.jsonl", "curriculum": curriculum}, filter={"zero_advantage": "keep"}, **LONG_ENOUGH, **changes)
    return {**made, "rounds": rounds}


def taken(cluster, run, whole=False):
    """The prompts of every round in order, or the numbers that they begin with."""
    rows = cluster.query("SELECT round, prompt FROM groups WHERE run = ? ORDER BY round, ordinal", int(run["id"][1:]))
    return [[prompt if whole else int(prompt.split("+")[0]) for number, prompt in rows if number == round] for round in range(run["rounds"])]


@pytest.mark.parametrize("mode", ["pipelined", pytest.param("sync", marks=pytest.mark.long)])
def test_prompts_that_every_sample_solves_rest_for_an_epoch(cluster, known, mode):
    """Epoch 0 is two rounds, epoch 1 has the even prompts only, and in epoch 2 all come again: rounds 3 and 4."""
    run = cluster.run(curriculum_config(5, {"rate_max": 0.9}, mode=mode))
    rounds = taken(cluster, run)
    assert sorted(rounds[0] + rounds[1]) == sorted(rounds[3] + rounds[4]) == list(range(16))
    assert sorted(rounds[2]) == list(range(0, 16, 2))
    without = cluster.run(curriculum_config(5, None, mode=mode))
    plain = taken(cluster, without)
    order = [prompt for round in plain for prompt in round]
    assert rounds[:2] == plain[:2] and rounds[2] == [prompt for prompt in order[16:32] if prompt % 2 == 0]
    assert sum(row["passed_over"] for row in run["history"]) == 8 and all(row["passed_over"] is None for row in without["history"])
    assert run["config"]["dataset"]["curriculum"] == {"rate_min": 0, "rate_max": 0.9, "pass_reward": 1, "rest_epochs": 1}


def test_a_sum_of_weights_that_make_one_passes(cluster, known):
    """In doubles 0.7 + 0.2 + 0.1 is 0.9999999999999999."""
    terms = [{**LONG_ENOUGH["verifier"], "weight": weight} for weight in (0.7, 0.2, 0.1)]
    run = cluster.run({**curriculum_config(3, {"rate_max": 0.9}), "verifier": {"terms": terms}})
    assert cluster.query("SELECT max(reward) < 1 FROM samples WHERE run = ?", int(run["id"][1:])) == [(1,)]
    assert sorted(taken(cluster, run)[2]) == list(range(0, 16, 2))


def test_refills_are_looked_for_behind_the_rounds_prompts(cluster, known):
    """Every group is without a signal, so each is refilled once; prompts that nobody solves rest."""
    run = cluster.run({**curriculum_config(3, {"rate_min": 0.1, "rest_epochs": 5}), "groups_per_round": 4, "filter": {"zero_advantage": "refill", "refill_max": 4}})
    rounds = taken(cluster, run)
    assert [len(round) for round in rounds] == [8, 8, 8] and sorted(rounds[0] + rounds[1]) == list(range(16))
    assert sorted(rounds[2]) == list(range(1, 16, 2)) and run["history"][2]["passed_over"] > 0


def test_an_earlier_runs_rates_are_known_from_the_start(cluster, known):
    measured = config({"path": "known.jsonl"}, groups=0, **LONG_ENOUGH)
    measured = cluster.run({**measured, "training": {"objective": "evaluate"}})
    run = cluster.run(curriculum_config(1, {"rate_min": 0.5, "from": measured["id"]}))
    assert sorted(taken(cluster, run)[0]) == list(range(1, 16, 2)) and run["history"][0]["passed_over"] >= 7
    for source, message in (("r99", "there is no run 'r99'"), (cluster.run(config({"path": "plain.jsonl"}))["id"], "uses another dataset")):
        with pytest.raises(HttpError) as caught:
            cluster.create_run(curriculum_config(1, {"rate_min": 0.5, "from": source}))
        assert caught.value.status == 422 and caught.value.json()["error"]["field"] == "dataset.curriculum.from" and message in caught.value.json()["error"]["message"]


def test_a_curriculum_takes_the_same_prompts_in_both_modes(data, base_model, tmp_path):
    """With rewards that differ, refills, and two servers whose groups are complete in another order each time."""
    (data / "few.jsonl").write_text("".join((ROOT / "deploy/demo/train.jsonl").read_text().splitlines(keepends=True)[:8]))
    with Cluster(tmp_path / "c", model=base_model, trainer=["--chunk-tokens", 512], coordinator=["--data-dir", data]) as cluster:
        for n in (1, 2):
            cluster.add_server(f"gen-{n}", "--threads", 1, "--slots", 3)
        made = {**grpo_config(5, groups=6, samples=3), "dataset": {"path": "few.jsonl", "curriculum": {"rate_min": 0.1, "rate_max": 0.9}}, "lease_samples_max": 1, "filter": {"zero_advantage": "refill"}}
        made["training"]["chunk_tokens"] = 512
        sync, pipelined = (cluster.run({**made, "mode": mode}) for mode in ("sync", "pipelined"))
        assert digests(sync) == digests(pipelined) and len(set(digests(sync))) == 5
        assert taken(cluster, sync, whole=True) == taken(cluster, pipelined, whole=True)
        assert [row["passed_over"] for row in sync["history"]] == [row["passed_over"] for row in pipelined["history"]] and sync["history"][-1]["passed_over"] > 0
