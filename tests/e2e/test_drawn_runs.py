"""Runs drawn with a seed, on pools drawn with it: every one comes to its end, and none stands still on its way.

What would break: a wake-up that is lost where two features meet.  The run ends with the right weights then, because every wait has a deadline, but it has
waited for one.  As a program, for more of them: test_drawn_runs.py [seed [pools [milliseconds in which something must move]]].
"""
import json
import pathlib
import random
import sys
import tempfile

import pytest

from harness import DATA, Cluster, grpo_config
from test_preprocess import preprocessor

QUIET_MS = 5000  # a machine with much other work takes a while; a lease's poll waits for 15 s
RUNS_OF_POOL = 6
MOMENTS = {
    "rounds": ("opened_ms", "generated_ms", "submitted_ms", "trained_ms", "step_begun_ms", "published_ms"),
    "batches": ("submitted_ms", "done_ms"),
    "groups": ("leased_ms", "sealed_ms"),
    "leases": ("granted_ms",),
}


def filter_of(dice):
    kind = dice.choice(("keep", "shrink", "refill", "refill"))
    return {"zero_advantage": kind, **({"refill_max": dice.choice((1, 3, 20))} if kind == "refill" else {})}


def evaluation_of(dice):
    return {"before": dice.random() < 0.5, "every_rounds": dice.choice((1, 2)), "samples": dice.choice((1, 2)), "sets": [{"name": "held out", "path": "test.jsonl", "problems": dice.choice((1, 5))}]}


def rollouts_of(dice):
    """What is sampled and how it is judged."""
    made = grpo_config(dice.randint(2, 5), seed=dice.randint(1, 99), groups=dice.randint(1, 8), samples=dice.choice((2, 4, 6)))
    made["sampling"].update(max_new_tokens=dice.choice((1, 4, 12)), ignore_eos=dice.random() < 0.3)
    made["verifier"] = {"kind": "regex", "pattern": dice.choice(("[a-h]", "[0-9]", ".*", "zzz"))}
    made.update(verify_samples=dice.random() < 0.75, lease_samples_max=dice.choice((0, 1, 2)))
    if dice.random() < 0.3:
        made["evaluation"] = evaluation_of(dice)
    return made


def config_of(dice):
    made = rollouts_of(dice)
    made["training"].update(lr=0.001, checkpoint_every=dice.choice((1, 2, 10)), kl_coefficient=dice.choice((0, 0.05)))
    made.update(mode=dice.choice(("sync", "pipelined", "pipelined", "inflight")), frontier=dice.choice(("priority", "priority", "gate", "off")))
    if made["frontier"] == "gate":
        made["frontier_groups"] = dice.randint(1, made["groups_per_round"])
    if dice.random() < 0.2:
        made["mask_truncated"] = True
    if dice.random() < 0.2:
        made["advantage"] = {"kind": dice.choice(("group_centered", "leave_one_out", "leave_one_out_scaled"))}
    if made["mode"] == "inflight":  # which samples on until it has groups with an advantage
        return {**made, "max_lag": dice.choice((0, 1, 4)), "kv": dice.choice(("keep", "recompute")), "order": dice.choice(("completion", "submission")), "filter": {"zero_advantage": "keep"}}
    made["filter"] = filter_of(dice)
    if dice.random() < 0.3:
        made.update(update="minibatch", groups_per_step=dice.randint(1, made["groups_per_round"]))
    if dice.random() < 0.2:
        made["dataset"] = {"path": "validation.jsonl", "shuffle": True, "curriculum": {"rate_min": 0.1, "rate_max": 0.9}}
    return made


def pool(folder, dice):
    """One to three servers of few or many slots, up to two preprocessors."""
    cluster = Cluster(folder, trainer=["--random-init", 1, "--threads", 1])
    for i in range(dice.randint(1, 3)):
        cluster.add_server(f"server-{i}", "--threads", 1, "--slots", dice.choice((1, 2, 4, 16)))
    for i in range(dice.choice((0, 0, 1, 2))):
        preprocessor(cluster, f"pre-{i}", DATA / "model", "--random-init", 1, "--threads", 1)
    return cluster


def longest_quiet(cluster, run):
    """(milliseconds in which nothing that the ledger tells of has moved, after how many of the run)."""
    moments = set()
    for table, columns in MOMENTS.items():
        for row in cluster.query(f"SELECT {', '.join(columns)} FROM {table} WHERE run = ?", int(run[1:])):
            moments.update(moment for moment in row if moment)
    moments = sorted(moments)
    return max((after - before, before - moments[0]) for before, after in zip(moments, moments[1:]))


def play(folder, seed):
    """[(quiet, after, configuration)] of a drawn pool's runs."""
    dice = random.Random(seed)
    found = []
    with pool(folder, dice) as cluster:
        for _ in range(RUNS_OF_POOL):
            made = config_of(dice)
            run = cluster.create_run(made)
            status = cluster.wait(run, seconds=60)
            assert status["state"] == "completed" and len(status["history"]) == made["rounds"], (made, status["state"], status["error"])
            found.append((*longest_quiet(cluster, run), made))
    return found


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_drawn_run_stands_still(tmp_path, seed):
    quiet, after, made = max(play(tmp_path, seed), key=lambda found: found[0])
    assert quiet < QUIET_MS, f"nothing moved for {quiet} ms after {after} ms of {json.dumps(made)}"


def test_a_server_without_a_model_hears_of_the_first_run_at_once(tmp_path):
    """Not with its next heartbeat, a quarter of a minute later."""
    with Cluster(tmp_path, trainer=["--random-init", 1, "--threads", 1], coordinator=["--heartbeat-ms", 15000, "--worker-ttl-ms", 60000]) as cluster:
        cluster.add_server("one", "--threads", 1)
        run = cluster.create_run(grpo_config(1, groups=2, samples=2))
        cluster.wait(run)
        (opened, granted), = cluster.query("SELECT (SELECT min(opened_ms) FROM rounds), (SELECT min(granted_ms) FROM leases)")
        assert granted - opened < QUIET_MS


def main(seed=1, pools=20, limit=QUIET_MS):
    runs = slow = 0
    for at in range(seed, seed + pools):
        with tempfile.TemporaryDirectory() as folder:
            for quiet, after, made in play(pathlib.Path(folder) / "pool", at):
                runs += 1
                if quiet >= limit:
                    slow += 1
                    print(f"pool {at}: nothing moved for {quiet} ms after {after} ms of {json.dumps(made)}", flush=True)
    print(f"{runs} runs, {slow} stood still for {limit} ms or more")
    return 1 if slow else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
