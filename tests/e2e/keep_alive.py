"""Clients of one service in a process of their own: a thousand keep-alive connections that ask now and then, and clients that ask without a pause.

What a client asks is drawn from a list of questions, each with a judge of its answer.  A fault is any answer that is neither what the judge expects nor 429 or
503 with Retry-After, and any connection that ends otherwise than by an announced `Connection: close`: reset, closed in an answer, or closed between two
questions.  Nobody waits for Retry-After here, so the load does not let up.
"""
import asyncio
import collections
import multiprocessing
import random
import time
import traceback

ANSWER_SECONDS = 30
HEAD_BYTES = 1 << 16
FAULTS_KEPT = 10
WAVE = 50  # connections that are made at once
REST_SECONDS = (2, 10)  # of a connection that asks now and then: well below a service's --idle-timeout-ms


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def __repr__(self):
        return f"{self.status} {self.headers} {self.body[:300]!r}"


class Question:
    """judge(answer) raises AssertionError, or answers False, where the answer is not the right one; bytes: what the body must be."""

    def __init__(self, name, method, path, body=None, judge=None, weight=1, headers=""):
        length = "" if body is None else f"Content-Length: {len(body)}\r\nContent-Type: application/json\r\n"
        self.name, self.weight, self.judge = name, weight, judge
        self.bytes = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}{length}\r\n".encode() + (body or b"")

    def is_right(self, answer):
        if isinstance(self.judge, bytes):
            return answer.status == 200 and answer.body == self.judge
        return answer.status == 200 if self.judge is None else self.judge(answer) is not False


class Script:
    """Several exchanges that belong together: run(crowd, client) makes them by crowd.exchange."""

    def __init__(self, name, run, weight=1):
        self.name, self.run, self.weight = name, run, weight


class Client:
    """One connection, made again only where its end was announced."""

    def __init__(self, port):
        self.port, self.reader, self.writer = port, None, None

    async def ask(self, request):
        if self.writer is None:
            self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port, limit=HEAD_BYTES)
        self.writer.write(request)
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await self.reader.readexactly(int(headers["content-length"]))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return Answer(int(head[0].split()[1]), headers, body)

    def close(self):
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


class Tally:
    def __init__(self):
        self.answers = collections.Counter()  # by question and status
        self.refused = collections.Counter()  # 429 and 503
        self.faults, self.fault_count, self.slowest_ms = [], 0, 0.0

    def fault(self, what):
        self.fault_count += 1
        if len(self.faults) < FAULTS_KEPT:
            self.faults.append(what)

    def take(self, question, answer, took_ms):
        self.answers[question.name, answer.status] += 1
        self.slowest_ms = max(self.slowest_ms, took_ms)
        if answer.status in (429, 503) and answer.headers.get("retry-after", "").isdigit():
            self.refused[answer.status] += 1
            return
        try:
            if not question.is_right(answer):
                self.fault(f"{question.name}: {answer}")
        except (AssertionError, KeyError, ValueError) as error:
            self.fault(f"{question.name}: {error!r}: {answer}")


class Crowd:
    """All clients of the process.  until: asked before every question."""

    def __init__(self, port, questions, until):
        self.port, self.until, self.tally = port, until, Tally()
        self.questions, self.weights = questions, [question.weight for question in questions]
        self.dice = random.Random(20)

    async def one(self, client):
        (drawn,) = self.dice.choices(self.questions, self.weights)
        await (drawn.run(self, client) if isinstance(drawn, Script) else self.exchange(client, drawn))

    async def exchange(self, client, question):
        """The answer, whatever it is; None where the connection was lost."""
        begun = time.monotonic()
        try:
            answer = await asyncio.wait_for(client.ask(question.bytes), ANSWER_SECONDS)
        except (OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError) as error:
            client.close()
            if not self.until():
                self.tally.fault(f"{question.name}: {error!r} after {1000 * (time.monotonic() - begun):.0f} ms")
                await asyncio.sleep(0.1)
            return None
        self.tally.take(question, answer, 1000 * (time.monotonic() - begun))
        return answer

    async def asks_on(self):
        client = Client(self.port)
        try:
            while not self.until():
                await self.one(client)
        except asyncio.CancelledError:
            client.close()
            raise
        return client

    async def asks_now_and_then(self, client):
        while not self.until():
            rest = asyncio.get_running_loop().time() + self.dice.uniform(*REST_SECONDS)
            while not self.until() and (left := rest - asyncio.get_running_loop().time()) > 0:
                await asyncio.sleep(min(left, 0.5))
                if client.reader is not None and client.reader.at_eof():
                    self.tally.fault("a connection was closed between two questions")
                    client.close()
            if not self.until():
                await self.one(client)

    async def press(self, kept, active, open_now, release):
        idle = [Client(self.port) for _ in range(kept)]
        for at in range(0, kept, WAVE):
            await asyncio.gather(*(self.one(client) for client in idle[at : at + WAVE]))
            open_now.value = sum(client.writer is not None for client in idle)
        rests = [asyncio.ensure_future(self.asks_now_and_then(client)) for client in idle]
        busy = [asyncio.ensure_future(self.asks_on()) for _ in range(active)]
        while not self.until():
            await asyncio.sleep(0.05)
            for task in (*rests, *busy):
                if task.done():
                    task.result()  # none ends by itself, but by an error of ours
        for task in busy[::2]:  # half hang up in the middle of whatever they wait for, half take their answers
            task.cancel()
        done = await asyncio.gather(*busy, return_exceptions=True)
        open_now.value = sum(client.writer is not None for client in idle)
        while not release.is_set():  # the idle ones stay
            await asyncio.sleep(0.01)
        for client in [*idle, *(client for client in done if isinstance(client, Client))]:
            client.close()
        await asyncio.gather(*rests, return_exceptions=True)


def crowd_main(make, port, kept, active, stop, release, open_now, pipe):
    try:
        crowd = Crowd(port, make(), stop.is_set)
        asyncio.run(crowd.press(kept, active, open_now, release))
        pipe.send(crowd.tally)
    except Exception:  # the test tells it
        pipe.send(traceback.format_exc())


class Load:
    """A crowd in a process of its own, from __enter__ to __exit__; make() gives the questions there."""

    def __init__(self, port, make, kept, active):
        self.stop, self.release = multiprocessing.Event(), multiprocessing.Event()
        self.open_now = multiprocessing.Value("q", 0, lock=False)
        self.pipe, theirs = multiprocessing.Pipe(duplex=False)
        arguments = (make, port, kept, active, self.stop, self.release, self.open_now, theirs)
        self.process = multiprocessing.Process(target=crowd_main, args=arguments, daemon=True)
        self.kept = kept

    def __enter__(self):
        self.process.start()
        return self

    def wait_open(self, seconds=60):
        deadline = time.monotonic() + seconds
        while self.open_now.value < self.kept:
            assert not self.pipe.poll(), self.pipe.recv()
            assert time.monotonic() < deadline, f"{self.open_now.value} of {self.kept} connections were open after {seconds} s"
            time.sleep(0.01)

    def end(self):
        """The tally; `stop` was set before."""
        self.release.set()
        assert self.pipe.poll(60), "the clients did not end"
        tally = self.pipe.recv()
        assert isinstance(tally, Tally), tally
        return tally

    def __exit__(self, *_):
        self.stop.set()
        self.release.set()
        self.process.join(10)
        self.process.kill()
