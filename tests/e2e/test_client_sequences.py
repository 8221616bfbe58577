"""The calls that trainers of others make of their engine, in their order and with their fields, as their code sends them: slime to an SGLang server, prime-rl
and TRL to a vLLM server.  What they read of an answer is read here in the same way; what they need and is not offered is refused with a status that they do
not retry."""
import json
import math
import subprocess

import pytest

from harness import Cluster, Standalone, call, exchange

PROMPTS = [list(b"7+5*3-4="), list(b"1+2=")]


@pytest.fixture()
def gen(base_model, tmp_path):
    with Standalone(tmp_path) as alone:
        yield alone.start("gen", "generation-server", ["--model", base_model, "--slots", 4, "--isa", "v2", "--log-level", "warn"])


def digest(server):
    return call("GET", server.url + "/v1/model")["loaded"]["digest"]


def test_slime_rolls_out_and_updates_from_disk(gen, base_model, other_model):
    def get(path):
        return call("GET", gen.url + path)

    def post(path, body):
        return call("POST", gen.url + path, body or {})

    # an external engine is found, and waited for
    info = get("/server_info")
    assert int(info.get("pp_size") or 1) * int(info.get("tp_size") or 1) == 1 and not info.get("encoder_only")
    assert exchange("GET", gen.url + "/health_generate")[0] == 200
    assert exchange("POST", gen.url + "/destroy_weights_update_group", {"group_name": "slime"})[0] == 501

    # a rollout
    sampling = {
        "temperature": 1.0,
        "top_p": 1.0,
        "top_k": -1,
        "max_new_tokens": 24,
        "stop": None,
        "stop_token_ids": None,
        "skip_special_tokens": True,
        "no_stop_trim": True,
        "spaces_between_special_tokens": False,
    }
    output = post("/generate", {"sampling_params": sampling, "return_logprob": True, "input_ids": PROMPTS[0]})
    meta = output["meta_info"]
    tokens, logprobs = [item[1] for item in meta["output_token_logprobs"]], [item[0] for item in meta["output_token_logprobs"]]
    assert tokens == output["output_ids"] and all(value <= 0 for value in logprobs) and isinstance(output["text"], str)
    assert meta["finish_reason"]["type"] in ("stop", "length") and meta["weight_version"] == get("/get_weight_version")["weight_version"] == "0"
    assert meta.get("cached_tokens", 0) + meta["prompt_tokens"] == len(PROMPTS[0])

    # the same, streamed: every event is all that has come
    out = subprocess.run(["curl", "-sN", gen.url + "/generate", "-d", json.dumps({"sampling_params": {**sampling, "sampling_seed": 7}, "return_logprob": True, "stream": True, "input_ids": PROMPTS[0]})], capture_output=True, text=True, timeout=60, check=True).stdout
    call_tokens, last = [], {}
    for line in out.split("\n"):
        data = line[len("data:") :].strip()
        if not line.startswith("data:") or data == "[DONE]":
            continue
        chunk = json.loads(data)
        last = chunk["meta_info"]
        call_tokens = [item[1] for item in last["output_token_logprobs"]]
    whole = post("/generate", {"sampling_params": {**sampling, "sampling_seed": 7}, "return_logprob": True, "input_ids": PROMPTS[0]})
    assert last["finish_reason"] == whole["meta_info"]["finish_reason"] and call_tokens == whole["output_ids"]

    # a teacher's log-probabilities, for distillation
    sequence = PROMPTS[0] + tokens
    teacher = post("/generate", {"input_ids": sequence, "sampling_params": {"temperature": 1.0, "max_new_tokens": 0, "skip_special_tokens": False}, "return_logprob": True, "logprob_start_len": 0})
    told = [item[0] for item in teacher["meta_info"]["input_token_logprobs"][1:]]
    assert told[-len(tokens) :] == pytest.approx(logprobs, abs=1e-5)

    # the round is over: what is left is aborted until the server is idle
    post("/abort_request", {"abort_all": True})
    load = get("/v1/loads?include=core")["loads"]
    assert sum(item["num_running_reqs"] + item["num_waiting_reqs"] for item in load) == 0

    # new weights
    before = digest(gen)
    post("/pause_generation", {})
    assert exchange("GET", gen.url + "/flush_cache")[0] == 200
    assert post("/update_weights_from_disk", {"model_path": str(other_model), "weight_version": "1"})["success"]
    post("/continue_generation", {})
    assert get("/get_weight_version")["weight_version"] == "1" and digest(gen) != before
    assert post("/weights_checker", {"action": "checksum"})["per_engine_checksum"] == digest(gen)
    assert post("/generate", {"sampling_params": sampling, "return_logprob": True, "input_ids": PROMPTS[0]})["meta_info"]["weight_version"] == "1"
    # what needs its process group: refused, and its client does not fall silent
    for path in ("/init_weights_update_group", "/update_weights_from_distributed", "/update_weights_from_tensor", "/release_memory_occupation"):
        assert exchange("POST", gen.url + path, {"names": ["x"]})[0] == 501


def test_prime_rl_scores_and_updates_under_a_pause(gen, other_model):
    assert exchange("GET", gen.url + "/health")[0] == exchange("GET", gen.url + "/liveness")[0] == 200
    model = call("GET", gen.url + "/v1/models")["data"][0]
    body = {"model": model["id"], "token_ids": PROMPTS[0], "sampling_params": {"max_tokens": 12, "temperature": 1.0, "top_p": 1.0, "logprobs": 1, "seed": 4}, "cache_salt": "0", "priority": 0}
    choice = call("POST", gen.url + "/inference/v1/generate", body)["choices"][0]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"])

    # prefill_logprobs: the first entry of each place is the token's own
    def scores(token_ids):
        answer = call("POST", gen.url + "/inference/v1/generate", {"model": model["id"], "token_ids": token_ids, "sampling_params": {"max_tokens": 1, "temperature": 1.0, "top_p": 1.0, "prompt_logprobs": 1}})
        return [float(next(iter(entry.values()))["logprob"]) if entry else 0.0 for entry in answer["prompt_logprobs"]]

    sequence = PROMPTS[0] + choice["token_ids"]
    flat = scores(sequence)
    assert flat[0] == 0 and flat[len(PROMPTS[0]) :] == pytest.approx([token["logprob"] for token in choice["logprobs"]["content"]], abs=1e-5)

    before = digest(gen)
    assert call("POST", gen.url + "/pause?mode=keep&clear_cache=false") == {"status": "paused"}
    assert call("POST", gen.url + "/update_weights", {"weight_dir": other_model.as_posix()})["status"] == "ok"
    assert call("POST", gen.url + "/resume") == {"status": "resumed"} == call("POST", gen.url + "/resume"), "it may be repeated"
    assert digest(gen) != before and scores(sequence) != flat
    assert exchange("POST", gen.url + "/init_broadcaster", {"host": "x", "port": 1})[0] == exchange("POST", gen.url + "/load_lora_adapter", {"lora_name": "x", "lora_path": "x"})[0] == 501


def trl_logprobs(choices):
    """As its client takes them apart, for a batch of choices."""
    all_logprobs, all_ids = [], []
    for logprobs in choices:
        if "content" in logprobs:
            positions = [(entry["token"], entry["logprob"], {top["token"]: top["logprob"] for top in entry["top_logprobs"]}) for entry in logprobs["content"]]
        else:
            positions = list(zip(logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True))
        places, ids = [], []
        for token, logprob, tops in positions:
            items = sorted({token: logprob, **(tops or {})}.items(), key=lambda item: -item[1])
            ids.append([int(name.removeprefix("token_id:")) for name, _ in items])
            places.append([value for _, value in items])
        all_logprobs.append(places)
        all_ids.append(ids)
    return all_logprobs, all_ids


def test_trl_generates_chats_and_has_a_teacher(gen, base_model):
    """TRL 1.16's VLLMClient."""
    assert exchange("GET", gen.url + "/health")[0] == 200
    model = call("GET", gen.url + "/v1/models")["data"][0]["id"]
    sampling = {"n": 2, "repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "max_tokens": 16}
    body = {"model": model, "prompt": PROMPTS, "return_token_ids": True, "return_tokens_as_token_ids": True, **sampling, "logprobs": 0, "seed": 3}
    choices = call("POST", gen.url + "/v1/completions", body)["choices"]
    assert [choice["prompt_token_ids"] for choice in choices[::2]] == PROMPTS
    completions = [choice["token_ids"] for choice in choices]
    logprobs, ids = trl_logprobs([choice["logprobs"] for choice in choices])
    assert ids == [[[token] for token in tokens] for tokens in completions]
    top = call("POST", gen.url + "/v1/completions", {**body, "logprobs": 2})["choices"]
    more, more_ids = trl_logprobs([choice["logprobs"] for choice in top])
    assert [choice["token_ids"] for choice in top] == completions
    assert all(own[0] in all_ids and len(all_ids) in (2, 3) for one, other in zip(ids, more_ids) for own, all_ids in zip(one, other))
    assert all(value == sorted(value, reverse=True) for one in more for value in one)

    # chats: the template is the server's, tool calls are taken apart by the client
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}
    payload = {"model": model, **sampling, "logprobs": True, "top_logprobs": 0, "return_token_ids": True, "return_tokens_as_token_ids": True, "messages": [{"role": "user", "content": "7"}]}
    answer = call("POST", gen.url + "/v1/chat/completions", payload)
    values, ids = trl_logprobs([choice["logprobs"] for choice in answer["choices"]])
    assert ids == [[[token] for token in choice["token_ids"]] for choice in answer["choices"]] and answer["prompt_token_ids"]
    assert exchange("POST", gen.url + "/v1/chat/completions", {**payload, "tools": [tool], "tool_choice": "none"})[0] == 400, "this model has no template that renders them"
    for name, value in (("structured_outputs", {"regex": "x"}), ("chat_template", "x")):
        assert exchange("POST", gen.url + "/v1/chat/completions", {**payload, name: value})[0] == 400

    # a teacher: the completion's places, their likeliest tokens by rank, and the actual ones
    sequence, start = PROMPTS[0] + completions[0], len(PROMPTS[0])
    teacher = {"model": model, "prompt": [sequence, PROMPTS[1] + completions[2]], "max_tokens": 1, "temperature": 1.0, "prompt_logprobs": 4}
    first = call("POST", gen.url + "/v1/completions", teacher)["choices"][0]["prompt_logprobs"]
    assert len(first) == len(sequence) and first[0] is None
    for place, (token, own) in enumerate(zip(completions[0], logprobs[0])):
        entry = first[start + place]
        items = sorted(entry.items(), key=lambda item: item[1]["rank"])[:4]
        assert [item["rank"] for _, item in items] == [1, 2, 3, 4] and [item["logprob"] for _, item in items] == sorted((item["logprob"] for _, item in items), reverse=True)
        assert entry[str(token)]["logprob"] == pytest.approx(own[0], abs=1e-5) and not math.isnan(own[0])
    outside = [entry[str(token)]["rank"] for token, entry in zip(sequence[1:], first[1:]) if len(entry) == 5]
    assert all(rank > 4 for rank in outside)

    # weights: no transfer engine, which its client says by name; what it would ask of one is refused and not retried
    assert call("GET", gen.url + "/server_info?config_format=json")["vllm_config"]["weight_transfer_config"] is None
    assert call("GET", gen.url + "/get_world_size") == {"world_size": 1}
    init = {"init_info": {"master_address": "127.0.0.1", "master_port": 51216, "rank_offset": 1, "world_size": 2}}
    assert exchange("POST", gen.url + "/init_weight_transfer_engine", init)[0] == 501
    assert call("POST", gen.url + "/start_weight_update", {}) == {"message": "Weight update started"}
    assert exchange("POST", gen.url + "/update_weights", {"update_info": {"names": ["x"], "dtype_names": ["float32"], "shapes": [[1]], "packed": True}})[0] == 501
    was = digest(gen)
    assert call("POST", gen.url + "/finish_weight_update", {})["message"] == "Weight update finished" and digest(gen) == was
    assert call("POST", gen.url + "/reset_prefix_cache") == {"success": True}


def test_vllms_update_is_taken_at_its_end(gen, base_model, other_model, tmp_path):
    """start, update, finish: the version comes with the end, and so do the weights."""
    def post(path, body=None):
        return call("POST", gen.url + path, body)

    was = digest(gen)
    assert post("/init_weight_transfer_engine", {"init_info": {}})["message"]
    assert exchange("POST", gen.url + "/finish_weight_update")[0] == 409
    post("/start_weight_update")
    assert post("/update_weights", {"weight_dir": str(other_model)})["weight_version"] == "0" and digest(gen) == was
    assert exchange("POST", gen.url + "/update_weights", {"weight_dir": str(base_model)})[0] == 409, "one folder an update"
    assert post("/finish_weight_update", {"weight_version": "12"}) == {"message": "Weight update finished", "weight_version": "12"}
    assert call("GET", gen.url + "/weight_info") == {"weight_version": "12"} and digest(gen) != was
    other = digest(gen)
    # an update that fails ends, and changes nothing
    post("/start_weight_update", {"is_checkpoint_format": True})
    assert exchange("POST", gen.url + "/update_weights", {"weight_dir": str(tmp_path / "none")})[0] == 422
    post("/update_weights", {"weight_dir": str(tmp_path)})
    assert exchange("POST", gen.url + "/finish_weight_update", {})[0] >= 400 and digest(gen) == other
    assert exchange("POST", gen.url + "/finish_weight_update", {})[0] == 409
    # one that was left without an end is forgotten by the next
    post("/start_weight_update")
    post("/update_weights", {"weight_dir": str(tmp_path)})
    post("/start_weight_update")
    assert exchange("POST", gen.url + "/finish_weight_update", {"weight_version": "13"})[0] == 409, "no weights came"
    assert post("/weight_checker", {"action": "checksum"})["checksums"] == {"dp0:pp0:tp0:all": other} and call("GET", gen.url + "/weight_info") == {"weight_version": "12"}
    for path, body in (("/start_weight_update", {"is_checkpoint_format": False}), ("/start_weight_update", {"include_draft": True}), ("/init_weight_transfer_engine", {"init_info": {"master_port": 1}})):
        assert exchange("POST", gen.url + path, body)[0] == 501
