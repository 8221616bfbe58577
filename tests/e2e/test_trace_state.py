"""`tracestate` (W3C Trace Context) over real services: it goes where its `traceparent` goes, from the request through jobs and threads to whatever is asked of others.

What would break: a service that drops it, that sends it on without its trace, that mixes two requests' lists, or that refuses a request for a malformed one.
Relays that note headers stand between the services; what they see is what a tracing system between them would.
"""
import http.client
import http.server
import json
import threading
import urllib.parse

import pytest

from harness import Cluster, grpo_config

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


class Relay:
    """Before the service whose port stands in a file.  seen: (method, path, headers) of every request; added: headers that it adds to the paths that have this in them.
    changes: what it does to the JSON of their answers."""

    def __init__(self, port_file):
        self.seen, self.added, self.changes = [], {}, {}
        relay = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def pass_on(self):
                relay.seen.append((self.command, self.path, self.headers))
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                peer = http.client.HTTPConnection("127.0.0.1", int(port_file.read_text()), timeout=60)
                peer.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                more = [pair for part, pair in relay.added.items() if part in self.path]
                for name, value in [*self.headers.items(), *more]:
                    if name.lower() not in ("connection", "expect"):
                        peer.putheader(name, value)
                peer.endheaders(body)
                answer = peer.getresponse()
                content = answer.read()
                for part, change in relay.changes.items():
                    if part in self.path and answer.status == 200:
                        content = change(content)
                self.send_response(answer.status)
                for name, value in answer.getheaders():
                    if name.lower() not in ("connection", "transfer-encoding", "content-length", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)
                peer.close()

            do_GET = do_POST = do_PUT = do_DELETE = pass_on

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,))
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()

    def contexts(self, path):
        """(trace, tracestate) of the requests whose path has this in it; tracestate None: there was no such header."""
        return [(headers["traceparent"].split("-")[1], headers["tracestate"]) for _, asked, headers in self.seen if path in asked and headers["traceparent"]]


def post(url, body, headers):
    """Headers may come several times."""
    parts = urllib.parse.urlsplit(url)
    peer = http.client.HTTPConnection(parts.netloc, timeout=60)
    data = json.dumps(body).encode()
    peer.putrequest("POST", parts.path)
    for name, value in [("Content-Type", "application/json"), ("Content-Length", str(len(data))), *headers]:
        peer.putheader(name, value)
    peer.endheaders(data)
    answer = peer.getresponse()
    status, content = answer.status, answer.read()
    peer.close()
    return status, content


@pytest.fixture(scope="module")
def wired(base_model, tmp_path_factory):
    """(cluster, relays before its coordinator, trainer and server)"""
    folder = tmp_path_factory.mktemp("trace-state") / "c"
    relays = {name: Relay(folder / f"{name}.port") for name in ("coordinator", "trainer", "gen")}
    try:
        with Cluster(folder, model=base_model, trainer=["--threads", 1, "--coordinator", relays["coordinator"].url, "--advertise-url", relays["trainer"].url]) as cluster:
            cluster.add_server("gen", "--threads", 1, "--slots", 16, "--advertise-url", relays["gen"].url)
            cluster.wait_until("the trainer holds its place", lambda: post(cluster.coordinator.url + "/v1/check-run", grpo_config(1, groups=4, samples=4), [])[0] == 200)
            yield cluster, relays
    finally:
        for relay in relays.values():
            relay.close()


def asked_of_the_trainer(wired, headers):
    """What the coordinator's own requests bring when it is asked with these headers whether a run could be posted."""
    cluster, relays = wired
    relays["trainer"].seen.clear()
    status, content = post(cluster.coordinator.url + "/v1/check-run", grpo_config(1, groups=4, samples=4), headers)
    assert status == 200, content
    found = relays["trainer"].contexts("/v1/check-run") + relays["trainer"].contexts("/v1/model/files/")
    assert len(found) >= 3
    return set(found)


def test_what_a_request_brings_goes_on_with_what_is_asked_on_its_behalf(wired):
    fields = [("tracestate", "rojo=00f067aa0ba902b7 , congo=t61rcWkgMzE"), ("tracestate", "fw529a3039@dt=1")]
    assert asked_of_the_trainer(wired, [("traceparent", PARENT), *fields]) == {(TRACE, "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE,fw529a3039@dt=1")}


def test_a_malformed_list_goes_and_the_trace_stays(wired):
    for malformed in ("Rojo=1", "rojo=1,rojo=2", "rojo", "rojo=1=2", ",".join(f"k{i}=1" for i in range(33))):
        assert asked_of_the_trainer(wired, [("traceparent", PARENT), ("tracestate", malformed)]) == {(TRACE, None)}, malformed


def test_without_a_trace_there_is_no_state_of_it(wired):
    for headers in ([], [("traceparent", PARENT.upper())]):
        (found,) = {state for _, state in asked_of_the_trainer(wired, [*headers, ("tracestate", "rojo=1")])}
        assert found is None


def test_512_characters_are_kept_of_whole_members(wired):
    members = [f"k{i}={'x' * 97}" for i in range(8)]  # of 100 characters
    ((_, state),) = asked_of_the_trainer(wired, [("traceparent", PARENT), ("tracestate", ",".join(members))])
    assert state == ",".join(members[:5])


def test_it_goes_with_a_job_to_its_threads_and_on_to_other_services(wired):
    """A step's version is pushed and announced by threads of their own, long after the request that asked for it was answered."""
    cluster, relays = wired
    for relay in relays.values():
        relay.seen.clear()
    relays["trainer"].added["/v1/submit-step"] = ("tracestate", "between=them")
    run = cluster.create_run(grpo_config(2, groups=4, samples=4))
    cluster.wait(run)
    relays["trainer"].added.clear()
    traces = [trace for trace, _ in relays["trainer"].contexts("/v1/submit-step")]
    assert len(traces) == 2 and traces[0] != traces[1]
    assert (traces[0], "between=them") in relays["gen"].contexts("/v1/push-weights")
    announced = relays["coordinator"].contexts("/v1/versions")
    assert {(trace, "between=them") for trace in traces} == set(announced)
    others = relays["trainer"].contexts("/v1/submit-batch") + relays["coordinator"].contexts("/v1/leases/")
    assert others and {state for _, state in others} == {None}  # a round's own trace has none, nor has the thread that had one before
