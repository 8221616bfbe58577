"""A generation-server that lies: a real one behind a proxy that changes what it sends to the coordinator, in a form that the coordinator must accept.

`lying(cluster, lie)` starts both, `pool` with a cluster and two honest servers.  LIES: what the proxy makes of the samples of a result.
"""
import collections
import contextlib
import json
import random
import re
import struct

from hostile_peer import Proxy
from test_overlap import FAST, start

DIGITS = range(ord("0"), ord("9") + 1)
RESULT = re.compile(r"/v1/leases/([^/]+)/result")
TYPES = {"I32": "i", "I64": "q", "F32": "f"}


def read_tensors(body):
    """(metadata, {name: (dtype, shape, numbers)})"""
    size, = struct.unpack_from("<Q", body)
    head = json.loads(body[8 : 8 + size])
    data = body[8 + size :]
    tensors = {}
    for name, entry in head.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        code = TYPES[entry["dtype"]]
        tensors[name] = entry["dtype"], entry["shape"], list(struct.unpack(f"<{(end - begin) // struct.calcsize(code)}{code}", data[begin:end]))
    return head["__metadata__"], tensors


def write_tensors(metadata, tensors):
    head, data = {"__metadata__": metadata}, b""
    for name, (dtype, shape, numbers) in tensors.items():
        packed = struct.pack(f"<{len(numbers)}{TYPES[dtype]}", *numbers)
        head[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(packed)]}
        data += packed
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


def samples_of(tensors):
    """[[index, finish, tokens, log-probabilities]]"""
    rows, tokens, logprobs = (tensors[name][2] for name in ("samples", "token_ids", "logprobs"))
    made, at = [], 0
    for i in range(0, len(rows), 3):
        n = rows[i + 2]
        made.append([rows[i], rows[i + 1], tokens[at : at + n], logprobs[at : at + n]])
        at += n
    return made


class NoChance(Exception):
    """The others were quicker: the liar was given nothing that shows."""


def with_chances(play):
    """play(attempt) until the liar has had its chance: who is given samples is a race, which a machine with other work may decide against it every time."""
    for attempt in range(5):
        try:
            return play(attempt)
        except NoChance as why:
            last = why
    raise AssertionError("the liar had no chance in 5 runs") from last


class Liar(Proxy):
    """target: the coordinator's URL.  lied_in: the rounds whose results were changed and accepted, in order."""

    def __init__(self, target, lie):
        self.lie, self.lied_in = lie, []
        self.random = random.Random(lie.__name__)
        self.kept = collections.OrderedDict()  # lease id -> its honest samples, for lies that send another's
        self.old = None  # the first version that was current, for those that keep its weights
        super().__init__([])
        self.target = target

    def forward(self, method, path, body, headers):
        if match := RESULT.match(path):
            metadata, tensors = read_tensors(body)
            lied = self.lie(self, match[1], metadata, tensors)
            answer = super().forward(method, path, write_tensors(metadata, tensors), headers)
            self.lied_in += [int(match[1].split(".")[1])] * (lied and answer[0] == 200)
            return answer
        if self.lie is of_an_older_version:
            return self.forward_old(method, path, body, headers)
        return super().forward(method, path, body, headers)

    # --- a server that is kept at the first version's weights, and what it says ---

    def forward_old(self, method, path, body, headers):
        """The server is told that the first version still is current, the coordinator that the server has what is."""
        if body and self.old and method == "POST":
            message = json.loads(body)
            if message.get("loaded_digest") == self.old["digest"]:
                message["loaded_digest"] = self.now["digest"]
            if path == "/v1/workers":
                message["url"] = "http://127.0.0.1:9"  # nobody listens there, so nothing is pushed to it
            body = json.dumps(message).encode()
        elif method == "POST" and path == "/v1/workers":
            body = json.dumps({**json.loads(body), "url": "http://127.0.0.1:9"}).encode()
        status, answer, *more = super().forward(method, path, body, headers)
        if status != 200 or not answer or answer[:1] != b"{":
            return status, answer, *more
        message = json.loads(answer)
        if current := message.get("current"):
            self.old = self.old or current
            self.now = current
            message["current"] = {**current, "version": self.old["version"], "digest": self.old["digest"]}
        for lease in message.get("leases", []) if path.endswith("/leases") else []:
            self.kept[lease["id"]] = lease["version_min"], lease["weights_digest"]
            lease.update(version_min=self.old["version"], version_max=self.old["version"], weights_digest=self.old["digest"])
        return status, json.dumps(message).encode(), *more


def random_tokens(liar, lease, metadata, tensors):
    for index, _, tokens, _ in (samples := samples_of(tensors)):
        tokens[:-1] = [liar.random.choice(DIGITS) for _ in tokens[:-1]]
    tensors["token_ids"][2][:] = [token for sample in samples for token in sample[2]]
    return True


def wrong_logprobs(liar, lease, metadata, tensors):
    tensors["logprobs"][2][:] = [value - 0.001 for value in tensors["logprobs"][2]]
    return True


def of_an_older_version(liar, lease, metadata, tensors):
    version, digest = liar.kept[lease]
    head = json.loads(metadata["result"])
    head["loaded_digest"] = digest
    metadata["result"] = json.dumps(head)
    _, (_, columns), spans = tensors["version_spans"]
    spans[::columns] = [version] * (len(spans) // columns)
    return version > liar.old["version"]


def of_another_prompt(liar, lease, metadata, tensors):
    """What it has drawn for the lease before."""
    mine = samples_of(tensors)
    other = next(reversed(liar.kept.values()), None)
    liar.kept[lease] = [list(sample) for sample in mine]
    if not other or len(other) < len(mine) or any(finish == 2 for _, finish, *_ in other + mine):
        return False
    sent = [[index, *theirs[1:]] for (index, *_), theirs in zip(mine, other)]
    version = tensors["version_spans"][2][0]
    lengths = [len(tokens) for _, _, tokens, _ in sent]
    tensors["samples"] = "I32", [len(sent), 3], [n for index, finish, tokens, _ in sent for n in (index, finish, len(tokens))]
    tensors["token_ids"] = "I32", [sum(lengths)], [token for _, _, tokens, _ in sent for token in tokens]
    tensors["logprobs"] = "F32", [sum(lengths)], [value for *_, values in sent for value in values]
    tensors["segments"] = "I32", [len(sent), 3], [n for length in lengths for n in (0, length, 1)]
    tensors["version_spans"] = "I64", [len(sent), 3], [n for length in lengths for n in (version, 0, length)]
    return True


LIES = [random_tokens, wrong_logprobs, of_an_older_version, of_another_prompt]


@contextlib.contextmanager
def lying(cluster, lie):
    """A server named liar, behind its proxy, until the end."""
    liar = Liar(cluster.coordinator.url, lie)
    try:
        service = cluster.start("liar", "generation-server", ["--coordinator", liar.url, "--name", "liar", *FAST])
        try:
            yield liar
        finally:
            liar.heal()
            service.kill()
    finally:
        liar.close()


@contextlib.contextmanager
def pool(folder, model, lie, second=FAST, **options):
    """Two honest servers, and one that lies."""
    with start(folder, model, **options) as cluster, lying(cluster, lie) as liar:
        cluster.add_server("first", *FAST)
        cluster.add_server("second", *second)
        yield cluster, liar


def incidents(cluster, kind):
    return cluster.query("SELECT subject, detail FROM incidents WHERE kind = ? ORDER BY id", kind)
