"""The OpenAI API by its official client, and what that client does not show: streams put together, log-probabilities of prompts, the contract's judgement of every answer.

The client is installed into build/openai by the versions of openai-requirements.txt when it is not there; without a network and without it that one test is skipped."""
import http.client
import json
import shutil
import subprocess
import sys
import urllib.parse

import jsonschema
import pytest

from contract import contract
from harness import ROOT, Standalone, call, exchange, wait_until

HERE = ROOT / "tests/e2e"
VENV = ROOT / "build/openai"
CHAT = "/v1/chat/completions"
ASK = [{"role": "user", "content": "7+5*3-4="}]
PIECES = {
    259: '<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n</tool_call>',
    260: '{"name": "weather", "parameters": {"city": "Bergen"}}',
    261: "Let me look. ",
    262: "<tool_",
    263: 'call>{"name": "weather", "arguments": {}}</tool_call>',
}


TEMPLATE = """{%- if tools %}{{ '<|im_start|>tools' }}{%- for tool in tools %}{{ ' ' + tool.function.name }}{%- endfor %}{{ '<|im_end|>\n' }}{%- endif %}
{%- for message in messages %}{{ '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{%- if brief %}{{ 'In short: ' }}{%- endif %}{%- endif %}"""


@pytest.fixture(scope="module")
def gen(base_model, tmp_path_factory):
    """A server whose tokenizer has whole pieces of tool calls as tokens, so that a model that knows none can be made to write them."""
    folder = tmp_path_factory.mktemp("openai")
    model = folder / "model"
    shutil.copytree(base_model, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    like = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": False}
    tokenizer["added_tokens"] += [{"id": token, "content": text, **like} for token, text in PIECES.items()]
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    (model / "chat_template.jinja").write_text(TEMPLATE)
    with Standalone(folder) as alone:
        server = alone.start("gen", "generation-server", ["--model", model, "--slots", 8, "--log-level", "warn"])
        server.locked = alone.start("locked", "generation-server", ["--model", model, "--slots", 1, "--auth-token", "secret"])
        yield server


@pytest.fixture(scope="module")
def python():
    wanted = (HERE / "openai-requirements.txt").read_text()
    stamp = VENV / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(VENV, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", VENV], check=True)
        install = [VENV / "bin/pip", "install", "--quiet", "--disable-pip-version-check", "-r", HERE / "openai-requirements.txt"]
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode != 0:
            pytest.skip("the openai client is not here and cannot be installed: " + done.stderr[-300:])
        stamp.write_text(wanted)
    return VENV / "bin/python"


def chat(server, **body):
    return call("POST", server.url + CHAT, {"messages": ASK, "seed": 1, "max_tokens": 20, **body})


def at_rest(server):
    model = call("GET", server.url + "/v1/model")
    return model["slots_busy"] == model["samples_waiting"] == 0 and model["kv_pages_free"] == model["kv_pages_total"]


def test_the_official_client_gets_what_it_asks_for(gen, python):
    done = subprocess.run([python, HERE / "openai_client.py", gen.url, gen.locked.url], capture_output=True, text=True, timeout=300)
    print(done.stdout, done.stderr)
    assert done.returncode == 0 and done.stdout.count("ok ") == 17
    wait_until("the server is at rest", lambda: at_rest(gen))


def chunks(server, **body):
    judge = contract("generation-server")
    schema = jsonschema.Draft202012Validator(judge.document["components"]["schemas"]["ChatCompletionChunk"], resolver=judge.resolver)
    parts = urllib.parse.urlsplit(server.url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
    connection.request("POST", CHAT, json.dumps({"messages": ASK, "seed": 1, "max_tokens": 20, **body, "stream": True}))
    answer = connection.getresponse()
    assert answer.status == 200
    events = [event[6:] for event in answer.read().decode().split("\n\n") if event.startswith("data: ")]
    connection.close()
    assert events[-1] == "[DONE]"
    told = [json.loads(event) for event in events[:-1]]
    for chunk in told:
        schema.validate(chunk)
    return told


@pytest.mark.parametrize(
    "body",
    [
        dict(),
        dict(n=3, temperature=2, ignore_eos=True),
        dict(logprobs=True, top_logprobs=2, return_token_ids=True, n=2),
        dict(return_token_ids=True, temperature=100, ignore_eos=True, max_tokens=60),
        dict(stop=["=", ";2"], n=4, ignore_eos=True, logprobs=True),
        dict(presence_penalty=1.5, frequency_penalty=-0.5, repetition_penalty=1.3, logit_bias={"50": -3}, n=2),
        dict(skip_special_tokens=False, temperature=100, ignore_eos=True, max_tokens=60),
    ],
)
def test_a_chat_stream_put_together_is_the_whole_answer(gen, body):
    expected = chat(gen, **body)
    told, usage, prompt_ids = {}, None, None
    for chunk in chunks(gen, **body, stream_options={"include_usage": True}):
        usage = chunk["usage"]
        prompt_ids = prompt_ids or chunk.get("prompt_token_ids")
        for choice in chunk["choices"]:
            one = told.setdefault(choice["index"], {"roles": [], "content": "", "logprobs": [], "ids": [], "finish": None})
            assert one["finish"] is None
            one["roles"] += [choice["delta"]["role"]] if "role" in choice["delta"] else []
            one["content"] += choice["delta"].get("content", "")
            one["logprobs"] += choice["logprobs"]["content"] if choice["logprobs"] else []
            one["ids"] += choice.get("token_ids", [])
            one["finish"] = choice["finish_reason"]
    assert usage == expected["usage"] and prompt_ids == expected.get("prompt_token_ids")
    for choice in expected["choices"]:
        one = told[choice["index"]]
        assert one["roles"] == ["assistant"] and one["finish"] == choice["finish_reason"]
        assert one["content"] == choice["message"]["content"]
        assert one["ids"] == choice.get("token_ids", [])
        assert one["logprobs"] == (choice["logprobs"]["content"] if choice["logprobs"] else [])


def test_the_token_that_ends_an_answer_is_no_part_of_its_text(gen):
    """As on SGLang's route; a call was none where special tokens are shown, for the end of the turn stood behind it."""
    end = json.loads((ROOT / "deploy/demo/model/generation_config.json").read_text())["eos_token_id"]
    end = end if isinstance(end, int) else end[0]
    forced = {"temperature": 0, "logit_bias": {"259": 100, str(end): 85}, "repetition_penalty": 50, "skip_special_tokens": False}
    tools = [{"type": "function", "function": {"name": "weather"}}]
    plain = chat(gen, **forced)["choices"][0]
    assert plain["message"]["content"] == PIECES[259] and plain["finish_reason"] == "stop"
    assert chat(gen, **forced, include_stop_str_in_output=True)["choices"][0]["message"]["content"].startswith(PIECES[259] + "<|")
    called = chat(gen, **forced, tools=tools)["choices"][0]
    assert called["finish_reason"] == "tool_calls" and called["message"]["content"] is None and len(called["message"]["tool_calls"]) == 1
    told = [choice for chunk in chunks(gen, **forced, tools=tools) for choice in chunk["choices"]]
    assert told[-1]["finish_reason"] == "tool_calls" and not any(choice["delta"].get("content") for choice in told) and told[-1]["delta"]["tool_calls"]
    complete = lambda **more: call("POST", gen.url + "/v1/completions", dict(prompt="7+5*3", max_tokens=30, temperature=0, ignore_eos=True, return_token_ids=True, **more))["choices"][0]
    whole = complete()
    token = whole["token_ids"][5]
    first = whole["token_ids"].index(token)
    cut, kept = complete(stop_token_ids=[token]), complete(stop_token_ids=[token], include_stop_str_in_output=True)
    assert cut["token_ids"] == kept["token_ids"] == whole["token_ids"][: first + 1] and cut["finish_reason"] == "stop"
    assert kept["text"] == whole["text"][: len(kept["text"])] and cut["text"] == kept["text"][:-1]


def test_the_log_probabilities_of_a_prompt_are_those_that_its_tokens_had_when_sampled(gen):
    """Bit for bit: what is judged in a prompt was drawn before as an answer."""
    sampled = call("POST", gen.url + "/v1/completions", dict(prompt="7+5*3", max_tokens=30, seed=4, logprobs=3, ignore_eos=True, return_token_ids=True))["choices"][0]
    prompt = sampled["prompt_token_ids"] + sampled["token_ids"]
    judged = call("POST", gen.url + "/v1/completions", dict(prompt=prompt, max_tokens=1, seed=1, logprobs=3, echo=True, n=2))
    for choice in judged["choices"]:
        rows = choice["logprobs"]
        assert rows["token_logprobs"][0] is None and len(rows["tokens"]) == len(prompt) + 1 == len(rows["text_offset"])
        assert rows["token_logprobs"][5:-1] == sampled["logprobs"]["token_logprobs"]
        assert rows["top_logprobs"][5:-1] == sampled["logprobs"]["top_logprobs"]
        assert rows["tokens"][5:-1] == sampled["logprobs"]["tokens"]
        assert choice["text"].startswith("7+5*3")


def test_tokens_around_an_echoed_text_have_no_place_in_it(base_model, tmp_path):
    """A tokenizer that puts its first token before texts, as those of Llama and Gemma do; the text shows none, and offsets were those of one that does."""
    model = tmp_path / "model"
    shutil.copytree(base_model, model)
    tokenizer = json.loads((model / "tokenizer.json").read_text())
    tokens = {name: {"id": name, "ids": [token], "tokens": [name]} for name, token in (("<|im_start|>", 257), ("<|im_end|>", 258))}
    affixed = [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|im_end|>", "type_id": 0}}]
    tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": affixed, "pair": affixed, "special_tokens": tokens}
    (model / "tokenizer.json").write_text(json.dumps(tokenizer))
    with Standalone(tmp_path) as alone:
        gen = alone.start("gen", "generation-server", ["--model", model, "--slots", 2, "--log-level", "warn"])
        complete = lambda prompt: call("POST", gen.url + "/v1/completions", dict(prompt=prompt, max_tokens=2, echo=True, logprobs=0, temperature=0, logit_bias={"65": 100}))["choices"][0]
        text = complete("1+é")
        assert text["text"] == "1+éAA" and text["logprobs"]["text_offset"] == [0, 0, 1, 2, 3, 3, 3, 4]
        ids = complete([257, *b"1+"])
        assert ids["text"] == "<|im_start|>1+AA" and ids["logprobs"]["text_offset"] == [0, 12, 13, 14, 15]


def test_a_chat_without_a_limit_goes_to_the_end_of_the_context(gen):
    context = call("GET", gen.url + "/v1/model")["config"]["context_max"]
    answer = call("POST", gen.url + CHAT, {"messages": ASK, "ignore_eos": True, "temperature": 0})
    assert answer["usage"]["total_tokens"] == context and answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("field", ["guided_json", "functions", "audio", "documents", "chat_template", "bad_words", "prompt_logprobs"])
def test_what_is_not_offered_is_refused_by_its_name(gen, field):
    status, _, content = exchange("POST", gen.url + CHAT, {"messages": ASK, field: "x"})
    error = json.loads(content)["error"]
    assert status == 400 and (error["code"], error["param"]) == ("unsupported_parameter", field)
    status, _, _ = exchange("POST", gen.url + CHAT, {"messages": ASK, field: None, "max_tokens": 1})
    assert status == 200


def prompt_tokens(gen, **more):
    return call("POST", gen.url + CHAT, {"messages": ASK, "max_tokens": 1, **more})["usage"]["prompt_tokens"]


def test_messages_become_tokens_by_the_models_own_template(gen):
    tools = [{"type": "function", "function": {"name": "weather"}}]
    rendered = lambda text: len(call("POST", gen.url + "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"])
    whole = prompt_tokens(gen)
    assert prompt_tokens(gen, tools=tools) == whole + rendered("<|im_start|>tools weather<|im_end|>\n")
    beyond = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 2**64 - 1}}}  # no number of ours, and no reason for a refusal
    tools[0]["function"]["parameters"] = beyond
    assert prompt_tokens(gen, tools=tools) == whole + rendered("<|im_start|>tools weather<|im_end|>\n")
    assert call("POST", gen.url + "/tokenize", {"messages": ASK, "tools": tools})["count"] == prompt_tokens(gen, tools=tools)
    assert prompt_tokens(gen, chat_template_kwargs={"brief": True}) == whole + rendered("In short: ")
    marked = [{"role": "user", "content": ASK[0]["content"] + "<|im_end|>"}]  # it cannot end its own turn
    assert prompt_tokens(gen, messages=marked) == whole + len("<|im_end|>")
