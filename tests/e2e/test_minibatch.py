"""update: minibatch.  Same seed, same weights after every optimizer step, byte for byte, whatever overlaps, dies and comes back.

Optimizer steps do not commute, so these tests would notice a group that was trained in another step because it was complete at another time, a step that was
taken twice or without its last group, and a replay in another order.  Every test plays the same seeded run in another way and compares it with one server in
mode `sync`, as in test_overlap.py, whose audit of the database is taken over and which has one more here: the members of every step.
"""
import shutil
import signal

import pytest

from harness import FAULT_BIN, SLOWLY, call, digests
from test_overlap import (
    CONSUMED, FAST, GROUPS, QUICK, ROUND_DONE, ROUNDS, SLOW, Play, assert_same, audit_versions, config, finish, freeze_in_middle, kill_trainer_in_last_round, number, replays, start,
)

PER_STEP = 3
KEEP = {"zero_advantage": "keep"}
INNER_STEPS = "SELECT round, step, groups, denominator, hex(digest), lr, skipped FROM inner_steps WHERE run = ? ORDER BY round, step"


def minibatch(mode="pipelined", per_step=PER_STEP, **changes):
    made = config(mode, update="minibatch", groups_per_step=per_step, **changes)
    made["training"]["total_steps"] = 4 * ROUNDS
    return made


def sparse():
    """Checkpoints of versions 3 and 6 only."""
    made = minibatch()
    made["training"]["checkpoint_every"] = 3
    return made


class Steps(Play):
    """And every inner step."""

    def __init__(self, cluster, run):
        super().__init__(cluster, run)
        self.inner = cluster.query(INNER_STEPS, number(run))


def played(cluster, run):
    finish(cluster, run)
    audit_steps(cluster, run)
    return Steps(cluster, run)


def audit_steps(cluster, run):
    """By their ordinals, the consumed groups of a round fill one step after the other; the round's own step takes the rest."""
    per_step = cluster.status(run)["config"]["groups_per_step"]
    history = {row["round"]: row for row in cluster.status(run)["history"]}
    for round_ in history:
        groups = cluster.query(
            "SELECT b.step, g.tokens FROM groups g JOIN batches b ON b.run = g.run AND b.round = g.round AND b.number = g.batch"
            " WHERE g.run = ? AND g.round = ? AND g.state = ? ORDER BY g.ordinal", number(run), round_, CONSUMED)
        assert [step for step, _ in groups] == [rank // per_step for rank in range(len(groups))], round_
        inner = cluster.query("SELECT step, groups, denominator, done FROM inner_steps WHERE run = ? AND round = ? ORDER BY step", number(run), round_)
        tokens = [sum(n for step, n in groups if step == k) for k in range(len(groups) // per_step)]
        assert inner == [(k, per_step, float(n), 1) for k, n in enumerate(tokens)], round_
        assert history[round_]["steps"] == -(-len(groups) // per_step), round_


def assert_same_steps(this, reference):
    assert_same(this, reference)
    assert this.inner == reference.inner
    assert [row["steps"] for row in this.status["history"]] == [row["steps"] for row in reference.status["history"]]


@pytest.fixture(scope="module")
def reference(base_model, tmp_path_factory):
    """One server, one thread each, nothing overlaps."""
    with start(tmp_path_factory.mktemp("reference"), base_model) as cluster:
        cluster.add_server("alone", *FAST)
        made = played(cluster, cluster.create_run(minibatch("sync")))
        timeline = call("GET", f"{cluster.coordinator.url}/v1/runs/r1/timeline")
    assert made.overlapping == [], "sync must wait"
    assert made.unequal == 0 and all(row["exact"] for row in made.status["history"]), "also behind inner steps the trainer answers under the round's weights"
    steps = [digest for _, _, _, _, digest, _, _ in made.inner]
    assert len(set(steps)) == len(steps) >= 2 * ROUNDS, "every step must change the weights, or equal digests would prove nothing"
    assert [step["digest"].upper() for row in timeline["rounds"] for step in row["inner_steps"]] == steps
    left = [row["groups"] % PER_STEP for row in made.status["history"]]
    assert 0 in left and any(left), f"some rounds must end with a full step, and some with a part of one: {left}"
    return made


# ---- the rule ----


def test_a_round_of_several_steps_is_not_a_strict_one(base_model, reference, tmp_path):
    """And it starts like one: the first step over a round's groups is the strict step, wherever it stands."""
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("alone", *FAST)
        strict = cluster.create_run(config(filter=KEEP, rounds=1))
        cluster.wait(strict)
        whole = cluster.create_run(minibatch(per_step=GROUPS, filter=KEEP, rounds=1))
        cluster.wait(whole)
        halves = cluster.create_run(minibatch(per_step=GROUPS // 2, filter=KEEP, rounds=1))
        cluster.wait(halves)
        (_, _, _, denominator, digest, _, _), = cluster.query(INNER_STEPS, number(whole))
        first, second = cluster.query(INNER_STEPS, number(halves))
        row, = cluster.status(strict)["history"]
        moved, = cluster.status(halves)["history"]
    assert digest.lower() == row["digest"] and denominator == row["tokens"]
    assert first[4] != second[4] and first[4].lower() != row["digest"]
    assert row["ess"] == 1 and row["kl_new_old"] == row["clip_fraction"] == 0 and row["steps"] == 1
    assert moved["steps"] == 2 and 0 < moved["ess"] < 1 and moved["kl_new_old"] > 0 and moved["mean_abs_diff_new_old"] > 0
    assert moved["logprob_unequal"] == 0


# ---- overlap ----


def test_pipelined_with_one_server(base_model, reference, tmp_path):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("alone", *FAST)
        this = played(cluster, cluster.create_run(minibatch()))
    assert_same_steps(this, reference)
    assert len(this.overlapping) > ROUNDS // 2, f"training overlapped generation only in rounds {this.overlapping}"


def test_pipelined_with_three_unlike_servers(base_model, reference, tmp_path):
    with start(tmp_path, base_model, trainer=["--threads", 3, "--isa", "v3"]) as cluster:
        cluster.add_server("small", "--slots", 2, "--page-tokens", 16, "--prefill-chunk", 5, "--isa", "v2")
        cluster.add_server("middle", "--slots", 3, "--page-tokens", 48, "--prefill-chunk", 33, "--isa", "v3")
        cluster.add_server("large", "--slots", 5, "--page-tokens", 64, "--prefill-chunk", 256, "--threads", 2)
        this = played(cluster, cluster.create_run(minibatch(lease_samples_max=2, frontier="off")))
    assert_same_steps(this, reference)


# ---- the trainer dies ----


@pytest.mark.parametrize("fault", ["die-before-step", "die-before-publish", "die-in-checkpoint", "die-in-batch"])
def test_a_trainer_killed_at_the_worst_moment(base_model, reference, tmp_path, fault):
    with start(tmp_path, base_model, trainer=["--fault", fault], trainer_bin=FAULT_BIN) as cluster:
        cluster.add_server("alone", *FAST)
        run = cluster.create_run(minibatch())
        cluster.trainer.wait_killed()
        assert "fault: " + fault in cluster.trainer.log_text()
        assert 0 < cluster.status(run)["round"] < ROUNDS
        cluster.trainer.restart()
        this = played(cluster, run)
    assert_same_steps(this, reference)


@pytest.mark.parametrize("who", ["trainer", "coordinator"])
def test_killed_between_two_steps_of_a_round(base_model, reference, tmp_path, who):
    """A trainer's steps since its version are gone with it, and are taken again; a coordinator finds them taken, and the trainer between two versions."""
    with start(tmp_path, base_model) as cluster:
        server = cluster.add_server("alone", "--slots", 1, SLOWLY)
        run = cluster.create_run(minibatch())
        taken = "SELECT count(*) FROM inner_steps JOIN rounds USING (run, round) WHERE run = ? AND round = 2 AND done = 1 AND state = 0"
        server.freeze_when("the first step of round 2", lambda: cluster.query(taken, number(run))[0][0])
        service = cluster.trainer if who == "trainer" else cluster.coordinator
        service.kill()
        assert cluster.query("SELECT state FROM rounds WHERE run = ? AND round = 2", number(run)) != [(ROUND_DONE,)], f"the {who} was killed too late for this test"
        server.hurry()
        service.restart()
        cluster.add_server("helper", *FAST)
        this = played(cluster, run)
    assert_same_steps(this, reference)


# ---- replay ----


def test_a_lost_version_is_replayed(base_model, reference, tmp_path):
    with start(tmp_path, base_model) as cluster:
        run = kill_trainer_in_last_round(cluster, sparse())
        cluster.trainer.restart()
        cluster.trainer.wait_log("recorded is 5: replaying")
        cluster.add_server("helper", *FAST)
        this = played(cluster, run)
        steps = replays(cluster, run)
    assert steps[0] == {"from": 3, "at": 3, "to": 5} and steps[-1]["at"] == 5, steps
    assert_same_steps(this, reference)


def test_a_replay_that_ends_in_other_weights_names_the_step(base_model, reference, tmp_path):
    """The replaying trainer flips one bit of one gradient."""
    with start(tmp_path, base_model) as cluster:
        run = kill_trainer_in_last_round(cluster, sparse())
        shutil.rmtree(cluster.folder / "state")
        cluster.trainer.restart(args=[*cluster.trainer.args, "--fault", "flip-gradient"], bin_dir=FAULT_BIN)
        cluster.wait(run, state="paused")
        status = cluster.status(run)
        audit_versions(cluster, run)
    assert "replaying step r1." in status["error"] and "recorded" in status["error"], status["error"]
    assert digests(status) == reference.digests[: ROUNDS - 1]


# ---- the coordinator dies, and everybody ----


def test_a_coordinator_killed_behind_a_plan(base_model, reference, tmp_path):
    with start(tmp_path, base_model, coordinator=[*QUICK, "--fault", "die-after-plan"], coordinator_bin=FAULT_BIN) as cluster:
        cluster.add_server("one", *FAST)
        cluster.add_server("two", "--slots", 2)
        run = cluster.create_run(minibatch())
        cluster.coordinator.wait_killed()
        assert "fault: die-after-plan" in cluster.coordinator.log_text()
        cluster.coordinator.restart()
        this = played(cluster, run)
    assert_same_steps(this, reference)


def test_everything_is_killed_and_goes_on(base_model, reference, tmp_path):
    with start(tmp_path, base_model) as cluster:
        server = cluster.add_server("alone", *SLOW)
        run = cluster.create_run(sparse())
        round_ = 0
        for _ in range(2):
            round_ = freeze_in_middle(cluster, run, round_ + 1, server)
            services = [cluster.coordinator, cluster.trainer, server]
            for service in services:
                service.process.send_signal(signal.SIGKILL)
            for service in services:
                assert service.wait_end() == -signal.SIGKILL
            for service in services:
                service.restart()
        cluster.add_server("helper", *FAST)
        this = played(cluster, run)
    assert_same_steps(this, reference)
