"""What services log as JSON and logfmt, read by other readers, and one round followed by its trace over all of them.

What would break: a line that a reader refuses; a peer's text that makes a line or a field of its own; lines that do not say for what run, round, lease, version or
request they are; a trace that ends at a service's door, or that two rounds share; a malformed `traceparent` that is believed.
"""
import json
import re
import shutil
import subprocess

import pytest

from harness import BIN, DATA, Cluster, exchange, grpo_config

KEYS = {"time", "level", "service", "run", "round", "group", "lease", "version", "request", "request_id", "trace", "span", "parent", "message"}
NUMBERS = {"round", "version", "request"}
LEVELS = {"debug", "info", "warn", "error"}
FORGED = 'evil"\n{"level":"error","message":"forged"}\r\nlevel=error message=forged \u2028\u0085\x1b[2J\x7f end.jsonl'
NAMED = 'mine:"1"\\='


def logfmt(line):
    """A reader as Go's go-logfmt: bare values, or quoted ones with JSON's escapes."""
    fields, at = {}, 0
    while at < len(line):
        key = re.compile(r"[^\x00-\x20=\"\x7f]+=").match(line, at)
        assert key, (at, line)
        at = key.end()
        if at < len(line) and line[at] == '"':
            value, at = json.decoder.scanstring(line, at + 1, True)
        else:
            bare = re.compile(r'[^\x00-\x20="\x7f]*').match(line, at)
            value, at = bare[0], bare.end()
        assert at == len(line) or line[at] == " ", (at, line)
        at += 1
        name = key[0][:-1]
        assert name not in fields, line
        fields[name] = int(value) if name in NUMBERS else value
    return fields


def no_repeats(pairs):
    assert len({key for key, _ in pairs}) == len(pairs), pairs
    return dict(pairs)


def read(service, form):
    """All of a service's lines, each of which its reader must take."""
    data = service.log.read_bytes()
    lines = data.decode().split("\n")  # strict: what is no UTF-8 raises
    assert lines.pop() == "" and data.decode().splitlines() == lines, "a text can end a line"
    records = [json.loads(line, object_pairs_hook=no_repeats) if form == "json" else logfmt(line) for line in lines]
    for record in records:
        assert set(record) <= KEYS and {"time", "level", "service", "message"} <= set(record), record
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record["time"]) and record["level"] in LEVELS and record["service"] == service.program, record
        assert all(isinstance(record[key], int if key in NUMBERS else str) for key in record), record
    return records


@pytest.fixture(scope="module")
def logged(base_model, tmp_path_factory):
    """(records of every service, the run's status): a run of two rounds, the trainer's log as logfmt, the others' as JSON, and a peer that would forge lines."""
    folder = tmp_path_factory.mktemp("logs")
    data = folder / "data"
    shutil.copytree(DATA, data, ignore=shutil.ignore_patterns("model"))
    with Cluster(
        folder / "c",
        model=base_model,
        trainer=["--threads", 1, "--log-format", "logfmt", "--log-level", "debug"],
        coordinator=["--data-dir", data, "--log-format", "json", "--log-level", "debug"],
    ) as cluster:
        server = cluster.add_server("gen", "--threads", 1, "--slots", 16, "--log-format", "json", "--log-level", "debug")
        made = grpo_config(2, groups=4, samples=4)
        made["dataset"] = {"path": FORGED}
        shutil.copy(data / "train.jsonl", data / FORGED)
        run = cluster.create_run(made)
        cluster.wait(run)
        exchange("GET", f"{server.url}/v1/model", headers={"X-Request-Id": NAMED})
        exchange("GET", f"{server.url}/v1/model", headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"})
        exchange("GET", f"{server.url}/v1/model", headers={"traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00F067AA0BA902B7-01"})
        status = cluster.status(run)
        services = {"coordinator": (cluster.coordinator, "json"), "trainer": (cluster.trainer, "logfmt"), "server": (server, "json")}
    return {name: read(*service) for name, service in services.items()}, status


def test_a_peers_text_forges_no_line(logged):
    records, _ = logged
    assert any(FORGED in record["message"] and record["level"] == "info" for record in records["coordinator"])
    assert not any(record["message"] == "forged" or record["level"] == "error" for every in records.values() for record in every)


def test_lines_say_what_they_are_for(logged):
    records, status = logged
    run = status["id"]
    puts = [record for record in records["coordinator"] if "PUT /v1/leases/{id}/result answered 200" in record["message"]]
    assert puts and all(record["run"] == run and record["lease"].startswith(record["group"] + ".") and record["group"] == f"{run}.{record['round']}.{record['group'].split('.')[2]}" for record in puts)
    assert {record["round"] for record in puts} == {0, 1}
    requests = [record["request"] for record in puts]
    assert len(set(requests)) == len(requests)
    taken = [record for record in records["server"] if record["message"].startswith("lease ")]
    assert {record["lease"] for record in taken} == {record["lease"] for record in puts} and {record["version"] for record in taken} == {0, 1}
    jobs = [record for record in records["trainer"] if record["message"].startswith("job ") and "round" in record]
    assert {(record["run"], record["round"], record["version"]) for record in jobs} == {(run, 0, 0), (run, 1, 1)}
    assert any(record.get("run") == run and f"run {run} is completed" in record["message"] for record in records["coordinator"])


def test_lines_have_the_clients_name_of_its_request(logged):
    records, _ = logged
    named = [record for every in records.values() for record in every if "request_id" in record]
    assert {record["request_id"] for record in named} == {NAMED} and any("GET /v1/model answered 200" in record["message"] for record in named)
    others = [record for record in records["server"] if "answered" in record["message"] and "request_id" not in record]
    assert others and all(record["message"].endswith(", x-request-id " + record["span"]) for record in others)


def traces(records, *words, **fields):
    return {record["trace"] for record in records if all(word in record["message"] for word in words) and all(record.get(key) == value for key, value in fields.items())}


def test_one_trace_a_round_over_all_services(logged):
    records, status = logged
    run, seen = status["id"], []
    for turn in (0, 1):
        trace = traces(records["server"], "is taken", round=turn)  # the lease
        assert len(trace) == 1
        assert traces(records["coordinator"], "PUT /v1/leases/{id}/result", round=turn) == trace
        assert traces(records["trainer"], "POST /v1/submit-batch answered 202") >= trace
        assert traces(records["trainer"], f"job {run}.{turn}.b") == trace and traces(records["trainer"], f"job {run}.{turn} begins") == trace
        assert traces(records["coordinator"], "POST /v1/versions answered 200") >= trace
        if turn == 0:  # the last version goes to nobody
            assert traces(records["server"], "is staged", version=1) == trace and traces(records["server"], "POST /v1/push-weights answered 200") >= trace
        seen += trace
    assert seen[0] != seen[1]


def test_a_spans_parent_is_the_span_that_asked(logged):
    records, _ = logged
    spans = {record["span"] for every in records.values() for record in every if "span" in record}
    batches = [record for record in records["trainer"] if "POST /v1/submit-batch answered" in record["message"]]
    puts = [record for record in records["coordinator"] if "PUT /v1/leases/{id}/result answered" in record["message"]]
    taken = {record["lease"]: record["span"] for record in records["server"] if "is taken" in record["message"]}
    assert batches and all(record["parent"] in spans for record in batches)
    assert puts and all(record["parent"] == taken[record["lease"]] for record in puts)


def test_a_request_brings_its_trace_unless_it_is_malformed(logged):
    records, _ = logged
    asked = [record for record in records["server"] if "GET /v1/model answered" in record["message"]][-2:]
    assert (asked[0]["trace"], asked[0]["parent"]) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    assert asked[1]["trace"] != asked[0]["trace"] and "parent" not in asked[1]


def test_a_wrong_format_is_refused_and_a_refusal_is_a_line(tmp_path):
    refused = subprocess.run([BIN / "coordinator", "--log-format", "xml"], capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1 and "text, logfmt, json" in refused.stderr
    refused = subprocess.run([BIN / "coordinator", "--db", tmp_path / "no" / "such.db", "--port", "0", "--log-format", "json"], capture_output=True, text=True, timeout=30)
    assert refused.returncode == 1 and [json.loads(line)["level"] for line in refused.stderr.splitlines()][-1] == "error"
