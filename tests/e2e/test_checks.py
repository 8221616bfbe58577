"""verify_samples: results are checked, not believed.  A pool in which one of three servers lies ends with the honest pool's digests, and names the liar.

Every play is compared with one honest server in mode `sync` without checks, as in test_overlap.py: every version's digest, every group's digest (tokens,
log-probabilities, rewards), and which prompts were sampled.
"""
import pytest

from harness import FAULT_BIN, call, grpo_config
from liar import LIES, NoChance, incidents, lying, pool, random_tokens, with_chances, wrong_logprobs
from test_overlap import FAST, PATIENT, Play, number, start

ROUNDS, GROUPS, SAMPLES = 3, 6, 4


def config(mode, update, **changes):
    made = grpo_config(ROUNDS, groups=GROUPS, samples=SAMPLES)
    made.update(mode=mode, update=update, filter={"zero_advantage": "refill", "refill_max": 4}, lease_samples_max=2, **changes)
    if update == "minibatch":
        made["groups_per_step"] = 2
    return made


def played(cluster, run):
    cluster.wait(run, seconds=120)
    return Play(cluster, run)


def assert_same(this, honest):
    assert this.digests == honest.digests
    assert this.groups == honest.groups
    assert this.unequal == 0 and all(row["exact"] for row in this.status["history"])


@pytest.fixture(scope="module")
def honest(base_model, tmp_path_factory):
    """{update: what one server without checks makes}; each its coordinator's first run, because groups' digests are over their ids too."""
    made = {}
    for update in ("strict", "minibatch"):
        with start(tmp_path_factory.mktemp(update), base_model) as cluster:
            cluster.add_server("alone", *FAST)
            made[update] = played(cluster, cluster.create_run(config("sync", update)))
    assert any(state == 4 for _, _, state, *_ in made["strict"].groups), "some group must be filtered, or it would not show that these are checked"
    return made


def caught(folder, model, lie, mode, update, honest):
    def play(attempt):
        with pool(folder / str(attempt), model, lie) as (cluster, liar):
            run = cluster.create_run(config(mode, update, verify_samples=True))
            this = played(cluster, run)
            quarantined = cluster.query("SELECT name, round FROM quarantines WHERE run = ?", number(run))
            refused = incidents(cluster, "sample_refused")
            named = incidents(cluster, "worker_quarantined")
        assert_same(this, honest[update])
        if not liar.lied_in:
            raise NoChance
        assert quarantined == [("liar", min(liar.lied_in))], liar.lied_in
        assert [subject for subject, _ in named] == ["liar"]
        assert refused and all("(liar) sent" in detail for _, detail in refused), refused

    with_chances(play)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_liar_is_caught_while_the_trainer_trains(base_model, honest, tmp_path, lie):
    caught(tmp_path, base_model, lie, "pipelined", "strict", honest)


@pytest.mark.long
@pytest.mark.parametrize("mode, update", [("sync", "strict"), ("sync", "minibatch"), ("pipelined", "minibatch")])
@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_liar_is_caught_in_every_mode(base_model, honest, tmp_path, lie, mode, update):
    caught(tmp_path, base_model, lie, mode, update, honest)


def test_a_refusal_outlives_a_restart(base_model, honest, tmp_path):
    """Killed between the refusal and the second drawing."""
    with pool(tmp_path, base_model, random_tokens, coordinator=PATIENT) as (cluster, _):
        cluster.wait_registered()
        honest_ones = cluster.services[-2:]
        for server in honest_ones:  # or they would have drawn everything while the liar, whose proxy lives in this process, stood still with it
            server.freeze()
        run = cluster.create_run(config("pipelined", "minibatch", verify_samples=True))
        cluster.wait_until("a sample is refused", lambda: incidents(cluster, "sample_refused"))
        for server in honest_ones:
            server.thaw()
        cluster.coordinator.kill()
        cluster.coordinator.restart()
        this = played(cluster, run)
        workers = {worker["name"]: worker for worker in call("GET", cluster.coordinator.url + "/v1/workers?all=1")["workers"]}
    assert_same(this, honest["minibatch"])
    assert {name for name, worker in workers.items() if worker["kind"] == "generation"} == {"liar", "first", "second"}


def test_a_group_that_fails_once_its_log_probabilities_were_refused_leaves_the_step(base_model, tmp_path):
    """The check of a liar's group, whose tokens are right, had put its gradient into the sums.  When the group then was not drawn again in time, the
    trainer refused the step, which named one group too few, and the run was paused."""
    with start(tmp_path, base_model, coordinator=PATIENT) as cluster, lying(cluster, wrong_logprobs):
        first = cluster.add_server("first", *FAST)
        first.wait_log("registered as")
        first.freeze()  # so that nobody draws again what is refused
        whole = {"lease_samples_max": SAMPLES, "filter": {"zero_advantage": "keep"}}  # each group may go ahead
        run = cluster.create_run({**config("pipelined", "strict", verify_samples=True, group_timeout_ms=1500), **whole})
        late = cluster.wait_until("a group that was refused fails", lambda: [
            group for group, _ in incidents(cluster, "group_timeout") if any(subject.startswith(group + ".") for subject, _ in incidents(cluster, "sample_refused"))])
        first.thaw()
        status = cluster.wait(run, seconds=120)
    assert status["history"][0]["exact"] is False and late[0].startswith(f"{run}.0.")


def test_nobody_can_tell_who_is_at_fault_where_one_server_is_alone(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster, lying(cluster, random_tokens):
        run = cluster.create_run(config("pipelined", "strict", verify_samples=True))
        status = cluster.wait_until("the run is paused", lambda: (status := cluster.status(run))["state"] == "paused" and status)
        assert "the trainer and liar draw different samples" in status["error"] and "look at both" in status["error"]
        assert cluster.query("SELECT count(*) FROM quarantines") == [(0,)] and status["history"] == []
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")


def test_a_flipped_bit_in_one_of_three_servers_leaves_no_trace_in_the_weights(base_model, honest, tmp_path):
    def play(attempt):
        with start(tmp_path / str(attempt), base_model) as cluster:
            cluster.add_server("broken", *FAST, "--fault", "flip-weight", bin_dir=FAULT_BIN)
            cluster.add_server("first", *FAST)
            cluster.add_server("second", *FAST)
            run = cluster.create_run(config("pipelined", "strict", verify_samples=True))
            this = played(cluster, run)
            quarantined = cluster.query("SELECT name, round FROM quarantines")
            sampled_in = cluster.query("SELECT min(round) FROM checked WHERE name = 'broken'")
            shown = incidents(cluster, "worker_quarantined")
        assert_same(this, honest["strict"])
        if sampled_in == [(None,)]:
            raise NoChance
        assert quarantined == [("broken", *sampled_in[0])] and "(broken) sent" in shown[0][1]

    with_chances(play)
