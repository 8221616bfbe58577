"""The command line `leasehold`: what it prints is the API's, its exit status tells scripts how it went, and -v prints calls that can be made by hand."""
import contextlib
import http.server
import json
import socket
import sqlite3
import subprocess
import threading
import urllib.parse

from harness import BIN, DATA, Cluster, Standalone, call, exchange, grpo_config, warmup_config

TOLD_BY_A_HEARTBEAT = ("seen_ms", "loaded_digest", "slots_busy", "busy_slot_us", "tokens_sampled", "leases", "clock_skew_ms")


def leasehold(cluster, *args, stdin=None):
    """(exit status, standard output, standard error)"""
    command = [BIN / "leasehold", "--coordinator", cluster if isinstance(cluster, str) else cluster.coordinator.url, *map(str, args)]
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=120)
    return done.returncode, done.stdout, done.stderr


def said(cluster, *args, **more):
    status, output, error = leasehold(cluster, *args, **more)
    assert status == 0, (status, output, error)
    return output


def check_usage(cluster):
    for args in ([], ["run"], ["run", "strat", "x"], ["rollouts"], ["workers", "w1"], ["workers", "--round", 3], ["workers", "--no-such-flag"], ["timeline", "r1", "--limit", 0]):
        status, output, error = leasehold(cluster, *args)
        assert status == 2 and not output and error.startswith("leasehold: ") and error.count("\n") == 1, (args, status, output, error)


def check_curl(cluster, run):
    """What -v prints gives the same answer, and never shows a token."""
    for args in (["run", "show", run], ["rollouts", run, "--round", 1], ["timeline", run, "--round", 0], ["workers"], ["run", "compare", run + ".0", run]):
        status, output, error = leasehold(cluster, *args, "--json", "-v", "--auth-token", "it's secret")
        assert status == 0 and "secret" not in error, error
        assert error.startswith("curl -sS -H \"Authorization: Bearer $LEASEHOLD_AUTH_TOKEN\" 'http://")
        by_hand = json.loads(subprocess.run(["bash", "-c", error], capture_output=True, check=True).stdout)
        shown = json.loads(output)
        for answer in (by_hand, shown):
            for worker in answer.get("workers", []):
                for field in TOLD_BY_A_HEARTBEAT:  # one may come between the two answers
                    worker.pop(field, None)
        assert shown == by_hand, args


def check_tables(cluster, run, status):
    head = said(cluster, "run", "show", run)
    assert f"{status['weights_digest'][:12]}" in head and f"round    3 of 4" in head and "evaluated at version" in head
    assert said(cluster, "run", "list").splitlines()[0] == head.splitlines()[0]
    rollouts = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/rollouts?round=1&limit=3")["rollouts"]
    shown = said(cluster, "rollouts", run, "--round", 1, "--limit", 3)
    assert [line.split()[0] for line in shown.splitlines() if not line.startswith(" ")] == [rollout["id"] for rollout in rollouts]
    assert all(f"  text    {rollout['text']}\n" in shown for rollout in rollouts if rollout["text"].isprintable() and rollout["text"].isascii())
    assert [line.split()[1] for line in said(cluster, "timeline", run).splitlines() if line.startswith("round")] == ["0", "1", "2", "3"]
    assert {line.split()[1] for line in said(cluster, "workers").splitlines()} == {"trainer", "generation"}
    compared = said(cluster, "run", "compare", run, run)
    name = status["evaluations"][-1]["sets"][0]["name"]
    assert said(cluster, "run", "compare", run, run, "--set", name, "--b-set", name) == compared
    for flags in (("--set", "no such set"), ("--set", name, "--b-set", "no such set")):
        code, output, error = leasehold(cluster, "run", "compare", run, run, *flags)
        assert code == 1 and not output and "no such set" in error
    assert "neither is better" in compared and compared.startswith(f"{run}: {status['evaluations'][-1]['accuracy']:.4f}")


def check_nothing_to_show(cluster, run):
    """One sentence on standard error, and no failure: scripts that read standard output see nothing."""
    assert leasehold(cluster, "rollouts", run, "--round", 500) == (0, "", f"leasehold: run {run} has no rollouts of round 500; its newest round is 3\n")
    supervised = cluster.run(warmup_config(1))["id"]
    assert leasehold(cluster, "rollouts", supervised) == (0, "", f"leasehold: run {supervised} is supervised: it samples nothing\n")
    assert leasehold(cluster, "rollouts", supervised, "--json")[2] == ""
    for args in (("r99", run), (run, "r99.3")):
        status, output, error = leasehold(cluster, "run", "compare", *args)
        assert status == 1 and not output and "there is no run r99" in error
    status, _, error = leasehold(cluster, "run", "compare", run, supervised)
    assert status == 1 and f"run {supervised} has no finished evaluation" in error


def check_states(cluster):
    """Pause, watch, stop: what scripts go by."""
    run = said(cluster, "run", "start", "-", stdin=json.dumps(grpo_config(100000, groups=2, samples=4))).strip()
    assert leasehold(cluster, "run", "watch", run, "--timeout-s", 1)[0] == 4
    status, output, _ = leasehold(cluster, "workers", "--watch", "--timeout-s", 1)
    tables = output.split("\n\n")
    assert status == 4 and len(tables) >= 2 and all({line.split()[1] for line in table.splitlines()} == {"trainer", "generation"} for table in tables), output
    status, output, _ = leasehold(cluster, "workers", "--watch", "--timeout-s", 1, "--json")
    counts = [len(json.loads(line)["workers"]) for line in output.splitlines()]
    assert status == 4 and len(counts) >= 2 and set(counts) == {2}, output
    assert said(cluster, "run", "pause", run) == f"{run} paused\n" and said(cluster, "run", "resume", run) == f"{run} running\n"
    assert said(cluster, "run", "stop", run).startswith(f"{run} stop")
    status, output, _ = leasehold(cluster, "run", "watch", run)
    assert status == 1 and output.splitlines()[-1] == f"{run} stopped"


def test_the_command_line(base_model, tmp_path):
    assert leasehold("http://127.0.0.1:1", "doctor")[0] == 3
    with Cluster(tmp_path, model=base_model) as cluster:
        check_usage(cluster)
        assert leasehold(cluster, "run", "list") == (0, "", "leasehold: there are no runs yet\n")
        status, output, _ = leasehold(cluster, "doctor")
        assert status == 1 and "fail  no generation-server is registered" in output and "ok    1 trainer-server, 1 of them holds" in output
        cluster.add_server("gen", "--slots", 16)
        cluster.wait_until("both are registered", lambda: len(call("GET", cluster.coordinator.url + "/v1/workers")["workers"]) == 2)
        status, output, _ = leasehold(cluster, "doctor")
        assert status == 0 and "fail" not in output and "1 generation-server with 16 slots" in output
        config = tmp_path / "run's.json"
        made = grpo_config(4, groups=4, samples=4, evaluation=True)
        made["evaluation"].update(problems=8, before=True)
        config.write_text(json.dumps(made))
        status, output, error = leasehold(cluster, "run", "start", config, "--watch", "-v")
        run, *rounds, last = output.splitlines()
        assert status == 0 and last == f"{run} completed"
        assert error.splitlines()[0] == f"curl -sS -X POST -H 'Content-Type: application/json' --data-binary '@{tmp_path}/run'\\''s.json' '{cluster.coordinator.url}/v1/runs'"
        done = cluster.status(run)
        assert [line.split()[1:4] for line in rounds] == [[str(row["round"]), "reward", f"{row['reward_mean']:.4f}"] for row in done["history"]]
        assert [json.loads(line) for line in said(cluster, "run", "watch", run, "--json").splitlines()] == done["history"]
        check_tables(cluster, run, done)
        check_curl(cluster, run)
        check_nothing_to_show(cluster, run)
        made["groups_per_round"] = 0
        config.write_text(json.dumps(made))
        status, output, error = leasehold(cluster, "run", "start", config)
        assert status == 1 and "groups_per_round" in error and not output
        status, _, error = leasehold(cluster, "run", "show", "r99")
        assert status == 1 and "there is no run r99" in error
        check_states(cluster)


def test_every_run_of_a_long_life_is_listed(tmp_path):
    """One answer has 1,000 runs at most: those before them could not be found without their ids."""
    runs = 2345
    with Standalone(tmp_path) as one:
        one.database = tmp_path / "runs.db"
        one.coordinator = one.start("coordinator", "coordinator", ["--db", one.database, "--data-dir", DATA])
        call("POST", f"{one.coordinator.url}/v1/runs/{one.create_run(grpo_config(1))}/stop")
        one.coordinator.stop()
        with contextlib.closing(sqlite3.connect(one.database)) as database, database:
            columns = ", ".join(row[1] for row in database.execute("PRAGMA table_info(runs)") if row[1] != "id")
            database.execute(f"WITH RECURSIVE more(n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM more WHERE n < {runs}) INSERT INTO runs (id, {columns}) SELECT n, {columns} FROM more, runs")
        one.coordinator.restart()
        ids, before = [], ""
        while page := call("GET", f"{one.coordinator.url}/v1/runs?limit=1000{before}")["runs"]:
            ids += [run["id"] for run in page]
            before = f"&before={ids[-1]}"
        assert ids == [f"r{n}" for n in range(runs, 0, -1)]
        assert [line.split()[0] for line in said(one, "run", "list").splitlines()] == ids
        for wrong in ("7", "r7.1", "r", "w7", "r07"):
            status, _, answer = exchange("GET", f"{one.coordinator.url}/v1/runs?before={wrong}")
            assert status == 422 and json.loads(answer)["error"]["field"] == "before", answer


class Scripted(http.server.BaseHTTPRequestHandler):
    """A coordinator with one run: `script` gives the state of each look at it, or an HTTP status; None closes the connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        server, parts = self.server, urllib.parse.urlsplit(self.path)
        query = dict(urllib.parse.parse_qsl(parts.query))
        first = int(query.get("from", 0))
        if parts.path.endswith("/rounds"):
            answer, status = {"rounds": [{"round": i} for i in range(first, min(server.rounds, first + int(query["limit"])))]}, 200
        else:
            server.whole += parts.path == "/v1/runs/r1" and query.get("history") != "0"
            look = server.script[min(server.looks, len(server.script) - 1)]
            server.looks += 1
            if look is None:
                self.close_connection = True
                return self.connection.shutdown(socket.SHUT_RDWR)
            status = look if isinstance(look, int) else 200
            runs = [{"id": f"r{i}", "state": "completed"} for i in range(min(150, int(query.get("limit", 100))))]
            answer = {"id": "r1", "state": look, "rounds": server.rounds, "error": None, "workers": [], "runs": runs} if status == 200 else {"error": {"code": "unavailable", "message": "opening", "field": ""}}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


@contextlib.contextmanager
def scripted_coordinator(script, rounds):
    """It, and its URL."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Scripted)
    server.script, server.rounds, server.looks, server.whole = script, rounds, 0, 0
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()


def scripted(script, rounds, *args):
    with scripted_coordinator(script, rounds) as (server, url):
        done = leasehold(url, *args)
        assert server.whole == 0, "the run's whole history was asked for, and not shown"
        return done


def test_a_flag_may_have_its_value_behind_it():
    """As every service's flags do."""
    for args in (["--json", "false"], ["--json=false"], ["--json", "off"], []):
        status, output, error = scripted(["completed"], 0, "run", "list", *args)
        assert status == 0 and not output.startswith("{"), (args, status, output, error)
    for args in (["--json", "true"], ["--json"], ["--json=1"]):
        assert scripted(["completed"], 0, "run", "list", *args)[1].startswith("{")


def test_runs_are_listed_as_far_as_a_coordinator_tells_them_at_once():
    """The newest hundred were listed as if there were no more."""
    assert scripted(["completed"], 0, "run", "list")[1].count("completed") == 150


def test_all_rounds_of_an_ended_run_are_printed():
    """An answer holds 500."""
    for rounds in (0, 499, 500, 501, 1200):
        status, output, _ = scripted(["completed"], rounds, "run", "watch", "r1", "--json")
        assert status == 0 and [json.loads(line)["round"] for line in output.splitlines()] == list(range(rounds))


def test_watching_goes_on_while_the_coordinator_is_started_again():
    """It answers 503 while it opens its database, 429 when it is full, or not at all; also before the first round is done."""
    for away in (503, 429, None):
        for rounds in (0, 2):
            status, output, error = scripted(["running", away, away, "completed"], rounds, "run", "watch", "r1")
            assert status == 0 and output.splitlines()[-1] == "r1 completed", (away, rounds, status, output, error)
        status, output, error = scripted(["", away, ""], 0, "workers", "--watch", "--timeout-s", 3)
        assert status == 4, (away, status, output, error)
    assert scripted(["running", 404], 0, "run", "watch", "r1")[0] == 1
    assert scripted([None], 0, "run", "watch", "r1")[0] == 3


def test_an_answer_that_could_not_be_written_is_no_success():
    """As on a full disk: a script would go on with half of it."""
    for args in (["run", "list", "--json"], ["run", "show", "r1"], ["run", "watch", "r1"]):
        with scripted_coordinator(["completed"], 3) as (_, url), open("/dev/full", "w") as full:
            done = subprocess.run([BIN / "leasehold", "--coordinator", url, *args], stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)
        assert done.returncode == 1 and "could be written to standard output" in done.stderr, (args, done)
