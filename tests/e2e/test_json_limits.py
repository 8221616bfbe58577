"""JSON that costs more than it weighs: the memory of its trees stays within the service's budget whatever their shape, memory that is refused is 503, and the
object that the path names is looked up before a body is read.  And byte 0, which is a character like any other in texts."""
import json
import pathlib
import re
import resource
import socket
from concurrent.futures import ThreadPoolExecutor

import pytest

from harness import DATA, Cluster, call, exchange

MIB = 1 << 20
BODY = 15 * MIB
BUDGET = 1024 * MIB  # LIMIT_HTTP_BODIES_BYTES

SHAPES = {
    "objects": b"[" + b"{}," * (BODY // 3) + b"0]",
    "arrays": b"[" + b"[]," * (BODY // 3) + b"0]",
    "nested objects": b"[" + b'{"a":{"a":{"a":{}}}},' * (BODY // 63) + b"0]",
    "numbers": b"[" + b"0," * (BODY // 4) + b"0]",
    "short keys": b"{" + b",".join(b'"%x":0' % i for i in range(BODY // 30)) + b"}",
    "empty strings": b"[" + b'"",' * (BODY // 9) + b"0]",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("json"), trainer=["--random-init", 1]) as made:
        yield made


def status_bytes(service, key):
    return int(re.search(rf"{key}:\s+(\d+)", pathlib.Path(f"/proc/{service.process.pid}/status").read_text())[1]) << 10


def forget_peak(service):
    pathlib.Path(f"/proc/{service.process.pid}/clear_refs").write_text("5")
    return status_bytes(service, "VmRSS")


def post(url, body):
    """The status; None where the service cut the connection because it had answered without reading everything."""
    try:
        return exchange("POST", url, body)[0]
    except OSError:
        return None


def test_node_heavy_bodies_together_stay_within_the_budget(cluster):
    """Each of these, parsed, takes between 100 MiB and 1.3 GiB; four come at once.  What was charged for them is given back: the last one comes alone and fits."""
    url = cluster.trainer.url + "/v1/submit-batch"
    before = forget_peak(cluster.trainer)
    for name, body in SHAPES.items():
        with ThreadPoolExecutor(4) as pool:
            statuses = list(pool.map(lambda _: post(url, body), range(4)))
        assert set(statuses) <= {413, 422, 429}, (name, statuses)
        assert call("GET", cluster.trainer.url + "/healthz")["status"] == "ok"
    cluster.wait_until("room for one", lambda: post(url, SHAPES["arrays"]) == 422)
    peak = status_bytes(cluster.trainer, "VmHWM") - before
    print(f"peak beside {before // MIB} MiB: {peak // MIB} MiB")
    assert peak <= BUDGET + 64 * MIB


def test_too_many_nodes_are_413_and_the_sentence_says_how_many(cluster):
    """An announcement carries no arrays of tokens, so a million values and members are more than it can mean."""
    got, _, content = exchange("POST", cluster.coordinator.url + "/v1/versions", SHAPES["objects"])
    assert got == 413
    assert re.search(r"at most 1048576 values and members, got 52428\d\d", json.loads(content)["error"]["message"])


def test_memory_that_is_refused_is_503_and_no_fault_of_the_text(cluster):
    server = cluster.start("tight", "trainer-server", ["--coordinator", cluster.coordinator.url, "--model", DATA / "model", "--random-init", 1, "--state-dir", cluster.folder / "tight", "--name", "tight"])
    body = b'{"groups":[' + b"0," * (4 * MIB) + b"0]}"  # 8 MiB of text, 256 MiB of tree
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (status_bytes(server, "VmSize") + 128 * MIB, resource.RLIM_INFINITY))
    got, headers, content = exchange("POST", server.url + "/v1/submit-batch", body)
    error = json.loads(content)["error"]
    assert got == 503 and error["code"] == "no_memory" and headers["Retry-After"], (got, error)
    resource.prlimit(server.process.pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert exchange("POST", server.url + "/v1/submit-batch", body)[0] == 422
    server.kill()
    cluster.services.remove(server)


def raw(service, head, body=b""):
    """What is answered to a head and as much of the body as the service takes."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=30) as peer:
        peer.sendall(head)
        try:
            peer.sendall(body)
        except OSError:
            pass
        return peer.recv(4096)


def test_a_result_of_an_unknown_lease_is_refused_before_its_body_is_parsed(cluster):
    coordinator = cluster.coordinator
    before = forget_peak(coordinator)
    for body in (b"?" * BODY, SHAPES["objects"]):
        answer = raw(coordinator, b"PUT /v1/leases/r1.0.0.0-3/result HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body), body)
        assert answer.startswith(b"HTTP/1.1 404") and b"there is no lease 'r1.0.0.0-3'" in answer, answer
    assert status_bytes(coordinator, "VmHWM") - before < 8 * MIB
    got, _, content = exchange("PUT", coordinator.url + "/v1/leases/r1.0.0.0-3/result", b"garbage")
    assert got == 404 and json.loads(content)["error"]["field"] == "id"


@pytest.mark.parametrize("worker", ["w99", "99", "w", "w01", "r1"])
@pytest.mark.parametrize("what", ["heartbeat", "leases"])
def test_what_an_unknown_worker_posts_is_refused_before_it_is_parsed(cluster, worker, what):
    got, _, content = exchange("POST", f"{cluster.coordinator.url}/v1/workers/{worker}/{what}", b"garbage")
    assert got == 404 and json.loads(content)["error"]["field"] == "id"


def test_a_worker_that_is_known_is_told_what_is_wrong_with_its_message(cluster):
    me = call("POST", cluster.coordinator.url + "/v1/workers", {"name": "x", "kind": "generation", "url": "http://127.0.0.1:9", "slots": 4, "exactness": "invariant"})
    for what in ("heartbeat", "leases"):
        assert exchange("POST", f"{cluster.coordinator.url}/v1/workers/{me['worker_id']}/{what}", b"garbage")[0] == 422


# --- byte 0 ---


@pytest.fixture(scope="module")
def server(cluster, base_model):
    return cluster.start("plain", "generation-server", ["--model", base_model, "--slots", 4, "--context-max", 96])


def test_nul_in_a_text_is_tokenized_like_any_other_character(server):
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    texts = call("POST", server.url + "/v1/generate", {"text": "1\0+2\0=", "sampling_params": sampling})
    ids = call("POST", server.url + "/v1/generate", {"input_ids": list(b"1\0+2\0="), "sampling_params": sampling})
    assert texts["output_ids"] == ids["output_ids"]
    assert texts["meta_info"]["prompt_tokens"] == ids["meta_info"]["prompt_tokens"] == 6
    echoed = call("POST", server.url + "/v1/completions", {"prompt": "1\0+2\0=", "max_tokens": 4, "echo": True})
    assert echoed["usage"]["prompt_tokens"] == 6 and echoed["choices"][0]["text"].startswith("1\0+2\0=")


def test_nul_in_an_answer_does_not_end_its_text(server):
    wild = {"input_ids": [48], "sampling_params": {"max_new_tokens": 64, "temperature": 100, "n": 32, "ignore_eos": True, "seed": 1}}
    seen = 0
    for choice in call("POST", server.url + "/v1/generate", wild):
        zeros = choice["output_ids"].count(0)
        assert choice["text"].count("\0") == zeros
        seen += zeros
    assert seen > 0
    stopped = call("POST", server.url + "/v1/completions", {"prompt": "0", "max_tokens": 64, "temperature": 100, "n": 32, "seed": 1, "stop": "\0", "return_token_ids": True})
    ends = [choice for choice in stopped["choices"] if 0 in choice["token_ids"]]
    assert ends and all("\0" not in choice["text"] and choice["token_ids"].index(0) == len(choice["token_ids"]) - 1 for choice in ends)


def test_nul_in_a_name_is_refused_by_its_field(cluster, server):
    register = {"name": "x\0y", "kind": "generation", "url": "http://127.0.0.1:9", "slots": 4, "exactness": "invariant"}
    for body, field in ((register, "name"), ({**register, "name": "x", "url": "http://127.0.0.1:9\0/"}, "url"), ({**register, "name": "x", "kind": "generation\0"}, "kind")):
        got, _, content = exchange("POST", cluster.coordinator.url + "/v1/workers", body)
        error = json.loads(content)["error"]
        assert got == 422 and error["field"] == field and "NUL" in error["message"], error
    got, _, content = exchange("POST", server.url + "/v1/completions", {"prompt": "0", "model": "a\0b"})
    assert got == 400 and json.loads(content)["error"]["param"] == "model"
    assert exchange("POST", server.url + "/v1/generate", b'{"te\\u0000xt":"0"}')[0] == 422
