"""Recipes by name over real services: what the name became is shown, and the steps are those.  What would break: advantages of a whole round that depend on what was
complete first, a KL term in the rewards that is not the same bits wherever groups were trained, tokens of truncated samples that are trained on or counted."""
import array
import math
import shutil

import pytest

from harness import Cluster, HttpError, digests, grpo_config

ROUNDS, GROUPS, SAMPLES = 2, 6, 4
FINISH_LENGTH = 1
JOIN = "FROM samples s JOIN groups g ON g.run = s.run AND g.round = s.round AND g.ordinal = s.group_ordinal WHERE s.run = ? AND s.round = ? AND g.purpose = 0"


def named(recipe, mode=None, training=None, **more):
    made = grpo_config(ROUNDS, groups=GROUPS, samples=SAMPLES)
    for key in ("advantage", "filter", "overlong", "mode"):
        made.pop(key, None)
    made.update(recipe=recipe, start="model", training={"lr": 0.004, "chunk_tokens": made["training"].get("chunk_tokens", 4096), **(training or {})}, **more)
    if mode:
        made["mode"] = mode
    return made


@pytest.fixture(scope="module")
def cluster(base_model, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("recipes"), model=base_model, coordinator=["--batch-tokens", 700]) as made:
        made.add_server("one", "--slots", 3, "--isa", "v2")
        made.add_server("two", "--slots", 5)
        yield made


def finished(cluster, config):
    run = cluster.create_run(config)
    cluster.wait(run)
    status = cluster.status(run)
    assert status["totals"]["logprob_unequal"] == 0 and all(row["exact"] for row in status["history"])
    assert len(set(digests(status))) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
    return int(run[1:]), status


def test_a_kl_term_in_the_rewards_is_the_same_bits_however_groups_are_trained(cluster):
    """From the model the reference's KL is zero until the first step, so that the second round tells."""
    _, waited = finished(cluster, named("rloo", "sync"))
    _, streamed = finished(cluster, named("rloo", "pipelined"))
    _, without = finished(cluster, named("rloo", "pipelined", {"kl_coefficient": 0}))
    assert digests(waited) == digests(streamed)
    assert digests(without)[0] == digests(waited)[0] and digests(without)[1] != digests(waited)[1]
    shown = waited["config"]
    assert shown["recipe"] == "rloo" and shown["advantage"]["kind"] == "leave_one_out" and shown["training"]["kl_in"] == "reward"
    assert shown["training"]["objective"] == "reinforce" and shown["training"]["kl_estimator"] == "k1"


def test_a_round_is_standardized_as_a_whole(cluster):
    number, status = finished(cluster, named("reinforce++"))
    assert status["config"]["mode"] == "sync"
    for round_ in range(ROUNDS):
        rows = cluster.query(f"SELECT s.reward, s.advantage, s.tokens {JOIN}", number, round_)
        tokens = sum(n for _, _, n in rows)
        mean = sum(reward * n for reward, _, n in rows) / tokens
        deviation = math.sqrt(sum(n * (reward - mean) ** 2 for reward, _, n in rows) / tokens)
        assert len(rows) == GROUPS * SAMPLES and deviation > 0
        for reward, advantage, _ in rows:
            assert advantage == pytest.approx((reward - mean) / (deviation + 1e-4), rel=1e-6)


@pytest.mark.parametrize("update", [{}, {"update": "minibatch", "groups_per_step": 4}], ids=["strict", "minibatch"])
def test_truncated_samples_count_in_their_group_and_are_not_trained_on(cluster, update):
    sampling = {"temperature": 1.3, "max_new_tokens": 21}  # hot, so that some do not come to an end
    number, status = finished(cluster, named("dr_grpo", sampling=sampling, mask_truncated=True, **update))
    _, whole = finished(cluster, named("dr_grpo", sampling=sampling, **update))
    assert status["config"]["mask_truncated"] is True and "mask_truncated" not in whole["config"]
    assert status["config"]["training"]["length_max"] == 21
    assert digests(status) != digests(whole)
    trained = 0
    for round_ in range(ROUNDS):
        ends = dict(cluster.query(f"SELECT s.finish, sum(s.tokens) {JOIN} GROUP BY s.finish", number, round_))
        assert ends.get(FINISH_LENGTH, 0) > 0, "no sample was truncated"
        trained += sum(n for finish, n in ends.items() if finish != FINISH_LENGTH)
        for reward, advantage in cluster.query(f"SELECT sum(s.reward), sum(s.advantage) {JOIN} GROUP BY g.ordinal", number, round_):
            assert advantage == pytest.approx(0, abs=1e-6), "a truncated sample is in its group's mean"
    assert status["totals"]["trained_tokens"] == trained > 0


@pytest.mark.parametrize("normalization", ["tokens", "sequences"])
@pytest.mark.parametrize("changes", [{"mode": "pipelined"}, {"mode": "sync"}, {"mode": "pipelined", "update": "minibatch", "groups_per_step": 4}, {"mode": "inflight", "max_lag": 1}],
                         ids=["pipelined", "sync", "minibatch", "inflight"])
def test_a_step_of_truncated_samples_alone_is_skipped(cluster, changes, normalization):
    """No token is trained on: neither moments nor weight decay move a weight, whatever the sum would have been divided by."""
    training = {"normalization": normalization, "weight_decay": 10}
    config = named("grpo", training=training, sampling={"max_new_tokens": 2, "ignore_eos": True}, filter={"zero_advantage": "keep"}, mask_truncated=True)
    status = cluster.run({**config, **changes})
    assert status["state"] == "completed" and status["totals"]["trained_tokens"] == 0
    assert {(row["skipped"], row["loss"], row["groups"]) for row in status["history"]} == {(True, None, GROUPS)}
    assert len(set(digests(status))) == 1


def test_a_skipped_step_is_in_no_other_steps_denominator(cluster):
    """Some groups are truncated altogether.  Their steps divide by nothing, the others by their own samples."""
    sampling = {"temperature": 1.5, "max_new_tokens": 21}
    config = {**named("dr_grpo", sampling=sampling, mask_truncated=True), "update": "minibatch", "groups_per_step": 1, "samples_per_group": 2, "filter": {"zero_advantage": "keep"}}
    run = cluster.create_run(config)
    cluster.wait(run)
    number, empty, full = int(run[1:]), 0, 0
    for round_ in range(ROUNDS):
        trained = dict(cluster.query(f"SELECT g.ordinal, sum(s.tokens * (s.finish <> {FINISH_LENGTH})) {JOIN} GROUP BY g.ordinal", number, round_))
        steps = cluster.query("SELECT ordinal_end - 1, denominator, skipped FROM inner_steps WHERE run = ? AND round = ? ORDER BY step", number, round_)
        assert [ordinal for ordinal, _, _ in steps] == list(range(GROUPS))
        for ordinal, denominator, skipped in steps:
            assert (denominator, skipped) == ((2, 0) if trained[ordinal] else (0, 1))
        empty += sum(tokens == 0 for tokens in trained.values())
        full += sum(tokens > 0 for tokens in trained.values())
        assert cluster.query("SELECT denominator FROM rounds WHERE run = ? AND round = ?", number, round_) == [(2 * sum(tokens > 0 for tokens in trained.values()),)]
    assert empty > 0 and full > 0, "the case is not there"


def test_entropy_moves_the_weights_and_what_cannot_be_honoured_is_refused(cluster):
    _, plain = finished(cluster, named("cispo"))
    _, bonus = finished(cluster, named("cispo", training={"entropy_coefficient": 0.01}))
    assert bonus["config"]["training"]["entropy_coefficient"] == 0.01 and digests(plain) != digests(bonus)
    for config, field in ((named("ppo"), "recipe"), (named("reinforce++", "pipelined"), "mode")):
        with pytest.raises(HttpError) as refused:
            cluster.create_run(config)
        assert refused.value.status == 422 and refused.value.json()["error"]["field"] == field


def gap(cluster, number, round_):
    """Half the mean square of log p - log p(teacher) over the round's tokens, which is what distillation makes smaller."""
    own = cluster.query("SELECT group_ordinal, logprobs FROM rollouts WHERE run = ? AND round = ? ORDER BY group_ordinal, sample", number, round_)
    taught = dict(cluster.query("SELECT group_ordinal, logprobs FROM passes WHERE run = ? AND round = ? AND state = 2", number, round_))
    numbers = {group: array.array("f") for group in taught}
    for group, logprobs in own:
        numbers[group].frombytes(logprobs)
    squares = [(a - b) ** 2 for group, logprobs in taught.items() for a, b in zip(numbers[group], array.array("f", logprobs), strict=True)]
    return sum(squares) / len(squares) / 2


def test_a_student_comes_nearer_to_its_teacher_and_waits_for_it(cluster, tmp_path):
    """The teacher is what an earlier run has learned, served by a process of its own; the trainer holds no copy of it."""
    number, status = finished(cluster, named("grpo", training={"kl_coefficient": 0, "lr": 0.02}))
    folder, taught = tmp_path / "teacher", digests(status)[-1]
    shutil.copytree(cluster.folder / "state" / f"r{number}" / f"v{ROUNDS}", folder)
    with pytest.raises(HttpError) as refused:
        cluster.create_run(named("distill"))
    assert refused.value.status == 422 and refused.value.json()["error"]["field"] == "training.teacher"
    distill = dict(training={"teacher": taught, "lr": 0.002}, rounds=8)
    run = cluster.create_run(named("distill", **distill))
    waits = int(run[1:])
    cluster.wait_until("all groups to be sealed", lambda: cluster.query("SELECT count(*) FROM groups WHERE run = ? AND round = 0 AND state = 1", waits) == [(GROUPS,)])
    assert cluster.query("SELECT count(*) FROM batches WHERE run = ?", waits) == [(0,)], "a group was trained without its teacher"
    teacher = cluster.start("teacher", "trainer-server", ["--role", "teach", "--model", folder, "--coordinator", cluster.coordinator.url, "--name", "teacher", "--threads", 1])
    status = cluster.wait(run) or cluster.status(run)
    first, last = gap(cluster, waits, 0), gap(cluster, waits, 7)
    assert taught in teacher.log_text() and last < 0.7 * first, (first, last)
    again = cluster.create_run(named("distill", "sync", **distill))
    cluster.wait(again)
    assert digests(cluster.status(again)) == digests(cluster.status(run))
    teacher.stop()
