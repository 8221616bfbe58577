"""Evaluations: several sets before, during and after a run, their figures held against an implementation of its own, compared, and their best checkpoints kept."""
import json
import pathlib
import random
import subprocess
import sys

import pytest

from harness import DATA, SLOWLY, Cluster, HttpError, call, digests, grpo_config

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "evaluation"))
import definition as reference

ROUNDS, SAMPLES, PROBLEMS = 4, 4, 12


class Estimates:
    """tests/evaluation/estimates.c: the services' own statistics."""

    def __init__(self):
        program = ROOT / "build/tests/estimates"
        subprocess.run(["make", "-s", "-C", ROOT, "build/tests/estimates"], check=True)
        self.process = subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, *words):
        print(*(format(w, ".17g") if isinstance(w, float) else w for w in words), file=self.process.stdin, flush=True)
        return [float(word) for word in self.process.stdout.readline().split()]


@pytest.fixture(scope="module")
def estimates():
    made = Estimates()
    yield made
    made.process.stdin.close()
    assert made.process.wait(timeout=10) == 0


def close(a, b):
    return abs(a - b) <= 1e-12


def test_pass_at_k_is_the_share_of_subsets(estimates):
    for n in range(1, 10):
        for c in range(n + 1):
            for k in range(1, n + 1):
                assert close(estimates("pass", n, c, k)[0], reference.pass_at_k(n, c, k)), (n, c, k)
    draw = random.Random(1)
    for _ in range(200):
        n = draw.randint(10, 1024)
        c, k = draw.randint(0, n), draw.randint(1, n)
        assert close(estimates("pass", n, c, k)[0], reference.pass_at_k(n, c, k)), (n, c, k)


def test_a_majority_is_counted_alike(estimates):
    draw = random.Random(2)
    for _ in range(500):
        votes = [(draw.choice([0, 1, 2, 3, 18446744073709551615]), draw.random() < 0.3) for _ in range(draw.randint(1, 12))]
        assert close(estimates("majority", *(f"{a}:{int(p)}" for a, p in votes))[0], reference.majority(votes)), votes


def test_intervals_are_alike_and_cover(estimates):
    draw = random.Random(3)
    covered = cases = 0
    for _ in range(300):
        n, samples, p = draw.randint(1, 60), draw.choice([1, 2, 8]), draw.random()
        values = [sum(draw.random() < p for _ in range(samples)) / samples for _ in range(n)]
        ours = estimates("interval", float(n * samples), *values)
        assert all(map(close, ours, reference.interval(values, n * samples))), values
        assert 0 <= ours[1] <= ours[0] <= ours[2] <= 1
        covered += ours[1] <= p <= ours[2]
        cases += 1
    assert covered / cases > 0.9, "95 % intervals"
    assert estimates("interval", 3.0, 1.0, 1.0, 1.0)[1] < 0.5, "three of three are no certainty"


def test_a_bootstrap_is_alike_draw_by_draw(estimates):
    draw = random.Random(4)
    for n in (1, 2, 3, 4, 5, 17, 64):
        differences = [draw.choice([-1.0, 0.0, 0.0, 0.25, 1.0]) for _ in range(n)]
        seed = draw.randrange(1 << 31)
        ours, theirs = estimates("bootstrap", seed, 100 + n, *differences), reference.bootstrap(differences, seed, 100 + n)
        assert all(map(close, ours, theirs)), (differences, seed)


# ---- real runs ----


def config(**changes):
    run = grpo_config(ROUNDS, groups=4, samples=4)
    run["evaluation"] = {
        "before": True,
        "every_rounds": 2,
        "after": True,
        "samples": SAMPLES,
        "sets": [{"name": "held out", "path": "validation.jsonl", "problems": PROBLEMS}, {"path": "train.jsonl", "problems": 5, "samples": 2, "temperature": 0.5}],
    }
    run.update(keep_rounds=1, keep_last=1, keep_best={"set": "held out", "figure": "pass@1"})
    run["training"]["checkpoint_every"] = ROUNDS
    run.update(changes)
    return run


def folders(cluster, run):
    return sorted(int(path.name[1:]) for path in (cluster.folder / "state" / run).glob("v*"))


@pytest.fixture(scope="module")
def cluster(base_model, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("evaluation"), model=base_model) as made:
        made.add_server("gen", "--slots", 16)
        made.first = made.run(config())
        yield made


def get(cluster, path):
    return call("GET", cluster.coordinator.url + path)


def items(cluster, run, round, name):
    return get(cluster, f"/v1/runs/{run}/evaluation?round={round}&set={name.replace(' ', '%20')}")["items"]


def test_sets_are_evaluated_before_during_and_after(cluster):
    status = cluster.first
    assert [(e["round"], e["version"]) for e in status["evaluations"]] == [(0, 0), (2, 2), (3, 3), (4, 4)]
    assert len(status["history"]) == ROUNDS and status["version"] == ROUNDS
    for evaluation in status["evaluations"]:
        held, train = evaluation["sets"]
        assert (held["name"], held["problems"], held["samples"]) == ("held out", PROBLEMS, PROBLEMS * SAMPLES)
        assert (train["name"], train["problems"], train["samples"]) == ("train", 5, 10)
        assert [p["k"] for p in held["pass_at"]] == [1, 2, 4] and [p["k"] for p in train["pass_at"]] == [1, 2]
        assert evaluation["samples"] == held["samples"] + train["samples"]


def test_figures_are_those_of_the_problems(cluster):
    """Of every evaluation, though the rollouts of all but the last round are dropped."""
    with pytest.raises(HttpError) as dropped:
        get(cluster, "/v1/runs/r1/rollouts?round=0")
    assert dropped.value.status == 410
    for evaluation in cluster.first["evaluations"]:
        for figures in evaluation["sets"]:
            found = items(cluster, "r1", evaluation["round"], figures["name"])
            n = found[0]["samples"]
            assert len(found) == figures["problems"] and all(i["samples"] == n == len(i["rewards"]) and sum(i["rewards"]) == i["passed"] for i in found)
            assert close(figures["accuracy"], sum(sum(i["rewards"]) for i in found) / figures["samples"])
            for p in figures["pass_at"]:
                expected = reference.interval([reference.pass_at_k(n, i["passed"], p["k"]) for i in found], len(found) * (n // p["k"]))
                assert all(map(close, (p["value"], p["low"], p["high"]), expected)), p
            expected = reference.interval([i["majority"] for i in found], len(found))
            assert all(map(close, (figures["majority"][key] for key in ("value", "low", "high")), expected))


def test_a_majority_is_that_of_the_answers(cluster):
    """Of the last evaluation, whose rollouts are there: numeric verdicts name the answer that was read."""
    rollouts = get(cluster, f"/v1/runs/r1/rollouts?round={ROUNDS}&limit=4096")["rollouts"]
    groups = {}
    for r in rollouts:
        assert r["purpose"] == "evaluation"
        groups.setdefault(r["group"], []).append((r["detail"].partition("answer ")[2].partition(",")[0] if r["well_formed"] else 0, r["reward"] == 1))
    votes = list(groups.values())
    expected = [reference.majority(v) for v in votes]
    assert [i["majority"] for name in ("held out", "train") for i in items(cluster, "r1", ROUNDS, name)] == expected


def test_two_evaluations_are_compared(cluster):
    for figure, value in (("accuracy", lambda i: sum(i["rewards"]) / i["samples"]), ("pass@2", lambda i: reference.pass_at_k(i["samples"], i["passed"], 2)), ("majority", lambda i: i["majority"])):
        a, b = ({i["content"]: value(i) for i in items(cluster, "r1", r, "held out")} for r in (0, ROUNDS))
        differences = [b[content] - a[content] for content in sorted(a)]
        answer = get(cluster, f"/v1/compare?a=r1.0&b=r1&figure={figure}&resamples=300&seed=5")
        expected = reference.bootstrap(differences, 5, 300)
        assert all(map(close, (answer[key] for key in ("difference", "low", "high", "p_value")), expected)), (answer, expected)
        assert answer["problems"] == PROBLEMS and answer["a_alone"] == answer["b_alone"] == 0
        assert (answer["a"]["version"], answer["b"]["version"], answer["b"]["digest"]) == (0, ROUNDS, cluster.first["weights_digest"])
        assert (answer["b_better"], answer["a_better"]) == (sum(d > 0 for d in differences), sum(d < 0 for d in differences))


@pytest.mark.parametrize(
    ("query", "status", "field"),
    [
        ("a=r1.0", 422, "b"),
        ("a=r1.1&b=r1.0", 404, "a"),
        ("a=r1.0&b=r9", 404, "b"),
        ("a=r1.0&b=r1.4&set=none", 404, "set"),
        ("a=r1.0&b=r1.4&figure=pass@5", 422, "figure"),
        ("a=r1.0&b=r1.4&figure=mean", 422, "figure"),
        ("a=r1.0&b=r1.4&resamples=99", 422, "resamples"),
    ],
)
def test_a_comparison_that_cannot_be_is_refused(cluster, query, status, field):
    with pytest.raises(HttpError) as caught:
        get(cluster, f"/v1/compare?{query}")
    assert (caught.value.status, caught.value.json()["error"]["field"]) == (status, field)


def best_of(status):
    return max(status["evaluations"], key=lambda e: (e["sets"][0]["pass_at"][0]["value"], -e["version"]))["version"]


def test_the_last_and_the_best_checkpoint_are_kept(cluster):
    status = cluster.first
    kept = {c["version"]: c["best"] for c in status["checkpoints"]}
    assert set(kept) == set(folders(cluster, "r1")) and {0, ROUNDS} <= set(kept)
    assert kept[best_of(status)] and sum(kept.values()) == 1
    before = max((e for e in status["evaluations"] if e["version"] < ROUNDS), key=lambda e: (e["sets"][0]["pass_at"][0]["value"], -e["version"]))["version"]
    assert set(kept) == {0, before, ROUNDS}, "version 0, the best when the last one was written, and that one"


def test_a_kept_checkpoint_is_evaluated_and_is_where_a_run_begins(cluster):
    """Its weights were evaluated in the run already: the same problems, and the run that follows tells where they came from."""
    best = best_of(cluster.first)
    again = json.loads((DATA / "runs/evaluate.json").read_text())
    again.update(dataset={"sources": [{"path": "validation.jsonl"}, {"path": "train.jsonl"}], "shuffle": False}, groups_per_round=132, samples_per_group=1, start={"run": "r1", "version": "best"})
    again["sampling"]["temperature"] = 0
    status = cluster.run(again)
    assert status["config"]["start"] == {"run": "r1", "version": best}
    assert [s["name"] for s in status["evaluations"][0]["sets"]] == ["validation", "train"]
    ((digest,),) = cluster.query("SELECT lower(hex(digest)) FROM versions WHERE run = 1 AND version = ?", best)
    assert status["weights_digest"] == digest
    assert status["weights_from"] == [{"run": "r1", "version": best, "digest": digest}]
    answer = get(cluster, f"/v1/compare?a=r1.{ROUNDS}&b={status['id']}&set=held%20out&b_set=validation")
    assert answer["problems"] == PROBLEMS and answer["a_alone"] == 0 and answer["b_alone"] == status["evaluations"][0]["sets"][0]["problems"] - PROBLEMS
    following = cluster.run(config(start="current", rounds=1, keep_best=None, evaluation=None))
    assert following["weights_from"] == status["weights_from"] and following["config"].get("keep_best") is None
    last = cluster.run(config(start={"run": following["id"], "version": "latest"}, rounds=1, keep_best=None, evaluation=None))
    assert last["config"]["start"] == {"run": following["id"], "version": 1}
    assert [(v["run"], v["version"]) for v in last["weights_from"]] == [(following["id"], 1), ("r1", best)]
    assert cluster.first["weights_from"] == []


def test_an_evaluation_changes_no_weights_and_a_restart_ends_it_alike(cluster, base_model, tmp_path):
    """Without any; and with a trainer and a coordinator killed while the last version is evaluated."""
    plain = cluster.run(config(evaluation=None, keep_best=None))
    assert digests(plain) == digests(cluster.first)
    with Cluster(tmp_path, model=base_model) as killed:
        server = killed.add_server("gen", "--slots", 4, SLOWLY)
        run = killed.create_run(config())
        server.freeze_when("the last version", lambda: killed.query("SELECT 1 FROM versions WHERE version = ?", ROUNDS))
        killed.trainer.kill()
        killed.coordinator.kill()
        assert killed.query("SELECT ended_ms FROM runs WHERE id = ?", int(run[1:])) == [(None,)]
        server.hurry()
        killed.coordinator.restart()
        killed.trainer.restart()
        status = killed.wait(run)
        assert digests(status) == digests(cluster.first)
        assert status["evaluations"] == cluster.first["evaluations"] and status["checkpoints"] == cluster.first["checkpoints"]
        assert folders(killed, run) == folders(cluster, "r1")
