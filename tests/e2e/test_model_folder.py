"""Model folders as people have them: one file or shards, bf16, fp16 or fp32.  Both services that load one end with the same weights, and say by name
what is wrong with a folder that cannot be loaded."""
import json
import shutil
import struct
import subprocess

import pytest

from harness import BIN, DATA, Cluster, call, grpo_config

BYTES = {"BF16": 2, "F16": 2, "F32": 4}


def read_tensors(file):
    """name -> (dtype, shape, bytes)"""
    data = file.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    return {name: (t["dtype"], t["shape"], data[8 + length + t["data_offsets"][0] : 8 + length + t["data_offsets"][1]]) for name, t in header.items()}


def write_tensors(file, tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    file.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def as_floats(data):
    """bf16 -> exact Python floats."""
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


def converted(tensor, dtype):
    _, shape, data = tensor
    if dtype == "BF16":
        return tensor
    values = as_floats(data)
    return dtype, shape, struct.pack(f"<{len(values)}{'e' if dtype == 'F16' else 'f'}", *values)


def write_shards(folder, tensors, count, dtypes):
    """Tensor i goes to shard i mod count, in dtype i mod len(dtypes)."""
    shards, weight_map = [{} for _ in range(count)], {}
    for i, (name, tensor) in enumerate(tensors.items()):
        file = f"model-{i % count + 1:05}-of-{count:05}.safetensors"
        shards[i % count][name] = converted(tensor, dtypes[i % len(dtypes)])
        weight_map[name] = file
    for i, shard in enumerate(shards):
        write_tensors(folder / f"model-{i + 1:05}-of-{count:05}.safetensors", shard)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 0}, "weight_map": weight_map}))


class Alone(Cluster):
    def __init__(self, folder):
        self.folder = folder
        self.services = []

    def trainer(self, name, model, *args):
        return self.start(name, "trainer-server", ["--model", model, "--state-dir", self.folder / f"{name}-state", "--threads", 1, "--chunk-tokens", 64, *args])

    def server(self, name, model):
        return self.start(name, "generation-server", ["--model", model, "--threads", 1, "--slots", 1, "--context-max", 64])


@pytest.fixture
def alone(tmp_path):
    with Alone(tmp_path) as made:
        yield made


@pytest.fixture
def base(alone):
    """(folder of small files, tensors, digest): weights whose values are bf16 and fp16 alike, so that every form of the file holds the same ones."""
    drawn = alone.trainer("drawn", DATA / "model", "--random-init", 3)
    folder = alone.folder / "base"
    shutil.copytree(DATA / "model", folder)
    (folder / "drawn.safetensors").write_bytes(call("GET", drawn.url + "/v1/weights/0", raw=True))
    drawn.stop()
    tensors = {}
    for name, (dtype, shape, data) in read_tensors(folder / "drawn.safetensors").items():
        kept = b"".join(struct.pack("<f", x)[2:] for x in (struct.unpack("<e", struct.pack("<e", v))[0] for v in as_floats(data)))
        tensors[name] = (dtype, shape, kept)
    (folder / "drawn.safetensors").unlink()
    whole = alone.folder / "whole"
    shutil.copytree(folder, whole)
    write_tensors(whole / "model.safetensors", tensors)
    trainer = alone.trainer("whole", whole)
    digest = call("GET", trainer.url + "/v1/model")["digest"]
    trainer.stop()
    return folder, tensors, digest


@pytest.mark.parametrize("count, dtypes", [(1, ["F16"]), (3, ["BF16"]), (4, ["F32"]), (3, ["BF16", "F32", "F16"])])
def test_every_form_of_a_folder_is_the_same_model(alone, base, count, dtypes):
    folder, tensors, digest = base
    write_shards(folder, tensors, count, dtypes)
    trainer, server = alone.trainer("trainer", folder), alone.server("server", folder)
    assert call("GET", trainer.url + "/v1/model")["digest"] == digest
    assert call("GET", server.url + "/v1/model")["loaded"]["digest"] == digest


def refusal(program, folder, state, *args):
    more = ["--state-dir", state] if program == "trainer-server" else []
    ended = subprocess.run([BIN / program, "--port", "0", "--model", folder, *more, *args], capture_output=True, text=True, timeout=30)
    assert ended.returncode == 1, ended
    return ended.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("program", ["trainer-server", "generation-server"])
def test_a_folder_that_cannot_be_loaded_is_refused_by_name(alone, base, program, tmp_path):
    folder, tensors, _ = base
    name = "model.layers.0.mlp.up_proj.weight"
    said = refusal(program, folder, tmp_path / "state")
    assert "neither model.safetensors nor model.safetensors.index.json" in said
    assert ("--random-init" in said) == (program == "trainer-server")
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert "holds pytorch_model.bin" in refusal(program, folder, tmp_path / "state")
    write_shards(folder, tensors, 2, ["BF16"])
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    (folder / "model-00002-of-00002.safetensors").rename(folder / "gone")
    assert "model-00002-of-00002.safetensors, which is missing" in refusal(program, folder, tmp_path / "state")
    (folder / "gone").rename(folder / "model-00002-of-00002.safetensors")
    index["weight_map"]["model.norm.bias"] = "model-00001-of-00002.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "tensor model.norm.bias" in refusal(program, folder, tmp_path / "state")
    write_shards(folder, {n: t for n, t in tensors.items() if n != name}, 2, ["BF16"])
    assert f"lacks tensor {name}" in refusal(program, folder, tmp_path / "state")
    write_shards(folder, {**tensors, name: ("I8", tensors[name][1], tensors[name][2][::2])}, 2, ["BF16"])
    assert f"tensor {name}: expected BF16, F16 or F32, got I8" in refusal(program, folder, tmp_path / "state")


# ---- the template for tools ----

ASK = {
    "messages": [{"role": "user", "content": "hi"}],
    "tools": [{"type": "function", "function": {"name": "f", "description": "x", "parameters": {"type": "object", "properties": {}}}}],
    "add_generation_prompt": False,
}


def rendered(server):
    tokens = call("POST", server.url + "/tokenize", ASK)["tokens"]
    return call("POST", server.url + "/detokenize", {"tokens": tokens})["prompt"]


@pytest.mark.parametrize("folder", ["additional_chat_templates", "chat_templates"])
def test_a_template_for_tools_goes_wherever_the_model_goes(tmp_path, folder):
    """As transformers writes it, into a folder of its own: to a server that pulls, into the checkpoints, and to a server that loads one."""
    model = tmp_path / "model"
    shutil.copytree(DATA / "model", model)
    (model / folder).mkdir()
    (model / folder / "tool_use.jinja").write_text("tools: {{ messages[0].content }}")
    (model / "chat_template.jinja").write_text("plain: {{ messages[0].content }}")
    with Cluster(tmp_path, model=model, trainer=["--random-init", 1]) as cluster:
        assert "tool_use.jinja" in call("GET", cluster.trainer.url + "/v1/model")["files"]
        server = cluster.add_server("gen", "--slots", 1)
        run = cluster.create_run(grpo_config(1))
        cluster.wait(run)
        assert rendered(server) == "tools: hi"
        checkpoint = cluster.folder / "state" / run / "v1"
        assert (checkpoint / folder / "tool_use.jinja").read_text() == "tools: {{ messages[0].content }}"
        again = cluster.start("again", "generation-server", ["--model", checkpoint, "--threads", 1, "--slots", 1, "--context-max", 64])
        assert rendered(again) == "tools: hi"
