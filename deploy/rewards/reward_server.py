#!/usr/bin/env python3
"""A reward server to start from: write your own `score`.  Python's standard library only.

    deploy/rewards/reward_server.py --port 9000
    coordinator --reward-hosts 127.0.0.1:9000 ...
    "verifier": {"kind": "http", "server": {"url": "http://127.0.0.1:9000/get_reward"}}

POST with {"query": [...], "prompts": [...], "labels": [...]} is answered by {"rewards": [...]} (OpenRLHF's shape), POST with {"prompt", "response", "label"} by
{"score": ...} (slime's: "shape": "slime").  A request that comes again with the same Idempotency-Key gets the same answer without being scored again, as long as
this process lives; after a restart it is scored anew, so a score should depend on its arguments alone.

    --module FILE   take `score(prompt, response, label) -> number` from this file       --token T   refuse requests without "Authorization: Bearer T"
    --certificate FILE --key FILE   speak https; the coordinator takes the authority that signed the certificate by --reward-ca
"""
import argparse
import collections
import http.server
import importlib.util
import json
import math
import re
import socketserver
import ssl
import sys
import threading
import traceback

BODY_BYTES_MAX = 256 << 20
KEPT_ANSWERS = 4096


def score(prompt, response, label):
    """1 when the last number of the response is the label, else 0."""
    numbers = re.findall(r"-?\d+(?:\.\d+)?", response)
    return 1.0 if numbers and label and float(numbers[-1]) == float(label) else 0.0


class Kept:
    """The answers to the newest requests, by their keys."""

    def __init__(self):
        self.lock = threading.Lock()
        self.answers = collections.OrderedDict()

    def get(self, key):
        with self.lock:
            return self.answers.get(key)

    def put(self, key, answer):
        with self.lock:
            self.answers[key] = answer
            while len(self.answers) > KEPT_ANSWERS:
                self.answers.popitem(last=False)


def number(value):
    value = float(value)
    if not math.isfinite(value):
        raise ValueError(f"a score must be finite, got {value}")
    return value


def answer_to(message, scorer):
    if "query" not in message:
        return {"score": number(scorer(message["prompt"], message["response"], message["label"]))}
    queries, prompts = message["query"], message["prompts"]
    labels = message.get("labels") or [""] * len(queries)
    if not len(queries) == len(prompts) == len(labels):
        raise ValueError("query, prompts and labels must be of one length")
    rewards = [number(scorer(prompt, query.removeprefix(prompt), label)) for query, prompt, label in zip(queries, prompts, labels)]
    return {"rewards": rewards, "scores": rewards, "extra_logs": {}}


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 300

    def reply(self, status, body):
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def do_GET(self):
        self.reply(200, {"status": "ok"})

    def do_POST(self):
        server = self.server
        length = int(self.headers.get("Content-Length") or 0)
        if length > BODY_BYTES_MAX:
            self.close_connection = True
            return self.reply(413, {"error": f"at most {BODY_BYTES_MAX} bytes are read"})
        body = self.rfile.read(length)
        if server.token and self.headers.get("Authorization") != f"Bearer {server.token}":
            return self.reply(403, {"error": "the token is missing or another one"})
        key = self.headers.get("Idempotency-Key")
        known = server.kept.get(key) if key else None
        if known:
            return self.reply(200, known)
        try:
            message = json.loads(body)
            content = json.dumps(answer_to(message, server.scorer)).encode()
        except Exception as error:  # a scorer's own, most likely: whoever runs it must see where
            traceback.print_exc()
            fault = isinstance(error, (KeyError, TypeError, ValueError, AttributeError))
            return self.reply(422 if fault else 500, {"error": f"{type(error).__name__}: {error}"})
        if key:
            server.kept.put(key, content)
        return self.reply(200, content)

    def log_message(self, *_):
        pass


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 128
    allow_reuse_address = True

    def handle_error(self, request, client_address):
        if not isinstance(sys.exc_info()[1], (ssl.SSLError, ConnectionError)):  # a peer that trusts no certificate of this server's, or went away
            super().handle_error(request, client_address)


def serve(scorer, arguments):
    """Until it is interrupted.  arguments: bind, port, port_file, token, certificate, key."""
    server = Server((arguments.bind, arguments.port), Handler)
    server.scorer, server.token, server.kept = scorer, arguments.token, Kept()
    if arguments.certificate:
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(arguments.certificate, arguments.key)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)  # each connection's thread shakes hands
    if arguments.port_file:
        with open(arguments.port_file, "w") as file:
            file.write(str(server.server_port))
    print(f"http{'s' if arguments.certificate else ''}://{arguments.bind}:{server.server_port}/", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        pass


def parser(description):
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--bind", default="127.0.0.1")
    made.add_argument("--port", type=int, default=9000, help="0 picks a free one")
    made.add_argument("--port-file", help="write the port here")
    made.add_argument("--token", default="")
    made.add_argument("--certificate", help="PEM: speak https")
    made.add_argument("--key", help="of the certificate; left out: it is in the same file")
    return made


def main():
    options = parser(__doc__)
    options.add_argument("--module")
    arguments = options.parse_args()
    scorer = score
    if arguments.module:
        spec = importlib.util.spec_from_file_location("own_scores", arguments.module)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        scorer = module.score
    serve(scorer, arguments)


if __name__ == "__main__":
    main()
