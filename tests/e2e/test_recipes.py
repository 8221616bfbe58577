"""The recipes in deploy/recipes: what a page says of memory is what the services plan for, and its run is taken and learns from a file of that shape.

What would break: a key of the run is renamed; a table is of an earlier memory plan; a command names a flag or a file that is not there.
"""
import functools
import json
import re
import shutil
import subprocess

import pytest

from harness import BIN, ROOT, Cluster, call

RECIPES = ROOT / "deploy/recipes"
PAGE = (RECIPES / "qwen3-0.6b-gsm8k.md").read_text()
QWEN3_06B = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_act": "silu", "attention_bias": False, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
    "hidden_size": 1024, "intermediate_size": 3072, "max_position_embeddings": 40960, "num_attention_heads": 16, "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000, "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 151936,
}


def memory_rows():
    service, always, rows = None, None, []
    for line in PAGE.splitlines():
        if found := re.match(r"\| (trainer-server|generation-server), (.*) \| MiB \|", line):
            service, always = found[1], " ".join(re.findall(r"`([^`]*)`", found[2]))
        elif found := re.match(r"\| (as it is|`([^`]*)`) \| (\d+) \|", line):
            rows.append((service, f"{always} {found[2] or ''}".strip(), int(found[3])))
    return rows


@pytest.mark.parametrize(("service", "flags", "mib"), memory_rows())
def test_the_memory_table_is_what_the_services_plan(tmp_path, service, flags, mib):
    shutil.copytree(ROOT / "deploy/demo/model", tmp_path / "model")
    (tmp_path / "model/config.json").write_text(json.dumps(QWEN3_06B))
    command = [BIN / service, "--model", tmp_path / "model", "--port", "0", "--threads", "2", "--memory-max", "1000000", *flags.split()]
    if service == "trainer-server":
        command += ["--random-init", "1", "--state-dir", tmp_path / "state"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    planned = re.search(r"needs ([0-9.]+) MiB", done.stderr)
    assert planned and round(float(planned[1])) == mib, done.stderr


def test_there_is_a_table_for_both_services():
    assert [service for service, _, _ in memory_rows()] == ["trainer-server"] * 10 + ["generation-server"] * 2


def test_every_flag_of_the_commands_exists():
    @functools.cache
    def flags_of(service):
        return set(re.findall(r"^  (--[a-z-]+)", subprocess.run([BIN / service, "--help"], capture_output=True, text=True, check=True).stdout, re.M))

    commands = re.findall(r"build/bin/(\S+) ((?:[^&]|\\\n)*)&", PAGE)
    assert [service for service, _ in commands] == ["coordinator", "trainer-server", "generation-server"]
    for service, text in commands:
        assert set(re.findall(r"--[a-z-]+", text)) <= flags_of(service)
    for path in re.findall(r"deploy/[\w./-]+", PAGE):
        assert (ROOT / path).exists(), path


def test_its_run_is_taken_and_trains_on_a_file_of_that_shape(tmp_path):
    """With the demo's model, which answers nonsense: groups are kept that would be refilled, and the round is small."""
    model, data = tmp_path / "model", tmp_path / "data/gsm8k"
    shutil.copytree(ROOT / "deploy/demo/model", model)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 1024}))
    data.mkdir(parents=True)
    for part in ("train", "test"):
        lines = [{"question": f"A shelf holds {n} books, and {n} more are put on it. How many are there?", "answer": f"There are {n} + {n} = <<{n}+{n}={2 * n}>>{2 * n}.\n#### {2 * n}"} for n in range(2, 10)]
        (data / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    run = json.loads((RECIPES / "qwen3-0.6b-gsm8k.json").read_text())
    run.update(rounds=1, groups_per_round=4, samples_per_group=2, filter={"zero_advantage": "keep"}, overlong={"buffer": 8})
    run["sampling"]["max_new_tokens"] = 16
    run["evaluation"]["problems"] = 4
    with Cluster(tmp_path / "c", model=model, trainer=["--random-init", 1, "--chunk-tokens", 1024], coordinator=["--data-dir", tmp_path / "data"]) as cluster:
        cluster.add_server("gen-1", "--threads", 1)
        status = cluster.run(run)
        assert status["dataset"]["prompts"] == 8 and status["history"][0]["groups"] == 4 and len(status["evaluations"]) == 1
        rollout = call("GET", f"{cluster.coordinator.url}/v1/runs/{status['id']}/rollouts?limit=1")["rollouts"][0]
        assert "A shelf holds" in rollout["prompt"] and r"\boxed{}. /no_think" in rollout["prompt"] and rollout["prompt"].startswith("<|im_start|>user")
        assert int(rollout["answer"]) in range(4, 20, 2) and rollout["detail"].startswith("math 0, regex 0 x 0.1")
