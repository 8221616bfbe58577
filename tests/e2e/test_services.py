"""Each service as a person starts and calls it: flags, refusals, health, plain generation, the life of runs, and bad input that must not hurt."""
import json
import socket
import subprocess
import threading
import time
import urllib.request

import pytest

from harness import BIN, DATA, Cluster, HttpError, call, digests, grpo_config

SERVICES = ["coordinator", "generation-server", "trainer-server"]


@pytest.fixture(scope="module")
def cluster(base_model, tmp_path_factory):
    with Cluster(tmp_path_factory.mktemp("services"), model=base_model) as made:
        made.server = made.add_server("gen-1", "--slots", 8)
        yield made


def refused(status, method, url, body=None, headers=None):
    with pytest.raises(HttpError) as caught:
        call(method, url, body, headers)
    assert caught.value.status == status, caught.value
    error = caught.value.json()["error"]
    assert error["code"] and error["message"]
    return error


@pytest.mark.parametrize("program", SERVICES)
def test_help_version_and_one_line_errors(program):
    path = str(BIN / program)
    helped = subprocess.run([path, "--help"], capture_output=True, text=True, timeout=30)
    assert helped.returncode == 0 and "--port" in helped.stdout and "LEASEHOLD_PORT" in helped.stdout
    version = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=30)
    assert version.returncode == 0 and version.stdout.startswith(program + " ")
    for arguments in (["--no-such-flag"], ["--port", "banana"], ["--port", "99999"]):
        wrong = subprocess.run([path, *arguments], capture_output=True, text=True, timeout=30)
        assert wrong.returncode != 0 and len(wrong.stderr.strip().splitlines()) == 1, wrong.stderr


@pytest.mark.parametrize("program", ["generation-server", "trainer-server"])
def test_a_device_that_cannot_compute_is_refused_at_once(program, tmp_path):
    arguments = ["--model", str(DATA / "model"), "--port", "0"] + (["--state-dir", str(tmp_path)] if program == "trainer-server" else [])
    for device, words in (("cuda:63", "cuda"), ("gpu", "expected cpu, cuda or cuda:N")):
        wrong = subprocess.run([str(BIN / program), *arguments, "--device", device], capture_output=True, text=True, timeout=20)
        assert wrong.returncode == 1 and words in wrong.stderr and wrong.stderr.count("\n") == 1, wrong.stderr


def test_the_environment_sets_what_flags_set():
    wrong = subprocess.run([str(BIN / "coordinator")], capture_output=True, text=True, timeout=30, env={"LEASEHOLD_PORT": "banana"})
    assert wrong.returncode != 0 and "banana" in wrong.stderr


def test_a_port_in_use_is_said(cluster, tmp_path):
    port = cluster.coordinator.url.rsplit(":", 1)[1]
    second = subprocess.run([str(BIN / "coordinator"), "--db", str(tmp_path / "x.db"), "--data-dir", str(DATA), "--port", port], capture_output=True, text=True, timeout=30)
    assert second.returncode != 0 and port in second.stderr


def test_health_readiness_and_metrics(cluster):
    for service in (cluster.coordinator, cluster.trainer, cluster.server):
        assert call("GET", service.url + "/healthz")["status"] == "ok"
        metrics = call("GET", service.url + "/metrics", raw=True).decode()
        assert "# TYPE leasehold_" in metrics


def test_a_run_is_configured_whole_or_refused_by_field(cluster):
    url = cluster.coordinator.url + "/v1/runs"
    cases = [
        ({"rounds": 0}, "rounds"),
        ({"bananas": 1}, "bananas"),
        ({"dataset": {"path": "../make_data.py"}}, "dataset.path"),
        ({"dataset": {"path": "/etc/passwd"}}, "dataset.path"),
        ({"sampling": {"temperature": 0, "max_new_tokens": 8}}, "sampling.temperature"),
        ({"sampling": {"temperature": 1, "presence_penalty": 0.5}}, "sampling.presence_penalty"),
        ({"verifier": {"kind": "oracle"}}, "verifier.kind"),
        ({"training": {"objective": "grpo", "lr": -1}}, "training.lr"),
        ({"groups_per_round": "64"}, "groups_per_round"),
        ({"seed": -1}, "seed"),
    ]
    for change, field in cases:
        assert refused(422, "POST", url, {**grpo_config(1), **change})["field"] == field, change
    assert refused(422, "POST", url, {**grpo_config(1), "mode": "inflight", "update": "minibatch"})["field"] == "update"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"nul", b'{"seed":1,"seed":2}', b"[" * 5000, b'{"rounds":1e999}', b"\xff\xfe", b'{"name":"a\\u0000b"}'])
def test_malformed_bodies_are_422_everywhere(cluster, body):
    posts = [
        (cluster.coordinator.url, ["/v1/runs", "/v1/workers", "/v1/workers/w1/heartbeat", "/v1/workers/w1/leases", "/v1/versions"]),
        (cluster.trainer.url, ["/v1/runs", "/v1/submit-batch", "/v1/submit-step"]),
        (cluster.server.url, ["/v1/generate"]),
    ]
    for base, paths in posts:
        for path in paths:
            refused(422, "POST", base + path, body)


def test_unknown_things_are_404(cluster):
    for path in ("/v1/runs/r999", "/v1/runs/r999/rounds", "/v1/nothing"):
        refused(404, "GET", cluster.coordinator.url + path)
    refused(404, "POST", cluster.coordinator.url + "/v1/runs/r999/stop")
    refused(404, "DELETE", cluster.coordinator.url + "/v1/workers/w999")
    refused(404, "DELETE", cluster.coordinator.url + "/v1/workers/somebody")
    refused(404, "GET", cluster.trainer.url + "/v1/batches/nope")
    refused(404, "GET", cluster.trainer.url + "/v1/model/files/passwd")
    refused(404, "GET", cluster.trainer.url + "/v1/weights/424242")


def test_a_run_learns_its_way_through_the_interface(cluster):
    config = grpo_config(3, evaluation=True)
    config["evaluation"].update(every_rounds=1, problems=4)
    run = cluster.create_run(config)
    events = []

    def listen():
        with urllib.request.urlopen(f"{cluster.coordinator.url}/v1/runs/{run}/events", timeout=60) as stream:
            for line in stream:
                events.append(line.decode().rstrip())
                if '"completed"' in events[-1]:
                    return

    listener = threading.Thread(target=listen, daemon=True)
    listener.start()
    status = cluster.wait(run)
    listener.join(10)
    assert any(line.startswith("event:") for line in events) and any(line.startswith("data:") for line in events)
    assert status["state"] == "completed" and len(status["history"]) == 3
    assert status["config"]["training"]["total_steps"] == 3 and len(status["config_hash"]) == 64
    assert status["totals"]["stale_results_trained_on"] == 0 and status["totals"]["logprob_unequal"] == 0
    assert {e["samples"] for e in status["evaluations"]} == {4}
    rollouts = call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/rollouts?round=0&limit=1000")["rollouts"]
    assert len([r for r in rollouts if r.get("purpose", "training") == "training"]) == 8 * 4
    assert call("GET", f"{cluster.coordinator.url}/v1/runs/{run}/timeline")


def test_runs_queue_pause_resume_and_stop(cluster):
    url = cluster.coordinator.url
    first, second = cluster.create_run(grpo_config(2000)), cluster.create_run(grpo_config(1, seed=3))
    while (cluster.status(first)["round"] or 0) < 1:
        time.sleep(0.02)
    assert cluster.status(second)["state"] == "queued"
    call("POST", f"{url}/v1/runs/{first}/pause")
    cluster.wait(first, state="paused")
    at_rest = "SELECT sum(state = 0) = 1 AND sum(finished = 0) = 1 AND NOT EXISTS (SELECT 1 FROM leases WHERE state = 0) FROM rounds WHERE run = ?"
    cluster.wait_until("nothing is under way", lambda: cluster.query(at_rest, int(first[1:])) == [(1,)])
    before = len(cluster.status(first)["history"])
    time.sleep(0.7)
    assert len(cluster.status(first)["history"]) == before
    call("POST", f"{url}/v1/runs/{first}/resume")
    while len(cluster.status(first)["history"]) <= before:
        time.sleep(0.02)
    call("POST", f"{url}/v1/runs/{first}/stop")
    cluster.wait(first, state="stopped")
    cluster.wait(second)
    refused(409, "POST", f"{url}/v1/runs/{first}/resume")


def test_learning_rate_zero_changes_no_digest(cluster):
    config = grpo_config(2)
    config["training"]["lr"] = 0
    assert len(set(digests(cluster.run(config)))) == 1


def test_the_same_config_gives_the_same_weights_again(base_model, tmp_path):
    seen = []
    for attempt in range(2):
        with Cluster(tmp_path / str(attempt), model=base_model) as one:
            one.add_server("gen", "--slots", 8)
            seen.append(digests(one.run(grpo_config(2))))
    assert seen[0] == seen[1]


def test_plain_generation(cluster):
    url = cluster.server.url + "/v1/generate"
    greedy = {"text": "7+5*3-4=", "sampling_params": {"max_new_tokens": 24, "temperature": 0}, "return_logprob": True}
    one, two = call("POST", url, greedy), call("POST", url, greedy)
    assert one["output_ids"] == two["output_ids"] and one["meta_info"]["completion_tokens"] == len(one["output_ids"])
    assert [row[1] for row in one["meta_info"]["output_token_logprobs"]] == one["output_ids"]
    seeded = {"input_ids": list(b"7+5*3-4="), "sampling_params": {"max_new_tokens": 24, "temperature": 1.3, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 5, "n": 3}}
    three, four = call("POST", url, seeded), call("POST", url, seeded)
    assert [r["output_ids"] for r in three] == [r["output_ids"] for r in four] and len(three) == 3
    for change, field in (
        ({"sampling_params": {"temperature": -1}}, "sampling_params.temperature"),
        ({"sampling_params": {"max_new_tokens": 10**9}}, "sampling_params.max_new_tokens"),
        ({"input_ids": [99999], "text": None}, "input_ids"),
    ):
        error = refused(422, "POST", url, {**greedy, **change})
        assert error["field"].startswith(field), error


def test_plain_requests_during_a_run_leave_it_exact(base_model, tmp_path):
    wanted = None
    for disturbed in (False, True):
        with Cluster(tmp_path / str(disturbed), model=base_model) as one:
            server = one.add_server("gen", "--slots", 6)
            run = one.create_run(grpo_config(3))
            stop = threading.Event()

            def disturb():
                while not stop.is_set():
                    try:
                        call("POST", server.url + "/v1/generate", {"text": "1+2+3+4=", "sampling_params": {"max_new_tokens": 16, "temperature": 1, "n": 2}})
                    except HttpError as error:
                        assert error.status in (429, 503), error

            thread = threading.Thread(target=disturb)
            if disturbed:
                thread.start()
            status = one.wait(run)
            stop.set()
            if disturbed:
                thread.join()
            assert status["totals"]["logprob_unequal"] == 0
            wanted = wanted or digests(status)
            assert digests(status) == wanted


def test_a_token_is_demanded_when_one_is_set(base_model, tmp_path):
    args = ["--auth-token", "sesame"]
    with Cluster(tmp_path, model=base_model, coordinator=args, trainer=args) as one:
        one.add_server("gen", *args)
        refused(401, "GET", one.coordinator.url + "/v1/runs")
        bearer = {"Authorization": "Bearer sesame"}
        run = call("POST", one.coordinator.url + "/v1/runs", grpo_config(1), bearer)["id"]
        deadline = time.monotonic() + 60
        while call("GET", f"{one.coordinator.url}/v1/runs/{run}", headers=bearer)["state"] != "completed":
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_oversized_bodies_are_refused(cluster):
    """Announced sizes are refused before the body is read: what is sent here is the head, and the answer comes at once."""
    for service, path in ((cluster.coordinator, "/v1/workers"), (cluster.trainer, "/v1/submit-step"), (cluster.server, "/v1/generate")):
        host, port = service.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {1 << 40}\r\n\r\n".encode())
            assert b" 413 " in connection.recv(64)
