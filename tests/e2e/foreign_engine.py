"""A foreign engine, for the rollout-agent's tests: speaks vLLM's wire and SGLang's, computes with a generation-server of ours behind it, and can lie.
Its draws depend on the name of the sample alone, so that a test sees the same run every time.

`ForeignEngine(backend_url, folder)` holds the weights of `folder` at first.  Its attributes may be changed while it runs:

  checksums     it offers checksums of its memory (true ones)
  deaf          it says that it has loaded a version, and has not
  lag_seconds   it says so at once, and loads later
  slow_seconds  every request takes so much longer
  full          so many requests are refused with 429
  closed        every request is refused with 403, as by vLLM without --enable-scale-out
  aside         URL of another server, which real requests are sent to, while probes are answered with the weights that were loaded

`forget()` is a restart with the weights that it began with.  Standard library only; every thread ends with `close()`.
"""
import contextlib
import http.server
import json
import pathlib
import struct
import threading
import time
import zlib

from harness import HttpError, call

PROBE_PROMPT = list(range(1, 17))
FIRST_VERSION = "default"


def digest_in(path):
    """What the trainer wrote into the weights file."""
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length])["__metadata__"]["leasehold.digest"]


class Refusal(Exception):
    def __init__(self, status, body):
        super().__init__(str(body))
        self.status = status
        self.body = body


class ForeignEngine:
    def __init__(self, backend_url, folder, checksums=True, port=0, host="127.0.0.1"):
        self.backend, self.host = backend_url, host
        self.first = pathlib.Path(folder)
        self.version = FIRST_VERSION
        self.checksums = checksums
        self.deaf = False
        self.lag_seconds = self.slow_seconds = 0
        self.aside = None
        self.full = 0
        self.closed = False
        self.running = self.loaded_beside = 0  # real requests; loads that began beside one
        self.pushed = 0
        self.paused = False
        self.calls = []  # paths, in the order that they came
        self.requests = []  # bodies of generate calls but probes
        self.lock = threading.Lock()
        self.push(self.first)
        self.open(port)

    # --- life ---

    def open(self, port=0):
        engine = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def answer(self):
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length) or b"{}")
                status, content = engine.answer(self.command, self.path, body)
                data = json.dumps(content).encode()
                with contextlib.suppress(OSError):
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.send_header("Content-Length", str(len(data)))
                    self.end_headers()
                    self.wfile.write(data)

            do_GET = do_POST = answer

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            allow_reuse_address = True
            request_queue_size = 64

        self.server = Server((self.host, port), Handler)
        self.port = self.server.server_address[1]
        self.url = f"http://{self.host}:{self.port}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True)
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    # --- weights ---

    def push(self, folder):
        weights = folder / "model.safetensors"
        with self.lock:
            self.pushed += 1
            digest = {"X-Leasehold-Digest": digest_in(weights)}
            call("POST", f"{self.backend}/v1/push-weights?run=engine&version={self.pushed}", weights.read_bytes(), digest)
            while call("GET", self.backend + "/v1/model")["loaded"]["version"] != self.pushed:
                time.sleep(0.002)

    def push_late(self, folder):
        with contextlib.suppress(OSError):  # the test may be over
            self.push(folder)

    def load(self, path):
        self.loaded_beside += self.running > 0
        if self.deaf:
            return
        folder = pathlib.Path(path)
        assert (folder / "config.json").exists() and (folder / "tokenizer.json").exists(), "a Hugging Face folder"
        if self.lag_seconds:
            threading.Timer(self.lag_seconds, self.push_late, [folder]).start()
        else:
            self.push(folder)

    def forget(self):
        self.version = FIRST_VERSION
        self.push(self.first)

    def memory_digest(self):
        return call("GET", self.backend + "/v1/model")["loaded"]["digest"]

    # --- the wires ---

    def answer(self, method, target, body):
        path = target.partition("?")[0]
        self.calls.append(path)
        route = getattr(self, "do" + path.replace("/", "_"), None)
        if not route:
            return 404, {"detail": "Not Found"}
        try:
            return 200, route(body)
        except Refusal as refusal:
            return refusal.status, refusal.body
        except HttpError as error:
            return 400, {"error": {"message": str(error)}}
        except OSError as error:
            return 500, {"error": {"message": str(error)}}

    def generate(self, name, ids, max_new, temperature, stop, ignore_eos):
        is_probe = ids == PROBE_PROMPT
        if self.closed:
            raise Refusal(403, {"error": {"message": "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."}})
        if not is_probe:
            with self.lock:
                self.full -= 1
                if self.full >= 0:
                    raise Refusal(429, {"error": {"message": "too many requests"}})
                self.running += 1
            self.requests.append(ids)
            time.sleep(self.slow_seconds)
        url = self.aside if self.aside and not is_probe else self.backend
        sampling = {"max_new_tokens": max_new, "temperature": temperature, "ignore_eos": ignore_eos, "stop_token_ids": stop, "seed": zlib.crc32(name.rpartition("-")[0].encode())}
        try:
            made = call("POST", url + "/v1/generate", {"input_ids": ids, "sampling_params": sampling, "return_logprob": True})
        finally:
            with self.lock:
                self.running -= not is_probe
        meta = made["meta_info"]
        return made["output_ids"], [pair[0] for pair in meta["output_token_logprobs"]], meta["finish_reason"]["type"]

    @staticmethod
    def plain(sampling):
        """Only what is drawn from the whole distribution may be asked for; and nothing is left to the engine's defaults."""
        assert (sampling["n"], sampling["top_p"], sampling["top_k"], sampling["min_p"], sampling["repetition_penalty"]) == (1, 1, -1, 0, 1), sampling
        assert sampling["presence_penalty"] == sampling["frequency_penalty"] == 0, sampling

    # vLLM
    def do_inference_v1_generate(self, body):
        assert not self.paused
        sampling = body["sampling_params"]
        self.plain(sampling)
        ids, logprobs, finish = self.generate(body["request_id"], body["token_ids"], sampling["max_tokens"], sampling["temperature"], sampling["stop_token_ids"], sampling["ignore_eos"])
        content = [{"token": f"token_id:{i}", "logprob": p, "bytes": None, "top_logprobs": []} for i, p in zip(ids, logprobs)]
        return {"request_id": body["request_id"], "choices": [{"index": 0, "token_ids": ids, "finish_reason": finish, "logprobs": {"content": content}}]}

    def do_weight_info(self, _):
        return {"weight_version": self.version}

    def do_weight_checker(self, body):
        if not self.checksums:
            raise Refusal(404, {"detail": "Not Found"})
        assert body == {"action": "checksum"}
        return {"checksums": {"dp0:pp0:tp0:model.norm.weight": "00", "dp0:pp0:tp0:all": self.memory_digest()}}

    def do_pause(self, _):
        self.paused = True
        return {}

    def do_resume(self, _):
        self.paused = False
        return {}

    def do_collective_rpc(self, body):
        assert body["method"] == "reload_weights"
        self.load(body["kwargs"]["weights_path"])
        return {"results": [None]}

    def do_update_weight_version(self, body):
        self.version = body["new_version"]
        return {"success": True}

    # SGLang
    def do_generate(self, body):
        sampling = body["sampling_params"]
        self.plain(sampling)
        version = self.version
        ids, logprobs, finish = self.generate(body["rid"], body["input_ids"], sampling["max_new_tokens"], sampling["temperature"], sampling["stop_token_ids"], sampling["ignore_eos"])
        pairs = [[p, i, None] for i, p in zip(ids, logprobs)]
        return {"text": "", "output_ids": ids, "meta_info": {"id": body["rid"], "finish_reason": {"type": finish}, "weight_version": version, "output_token_logprobs": pairs}}

    def do_model_info(self, _):
        return {"model_path": str(self.first), "weight_version": self.version}

    def do_update_weights_from_disk(self, body):
        self.load(body["model_path"])
        self.version = body["weight_version"]
        return {"success": True, "message": "Succeeded to update model weights."}

    def do_weights_checker(self, _):
        if not self.checksums:
            raise Refusal(404, {"detail": "Not Found"})
        return {"success": True, "message": "", "ranks": [], "per_engine_checksum": self.memory_digest()}
