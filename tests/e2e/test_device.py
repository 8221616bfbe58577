"""Both services over the emulated CUDA device (`make unit-cuda` builds them): the same run gives the same weights whatever the pool, and a trainer that comes
back from its checkpoint goes on to the same ones.  Slow, so the run is as small as a run that changes weights can be."""
import os
import pathlib

import pytest

from harness import ROOT, Cluster, call, digests, grpo_config
from mismatch import FIGURES, assert_metrics, assert_shown, assert_zero, differences

EMULATED = "LEASEHOLD_TEST_DEVICE_BIN" not in os.environ
DEVICE_BIN = pathlib.Path(os.environ.get("LEASEHOLD_TEST_DEVICE_BIN", ROOT / "build/emulated/bin"))
ROUNDS = 2
DEVICE = ["--device", "cuda"]

pytestmark = pytest.mark.skipif(not (DEVICE_BIN / "trainer-server").exists(), reason="make unit-cuda builds the services that this needs")


def config():
    small = grpo_config(ROUNDS, groups=4, samples=4)
    small["training"].update(checkpoint_every=1, chunk_tokens=256)
    return small


def cluster_on_device(folder, model, *trainer):
    return Cluster(folder, model=model, trainer=[*DEVICE, "--chunk-tokens", 256, *trainer], trainer_bin=DEVICE_BIN)


def test_the_pool_and_a_restart_leave_no_trace(base_model, tmp_path):
    with cluster_on_device(tmp_path / "one", base_model) as cluster:
        cluster.add_server("alone", *DEVICE, "--slots", 12, bin_dir=DEVICE_BIN)
        reference = cluster.run(config())
        for service in cluster.services[1:]:
            model = call("GET", service.url + "/v1/model")
            assert (model["device"], model["kernels"]) == ("cuda:0", "cuda-invariant")
        assert "on cuda:0, kernels cuda-invariant" in cluster.trainer.log_text()
    for shown in [reference["totals"], *reference["history"]]:
        assert_zero(shown)
    assert all(row["exact"] and row["inexact_reason"] is None for row in reference["history"])
    assert len(set(digests(reference))) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
    with cluster_on_device(tmp_path / "two", base_model) as cluster:
        small = cluster.add_server("small", *DEVICE, "--slots", 2, "--page-tokens", 16, "--prefill-chunk", 5, bin_dir=DEVICE_BIN)
        middle = cluster.add_server("middle", *DEVICE, "--slots", 3, "--page-tokens", 48, "--prefill-chunk", 33, bin_dir=DEVICE_BIN)
        run = cluster.create_run({**config(), "lease_samples_max": 1})
        small.freeze_when("the first round is over", lambda: len(digests(cluster.status(run))) >= 1, 240)
        middle.freeze()
        cluster.trainer.kill()
        for server in (small, middle):
            server.thaw()
        cluster.trainer.restart(bin_dir=DEVICE_BIN)
        status = cluster.wait(run)
    assert digests(status) == digests(reference)
    assert status["totals"]["logprob_unequal"] == 0 and status["totals"]["logprob_max_abs_diff"] == 0


def fastest_of_round(cluster, run, round_):
    """Those whose kernels promise nothing, of all that had a part."""
    names = cluster.query("SELECT DISTINCT name FROM contributions JOIN workers ON workers.id = worker WHERE run = ? AND round = ? AND exactness = 1", int(run[1:]), round_)
    return [*sorted(name for (name,) in names), "trainer"]


def test_fastest_kernels_differ_by_roundings_that_are_shown(base_model, tmp_path):
    """One server promises invariance and one does not, nor does the trainer; every figure is recomputed from the two sides' own log-probabilities.  The trainer
    is lost with its first version, whose replay shows the same differences and ends with the same weights: nobody chose other kernels meanwhile."""
    d = []
    small = {**config(), "lease_samples_max": 1}
    small["training"]["checkpoint_every"] = ROUNDS
    with cluster_on_device(tmp_path, base_model, "--exactness", "fastest") as cluster:
        gen_1 = cluster.add_server("gen-1", *DEVICE, "--slots", 6, bin_dir=DEVICE_BIN)
        gen_2 = cluster.add_server("gen-2", *DEVICE, "--slots", 6, "--exactness", "fastest", bin_dir=DEVICE_BIN)
        workers = lambda: call("GET", cluster.coordinator.url + "/v1/workers")["workers"]
        cluster.wait_until("all three are registered", lambda: len(workers()) == 3, 60)
        promised = {w["name"]: w["exactness"] for w in workers()}
        assert promised == {"trainer": "fastest", "gen-1": "invariant", "gen-2": "fastest"}
        run = cluster.create_run(small)
        for round_ in range(ROUNDS):
            gen_1.freeze_when(f"round {round_} is over", lambda: len(digests(cluster.status(run))) > round_, 240)
            gen_2.freeze()
            d.append(differences(cluster, run, round_))
            if round_ == 0:
                cluster.trainer.kill()
            for server in (gen_1, gen_2):
                server.thaw()
            if round_ == 0:
                cluster.trainer.restart(bin_dir=DEVICE_BIN)
        status = cluster.wait(run)
        assert cluster.trainer.wait_log("recorded is 1: replaying")
        assert cluster.query("SELECT kind, detail FROM incidents") == [], "that they differ again is no news"
        fastest = [fastest_of_round(cluster, run, round_) for round_ in range(ROUNDS)]
        assert_metrics(cluster, status["history"][-1], status["totals"]["logprob_unequal"])  # what is replayed counts once
        warnings = cluster.coordinator.log_text().count("is not exact: the kernels of")
        assert warnings == ROUNDS and "log-probabilities differ from the sampler's" not in cluster.coordinator.log_text(), "one warning a round, none a batch"
    for row, of_round, names in zip(status["history"], d, fastest, strict=True):
        print(f"round {row['round']}:", ", ".join(f"{name} {row[name]:.4g}" for name in FIGURES), f"of {row['tokens']} tokens;", row["inexact_reason"])
        assert len(of_round) == row["tokens"]
        assert_shown(row, of_round)
        assert row["logprob_max_abs_diff"] < 0.05, "more than roundings"
        kernels = f"the kernels of {', '.join(names[:-1])} and trainer are not batch-invariant" if names[:-1] else "the kernels of trainer are not batch-invariant"
        assert not row["exact"] and row["inexact_reason"].startswith(kernels), row["inexact_reason"]
        if EMULATED:  # of a real device's kernels nobody knows what they do with so few rows
            assert row["logprob_unequal"] > 0 and row["logprob_mean_abs_diff"] > 0 and row["logprob_kl_k3"] > 0 and row["logprob_kl_k1"] != 0
    assert_shown(status["totals"], [x for of_round in d for x in of_round])
    assert any("gen-2" in names for names in fastest)
