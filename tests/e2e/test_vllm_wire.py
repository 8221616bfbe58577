"""vLLM's wire: generation by ids, tokenizing, and prime-rl's sequence of calls by which a trainer has an engine rest, take weights from a folder and go on."""
import contextlib
import json
import re
import subprocess
import threading
import time

import pytest

from harness import Cluster, Standalone, call, exchange, grpo_config, wait_until

PROMPT = list(b"7+5*3-4=")


@pytest.fixture()
def gen(base_model, tmp_path):
    with Standalone(tmp_path) as alone:
        yield alone.start("gen", "generation-server", ["--model", base_model, "--slots", 4, "--isa", "v2", "--log-level", "warn"])


def generate(server, prompt=PROMPT, **more):
    return call("POST", server.url + "/inference/v1/generate", {"token_ids": prompt, **more})


def post(server, path, body=None):
    return call("POST", server.url + path, {} if body is None else body)


def test_ids_come_as_from_our_own_route(gen):
    params = {"max_tokens": 30, "seed": 5, "n": 2, "ignore_eos": True}
    ours = call("POST", gen.url + "/v1/generate", {"input_ids": PROMPT, "return_logprob": True, "sampling_params": {"max_new_tokens": 30, "seed": 5, "n": 2, "ignore_eos": True}})
    theirs = generate(gen, request_id="mine", sampling_params={**params, "logprobs": 1, "prompt_logprobs": 0})
    assert theirs["request_id"] == "mine" and [c["token_ids"] for c in theirs["choices"]] == [o["output_ids"] for o in ours]
    for choice, own in zip(theirs["choices"], ours):
        content = choice["logprobs"]["content"]
        assert [t["logprob"] for t in content] == [row[0] for row in own["meta_info"]["output_token_logprobs"]]
        assert [t["token"] for t in content] == [f"token_id:{token}" for token in choice["token_ids"]]
        assert [t["token_id"] for t in content] == choice["token_ids"]
        likeliest = [t["top_logprobs"][0] for t in content]
        assert [t["rank"] for t in content] == [1 if best["token_id"] == t["token_id"] else None for t, best in zip(content, likeliest)]
        assert all(best["rank"] == 1 and best["token"] == f"token_id:{best['token_id']}" for best in likeliest)
        assert choice["weight_versions"] == [{"version": 0, "start": 0, "end": 30}] and choice["finish_reason"] == "length"
    assert theirs["usage"] == {"prompt_tokens": len(PROMPT), "completion_tokens": 60, "total_tokens": len(PROMPT) + 60}
    judged = theirs["prompt_logprobs"]
    assert judged[0] is None and [str(token) in one for token, one in zip(PROMPT[1:], judged[1:])] == [True] * (len(PROMPT) - 1)


def test_a_request_that_vllm_wrote_out_is_taken(gen):
    """What vLLM 0.32 answers to /v1/completions/render: all fields of a request, and of the sampling parameters those that it fills in."""
    sampling = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "temperature": 0.0, "stop": [], "stop_token_ids": [], "max_tokens": 3, "output_kind": 2,
                "skip_clone": True, "bad_words": [], "skip_reading_prefix_cache": False}
    rendered = {"request_id": "cmpl-9a22b7029cbbed67", "token_ids": PROMPT, "token_offsets": None, "features": None, "content_parts": None, "sampling_params": sampling, "model": "leasehold",
                "reasoning_ended": None, "reasoning_parser_kwargs": None, "return_token_ids": True, "output_mode": "tokens", "stream": False, "stream_options": None, "cache_salt": None,
                "priority": 0, "kv_transfer_params": None, "ec_transfer_params": None}
    answer = post(gen, "/inference/v1/generate", rendered)
    assert answer["choices"][0]["token_ids"] == generate(gen, sampling_params={"temperature": 0, "max_tokens": 3})["choices"][0]["token_ids"]
    assert answer["prompt_token_ids"] == PROMPT and answer["output_mode"] == "tokens"
    for name, value in (("output_mode", "text"), ("content_parts", [{}]), ("ec_transfer_params", {"x": 1})):
        assert exchange("POST", gen.url + "/inference/v1/generate", {**rendered, name: value})[0] == 400, name
    for name, value in (("bad_words", ["x"]), ("watermarking", True), ("prompt_logprob_start", 2), ("extra_args", {"x": 1})):
        assert exchange("POST", gen.url + "/inference/v1/generate", {**rendered, "sampling_params": {**sampling, name: value}})[0] == 400, name


def test_a_length_of_null_or_none_or_too_much_is_what_there_is_room_for(gen):
    params = {"temperature": 0, "ignore_eos": True}
    assert len(generate(gen, sampling_params={**params, "max_tokens": None})["choices"][0]["token_ids"]) == 128 - len(PROMPT)
    assert len(generate(gen, sampling_params=params)["choices"][0]["token_ids"]) == 128 - len(PROMPT)
    for length in (128 - len(PROMPT) + 1, 128, 5000):
        cut = generate(gen, sampling_params={**params, "max_tokens": length})
        assert len(cut["choices"][0]["token_ids"]) == 128 - len(PROMPT) and cut["choices"][0]["finish_reason"] == "length"
    status, _, content = exchange("POST", gen.url + "/inference/v1/generate", {"token_ids": [49] * 128})
    error = json.loads(content)["error"]
    assert status == 400 and (error["code"], error["param"]) == ("context_length_exceeded", "token_ids")


def test_an_answer_says_what_stopped_it(gen):
    params = {"temperature": 0, "max_tokens": 30, "ignore_eos": True}
    plain = generate(gen, sampling_params=params)["choices"][0]
    end = plain["token_ids"][2]
    assert plain["finish_reason"] == "length" and plain["stop_reason"] is None
    by_token = generate(gen, sampling_params={**params, "stop_token_ids": [end]})["choices"][0]
    assert by_token["finish_reason"] == "stop" and by_token["stop_reason"] == end == by_token["token_ids"][-1]
    answer = {"prompt": PROMPT, **params}
    text = call("POST", gen.url + "/v1/completions", answer)["choices"][0]["text"]
    assert call("POST", gen.url + "/v1/completions", {**answer, "stop_token_ids": [end]})["choices"][0]["stop_reason"] == end
    assert call("POST", gen.url + "/v1/completions", {**answer, "stop": ["no such text", text[1:3]]})["choices"][0]["stop_reason"] == text[1:3]
    early = call("POST", gen.url + "/v1/completions", {**answer, "stop": [text[1:3]], "min_tokens": 4})["choices"][0]
    assert len(early["text"]) >= 3 and text.startswith(early["text"]), "before so many tokens no text ends it either"
    special = {**answer, "stop": ["<|im_end|>"], "logit_bias": {"258": 100}}
    assert call("POST", gen.url + "/v1/completions", special)["choices"][0]["stop_reason"] == "<|im_end|>"
    model_end = {**answer, "ignore_eos": False, "logit_bias": {"256": 100}}
    assert [call("POST", gen.url + "/v1/completions", model_end)["choices"][0][key] for key in ("finish_reason", "stop_reason")] == ["stop", None]
    assert call("POST", gen.url + "/v1/completions", {**model_end, "ignore_eos": True, "stop_token_ids": [256]})["choices"][0]["stop_reason"] == 256
    events = call("POST", gen.url + "/v1/completions", {**answer, "stop_token_ids": [end], "stream": True}, raw=True).decode().split("\n\n")
    assert [json.loads(event[6:])["choices"][0]["stop_reason"] for event in events[:-2]] == [None] * (len(events) - 3) + [end]


def test_a_stream_put_together_is_the_whole(gen):
    body = {"token_ids": PROMPT, "sampling_params": {"max_tokens": 30, "seed": 5, "n": 2, "ignore_eos": True}, "stream": True}
    out = subprocess.run(["curl", "-sN", gen.url + "/inference/v1/generate", "-d", json.dumps(body)], capture_output=True, text=True, timeout=60, check=True).stdout
    events = [event[6:] for event in out.split("\n\n") if event.startswith("data: ")]
    told = {0: [], 1: []}
    for event in events[:-1]:
        for choice in json.loads(event)["choices"]:
            told[choice["index"]] += choice["token_ids"]
    assert events[-1] == "[DONE]"
    assert told == {c["index"]: c["token_ids"] for c in generate(gen, sampling_params=body["sampling_params"])["choices"]}


@pytest.mark.parametrize("top, prompt_top", [(1, 5), (5, 1), (0, 3), (3, 0)])
def test_prompt_and_tokens_have_each_as_many_of_the_likeliest_as_were_asked_for(gen, top, prompt_top):
    sampling = {"max_tokens": 6, "seed": 2}
    both = generate(gen, sampling_params={**sampling, "logprobs": top, "prompt_logprobs": prompt_top})
    alone = generate(gen, sampling_params={**sampling, "logprobs": top})
    assert [len(token["top_logprobs"]) for token in both["choices"][0]["logprobs"]["content"]] == [top] * len(both["choices"][0]["token_ids"])
    assert both["choices"][0] == alone["choices"][0]
    assert both["prompt_logprobs"] == generate(gen, sampling_params={**sampling, "prompt_logprobs": prompt_top})["prompt_logprobs"]
    assert all(prompt_top <= len(entry) <= prompt_top + 1 for entry in both["prompt_logprobs"][1:])


def test_texts_become_ids_and_texts_again(gen):
    told = post(gen, "/tokenize", {"prompt": "7+5é=", "return_token_strs": True})
    assert told["count"] == len(told["tokens"]) == len(told["token_strs"]) == 6 and told["max_model_len"] == 128
    assert post(gen, "/detokenize", {"tokens": told["tokens"]}) == {"prompt": "7+5é="}
    chat = post(gen, "/tokenize", {"messages": [{"role": "user", "content": "7"}]})
    assert post(gen, "/detokenize", {"tokens": chat["tokens"]})["prompt"] == "<|im_start|>user\n7<|im_end|>\n<|im_start|>assistant\n"
    for path, body in (("/tokenize", {}), ("/tokenize", {"prompt": "x", "messages": []}), ("/tokenize", {"messages": []}), ("/detokenize", {"tokens": [1], "x": 1}), ("/tokenize", {"prompt": "x", "add_special_tokens": 1})):
        assert exchange("POST", gen.url + path, body)[0] == 400, (path, body)


def background(work):
    result = {}
    thread = threading.Thread(target=lambda: result.update(answer=work()))
    thread.start()
    return thread, result


def sampled(server):
    return call("GET", server.url + "/v1/model")["slots_busy"]


def tokens_sampled(server):
    text = call("GET", server.url + "/metrics", raw=True).decode()
    return float(re.search(r"^leasehold_generation_tokens_sampled_total (\S+)$", text, re.M)[1])


def test_prime_rls_calls_swap_weights_under_running_requests(slow_server, wide_models):
    """pause?mode=keep, update_weights, resume: what runs goes on under the new weights, and says which token is whose."""
    params = {"max_tokens": 110, "temperature": 0, "ignore_eos": True, "n": 4}
    old = generate(slow_server, sampling_params=params)["choices"]
    with slow_server.slowly():
        thread, result = background(lambda: generate(slow_server, sampling_params={**params, "seed": 1, "n": 64}))
        wait_until("samples are decoded", lambda: sampled(slow_server) > 0)
        assert post(slow_server, "/pause?mode=keep&clear_cache=false") == {"status": "paused"}
    assert call("GET", slow_server.url + "/is_paused") == {"is_paused": True}
    before = post(slow_server, "/weight_checker", {"action": "checksum"})
    assert post(slow_server, "/update_weights", {"weight_dir": str(wide_models[1]), "weight_version": "7"}) == {"status": "ok", "weight_version": "7"}
    after = post(slow_server, "/weight_checker", {"action": "checksum"})
    assert call("GET", slow_server.url + "/weight_info") == {"weight_version": "7"} and before["weight_version"] == "0"
    assert before["checksum"] != after["checksum"] == call("GET", slow_server.url + "/v1/model")["loaded"]["digest"]
    count = tokens_sampled(slow_server)
    time.sleep(0.3)
    assert thread.is_alive() and tokens_sampled(slow_server) == count, "it rests"
    assert post(slow_server, "/resume") == {"status": "resumed"}
    thread.join(60)
    choices = result["answer"]["choices"]
    assert len(choices) == 64 and all(len(choice["token_ids"]) == 110 for choice in choices)
    versions = {span["version"] for choice in choices for span in choice["weight_versions"]}
    assert versions == {0, 7}
    new = generate(slow_server, sampling_params=params)["choices"]
    assert new[0]["token_ids"] != old[0]["token_ids"] and new[0]["weight_versions"] == [{"version": 7, "start": 0, "end": 110}]
    assert post(slow_server, "/update_weights", {"weight_dir": str(wide_models[0])})["weight_version"] == "8"
    assert generate(slow_server, sampling_params=params)["choices"][0]["token_ids"] == old[0]["token_ids"]
    assert post(slow_server, "/weight_checker", {"action": "checksum"})["checksum"] == before["checksum"]


def test_what_is_aborted_answers_with_what_it_has(slow_server):
    def abort(body):
        assert post(slow_server, "/abort_requests", body) == {"status": "aborted", "aborted": 1}

    for end in (lambda: post(slow_server, "/pause"), lambda: abort({"request_ids": ["other", "long"]}), lambda: abort({}), lambda: abort({"request_ids": []})):
        with slow_server.slowly():
            thread, result = background(lambda: generate(slow_server, request_id="long", sampling_params={"max_tokens": 110, "ignore_eos": True, "n": 128}))
            wait_until("samples are decoded", lambda: sampled(slow_server) > 0)
            end()
        thread.join(30)
        assert not thread.is_alive() and "abort" in {choice["finish_reason"] for choice in result["answer"]["choices"]}
        post(slow_server, "/resume")
    assert generate(slow_server)["choices"][0]["finish_reason"] in ("stop", "length")


def test_requests_that_share_an_id_end_together(slow_server):
    def held():
        model = call("GET", slow_server.url + "/v1/model")
        return model["slots_busy"] + model["samples_waiting"]

    with slow_server.slowly():
        same, other = [[background(lambda name=name: generate(slow_server, request_id=name, sampling_params={"max_tokens": 110, "ignore_eos": True, "n": 64})) for _ in range(2)] for name in ("same", "other")]
        wait_until("all are open", lambda: held() == 256)
        assert post(slow_server, "/abort_requests", {"request_ids": ["same"]}) == {"status": "aborted", "aborted": 2}
        wait_until("they have ended, and the others have not", lambda: held() == 128)
        assert post(slow_server, "/abort_requests", {"request_ids": ["other"]}) == {"status": "aborted", "aborted": 2}
    for thread, result in same + other:
        thread.join(30)
        assert not thread.is_alive() and "abort" in {choice["finish_reason"] for choice in result["answer"]["choices"]}


NAMED = (
    ("/v1/completions", {"prompt": "1", "max_tokens": 1}),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": "1"}], "max_tokens": 1}),
    ("/inference/v1/generate", {"token_ids": [49], "sampling_params": {"max_tokens": 1}}),
    ("/tokenize", {"prompt": "1"}),
    ("/detokenize", {"tokens": [49]}),
)


def names_of(server):
    return [model["id"] for model in call("GET", server.url + "/v1/models")["data"]]


def another_is_refused(server, other):
    """What is listed is answered, and what is not is refused by every route that takes a name."""
    for path, body in NAMED:
        for name in (*names_of(server), "", None):
            call("POST", server.url + path, {**body, "model": name})
        status, _, content = exchange("POST", server.url + path, {**body, "model": other})
        error = json.loads(content)["error"]
        assert (status, error["code"], error["param"]) == (404, "model_not_found", "model"), (path, error)
        assert error["message"] == f"The model `{other}` does not exist: expected {' or '.join(names_of(server))}"


def test_a_model_that_is_not_loaded_is_not_found(gen, base_model):
    assert names_of(gen) == ["leasehold", str(base_model)]
    another_is_refused(gen, "r1")


@contextlib.contextmanager
def pause_is_awaited(server, path):
    """Many tokens are asked for, and a pause at their end, which the engine has heard of long before: both calls, (thread, result) each."""
    def heard():
        return server.log_text().count("the server rests when its open requests have ended")

    before = heard()
    with server.slowly():
        early = background(lambda: generate(server, sampling_params={"max_tokens": 110, "ignore_eos": True, "n": 32}))
        wait_until("samples are decoded", lambda: sampled(server) > 0)
        resting = background(lambda: exchange("POST", server.url + path))
        wait_until("the engine has heard of the pause", lambda: heard() > before)
        yield early, resting


def test_a_pause_may_wait_for_what_is_open(slow_server):
    """Nothing of it is cut short; what comes meanwhile is held until the server goes on, and a pause that is taken back says so."""
    with pause_is_awaited(slow_server, "/pause?mode=wait&clear_cache=true") as ((early, first), (resting, status)):
        late, second = background(lambda: generate(slow_server, sampling_params={"max_tokens": 110, "ignore_eos": True}))
    resting.join(60)
    assert (status["answer"][0], json.loads(status["answer"][2])) == (200, {"status": "paused"}) and call("GET", slow_server.url + "/is_paused")["is_paused"]
    early.join(10)
    assert {len(choice["token_ids"]) for choice in first["answer"]["choices"]} == {110} and late.is_alive()
    assert post(slow_server, "/pause?mode=wait") == {"status": "paused"}, "it may be repeated"
    post(slow_server, "/resume")
    late.join(30)
    assert len(second["answer"]["choices"][0]["token_ids"]) == 110
    with pause_is_awaited(slow_server, "/pause?mode=wait") as ((early, first), (resting, status)):
        post(slow_server, "/resume")
    resting.join(30)
    early.join(30)
    assert status["answer"][0] == 409 and not call("GET", slow_server.url + "/is_paused")["is_paused"] and len(first["answer"]["choices"]) == 32


def test_what_cannot_be_done_is_refused_and_changes_nothing(gen, tmp_path):
    was = post(gen, "/weight_checker", {"action": "checksum"})
    (tmp_path / "empty").mkdir()
    for path, body, status in (
        ("/pause?mode=nap", {}, 422),
        ("/update_weights", {"update_info": {}}, 501),
        ("/update_weights", {}, 422),
        ("/update_weights", {"weight_dir": str(tmp_path), "weight_version": "x"}, 422),
        ("/weight_checker", {"action": "compare"}, 501),
        ("/weight_checker", {"action": "guess"}, 422),
        ("/abort_requests", {"request_ids": [1]}, 422),
    ):
        assert exchange("POST", gen.url + path, body)[0] == status, (path, body)
    assert exchange("POST", gen.url + "/update_weights", {"weight_dir": str(tmp_path / "empty")})[0] >= 400
    assert post(gen, "/weight_checker", {"action": "checksum"}) == was and not call("GET", gen.url + "/is_paused")["is_paused"]


def test_under_a_coordinator_no_client_takes_the_lead(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        server = cluster.add_server("gen")
        cluster.run(grpo_config(1, groups=2, samples=2))
        for path, body in (("/pause", {}), ("/resume", {}), ("/update_weights", {"weight_dir": str(base_model)}), ("/weight_checker", {"action": "checksum"})):
            assert exchange("POST", server.url + path, body)[0] == 409, path


def test_a_run_that_another_has_followed_is_no_model_any_more(base_model, tmp_path):
    with Cluster(tmp_path, model=base_model) as cluster:
        server = cluster.add_server("gen")
        for run, other in (("r1", "r2"), ("r2", "r1")):
            cluster.run(grpo_config(1, groups=2, samples=2))
            assert names_of(server) == [run, "leasehold"]
            another_is_refused(server, other)
