"""A link between two services that can hold back what goes through it, or break: TCP by a process of its own, so that it goes on when the test stands still.

`Link(url)` forwards to that service until it is told otherwise; `link.url` is what the other one is told.  A link that is held takes connections and bytes and
delivers nothing, in either direction, as a network does that drops packets; what it holds is delivered later.  Standard library only.
"""
import asyncio
import json
import subprocess
import sys
import threading


class Link:
    def __init__(self, target=None):
        self.process = subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.url = f"http://127.0.0.1:{int(self.process.stdout.readline())}"
        if target:
            self.aim(target)

    def tell(self, **what):
        self.process.stdin.write(json.dumps(what) + "\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline() == "done\n"

    def aim(self, url):
        """For a service whose port is known only once it runs."""
        self.tell(target=int(url.rsplit(":", 1)[1]))

    def hold(self):
        self.tell(held=True)

    def heal(self):
        self.tell(held=False)

    def break_off(self):
        """Every connection is reset; new ones are forwarded."""
        self.tell(reset=True)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


class Forwarder:
    """The process's side."""

    def __init__(self):
        self.target = 0
        self.open = asyncio.Event()
        self.open.set()
        self.writers = set()

    def obey(self, what):
        self.target = what.get("target", self.target)
        if what.get("reset"):
            for writer in list(self.writers):
                writer.transport.abort()
        if "held" in what:
            (self.open.clear if what["held"] else self.open.set)()
        print("done", flush=True)

    async def pump(self, reader, writer):
        while chunk := await reader.read(65536):
            await self.open.wait()
            writer.write(chunk)
            await writer.drain()
        await self.open.wait()
        writer.write_eof()

    async def forward(self, reader, writer):
        pair = [writer]
        self.writers.add(writer)
        try:
            await self.open.wait()
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.target)
            pair.append(far_writer)
            self.writers.add(far_writer)
            await asyncio.gather(self.pump(reader, far_writer), self.pump(far_reader, writer))
        except (OSError, RuntimeError):
            pass
        finally:
            for one in pair:
                self.writers.discard(one)
                one.close()

    async def run(self):
        loop = asyncio.get_running_loop()
        over = asyncio.Event()
        server = await asyncio.start_server(self.forward, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)

        def listen():
            for line in sys.stdin:
                loop.call_soon_threadsafe(self.obey, json.loads(line))
            loop.call_soon_threadsafe(over.set)

        threading.Thread(target=listen, daemon=True).start()
        await over.wait()


if __name__ == "__main__":
    asyncio.run(Forwarder().run())
