"""Verifiers from outside: POST /v1/verify judges completions without a run, and a run's rewards are the sum of its terms, each of them kept with its sample."""
import json

import pytest

from harness import Cluster, HttpError, call, grpo_config

MATH = {"kind": "math"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    folder = tmp_path_factory.mktemp("verify")
    (folder / "latex.jsonl").write_text("".join(json.dumps({"prompt": f"{n}+1=", "answer": f"\\frac{{{n + 1}}}{{1}}"}) + "\n" for n in range(8)))
    (folder / "tuple.jsonl").write_text('{"prompt":"1+1=","answer":"2"}\n{"prompt":"1+1=","answer":"\\\\frac{1}"}\n')
    with Cluster(folder / "cluster", trainer=["--random-init", 1], coordinator=["--data-dir", folder]) as made:
        made.add_server("gen", "--slots", 8)
        yield made


def verified(cluster, verifier, *samples):
    return call("POST", cluster.coordinator.url + "/v1/verify", {"verifier": verifier, "samples": list(samples)})["results"]


def test_a_dry_run_says_what_each_term_is_worth(cluster):
    rule = {"terms": [MATH, {"kind": "format", "tags": ["think", "answer"], "weight": 0.5}, {"kind": "length", "max": 10, "weight": 0.25}]}
    good = {"completion": "<think>1/4 it is</think> <answer>\\boxed{\\frac14}</answer>", "answer": "0.25", "tokens": 10}
    right, wrong = verified(cluster, rule, good, {**good, "completion": "\\boxed{\\frac{3}{4}}", "tokens": 11})
    assert right["reward"] == 1.75 and [term["value"] for term in right["terms"]] == [1, 1, 1]
    assert wrong["reward"] == 0 and wrong["well_formed"]
    assert right["detail"] == "math 1, format 1 x 0.5, length 1 x 0.25; answer \\frac14, expected 0.25"


def test_a_dry_run_says_which_line_cannot_be_judged_by(cluster):
    judged, not_judged = verified(cluster, MATH, {"completion": "$(3,4)$", "answer": "(3, 4)"}, {"completion": "1", "answer": "\\frac{1}"})
    assert judged["reward"] == 1 and "error" not in judged
    assert "in LaTeX" in not_judged["error"] and "reward" not in not_judged
    by_its_line = {"completion": '{"a": 1}', "schema": {"required": ["a"]}}
    assert [one["reward"] for one in verified(cluster, {"kind": "json_schema"}, by_its_line, {**by_its_line, "completion": "{}"})] == [1, 0]
    assert verified(cluster, {"kind": "countdown"}, {"completion": "3*4-2", "numbers": [2, 3, 4], "target": 10})[0]["reward"] == 1


def test_a_run_keeps_every_part_of_its_rewards(cluster):
    rule = {"terms": [MATH, {"kind": "length", "min": 1, "weight": 0.5}, {"kind": "regex", "pattern": "\\d", "weight": 0.25}]}
    run = cluster.run({**grpo_config(1, groups=2, samples=2), "dataset": {"path": "latex.jsonl"}, "verifier": rule})
    assert run["config"]["verifier"]["terms"][1] == {"kind": "length", "min": 1, "weight": 0.5}
    rollouts = call("GET", f"{cluster.coordinator.url}/v1/runs/{run['id']}/rollouts?round=0")["rollouts"]
    assert len(rollouts) == 4
    preview = [text for text in cluster.coordinator.log.read_text().split("\n") if "its answer as a completion would earn" in text]
    assert len(preview) == 3 and "latex.jsonl line 2" in preview[1] and "earn 1.25 (math 1, length 0 x 0.5, regex 1 x 0.25" in preview[1]
    for rollout in rollouts:
        digit = any(c.isdigit() for c in rollout["text"])
        again = verified(cluster, rule, {"completion": rollout["text"], "answer": rollout["answer"], "tokens": len(rollout["token_ids"])})[0]
        assert rollout["reward"] == again["reward"] and rollout["detail"] == again["detail"]
        assert f"length 1 x 0.5, regex {int(digit)} x 0.25" in rollout["detail"]


def test_a_gold_that_cannot_be_read_is_refused_with_its_line(cluster):
    with pytest.raises(HttpError) as refused:
        call("POST", cluster.coordinator.url + "/v1/runs", {**grpo_config(1), "dataset": {"path": "tuple.jsonl"}, "verifier": MATH})
    assert refused.value.status == 422 and "tuple.jsonl line 2" in str(refused.value)
