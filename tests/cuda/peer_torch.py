"""The peer of bench.c: the same training step in PyTorch with its flash attention, bf16 weights, float32 AdamW states.

Prints tokens/s for Qwen3's shapes; a plain transformer of the same products, so that no package but torch is needed.
"""
import time

import torch
import torch.nn.functional as F
import torch.utils.checkpoint

SHAPES = {"Qwen3-0.6B": (28, 1024, 16, 8, 128, 3072), "Qwen3-1.7B": (28, 2048, 16, 8, 128, 6144)}
VOCABULARY, SAMPLES, LENGTH, PER_CALL = 151936, 16, 2048, 4


class Layer(torch.nn.Module):
    def __init__(self, hidden, heads, kv_heads, head_dim, ffn):
        super().__init__()
        self.sizes = heads, kv_heads, head_dim
        self.norm_in, self.norm_mid = torch.nn.RMSNorm(hidden), torch.nn.RMSNorm(hidden)
        self.norm_q, self.norm_k = torch.nn.RMSNorm(head_dim), torch.nn.RMSNorm(head_dim)
        self.q = torch.nn.Linear(hidden, heads * head_dim, bias=False)
        self.k, self.v = (torch.nn.Linear(hidden, kv_heads * head_dim, bias=False) for _ in range(2))
        self.o = torch.nn.Linear(heads * head_dim, hidden, bias=False)
        self.gate, self.up = (torch.nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down = torch.nn.Linear(ffn, hidden, bias=False)

    def forward(self, x, cos, sin):
        heads, kv_heads, dim = self.sizes
        batch, length, _ = x.shape
        y = self.norm_in(x)
        q = self.norm_q(self.q(y).view(batch, length, heads, dim)).transpose(1, 2)
        k = self.norm_k(self.k(y).view(batch, length, kv_heads, dim)).transpose(1, 2)
        v = self.v(y).view(batch, length, kv_heads, dim).transpose(1, 2)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        x = x + self.o(a.transpose(1, 2).reshape(batch, length, heads * dim))
        y = self.norm_mid(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def rotate(x, cos, sin):
    a, b = x.chunk(2, -1)
    return torch.cat((a * cos - b * sin, b * cos + a * sin), -1)


def step(layers, embedding, norm, tokens, cos, sin, optimizer):
    for part in tokens.split(PER_CALL):
        x = embedding(part)
        for layer in layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, cos, sin, use_reentrant=False)
        x = norm(x)[:, :-1].reshape(-1, x.shape[-1])
        hidden = x.detach().requires_grad_()  # the head by blocks, so that its logits never stand there all at once
        for rows, targets in zip(hidden.split(2048), part[:, 1:].reshape(-1).split(2048)):
            F.cross_entropy(F.linear(rows, embedding.weight).float(), targets, reduction="sum").backward()
        x.backward(hidden.grad)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def measure(name, shape):
    count, hidden, *rest = shape
    head_dim = rest[2]
    device = torch.device("cuda")
    with device:
        layers = torch.nn.ModuleList(Layer(hidden, *rest) for _ in range(count)).bfloat16()
        embedding, norm = torch.nn.Embedding(VOCABULARY, hidden).bfloat16(), torch.nn.RMSNorm(hidden).bfloat16()
        tokens = torch.randint(VOCABULARY, (SAMPLES, LENGTH))
        angle = torch.arange(LENGTH)[:, None] * 1e6 ** (-torch.arange(0, head_dim, 2) / head_dim)
    cos, sin = angle.cos().bfloat16(), angle.sin().bfloat16()
    optimizer = torch.optim.AdamW([*layers.parameters(), *embedding.parameters(), *norm.parameters()], lr=1e-6, fused=True)
    seconds = []
    for _ in range(4):
        torch.cuda.synchronize()
        begin = time.monotonic()
        step(layers, embedding, norm, tokens, cos, sin, optimizer)
        torch.cuda.synchronize()
        seconds.append(time.monotonic() - begin)
    median = sorted(seconds[1:])[1]
    print(f"{name} PyTorch {torch.__version__} training {SAMPLES} x {LENGTH}, again {SAMPLES * LENGTH / median:10.0f} tokens/s {median:8.3f} s", flush=True)


for title, sizes in SHAPES.items():
    measure(title, sizes)
    torch.cuda.empty_cache()
