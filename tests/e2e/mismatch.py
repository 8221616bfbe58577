"""How far trainer and samplers are apart, computed anew from what each of them recorded, and held against what the coordinator shows."""
import math
import struct

import pytest

from harness import call

FIGURES = ["logprob_max_abs_diff", "logprob_mean_abs_diff", "logprob_kl_k1", "logprob_kl_k3", "logprob_unequal", "logprob_nonfinite"]


def floats(numbers):
    """As the float32s that both sides hold."""
    return struct.unpack(f"<{len(numbers)}f", struct.pack(f"<{len(numbers)}f", *numbers))


def differences(cluster, run, round_):
    """Sampler's less trainer's log-probability of every trained token.  The trainer keeps a round's batches until the next round's step."""
    recorded = {r["id"]: floats(r["logprobs"]) for r in call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/rollouts?round={round_}&limit=4096")["rollouts"]}
    out = []
    for (number,) in cluster.query("SELECT number FROM batches WHERE run = ? AND round = ? ORDER BY number", int(run[1:]), round_):
        batch = call("GET", f"{cluster.trainer.url}/v1/batches/{run}.{round_}.b{number}?logprobs=1")
        assert batch["state"] == "done" and batch["samples"], batch
        for sample in batch["samples"]:
            out += [s - t for s, t in zip(recorded[sample["id"]], floats(sample["logprobs"]), strict=True)]
    return out


def figures(d):
    """d: differences.  KL(sampler || trainer), by tokens that the sampler drew, is the mean of d; or of r - 1 - log r, where r = p(trainer) / p(sampler) = exp(-d)."""
    return {
        "logprob_max_abs_diff": max(map(abs, d)),
        "logprob_mean_abs_diff": math.fsum(map(abs, d)) / len(d),
        "logprob_kl_k1": math.fsum(d) / len(d),
        "logprob_kl_k3": math.fsum(math.expm1(-x) + x for x in d) / len(d),
        "logprob_unequal": sum(x != 0 for x in d),
        "logprob_nonfinite": 0,
    }


def assert_shown(shown, d):
    """shown: a round or a run's totals; d: all differences of its trained tokens."""
    want = figures(d)
    noise = 1e-12 * want["logprob_mean_abs_diff"]  # sums in another order; k1's terms cancel
    assert {name: shown[name] for name in FIGURES} == {name: pytest.approx(value, rel=1e-9, abs=noise if name == "logprob_kl_k1" else 0) for name, value in want.items()}
    assert shown["logprob_max_abs_diff"] == want["logprob_max_abs_diff"]


def assert_zero(shown):
    assert [shown[name] for name in FIGURES] == [0] * len(FIGURES)


def assert_metrics(cluster, row, total_unequal):
    """/metrics tells the newest done round's figures."""
    for name in ["max_abs_diff", "mean_abs_diff", "kl_k1", "kl_k3"]:
        assert cluster.coordinator.metric(f"leasehold_round_logprob_{name}") == row[f"logprob_{name}"], name
    for name in ["unequal", "nonfinite"]:
        assert cluster.coordinator.metric(f"leasehold_round_logprob_{name}_tokens") == row[f"logprob_{name}"], name
    assert cluster.coordinator.metric("leasehold_logprob_unequal_tokens_total") == total_unequal
