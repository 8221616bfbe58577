"""An engine that takes a whole round at once: where every row slows every row, the coordinator begins a round with few groups and goes on with one more at a
time, from costs, speeds and lengths that it measured in the rounds before.  What would break: a plan that is never made in a real run, or that nobody sees;
a plan under another frontier; weights that depend on it.  What it is worth is measured by make sim and make bench-pipeline, not here.
"""
import json
import shutil

import pytest

from harness import DATA, Cluster, digests, grpo_config

pytestmark = pytest.mark.alone

ROUNDS, GROUPS, SAMPLES, SHORTEST, LONGEST = 3, 12, 128, 40, 100
QUICK = ["--heartbeat-ms", 100, "--batch-tokens", 4000]  # a group a batch
WHOLE_ROUND = ["--slots", GROUPS * SAMPLES]
SLOW = ["--isa", "v3"]  # a round that is over too soon is not planned
FIGURES = {"first", "spacing_ms", "ordered", "expected_end_ms", "filled_end_ms"}


def config(frontier):
    made = grpo_config(ROUNDS, groups=GROUPS, samples=SAMPLES)
    made["verify_samples"] = False  # groups are sealed once their samples are in
    made.update(frontier=frontier, sampling={"temperature": 1, "max_new_tokens": LONGEST, "ignore_eos": True}, filter={"zero_advantage": "keep"})
    return made


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Lines that say how long their samples are: so an engine has many rows at first and few at last, and the cost of both is seen."""
    folder = tmp_path_factory.mktemp("data")
    lines = [json.loads(line) for line in (DATA / "train.jsonl").read_text().splitlines()[:64]]
    for index, line in enumerate(lines):
        line["max_new_tokens"] = SHORTEST + 7 * index % (LONGEST - SHORTEST)
    (folder / "train.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.copy(DATA / "validation.jsonl", folder)
    return folder


@pytest.fixture(scope="module")
def statuses(tmp_path_factory, base_model, data):
    played = {}
    trainer = ["--threads", 1, *SLOW]
    with Cluster(tmp_path_factory.mktemp("admission"), model=base_model, coordinator=["--data-dir", data, *QUICK], trainer=trainer) as cluster:
        cluster.add_server("gen-1", "--threads", 1, *WHOLE_ROUND, *SLOW)
        for frontier in ("priority", "off", "gate"):
            run = cluster.create_run(config(frontier))
            cluster.wait(run)
            played[frontier] = cluster.status(run)
            begun = cluster.query(
                "SELECT round, ordinal, leased_ms, sealed_ms FROM groups WHERE run = ? ORDER BY round, leased_ms", int(run.removeprefix("r"))
            )
            played[frontier]["begun"] = [[row for row in begun if row[0] == r] for r in range(ROUNDS)]
    return played


def test_a_plan_is_made_where_rows_are_dear_and_is_kept(statuses):
    status = statuses["priority"]
    plans = [row["admission"] for row in status["history"]]
    assert plans[0] is None  # nothing was measured
    assert all(set(plan) == FIGURES for plan in plans if plan), plans
    ramps = [r for r, plan in enumerate(plans) if plan and plan["first"]]
    assert ramps, plans
    for r in ramps:
        plan = plans[r]
        assert 1 <= plan["first"] < GROUPS and plan["spacing_ms"] > 0
        assert 0 < plan["expected_end_ms"] < plan["filled_end_ms"]
        begun = [row[2] for row in status["begun"][r]]
        sealed = sorted(row[3] for row in status["begun"][r])
        for n, leased_ms in enumerate(begun[plan["first"] :]):  # not sooner than planned, unless nothing was under way
            due_ms = (n + 1) * plan["spacing_ms"]
            under_way = plan["first"] + n - sum(at_ms <= leased_ms for at_ms in sealed)
            assert leased_ms - begun[0] >= due_ms - 2 or under_way == 0, (r, n, plan, begun, sealed)


def test_nothing_is_planned_under_another_frontier(statuses):
    for frontier in ("off", "gate"):
        assert all(row["admission"] is None for row in statuses[frontier]["history"])


def test_the_weights_do_not_depend_on_it(statuses):
    reference = digests(statuses["off"])
    assert len(reference) == ROUNDS
    for status in statuses.values():
        assert digests(status) == reference
        assert all(row["exact"] for row in status["history"])
