"""Health under load, timed: slow handlers on every route, thousands of peers that trickle, thousands of long polls from one address.

The bars are for two quiet cores, so these tests are not part of `make test`: they are marked `load` and run by `make load` (and `make test-all`).  What each
rule does is shown without a clock in tests/unit/http/test_connections.c and test_offload.c.
"""
import json
import multiprocessing
import resource
import selectors
import socket
import threading
import time

import pytest

from harness import DATA, Cluster, call, grpo_config, warmup_config

pytestmark = pytest.mark.load

HEALTH_P99_MS = 100
CLIENTS = 20  # ten for each of a service's two HTTP threads
SECONDS = 4
PROBE_EVERY = 0.005
PROBE_TIMEOUT = 2.0
TRICKLERS = 4200
POLLS = 5000


def need_files(count):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < count:
        pytest.skip(f"{count} open files are needed by the test and by the service, and the hard limit of this process is {hard}")
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def head(method, path, body=None, more=""):
    length = "" if body is None else f"Content-Length: {len(body)}\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: t\r\n{length}{more}\r\n".encode()


def answer_to(sock, request):
    """(status, body) of one exchange; the connection is kept."""
    sock.sendall(request)
    got = bytearray()
    while (end := got.find(b"\r\n\r\n")) < 0:
        if not (piece := sock.recv(65536)):
            raise ConnectionError("closed in an answer's head")
        got += piece
    lines = bytes(got[:end]).decode().split("\r\n")
    length = next(int(line.split(":")[1]) for line in lines if line.lower().startswith("content-length:"))
    left = length - (len(got) - end - 4)
    sink = bytearray(1 << 20)
    while left > 0:
        if not (n := sock.recv_into(sink)):
            raise ConnectionError("closed in an answer's body")
        left -= n
    return int(lines[0].split()[1]), bytes(got[end + 4 :])


def ask_for_ever(port, request, stop, answered):
    sock = None
    while not stop.is_set():
        try:
            sock = sock or socket.create_connection(("127.0.0.1", port), timeout=60)
            answer_to(sock, request)
            answered.value += 1
        except OSError:
            if sock:
                sock.close()
            sock = None
            time.sleep(0.01)


def ask_with_all(port, request, stop, answered):
    threads = [threading.Thread(target=ask_for_ever, args=(port, request, stop, answered), daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    stop.wait()


def trickle_with_all(port, count, stop, open_now):
    """Keeps `count` sockets open, each with half a head, and opens a new one wherever the service has closed one."""
    need_files(count + 100)
    selector, born = selectors.DefaultSelector(), 0
    while not stop.is_set():
        while len(selector.get_map()) < count and not stop.is_set() and born < 50:
            sock = socket.socket()
            sock.settimeout(1)
            try:
                sock.connect(("127.0.0.1", port))
                sock.sendall(b"GET /healthz HTTP/1.1\r\nHost: ")
                selector.register(sock, selectors.EVENT_READ)
            except OSError:
                sock.close()
            born += 1
        born = 0
        open_now.value = len(selector.get_map())
        for key, _ in selector.select(0.01):
            selector.unregister(key.fileobj)
            key.fileobj.close()


def probe(port, seconds):
    """Milliseconds that each /healthz took, on a connection of its own as a kubelet's; PROBE_TIMEOUT where no answer came."""
    took, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        begin = time.monotonic()
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=PROBE_TIMEOUT) as sock:
                status, _ = answer_to(sock, head("GET", "/healthz"))
            ms = 1000 * (time.monotonic() - begin) if status == 200 else 1000 * PROBE_TIMEOUT
        except OSError:
            ms = 1000 * PROBE_TIMEOUT
        took.append(ms)
        time.sleep(PROBE_EVERY)
    return sorted(took)


def p99(took):
    return took[min(len(took) - 1, int(len(took) * 0.99))]


def under(load, *args):
    """Runs `load` in a process of its own: (stop, its counter)."""
    stop, counter = multiprocessing.Event(), multiprocessing.Value("q", 0, lock=False)
    process = multiprocessing.Process(target=load, args=(*args, stop, counter), daemon=True)
    process.start()
    return process, stop, counter


def end(process, stop):
    stop.set()
    process.join(10)
    process.kill()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """With a history that is worth reading: 200 rounds of a warm-up, then some that sampled."""
    with Cluster(tmp_path_factory.mktemp("load"), trainer=["--random-init", 1, "--threads", 2]) as cluster:
        cluster.server = cluster.add_server("gen-1", "--slots", 32)
        cluster.wait(cluster.create_run(warmup_config(200)))
        cluster.wait(cluster.create_run(grpo_config(6, groups=32, samples=8)))
        yield cluster


def numbers(count):
    return "[" + ",".join(["1"] * count) + "]"


def routes():
    """(service, method, path, body): one for each handler that is not small, and the largest bodies that are read at all."""
    huge = ('{"a":' + numbers(2_000_000) + "}").encode()  # 4 MB of JSON, refused when it has been parsed
    text = json.dumps({"text": "1+2=" * 10_000, "sampling_params": {"max_new_tokens": 1}}).encode()
    yield "coordinator", "GET", "/v1/runs", None
    yield "coordinator", "GET", "/v1/runs/r1", None
    yield "coordinator", "GET", "/v1/runs/r1/rounds?limit=10000", None
    yield "coordinator", "GET", "/v1/runs/r2/timeline", None
    yield "coordinator", "GET", "/v1/runs/r2/rollouts?limit=1000", None
    yield "coordinator", "GET", "/v1/workers?all=1", None
    yield "coordinator", "GET", "/metrics", None
    yield "coordinator", "PUT", "/v1/leases/r2.0.0.0-1/result", huge
    yield "coordinator", "POST", "/v1/versions", huge
    yield "coordinator", "POST", "/v1/workers/w1/heartbeat", b"{}"
    yield "trainer", "GET", "/v1/model", None
    yield "trainer", "GET", "/v1/model/files/tokenizer.json", None
    yield "trainer", "GET", "/v1/weights/6?run=r2", None
    yield "trainer", "POST", "/v1/submit-batch", huge
    yield "trainer", "POST", "/v1/runs", huge
    yield "server", "GET", "/v1/model", None
    yield "server", "GET", "/metrics", None
    yield "server", "POST", "/v1/generate", text
    yield "server", "POST", "/v1/completions", huge


@pytest.mark.parametrize("service,method,path,body", routes(), ids=lambda value: value if isinstance(value, str) else "")
def test_health_is_quick_beside_ten_clients_per_thread(cluster, service, method, path, body, record_property):
    port = getattr(cluster, service).port
    quiet = probe(port, 1)
    process, stop, answered = under(ask_with_all, port, head(method, path, body) + (body or b""))
    try:
        time.sleep(0.5)
        took = probe(port, SECONDS)
    finally:
        end(process, stop)
    print(f"{service} {method} {path}: {answered.value} answers; /healthz p50 {took[len(took) // 2]:.1f} p99 {p99(took):.1f} max {took[-1]:.1f} ms, quiet p99 {p99(quiet):.1f} ms")
    record_property("p99_ms", p99(took))
    assert answered.value > 0
    assert p99(took) <= HEALTH_P99_MS


@pytest.mark.parametrize("service", ["coordinator", "trainer", "server"])
def test_health_is_quick_beside_thousands_that_trickle(cluster, service):
    need_files(TRICKLERS + 500)
    port = getattr(cluster, service).port
    process, stop, held = under(trickle_with_all, port, TRICKLERS)
    try:
        time.sleep(3)
        took = probe(port, 8)
    finally:
        end(process, stop)
    print(f"{service}: {held.value} trickling; /healthz p50 {took[len(took) // 2]:.1f} p99 {p99(took):.1f} max {took[-1]:.1f} ms")
    assert p99(took) <= HEALTH_P99_MS


def test_one_address_may_have_thousands_of_long_polls(tmp_path):
    need_files(POLLS + 500)
    with Cluster(tmp_path, coordinator=["--connections-max", POLLS + 100], trainer=["--random-init", 1]) as cluster:
        me = call("POST", cluster.coordinator.url + "/v1/workers", {"name": "g", "kind": "generation", "url": "http://127.0.0.1:9", "slots": 4, "exactness": "invariant"})
        ask = json.dumps({"epoch": me["epoch"], "slots_free": 1, "wait_ms": 60000}).encode()
        request = head("POST", f"/v1/workers/{me['worker_id']}/leases", ask) + ask
        polls = []
        for _ in range(POLLS):
            sock = socket.create_connection(("127.0.0.1", cluster.coordinator.port), timeout=5)
            sock.sendall(request)
            sock.setblocking(False)
            polls.append(sock)
        deadline = time.monotonic() + 20
        while (waiting := cluster.coordinator.metric("leasehold_waiting_polls")) < POLLS and time.monotonic() < deadline:
            time.sleep(0.1)
        took = probe(cluster.coordinator.port, 3)
        print(f"{waiting:.0f} polls wait; /healthz p50 {took[len(took) // 2]:.1f} p99 {p99(took):.1f} ms")
        assert waiting == POLLS
        assert p99(took) <= HEALTH_P99_MS
        for sock in polls:
            with pytest.raises(BlockingIOError):  # neither answered nor closed
                sock.recv(1)
            sock.close()
