"""The peer of `train`: the same model and step in PyTorch on the CPU: cross-entropy, gradient clipping, fused AdamW, in bf16 by autocast over fp32 masters or all in fp32.

Speaks the instrument's language (instrument.c), and only the questions `eager SAMPLES LENGTH`, `compile SAMPLES LENGTH`, `eager_fp32 ..` and `compile_fp32 ..`:

  peer_torch.py THREADS
  -> PyTorch {version}
  -> {seconds of one step}

Runs under the interpreter that BENCH_TORCH_PYTHON names; nothing of the project is imported.
"""
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

LAYERS, HIDDEN, FFN, HEADS, KV_HEADS, HEAD_DIM, VOCABULARY = 12, 512, 1536, 8, 4, 64, 8192
ROPE_THETA, EPS, DEVIATION = 1e6, 1e-6, 0.02


def linear(inputs, outputs):
    layer = nn.Linear(inputs, outputs, bias=False)
    nn.init.normal_(layer.weight, std=DEVIATION)
    return layer


def rotate(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_in, self.norm_mid = nn.RMSNorm(HIDDEN, eps=EPS), nn.RMSNorm(HIDDEN, eps=EPS)
        self.norm_q, self.norm_k = nn.RMSNorm(HEAD_DIM, eps=EPS), nn.RMSNorm(HEAD_DIM, eps=EPS)
        self.q, self.k, self.v = linear(HIDDEN, HEADS * HEAD_DIM), linear(HIDDEN, KV_HEADS * HEAD_DIM), linear(HIDDEN, KV_HEADS * HEAD_DIM)
        self.o = linear(HEADS * HEAD_DIM, HIDDEN)
        self.gate, self.up, self.down = linear(HIDDEN, FFN), linear(HIDDEN, FFN), linear(FFN, HIDDEN)

    def forward(self, x, cos, sin):
        B, T, _ = x.shape
        y = self.norm_in(x)
        q = rotate(self.norm_q(self.q(y).view(B, T, HEADS, HEAD_DIM)).transpose(1, 2), cos, sin)
        k = rotate(self.norm_k(self.k(y).view(B, T, KV_HEADS, HEAD_DIM)).transpose(1, 2), cos, sin)
        v = self.v(y).view(B, T, KV_HEADS, HEAD_DIM).transpose(1, 2)
        y = F.scaled_dot_product_attention(q.to(v.dtype), k.to(v.dtype), v, is_causal=True, enable_gqa=True)
        x = x + self.o(y.transpose(1, 2).reshape(B, T, HEADS * HEAD_DIM))
        y = self.norm_mid(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HIDDEN)
        nn.init.normal_(self.embed.weight, std=DEVIATION)
        self.layers = nn.ModuleList(Layer() for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=EPS)
        angles = torch.outer(torch.arange(length), ROPE_THETA ** (-torch.arange(0, HEAD_DIM, 2) / HEAD_DIM))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("sin", angles.sin(), persistent=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        logits = F.linear(self.norm(x)[:, :-1], self.embed.weight)
        return F.cross_entropy(logits.float().reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))


class Trainer:
    def __init__(self, mode, samples, length):
        torch.manual_seed(1)
        self.model = Model(length)
        self.tokens = torch.randint(VOCABULARY, (samples, length))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, betas=(0.9, 0.95), weight_decay=0.01, fused=True)
        self.loss = torch.compile(self.model) if mode.startswith("compile") else self.model
        self.bf16 = not mode.endswith("_fp32")
        self.step()  # memory, kernels' caches, and the compiler

    def step(self):
        begun = time.monotonic()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.bf16):
            loss = self.loss(self.tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return time.monotonic() - begun


def main():
    torch.set_num_threads(int(sys.argv[1]))
    trainers = {}
    print(f"PyTorch {torch.__version__}", flush=True)
    for line in sys.stdin:
        mode, *sizes = line.split()
        key = (mode, *map(int, sizes))
        try:
            if key not in trainers:
                trainers[key] = Trainer(*key)
            print(f"{trainers[key].step():.9g}", flush=True)
        except Exception as error:  # a compiler that is missing is an answer, too
            print(f"error {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}", flush=True)


main()
