"""A run that draws from the probable part of the vocabulary and ends samples by a text: the trainer finds what the samplers left out from its own logits, so every log-probability is equal and
the weights do not depend on who samples.  What would break: a trainer that judges a token by the whole vocabulary, a kept set that depends on the neighbours or the kernels, a stop text that is
missed where tokens or servers cut it."""
import collections
import json
import math
import signal

import pytest

from harness import SLOWLY, Cluster, HttpError, call, digests, grpo_config
from test_inflight import finish as finish_inflight, replay

ROUNDS, GROUPS, SAMPLES = 3, 8, 4
TEMPERATURE, TOP_K, TOP_P, MIN_P = 0.8, 5, 0.9, 0.02
EOS = 256


def config(mode="pipelined", **sampling):
    made = grpo_config(ROUNDS, groups=GROUPS, samples=SAMPLES)
    made.update(mode=mode, sampling={"temperature": TEMPERATURE, "max_new_tokens": 32, "top_k": TOP_K, "top_p": TOP_P, "min_p": MIN_P, **sampling})
    return made


def rollouts_of(cluster, round_):
    return call("GET", f"{cluster.coordinator.url}/v1/runs/r1/rollouts?round={round_}&limit=100")["rollouts"]


@pytest.fixture(scope="module")
def stop(base_model, tmp_path_factory):
    """Two characters that the base writes side by side, in the midst of its completions."""
    with Cluster(tmp_path_factory.mktemp("pairs"), model=base_model) as cluster:
        cluster.add_server("alone", "--slots", 16)
        cluster.run({**config("sync"), "rounds": 1})
        texts = [r["text"] for r in rollouts_of(cluster, 0)]
    pairs = collections.Counter(text[i : i + 2] for text in texts for i in range(2, len(text) - 3))
    return pairs.most_common(1)[0][0]


@pytest.fixture(scope="module")
def reference(base_model, stop, tmp_path_factory):
    """One server: the digests, and the first round's rollouts."""
    with Cluster(tmp_path_factory.mktemp("one"), model=base_model) as cluster:
        cluster.add_server("alone", "--slots", 16)
        status = cluster.run(config("sync", stop=stop))
        rollouts = rollouts_of(cluster, 0)
    assert status["totals"]["logprob_unequal"] == 0 and all(row["exact"] for row in status["history"])
    sampling, training = status["config"]["sampling"], status["config"]["training"]
    assert sampling["stop"] == [stop]
    for shown in (sampling, training):
        assert (shown["temperature"], shown["top_k"], shown["top_p"], shown["min_p"]) == (TEMPERATURE, TOP_K, TOP_P, MIN_P)
    assert len(set(digests(status))) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
    return digests(status), rollouts


def kept_of(tops):
    """The definition, in Python's floats: {token: log-probability among what is kept} from the likeliest tokens' raw log-probabilities."""
    order = sorted(tops.items(), key=lambda item: (-item[1], item[0]))[:TOP_K]
    p = [math.exp((logprob - order[0][1]) / TEMPERATURE) for _, logprob in order]
    kept, mass = {}, 0.0
    for (token, _), weight in zip(order, p):
        if mass >= TOP_P * sum(p):
            break
        mass += weight
        if weight >= MIN_P:
            kept[token] = weight
    return {token: math.log(weight / sum(kept.values())) for token, weight in kept.items()}


def test_log_probabilities_are_those_of_what_is_kept(base_model, reference, tmp_path):
    """Each drawn token against the raw distribution at its place, as a server with the same weights tells it."""
    checked = narrow = 0
    with Cluster(tmp_path, model=base_model) as cluster:
        server = cluster.start("raw", "generation-server", ["--model", base_model])
        for rollout in reference[1][::3]:
            prompt, ids = list(rollout["prompt"].encode()), rollout["token_ids"]
            body = {"token_ids": prompt + ids, "sampling_params": {"max_tokens": 1, "prompt_logprobs": 2 * TOP_K}}
            judged = call("POST", server.url + "/inference/v1/generate", body)["prompt_logprobs"]
            for at, (token, logprob) in enumerate(zip(ids, rollout["logprobs"])):
                kept = kept_of({int(id): shown["logprob"] for id, shown in judged[len(prompt) + at].items()})
                assert token in kept, (rollout["id"], at, token, kept)
                assert abs(kept[token] - logprob) < 1e-4, (rollout["id"], at, token, kept, logprob)
                checked, narrow = checked + 1, narrow + (len(kept) < TOP_K)
    assert checked > 50 and narrow > 10


def test_samples_end_where_their_text_first_has_the_stop_text(stop, reference):
    ended = 0
    for rollout in reference[1]:
        text = rollout["text"]
        assert stop not in text[:-1], rollout
        if text.endswith(stop):
            ended += 1
            assert rollout["finish"] == "stop" and rollout["token_ids"][-1] != EOS
        else:
            assert (rollout["finish"] == "stop") == (rollout["token_ids"][-1] == EOS), rollout
    assert ended > len(reference[1]) // 8


def test_unlike_servers_that_hand_samples_over_give_the_same_digests(base_model, stop, reference, tmp_path):
    with Cluster(tmp_path, model=base_model, trainer=["--isa", "v3", "--threads", 2]) as cluster:
        leaving = cluster.add_server("leaving", "--slots", 2, "--page-tokens", 16, "--isa", "v2", SLOWLY)
        cluster.create_run({**config(stop=[stop, "never written"]), "lease_samples_max": 3})
        cluster.wait_until("samples are done", lambda: cluster.query("SELECT 1 FROM samples WHERE run = 1 AND state = 2"))
        leaving.process.send_signal(signal.SIGTERM)
        cluster.add_server("small", "--slots", 3, "--prefill-chunk", 5, "--isa", "v3")
        cluster.add_server("large", "--slots", 8, "--threads", 2)
        status = cluster.wait("r1")
        assert cluster.query("SELECT subject, detail FROM incidents WHERE kind = 'nondeterminism'") == []
    assert digests(status) == reference[0]
    assert status["totals"]["logprob_unequal"] == 0 and status["totals"]["logprob_max_abs_diff"] == 0


def drifting(stop, **changes):
    """Steps so large that later weights leave out what was drawn; and no ratio but 0 is out of range, so that clip_fraction counts what was left out."""
    made = {**config(stop=stop), **changes}
    made["training"].update(lr=0.004, clip_low=1, clip_high=1e6)
    return made


def left_out(status):
    history = status["history"]
    assert not any(row["skipped"] for row in history) and all(row[name] is not None for row in history for name in ("loss", "ess", "kl_new_old", "grad_norm")), [(row["loss"], row["ess"], row["kl_new_old"], row["grad_norm"], row["clip_fraction"]) for row in history]
    assert status["totals"]["logprob_unequal"] == 0 and all(row["exact"] for row in history)
    assert len(set(digests(status))) == len(history)
    return [row["clip_fraction"] for row in history]


def test_minibatches_of_cut_rows_end_with_the_same_digests(base_model, stop, tmp_path):
    """Later steps of a round train on what other weights have kept: the ratio is against those, and what the current ones leave out counts nothing."""
    minibatch = {"update": "minibatch", "groups_per_step": 2}
    with Cluster(tmp_path, model=base_model, trainer=["--threads", 2]) as cluster:
        cluster.add_server("small", "--slots", 3, "--isa", "v3")
        cluster.add_server("large", "--slots", 8, "--threads", 2)
        first = cluster.run({**drifting(stop, **minibatch), "start": "model"})
        shares = left_out(first)
        assert max(shares) < 0.5 and min(shares) > 0, shares
        again = cluster.run({**drifting(stop, **minibatch), "mode": "sync", "start": "model"})
        assert digests(again) == digests(first) and left_out(again) == left_out(first)


@pytest.mark.parametrize("replayed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_cut_rows_in_flight_are_trained_on_and_replayed(base_model, stop, tmp_path, replayed):
    """Each token was drawn from what its version kept, and is judged by what the version of its step keeps."""
    made = drifting(stop, mode="inflight", max_lag=2, rounds=4, groups_per_round=4)
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.add_server("gen", "--slots", 32)
        run = cluster.create_run(made)
        shares = left_out(finish_inflight(cluster, run))
        assert any(share > 0 for share in shares) and max(shares) < 0.5, shares
    if replayed:
        code, said, why = replay(cluster, tmp_path, run, base_model, "--isa", "v3")
        assert code == 0, (said, why)


def test_what_cannot_be_repeated_is_refused_by_name(base_model, tmp_path):
    cases = [
        ({"training": {"entropy_coefficient": 0.01}}, {}, "sampling.top_k"),
        ({}, {"repetition_penalty": 1.1}, "sampling.repetition_penalty"),
        ({}, {"logit_bias": {"7": 1}}, "sampling.logit_bias"),
        ({}, {"stop": ["a", ""]}, "sampling.stop"),
    ]
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.wait_until("the trainer is registered", lambda: call("GET", cluster.coordinator.url + "/v1/workers")["workers"])
        for run, sampling, field in cases:
            with pytest.raises(HttpError) as refused:
                cluster.create_run({**config(**sampling), **run})
            assert refused.value.status == 422 and refused.value.json()["error"]["field"] == field, json.dumps(refused.value.json())
