"""A Qwen3 of plain Python, in double precision: what a test compares the services' figures with that were computed by none of their code.

Reads a Hugging Face folder (config.json and one model.safetensors in bf16, tied embeddings).  A tiny model takes it about 10 ms a token.
"""
import json
import math
import operator
import pathlib
import struct


def tensors(path):
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name == "__metadata__":
            continue
        assert entry["dtype"] == "BF16", f"{name} is {entry['dtype']}"
        begin, end = entry["data_offsets"]
        halves = struct.unpack_from(f"<{(end - begin) // 2}H", data, 8 + length + begin)
        flat = list(struct.unpack(f"<{len(halves)}f", b"".join(struct.pack("<I", half << 16) for half in halves)))
        shape = entry["shape"]
        yield name, flat if len(shape) == 1 else [flat[i : i + shape[1]] for i in range(0, len(flat), shape[1])]


def dot(a, b):
    return sum(map(operator.mul, a, b))


def times(rows, x):
    return [dot(row, x) for row in rows]


class ReferenceModel:
    def __init__(self, folder):
        self.config = json.loads((pathlib.Path(folder) / "config.json").read_text())
        assert self.config["model_type"] == "qwen3" and self.config["tie_word_embeddings"]
        self.weights = dict(tensors(pathlib.Path(folder) / "model.safetensors"))

    def norm(self, x, name):
        scale = 1 / math.sqrt(dot(x, x) / len(x) + self.config["rms_norm_eps"])
        return [value * scale * weight for value, weight in zip(x, self.weights[name])]

    def heads(self, x, layer, which, position):
        """Projected, normed and turned: one list for each head."""
        size = self.config["head_dim"]
        flat = times(self.weights[f"{layer}.self_attn.{which}_proj.weight"], x)
        out = []
        for first in range(0, len(flat), size):
            head = self.norm(flat[first : first + size], f"{layer}.self_attn.{which}_norm.weight")
            half = size // 2
            angles = [position * self.config["rope_theta"] ** (-2 * i / size) for i in range(half)]
            out.append([head[i] * math.cos(a) - head[i + half] * math.sin(a) for i, a in enumerate(angles)] + [head[i + half] * math.cos(a) + head[i] * math.sin(a) for i, a in enumerate(angles)])
        return out

    def logits(self, ids):
        """Of the token behind each of ids."""
        size, layers = self.config["head_dim"], self.config["num_hidden_layers"]
        group = self.config["num_attention_heads"] // self.config["num_key_value_heads"]
        cache = [([], []) for _ in range(layers)]
        out = []
        for position, token in enumerate(ids):
            x = self.weights["model.embed_tokens.weight"][token]
            for number, (keys, values) in enumerate(cache):
                layer = f"model.layers.{number}"
                normed = self.norm(x, f"{layer}.input_layernorm.weight")
                keys.append(self.heads(normed, layer, "k", position))
                flat = times(self.weights[f"{layer}.self_attn.v_proj.weight"], normed)
                values.append([flat[first : first + size] for first in range(0, len(flat), size)])
                mixed = []
                for head, query in enumerate(self.heads(normed, layer, "q", position)):
                    scores = [dot(query, key[head // group]) / math.sqrt(size) for key in keys]
                    weights = [math.exp(score - max(scores)) for score in scores]
                    mixed += [dot(weights, [value[head // group][i] for value in values]) / sum(weights) for i in range(size)]
                x = list(map(operator.add, x, times(self.weights[f"{layer}.self_attn.o_proj.weight"], mixed)))
                normed = self.norm(x, f"{layer}.post_attention_layernorm.weight")
                gate, up = times(self.weights[f"{layer}.mlp.gate_proj.weight"], normed), times(self.weights[f"{layer}.mlp.up_proj.weight"], normed)
                x = list(map(operator.add, x, times(self.weights[f"{layer}.mlp.down_proj.weight"], [g / (1 + math.exp(-g)) * u for g, u in zip(gate, up)])))
            out.append(times(self.weights["model.embed_tokens.weight"], self.norm(x, "model.norm.weight")))
        return out

    def judged(self, prompt, completion, temperature=1.0):
        """(log-probability, entropy) of each token of the completion, in nats."""
        for logits, token in zip(self.logits(prompt + completion[:-1])[len(prompt) - 1 :], completion):
            scaled = [value / temperature for value in logits]
            most = max(scaled)
            whole = math.log(sum(math.exp(value - most) for value in scaled)) + most
            yield scaled[token] - whole, -sum(math.exp(value - whole) * (value - whole) for value in scaled)
