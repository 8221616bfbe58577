"""A generation-server under fire: requests that lie, vanish, never fit or come by the thousand, and pushes that must not touch the weights that decode."""
import hashlib
import json
import re
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import Deadline, Standalone, call, exchange

GREEDY = {"input_ids": list(b"7+5*3-4="), "sampling_params": {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}}
NOWHERE = "0" * 64


class Servers(Standalone):
    """Generation-servers alone: no coordinator, a push is its own word."""

    def server(self, name, model, *args):
        return self.start(name, "generation-server", ["--model", model, *args])


@pytest.fixture(scope="module")
def alone(base_model, tmp_path_factory):
    with Servers(tmp_path_factory.mktemp("generation")) as made:
        made.gen = made.server("gen", base_model, "--slots", 4, "--context-max", 96, "--log-level", "warn")
        made.model = base_model
        yield made


@pytest.fixture(autouse=True)
def still_well(alone):
    """Whatever a test did: the server lives, all slots and pages come home, and the same weights give the same greedy answer."""
    yield
    assert alone.gen.process.poll() is None, alone.logs()
    model = at_rest(alone.gen)
    assert model["kv_pages_free"] == model["kv_pages_total"]
    wait_until(lambda: gauge(alone.gen, "requests_open") == 0)


def wait_until(true, seconds=40):
    deadline = Deadline(seconds)
    while not true():
        assert not deadline.passed()
        time.sleep(0.01)


def at_rest(server, seconds=40):
    def resting():
        model = call("GET", server.url + "/v1/model")
        return model["slots_busy"] == model["samples_waiting"] == 0

    wait_until(resting, seconds)
    return call("GET", server.url + "/v1/model")


def gauge(server, name):
    text = call("GET", server.url + "/metrics", raw=True).decode()
    return float(re.search(rf"^leasehold_generation_{name} (\S+)$", text, re.M)[1])


def buckets(server, name):
    text = call("GET", server.url + "/metrics", raw=True).decode()
    return {bound: int(count) for bound, count in re.findall(rf'^leasehold_generation_{name}_bucket{{le="([^"]+)"}} (\d+)$', text, re.M)}


def generate(server, body, status=200, path="/v1/generate"):
    got, headers, content = exchange("POST", server.url + path, body)
    assert got == status, (body if len(str(body)) < 300 else "...", got, content[:300])
    if status == 429:
        assert headers["Retry-After"] == "1"
    answer = json.loads(content)
    return answer if status == 200 else answer["error"]


def sampled(**sampling):
    return {"input_ids": list(b"1+2="), "sampling_params": {"max_new_tokens": 4, **sampling}}


def connect(server):
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=30)


def post_bytes(path, body, extra=""):
    data = json.dumps(body).encode()
    return f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n{extra}\r\n".encode() + data


# --- what is refused, with the reason ---


@pytest.mark.parametrize(
    "body, field, said",
    [
        (sampled(max_new_tokens=93), "max_new_tokens", "context of 96"),
        ({"input_ids": [48] * 600}, "max_new_tokens", "600 prompt tokens"),
        ({"text": "1" * 3000}, "max_new_tokens", "context of 96"),
        ({"text": ""}, "text", ""),
        ({"input_ids": []}, "input_ids", "got 0"),
        ({}, "text", "neither"),
        ({"text": "1", "input_ids": [1]}, "text", "both"),
        ({"input_ids": [2**31]}, "input_ids", ""),
        ({"input_ids": [-1]}, "input_ids", ""),
        ({**sampled(), "input_ids": [1048575]}, "input_ids", "1048575"),
        ({"input_ids": [1.5]}, "input_ids", ""),
        (sampled(n=257), "n", "257"),
        (sampled(n=0), "n", "0"),
        (sampled(max_new_tokens=0), "max_new_tokens", ""),
        (sampled(temperature=101), "temperature", ""),
        (sampled(top_p=0), "top_p", ""),
        (sampled(top_p=1.01), "top_p", ""),
        (sampled(top_k=-2), "top_k", ""),
        (sampled(top_k=2**40), "top_k", ""),
        (sampled(min_p=-0.1), "min_p", ""),
        (sampled(seed=-1), "seed", ""),
        (sampled(seed=str(2**64)), "seed", ""),
        (sampled(stop_token_ids=[1] * 17), "stop_token_ids", ""),
        (sampled(stop_token_ids=[1048575]), "stop_token_ids", "1048575"),
        (sampled(bananas=1), "bananas", ""),
        ({"input_ids": [1], "bananas": 1}, "bananas", ""),
    ],
)
def test_what_cannot_be_is_422_with_field_and_reason(alone, body, field, said):
    error = generate(alone.gen, body, 422)
    assert field in error["field"] and said in error["message"], error


@pytest.mark.parametrize(
    "body",
    [
        b'{"input_ids":[1],"sampling_params":{"temperature":NaN}}',
        b'{"input_ids":[1],"sampling_params":{"temperature":1e999}}',
        b'{"text":"\xff\xfe"}',
        b'{"text":"\\ud800"}',
        b'{"text":"a","a\\u0000b":1}',
        b'{"input_ids":[1],"input_ids":[2]}',
        b'{"input_ids":' + b"[" * 3000,
        b'{"input_ids":[' + b"1," * 140000 + b"1]}",
    ],
)
def test_bytes_that_are_no_request_are_422(alone, body):
    generate(alone.gen, body, 422)


def test_extreme_sampling_still_answers_numbers(alone):
    extremes = [dict(temperature=1e-30), dict(temperature=1.2e-38), dict(temperature=1e-45), dict(temperature=1e-300), dict(temperature=100), dict(top_k=1048576), dict(top_p=1e-6), dict(min_p=1), dict(seed=str(2**64 - 1))]
    greedy = generate(alone.gen, sampled(temperature=0))["output_ids"]
    for extreme in extremes:
        answer = generate(alone.gen, {**sampled(**{"temperature": 1, **extreme}), "return_logprob": True})
        rows = answer["meta_info"]["output_token_logprobs"]
        assert rows and all(isinstance(row[0], float | int) and row[0] <= 0 for row in rows), (extreme, rows)
        if extreme.get("temperature", 1) < 1e-20 or "top_p" in extreme or "min_p" in extreme:
            assert answer["output_ids"] == greedy, extreme


def test_stop_ids_and_any_bytes_come_back_as_text(alone):
    free = generate(alone.gen, GREEDY)["output_ids"]
    stopped = generate(alone.gen, {**GREEDY, "sampling_params": {**GREEDY["sampling_params"], "stop_token_ids": [free[2]]}})
    assert stopped["output_ids"] == free[: free.index(free[2]) + 1]
    assert stopped["meta_info"]["finish_reason"] == {"type": "stop", "matched": free[2]}
    wild = generate(alone.gen, {"input_ids": list(range(8)), "sampling_params": {"max_new_tokens": 64, "temperature": 100, "n": 4, "ignore_eos": True}})
    assert len(wild) == 4 and all(isinstance(choice["text"], str) for choice in wild)


def test_without_a_seed_no_two_requests_draw_alike(alone):
    body = sampled(max_new_tokens=24, temperature=100, ignore_eos=True)
    with ThreadPoolExecutor(16) as pool:
        texts = list(pool.map(lambda _: tuple(generate(alone.gen, body)["output_ids"]), range(48)))
    assert len(set(texts)) == 48


# --- load, hang-ups, slow and pipelined peers ---


LONG = {"input_ids": [49], "sampling_params": {"max_new_tokens": 95, "n": 256, "ignore_eos": True}}


def test_too_many_are_429_and_a_hang_up_frees_what_it_held(alone):
    before = gauge(alone.gen, "tokens_sampled_total")
    with alone.gen.slowly():
        peers = [connect(alone.gen) for _ in range(16)]  # 16 x 256 samples: all that may be open
        for peer in peers:
            peer.sendall(post_bytes("/v1/generate", LONG))
        wait_until(lambda: gauge(alone.gen, "requests_open") == 16)
        generate(alone.gen, GREEDY, 429)
        wait_until(lambda: call("GET", alone.gen.url + "/v1/model")["samples_waiting"] > 3000)  # shown by the engine after its next step
        for peer in peers:
            peer.close()
    at_rest(alone.gen)
    assert gauge(alone.gen, "tokens_sampled_total") - before < 16 * 256 * 95 / 2
    wait_until(lambda: gauge(alone.gen, "requests_open") == 0)  # what they held is given back with their answers, which come after the engine's rest
    generate(alone.gen, GREEDY)
    for _ in range(200):  # gone before the engine has even heard of it
        with connect(alone.gen) as peer:
            peer.sendall(post_bytes("/v1/generate", LONG))
    at_rest(alone.gen)
    assert gauge(alone.gen, "tokens_sampled_total") - before < (16 + 200) * 256 * 95 / 8


def test_a_thousand_connections_at_once(alone):
    request = post_bytes("/v1/generate", sampled(max_new_tokens=1), "Connection: close\r\n")
    peers = [connect(alone.gen) for _ in range(1000)]
    for peer in peers:
        peer.sendall(request)
    heads = [peer.makefile("rb").readline() for peer in peers]
    for peer in peers:
        peer.close()
    assert all(b" 200 " in head or b" 429 " in head for head in heads), set(heads)


def test_pipelined_requests_are_answered_in_order(alone):
    with connect(alone.gen) as peer:
        peer.sendall(b"".join(post_bytes("/v1/generate", sampled(max_new_tokens=n, temperature=0, ignore_eos=True)) for n in (9, 1, 5)) + b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        text = b"".join(iter(lambda: peer.recv(65536), b""))
    assert [int(n) for n in re.findall(rb'"completion_tokens":(\d+)', text)] == [9, 1, 5] and text.endswith(b'{"status":"ok"}')


def test_slow_and_broken_peers_do_not_hold_up_others(alone):
    peers = [connect(alone.gen) for _ in range(300)]
    for i, peer in enumerate(peers):
        peer.sendall([b"POST /v1/gen", b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{", b"\x00\xff\r\n\r\n", b"POST /v1/generate HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nFFFFFFFFFFFFFFFFF\r\n"][i % 4])
    began = time.monotonic()
    generate(alone.gen, GREEDY)
    assert time.monotonic() - began < 8, "a fraction of what a head may take"
    for peer in peers:
        peer.close()


# --- pushes ---


def tensors(path):
    data = path.read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def safetensors(header, data):
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    return struct.pack("<Q", len(head)) + head + data


def push(server, data, version=1, digest=NOWHERE, status=200, run="r1", epoch=0, headers=None, more=""):
    got, _, content = exchange("POST", f"{server.url}/v1/push-weights?run={run}&version={version}&epoch={epoch}{more}", data, {"X-Leasehold-Digest": digest} if headers is None else headers)
    assert got == status, (got, content[:300])
    return json.loads(content) if status == 200 else json.loads(content)["error"]


def digest_of(server, data):
    """The server computes it and says so when another one was announced."""
    return re.search(r"its weights have ([0-9a-f]{64})", push(server, data, status=422)["message"])[1]


def changed(header, data):
    """Other weights of the same shapes: the two halves of every tensor swapped."""
    out = bytearray(data)
    for name, tensor in header.items():
        if name != "__metadata__":
            begin, end = tensor["data_offsets"]
            middle = begin + (end - begin) // 4 * 2
            out[begin:end] = data[middle:end] + data[begin:middle]
    return safetensors(header, bytes(out))


def test_lying_files_are_422_and_the_old_weights_keep_decoding(alone):
    header, data = tensors(alone.model / "model.safetensors")
    before, answer = call("GET", alone.gen.url + "/v1/model")["loaded"], generate(alone.gen, GREEDY)["output_ids"]
    name = sorted(n for n in header if n != "__metadata__")[0]
    others = {k: v for k, v in header.items() if k != name}
    tensor = header[name]
    whole = safetensors(header, data)
    transposed = {**tensor, "shape": [*reversed(tensor["shape"])] if len(set(tensor["shape"])) > 1 else [1, *tensor["shape"]]}
    lies = [
        whole[:-1],
        whole[: len(whole) // 2],
        whole[:4],
        b"",
        whole + b"\0",
        struct.pack("<Q", 2**63) + whole[8:],
        struct.pack("<Q", len(whole)) + whole[8:],
        safetensors(others, data),
        safetensors({**others, name: transposed}, data),
        safetensors({**others, name: {**tensor, "dtype": "I64"}}, data),
        safetensors({**others, name: {**tensor, "data_offsets": [0, 2**62]}}, data),
        safetensors({**others, name: {**tensor, "data_offsets": [tensor["data_offsets"][1], tensor["data_offsets"][0]]}}, data),
        safetensors({**header, "bananas": tensor}, data),
        b"not safetensors at all",
    ]
    for lie in lies:
        assert push(alone.gen, lie, status=422)["message"]
    true_digest = hashlib.sha256(whole).hexdigest()  # of the file, not of the weights
    assert push(alone.gen, whole, digest=true_digest, status=422)["field"] == "digest"
    for headers in ({}, {"X-Leasehold-Digest": "abc"}, {"X-Leasehold-Digest": "g" * 64}):
        push(alone.gen, whole, headers=headers, status=422)
    push(alone.gen, whole, version=-1, status=422)
    push(alone.gen, whole, run="r" * 200, status=422)
    assert push(alone.gen, whole, more="&announced=perhaps", status=422)["field"] == "announced"
    assert call("GET", alone.gen.url + "/v1/model")["loaded"] == before
    assert generate(alone.gen, GREEDY)["output_ids"] == answer


def test_a_push_too_large_for_the_model_is_refused_unread(alone):
    with connect(alone.gen) as peer:
        peer.sendall(f"POST /v1/push-weights?run=r1&version=1 HTTP/1.1\r\nHost: x\r\nX-Leasehold-Digest: {NOWHERE}\r\nContent-Length: {1 << 30}\r\n\r\n".encode())
        assert b" 413 " in peer.recv(64)


def test_without_a_model_no_push_is_read(alone):
    lonely = alone.start("lonely", "generation-server", ["--coordinator", "http://127.0.0.1:9"])
    push(lonely, b"x", status=503)
    with connect(lonely) as peer:
        peer.sendall(f"POST /v1/push-weights?run=r1&version=1 HTTP/1.1\r\nHost: x\r\nContent-Length: {1 << 30}\r\n\r\n".encode())
        assert b" 503 " in peer.recv(64)
    assert exchange("GET", lonely.url + "/readyz")[0] == 503
    lonely.wait_log("serving; ready once a version has been pulled or pushed")
    lonely.stop(seconds=5)


def test_a_token_is_asked_for_before_the_body(alone):
    guarded = alone.server("guarded", alone.model, "--auth-token", "sesame", "--log-level", "error")
    with connect(guarded) as peer:
        peer.sendall(b"POST /v1/push-weights?run=r1&version=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n")
        assert b" 401 " in peer.recv(64)
    for wrong in ("", "sesam", "sesame ", "sesamesesame"):
        assert exchange("POST", guarded.url + "/v1/generate", GREEDY, {"Authorization": "Bearer " + wrong})[0] == 401
    assert exchange("POST", guarded.url + "/v1/generate", GREEDY, {"Authorization": "Bearer sesame"})[0] == 200
    guarded.stop(seconds=5)


def test_pushes_while_decoding_swap_between_tokens(alone):
    """Versions go by while long requests are decoded: every request is answered, its spans cover it and rise, and each version is activated whole."""
    other = alone.server("swap", alone.model, "--slots", 4, "--log-level", "warn")
    header, data = tensors(alone.model / "model.safetensors")
    files = [safetensors(header, data), changed(header, data)]
    names = [digest_of(other, file) for file in files]
    assert names[0] != names[1]
    answers, stop = [], threading.Event()

    def ask():
        while not stop.is_set():
            answers.append(generate(other, {"input_ids": list(b"1+1="), "sampling_params": {"max_new_tokens": 90, "n": 8, "temperature": 1, "ignore_eos": True}}))

    askers = [threading.Thread(target=ask) for _ in range(3)]
    for asker in askers:
        asker.start()
    version = 0
    while version < 12 or version % 2 or (version < 400 and not any(len(c["meta_info"]["version_spans"]) > 1 for a in list(answers) for c in a)):
        version += 1
        assert push(other, files[version % 2], version, names[version % 2])["digest"] == names[version % 2]
    push(other, files[0], 3, names[0], status=409)
    stop.set()
    for asker in askers:
        asker.join()
    assert call("GET", other.url + "/v1/model")["loaded"] == {"run": "r1", "version": version, "digest": names[0]}
    crossed = stale = 0
    for choice in (c for answer in answers for c in answer):
        meta = choice["meta_info"]
        spans = meta["version_spans"]
        assert meta["finish_reason"]["type"] == "length" and sum(s["count"] for s in spans) == 90
        assert [s["version"] for s in spans] == sorted({s["version"] for s in spans})
        assert meta["weight_version"] == spans[-1]["version"]
        assert meta["weight_version"] == 0 or meta["weights_digest"] == names[meta["weight_version"] % 2]
        crossed += len(spans) > 1
        assert "fresh" not in spans[0] and all(s.get("fresh") in (None, False) for s in spans)
        stale += sum("fresh" in s for s in spans)
    assert crossed > 0 and stale > 0
    pauses = buckets(other, "activation_pause_steps")
    assert 0 < pauses["+Inf"] <= version and pauses["1"] > pauses["+Inf"] / 2, pauses
    assert gauge(other, "recomputed_positions_total") == 0
    at_rest(other)
    other.stop(seconds=5)


def test_stopping_in_the_middle_of_everything(alone):
    victim = alone.server("victim", alone.model, "--slots", 1, "--drain-ms", 200, "--log-level", "error")
    peers = [connect(victim) for _ in range(8)]
    for peer in peers:
        peer.sendall(post_bytes("/v1/generate", LONG))
    half = connect(victim)
    half.sendall(b"POST /v1/push-weights?run=r1&version=1 HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\nxx")
    wait_until(lambda: call("GET", victim.url + "/v1/model")["samples_waiting"] > 1000)
    assert victim.stop(seconds=6) == 0
    for peer in [*peers, half]:
        peer.close()
