"""Who may do what: every route of openapi/ with every role, names, tokens that change, hosts that nobody may be made to call, and floods of registrations.

Real services, and sockets where a client would be too well behaved."""
import concurrent.futures
import contextlib
import hashlib
import http.client
import http.server
import json
import re
import socket
import sqlite3
import subprocess
import threading
import time
import urllib.parse

import pytest

from contract import contract
from harness import BIN, DATA, ROOT, Cluster, Standalone, call, exchange, grpo_config

ROLES = ("admin", "worker", "trainer", "viewer")
TOKENS = {role: f"{role}-token-of-the-tests" for role in ROLES}
OTHER_WORKER = "worker-token-of-another"
SERVICES = ("coordinator", "trainer-server", "generation-server", "rollout-agent")


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def digest_line(token):
    return "sha256:" + hashlib.sha256(token.encode()).hexdigest()


def write_tokens(folder, **lines):
    """A --token-dir: each role's lines.  Files are replaced, as Kubernetes and an editor do it."""
    folder.mkdir(parents=True, exist_ok=True)
    for role, text in lines.items():
        (folder / (role + ".new")).write_text(text + "\n")
        (folder / (role + ".new")).rename(folder / role)
    return folder


class Guarded(Cluster):
    """Each service has the tokens that it needs and no others: of those that it only judges it knows the digest."""

    def __init__(self, folder, model=DATA / "model", coordinator=(), trainer=()):
        digests = {role: digest_line(TOKENS[role]) for role in ROLES}
        self.tokens = write_tokens(folder / "t-coordinator", **{**digests, "worker": f"{digests['worker']} pool\n{digest_line(OTHER_WORKER)}", "trainer": TOKENS["trainer"]})
        self.trainer_tokens = write_tokens(folder / "t-trainer", **{**digests, "trainer": TOKENS["trainer"]})
        self.pool_tokens = write_tokens(folder / "t-pool", admin=digests["admin"], viewer=digests["viewer"], trainer=digests["trainer"], worker=TOKENS["worker"])
        super().__init__(
            folder / "cluster",
            model,
            coordinator=["--token-dir", self.tokens, *coordinator],
            trainer=["--token-dir", self.trainer_tokens, "--random-init", 1, "--threads", 1, *trainer],
        )

    def add_server(self, name, *args, bin_dir=None):
        return super().add_server(name, "--token-dir", self.pool_tokens, *args, bin_dir=bin_dir)


@pytest.fixture(scope="module")
def guarded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("roles")
    with Guarded(folder) as cluster:
        cluster.gen = cluster.add_server("gen-1", "--threads", 1)
        agent = ["--coordinator", cluster.coordinator.url, "--engine-url", "http://127.0.0.1:9", "--weights-dir", folder / "versions", "--token-dir", cluster.pool_tokens]
        cluster.agent = cluster.start("agent", "rollout-agent", [*agent, "--log-level", "error"])
        cluster.of = dict(zip(SERVICES, (cluster.coordinator, cluster.trainer, cluster.gen, cluster.agent)))
        yield cluster


@pytest.fixture(scope="module")
def free(tmp_path_factory):
    """A coordinator on loopback that asks for no token."""
    folder = tmp_path_factory.mktemp("free")
    with Standalone(folder) as cluster:
        cluster.database = folder / "coordinator.db"
        cluster.coordinator = cluster.start("coordinator", "coordinator", ["--db", cluster.database, "--data-dir", DATA, "--worker-ttl-ms", 60000, "--log-level", "error"])
        yield cluster


def registration(name, url="http://127.0.0.1:9", kind="generation", **more):
    return {"name": name, "kind": kind, "url": url, "slots": 4 if kind == "generation" else 0, "exactness": "invariant", **more}


def register(service, token, *args, **more):
    """Status, body."""
    status, _, body = exchange("POST", service.url + "/v1/workers", registration(*args, **more), bearer(token) if token else {})
    return status, json.loads(body)


def heartbeat(me, ready=False):
    return {"epoch": me["epoch"], "ready": ready, "draining": False, "loaded_digest": None, "slots_busy": 0, "busy_slot_us": 0, "tokens_sampled": 0, "leases": []}


# ---- roles ----


def operations():
    for service in SERVICES:
        for method, path, _, operation in contract(service).operations:
            yield pytest.param(service, method, re.sub(r"\{[^}]+\}", "x1", path), operation["x-roles"], id=f"{service} {method} {path}")


@pytest.mark.parametrize("service,method,path,roles", operations())
def test_every_route_is_for_its_roles(guarded, service, method, path, roles):
    url = guarded.of[service].url + path
    for role in (None, *ROLES):
        status, headers, body = exchange(method, url, b"" if method in ("POST", "PUT") else None, bearer(TOKENS[role]) if role else {})
        sentence = body.decode(errors="replace")
        if roles == ["open"] or role in roles:
            assert status != 401 and "a token of" not in sentence, (role, status, sentence)
        elif role is None:
            assert status == 401 and headers["WWW-Authenticate"] == "Bearer", (role, status, sentence)
        else:
            assert status == 403, (role, status, sentence)
            assert f"a token of role {', '.join(name for name in (*ROLES, 'push') if name in roles)} was expected" in sentence and f"one of role {role} came" in sentence


def test_only_health_and_the_page_are_open():
    """The page's files hold no data: what it shows it fetches with the token that it is given."""
    open_routes = {(service, path) for service in SERVICES for _, path, _, operation in contract(service).operations if operation["x-roles"] == ["open"]}
    paths = {path for _, path in open_routes}
    assert paths == {"/healthz", "/readyz", "/health", "/liveness", "/", "/page/{file}"}


def test_a_run_needs_no_more_than_each_services_own_token(guarded, base_model, tmp_path):
    with Guarded(tmp_path, model=base_model) as cluster:
        cluster.add_server("gen", "--threads", 1)
        admin = bearer(TOKENS["admin"])
        run = call("POST", cluster.coordinator.url + "/v1/runs", grpo_config(2, groups=4, samples=4), admin)["id"]
        viewer = bearer(TOKENS["viewer"])
        cluster.wait_until("the run ends", lambda: call("GET", f"{cluster.coordinator.url}/v1/runs/{run}", headers=viewer)["state"] == "completed", 120)
        metrics = call("GET", cluster.trainer.url + "/metrics", headers=viewer, raw=True).decode()
        assert float(re.search(r'pushes_total\{way="http"\} (\S+)', metrics)[1]) >= 1  # pushed, and not only fetched
        pushed = cluster.query("SELECT push_token FROM workers WHERE kind = 0 AND live = 1")
        assert len(pushed) == 1 and re.fullmatch("[0-9a-f]{64}", pushed[0][0])
        for service in (cluster.coordinator, cluster.trainer):
            for path in ("/v1/workers", "/v1/runs"):
                assert exchange("POST", service.url + path, b"{}", bearer(pushed[0][0]))[0] == 401


# ---- names ----


def test_a_name_belongs_to_the_token_that_took_it(guarded):
    mine, other = TOKENS["worker"], OTHER_WORKER
    status, first = register(guarded.coordinator, mine, "thing")
    assert status == 201
    beat = heartbeat(first)
    base = f"{guarded.coordinator.url}/v1/workers/{first['worker_id']}"
    status, refusal = register(guarded.coordinator, other, "thing")
    assert status == 403 and "belongs to another token" in refusal["error"]["message"]
    poll = {"epoch": first["epoch"], "slots_free": 1, "wait_ms": 0, "loaded_digest": None}
    for method, path, body in (("POST", "/heartbeat", beat), ("POST", "/leases", poll), ("DELETE", "", None)):
        assert exchange(method, base + path, body, bearer(other))[0] == 403
    assert exchange("POST", base + "/heartbeat", beat, bearer(mine))[0] == 200
    assert exchange("DELETE", base, headers=bearer(mine))[0] == 200
    assert register(guarded.coordinator, other, "thing")[0] == 403  # it is gone, its name is not free
    assert register(guarded.coordinator, mine, "thing")[0] == 201
    assert register(guarded.coordinator, TOKENS["admin"], "thing")[0] == 201
    owners = {row[0] for row in guarded.query("SELECT owner FROM workers WHERE name = 'thing'")}
    assert owners and all(len(owner) == 32 and mine.encode() not in owner for owner in owners)


def test_a_kind_needs_its_role(guarded):
    status, refusal = register(guarded.coordinator, TOKENS["worker"], "impostor", kind="trainer")
    assert status == 403 and "expected a token of role trainer to register a trainer worker" in refusal["error"]["message"]
    for kind in ("generation", "preprocess"):
        assert register(guarded.coordinator, TOKENS["trainer"], "impostor", kind=kind)[0] == 403


# ---- tokens that change ----


def test_tokens_change_without_a_restart(tmp_path):
    old, new = "worker-token-before", "worker-token-behind"
    tokens = write_tokens(tmp_path / "tokens", admin=TOKENS["admin"], worker=f"{old} pool", trainer=TOKENS["trainer"], viewer=TOKENS["viewer"])
    with Guarded(tmp_path, coordinator=["--token-dir", tokens]) as cluster:
        run = call("POST", cluster.coordinator.url + "/v1/runs", grpo_config(1), bearer(TOKENS["admin"]))["id"]
        assert register(cluster.coordinator, old, "gen")[0] == 201
        port = urllib.parse.urlsplit(cluster.coordinator.url).port
        kept = http.client.HTTPConnection("127.0.0.1", port, timeout=20)

        def ask():
            kept.request("GET", "/v1/runs", headers=bearer(TOKENS["viewer"]))
            answer = kept.getresponse()
            answer.read()
            return answer.status

        stream = socket.create_connection(("127.0.0.1", port), timeout=20)
        stream.sendall(f"GET /v1/runs/{run}/events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKENS['viewer']}\r\n\r\n".encode())
        assert b" 200 " in stream.recv(4096)
        assert ask() == 200
        write_tokens(tokens, worker=f"{new} pool\n{old} pool")
        cluster.wait_until("the new token is known", lambda: register(cluster.coordinator, new, "gen")[0] == 201, 20)
        write_tokens(tokens, worker=f"{new} pool", viewer="viewer-token-of-others")
        cluster.wait_until("the old one is not", lambda: register(cluster.coordinator, old, "gen")[0] == 401, 20)
        assert ask() == 401  # on the connection that it had
        while data := stream.recv(4096):  # what was opened with it ends
            assert b"HTTP/1.1 401" not in data
        (tokens / "admin").write_text("x\n")  # a mistake locks nobody out
        cluster.coordinator.wait_log("those from before are kept", 20)  # its own watcher looks, nobody has to ask
        assert call("GET", f"{cluster.coordinator.url}/v1/runs/{run}", headers=bearer(TOKENS["admin"]))["id"] == run


def test_tokens_are_replaced_in_the_middle_of_a_run(base_model, tmp_path):
    """By make-tokens, step by step: nobody is refused, no lease is lost, no run pauses."""
    tokens = tmp_path / "tokens"

    def make_tokens(*step):
        subprocess.run([ROOT / "deploy/security/make-tokens", tokens, *step], check=True)

    make_tokens()
    before = {role: (tokens / role).read_text().strip() for role in ROLES}
    with Cluster(tmp_path / "cluster", base_model, coordinator=["--token-dir", tokens / "coordinator"], trainer=["--token-dir", tokens / "trainer-server", "--threads", 1]) as cluster:
        cluster.add_server("gen", "--token-dir", tokens / "pool", "--threads", 1)
        admin, runs = bearer(before["admin"]), cluster.coordinator.url + "/v1/runs"
        run = call("POST", runs, grpo_config(10000, groups=4, samples=4), admin)["id"]

        def status():
            return call("GET", f"{runs}/{run}", headers=admin)

        cluster.wait_until("a round is over", lambda: status()["history"])
        for role in ("worker", "trainer"):
            for step in ("add", "show", "end"):
                make_tokens(step, role)
                time.sleep(2)  # they are read again within one
        round_ = status()["round"]
        cluster.wait_until("rounds go on", lambda: status()["round"] > round_ + 2)
        after = status()
        assert after["state"] == "running" and after["totals"]["leases_lost"] == 0, after
        for role in ("worker", "trainer"):
            for service in (cluster.coordinator, cluster.trainer):
                assert exchange("GET", service.url + "/metrics", headers=bearer(before[role]))[0] == 401
                assert exchange("GET", service.url + "/metrics", headers=bearer((tokens / role).read_text().strip()))[0] == 403
        for service in cluster.services:
            assert not re.search(r"status 40[13]", service.log_text()), service.log_text()
        call("POST", f"{runs}/{run}/stop", headers=admin)


def test_without_a_token_nobody_listens_to_a_network(tmp_path):
    for program, flags in (("coordinator", ["--db", tmp_path / "db"]), ("generation-server", ["--coordinator", "http://127.0.0.1:9"]), ("trainer-server", ["--model", DATA / "model"])):
        for bind in ("0.0.0.0", "::"):
            ended = subprocess.run([BIN / program, "--bind", bind, "--port", "0", *map(str, flags)], capture_output=True, text=True, timeout=20, check=False)
            assert ended.returncode == 1 and "--insecure" in ended.stderr and "--token-dir" in ended.stderr, ended.stderr
    with Standalone(tmp_path) as cluster:
        for name, more in (("told", ["--insecure"]), ("asking", ["--auth-token", "sesame"])):
            one = cluster.start(name, "coordinator", ["--db", tmp_path / name, "--bind", "0.0.0.0", *more])
            assert exchange("GET", one.url + "/readyz")[0] == 200
            assert exchange("GET", one.url + "/v1/runs")[0] == (200 if name == "told" else 401)


# ---- registrations ----


def pages(database):
    with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=10)) as db:
        return db.execute("PRAGMA page_count").fetchone()[0] - db.execute("PRAGMA freelist_count").fetchone()[0]


def flood(port, names, source="127.0.0.1", connections=4):
    """Statuses of registrations under these names, over a few connections."""

    def some(mine):
        link = http.client.HTTPConnection("127.0.0.1", port, timeout=30, source_address=(source, 0))
        statuses = []
        for name in mine:
            link.request("POST", "/v1/workers", json.dumps(registration(name, f"http://{source}:9")))
            answer = link.getresponse()
            answer.read()
            assert answer.status in (201, 429), answer.status
            assert answer.status == 201 or answer.headers["Retry-After"]
            statuses.append(answer.status)
        link.close()
        return statuses

    with concurrent.futures.ThreadPoolExecutor(connections) as pool:
        return [status for part in pool.map(some, [names[i::connections] for i in range(connections)]) for status in part]


def test_a_flood_of_registrations_fills_neither_the_pool_nor_the_database(free):
    port = urllib.parse.urlsplit(free.coordinator.url).port
    assert flood(port, ["honest"]) == [201]
    begun = time.monotonic()
    statuses = flood(port, [f"flood-{i}" for i in range(1600)])
    seconds = time.monotonic() - begun
    assert statuses.count(201) <= 128 + 32 * (seconds + 1)
    assert flood(port, ["honest"]) == [201]  # a name that it knows
    assert flood(port, ["stranger"], "127.0.0.2") == [201]  # another address
    before = pages(free.database)
    statuses = flood(port, ["honest"] * 4000)
    assert 1 <= statuses.count(201) <= 17 + (time.monotonic() - begun)
    assert pages(free.database) <= before + 2
    assert free.query("SELECT count(*) FROM workers WHERE name = 'honest'") == [(1,)]


def test_a_place_is_kept_for_other_addresses(tmp_path):
    with Standalone(tmp_path) as cluster:
        one = cluster.start("coordinator", "coordinator", ["--db", tmp_path / "db", "--workers-max", 64, "--worker-ttl-ms", 60000, "--log-level", "error"])
        port = urllib.parse.urlsplit(one.url).port
        assert flood(port, [f"a-{i}" for i in range(100)]).count(201) == 56
        assert flood(port, ["b"], "127.0.0.2") == [201]


# ---- hosts ----


@pytest.mark.parametrize(
    "url", ["http://169.254.169.254/latest", "http://10.0.0.7:8100", "http://localhost.example:80", "http://127.0.0.2:8100", "http://127.0.0.1@10.0.0.7", "http://[::1]:8100", "http://10.0.0.7#@127.0.0.1", "gopher://127.0.0.1"]
)
def test_a_worker_cannot_register_anothers_address(free, url):
    status, refusal = register(free.coordinator, None, "sly", url)
    assert status == 422 and refusal["error"]["field"] == "url"


@pytest.mark.parametrize("url", ["http://127.0.0.1:8100", "http://127.1:8100", "http://localhost:8100"])
def test_a_worker_registers_its_own_address_however_it_writes_it(free, url):
    assert register(free.coordinator, None, "plain-" + hashlib.sha256(url.encode()).hexdigest()[:6], url)[0] == 201


class Listener:
    """Notes the head of what comes, and answers with these bytes."""

    def __init__(self, answer, address="127.0.0.1"):
        listener = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                listener.heads.append((self.path, dict(self.headers)))
                self.rfile.read(int(self.headers.get("Content-Length", 0)))
                self.wfile.write(answer)
                self.close_connection = True

            do_GET = do_POST

            def log_message(self, *_):
                pass

        self.heads = []
        self.server = http.server.ThreadingHTTPServer((address, 0), Handler)
        self.url = f"http://{address}:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def test_what_the_trainer_shows_is_good_for_that_server_alone(guarded, base_model, tmp_path):
    """A worker that has the pool's token and lies about nothing but its weights sees what comes with a push: its own token, and no redirect is followed."""
    with Listener(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}") as elsewhere:
        redirect = f"HTTP/1.1 307 Temporary Redirect\r\nLocation: {elsewhere.url}/v1/push-weights\r\nContent-Length: 0\r\n\r\n".encode()
        with Listener(redirect) as spy, Guarded(tmp_path, model=base_model) as cluster:
            cluster.add_server("gen", "--threads", 1)
            status, me = register(cluster.coordinator, OTHER_WORKER, "spy", spy.url, push_token="the-spys-own")
            assert status == 201
            beat = heartbeat(me, ready=True)
            stop = threading.Event()

            def live():
                while not stop.wait(0.5):
                    exchange("POST", f"{cluster.coordinator.url}/v1/workers/{me['worker_id']}/heartbeat", beat, bearer(OTHER_WORKER))

            exchange("POST", f"{cluster.coordinator.url}/v1/workers/{me['worker_id']}/heartbeat", beat, bearer(OTHER_WORKER))
            life = threading.Thread(target=live)
            life.start()
            try:
                call("POST", cluster.coordinator.url + "/v1/runs", {**grpo_config(1, groups=2, samples=2), "stage_timeout_ms": 3000}, bearer(TOKENS["admin"]))
                cluster.wait_until("a push", lambda: spy.heads, 60)
            finally:
                stop.set()
                life.join()
        assert {path.partition("?")[0] for path, _ in spy.heads} == {"/v1/push-weights"}
        assert {head["Authorization"] for _, head in spy.heads} == {"Bearer the-spys-own"}
        assert not elsewhere.heads


def test_a_trainer_sends_weights_to_allowed_hosts_only(tmp_path, base_model):
    """The coordinator is not the last to look: what it names is judged by the address that the connection would go to."""
    with Listener(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", "127.0.0.2") as spy:
        port = urllib.parse.urlsplit(spy.url).port
        trainer = ["--allow-hosts", "10.99.0.0/16", "--threads", 1]  # and 127.0.0.1, the coordinator's; 127.0.0.2 is neither
        with Cluster(tmp_path, model=base_model, trainer=trainer, coordinator=["--allow-hosts", "127.0.0.0/8"]) as cluster:
            cluster.add_server("gen", "--threads", 1)
            status, me = register(cluster.coordinator, None, "far", f"http://127.0.0.2:{port}")
            assert status == 201
            beat = heartbeat(me, ready=True)
            exchange("POST", f"{cluster.coordinator.url}/v1/workers/{me['worker_id']}/heartbeat", beat)
            call("POST", cluster.coordinator.url + "/v1/runs", {**grpo_config(1, groups=2, samples=2), "stage_timeout_ms": 3000})
            cluster.trainer.wait_log(rf"127\.0\.0\.2:{port}.*this service may not call that host", 60)
        assert not spy.heads


# ---- pages of others, and heads of two meanings ----


def raw(service, text):
    """All that comes back on one connection until the service ends it, which it must."""
    url = urllib.parse.urlsplit(service.url)
    with socket.create_connection((url.hostname, url.port), timeout=20) as link:
        link.sendall(text if isinstance(text, bytes) else text.encode())
        answer = b""
        while data := link.recv(65536):
            answer += data
        return answer


def status_of(answer):
    return int(answer.split(b" ", 2)[1])


RUN = json.dumps({"nonsense": 1})


def post(headers, body=RUN):
    return f"POST /v1/runs HTTP/1.1\r\n{headers}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n{body}"


@pytest.mark.parametrize(
    "headers,status",
    [
        ("Host: 127.0.0.1:8000\r\nContent-Type: application/x-www-form-urlencoded\r\n", 422),  # curl -d
        ("Host: 127.0.0.1:8000\r\nOrigin: http://127.0.0.1:8000\r\nSec-Fetch-Site: same-origin\r\n", 422),  # the page
        ("Host: leasehold.example\r\n", 403),  # DNS rebinding
        ("Host: leasehold.example:8000\r\nOrigin: http://leasehold.example:8000\r\nSec-Fetch-Site: same-origin\r\n", 403),
        ("Host: localhost:8000\r\n", 422),
        ("Host: coordinator\r\n", 422),
        ("Host: [::1]:8000\r\n", 422),
        ("Host: 127.0.0.1:8000\r\nOrigin: http://evil.example\r\nContent-Type: text/plain\r\n", 403),
        ("Host: 127.0.0.1:8000\r\nOrigin: http://127.0.0.1:9000\r\nContent-Type: text/plain\r\n", 403),
        ("Host: 127.0.0.1:8000\r\nOrigin: null\r\n", 403),
        ("Host: 127.0.0.1:8000\r\nSec-Fetch-Site: cross-site\r\n", 403),
        ("Host: 127.0.0.1:8000\r\nSec-Fetch-Site: same-site\r\n", 403),
        ("Host: 127.0.0.1:8000\r\nSec-Fetch-Site: none\r\n", 422),
    ],
)
def test_a_page_of_others_changes_nothing(free, headers, status):
    assert status_of(raw(free.coordinator, post(headers))) == status


def test_a_page_of_others_may_link_here_and_read_nothing(free):
    answer = raw(free.coordinator, "GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Site: cross-site\r\nConnection: close\r\n\r\n")
    assert status_of(answer) == 200 and b"access-control-allow" not in answer.lower()
    assert status_of(raw(free.coordinator, "GET /v1/runs HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n")) == 403


SMUGGLED = "GET /v1/runs HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize(
    "text",
    [
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: {2 + len(SMUGGLED)}\r\n\r\n{{}}{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{{}}{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n0\r\n\r\n{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 2, 2\r\n\r\n{{}}{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: +2\r\n\r\n{{}}{SMUGGLED}",
        f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length : 2\r\n\r\n{{}}{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX-A: b\0c\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\nHost: x\r\nX-A\0B: c\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\nHost: x\0y\r\n\r\n{SMUGGLED}",
        f"GET /v1\0/runs HTTP/1.1\r\nHost: x\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs\r\nHost: x\r\n\r\n{SMUGGLED}",
        f"GET\r\nHost: x\r\n\r\n{SMUGGLED}",
        f" GET /v1/runs HTTP/1.1\r\nHost: x\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\nHost: x\r\n no: header\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\nHost: x/y\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\nHost: x\r\nnot a header\r\n\r\n{SMUGGLED}",
        f"GET /v1/runs HTTP/1.1\r\nHost x\r\n\r\n{SMUGGLED}",
    ],
    ids=lambda text: repr(text.removesuffix(SMUGGLED))[:100],
)
def test_a_head_of_two_meanings_is_refused_and_ends_the_connection(free, text):
    """What stood behind it is not taken for a request.  (libmicrohttpd sends the head of its own refusals twice, and none to a request line without a target.)"""
    statuses = re.findall(rb"^HTTP/1\.1 (\d+)", raw(free.coordinator, text), re.M)
    assert set(statuses) == {b"400"} or (text.startswith(("GET\r", " ")) and not statuses), statuses


def test_heads_that_are_only_unusual_are_answered(free):
    port = urllib.parse.urlsplit(free.coordinator.url).port
    for text in (
        "GET /v1/runs?limit=%31 HTTP/1.1\r\nhost:x\r\nX-Empty:\r\nX-Blanks:  a b  \r\nCookie: a=b; c=d\r\nConnection: close\r\n\r\n",
        "\r\nGET /v1/runs HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
        "GET /v1/runs HTTP/1.1\nHost: x\nConnection: close\n\n",
        "GET /v1/runs HTTP/1.0\r\n\r\n",
        "POST /v1/workers HTTP/1.1\r\nHost: x\r\nConnection: close\r\nTransfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    ):
        assert status_of(raw(free.coordinator, text)) == (422 if text.startswith("POST") else 200), text
    kept = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for size in (0, 1, 4000, 30):  # heads of one connection, one behind the other
        kept.request("GET", "/v1/runs?limit=1", headers={"X-Filler": "x" * size})
        answer = kept.getresponse()
        assert answer.read() and answer.status == 200
    kept.close()
