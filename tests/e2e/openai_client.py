"""OpenAI's official client against a generation-server, with the calls of its own README and examples.  Runs in the environment of build/openai (test_openai.py makes it):

  openai_client.py URL LOCKED     prints the name of each check, and ends with 1 when one fails; LOCKED asks for a token"""
import asyncio
import sys
import traceback

import openai

URL = sys.argv[1] + "/v1"
client = openai.OpenAI(base_url=URL, api_key="none", max_retries=0, timeout=60)
MODEL = client.models.list().data[0].id
ASK = [{"role": "user", "content": "7+5*3-4="}]
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "Of a city.", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]
# Ids of the test's tokenizer whose texts are whole pieces of calls; a token that has come is as good as gone.
HERMES, LLAMA, TALK, TAG_BEGIN, TAG_REST, END = "259", "260", "261", "262", "263", "256"


def chat(**more):
    return client.chat.completions.create(**{"model": MODEL, "messages": ASK, "max_tokens": 12, "seed": 1, **more})


def forced(*ids, **more):
    """A chat whose tokens are these, then the end."""
    bias = {token: 100 - 15 * place for place, token in enumerate((*ids, END))}
    return chat(temperature=0, logit_bias=bias, extra_body={"repetition_penalty": 50}, **more)


def refused(kind, field, ask, **fields):
    try:
        ask(**fields)
    except kind as error:
        assert error.param == field and error.code and error.type and len(error.message) > 20 and error.message in str(error), error.body
        return error
    raise AssertionError(f"{fields} was taken")


def models():
    listed = client.models.list()
    names = [model.id for model in listed.data]
    assert len(names) == 2 and names[0] == "leasehold" and names[1].endswith("/model") and {model.object for model in listed.data} == {"model"}
    for name in names:
        assert client.models.retrieve(name).id == name
        assert client.completions.create(model=name, prompt="1", max_tokens=1).model == chat(model=name, max_tokens=1).model == "leasehold"
    assert chat(model="", max_tokens=1).model == "leasehold"


def another_model():
    """Nothing is sampled of a model that the client has not asked for."""
    ways = (
        lambda name: client.models.retrieve(name),
        lambda name: client.completions.create(model=name, prompt="1", max_tokens=1),
        lambda name: client.completions.create(model=name, prompt="1", max_tokens=1, stream=True),
        lambda name: chat(model=name),
        lambda name: chat(model=name, stream=True),
    )
    for ask in ways:
        for name in ("gpt-none", "Leasehold", "leasehold ", "none/" + "x" * 300):
            error = fails(openai.NotFoundError, "model_not_found", ask, name=name)
            assert (error.param, error.type) == ("model", "invalid_request_error") and f"The model `{name[:100]}` does not exist: expected leasehold or /" in error.message


def completions():
    answer = client.completions.create(model=MODEL, prompt="7+5=", max_tokens=8, seed=3, logprobs=2, echo=True, n=2, extra_body={"return_token_ids": True})
    assert [choice.index for choice in answer.choices] == [0, 1] and answer.usage.prompt_tokens == 4
    for choice in answer.choices:
        assert choice.text.startswith("7+5=") and choice.logprobs.token_logprobs[0] is None
        assert len(choice.logprobs.tokens) == 4 + len(choice.token_ids) == len(choice.logprobs.top_logprobs)
    stream = client.completions.create(model=MODEL, prompt="7+5=", max_tokens=8, seed=3, stream=True, stream_options={"include_usage": True})
    chunks = list(stream)
    assert "7+5=" + "".join(chunk.choices[0].text for chunk in chunks if chunk.choices) == answer.choices[0].text
    assert chunks[-1].usage.completion_tokens == len(answer.choices[0].token_ids)


def chat_whole():
    answer = chat(n=2, logprobs=True, top_logprobs=3)
    message = answer.choices[0].message
    assert message.role == "assistant" and message.tool_calls is None and message.refusal is None
    content = answer.choices[0].logprobs.content
    assert len(content) == answer.usage.completion_tokens - len(answer.choices[1].logprobs.content)
    assert all(len(token.top_logprobs) == 3 and token.top_logprobs[0].logprob >= token.logprob for token in content)
    assert bytes(b for token in content for b in token.bytes or []).decode().startswith(message.content)
    assert chat().choices[0].message.content == message.content, "the seed decides"


def chat_stream():
    expected = chat(n=2)
    told = {0: "", 1: ""}
    with client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, seed=1, n=2, stream=True) as stream:
        for chunk in stream:
            for choice in chunk.choices:
                told[choice.index] += choice.delta.content or ""
    assert [told[0], told[1]] == [choice.message.content for choice in expected.choices]


def chat_stream_helper():
    """The client's own accumulator of streams, which is strict about roles, indices and ends."""
    ends = dict(logit_bias={END: 100}, extra_body={"min_tokens": 9})
    with client.chat.completions.stream(model=MODEL, messages=ASK, max_tokens=12, seed=1, **ends) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == chat(**ends).choices[0].message.content != ""


def parts_of_content():
    whole = chat(messages=[{"role": "system", "content": "Be\nbrief."}, {"role": "user", "content": "7+5="}])
    parts = chat(messages=[{"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief."}]}, {"role": "user", "content": "7+5="}])
    assert whole.choices[0].message.content == parts.choices[0].message.content and whole.usage == parts.usage


def stops():
    full = chat(temperature=0, max_tokens=30, extra_body={"ignore_eos": True}).choices[0].message.content
    stop = full[3:5]
    cut = chat(temperature=0, max_tokens=30, stop=[stop], extra_body={"ignore_eos": True}).choices[0]
    assert cut.message.content == full[: full.index(stop)] and cut.finish_reason == "stop"
    kept = chat(temperature=0, max_tokens=30, stop=[stop], extra_body={"ignore_eos": True, "include_stop_str_in_output": True}).choices[0]
    assert kept.message.content == full[: full.index(stop) + 2]
    late = chat(temperature=0, max_tokens=30, stop=["A"], logit_bias={"65": 100}, extra_body={"min_tokens": 5})
    assert late.choices[0].message.content == "A" * 5 and late.usage.completion_tokens == 6 and late.choices[0].finish_reason == "stop"


def penalties():
    same = chat(temperature=0, max_tokens=10, logit_bias={"65": 100}, extra_body={"ignore_eos": True}).choices[0].message.content
    assert same == "A" * 10
    mixed = chat(temperature=0, max_tokens=10, logit_bias={"65": 20, "66": 19.5}, frequency_penalty=2, presence_penalty=1, extra_body={"ignore_eos": True})
    assert {"A", "B"} <= set(mixed.choices[0].message.content)
    long = chat(max_tokens=20, logit_bias={END: 100}, extra_body={"min_tokens": 7})
    assert long.usage.completion_tokens == 8 and long.choices[0].finish_reason == "stop"


def tool_calls():
    for token, city in ((HERMES, "Oslo"), (LLAMA, "Bergen")):
        choice = forced(token, tools=TOOLS).choices[0]
        assert choice.finish_reason == "tool_calls" and choice.message.content is None, choice
        (call,) = choice.message.tool_calls
        assert (call.type, call.function.name, call.function.arguments) == ("function", "weather", '{"city":"%s"}' % city) and call.id
    choice = forced(TALK, HERMES, tools=TOOLS).choices[0]
    assert choice.message.content == "Let me look. " and len(choice.message.tool_calls) == 1
    for more in ({}, {"tools": TOOLS, "tool_choice": "none"}):
        choice = forced(HERMES, **more).choices[0]
        assert choice.finish_reason == "stop" and choice.message.tool_calls is None and "<tool_call>" in choice.message.content
    choice = forced(TAG_BEGIN, tools=TOOLS).choices[0]
    assert choice.message.content == "<tool_" and choice.message.tool_calls is None


def tool_calls_in_a_stream():
    for ids in ((HERMES,), (LLAMA,), (TALK, HERMES), (TALK, TAG_BEGIN, TAG_REST), (TAG_BEGIN,), (TALK, TAG_BEGIN)):
        expected = forced(*ids, tools=TOOLS).choices[0]
        content, calls, finish = "", {}, None
        for chunk in forced(*ids, tools=TOOLS, stream=True):
            delta = chunk.choices[0].delta
            content += delta.content or ""
            finish = chunk.choices[0].finish_reason or finish
            for call in delta.tool_calls or []:
                calls[call.index] = (call.function.name, call.function.arguments)
        assert finish == expected.finish_reason and content == (expected.message.content or ""), (ids, content, expected)
        assert list(calls.values()) == [(call.function.name, call.function.arguments) for call in expected.message.tool_calls or []], ids
        if ids[0] == TALK and len(ids) > 1 and ids[-1] != TAG_BEGIN:
            assert content == "Let me look. " and len(calls) == 1


def what_is_not_offered():
    refused(openai.BadRequestError, "response_format", chat, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {}}})
    refused(openai.BadRequestError, "tool_choice", chat, tools=TOOLS, tool_choice="required")
    refused(openai.BadRequestError, "tool_choice", chat, tools=TOOLS, tool_choice={"type": "function", "function": {"name": "weather"}})
    refused(openai.BadRequestError, "reasoning_effort", chat, reasoning_effort="low")
    refused(openai.BadRequestError, "top_logprobs", chat, top_logprobs=2)
    refused(openai.BadRequestError, "who_knows", chat, extra_body={"who_knows": 1})
    refused(openai.BadRequestError, "messages", chat, messages=[])
    refused(openai.BadRequestError, "logit_bias", chat, logit_bias={"100000": 1})


def fails(kind, code, ask, **fields):
    try:
        ask(**fields)
    except kind as error:
        assert error.code == code and error.type and error.message in str(error), error.body
        return error
    raise AssertionError(f"no {kind.__name__} came")


def kinds_of_errors():
    with openai.OpenAI(base_url=sys.argv[2] + "/v1", api_key="wrong", max_retries=0) as stranger:
        fails(openai.AuthenticationError, "invalid_api_key", stranger.models.list)
        fails(openai.AuthenticationError, "invalid_api_key", stranger.chat.completions.create, model=MODEL, messages=ASK)
    large = fails(openai.APIStatusError, "request_too_large", chat, user="x" * (17 << 20))
    assert large.status_code == 413
    many = dict(model=MODEL, prompt=["7+5="] * 32, n=128, max_tokens=60, stream=True, extra_body={"ignore_eos": True})
    with client.completions.create(**many) as stream:
        next(iter(stream))
        full = fails(openai.RateLimitError, "rate_limit_exceeded", chat)
        assert full.response.headers["retry-after"] == "1"
    patient = client.with_options(max_retries=10)
    assert patient.chat.completions.create(model=MODEL, messages=ASK, max_tokens=1).choices, "the client's own retries lead to an answer"
    not_offered = fails(openai.InternalServerError, "unsupported", patient.embeddings.create, model=MODEL, input="x")
    assert not_offered.status_code == 501
    nowhere = fails(openai.NotFoundError, "not_found", client.responses.create, model=MODEL, input="x")
    assert nowhere.type == "invalid_request_error" and nowhere.param is None
    wrong = fails(openai.APIStatusError, "unsupported", client.get, path="/chat/completions", cast_to=object)
    assert wrong.status_code == 405 and wrong.type == "invalid_request_error"


def request_ids():
    """What the client shows as _request_id and request_id finds the answer and, in the server's log, the request."""
    first, second = chat(max_tokens=1), chat(max_tokens=1)
    assert first.id == "chatcmpl-" + first._request_id and first._request_id != second._request_id
    named = {"X-Request-Id": "agent-7"}
    assert (chat(extra_headers=named).id, chat(extra_headers=named)._request_id) == ("chatcmpl-agent-7", "agent-7")
    assert client.completions.create(model=MODEL, prompt="1", max_tokens=1, extra_headers=named).id == "cmpl-agent-7"
    assert client.models.list(extra_headers=named)._request_id == "agent-7"
    with chat(stream=True, extra_headers=named) as stream:
        assert stream.response.headers["x-request-id"] == "agent-7" and {chunk.id for chunk in stream} == {"chatcmpl-agent-7"}
    assert refused(openai.BadRequestError, "top_logprobs", chat, top_logprobs=2, extra_headers=named).request_id == "agent-7"
    both = chat(extra_headers=named, extra_body={"request_id": "mine"})
    assert (both.id, both._request_id) == ("mine", "agent-7")


def lengths():
    short = chat(max_completion_tokens=3, extra_body={"ignore_eos": True})
    assert short.usage.completion_tokens == 3, "max_completion_tokens wins over max_tokens"
    context = client.models.retrieve(MODEL).max_model_len
    cut = chat(max_tokens=context, extra_body={"ignore_eos": True})
    assert cut.usage.total_tokens == context and cut.choices[0].finish_reason == "length"
    refused(openai.BadRequestError, "max_completion_tokens", chat, max_completion_tokens=context + 1)
    refused(openai.BadRequestError, "max_tokens", chat, max_tokens=0)
    for stream in (False, True):
        for more in ("1" * context, "1" * 300000):
            error = refused(openai.BadRequestError, "messages", chat, messages=[{"role": "user", "content": more}], stream=stream)
            # By these two agents know that they must shorten their conversation.
            assert error.code == "context_length_exceeded" and f"This model's maximum context length is {context} tokens" in error.message and "prompt is too long" in error.message, error.body
    scored = client.completions.create(model=MODEL, prompt="7+5=", max_tokens=0, echo=True, logprobs=1)
    assert scored.choices[0].text == "7+5=" and len(scored.choices[0].logprobs.token_logprobs) == 4 and scored.usage.completion_tokens == 0


def asynchronous():
    async def ask():
        async with openai.AsyncOpenAI(base_url=URL, api_key="none", max_retries=0) as client:
            calls = [client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=12, seed=seed) for seed in range(16)]
            return [answer.choices[0].message.content for answer in await asyncio.gather(*calls)]

    assert asyncio.run(ask())[1] == chat().choices[0].message.content


def a_stream_that_is_left():
    with client.chat.completions.create(model=MODEL, messages=ASK, max_tokens=80, n=32, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))


CHECKS = (models, another_model, completions, chat_whole, chat_stream, chat_stream_helper, parts_of_content, stops, penalties, tool_calls, tool_calls_in_a_stream, what_is_not_offered, kinds_of_errors, request_ids, lengths, asynchronous, a_stream_that_is_left)


def main():
    failed = 0
    for check in CHECKS:
        try:
            check()
            print("ok", check.__name__)
        except Exception:
            failed += 1
            print("FAILED", check.__name__)
            traceback.print_exc(file=sys.stdout)
    return failed > 0


sys.exit(main())
