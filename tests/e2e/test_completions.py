"""/v1/completions as clients of the OpenAI API use it: streams against whole answers, readers of all kinds, and a training run that must not notice them."""
import contextlib
import http.client
import itertools
import json
import random
import re
import socket
import subprocess
import threading
import time
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import jsonschema
import pytest

from contract import contract
from harness import Cluster, Deadline, Standalone, call, digests, exchange, grpo_config

PATH = "/v1/completions"
PROMPT = "7+5*3-4="
STALL_MS = 1500


@pytest.fixture(scope="module")
def gen(base_model, tmp_path_factory):
    with Standalone(tmp_path_factory.mktemp("completions")) as alone:
        yield alone.start("gen", "generation-server", ["--model", base_model, "--slots", 8, "--stream-stall-ms", STALL_MS, "--log-level", "warn"])


@pytest.fixture(scope="module")
def patient(base_model, tmp_path_factory):
    """It cuts nobody off who only stands still for some seconds, as this process may on a busy machine."""
    with Standalone(tmp_path_factory.mktemp("patient")) as alone:
        yield alone.start("patient", "generation-server", ["--model", base_model, "--slots", 8, "--stream-stall-ms", 600000, "--log-level", "warn"])


@pytest.fixture(scope="module")
def slow(wide_models, tmp_path_factory):
    """One slot, many weights and the slowest kernels: a sample takes long enough for somebody to do something meanwhile, on a busy machine too."""
    with Standalone(tmp_path_factory.mktemp("slow")) as alone:
        yield alone.start("slow", "generation-server", ["--model", wide_models[0], "--slots", 1, "--threads", 1, "--isa", "v2", "--log-level", "warn"])


@pytest.fixture(autouse=True)
def all_comes_home(gen):
    yield
    assert gen.process.poll() is None, gen.log.read_text()[-2000:]
    at_rest(gen)


def gauge(server, name):
    text = call("GET", server.url + "/metrics", raw=True).decode()
    return float(re.search(rf"^leasehold_generation_{name} (\S+)$", text, re.M)[1])


def at_rest(server, seconds=40):
    """No request is open, every slot is free and every page has come home."""
    deadline = Deadline(seconds)
    while True:
        model = call("GET", server.url + "/v1/model")
        if gauge(server, "requests_open") == model["slots_busy"] == model["samples_waiting"] == 0 and model["kv_pages_free"] == model["kv_pages_total"]:
            return
        assert not deadline.passed(), model
        time.sleep(0.01)


def whole(server, **body):
    return call("POST", server.url + PATH, body)


def refused(server, status, **body):
    got, _, content = exchange("POST", server.url + PATH, body)
    assert got == status, (body, got, content[:300])
    return json.loads(content)["error"]


def chunk_judge():
    judge = contract("generation-server")
    return jsonschema.Draft202012Validator(judge.document["components"]["schemas"]["CompletionChunk"], resolver=judge.resolver)


CHUNK = chunk_judge()


class Stream:
    """One streamed completion, event by event; leaving the `with` block hangs up."""

    def __init__(self, url, receive_bytes=None, judged=True, **body):
        self.judge = CHUNK if judged else None
        parts = urllib.parse.urlsplit(url)
        self.connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)
        if receive_bytes:
            self.connection.sock = socket.socket()
            self.connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            self.connection.sock.settimeout(60)
            self.connection.sock.connect((parts.hostname, parts.port))
        self.connection.request("POST", PATH, json.dumps({"stream": True, **body}), {"Content-Type": "application/json"})
        self.answer = self.connection.getresponse()
        self.status = self.answer.status
        self.done = False
        self.comments = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.answer.close()
        self.connection.close()

    def __iter__(self):
        assert self.status == 200, (self.status, self.answer.read())
        assert self.answer.headers["Content-Type"] == "text/event-stream"
        while line := self.answer.readline():
            text = line.decode("utf-8")  # a line that ended inside a character would not decode
            if text.startswith(":"):
                self.comments += 1
            elif text != "\n":
                assert text.startswith("data: ") and text.endswith("\n") and not self.done, text
                assert self.answer.readline() == b"\n"
                self.done = text == "data: [DONE]\n"
                if not self.done:
                    chunk = json.loads(text[6:])
                    if self.judge:
                        self.judge.validate(chunk)
                    yield chunk


def streamed(server, **body):
    """The chunks of a stream, put together in the shape of a whole answer."""
    choices, usage, ids, count = {}, None, set(), 0
    with Stream(server.url, **body) as stream:
        for chunk in stream:
            count += 1
            assert usage is None, "nothing comes after the usage"
            usage = chunk.get("usage")
            ids.add((chunk["id"], chunk["created"], chunk["model"]))
            for piece in chunk["choices"]:
                told = choices.setdefault(piece["index"], {**piece, "text": "", "logprobs": None, "finish_reason": None, **({"token_ids": []} if "token_ids" in piece else {})})
                assert told["finish_reason"] is None, "nothing comes after the last chunk of a choice"
                assert ("prompt_token_ids" in piece) == ("token_ids" in piece and told["text"] == "" and not told["token_ids"])
                told["text"] += piece["text"]
                told["finish_reason"], told["stop_reason"] = piece["finish_reason"], piece["stop_reason"]
                if "token_ids" in piece:
                    told["token_ids"] = told["token_ids"] + piece["token_ids"]
                if piece["logprobs"]:
                    if told["logprobs"] is None:
                        told["logprobs"] = {key: None if rows is None else [] for key, rows in piece["logprobs"].items()}
                    for key, rows in piece["logprobs"].items():
                        if rows is not None:
                            told["logprobs"][key] += rows
        assert stream.done and len(ids) == 1
    return {"choices": [choices[i] for i in sorted(choices)], "usage": usage, "chunks": count}


# --- streams and whole answers ---


@pytest.mark.parametrize(
    "body",
    [
        dict(prompt=PROMPT, max_tokens=24, seed=1),
        dict(prompt=PROMPT, max_tokens=24, temperature=0, ignore_eos=True),
        dict(prompt=list(PROMPT.encode()), max_tokens=60, seed=2, n=3, return_token_ids=True, ignore_eos=True),
        dict(prompt=[PROMPT, "1+1=", "2"], max_tokens=40, seed=3, n=2, echo=True),
        dict(prompt=[[49, 43], [50], [51, 43, 52]], max_tokens=40, seed=4, top_k=5, top_p=0.9, min_p=0.02, return_token_ids=True),
        dict(prompt="é€😀", max_tokens=90, seed=5, temperature=100, n=8, echo=True, ignore_eos=True),
        dict(prompt=[0xE2, 0x82], max_tokens=90, seed=6, temperature=100, echo=True, ignore_eos=True, return_token_ids=True),
        dict(prompt=PROMPT, max_tokens=40, seed=7, logprobs=0, return_token_ids=True, temperature=2),
        dict(prompt=PROMPT, max_tokens=90, seed=8, logprobs=5, return_token_ids=True, temperature=100, ignore_eos=True, n=2),
        dict(prompt=PROMPT, max_tokens=60, seed=9, stop=["=", ";2"], logprobs=1, return_token_ids=True, n=4, ignore_eos=True),
        dict(prompt=PROMPT, max_tokens=60, seed=str(2**64 - 1), stop="#", n=4, ignore_eos=True),
    ],
)
def test_a_stream_put_together_is_the_whole_answer(gen, body):
    expected = whole(gen, **body)
    got = streamed(gen, **body, stream_options={"include_usage": True})
    assert got["choices"] == expected["choices"]
    assert got["usage"] == expected["usage"]
    if "return_token_ids" in body:
        assert expected["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in expected["choices"])


def test_the_choices_of_several_prompts_are_those_of_each_with_its_text(gen):
    greedy = dict(max_tokens=20, temperature=0, ignore_eos=True)
    alone = [whole(gen, prompt=prompt, **greedy)["choices"][0]["text"] for prompt in (PROMPT, "1+2=")]
    both = whole(gen, prompt=[PROMPT, "1+2="], n=2, **greedy)
    assert [(c["index"], c["text"]) for c in both["choices"]] == [(0, alone[0]), (1, alone[0]), (2, alone[1]), (3, alone[1])]
    echoed = whole(gen, prompt=[PROMPT, "1+2="], echo=True, **greedy)
    assert [c["text"] for c in echoed["choices"]] == [PROMPT + alone[0], "1+2=" + alone[1]]


def test_curl_shows_a_readable_stream(gen):
    body = json.dumps({"prompt": PROMPT, "max_tokens": 20, "temperature": 0, "ignore_eos": True, "stream": True})
    out = subprocess.run(["curl", "-sN", gen.url + PATH, "-d", body], capture_output=True, text=True, timeout=30, check=True).stdout
    events = out.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""] and all(event.startswith("data: {") for event in events[:-2])
    text = "".join(json.loads(event[6:])["choices"][0]["text"] for event in events[:-2])
    assert text == whole(gen, prompt=PROMPT, max_tokens=20, temperature=0, ignore_eos=True)["choices"][0]["text"]


@pytest.mark.alone
def test_tokens_come_while_the_rest_is_sampled(slow):
    """The first of many samples have been told long before the last begin."""
    with contextlib.ExitStack() as held:
        held.enter_context(slow.slowly())
        stream = held.enter_context(Stream(slow.url, prompt=PROMPT, max_tokens=100, n=24, seed=1, ignore_eos=True))
        chunks = iter(stream)
        next(chunks)
        model = call("GET", slow.url + "/v1/model")
        assert model["slots_busy"] == 1 and model["samples_waiting"] > 0
        slow.hurry()
        ended = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert ended.count("length") == 24 and ended.index("length") < len(ended) / 2


# --- stop texts ---


def test_stop_texts_end_the_text_wherever_tokens_cut_it(gen):
    """Every token is one byte, or has no text at all, so longer stop texts always cross their boundaries."""
    body = dict(prompt=PROMPT, max_tokens=80, seed=11, ignore_eos=True, return_token_ids=True)
    full = whole(gen, **body)["choices"][0]
    assert full["text"].isascii() and len(full["text"]) > 40
    shown = [at for at, token in enumerate(full["token_ids"]) if token < 256]  # where each character comes from
    for length in (1, 2, 3, 7):
        for at in (0, 5, 31):
            stop = full["text"][at : at + length]
            end = full["text"].index(stop)
            for cut in (whole(gen, **body, stop=[stop, "never there"])["choices"][0], streamed(gen, **body, stop=stop)["choices"][0]):
                assert cut["text"] == full["text"][:end] and cut["finish_reason"] == "stop"
                assert cut["token_ids"] == full["token_ids"][: shown[end + length - 1] + 1]


def test_a_met_stop_text_saves_what_would_have_been_computed(slow):
    full = whole(slow, prompt=PROMPT, max_tokens=100, temperature=0, ignore_eos=True)["choices"][0]["text"]
    first = re.search("[A-Za-z]{2}", full)[0]
    assert 2 <= full.index(first) < 40
    body = dict(prompt=PROMPT, max_tokens=100, temperature=0, ignore_eos=True, n=16, stop=first)
    at_rest(slow)
    for ask in (whole, streamed):
        before = gauge(slow, "tokens_sampled_total")
        ask(slow, **body)
        at_rest(slow)
        assert 16 * 4 <= gauge(slow, "tokens_sampled_total") - before < 16 * 60


# --- log-probabilities ---


def test_log_probabilities_are_raw_and_name_the_alternatives(gen):
    body = dict(prompt=PROMPT, max_tokens=30, seed=12, ignore_eos=True, return_token_ids=True)
    plain = whole(gen, **body, logprobs=0)["choices"][0]
    shown = [token < 256 for token in plain["token_ids"]]  # the others are special or have no text
    assert plain["text"].isascii() and plain["logprobs"]["top_logprobs"] is None
    assert plain["logprobs"]["text_offset"] == [sum(shown[:at]) for at in range(30)]
    top = whole(gen, **body, logprobs=4)["choices"][0]
    assert top["token_ids"] == plain["token_ids"] == whole(gen, **body)["choices"][0]["token_ids"]
    rows = top["logprobs"]
    assert rows["token_logprobs"] == plain["logprobs"]["token_logprobs"] and "".join(itertools.compress(rows["tokens"], shown)) == top["text"]
    for token, logprob, alternatives in zip(rows["tokens"], rows["token_logprobs"], rows["top_logprobs"], strict=True):
        assert alternatives[token] == logprob and 4 <= len(alternatives) <= 5
        assert sorted(alternatives.values(), reverse=True)[:4] == list(alternatives.values())[:4]
    generated = call("POST", gen.url + "/v1/generate", {"text": PROMPT, "return_logprob": True, "sampling_params": {"max_new_tokens": 30, "seed": 12, "ignore_eos": True}})
    assert [row[0] for row in generated["meta_info"]["output_token_logprobs"]] == rows["token_logprobs"], "at temperature 1 the raw ones are what was sampled from"


@pytest.mark.parametrize(
    "code, field, body",
    [
        ("unsupported_parameter", "best_of", dict(prompt="x", best_of=3)),
        ("unsupported_parameter", "suffix", dict(prompt="x", suffix="y")),
        ("unsupported_parameter", "response_format", dict(prompt="x", response_format={"type": "json_object"})),
        ("unsupported_parameter", "guided_regex", dict(prompt="x", guided_regex="a*")),
        ("invalid_value", "presence_penalty", dict(prompt="x", presence_penalty=3)),
        ("invalid_value", "logit_bias", dict(prompt="x", logit_bias={"x": 1})),
        ("invalid_value", "logit_bias", dict(prompt="x", logit_bias={"50": 101})),
        ("invalid_value", "top_q", dict(prompt="x", top_q=0.9)),
        ("invalid_value", "stop", dict(prompt="x", stop=list("abcde"))),
        ("invalid_value", "stop", dict(prompt="x", stop=["a" * 1025])),
        ("invalid_value", "logprobs", dict(prompt="x", logprobs=21)),
        ("invalid_value", "max_tokens", dict(prompt="x", max_tokens=129)),
        ("invalid_value", "max_tokens", dict(prompt="x", max_tokens=0)),
        ("context_length_exceeded", "prompt", dict(prompt="1" * 128)),
        ("context_length_exceeded", "prompt", dict(prompt="1" * 200000)),
        ("context_length_exceeded", "prompt", dict(prompt=["x", "1" * 128])),
        ("invalid_value", "prompt", dict(prompt=["x"] * 257)),
        ("invalid_value", "prompt[1]", dict(prompt=["x", ""])),
        ("invalid_value", "n", dict(prompt=["x"] * 64, n=128)),
        ("invalid_value", "stream", dict(prompt="x", stream="yes")),
        ("invalid_value", "stream_options", dict(prompt="x", stream_options={})),
    ],
)
def test_what_is_not_offered_is_refused_before_a_stream_begins(gen, code, field, body):
    for stream in ({}, {"stream": True}) if field not in ("stream", "stream_options") else ({},):
        error = refused(gen, 400, **{**body, **stream})
        assert (error["code"], error["param"]) == (code, field) and len(error["message"]) > 20, error


# --- lengths ---


def test_a_length_that_the_context_has_not_left_is_cut_to_what_it_has(gen):
    """As vLLM 0.32 does; before, evaluations with a usual length got no answer to their longest prompts."""
    body = dict(prompt="1" * 120, ignore_eos=True, seed=5, return_token_ids=True)
    exact = whole(gen, **body, max_tokens=8)
    for length in (9, 100, 128):
        cut = whole(gen, **body, max_tokens=length)
        assert (cut["choices"], cut["usage"]) == (exact["choices"], exact["usage"]) and cut["choices"][0]["finish_reason"] == "length"
    several = whole(gen, **{**body, "prompt": ["1" * 120, "1" * 126]}, max_tokens=128)["choices"]
    assert [len(choice["token_ids"]) for choice in several] == [8, 2]
    assert "maximum context length is 128 tokens" in refused(gen, 400, prompt="1" * 128)["message"]


@pytest.mark.parametrize("more", [{}, {"logprobs": 1}, {"logprobs": 0, "n": 2}, {"stop": "1"}, {"logit_bias": {"256": 100}}, {"return_token_ids": True}])
def test_no_tokens_with_echo_tell_the_prompt_alone(gen, more):
    """How evaluations ask OpenAI for the log-probabilities of a text."""
    body = dict(prompt=[PROMPT, "11"], echo=True, temperature=0, **more)
    one = whole(gen, **body, max_tokens=1)
    none = whole(gen, **body, max_tokens=0)
    n = more.get("n", 1)
    assert [choice["text"] for choice in none["choices"]] == [PROMPT] * n + ["11"] * n
    assert none["usage"] == {"prompt_tokens": len(PROMPT) + 2, "completion_tokens": 0, "total_tokens": len(PROMPT) + 2}
    for choice, other in zip(none["choices"], one["choices"], strict=True):
        assert choice["finish_reason"] == "length" and choice["stop_reason"] is None and choice.get("token_ids", []) == []
        if "logprobs" in more:
            rows = {key: value and value[:-1] for key, value in other["logprobs"].items()}
            assert choice["logprobs"] == rows and len(rows["tokens"]) == len(choice["text"])
    told = streamed(gen, **body, max_tokens=0)["choices"]
    for choice, other in zip(told, none["choices"], strict=True):
        assert (choice["text"], choice["finish_reason"]) == (other["text"], "length")


# --- readers ---


def test_sixty_four_streams_at_once(gen):
    bodies = [dict(prompt=PROMPT[: 1 + i % 8], max_tokens=60, seed=i % 16, ignore_eos=True, n=1 + i % 2) for i in range(16)]
    expected = [whole(gen, **body)["choices"] for body in bodies]
    with ThreadPoolExecutor(64) as pool:
        got = list(pool.map(lambda i: streamed(gen, **bodies[i % 16])["choices"], range(64)))
    assert all(got[i] == expected[i % 16] for i in range(64))


# More bytes, however its tokens are put into chunks, than the kernel takes for a reader that takes none.
LARGE = dict(prompt=PROMPT, max_tokens=110, n=128, seed=1, ignore_eos=True, logprobs=20, return_token_ids=True)


@pytest.mark.alone
def test_readers_that_hang_up_free_what_they_held(gen):
    before = gauge(gen, "tokens_sampled_total")
    with gen.slowly():
        for i in range(20):
            with Stream(gen.url, judged=False, **LARGE) as stream:
                for _ in zip(range(i), stream):
                    pass
    at_rest(gen)
    assert gauge(gen, "tokens_sampled_total") - before < 20 * 128 * 110 / 2


@pytest.mark.alone
def test_a_reader_that_stops_reading_is_cut_off_and_holds_up_nobody(gen):
    cut = gauge(gen, "streams_cut_total")
    with Stream(gen.url, receive_bytes=65536, judged=False, **LARGE) as stuck:
        assert stuck.status == 200
        answer = streamed(gen, prompt=PROMPT, max_tokens=20, temperature=0, ignore_eos=True)
        assert answer["choices"][0]["finish_reason"] == "length"
        at_rest(gen, 25)
        assert gauge(gen, "streams_cut_total") == cut + 1
        with pytest.raises((AssertionError, http.client.HTTPException, OSError)):
            list(stuck)
            assert stuck.done, "what was cut off must not look complete"


@pytest.mark.alone
def test_a_reader_that_is_slow_gets_everything(patient):
    """It takes a little now and then: slower than the engine, faster than nothing."""
    expected = whole(patient, **LARGE)
    with Stream(patient.url, receive_bytes=65536, judged=False, **LARGE) as stream:
        texts, read = [""] * 128, 0
        for chunk in stream:
            piece = chunk["choices"][0]
            texts[piece["index"]] += piece["text"]
            read += 1
            if read % 400 == 0:
                time.sleep(0.05)
        assert stream.done
    assert texts == [choice["text"] for choice in expected["choices"]]


# --- beside training ---


ROUNDS = 3


def hammer(server, stop, seed, tally):
    """Streams of every kind, one after the other, until told to stop; some are left in their middle."""
    rng = random.Random(seed)
    while not stop.is_set():
        body = dict(
            prompt=rng.choice([PROMPT, "1+1=", [49, 43, 50], ["3*3=", "4"]]),
            max_tokens=rng.randint(1, 80),
            n=rng.randint(1, 4),
            temperature=rng.choice([0, 0.7, 1, 3]),
            logprobs=rng.choice([None, None, 0, 3]),
            stop=rng.choice([None, ";", ["=", "#"], ["+5=2;"]]),
            ignore_eos=rng.random() < 0.5,
        )
        leave_after = rng.choice([None, None, 1, 5])
        try:
            with Stream(server.url, judged=False, **body) as stream:
                if stream.status in (429, 503):  # not ready yet, or full
                    time.sleep(0.02)
                    continue
                for count, _ in enumerate(stream, 1):
                    if count == leave_after:
                        break
                tally["whole" if stream.done else "left"] += 1
        except (OSError, http.client.HTTPException, AssertionError) as error:
            if not stop.is_set():
                tally["faults"].append(repr(error))


def train(base_model, folder, hammers):
    with Cluster(folder, model=base_model, coordinator=["--worker-ttl-ms", 60000]) as cluster:
        servers = [cluster.add_server(f"gen-{i}", "--slots", 6) for i in range(2)]
        stop, tallies = threading.Event(), [{"whole": 0, "left": 0, "faults": []} for _ in range(2 * hammers)]
        threads = [threading.Thread(target=hammer, args=(servers[i % 2], stop, i, tallies[i])) for i in range(2 * hammers)]
        for thread in threads:
            thread.start()
        try:
            with cluster.trainer.slowly():
                run = cluster.create_run(grpo_config(ROUNDS))
                cluster.trainer.freeze_when("both servers have weights", lambda: cluster.query("SELECT count(*) FROM workers WHERE kind = 0 AND ready = 1") == [(2,)])
                # the run goes on until every thread has had its streams
                cluster.wait_until("streams beside the run", lambda: all(tally["faults"] or tally["whole"] >= 5 and tally["left"] >= 2 for tally in tallies))
            status = cluster.wait(run)
            spans = [call("POST", server.url + "/v1/generate", {"text": "1", "sampling_params": {"max_new_tokens": 1}})["meta_info"]["weight_version"] for server in servers]
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        for server in servers:
            at_rest(server)
    return status, tallies, spans


def test_a_training_run_beside_streams_gives_the_same_digest_after_every_round(base_model, tmp_path):
    quiet, _, _ = train(base_model, tmp_path / "quiet", 0)
    loud, tallies, spans = train(base_model, tmp_path / "loud", 3)
    assert digests(loud) == digests(quiet) and len(set(digests(quiet))) == ROUNDS
    for status in (quiet, loud):
        assert status["totals"]["logprob_unequal"] == 0 and status["totals"]["logprob_max_abs_diff"] == 0
        assert {w["name"] for w in status["totals"]["workers"] if w["samples"] > 0} == {"gen-0", "gen-1"}
    assert spans == [ROUNDS, ROUNDS]
    assert not [fault for tally in tallies for fault in tally["faults"]]
    assert all(tally["whole"] >= 5 for tally in tallies) and sum(tally["left"] for tally in tallies) > 5, tallies
