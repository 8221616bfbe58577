"""keep_rounds: a run that drops the rollouts of its older rounds ends with the same weights, whatever its trainer goes through, and its database stops
growing.
"""
import pytest

from harness import Cluster, HttpError, call, digests, grpo_config

ROUNDS = 36
KEEP = 2
EVERY = 3  # rounds between two checkpoints; the trainer keeps two, and version 0's


def config(**more):
    made = grpo_config(ROUNDS, groups=4, samples=8)
    made["training"]["checkpoint_every"] = EVERY
    return {**made, **more}


def start(folder, model):
    cluster = Cluster(folder, model=model, trainer=["--threads", 1])
    cluster.server = cluster.add_server("gen", "--slots", 16)
    return cluster


def pages(cluster):
    return cluster.query("PRAGMA page_count")[0][0]


@pytest.fixture(scope="module")
def reference(base_model, tmp_path_factory):
    with start(tmp_path_factory.mktemp("all-kept"), base_model) as cluster:
        status = cluster.run(config())
        assert "keep_rounds" not in status["config"]
        return digests(status), pages(cluster)


def begin(cluster, number, **more):
    """A run with keep_rounds that has come to this round, and whose first rounds are dropped.  It goes on when its server may hurry."""
    cluster.server.slow_down()
    run = cluster.create_run(config(keep_rounds=KEEP, **more))
    dropped = "SELECT rollouts_state FROM rounds WHERE round = 0"
    cluster.server.freeze_when(f"round {number}, and the first one dropped", lambda: (cluster.status(run)["version"] or 0) >= number and cluster.query(dropped) == [(2,)])
    return run


def rounds_with(cluster, table):
    return [row[0] for row in cluster.query(f"SELECT DISTINCT round FROM {table} ORDER BY round")]


def rollouts(cluster, run, number):
    return call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/rollouts?round={number}")["rollouts"]


def test_dropped_rounds_are_told_and_the_database_stops_growing(base_model, reference, tmp_path):
    with start(tmp_path, base_model) as cluster:
        run = begin(cluster, 14)
        timeline = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/timeline?from=0&limit=1")["rounds"][0]
        early = pages(cluster)
        cluster.server.hurry()
        status = cluster.wait(run)
        assert digests(status) == reference[0]
        assert status["config"]["keep_rounds"] == KEEP
        kept = ROUNDS - 2 * EVERY  # the older of the trainer's two checkpoints is of version 33, or 30 when the last step's answer came first
        cluster.wait_until("older rounds are dropped", lambda: rounds_with(cluster, "rollouts")[0] >= kept)
        for table in ("groups", "samples", "leases"):
            assert rounds_with(cluster, table)[0] >= kept, table
        assert len(rollouts(cluster, run, ROUNDS - 1)) == len(rollouts(cluster, run, ROUNDS - KEEP)) == 32
        with pytest.raises(HttpError) as gone:
            rollouts(cluster, run, 0)
        error = gone.value.json()["error"]
        assert gone.value.status == 410 and error["field"] == "round" and f"the rollouts of round {run}.0 were dropped" in error["message"]
        again = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/timeline?from=0&limit=1")["rounds"][0]
        assert again == timeline and again["first_sealed_ms"] and again["batches"] and again["workers"]
        assert len(status["history"]) == ROUNDS and status["totals"]["sampled_tokens"] > 0
        late = pages(cluster)
        assert late - early < 0.4 * (ROUNDS - 14) / ROUNDS * reference[1], (early, late, reference[1])


@pytest.mark.parametrize("damaged", [False, True], ids=["killed", "killed-and-damaged"])
def test_a_trainer_that_comes_back_is_fed_what_was_kept(base_model, reference, tmp_path, damaged):
    """Under the newest checkpoint, or under the older one when that is damaged, no round that the replay needs is missing."""
    with start(tmp_path, base_model) as cluster:
        run = begin(cluster, 4 * EVERY + 1)
        cluster.trainer.kill()
        cluster.server.hurry()
        folders = sorted((cluster.folder / "state" / run).glob("v*"), key=lambda folder: int(folder.name[1:]))
        if damaged:
            weights = folders[-1] / "optimizer.safetensors"
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
        cluster.trainer.restart()
        cluster.trainer.wait_log(rf"restored run {run} at version {int(folders[-2 if damaged else -1].name[1:])}\b")
        assert digests(cluster.wait(run)) == reference[0]
        assert rounds_with(cluster, "rollouts")[0] >= 2 * EVERY


def test_a_replay_of_dropped_rounds_pauses_the_run_with_a_sentence(base_model, tmp_path):
    """A new state directory begins at version 0, whose round is gone."""
    with start(tmp_path, base_model) as cluster:
        run = begin(cluster, 3 * EVERY + 1, rounds=2 * ROUNDS)
        cluster.trainer.kill()
        cluster.server.hurry()
        args = list(cluster.trainer.args)
        args[args.index("--state-dir") + 1] = cluster.folder / "new-state"
        cluster.trainer.restart(args=args)
        cluster.wait_until("the run is paused", lambda: cluster.status(run)["error"])
        status = cluster.status(run)
        assert status["state"] == "paused" and f"round {run}.0" in status["error"] and "keep_rounds" in status["error"]
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")  # at once, or after one more try where the trainer was killed in a step
        cluster.wait(run, state="stopped")


def test_a_queued_curriculum_finds_the_rollouts_that_it_counts(base_model, tmp_path):
    """Its pass rates are counted when it begins.  The run that it names had dropped its older rounds by then, and the queued one was paused."""
    with start(tmp_path, base_model) as cluster:
        first = cluster.create_run(config(keep_rounds=KEEP, rounds=4 * EVERY))
        made = config(rounds=1)
        queued = cluster.create_run({**made, "dataset": {**made["dataset"], "curriculum": {"rate_max": 0.9, "from": first}}})
        cluster.wait(first)
        cluster.wait(queued)
        items = cluster.query("SELECT count(DISTINCT dataset_index) FROM groups WHERE run = ? AND purpose = 0", int(first[1:]))[0][0]
        counted = cluster.query("SELECT count(*) FROM prompt_rates WHERE run = ? AND epoch < 0", int(queued[1:]))[0][0]
        assert counted >= items > 0
        cluster.wait_until("what was kept for it is dropped", lambda: cluster.query("SELECT rollouts_state FROM rounds WHERE run = ? AND round = 0", int(first[1:])) == [(2,)])
