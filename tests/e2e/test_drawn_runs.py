"""Runs drawn with a seed, on pools drawn with it: every one comes to its end, none stands still on its way, and each ends with the weights of one server alone.

What would break: a wake-up that is lost where two features meet.  The run ends with the right weights then, because every wait has a deadline, but it has
waited for one.  Or a promise of one feature that another breaks: then it is the weights, the groups or the rewards that differ.  In `accidents` every role is
killed, frozen and stopped meanwhile, and the run paused; what is told of a run that is over must agree then.
As a program, for more of them: test_drawn_runs.py [seed [pools [milliseconds in which something must move]]].
"""
import http.client
import json
import pathlib
import random
import signal
import sys
import tempfile
import threading
import time

import pytest

from harness import DATA, Cluster, HttpError, call, grpo_config
from test_overlap import number
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
    if dice.random() < 0.2:
        made.update(mode="sync", advantage={"kind": dice.choice(("batch", "batch_centered"))}, filter={"zero_advantage": "keep"})
    if dice.random() < 0.3:
        made.update(update="minibatch", groups_per_step=dice.randint(1, made["groups_per_round"]))
    if dice.random() < 0.2:
        made["dataset"] = {"path": "validation.jsonl", "shuffle": True, "curriculum": {"rate_min": 0.1, "rate_max": 0.9}}
    return made


def pool(folder, dice, coordinator=()):
    """One to three servers of few or many slots, up to two preprocessors."""
    cluster = Cluster(folder, trainer=["--random-init", 1, "--threads", 1], coordinator=coordinator)
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
    """[(quiet, after, configuration, learned)] of a drawn pool's runs."""
    dice = random.Random(seed)
    found = []
    with pool(folder, dice) as cluster:
        for _ in range(RUNS_OF_POOL):
            made = config_of(dice)
            run = cluster.create_run(made)
            status = cluster.wait(run, seconds=60)
            assert status["state"] == "completed" and len(status["history"]) == made["rounds"], (made, status["state"], status["error"])
            found.append((*longest_quiet(cluster, run), made, learned(status)))
    return found


# ---- what a run ends with ----


def learned(status):
    """What must not depend on who computed what when; None in flight, where the ledger decides."""
    if status["mode"] == "inflight":
        return None
    rounds = [{key: row[key] for key in ("digest", "groups", "filtered", "tokens", "reward_mean", "lr", "exact")} for row in status["history"]]
    return rounds, [(row["round"], row["accuracy"]) for row in status["evaluations"]]


def alone(folder, configs):
    """What they end with on one server, nothing overlapping and nobody checking or computing ahead."""
    with Cluster(folder, trainer=["--random-init", 1, "--threads", 1]) as cluster:
        cluster.add_server("alone", "--threads", 1, "--slots", 16)
        return [None if made["mode"] == "inflight" else learned(cluster.run({**made, "mode": "sync", "verify_samples": False}, seconds=60)) for made in configs]


def differing(found, expected, configs):
    """The configurations of those that ended with something else."""
    return [json.dumps(made) for is_, was, made in zip(found, expected, configs) if is_ != was]


# ---- accidents ----


class Accidents(threading.Thread):
    """Happen to the services and the run until it is told to stop; then all of them run again."""

    def __init__(self, cluster, run, dice):
        super().__init__()
        self.cluster, self.run_id, self.dice = cluster, run, dice
        self.over = threading.Event()
        self.trouble = None

    def ask(self, what):
        try:
            call("POST", f"{self.cluster.coordinator.url}/v1/runs/{self.run_id}/{what}")
        except (OSError, http.client.HTTPException, HttpError):
            pass  # the coordinator is being restarted, or the run is over

    def happen(self):
        what = self.dice.choice(("kill", "kill", "two", "freeze", "stop", "pause"))
        victims = self.dice.sample(self.cluster.services, 2 if what == "two" else 1)
        if what == "pause":
            self.ask("pause")
        elif what == "freeze":
            victims[0].freeze()
        for service in victims if what in ("kill", "two") else ():
            service.kill()
        if what == "stop":
            victims[0].stop(signal.SIGTERM)
        time.sleep(self.dice.uniform(0, 0.4))
        if what == "pause":
            self.ask("resume")
        elif what == "freeze":
            victims[0].thaw()
        else:
            for service in victims:
                service.restart()

    def run(self):
        try:
            while not self.over.wait(self.dice.uniform(0, self.dice.choice((0.1, 0.5)))):
                self.happen()
            self.ask("resume")
        except Exception as error:  # for the test to raise
            self.trouble = error

    def end(self):
        self.over.set()
        self.join()
        if self.trouble:
            raise self.trouble


def struck(cluster, run, dice, seconds=10):
    """Its status, once it is over."""
    accidents = Accidents(cluster, run, dice)
    accidents.start()
    try:
        until = time.monotonic() + seconds
        while time.monotonic() < until and cluster.query("SELECT ended_ms FROM runs WHERE id = ?", number(run)) == [(None,)]:
            time.sleep(0.05)
    finally:
        accidents.end()
    return cluster.wait(run, seconds=60)


def looked_over(cluster, run, status):
    """Nothing of the run goes on, and the views count alike."""
    url, r = f"{cluster.coordinator.url}/v1/runs/{run}", number(run)
    assert status["waiting_for"] is None
    cluster.wait_until("both views tell the same", lambda: call("GET", f"{url}/rounds")["rounds"] == cluster.status(run)["history"], seconds=10)  # workers may still tell of their times
    for what, left in (("leases", "state = 0"), ("samples", "state IN (0, 1)"), ("groups", "state IN (0, 1, 2)"), ("rounds", "state NOT IN (4, 5)")):
        assert cluster.query(f"SELECT count(*) FROM {what} WHERE run = ? AND {left}", r) == [(0,)], what
    listed, before = [], ""
    while before is not None:
        page = call("GET", f"{url}/samples?limit=100{before}")
        listed += [sample["id"] for sample in page["samples"]]
        before = f"&before={page['next']}" if page["next"] else None
    done = cluster.query("SELECT count(*) FROM samples WHERE run = ? AND state = 2", r)[0][0]
    assert len(listed) == len(set(listed)) == done
    told = [json.loads(data)["round"] for (data,) in cluster.query("SELECT data FROM events WHERE run = ? AND type = 'round' ORDER BY id", r)]
    assert told == [row["round"] for row in status["history"]]


def accidents(folder, seed):
    """(found, configurations) of runs that accidents have struck."""
    dice = random.Random(seed)
    configs = [config_of(dice) for _ in range(RUNS_OF_POOL // 2)]
    found = []
    with pool(folder, dice, ["--heartbeat-ms", 100, "--worker-ttl-ms", 1500, "--lease-ttl-ms", 2500]) as cluster:
        for made in configs:
            made["rounds"] *= 4
            run = cluster.create_run(made)
            status = struck(cluster, run, dice)
            looked_over(cluster, run, status)
            found.append(learned(status))
    return found, configs


# ---- the tests ----


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_drawn_run_stands_still(tmp_path, seed):
    played = play(tmp_path / "pool", seed)
    quiet, after, made, _ = max(played, key=lambda found: found[0])
    assert quiet < QUIET_MS, f"nothing moved for {quiet} ms after {after} ms of {json.dumps(made)}"
    configs = [made for *_, made, _ in played]
    assert differing([found for *_, found in played], alone(tmp_path / "alone", configs), configs) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_drawn_runs_end_alike_whatever_happens(tmp_path, seed):
    found, configs = accidents(tmp_path / "pool", seed)
    assert differing(found, alone(tmp_path / "alone", configs), configs) == []


def test_a_server_without_a_model_hears_of_the_first_run_at_once(tmp_path):
    """Not with its next heartbeat, a quarter of a minute later."""
    with Cluster(tmp_path, trainer=["--random-init", 1, "--threads", 1], coordinator=["--heartbeat-ms", 15000, "--worker-ttl-ms", 60000]) as cluster:
        cluster.add_server("one", "--threads", 1)
        run = cluster.create_run(grpo_config(1, groups=2, samples=2))
        cluster.wait(run)
        (opened, granted), = cluster.query("SELECT (SELECT min(opened_ms) FROM rounds), (SELECT min(granted_ms) FROM leases)")
        assert granted - opened < QUIET_MS


def main(seed=1, pools=20, limit=QUIET_MS):
    runs = slow = wrong = 0
    for at in range(seed, seed + pools):
        with tempfile.TemporaryDirectory() as folder:
            folder = pathlib.Path(folder)
            played = play(folder / "pool", at)
            for quiet, after, made, _ in played:
                if quiet >= limit:
                    slow += 1
                    print(f"pool {at}: nothing moved for {quiet} ms after {after} ms of {json.dumps(made)}", flush=True)
            found, configs = accidents(folder / "accidents", at)
            found, configs = [*found, *(learned for *_, learned in played)], [*configs, *(made for *_, made, _ in played)]
            for made in differing(found, alone(folder / "alone", configs), configs):
                wrong += 1
                print(f"pool {at}: not what one server alone ends with: {made}", flush=True)
            runs += len(configs)
    print(f"{runs} runs, {slow} stood still for {limit} ms or more, {wrong} ended otherwise than alone")
    return 1 if slow or wrong else 0


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
