"""Same seed, same weights, bit for bit: whatever the pool, its slots, pages, chunks, threads and kernels.  And the mutants that must break it."""
import json
import os
import pathlib
import re
import subprocess

import pytest

from harness import BIN, FAULT_BIN, SLOWLY, Cluster, call, digests, grpo_config
from mismatch import assert_metrics, assert_shown, assert_zero, differences

ROUNDS = 4


@pytest.fixture(scope="module")
def reference(base_model, tmp_path_factory):
    """One server, one thread each, the best kernels."""
    with Cluster(tmp_path_factory.mktemp("one"), model=base_model) as cluster:
        cluster.add_server("alone", "--slots", 16)
        status = cluster.run(grpo_config(ROUNDS))
        assert_metrics(cluster, status["history"][-1], 0)
    for shown in [status["totals"], *status["history"]]:
        assert_zero(shown)
    assert all(row["exact"] and row["inexact_reason"] is None for row in status["history"])
    assert len(set(digests(status))) == ROUNDS, "every round must change the weights, or equal digests would prove nothing"
    return digests(status)


def test_three_unlike_servers_give_the_same_digest_after_every_round(base_model, reference, tmp_path):
    """Every server runs other kernels (x86-64-v2 has no vectors of fused multiply-adds at all), as far as this CPU has them."""
    with Cluster(tmp_path, model=base_model, trainer=["--threads", 3, "--isa", "v3"]) as cluster:
        cluster.add_server("small", "--slots", 3, "--page-tokens", 16, "--prefill-chunk", 5, "--isa", "v2")
        cluster.add_server("middle", "--slots", 5, "--page-tokens", 48, "--prefill-chunk", 33, "--isa", "v3")
        cluster.add_server("large", "--slots", 8, "--page-tokens", 64, "--prefill-chunk", 256, "--threads", 2)
        cluster.wait_registered()
        config = grpo_config(ROUNDS)
        config["lease_samples_max"] = 1
        status = cluster.run(config)
    assert digests(status) == reference
    assert status["totals"]["logprob_unequal"] == 0 and status["totals"]["logprob_max_abs_diff"] == 0
    contributed = {w["name"]: w["samples"] for w in status["totals"]["workers"]}
    assert set(contributed) == {"small", "middle", "large"} and all(n > 0 for n in contributed.values()), contributed


def test_a_run_whose_weights_exploded_leaves_nothing_to_the_next(tmp_path):
    """Its activations overflow.  NaN that stayed in the pages of the caches, behind what the next run had written there, was multiplied by zero, which is NaN."""
    calm = {**grpo_config(4, groups=3, samples=3), "start": "model", "verifier": {"kind": "regex", "pattern": "[0-9]"}}
    calm["sampling"]["max_new_tokens"] = 6
    exploding = {**calm, "rounds": 8, "mode": "sync", "update": "minibatch", "groups_per_step": 1, "training": {"chunk_tokens": 256, "objective": "reinforce", "lr": 1000, "weight_decay": 1000, "beta2": 0, "clip_norm": 1e12}}
    with Cluster(tmp_path, trainer=["--random-init", 1]) as cluster:
        server = cluster.add_server("alone", "--slots", 16)
        before = digests(cluster.run(calm))
        run = cluster.create_run(exploding)
        server.wait_log("log-probabilities under version . are not finite here")
        cluster.wait_until("it is paused", lambda: cluster.status(run)["state"] == "paused")
        call("POST", f"{cluster.coordinator.url}/v1/runs/{run}/stop")
        cluster.wait(run, state="stopped")
        after = cluster.create_run(calm)
        assert digests(cluster.wait(after)) == before and len(set(before)) > 1
        assert f"lease {after}." not in server.log_text(), "it was refused, or went back"


ISAS = [isa for isa, flag in [("v2", "sse4_2"), ("v3", "avx2"), ("v4", "avx512bw"), ("v4-bf16", "avx512_bf16"), ("amx", "amx_bf16")]
        if flag in pathlib.Path("/proc/cpuinfo").read_text().split()]


def test_a_server_for_every_instruction_set_gives_the_same_digest(base_model, reference, tmp_path, monkeypatch):
    """LEASEHOLD_ISA forces one on each generation-server and a lower one on the trainer; each samples a part of every round."""
    trained_by = ISAS[len(ISAS) // 2]
    monkeypatch.setenv("LEASEHOLD_ISA", trained_by)
    with Cluster(tmp_path, model=base_model) as cluster:
        for isa in ISAS:
            monkeypatch.setenv("LEASEHOLD_ISA", isa)
            cluster.add_server(isa, "--slots", 2)
        cluster.wait_registered()
        config = grpo_config(ROUNDS)
        config["lease_samples_max"] = 1
        status = cluster.run(config)
        assert call("GET", cluster.trainer.url + "/v1/model")["kernels"] == f"cpu-{trained_by}"
        assert f"cpu-{trained_by} (forced)" in cluster.trainer.log_text()
        for server in cluster.services[2:]:
            assert call("GET", server.url + "/v1/model")["kernels"] == f"cpu-{server.name}"
            assert f"cpu-{server.name} (forced)" in server.log_text()
    assert digests(status) == reference
    assert status["totals"]["logprob_unequal"] == 0 and status["totals"]["logprob_max_abs_diff"] == 0
    contributed = {w["name"]: w["samples"] for w in status["totals"]["workers"]}
    assert set(contributed) == set(ISAS) and all(n > 0 for n in contributed.values()), contributed


@pytest.mark.parametrize("program", ["generation-server", "trainer-server"])
def test_an_unknown_instruction_set_is_refused_with_what_there_is(base_model, tmp_path, program):
    command = [str(BIN / program), "--model", str(base_model), "--coordinator", "http://127.0.0.1:1", "--port", "0"]
    ended = subprocess.run(command, env={**os.environ, "LEASEHOLD_ISA": "v9"}, cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    assert '"v9"' in ended.stderr and f"({', '.join(reversed(ISAS))})" in ended.stderr, ended.stderr


def test_preemption_under_a_tiny_pool_changes_nothing(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        server = cluster.add_server("tight", "--slots", 12, "--page-tokens", 16, "--kv-pages", 9)
        status = cluster.run(grpo_config(ROUNDS))
        metrics = call("GET", server.url + "/metrics", raw=True).decode()
    assert digests(status) == reference
    assert float(re.search(r"^leasehold_generation_preemptions_total (\S+)", metrics, re.M)[1]) > 0, "no sample was preempted"


def test_a_server_killed_in_the_middle_loses_nothing(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model, coordinator=["--worker-ttl-ms", 1500, "--heartbeat-ms", 200]) as cluster:
        victim = cluster.add_server("victim", "--slots", 4, SLOWLY)
        run = cluster.create_run(grpo_config(ROUNDS))
        victim.freeze_when("the second round began", lambda: (cluster.status(run)["round"] or 0) >= 1)
        victim.kill()
        cluster.add_server("heir", "--slots", 4)
        status = cluster.wait(run)
    assert digests(status) == reference
    assert {w["name"] for w in status["totals"]["workers"] if w["samples"] > 0} == {"victim", "heir"}


def test_another_seed_gives_other_weights(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.add_server("alone", "--slots", 16)
        status = cluster.run(grpo_config(ROUNDS, seed=2))
    assert not set(digests(status)) & set(reference)


@pytest.mark.parametrize("fault", ["flip-weight", "flip-kv"])
def test_one_flipped_bit_in_one_server_is_seen(base_model, reference, tmp_path, fault):
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.add_server("sound", "--slots", 4)
        cluster.add_server("broken", "--slots", 4, "--fault", fault, bin_dir=FAULT_BIN)
        cluster.wait_registered()
        config = grpo_config(ROUNDS)
        config.update(lease_samples_max=1, verify_samples=False)  # which would have it drawn again
        status = cluster.run(config)
    contributed = {w["name"]: w["samples"] for w in status["totals"]["workers"]}
    assert contributed.get("broken", 0) > 0
    assert status["totals"]["logprob_unequal"] > 0 and status["totals"]["logprob_max_abs_diff"] > 0
    assert not all(row["exact"] for row in status["history"])


def test_what_a_flipped_bit_changes_is_told_in_figures(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        cluster.add_server("broken", "--slots", 8, "--fault", "flip-weight", bin_dir=FAULT_BIN)
        run = cluster.create_run({**grpo_config(1), "verify_samples": False})
        status = cluster.wait(run)
        d = differences(cluster, run, 0)
        row = status["history"][0]
        assert_metrics(cluster, row, row["logprob_unequal"])
        events = [json.loads(data) for (data,) in cluster.query("SELECT data FROM events WHERE type = 'round'")]
        assert "log-probabilities differ from the sampler's, by" in cluster.coordinator.log_text(), "all kernels promise the same bits, so each batch warns"
    assert len(d) == row["tokens"] and row["logprob_unequal"] > 0
    told = [key for key in row if key.startswith("logprob_")] + ["exact", "inexact_reason"]  # its times may be added to when the event is out
    assert [{key: event[key] for key in told} for event in events] == [{key: row[key] for key in told}]
    assert_shown(row, d)
    assert_shown(status["totals"], d)
    assert not row["exact"] and row["inexact_reason"] == f"{row['logprob_unequal']} log-probabilities of the trainer's differ from the samplers'"


def test_one_flipped_bit_in_one_gradient_is_seen(base_model, reference, tmp_path):
    with Cluster(tmp_path, model=base_model, trainer=["--fault", "flip-gradient"], trainer_bin=FAULT_BIN) as cluster:
        cluster.add_server("alone", "--slots", 16)
        status = cluster.run(grpo_config(ROUNDS))
    assert digests(status)[0] == reference[0], "the fault strikes in the second round"
    assert digests(status)[1:] != reference[1:]
