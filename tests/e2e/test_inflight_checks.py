"""verify_samples in `mode: inflight`: the pass of a step's gradient judges what the step trains on.

A pool in which one of three servers lies names it by the time its first lie reaches a step, and trains on nothing that is refused; who is honest is never
accused, however old the tokens are; and what is recorded can be computed again, though trainer and coordinator are killed around a refusal.
"""
import pytest

from harness import FAULT_BIN, call
from liar import LIES, NoChance, incidents, lying, of_an_older_version, pool, random_tokens, with_chances, wrong_logprobs
from ranks import Ranks
from test_inflight import GROUPS, SAMPLES, audit_stream, config, replay
from test_overlap import FAST, QUICK, SLOW, number, start

ROUNDS = 8


def judged(**changes):
    return config(rounds=ROUNDS, lease_samples_max=2, **changes)


def quarantined(cluster, run):
    return [name for name, in cluster.query("SELECT name FROM quarantines WHERE run = ? ORDER BY name", number(run))]


def trained_of(cluster, run, name):
    """How many samples of a server are in steps."""
    return cluster.query("SELECT count(*) FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = s.group_ordinal"
                         " JOIN workers w ON w.id = s.worker WHERE g.run = ? AND g.trained_in IS NOT NULL AND w.name = ?", number(run), name)[0][0]


def is_replayed(cluster, folder, run, model):
    status = cluster.status(run)
    code, said, why = replay(cluster, folder, run, model)
    assert code == 0 and status["weights_digest"] in said, why


def audit_caught(cluster, run, liar, may_miss=False):
    """may_miss: its lies may all have been of tokens that were old when they were trained on."""
    cluster.wait(run, seconds=120)
    audit_stream(cluster, run)
    refused, named = incidents(cluster, "sample_refused"), incidents(cluster, "worker_quarantined")
    if not liar.lied_in or (may_miss and not refused):
        raise NoChance
    assert quarantined(cluster, run) == ["liar"] and [subject for subject, _ in named] == ["liar"]
    assert refused and all("(liar) sent" in detail for _, detail in refused), refused
    status = cluster.status(run)
    # those that were only found inexact, the policy moving fast, left their steps too, and accuse nobody
    dropped = dict(cluster.query("SELECT reason, count(*) FROM groups WHERE run = ? AND reason IN ('refused', 'inexact') GROUP BY reason", number(run)))
    assert sum(row["lag"]["groups_refused"] for row in status["history"]) == sum(dropped.values()) and dropped.get("refused", 0) > 0, dropped
    return status


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_liar_is_caught_where_nothing_is_old(base_model, tmp_path, lie):
    def play(attempt):
        with pool(tmp_path / str(attempt), base_model, lie, SLOW) as (cluster, liar):
            run = cluster.create_run(judged(max_lag=0))
            audit_caught(cluster, run, liar)
            if lie in (random_tokens, wrong_logprobs):  # all that it sends is a lie
                assert trained_of(cluster, run, "liar") == 0
            is_replayed(cluster, tmp_path / str(attempt), run, base_model)

    with_chances(play)


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_liar_is_caught_in_flight(base_model, tmp_path, lie):
    def play(attempt):
        with pool(tmp_path / str(attempt), base_model, lie, SLOW) as (cluster, liar):
            run = cluster.create_run(judged(max_lag=4))
            audit_caught(cluster, run, liar, may_miss=lie is not random_tokens)
            if lie is random_tokens:  # seen however old they are
                assert trained_of(cluster, run, "liar") == 0
            is_replayed(cluster, tmp_path / str(attempt), run, base_model)

    with_chances(play)


@pytest.mark.parametrize("options", [{"launcher": Ranks(2)}, {"trainer": ["--lean"]}], ids=["two ranks", "lean"])
def test_every_trainer_judges_alike(base_model, tmp_path, options):
    """One that adds a group's gradient part by part judges it before; of several ranks each its own groups.  What was summed is computed again by a plain one."""
    def play(attempt):
        with pool(tmp_path / str(attempt), base_model, wrong_logprobs, SLOW, **options) as (cluster, liar):
            run = cluster.create_run(judged(max_lag=0))
            audit_caught(cluster, run, liar)
            assert trained_of(cluster, run, "liar") == 0
            is_replayed(cluster, tmp_path / str(attempt), run, base_model)

    with_chances(play)


@pytest.mark.parametrize("kv", ["keep", "recompute"])
@pytest.mark.parametrize("max_lag", [1, 4, 16])
def test_nobody_honest_is_accused(base_model, tmp_path, max_lag, kv):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("one", *SLOW)
        cluster.add_server("two", *FAST)
        run = cluster.create_run(config(rounds=16, max_lag=max_lag, kv=kv, samples_ahead=(max_lag + 1) * GROUPS * SAMPLES))
        status = cluster.wait(run, seconds=120)
        audit_stream(cluster, run)
        assert status["config"]["verify_samples"] is True
        assert quarantined(cluster, run) == [] and incidents(cluster, "sample_refused") == []
        assert all(row["lag"]["groups_refused"] == 0 for row in status["history"])
        assert max(row["lag"]["max"] for row in status["history"]) > 0
        if max_lag == 1:
            is_replayed(cluster, tmp_path, run, base_model)


def test_a_policy_that_runs_away_accuses_nobody(base_model, tmp_path):
    """Many times the learning rate, and samples many versions old: what passes a bound is left out, and the run goes on."""
    with start(tmp_path, base_model, trainer=["--isa", "v2", "--threads", 1]) as cluster:
        cluster.add_server("one", "--slots", 32)
        cluster.add_server("two", "--slots", 32)
        made = config(rounds=10, max_lag=8, samples_ahead=9 * GROUPS * SAMPLES)
        made["training"]["lr"] = 0.008
        run = cluster.create_run(made)
        status = cluster.wait(run, seconds=240)
        audit_stream(cluster, run)
        assert quarantined(cluster, run) == [] and incidents(cluster, "sample_refused") == []
        left = incidents(cluster, "inexact")
    assert left, "nothing was far off, so nobody could have been accused"
    assert sum(row["lag"]["groups_refused"] for row in status["history"]) > 0


def test_one_flipped_bit_in_one_of_three_servers_leaves_no_trace(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster:
        cluster.add_server("broken", *FAST, "--fault", "flip-weight", bin_dir=FAULT_BIN)
        cluster.add_server("first", *FAST)
        cluster.add_server("second", *FAST)
        cluster.wait_registered()
        run = cluster.create_run(judged(max_lag=0))
        status = cluster.wait(run, seconds=120)
        audit_stream(cluster, run)
        assert quarantined(cluster, run) == ["broken"]
        is_replayed(cluster, tmp_path, run, base_model)
    assert status["totals"]["logprob_unequal"] == 0


def test_nobody_can_tell_who_is_at_fault_where_one_server_is_alone(base_model, tmp_path):
    with start(tmp_path, base_model) as cluster, lying(cluster, random_tokens):
        run = cluster.create_run(judged())
        status = cluster.wait_until("the run is paused", lambda: (status := cluster.status(run))["state"] == "paused" and status)
        assert "the trainer and liar draw different samples" in status["error"] and "look at both" in status["error"]
        assert quarantined(cluster, run) == [] and status["history"] == []
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")


# ---- who dies ----


@pytest.mark.parametrize("victim", ["coordinator", "trainer"])
def test_a_refusal_outlives_a_restart(base_model, tmp_path, victim):
    """Killed as soon as the refusal is stored; its step is still to come."""
    with pool(tmp_path, base_model, random_tokens, SLOW) as (cluster, liar):
        first = cluster.services[-2]  # the second one is slow already: the two would have drawn everything while the liar, whose proxy lives in this process, stood still with it
        with first.slowly():
            run = cluster.create_run(judged(max_lag=2))
            cluster.wait_until("a sample is refused", lambda: incidents(cluster, "sample_refused"))
        service = next(service for service in cluster.services if service.name == victim)
        service.kill()
        service.restart()
        audit_caught(cluster, run, liar)
        assert trained_of(cluster, run, "liar") == 0
        is_replayed(cluster, tmp_path, run, base_model)


@pytest.mark.parametrize("options", [
    {"coordinator": [*QUICK, "--fault", "die-before-refusal"], "coordinator_bin": FAULT_BIN},
    {"trainer": ["--fault", "die-after-refusal"], "trainer_bin": FAULT_BIN},
], ids=["coordinator", "trainer"])
def test_a_refusal_whose_answer_is_lost(base_model, tmp_path, options):
    """Killed between the trainer's judgement and its place in the database: the groups are judged again, or their answer is asked for again."""
    with pool(tmp_path, base_model, of_an_older_version, SLOW, **options) as (cluster, liar):
        run = cluster.create_run(judged(max_lag=0))
        service = cluster.coordinator if "coordinator" in options else cluster.trainer
        service.wait_killed()
        assert incidents(cluster, "sample_refused") == []
        service.restart()
        audit_caught(cluster, run, liar)
        is_replayed(cluster, tmp_path, run, base_model)
