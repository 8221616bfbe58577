"""What a server says that it needs is what it takes: VmHWM, less what the same binary takes for a tiny model beside that model's own plan, lies within a
tenth of the plan that it logged and shows in /metrics; and what does not fit is refused at start, with numbers."""
import json
import pathlib
import re
import shutil
import socket
import subprocess
import urllib.parse

import pytest

from harness import BIN, DATA, Cluster, Deadline, HttpError, call, exchange, warmup_config

EPOCH = {"epoch": 1, "fence": 1}
TRAINING = {"objective": "grpo", "lr": 1e-4, "temperature": 1.0}
CONFIG = {
    **json.loads((DATA / "model/config.json").read_text()),
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 16384,
    "max_position_embeddings": 8192,
    "initializer_range": 0.02,
}
SMALL = {**CONFIG, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 32, "vocab_size": 512}
MIB = 1 << 20


class Alone(Cluster):
    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.services = []

    def trainer(self, name, config, *args):
        model = self.folder / name
        model.mkdir()
        (model / "config.json").write_text(json.dumps(config))
        return self.start(name, "trainer-server", ["--model", model, "--state-dir", self.folder / f"{name}-state", "--random-init", 1, "--threads", 1, "--log-level", "info", *args])


@pytest.fixture
def alone(tmp_path):
    with Alone(tmp_path) as made:
        yield made


FAMILIES = {
    "qwen3": {},
    "qwen3_moe": {"num_experts": 12, "num_experts_per_tok": 3, "moe_intermediate_size": 320, "norm_topk_prob": True, "mlp_only_layers": [2]},
    "qwen2": {},
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 100},
    "phi3": {"sliding_window": 100, "pad_token_id": 0},
    "gemma2": {"sliding_window": 100},
    "gemma3_text": {"sliding_window": 100},
}


def of_family(config, family):
    kept = {key: value for key, value in config.items() if key not in ("architectures", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types")}
    return {**kept, "model_type": family, **FAMILIES[family]}


def peak(service):
    return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path(f"/proc/{service.process.pid}/status").read_text())[1]) * 1024


def planned(service):
    """By part, from /metrics."""
    text = call("GET", service.url + "/metrics", raw=True).decode()
    return {part: float(value) for part, value in re.findall(r'^leasehold_memory_planned_bytes\{part="([^"]+)"\} (\S+)', text, re.M)}


def sizes(config):
    """The letters of the README's formula."""
    D, F, V, E = (config[key] for key in ("hidden_size", "intermediate_size", "vocab_size", "head_dim"))
    HE, GE, L = config["num_attention_heads"] * E, config["num_key_value_heads"] * E, config["num_hidden_layers"]
    P = V * D + L * (2 * D * HE + 2 * D * GE + 3 * D * F + 2 * D + 2 * E) + D
    return D, F, V, E, HE, GE, L, P


def kept_logits(config, T):
    """Bytes among the activations."""
    D, F, V, _, HE, GE, L, _ = sizes(config)
    blocks = T * (L * (12 * D + 8 * HE + 8 * GE + 10 * F) + 4 * D) // 8 // (1024 * V)
    return (max(1, min(blocks, -(-T // 256))) - 1) * 1024 * V


def trainer_formula(config, T, threads=1, recompute=False, mapped=False, lean=False):
    D, F, V, E, HE, GE, L, P = sizes(config)
    return {
        "weights": (2 if lean else 4) * P + 2 * V * D,
        "optimizer": (12 if mapped else 24) * P - (4 * P - 4 * MIB - 4 * V * D if lean else 0),
        "activations": T * 4 * D * (L + 2) if recompute else T * (L * (12 * D + 8 * HE + 8 * GE + 10 * F) + 4 * D) + kept_logits(config, T),
        "scratch": T * (22 * D + 24 * HE + 36 * GE + 18 * F + 146) + 256 * (6 * V + 4 * D) + threads * MIB + 4 * E * config["max_position_embeddings"] + (2 * V * D if lean else 0),
        "published versions": 0 if lean else 4 * P,
        "changes between versions": P,
    }


def server_formula(config, rows, pages, page_tokens, context, threads=1):
    D, F, V, E, HE, GE, L, P = sizes(config)
    return {
        "weights": 2 * P + 2 * V * D,
        "staged weights": 2 * P + 2 * V * D,
        "incoming weights": 2 * P,
        "KV cache": pages * page_tokens * L * 4 * GE,
        "scratch": rows * (12 * D + 8 * HE + 12 * GE + 10 * F) + 280 * V + 2 * threads * MIB + 8 * E * context,
    }


def follows(plan, formula, off=0.03):
    """The plan's parts are what the README's formula says."""
    for part, size in formula.items():
        assert abs(plan[part] - size) <= off * size + MIB / 2, (part, plan[part], size)


def held_to_its_plan(service, tiny):
    """tiny: the same program, its plan small: what is left of its peak is the binary, its libraries and threads."""
    plan = planned(service)
    baseline = peak(tiny) - sum(planned(tiny).values())
    used = peak(service) - baseline
    print(f"{service.name}: planned {sum(plan.values()) / MIB:.1f} MiB, took {used / MIB:.1f} MiB beside a baseline of {baseline / MIB:.1f} MiB:", {part: round(size / MIB, 1) for part, size in plan.items()})
    assert 0 < baseline < 64 * MIB
    assert abs(used - sum(plan.values())) <= 0.1 * sum(plan.values()), (used, plan, baseline)


def ended(url, seconds=120):
    deadline = Deadline(seconds)
    while not deadline.passed():
        answer = call("GET", url + "?wait_ms=10000")
        if answer["state"] in ("done", "failed"):
            assert answer["state"] == "done", answer
            return answer
    raise AssertionError(f"{url} has not ended within {seconds} s")


def sample(name, length, vocabulary, prompt=8, salt=0):
    return {
        "id": name,
        "tokens": [(i * i + 31 * i * (salt if i >= prompt else 1)) % vocabulary for i in range(length)],
        "prompt_length": prompt,
        "segments": [{"start": 0, "count": length - prompt, "loss_mask": True}],
        "advantage": 1.0 if salt % 2 else -1.0,
    }


def train(trainer, rounds, config, chunk_tokens, samples, length, after_step=None, push_to=(), **training):
    """Rounds of one group each; the digest after the last.  after_step is called with every new version, which push_to's servers get."""
    call("POST", trainer.url + "/v1/runs", {"run": "r1", **EPOCH, "seed": 1, "current_version": 0, "training": {**TRAINING, "chunk_tokens": chunk_tokens, **training}})
    targets = [{"worker_id": server.name, "url": server.url} for server in push_to]
    for v in range(rounds):
        group = {"id": f"r1.{v}.0", "samples": [sample(f"r1.{v}.0.{i}", length, config["vocab_size"], salt=v + i) for i in range(samples)]}
        call("POST", trainer.url + "/v1/submit-batch", {"batch_id": f"r1.{v}.b0", "run": "r1", **EPOCH, "version": v, "groups": [group]})
        ended(f"{trainer.url}/v1/batches/r1.{v}.b0")
        call(
            "POST",
            trainer.url + "/v1/submit-step",
            {"step_id": f"r1.{v}", "run": "r1", **EPOCH, "version": v, "groups": [group["id"]], "denominator": float(samples * (length - 8)), "last": False, "stage_timeout_ms": 60000 if targets else 100, "push_to": targets},
        )
        digest = ended(f"{trainer.url}/v1/steps/r1.{v}")["digest"]
        if after_step:
            after_step(v + 1)
    return digest


def pull_slowly(trainer, version):
    """Asks for the weights and takes the answer's first bytes, no more for now."""
    parts = urllib.parse.urlsplit(trainer.url)
    peer = socket.socket()
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    peer.settimeout(60)
    peer.connect((parts.hostname, parts.port))
    peer.sendall(f"GET /v1/weights/{version} HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n".encode())
    assert peer.recv(12) == b"HTTP/1.1 200"
    return peer


@pytest.mark.parametrize("args, kl_coefficient", [((), 0.5), (("--recompute-activations",), 0.0)], ids=["kept, with a reference", "recomputed"])
def test_a_trainer_takes_what_it_plans(alone, args, kl_coefficient):
    tiny = alone.trainer("tiny", SMALL, "--chunk-tokens", 64)
    trainer = alone.trainer("trainer", CONFIG, "--chunk-tokens", 1024, *args)
    train(trainer, 2, CONFIG, 1024, samples=8, length=120, kl_coefficient=kl_coefficient)
    assert ("reference" in planned(trainer)) == (kl_coefficient > 0)
    held_to_its_plan(trainer, tiny)
    follows(planned(trainer), trainer_formula(CONFIG, 1024, recompute=bool(args)))
    before = call("GET", trainer.url + "/v1/model")["digest"]
    trainer.stop()
    trainer.restart()  # reading a checkpoint takes no more
    assert call("GET", trainer.url + "/v1/model")["digest"] == before
    held_to_its_plan(trainer, tiny)


def test_what_is_mapped_or_not_kept_is_not_in_memory(alone):
    """The same weights in 12 bytes a parameter less, in 10 less, and in 22 less, while it trains and when it reads a checkpoint; and no file is left."""
    tiny = alone.trainer("tiny", SMALL, "--chunk-tokens", 64)
    modes = {
        "resident": ((), {}),
        "mapped": (("--optimizer-state", "mapped"), {"mapped": True}),
        "lean": (("--lean",), {"lean": True}),
        "both": (("--lean", "--optimizer-state", "mapped"), {"lean": True, "mapped": True}),
    }
    digests, written = set(), set()
    for name, (args, formula) in modes.items():
        trainer = alone.trainer(name, CONFIG, "--chunk-tokens", 1024, *args)
        digests.add(train(trainer, 2, CONFIG, 1024, samples=8, length=120))
        held_to_its_plan(trainer, tiny)
        follows(planned(trainer), trainer_formula(CONFIG, 1024, **formula))
        trainer.stop()
        assert sorted(p.name for p in (alone.folder / f"{name}-state").iterdir()) == ["latest", "r1", "trainer-lock"], name
        written.add((alone.folder / f"{name}-state/r1/v2/optimizer.safetensors").read_bytes())
        trainer.restart()  # and makes no version yet, so that it takes less
        digests.add(call("GET", trainer.url + "/v1/model")["digest"])
        read = 4 * CONFIG["vocab_size"] * CONFIG["hidden_size"]  # of the file, mapped: the kernel takes it back where it must
        assert peak(trainer) - (peak(tiny) - sum(planned(tiny).values())) <= 1.01 * sum(planned(trainer).values()) + read
        trainer.stop()
    assert len(digests) == 1 and len(written) == 1


def test_moments_in_8_bits_take_less_for_the_runs_that_ask_for_them(alone):
    tiny = alone.trainer("tiny", SMALL, "--chunk-tokens", 64)
    trainer = alone.trainer("trainer", CONFIG, "--chunk-tokens", 1024, "--lean", "--optimizer-moments", "8bit")
    with pytest.raises(HttpError) as refused:
        train(trainer, 1, CONFIG, 1024, samples=8, length=120)
    assert refused.value.status == 422 and refused.value.json()["error"]["field"] == "training.optimizer_moments"
    train(trainer, 2, CONFIG, 1024, samples=8, length=120, optimizer_moments="8bit")
    held_to_its_plan(trainer, tiny)
    formula = trainer_formula(CONFIG, 1024, lean=True)
    P = sizes(CONFIG)[-1]
    formula["optimizer with 8-bit moments"] = formula.pop("optimizer") - 6 * P + 8 * P / 256
    follows(planned(trainer), formula)


def test_eight_late_joiners_at_once_cost_no_more_than_is_planned(alone):
    """Eight servers begin to pull every version and read on slowly, while rounds are computed."""
    tiny = alone.trainer("tiny", SMALL, "--chunk-tokens", 64)
    trainer = alone.trainer("trainer", CONFIG, "--chunk-tokens", 1024)
    peers = []
    train(trainer, 3, CONFIG, 1024, samples=8, length=120, after_step=lambda version: peers.extend(pull_slowly(trainer, version) for _ in range(8)))
    assert len(peers) == 24
    held_to_its_plan(trainer, tiny)
    for peer in peers:
        peer.close()


def test_eight_thousand_tokens_train_in_bounded_memory(alone):
    """One sample of 8,192 tokens, in one chunk: 64 times the attention of 1,024, 8 times the memory; recomputed, less, and the same weights."""
    tiny = alone.trainer("tiny", SMALL, "--chunk-tokens", 64)
    digests, activations = set(), {}
    for name, args in (("kept", ()), ("recomputed", ("--recompute-activations",))):
        trainer = alone.trainer(name, SMALL, "--chunk-tokens", 8192, *args)
        digests.add(train(trainer, 1, SMALL, 8192, samples=1, length=8192))
        held_to_its_plan(trainer, tiny)
        follows(planned(trainer), trainer_formula(SMALL, 8192, recompute=bool(args)))
        activations[name] = planned(trainer)["activations"]
        trainer.stop()
    assert len(digests) == 1
    assert activations["recomputed"] < activations["kept"] / 3
    shorter = alone.trainer("shorter", SMALL, "--chunk-tokens", 1024)
    assert activations["kept"] - kept_logits(SMALL, 8192) <= 8.01 * (planned(shorter)["activations"] - kept_logits(SMALL, 1024))


def test_a_generation_server_takes_what_it_plans(alone):
    trainer = alone.trainer("trainer", CONFIG, "--chunk-tokens", 64)
    model = alone.folder / "trainer"
    weights = call("GET", trainer.url + "/v1/weights/0", raw=True)
    digest = call("GET", trainer.url + "/v1/model")["digest"]
    (model / "model.safetensors").write_bytes(weights)
    trainer.stop()
    small = alone.trainer("small", SMALL, "--chunk-tokens", 64)
    (alone.folder / "small/model.safetensors").write_bytes(call("GET", small.url + "/v1/weights/0", raw=True))
    few = ["--slots", 8, "--threads", 1, "--context-max", 1024, "--kv-pages", 400, "--log-level", "info"]
    tiny = alone.start("tiny", "generation-server", ["--model", alone.folder / "small", "--context-max", 64, "--slots", 1, "--threads", 1])
    server = alone.start("server", "generation-server", ["--model", model, *few])
    body = {"input_ids": list(range(256)), "sampling_params": {"max_new_tokens": 40, "temperature": 1.0, "ignore_eos": True, "n": 8}}
    call("POST", server.url + "/v1/generate", body)
    for version in (1, 2):
        status, _, answer = exchange("POST", f"{server.url}/v1/push-weights?run=r1&version={version}&epoch=0", weights, {"X-Leasehold-Digest": digest})
        assert status == 200, answer
    call("POST", server.url + "/v1/generate", body)
    held_to_its_plan(server, tiny)
    follows(planned(server), server_formula(CONFIG, 8 + 256, 400, 32, 1024))


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_what_it_plans(alone, family):
    """A trainer's and a generation-server's peak, less what the same binary takes beside a tiny model's plan, within 1 % and 10 MiB of the plan.  What is planned
    happens: the server is sent a version whole, then the changes of five more."""
    config, small = of_family(CONFIG, family), of_family(SMALL, family)
    tiny = alone.trainer("tiny", small, "--chunk-tokens", 64)
    trainer = alone.trainer("trainer", config, "--chunk-tokens", 1024)
    (alone.folder / "tiny/model.safetensors").write_bytes(call("GET", tiny.url + "/v1/weights/0", raw=True))
    weights = call("GET", trainer.url + "/v1/weights/0", raw=True)
    digest = call("GET", trainer.url + "/v1/model")["digest"]
    (alone.folder / "trainer/model.safetensors").write_bytes(weights)
    few = ["--slots", 8, "--threads", 1, "--context-max", 1024, "--kv-pages", 400, "--log-level", "info"]
    tiny_server = alone.start("tiny-server", "generation-server", ["--model", alone.folder / "tiny", "--context-max", 64, "--slots", 1, "--threads", 1])
    server = alone.start("server", "generation-server", ["--model", alone.folder / "trainer", *few])
    call("POST", server.url + "/v1/generate", {"input_ids": list(range(256)), "sampling_params": {"max_new_tokens": 40, "temperature": 1.0, "ignore_eos": True, "n": 8}})
    status, _, answer = exchange("POST", f"{server.url}/v1/push-weights?run=r0&version=1&epoch=0", weights, {"X-Leasehold-Digest": digest})
    assert status == 200, answer
    train(trainer, 6, config, 1024, samples=8, length=120, lr=1e-5, push_to=[server])
    assert server.metric("leasehold_generation_versions_from_changes_total") >= 4
    for service, beside in ((trainer, tiny), (server, tiny_server)):
        plan, used = sum(planned(service).values()), peak(service) - (peak(beside) - sum(planned(beside).values()))
        print(f"{family}, {service.name}: planned {plan / MIB:.1f} MiB, took {used / MIB:.1f} MiB")
        assert abs(used - plan) <= 0.01 * plan + 10 * MIB


@pytest.mark.parametrize("program", ["trainer-server", "generation-server"])
def test_what_does_not_fit_is_refused_at_start_with_numbers(program, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(DATA / "model", model)
    args = ["--model", model, "--port", 0, "--memory-max", 3 * MIB]
    if program == "trainer-server":
        args += ["--state-dir", tmp_path / "state", "--random-init", 1]
    ended = subprocess.run([BIN / program, *map(str, args)], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1
    last = ended.stderr.strip().splitlines()[-1]
    assert re.search(r"needs [\d.]+ MiB \(weights [\d.]+, .*scratch [\d.]+.*\), and the machine has [\d.]+ MiB available.*--memory-max is 3\.0 MiB", last), last


def test_fit_gives_up_the_cheapest_and_keeps_to_what_is_left(alone):
    """The same weights, in less memory than the trainer plans by itself; and a refusal has said how."""
    tiny = alone.trainer("tiny", SMALL, "--chunk-tokens", 64)
    whole = alone.trainer("whole", CONFIG, "--chunk-tokens", 1024)
    digest = train(whole, 2, CONFIG, 1024, samples=8, length=120)
    parts = planned(whole)
    whole.stop()
    bound = ["--memory-max", int(sum(parts.values()) - parts["changes between versions"] - parts["published versions"] - parts["activations"] / 2)]
    with pytest.raises(RuntimeError, match=r"it would fit with --lean true \(\d+\.\d MiB less: transposes are made again and again, versions lie on disk, the same weights\)"):
        alone.trainer("refused", CONFIG, "--chunk-tokens", 1024, *bound)
    fitted = alone.trainer("fitted", CONFIG, "--chunk-tokens", 1024, *bound, "--fit")
    fitted.wait_log(r"--fit chose --lean true")
    assert train(fitted, 2, CONFIG, 1024, samples=8, length=120) == digest
    held_to_its_plan(fitted, tiny)
    assert sum(planned(fitted).values()) <= bound[1]


def test_what_a_run_kept_frozen_is_planned_no_longer_once_a_run_does_without(tmp_path):
    """The metric kept a reference's bytes, and the dashboard's sum with it, for as long as the trainer went on."""
    with Cluster(tmp_path, trainer=["--random-init", 1]) as cluster:
        cluster.add_server("gen")
        bound = warmup_config(1)
        bound["training"]["kl_coefficient"] = 0.5
        cluster.run(bound)
        assert planned(cluster.trainer)["reference"] > 0
        cluster.run(warmup_config(1))
        assert planned(cluster.trainer)["reference"] == 0
        cluster.run(bound)
        assert planned(cluster.trainer)["reference"] > 0


@pytest.mark.parametrize("kept", [{"kl_coefficient": 0.5}, {"update": "inflight", "objective": "reinforce"}], ids=["a reference", "versions being pushed"])
def test_fit_leaves_room_for_the_run_that_goes_on(alone, kept):
    """What the checkpoint's run keeps beside the plan is needed at the start: without room for it there was no start."""
    trainer = alone.trainer("trainer", SMALL, "--chunk-tokens", 64)
    call("POST", trainer.url + "/v1/runs", {"run": "r1", **EPOCH, "seed": 1, "current_version": 0, "training": {**TRAINING, "chunk_tokens": 64, **kept}})
    before, plan = call("GET", trainer.url + "/v1/model")["digest"], planned(trainer)
    trainer.stop()
    bound = int(sum(plan.values())) - 4096
    with pytest.raises(RuntimeError, match=r"needs .*, and --memory-max is"):
        trainer.restart([*trainer.args, "--memory-max", bound])
    trainer.restart([*trainer.args, "--memory-max", bound, "--fit"])
    trainer.wait_log(r"--fit chose --push-changes false")
    assert call("GET", trainer.url + "/v1/model")["digest"] == before
    assert sum(planned(trainer).values()) <= bound


def test_a_server_fits_with_a_shorter_context(alone):
    trainer = alone.trainer("trainer", CONFIG, "--chunk-tokens", 64)
    model = alone.folder / "trainer"
    (model / "model.safetensors").write_bytes(call("GET", trainer.url + "/v1/weights/0", raw=True))
    trainer.stop()
    args = ["--model", model, "--slots", 1, "--threads", 1, "--prefill-chunk", 32]
    whole = alone.start("whole", "generation-server", args)
    body = {"input_ids": list(range(100)), "sampling_params": {"max_new_tokens": 20, "temperature": 0.0, "ignore_eos": True}}
    ids = call("POST", whole.url + "/v1/generate", body)["output_ids"]
    bound = ["--memory-max", int(sum(planned(whole).values()) - planned(whole)["KV cache"] / 3)]
    whole.stop()
    with pytest.raises(RuntimeError, match=r"it would fit with --context-max 4096 \(\d+\.\d MiB less: no sequence may be longer\)"):
        alone.start("refused", "generation-server", [*args, *bound])
    fitted = alone.start("fitted", "generation-server", [*args, *bound, "--fit", "true"])
    assert call("GET", fitted.url + "/v1/model")["config"]["context_max"] == 4096
    assert call("POST", fitted.url + "/v1/generate", body)["output_ids"] == ids
