"""Both services over the emulated CUDA device (`make unit-cuda` builds them): the same run gives the same weights whatever the pool, and a trainer that comes
back from its checkpoint goes on to the same ones.  Slow, so the run is as small as a run that changes weights can be."""
import os
import pathlib

import pytest

from harness import ROOT, Cluster, call, digests, grpo_config

DEVICE_BIN = pathlib.Path(os.environ.get("LEASEHOLD_TEST_DEVICE_BIN", ROOT / "build/emulated/bin"))
ROUNDS = 2
DEVICE = ["--device", "cuda"]

pytestmark = pytest.mark.skipif(not (DEVICE_BIN / "trainer-server").exists(), reason="make unit-cuda builds the services that this needs")


def config():
    small = grpo_config(ROUNDS, groups=4, samples=4)
    small["training"].update(checkpoint_every=1, chunk_tokens=256)
    return small


def cluster_on_device(folder, model):
    return Cluster(folder, model=model, trainer=[*DEVICE, "--chunk-tokens", 256], trainer_bin=DEVICE_BIN)


def test_the_pool_and_a_restart_leave_no_trace(base_model, tmp_path):
    with cluster_on_device(tmp_path / "one", base_model) as cluster:
        cluster.add_server("alone", *DEVICE, "--slots", 12, bin_dir=DEVICE_BIN)
        reference = cluster.run(config())
        for service in cluster.services[1:]:
            model = call("GET", service.url + "/v1/model")
            assert (model["device"], model["kernels"]) == ("cuda:0", "cuda-invariant")
        assert "on cuda:0, kernels cuda-invariant" in cluster.trainer.log_text()
    assert reference["totals"]["logprob_unequal"] == 0 and reference["totals"]["logprob_max_abs_diff"] == 0
    assert len(set(digests(reference))) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
    with cluster_on_device(tmp_path / "two", base_model) as cluster:
        cluster.add_server("small", *DEVICE, "--slots", 2, "--page-tokens", 16, "--prefill-chunk", 5, bin_dir=DEVICE_BIN)
        cluster.add_server("middle", *DEVICE, "--slots", 3, "--page-tokens", 48, "--prefill-chunk", 33, bin_dir=DEVICE_BIN)
        run = cluster.create_run({**config(), "lease_samples_max": 1})
        cluster.wait_until("the first round is over", lambda: len(digests(cluster.status(run))) >= 1, 240)
        cluster.trainer.kill()
        cluster.trainer.restart(bin_dir=DEVICE_BIN)
        status = cluster.wait(run)
    assert digests(status) == digests(reference)
    assert status["totals"]["logprob_unequal"] == 0 and status["totals"]["logprob_max_abs_diff"] == 0
