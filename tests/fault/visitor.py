"""Somebody who asks all three services everything that may be asked of them, over and over, while a run is played.

Whatever strikes, an answer that comes must fit the contract; none may come, or one that says what is wrong.
"""
import contextlib
import http.client
import threading
import time

from rig import PROGRAMS

import harness
from harness import SERVICE_OF, exchange, grpo_config

PAUSE_SECONDS = 0.002
TEXT = {"text": "3+4*2+1=", "sampling_params": {"max_new_tokens": 4}}
PROMPT = {"model": "leasehold", "prompt": "3+4*2+1=", "max_tokens": 4}
MESSAGES = {"model": "leasehold", "messages": [{"role": "user", "content": "3+4"}], "max_tokens": 4}
VERIFY = {"verifier": {"kind": "math"}, "samples": [{"completion": "\\boxed{\\frac{1}{4}}", "answer": "0.25"}]}
COMMON = [("GET", path, None) for path in ("/healthz", "/readyz", "/metrics")]


def questions(run):
    """(role, method, path, body) of everything that changes nothing."""
    reads = ["/v1/runs", f"/v1/runs/{run}?history=1", "/v1/workers?all=1", "/", "/page/main.js", f"/v1/compare?a={run}&b={run}&resamples=200", f"/v1/groups/{run}.0.0"]
    reads += [f"/v1/runs/{run}/{view}" for view in ("rounds", "rollouts?round=0", "samples?text=1", "spread", "evaluation?round=1", "timeline")]
    asked = {
        "coordinator": [*COMMON, *(("GET", path, None) for path in reads), ("POST", "/v1/verify", VERIFY), ("POST", "/v1/check-run", grpo_config(1))],
        "trainer": [*COMMON, *(("GET", path, None) for path in ("/v1/model", "/v1/model/files/config.json", "/v1/weights/3", "/v1/batches/none", "/v1/steps/none"))],
        "one": [
            *COMMON,
            *(("GET", path, None) for path in ("/v1/model", "/v1/models", "/weight_info", "/server_info", "/model_info", "/v1/loads", "/health_generate", "/get_weight_version", "/is_paused")),
            ("POST", "/tokenize", {"model": "leasehold", "prompt": PROMPT["prompt"]}), ("POST", "/detokenize", {"model": "leasehold", "tokens": [3, 4, 5]}),
            ("POST", "/v1/completions", PROMPT), ("POST", "/v1/completions", {**PROMPT, "stream": True, "logprobs": 2}),
            ("POST", "/v1/chat/completions", MESSAGES), ("POST", "/v1/generate", TEXT), ("POST", "/generate", {**TEXT, "return_logprob": True}),
        ],
    }
    return [(role, *question) for role, listed in asked.items() for question in listed]


class Visitor:
    """While the drive's run is played; at the end everything was asked once more of what the run has left."""

    def __init__(self, drive):
        self.drive = drive
        self.over = threading.Event()
        self.wrong = None
        self.threads = [threading.Thread(target=self.ask_all), threading.Thread(target=self.follow)]
        for role in drive.rig.services:
            SERVICE_OF[role.url] = PROGRAMS[role.name]

    def ask(self, role, method, path, body=None):
        try:
            exchange(method, self.drive.rig.role(role).url + path, body)
        except (OSError, http.client.HTTPException):
            pass
        except AssertionError as error:
            self.wrong = self.wrong or f"{method} {path} of {role}: {error}"

    def ask_all(self):
        last = False
        while not last:
            last = self.over.is_set()
            for question in questions(self.drive.run or "r1"):
                self.ask(*question)
                time.sleep(PAUSE_SECONDS)

    def follow(self):
        while not self.over.is_set():
            self.ask("coordinator", "GET", f"/v1/runs/{self.drive.run or 'r1'}/events")
            time.sleep(PAUSE_SECONDS)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.over.set()
        for thread in self.threads:
            thread.join(3 * harness.CALL_SECONDS)


def visiting(drive):
    return Visitor(drive) if drive.kind.visited else contextlib.nullcontext()
