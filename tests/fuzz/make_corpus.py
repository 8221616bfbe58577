#!/usr/bin/env python3
"""Makes corpus/NAME/: small inputs to begin from, one folder for each fuzz_NAME.c.  Inputs that once broke something are
committed beside them as corpus/NAME/found-*, and are left alone.

  tests/fuzz/make_corpus.py [--check]     --check: the folders hold just this, and no target lacks one"""
import gzip
import json
import pathlib
import struct
import sys

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
CORPUS = HERE / "corpus"
BYTES_MAX = 300_000
DIGEST = "49aaac685ecca198" * 4
MATH, KINDS = 3, 12  # of enum verifier_kind; the kinds, and a regex of the run

TEMPLATE_VARIABLES = {
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2+2?"},
                 {"role": "assistant", "content": "<think>4</think>4"}, {"role": "user", "content": "And <|im_end|>?"}],
    "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>", "tools": None,
}


def safetensors(head, tensors):
    """head: (key, JSON) of the metadata, or None; tensors: (name, dtype, shape, bytes)."""
    header, data = {}, b""
    if head:
        header["__metadata__"] = {head[0]: head[1] if isinstance(head[1], str) else json.dumps(head[1])}
    for name, dtype, shape, raw in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def i32(*numbers):
    return struct.pack(f"<{len(numbers)}i", *numbers)


def f32(*numbers):
    return struct.pack(f"<{len(numbers)}f", *numbers)


def wire():
    """The messages in the order of fuzz_wire.c's table."""
    current = {"run": "r1", "version": 2, "digest": DIGEST, "trainer_url": "http://127.0.0.1:8200"}
    spans = [{"version": 1, "start": 0, "count": 2}, {"version": 2, "start": 2, "count": 1, "fresh": False}]
    segments = [{"start": 0, "count": 3, "loss_mask": True}]
    sample = {"sample": 1, "token_ids": [35, 53, 256], "logprobs": [-0.5, -0.25, -1e-9], "finish_reason": "stop",
              "segments": segments, "version_spans": spans}
    result = {"worker_id": "w3", "epoch": 1, "fence": 2, "loaded_digest": DIGEST, "handed_back": False}
    lease = {"id": "r1.0.2.0-1", "fence": 3, "run": "r1", "group": "r1.0.2", "purpose": "training", "round": 0,
             "group_ordinal": 2, "sample_first": 0, "sample_count": 2, "version_min": 1, "version_max": 2, "kv": "keep",
             "weights_digest": DIGEST, "temperature": 1.0, "max_new_tokens": 8, "stop_token_ids": [256],
             "ignore_eos": False, "stop": ["\n\n"], "seed": 7, "ttl_ms": 30000, "prompt_ids": [50, 43, 48],
             "partials": [{"sample": 1, "token_ids": [35], "logprobs": [-0.5],
                           "version_spans": [{"version": 1, "start": 0, "count": 1}]}]}
    batch_sample = {"id": "r1.0.2.0", "tokens": [50, 43, 35, 256], "prompt_length": 2,
                    "segments": [{"start": 0, "count": 2, "loss_mask": True}], "advantage": -0.75}
    batch = {"batch_id": "r1.0.b0", "run": "r1", "epoch": 1, "fence": 2, "version": 0, "after_steps": 0,
             "groups": [{"id": "r1.0.2", "samples": [batch_sample]}]}
    stats = {"loss": 0.5, "entropy_sum": 1.5, "kl_reference_sum": 0, "ratio_sum": 2, "ratio_squares": 2, "kl_new_old": 0,
             "difference_new_old": None, "tokens": 2, "clipped": 0, "samples": 1, "logprob_us": 5, "compute_us": 9,
             "poisoned": False}
    status = {"batch_id": "r1.0.b0", "state": "done", "error": None,
              "samples": [{"id": "r1.0.2.0", "logprobs": [-0.5, -1.25]}], "stats": stats,
              "intervals": [["compute", 1700000000000000, 1700000000000900]], "logprobs_sha256": DIGEST}
    training = {"objective": "grpo", "lr": 0.001, "chunk_tokens": 4096, "kl_coefficient": 0.01, "update": "minibatch"}
    pushes = [{"worker_id": "w3", "staged": True, "way": "http", "digest": DIGEST, "error": None},
              {"worker_id": "w4", "staged": False, "error": "it did not answer"}]
    head_batch = {**batch, "groups": [{"id": "r1.0.2", "samples": ["r1.0.2.0"]}]}
    head_status = {**status, "samples": ["r1.0.2.0"]}
    messages = [
        {"name": "gen-1", "kind": "generation", "url": "http://127.0.0.1:8100", "slots": 16, "exactness": "invariant",
         "device": "cpu", "fabric": {"name": "pool", "kind": "nccl", "place": 1}, "identity": "0123456789abcdef"},
        {"worker_id": "w3", "epoch": 1, "fence": 2, "heartbeat_ms": 1000, "worker_ttl_ms": 10000, "role": "holder"},
        {"epoch": 1, "ready": True, "draining": False, "loaded_digest": DIGEST, "slots_busy": 3, "busy_slot_us": 900,
         "tokens_sampled": 4, "leases": [{"id": "r1.0.2.0-1", "fence": 3}], "sent_us": 1700000000000000,
         "intervals": [["starved", 1, 2], ["load", 2, 9]], "step_costs": [{"slot": 4, "steps": 2, "rows": 8, "us": 90}]},
        {"epoch": 1, "lost": ["r1.0.2.0-1"], "run_active": True, "current": current, "role": "standby", "fence": 0},
        {"epoch": 1, "slots_free": 4, "wait_ms": 1000, "loaded_digest": DIGEST},
        {"epoch": 1, "leases": [lease], "current": current},
        {**result, "samples": [sample]},
        {"repeated": True},
        {"epoch": 1, "groups_max": 2, "wait_ms": 0},
        {"epoch": 1, "passes": [{"pass_id": "r1.0.2", "run": "r1", "fence": 1, "version": 0, "weights_digest": DIGEST,
                                 "weights_from": "http://127.0.0.1:8200", "chunk_tokens": 64, "temperature": 1.0,
                                 "samples": [{k: v for k, v in batch_sample.items() if k != "advantage"}]}]},
        {"run": "r1", "epoch": 1, "fence": 2, "seed": 7, "current_version": 3, "start": {"run": "r0", "version": 4},
         "training": training},
        {"run": "r1", "version": 0, "digest": DIGEST, "state": "ready"},
        {"start": "current", "training": training},
        {"context_max": 512},
        batch,
        status,
        {"step_id": "r1.0", "run": "r1", "epoch": 1, "fence": 2, "version": 0, "groups": ["r1.0.2"], "denominator": 2,
         "last": False, "inner": False, "after_steps": 0, "announce_first": False, "checkpoint": True, "keep_last": 2,
         "keep_versions": [1, 2], "push_to": [{"worker_id": "w3", "url": "http://127.0.0.1:8100", "fabric_place": 1}],
         "stage_timeout_ms": 1000},
        {"step_id": "r1.0", "state": "done", "error": None, "version": 1, "digest": DIGEST, "grad_norm": 0.5, "lr": 0.001,
         "skipped": False, "step_us": 1, "checkpoint_us": 2, "push_us": 3, "oldest_checkpoint": 1, "checkpoints": [0, 1],
         "pushes": pushes, "intervals": []},
        {"run": "r1", "step_id": "r1.0", "worker_id": "w2", "epoch": 1, "fence": 2, "version": 1, "digest": DIGEST,
         "pushes": pushes},
        {"staged": True, "digest": DIGEST},
        safetensors(("result", result), [
            ("version_spans", "I64", [2, 4], struct.pack("<8q", 1, 0, 2, 1, 2, 2, 1, 0)),
            ("samples", "I32", [1, 3], i32(1, 0, 3)), ("token_ids", "I32", [3], i32(35, 53, 256)),
            ("logprobs", "F32", [3], f32(-0.5, -0.25, 0)), ("segments", "I32", [1, 3], i32(0, 3, 1))]),
        safetensors(("result", {"worker_id": "w5", "epoch": 1, "fence": 2, "weights_digest": DIGEST, "handed_back": False,
                                "samples": ["r1.0.2.0"]}),
                    [("trained", "I32", [1], i32(2)), ("logprobs", "F32", [2], f32(-0.5, -1.25))]),
        safetensors(("batch", head_batch), [
            ("samples", "I32", [1, 2], i32(4, 2)), ("token_ids", "I32", [4], i32(50, 43, 35, 256)),
            ("segments", "I32", [1, 3], i32(0, 2, 1)), ("advantages", "F32", [1], f32(-0.75))]),
        safetensors(("status", head_status),
                    [("trained", "I32", [1], i32(2)), ("logprobs", "F32", [2], f32(-0.5, -1.25))]),
    ]
    return {f"{i:02d}": bytes([i]) + (m if isinstance(m, bytes) else json.dumps(m).encode()) for i, m in enumerate(messages)}


def texts(*items):
    return {f"{i:02d}": t if isinstance(t, bytes) else t.encode() for i, t in enumerate(items)}


def verifiers():
    """Every tenth pair of the table, under math; a line or two for the other kinds."""
    out = {}
    gold, answers = "", []
    for line in open(ROOT / "tests/verifiers/math_pairs.txt", encoding="utf-8"):
        line = line.rstrip("\n").split("  ## ")[0]
        if line.startswith("= "):
            gold = line[2:]
        elif line.startswith(("+ ", "- ")):
            answers.append((gold, "\\boxed{" + line[2:] + "}"))
        elif line.startswith(("+> ", "-> ")):
            answers.append((gold, line[3:].replace("\\n", "\n")))
    for i, (gold, answer) in enumerate(answers[::10]):
        out[f"math-{i:03d}"] = bytes([MATH]) + gold.encode() + b"\0" + answer.encode()
    for i, text in enumerate(["7\0<think>x</think> The answer is 7", "B\0 (B)", "a*b\0aaab", "{}\0```json\n{\"a\": [1]}\n```",
                              "1\0#### 1", "\\frac{1}{2}\0$\\boxed{0.5}$", "(1, 2]\0(1,2]", "x^2+1\0\\boxed{1+x^{2}}"]):
        for kind in range(KINDS):
            out[f"kind-{kind:02d}-{i}"] = bytes([kind + 128 * (i % 2)]) + text.encode()
    return out


def configs():
    base = json.load(open(ROOT / "deploy/demo/model/config.json"))
    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64}
    llama = {**base, "model_type": "llama", "architectures": ["LlamaForCausalLM"], "rope_scaling": rope}
    gemma = {**base, "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "query_pre_attn_scalar": 16,
             "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 16, "hidden_activation": "gelu_pytorch_tanh"}
    moe = {**base, "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "num_experts": 4,
           "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True, "decoder_sparse_step": 1,
           "mlp_only_layers": []}
    generation = open(ROOT / "deploy/demo/model/generation_config.json").read()
    fixtures = sorted((ROOT / "tests/golden").glob("*/config.json")) + sorted((ROOT / "tests/golden/families").glob("*/config.json"))
    return texts(json.dumps(base) + "\0" + generation, json.dumps(llama), json.dumps(gemma), json.dumps(moe),
                 *[f.read_text() for f in fixtures])


def datasets():
    chat = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    lines = [(0, {"prompt": "1+1=", "answer": "2", "max_new_tokens": 4, "numbers": [1, 2], "target": 3}),
             (8, {"prompt": "1+1=", "completion": "2"}), (0, {"messages": chat[:1], "answer": 2}), (8, {"messages": chat}),
             (1, {"question": "1+1=", "answer": "so\n#### 2"}),
             (2, {"prompt": "1+1=", "reward_model": {"ground_truth": "2", "style": "rule"}}),
             (3, {"prompt": chat[:1], "reward_model": {"ground_truth": ["2"]}, "extra_info": {"index": 1}}),
             (4, {"prompt": [{"role": "user", "content": [{"type": "text", "text": "1+1="}]}], "solution": "2"}),
             (5, {"input": "1+1=", "label": "2"}), (128 + 64, {"prompt": "x", "answer": "7"})]
    return {f"{i:02d}": bytes([how]) + json.dumps(line).encode() for i, (how, line) in enumerate(lines)}


def run_configs():
    runs = [p.read_text() for p in sorted((ROOT / "deploy/demo/runs").glob("*.json"))]
    base = {"rounds": 3, "seed": 3, "dataset": {"path": "train.jsonl"}, "groups_per_round": 4, "samples_per_group": 4,
            "sampling": {"temperature": 1.0, "max_new_tokens": 8}}
    more = [{"training": {"objective": "grpo"}, "keep_rounds": 2, "filter": {"zero_advantage": "refill", "refill_max": 2}},
            {"recipe": "dapo"}, {"recipe": "reinforce++"}, {"mode": "inflight", "max_lag": 2, "kv": "recompute"},
            {"update": "minibatch", "groups_per_step": 2}, {"verifier": {"kind": "regex", "pattern": "a+"}},
            {"verifier": {"terms": [{"kind": "math"}, {"kind": "format", "tags": ["think"], "weight": 0.2}]}},
            {"evaluation": {"sets": [{"name": "a", "path": "t.jsonl", "samples": 2, "temperature": 0.5}], "every_rounds": 2}},
            {"start": {"run": "r1", "version": "best"}}, {"dataset": {"path": "a.jsonl", "curriculum": {"rate_min": 0.1, "rate_max": 0.9}}},
            {"dataset": {"sources": [{"path": "a.jsonl", "weight": 2}, {"path": "b.jsonl", "weight": 1, "preset": "gsm8k"}]}},
            {"sampling": {"temperature": 1, "max_new_tokens": 8, "top_p": 0.9, "stop": ["\n"], "ignore_eos": False}}]
    return texts(*runs, *[json.dumps({**base, **m}) for m in more])


def heads():
    return texts(
        "aGET /v1/runs/r1?wait_ms=100&limit=5\nAuthorization: Bearer secret-of-admins",
        "aPOST /v1/runs\nAuthorization: Bearer secret-of-admins\nContent-Length: 12\nContent-Type: application/json",
        "bPUT /v1/leases/r1.0.2.0-1/result\nX-Leasehold-Epoch: 1\nX-Leasehold-Fence: 2\nX-Leasehold-Worker: w3\n"
        "Content-Type: application/octet-stream\nContent-Length: 4000000",
        "bPOST /v1/workers/w%31/heartbeat?all=1&id=%7e+x\nTransfer-Encoding: chunked\nExpect: 100-continue",
        "bDELETE /v1/runs/..%2f..%2fetc", "bGET /healthz?a=1&a=2", "bGET /v1/a/b/c/d/e/f/g/h/i/j/k/l/m/n/o/p/q",
        "aGET /?limit=99999999999999999999&all=-1&run=%00", "GET",
        "aGET /v1/runs/r1\nAuthorization: Bearer secret-of-viewers\nHost: a.example:8000",
        "aPOST /v1/workers/w1/heartbeat\nAuthorization: Bearer secret-of-viewers\nContent-Length: 2",
        "bPOST /v1/runs\nHost: a\nHost: b\nContent-Length: 1\nContent-Length: 2\nTransfer-Encoding: chunked",
        "bPOST /v1/runs\nHost: rebound.example\nOrigin: http://rebound.example\nSec-Fetch-Site: cross-site\nContent-Length: 2")


def line_files():
    lines = b'{"prompt":"1+1=","answer":"2"}\n{"prompt":"x"}\r\n\n' + b"y" * 5000 + b"\nlast"
    # 'hello\n' times 4 as one raw zstd block: magic, a frame of one segment with its size, a last raw block
    raw = b"hello\n" * 4
    zstd = b"\x28\xb5\x2f\xfd\x20" + bytes([len(raw)]) + struct.pack("<I", (len(raw) << 3) | 1)[:3] + raw
    packed = gzip.compress(lines, mtime=0)
    return texts(lines, b"", b"\n\n", packed, packed[:-9], packed + packed, zstd, zstd[:-3], b"PAR1" + b"\0" * 20)


def everything():
    golden = ROOT / "tests/golden/tokenizer"
    templates = sorted((ROOT / "tests/template/families").glob("*.jinja"))
    variables = json.dumps(TEMPLATE_VARIABLES)
    strings = ["Hello, world!  12345", "<|im_start|>user\n\u4f60\u597d<|im_end|>", "\u00e9\u0301 \ud55c\uae00 \U0001f642", " \t\n\r a",
               "<s>a</s><unk>", "x" * 300, "\u2581\u2581a \u2581"]
    return {
        "json": texts('{"a":[1,2.5,-3e9,true,null,"\\u00e9\\ud83d\\ude42"],"b":{"c":{}}}', "[]", '"x"', "1e400", '{"a":1,"a":2}',
                      "[" * 31 + "]" * 31, "123456789012345678901234567890", '{"a\\u0000b":1}', "\xef\xbb\xbf{}", "nul"),
        "wire": wire(),
        "safetensors": texts(
            safetensors(("format", "pt"), [("w", "BF16", [2, 3], bytes(12)), ("b", "F32", [], f32(1)), ("e", "I8", [0, 4], b"")]),
            safetensors(None, [("a", "F64", [1], bytes(8)), ("m", "BOOL", [3], b"\0\1\1")]),
            struct.pack("<Q", 2) + b"{}", struct.pack("<Q", 1 << 62), b""),
        "tokenizer_file": {f.stem: f.read_bytes() for f in
                           [ROOT / "deploy/demo/model/tokenizer.json", golden / "gpt2.json", golden / "ignore_merges.json",
                            golden / "families/llama2.json", golden / "families/unigram_bytes.json"]},
        "tokenizer_text": {f"{which}-{i}": bytes([which + 128 * (i % 2)]) + s.encode() for which in range(5) for i, s in enumerate(strings)},
        "template": {**{t.stem: t.read_bytes() + b"\0" + variables.encode() for t in templates},
                     **texts("{% for m in messages %}{{ m.content|trim|upper }}{% endfor %}\0" + variables,
                             "{% macro f(x, y=1) %}{{ x ~ y }}{% endmacro %}{{ f(2) }}{% set ns = namespace(a=1) %}\0{}",
                             "{{ [1,2,3][::-1]|tojson }}{% if a is defined and not b %}x{% elif 1 < 2 %}y{% endif %}\0{\"b\":0}",
                             "{{ range(10**9) }}", "{% for i in range(3) recursive %}{{ loop([i]) }}{% endfor %}")},
        "verifiers": verifiers(),
        "model_config": configs(),
        "http_head": heads(),
        "dataset": datasets(),
        "line_file": line_files(),
        "run_config": run_configs(),
    }


def main():
    made = everything()
    targets = {f.stem.removeprefix("fuzz_") for f in HERE.glob("fuzz_*.c")}
    faults = [f"target {t} has no corpus" for t in sorted(targets - set(made))]
    faults += [f"corpus {t} has no target" for t in sorted(set(made) - targets)]
    for name, inputs in made.items():
        folder = CORPUS / name
        if "--check" not in sys.argv[1:]:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("*"):
                if not old.name.startswith("found-"):
                    old.unlink()
            for key, raw in inputs.items():
                (folder / key).write_bytes(raw)
        here = {f.name: f.read_bytes() for f in folder.glob("*") if not f.name.startswith("found-")} if folder.exists() else {}
        if here != inputs:
            faults.append(f"{folder.relative_to(ROOT)} is not what make_corpus.py makes: run it")
    size = sum(f.stat().st_size for f in CORPUS.rglob("*") if f.is_file())
    if size > BYTES_MAX:
        faults.append(f"the corpora hold {size} bytes; expected at most {BYTES_MAX}")
    for fault in faults:
        print(f"fuzz: {fault}")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
