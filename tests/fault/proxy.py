"""A proxy between two services that understands as much HTTP as it takes to strike one exchange: to repeat, hold, lose or cut it.

An edge is the way to one service's port.  `Strike` names the exchange: the n-th request of a method and route on an edge.  Without one the proxy passes
everything on and counts what it saw, which is how the exchanges to strike are found.
"""
import asyncio
import collections
import dataclasses
import re
import threading

SPLIT_SECONDS = 1.5
HOLD_SECONDS = 0.6
ANSWER_SECONDS = 70
BUFFER_BYTES = 1 << 26
MODES = ("duplicate", "duplicate-late", "delay", "reorder", "lose-request", "truncate-request", "lose-answer", "truncate-answer", "one-way", "split")


@dataclasses.dataclass(frozen=True)
class Strike:
    edge: str
    exchange: str  # "PUT /v1/leases/{}/result"
    hit: int
    mode: str


PASS = Strike("", "", 0, "")  # strikes nothing


def exchange_of(head):
    method, target, _ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ", 2)
    path = target.split("?")[0]
    return method + " " + re.sub(r"/(?=[^/]*\d)(?!v1(?:/|$))[^/]+", "/{}", path)


class Cut(Exception):
    """The connection ends here."""


async def body_of(head, reader):
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked", head):
        body = b""
        while True:
            line = await reader.readuntil(b"\r\n")
            body += line + await reader.readexactly(int(line.split(b";")[0], 16) + 2)
            if line.strip() == b"0":
                return body
    length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
    return await reader.readexactly(int(length[1])) if length else b""


class Proxy:
    """Listens on one port for one edge.  Runs on the loop of `Network`."""

    def __init__(self, network, edge, port, target):
        self.network, self.edge, self.port, self.target = network, edge, port, target
        self.split_until = 0.0
        self.one_way_until = 0.0
        self.held = None

    async def start(self):
        self.network.servers.append(await asyncio.start_server(self.client, "127.0.0.1", self.port, limit=BUFFER_BYTES))

    async def client(self, reader, writer):
        upstream = None
        try:
            while True:
                head, body = await self.request(reader, writer)
                if upstream is None:
                    upstream = await asyncio.open_connection("127.0.0.1", self.target, limit=BUFFER_BYTES)
                answer = await self.exchange(head, body, upstream)
                writer.write(answer)
                await writer.drain()
                if re.search(rb"(?i)\r\nconnection: *close", answer.split(b"\r\n\r\n", 1)[0]):
                    return
        except (Cut, OSError, asyncio.IncompleteReadError, asyncio.CancelledError) as error:
            if isinstance(error, Cut) and error.args:
                writer.write(error.args[0])  # the part of the answer that comes through
        finally:
            for end in [writer] + ([upstream[1]] if upstream else []):
                end.close()

    async def request(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        if re.search(rb"(?i)\r\nexpect: *100-continue", head):
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            head = re.sub(rb"(?i)\r\nexpect:[^\r]*", b"", head)
        return head, await body_of(head, reader)

    async def exchange(self, head, body, upstream):
        """The answer's bytes."""
        now = asyncio.get_running_loop().time()
        mode = self.network.judge(self.edge, exchange_of(head))
        if mode == "split":
            self.split_until = now + SPLIT_SECONDS
        if mode == "one-way":
            self.one_way_until = now + SPLIT_SECONDS
        if now < self.split_until or mode == "lose-request":
            raise Cut
        if mode == "delay":
            await asyncio.sleep(HOLD_SECONDS)
        if mode == "reorder":
            await self.wait_for_another()
        if mode == "truncate-request":
            whole = head + body
            upstream[1].write(whole[: max(1, len(head) + len(body) // 2 if body else len(head) // 2)])
            await upstream[1].drain()
            raise Cut
        answer = await self.pass_on(head, body, upstream)
        if now >= self.one_way_until and self.held and mode != "reorder":
            self.held.set()
        if now < self.one_way_until:
            await asyncio.sleep(max(0.0, self.one_way_until - asyncio.get_running_loop().time()))
            raise Cut
        if mode == "duplicate":
            await self.again(head, body, 0)
        if mode == "duplicate-late":
            self.network.spawn(self.again(head, body, HOLD_SECONDS))
        if mode == "lose-answer":
            raise Cut
        if mode == "truncate-answer":
            raise Cut(answer[: max(1, len(answer) * 3 // 4)])
        return answer

    async def wait_for_another(self):
        self.held = asyncio.Event()
        try:
            await asyncio.wait_for(self.held.wait(), SPLIT_SECONDS)
        except asyncio.TimeoutError:
            pass
        self.held = None

    @staticmethod
    async def pass_on(head, body, upstream):
        async def answer():
            upstream[1].write(head + body)
            await upstream[1].drain()
            first = await upstream[0].readuntil(b"\r\n\r\n")
            return first + await body_of(first, upstream[0])

        return await asyncio.wait_for(answer(), ANSWER_SECONDS)

    async def again(self, head, body, seconds):
        """The same request over a connection of its own; nobody hears the answer."""
        await asyncio.sleep(seconds)
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self.target, limit=BUFFER_BYTES)
            await asyncio.wait_for(self.pass_on(head, body, upstream), HOLD_SECONDS if seconds == 0 else ANSWER_SECONDS)
            upstream[1].close()
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            pass


class Network:
    """All edges of a rig, on a thread of its own."""

    def __init__(self, edges, strike):
        """edges: {name: (port, target port)}."""
        self.strike = strike
        self.seen = collections.Counter()
        self.struck = False
        self.loop = asyncio.new_event_loop()
        self.tasks = set()
        self.servers = []
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        for edge, (port, target) in edges.items():
            asyncio.run_coroutine_threadsafe(Proxy(self, edge, port, target).start(), self.loop).result(10)

    def judge(self, edge, exchange):
        """What becomes of this exchange; None: nothing."""
        self.seen[edge, exchange] += 1
        s = self.strike
        if not self.struck and (edge, exchange) == (s.edge, s.exchange) and self.seen[edge, exchange] == s.hit:
            self.struck = True
            return s.mode
        return None

    def spawn(self, coroutine):
        task = self.loop.create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def close(self):
        async def end():
            for server in self.servers:
                server.close()
            for task in asyncio.all_tasks():
                if task is not asyncio.current_task():
                    task.cancel()
            await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self.loop).result(10)
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(10)
        self.loop.close()
