"""A peer that lies: a TCP server whose answers, byte by byte, are the test's own.

`Peer(honest, lies)` answers what `honest(method, path, body)` returns, except on the paths that begin with a key of `lies`: there it plays that lie.
`heal()` makes it honest altogether.  `Proxy(lies)` stands before a real service and lies a given number of times.  Standard library only; every thread
ends with `close()`.
"""
import http.client
import json
import re
import socket
import threading
import urllib.parse

DRIP_SECONDS = 0.1
JSON_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


def whole(body, status="200 OK", kind="application/json", more=""):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(data)}\r\n{more}\r\n".encode() + data


def says(data):
    """Sends these bytes and hangs up."""
    return lambda link: link.send(data)


def and_then_nothing(data):
    """Sends these bytes and keeps the connection open."""

    def lie(link):
        link.send(data)
        link.wait()

    return lie


def again_and_again(data, more, seconds=0.0):
    def lie(link):
        link.send(data)
        while link.send(more) and not link.wait(seconds):
            pass

    return lie


# name -> (how it lies, what the service's sentence about it holds)
LIES = {
    "closes_at_once": (lambda link: None, "Empty reply"),
    "never_answers": (and_then_nothing(b""), "expected"),
    "half_a_header": (and_then_nothing(b"HTTP/1.1 200 OK\r\nContent-Le"), "expected"),
    "half_a_body": (and_then_nothing(JSON_HEAD + b'Content-Length: 1000\r\n\r\n{"half":'), "expected"),
    "ten_bytes_a_second": (again_and_again(JSON_HEAD + b"Content-Length: 100000\r\n\r\n", b" ", DRIP_SECONDS), "expected"),
    "shorter_than_announced": (says(JSON_HEAD + b"Content-Length: 1000\r\n\r\n{}"), "transfer closed"),
    "longer_than_announced": (says(JSON_HEAD + b"Content-Length: 2\r\n\r\n{}{}{}{}"), "expected this field"),
    "garbage": (says(b"\x00\xff\xfe garbage \r\n\r\n\x00"), "HTTP/0.9"),
    "a_huge_body": (and_then_nothing(JSON_HEAD + b"Content-Length: 1099511627776\r\n\r\n"), "at most"),
    "an_endless_header": (again_and_again(b"HTTP/1.1 200 OK\r\n", (b"X-Filler: " + b"x" * 1000 + b"\r\n") * 64), "header|Header"),
    "no_json": (says(whole(b"<html>it works</html>", kind="text/html")), "well-formed JSON"),
    "deep_json": (says(whole(b"[" * 100000)), "nested at most"),
    "duplicate_keys": (says(whole(b'{"epoch":1,"epoch":2}')), "duplicate"),
    "wrong_types": (says(whole({"worker_id": 1, "epoch": "x", "lost": 7, "current": [], "vocab_size": "many", "model_type": 3})), "expected a"),
    "an_error_without_a_body": (says(b"HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), "status 500"),
}


class Link:
    """A connection whose request has been read, and will be answered with a lie."""

    def __init__(self, peer, connection, request):
        self.peer, self.connection, self.request = peer, connection, request

    def honest_answer(self):
        """(status, bytes, type, headers) as an honest peer would have given it; whatever the request asks for has been done then."""
        return self.peer.honest(*self.request)

    def send(self, data):
        try:
            self.connection.sendall(data)
            return not self.peer.closing.is_set()
        except OSError:
            return False

    def wait(self, seconds=60.0):
        """True when there is nobody to wait for any more."""
        if self.peer.closing.wait(0 if seconds > DRIP_SECONDS else seconds):
            return True
        if seconds <= DRIP_SECONDS:
            return False
        self.connection.settimeout(seconds)
        try:
            return self.connection.recv(1) == b""
        except OSError:
            return True


class Peer:
    def __init__(self, honest=None, lies=None):
        self.honest, self.lies = honest, dict(lies or {})
        self.closing = threading.Event()
        self.asked = []  # (method, path) of every request, in order
        self.links = []
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=64)
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.acceptor = threading.Thread(target=self._accept, daemon=True)
        self.acceptor.start()

    def _accept(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            self.links.append(connection)
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection):
        connection.settimeout(60)
        with connection, connection.makefile("rb") as stream:
            try:
                while self._exchange(connection, stream):
                    pass
            except (OSError, ValueError):
                pass

    def _exchange(self, connection, stream):
        line = stream.readline(65536).split()
        if len(line) != 3:
            return False
        headers = {}
        while (header := stream.readline(65536).strip()) != b"":
            name, _, value = header.decode().partition(":")
            headers[name.strip().lower()] = value.strip()
        if headers.pop("expect", None):
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = stream.read(int(headers.pop("content-length", 0)))
        request = line[0].decode(), line[1].decode(), body, headers
        self.asked.append(request[:2])
        if lie := self.choose_lie(*request[:2]):
            lie(Link(self, connection, request))
            return False
        status, answer, *more = self.honest(*request) if self.honest else (404, {})
        connection.sendall(whole(answer, f"{status} x", *more))
        return True

    def choose_lie(self, method, path):
        return next((lie for prefix, lie in self.lies.items() if path.startswith(prefix)), None)

    def heal(self):
        """Honest from now on; who still waits for the rest of a lie is hung up on."""
        self.lies.clear()
        for connection in self.links:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass

    def close(self):
        self.closing.set()
        self.listener.shutdown(socket.SHUT_RDWR)  # ends the accept(): one that waits on would, restarted by a signal, take connections of whoever has the descriptor's number by then
        self.acceptor.join()
        self.listener.close()
        self.heal()


class Proxy(Peer):
    """Before a real service.  lies: [(expression that the beginning of "GET /v1/..." matches, lie, ...)]; every lie is told once, in order."""

    def __init__(self, lies):
        self.target = None  # the real service's URL, once it is known
        self.turns = [list(turn) for turn in lies]
        self.lock = threading.Lock()
        super().__init__(self.forward)

    def choose_lie(self, method, path):
        with self.lock:
            for turn in self.turns:
                if len(turn) > 1 and re.match(turn[0], f"{method} {path}"):
                    return turn.pop(1)
        return None

    def untold(self):
        return [turn[0] for turn in self.turns if len(turn) > 1]

    def forward(self, method, path, body, headers):
        connection = http.client.HTTPConnection(urllib.parse.urlsplit(self.target).netloc, timeout=70)
        try:
            connection.request(method, path, body, {k: v for k, v in headers.items() if k not in ("host", "connection")})
            answer = connection.getresponse()
            digest = answer.headers.get("X-Leasehold-Digest")
            return answer.status, answer.read(), answer.headers.get("Content-Type"), f"X-Leasehold-Digest: {digest}\r\n" if digest else ""
        finally:
            connection.close()


def lost_answer(link):
    """What was asked for is done; the answer never arrives."""
    link.honest_answer()


def altered(change):
    """The honest answer, changed: change(JSON or bytes) -> the same."""

    def lie(link):
        status, answer, kind, more = link.honest_answer()
        answer = change(json.loads(answer)) if "json" in kind else change(answer)
        link.send(whole(answer, f"{status} x", kind, more))

    return lie


class FakeCoordinator:
    """Registers everybody, grants nothing; names `current` as the version to load.  The `honest` of a Peer."""

    def __init__(self):
        self.current = None
        self.beats = 0  # that said ready
        self.registered = threading.Event()

    def __call__(self, method, path, body, headers):
        if path == "/v1/workers":
            self.registered.set()
            return 200, {"worker_id": "w1", "epoch": 1, "fence": 1, "heartbeat_ms": 200, "worker_ttl_ms": 2000}
        if path.endswith("/heartbeat"):
            self.beats += json.loads(body).get("ready", False)
            return 200, {"epoch": 1, "lost": [], "current": self.current, "run_active": self.current is not None}
        if path.endswith("/leases"):
            threading.Event().wait(0.1)
            return 200, {"epoch": 1, "leases": [], "current": self.current}
        return 404, {"error": {"code": "not_found", "message": "there is no such path here", "field": ""}}
