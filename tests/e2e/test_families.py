"""Models of other families than Qwen3 through all three services: trained, published, pulled and pushed, sampled by unlike servers, continued from a
checkpoint.  Same seed, same weights, bit for bit, and no difference between sampler and trainer."""
import json
import shutil
import struct

import pytest

from harness import DATA, Cluster, digests, grpo_config, make_base_model

FAMILIES = {
    "qwen2": {"max_window_layers": 1, "use_sliding_window": True, "sliding_window": 12},
    "llama": {"attention_bias": True, "mlp_bias": True, "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}},
    "mistral": {"sliding_window": 10},
    "qwen3_moe": {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "norm_topk_prob": True, "mlp_only_layers": [0]},
    "phi3": {"sliding_window": 9, "pad_token_id": 256},
    "gemma2": {"sliding_window": 12, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 20.0},
    "gemma3_text": {"sliding_window": 12, "query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"]},
}
ROUNDS, WARMUP = 2, 40


def make_model(folder, family):
    shutil.copytree(DATA / "model", folder)
    config = json.loads((folder / "config.json").read_text())
    for key in ("architectures", "use_sliding_window", "sliding_window", "max_window_layers", "layer_types"):
        config.pop(key, None)
    (folder / "config.json").write_text(json.dumps({**config, "model_type": family, **FAMILIES[family]}))
    if family == "gemma3_text":  # which comes with a token that only its larger models have a row for
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        tokenizer["added_tokens"].append({"id": config["vocab_size"], "content": "<image_soft_token>", "special": True})
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    return folder


def tensor_bytes(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
    return {name: at["data_offsets"][1] - at["data_offsets"][0] for name, at in header.items() if name != "__metadata__"}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_weights_from_unlike_pools(tmp_path, family):
    base = make_base_model(tmp_path, WARMUP, make_model(tmp_path / "model", family))
    with Cluster(tmp_path / "one", model=base) as cluster:
        cluster.add_server("alone", "--slots", 16)
        reference = cluster.run(grpo_config(ROUNDS))
    with Cluster(tmp_path / "two", model=base, trainer=["--threads", 2, "--isa", "v2"]) as cluster:
        cluster.add_server("small", "--slots", 3, "--page-tokens", 16, "--prefill-chunk", 5, "--isa", "v2")
        cluster.add_server("large", "--slots", 8, "--page-tokens", 64, "--prefill-chunk", 256, "--threads", 2)
        config = grpo_config(ROUNDS)
        config["lease_samples_max"] = 1
        status = cluster.run(config)
        checkpoints = sorted((cluster.folder / "state").glob("*/v*/model.safetensors"))
    assert digests(status) == digests(reference)
    assert len(set(digests(status))) == ROUNDS
    for run in (reference, status):
        assert run["totals"]["logprob_unequal"] == 0 and run["totals"]["logprob_max_abs_diff"] == 0
        assert all(row["exact"] for row in run["history"])
    assert {w["name"] for w in status["totals"]["workers"] if w["samples"] > 0} == {"small", "large"}
    names = tensor_bytes(checkpoints[-1])
    assert any("qkv_proj" in name for name in names) == (family == "phi3")
    assert any(name == "model.layers.1.mlp.experts.5.down_proj.weight" for name in names) == (family == "qwen3_moe")
    assert any(name.endswith("q_proj.bias") for name in names) == (family in ("qwen2", "llama"))
    assert json.loads((checkpoints[-1].parent / "config.json").read_text())["model_type"] == family
    # vLLM and SGLang load every .safetensors file of a folder, the optimizer's too, but for an index that names the weights' alone
    index = json.loads((checkpoints[-1].parent / "model.safetensors.index.json").read_text())
    assert index["weight_map"] == dict.fromkeys(names, "model.safetensors") and index["metadata"]["total_size"] == sum(names.values())
