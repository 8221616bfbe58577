"""SGLang's wire: what is asked of /generate, one prompt or a batch of them, whole or streamed, and the verbs by which a trainer leads an engine."""
import json
import shutil
import subprocess
import threading

import pytest

from harness import Standalone, call, exchange, wait_until

PROMPT = list(b"7+5*3-4=")
OTHER = list(b"1+2=")


@pytest.fixture(scope="module")
def gen(base_model, tmp_path_factory):
    with Standalone(tmp_path_factory.mktemp("sglang")) as alone:
        yield alone.start("gen", "generation-server", ["--model", base_model, "--slots", 4, "--isa", "v2", "--log-level", "warn"])


def post(server, path, body=None):
    return call("POST", server.url + path, {} if body is None else body)


def get(server, path):
    return call("GET", server.url + path)


def loads(server):
    return get(server, "/v1/loads")["loads"][0]


def refused(server, body):
    status, _, content = exchange("POST", server.url + "/generate", body)
    return status, json.loads(content)["error"]["field"]


def generate(server, prompt=PROMPT, sampling=None, **more):
    return post(server, "/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 20, "ignore_eos": True, **(sampling or {})}, **more})


def events(server, body):
    out = subprocess.run(["curl", "-sN", server.url + "/generate", "-d", json.dumps(body)], capture_output=True, text=True, timeout=60, check=True).stdout
    lines = [event[6:] for event in out.split("\n\n") if event.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


def without_time(made):
    made["meta_info"].pop("e2e_latency")
    made["meta_info"].pop("id")
    return made


def background(work):
    result = {}
    thread = threading.Thread(target=lambda: result.update(answer=work()))
    thread.start()
    return thread, result


def test_one_prompt_has_what_our_own_route_draws(gen):
    ours = post(gen, "/v1/generate", {"input_ids": PROMPT, "return_logprob": True, "sampling_params": {"max_new_tokens": 20, "seed": 5, "temperature": 0.7, "ignore_eos": True}})
    theirs = generate(gen, sampling={"sampling_seed": 5, "temperature": 0.7}, rid="mine", return_logprob=True)
    meta = theirs["meta_info"]
    assert theirs["output_ids"] == ours["output_ids"] and theirs["text"] == ours["text"] and meta["id"] == "mine"
    assert meta["output_token_logprobs"] == ours["meta_info"]["output_token_logprobs"] and meta["input_token_logprobs"] == []
    assert meta["finish_reason"] == {"type": "length", "length": 20} and (meta["prompt_tokens"], meta["completion_tokens"]) == (len(PROMPT), 20)
    assert meta["weight_version"] == str(ours["meta_info"]["weight_version"]) and meta["weight_versions"] == [{"version": meta["weight_version"], "start": 0, "end": 20}]
    assert "output_token_logprobs" not in generate(gen)["meta_info"]


def test_as_many_tokens_as_there_is_room_for(gen):
    """Without a word 128, but none beyond the context; with null up to its end."""
    room = 128 - len(PROMPT)
    for sampling in ({}, {"max_new_tokens": None}):
        meta = post(gen, "/generate", {"input_ids": PROMPT, "sampling_params": {"temperature": 0, "ignore_eos": True, **sampling}})["meta_info"]
        assert meta["completion_tokens"] == room and meta["finish_reason"] == {"type": "length", "length": room}
    assert refused(gen, {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 128}}) == (422, "sampling_params.max_new_tokens")
    assert refused(gen, {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4, "min_new_tokens": 5}}) == (422, "sampling_params.min_new_tokens")


def test_repetitions_are_of_what_was_generated(gen):
    """Of SGLang's penalty; OpenAI's and vLLM's routes count the prompt's tokens too."""

    def greedy(ids, **more):
        return generate(gen, ids, sampling={"max_new_tokens": 1, "temperature": 0, **more})["output_ids"]

    ids = next(ids for ids in (list(f"{a}*{b}=".encode()) for a in range(10) for b in range(10)) if greedy(ids)[0] in ids)
    assert greedy(ids, repetition_penalty=100) == greedy(ids)
    theirs = post(gen, "/inference/v1/generate", {"token_ids": ids, "sampling_params": {"max_tokens": 1, "temperature": 0, "repetition_penalty": 100, "ignore_eos": True}})
    assert theirs["choices"][0]["token_ids"][0] not in ids


def test_a_batch_is_its_prompts_each_as_alone(gen):
    sampling = [{"max_new_tokens": 12, "seed": 3, "ignore_eos": True, "n": 2}, {"max_new_tokens": 7, "seed": 4, "n": 2, "stop": [";"]}]
    whole = post(gen, "/generate", {"input_ids": [PROMPT, OTHER], "sampling_params": sampling, "rid": ["a", "b"], "return_logprob": [True, False], "logprob_start_len": [2, -1], "top_logprobs_num": [3, 0]})
    assert [made["meta_info"]["id"] for made in whole] == ["a", "a", "b", "b"]
    alone = [
        *post(gen, "/generate", {"input_ids": PROMPT, "sampling_params": sampling[0], "return_logprob": True, "logprob_start_len": 2, "top_logprobs_num": 3}),
        *post(gen, "/generate", {"input_ids": OTHER, "sampling_params": sampling[1]}),
    ]
    assert [without_time(made) for made in whole] == [without_time(made) for made in alone]
    texts = post(gen, "/generate", {"text": [bytes(PROMPT).decode(), bytes(OTHER).decode()], "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}, "rid": "batch"})
    assert [made["meta_info"]["id"] for made in texts] == ["batch_0", "batch_1"] and [len(made["output_ids"]) for made in texts] == [5, 5]
    assert len(post(gen, "/generate", {"text": ["7+5="], "sampling_params": {"max_new_tokens": 1}})) == 1, "an array for an array"


def test_log_probabilities_of_the_prompt_and_of_the_likeliest(gen):
    reference = post(gen, "/v1/completions", {"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "echo": True, "logprobs": 2, "ignore_eos": True})["choices"][0]["logprobs"]
    meta = generate(gen, sampling={"max_new_tokens": 4, "temperature": 0}, return_logprob=True, logprob_start_len=0, top_logprobs_num=2, return_text_in_logprobs=True)["meta_info"]
    pairs = meta["input_token_logprobs"] + meta["output_token_logprobs"]
    assert [pair[0] for pair in pairs] == reference["token_logprobs"] and [pair[2] for pair in pairs] == reference["tokens"]
    assert [pair[1] for pair in meta["input_token_logprobs"]] == PROMPT
    tops = meta["input_top_logprobs"][1:] + meta["output_top_logprobs"]
    assert meta["input_top_logprobs"][0] is None and all(len(top) == 2 and top[0][0] >= top[1][0] for top in tops)
    assert [{pair[2]: pair[0] for pair in top}.items() <= told.items() for top, told in zip(tops, reference["top_logprobs"][1:])] == [True] * len(tops)
    scored = generate(gen, sampling={"max_new_tokens": 0, "temperature": 0}, return_logprob=True, logprob_start_len=3)
    assert scored["output_ids"] == [] and scored["text"] == "" and scored["meta_info"]["finish_reason"] == {"type": "length", "length": 0}
    assert scored["meta_info"]["input_token_logprobs"][0] == [None, PROMPT[3], None]
    assert [pair[0] for pair in scored["meta_info"]["input_token_logprobs"][1:]] == reference["token_logprobs"][4 : len(PROMPT)]
    assert scored["meta_info"]["completion_tokens"] == 0 and scored["meta_info"]["output_token_logprobs"] == []


def test_the_text_ends_before_what_ended_it(gen):
    whole = generate(gen, sampling={"temperature": 0, "max_new_tokens": 30})
    stop, token = whole["text"][4:6], whole["output_ids"][5]
    cut = generate(gen, sampling={"temperature": 0, "max_new_tokens": 30, "stop": stop})
    assert cut["text"] == whole["text"][: whole["text"].index(stop)] and cut["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}
    kept = generate(gen, sampling={"temperature": 0, "max_new_tokens": 30, "stop": ["zzz", stop], "no_stop_trim": True})
    assert kept["text"] == whole["text"][: whole["text"].index(stop) + len(stop)] and kept["output_ids"] == cut["output_ids"]
    by_id = {"temperature": 0, "max_new_tokens": 30, "stop_token_ids": [token]}
    first = whole["output_ids"].index(token)
    ended, untrimmed = generate(gen, sampling=by_id), generate(gen, sampling={**by_id, "no_stop_trim": True})
    assert ended["output_ids"] == untrimmed["output_ids"] == whole["output_ids"][: first + 1] and ended["meta_info"]["finish_reason"] == {"type": "stop", "matched": token}
    assert ended["text"] == whole["text"][:first] and untrimmed["text"] == whole["text"][: first + 1]


def test_a_streams_last_events_are_the_whole(gen):
    body = {"input_ids": [PROMPT, OTHER], "sampling_params": {"max_new_tokens": 25, "seed": 5, "n": 2, "stop": ["="]}, "rid": "s", "return_logprob": True, "logprob_start_len": 0}
    told, last = {}, {}
    for event in events(gen, {**body, "stream": True}):
        index = event.pop("index")
        before = told.get(index, {"text": "", "output_ids": []})
        assert index not in last and "=" not in event["text"], "nothing comes after the last, and nothing of the stop text"
        assert event["text"].startswith(before["text"]) and event["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert len(event["meta_info"]["output_token_logprobs"]) == len(event["output_ids"])
        told[index] = event
        if event["meta_info"]["finish_reason"]:
            last[index] = without_time(event)
    whole = [without_time(made) for made in post(gen, "/generate", body)]
    assert [last[index] for index in range(4)] == whole and {"type": "stop", "matched": "="} in [made["meta_info"]["finish_reason"] for made in whole]


def test_no_event_shows_half_a_character(wide_models, tmp_path):
    """Tokens that end one character and begin the next: the text of an event ended within the one, and was no beginning of the next event's."""
    model = tmp_path / "model"
    shutil.copytree(wide_models[0], model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"].update({"aÃ": 264, "©â": 265, "¬¬": 266})  # of "aé\u2b2c"
    tokenizer["model"]["merges"] += ["a Ã", "© â", "¬ ¬"]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Standalone(tmp_path) as alone:
        server = alone.start("gen", "generation-server", ["--model", model, "--log-level", "warn"])
        seen = False
        for seed in range(40):  # a busy machine tells many tokens at once
            sampling = {"max_new_tokens": 80, "seed": seed, "logit_bias": {"264": 100, "265": 100, "266": 100}, "frequency_penalty": 2, "ignore_eos": True}
            body = {"input_ids": PROMPT, "sampling_params": sampling}
            texts = [event["text"] for event in events(server, {**body, "stream": True})]
            for before, after in zip(texts, texts[1:]):
                assert after.startswith(before), (before[-5:], after[-8:])
            assert texts[-1] == post(server, "/generate", body)["text"]
            seen = seen or (len(texts) > 20 and "é" in texts[-1])
            if seen and seed >= 2:
                break
        assert seen, "events came while tokens were decoded"


def test_tokens_come_as_they_are_decoded(slow_server):
    sampling = {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True}
    one = events(slow_server, {"input_ids": PROMPT, "sampling_params": sampling, "stream": True})
    assert len(one) > 1 and "index" not in one[0] and one[-1]["output_ids"] == generate(slow_server, sampling=sampling)["output_ids"]


def test_what_is_not_offered_is_refused_by_name(gen):
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 2}}
    for name in ("image_data", "lora_path", "session_params", "custom_logit_processor", "token_ids_logprob", "input_embeds", "return_hidden_states", "bootstrap_host"):
        assert refused(gen, {**body, name: True}) == (501, name)
        assert post(gen, "/generate", {**body, name: None})["output_ids"]
    for name in ("json_schema", "regex", "ebnf", "structural_tag", "stop_regex", "custom_params"):
        assert refused(gen, {**body, "sampling_params": {name: "x"}}) == (501, f"sampling_params.{name}")
    assert refused(gen, {**body, "sampling_params": {"temperature": 0.5, "top_p": 0.9}, "return_logprob": True}) == (501, "return_logprob")
    assert refused(gen, {**body, "sampling_params": {"temperature": 0.5}, "return_logprob": True, "top_logprobs_num": 1}) == (501, "top_logprobs_num")
    for changed in ({"repetition_penalty": 1.1}, {"presence_penalty": 1}, {"frequency_penalty": -1}, {"logit_bias": {"5": 1}}, {"min_new_tokens": 1}):  # told of what was drawn from
        assert refused(gen, {**body, "sampling_params": {"max_new_tokens": 2, **changed}, "return_logprob": True}) == (501, "return_logprob")
    assert generate(gen, return_logprob=True, logprob_start_len=len(PROMPT))["meta_info"]["input_token_logprobs"] == []
    assert refused(gen, {**body, "return_logprob": True, "logprob_start_len": len(PROMPT) + 1}) == (422, "logprob_start_len")
    for bad, field in (({"top_logprobs_num": 21}, "top_logprobs_num"), ({"logprob_start_len": -2}, "logprob_start_len"), ({"rid": ["a"]}, "rid"), ({"text": "x"}, "text"), ({"unheard_of": 1}, "unheard_of")):
        assert refused(gen, {**body, **bad}) == (422, field)
    assert refused(gen, {"input_ids": [PROMPT, OTHER], "sampling_params": [{}]}) == (422, "sampling_params")
    assert refused(gen, {"input_ids": [PROMPT, [2**20]]}) == (422, "input_ids[1]")
    for path in ("/update_weights_from_tensor", "/update_weights_from_distributed", "/init_weights_update_group", "/release_memory_occupation", "/load_lora_adapter", "/open_session", "/collective_rpc", "/sleep", "/encode"):
        status, _, content = exchange("POST", gen.url + path, {"serialized_named_tensors": ["x"]})
        assert status == 501 and len(json.loads(content)["error"]["message"]) > 40, path


def test_a_prompt_of_a_batch_is_ended_alone(slow_server):
    """And all of them with abort_all; the others' tokens are theirs."""
    body = {"input_ids": [PROMPT] * 6, "sampling_params": {"max_new_tokens": 110, "ignore_eos": True, "n": 3, "seed": 1}, "rid": [f"r{i}" for i in range(6)]}
    with slow_server.slowly():
        thread, result = background(lambda: post(slow_server, "/generate", body))
        wait_until("samples are decoded", lambda: loads(slow_server)["num_running_reqs"] > 0)
        post(slow_server, "/pause_generation", {"mode": "in_place"})
    post(slow_server, "/abort_request", {"rid": "r5"})
    post(slow_server, "/continue_generation")
    thread.join(60)
    finishes = [(made["meta_info"]["id"], made["meta_info"]["finish_reason"]["type"]) for made in result["answer"]]
    assert {finish for name, finish in finishes if name == "r5"} == {"abort"} and {finish for name, finish in finishes if name != "r5"} == {"length"}
    with slow_server.slowly():
        thread, result = background(lambda: post(slow_server, "/generate", body))
        wait_until("samples are decoded", lambda: loads(slow_server)["num_running_reqs"] > 0)
        post(slow_server, "/abort_request", {"abort_all": True})
    thread.join(30)
    assert not thread.is_alive() and "abort" in {made["meta_info"]["finish_reason"]["type"] for made in result["answer"]}
    wait_until("nothing is left", lambda: loads(slow_server)["num_total_reqs"] == 0)


@pytest.mark.parametrize("rids, ends", [(["a", None], ["length", "length"]), ([None, "b"], ["length", "abort"])])
def test_prompts_without_a_name_stand_beside_named_ones(slow_server, rids, ends):
    """A name was compared with that of a prompt that has none, which ended the process; behind a first prompt without one no name was known."""
    body = {"input_ids": [PROMPT] * 2, "sampling_params": {"max_new_tokens": 60, "ignore_eos": True}, "rid": rids}
    post(slow_server, "/pause_generation", {"mode": "in_place"})
    thread, result = background(lambda: post(slow_server, "/generate", body))
    wait_until("both prompts have come", lambda: loads(slow_server)["num_total_reqs"] == 2)
    post(slow_server, "/abort_request", {"rid": "b"})
    post(slow_server, "/continue_generation")
    thread.join(60)
    assert [made["meta_info"]["finish_reason"]["type"] for made in result["answer"]] == ends


def test_what_is_retracted_computes_its_keys_and_values_anew(slow_server, wide_models):
    """in_place keeps them, so that tokens after the new weights depend on both; retract leaves none of the old."""
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 110, "temperature": 0, "ignore_eos": True, "n": 2}, "rid": "one"}
    for mode, kept in (("in_place", True), ("retract", False)):
        first = events_until_paused(slow_server, {**body, "stream": True}, mode)
        status = exchange("GET", slow_server.url + "/flush_cache")[0]
        assert status == (409 if kept else 200), mode
        assert post(slow_server, "/update_weights_from_disk", {"model_path": str(wide_models[1]), "weight_version": "3"})["success"]
        post(slow_server, "/continue_generation")
        made = first()
        change = made["meta_info"]["weight_versions"][0]["end"]
        assert made["meta_info"]["weight_version"] == "3" and made["meta_info"]["completion_tokens"] == 110
        again = generate(slow_server, PROMPT + made["output_ids"][:change], {"temperature": 0, "max_new_tokens": 110 - change})["output_ids"]
        if not kept:
            assert again == made["output_ids"][change:], "as if the tokens had been its prompt"
        assert post(slow_server, "/update_weights_from_disk", {"model_path": str(wide_models[0]), "weight_version": 0})["success"]


def events_until_paused(server, body, mode):
    """Pauses once tokens have come, and before the last; returns a function that waits for the last event.  One that was over too soon is asked for again."""
    for _ in range(20):
        with server.slowly():
            process = subprocess.Popen(["curl", "-sN", server.url + "/generate", "-d", json.dumps(body)], stdout=subprocess.PIPE, text=True)
            assert process.stdout.readline().startswith("data: ")
            post(server, "/pause_generation", {"mode": mode})
        if loads(server)["num_total_reqs"] > 0:
            break
        post(server, "/continue_generation")
        process.communicate(timeout=60)
    else:
        raise AssertionError("every one was over too soon")

    def rest():
        lines = [line[6:] for line in process.stdout.read().split("\n") if line.startswith("data: ")]
        process.wait(30)
        return json.loads(lines[-2])

    return rest


def test_what_the_engine_says_of_itself(gen, base_model):
    info = get(gen, "/get_model_info")
    assert info == get(gen, "/model_info") and info["model_path"] == str(base_model) and info["weight_version"] == get(gen, "/get_weight_version")["weight_version"]
    server = get(gen, "/server_info")
    assert server == get(gen, "/get_server_info") and server["tp_size"] == 1 and server["context_length"] == 128 and server["max_running_requests"] == 4
    assert get(gen, "/health") == {"status": "ready"} and get(gen, "/health_generate") == {"status": "ok"}
    checked = post(gen, "/weights_checker", {"action": "checksum"})
    assert checked["success"] and checked["per_engine_checksum"] == get(gen, "/v1/model")["loaded"]["digest"]
    was = info["weight_version"]
    assert post(gen, "/update_weight_version", {"new_version": "41"})["new_version"] == "41" and get(gen, "/model_info")["weight_version"] == "41"
    assert generate(gen)["meta_info"]["weight_version"] == "41"
    post(gen, "/update_weight_version", {"new_version": int(was), "abort_all_requests": True})
    for body in ({}, {"rid": ""}, {"rid": 1}):
        assert exchange("POST", gen.url + "/abort_request", body)[0] == 422
